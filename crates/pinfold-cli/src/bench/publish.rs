//! Prints results: a table for people, JSON for programs. Called by every benchmark, by the
//! simulation and by `try`.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Prints the table, and writes the JSON to `path`, if there is one; the table makes way for it
/// on standard output.
pub fn publish(path: Option<&Path>, table: &str, json: &impl Serialize) -> Result<()> {
    let Some(path) = path else {
        println!("{table}");
        return Ok(());
    };
    let text = serde_json::to_string_pretty(json)?;
    if path.as_os_str() == "-" {
        eprintln!("{table}");
        println!("{text}");
    } else {
        println!("{table}");
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
