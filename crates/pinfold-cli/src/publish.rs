//! Prints results: a table for people, JSON for programs.

use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::Access;
use serde::Serialize;

use crate::say;

/// Checks that the JSON can be written to `path`, before anything is measured for it. The file is
/// not changed, nor made.
pub fn check(path: Option<&Path>) -> Result<()> {
    let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
        return Ok(());
    };
    let checked = match std::fs::metadata(path) {
        // A pipe or a device is not opened twice: its reader might see an end in between.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        Ok(_) => std::fs::File::options().append(true).open(path).map(drop),
        Err(_) => {
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            let dir = dir.unwrap_or(Path::new("."));
            rustix::fs::access(dir, Access::WRITE_OK | Access::EXEC_OK).map_err(Into::into)
        }
    };
    checked.with_context(|| format!("cannot write {}", path.display()))
}

/// Prints the table, and writes the JSON to `path`, if there is one. If `path` is `-`, the JSON
/// goes to standard output, and the table to standard error.
pub fn publish(path: Option<&Path>, table: &str, json: &impl Serialize) -> Result<()> {
    let Some(path) = path else {
        return say::print(table);
    };
    let text = serde_json::to_string_pretty(json)?;
    if path.as_os_str() == "-" {
        say::tell(table);
        say::print(text)?;
    } else {
        say::print(table)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
