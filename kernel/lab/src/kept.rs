//! Keeps results for later commands, each with the inputs of the kernels that it was measured
//! on, so that a table of another series, source, configuration, or compiler is not used.

use crate::build;
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;

#[derive(Serialize, Deserialize)]
struct Kept<T> {
    /// The inputs of the kernels.
    of: Vec<String>,
    result: T,
}

/// The kernels that most results are of.
const FAST: &[(Tree, Config)] = &[(Tree::Plain, Config::Fast), (Tree::Series, Config::Fast)];

/// The inputs of kernels, as they would be built now.
fn inputs(paths: &Paths, kernels: &[(Tree, Config)]) -> Result<Vec<String>> {
    kernels.iter().map(|&(tree, config)| build::inputs(paths, tree, config)).collect()
}

/// Keeps a result of the two fast kernels.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn keep<T: Serialize>(paths: &Paths, name: &str, result: T) -> Result<()> {
    keep_of(paths, FAST, name, result)
}

/// Keeps a result of these kernels.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn keep_of<T: Serialize>(
    paths: &Paths,
    kernels: &[(Tree, Config)],
    name: &str,
    result: T,
) -> Result<()> {
    write(paths, name, &Kept { of: inputs(paths, kernels)?, result })
}

fn write<T: Serialize>(paths: &Paths, name: &str, kept: &Kept<T>) -> Result<()> {
    let path = paths.result(name);
    fs::write(&path, serde_json::to_string_pretty(kept)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// A result of the two fast kernels as they are now. `command` is what makes it.
///
/// # Errors
/// If there is no result, or it was measured on other kernels. The error names `command`.
pub(crate) fn load<T: DeserializeOwned>(paths: &Paths, name: &str, command: &str) -> Result<T> {
    load_of(paths, FAST, name, command)
}

/// A result of these kernels as they are now. `command` is what makes it.
///
/// # Errors
/// The same.
pub(crate) fn load_of<T: DeserializeOwned>(
    paths: &Paths,
    kernels: &[(Tree, Config)],
    name: &str,
    command: &str,
) -> Result<T> {
    read(paths, name, command, &inputs(paths, kernels)?)
}

fn read<T: DeserializeOwned>(
    paths: &Paths,
    name: &str,
    command: &str,
    now: &[String],
) -> Result<T> {
    let path = paths.result(name);
    let path = path.display();
    let text = fs::read_to_string(paths.result(name))
        .with_context(|| format!("no {path}; run `{command}`"))?;
    let kept: Kept<T> = serde_json::from_str(&text).with_context(|| {
        format!("{path} is damaged, or was written by an older lab; run `{command}`")
    })?;
    if kept.of != now {
        bail!(
            "{path} was measured with another series, source, configuration, or compiler; \
             run `{command}`"
        );
    }
    Ok(kept.result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_of_other_kernels_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path(), dir.path());
        fs::create_dir(dir.path().join("results")).unwrap();
        let now = vec!["plain".to_string(), "series".to_string()];
        let load = |now: &[String]| read::<Vec<u32>>(&paths, "counts", "lab bench", now);
        let error = load(&now).unwrap_err().to_string();
        assert!(error.contains("no ") && error.contains("`lab bench`"), "{error}");
        write(&paths, "counts", &Kept { of: now.clone(), result: vec![1] }).unwrap();
        assert_eq!(load(&now).unwrap(), [1]);
        for at in 0..2 {
            let mut other = now.clone();
            other[at] += "+";
            let error = load(&other).unwrap_err().to_string();
            assert!(error.contains("another series") && error.contains("`lab bench`"), "{error}");
        }
        fs::write(paths.result("counts"), "[1]").unwrap();
        assert!(load(&now).unwrap_err().to_string().contains("older lab"));
    }
}
