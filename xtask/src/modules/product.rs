//! How many lines of product a crate has: all but tests, models and mutants.

use std::path::Path;

use anyhow::Result;

use super::gather::{self, Features};
use super::tree::Tree;

/// What is off in each count: what only tests, benchmarks and mutants need.
const OFF: [(&str, bool); 2] = [("testing", false), ("mutants", false)];

/// Files with the list of mutants, and what switches one on.
const MUTANTS: [&str; 2] = ["base/mutant.rs", "base/mutants.rs"];

/// The sources that are counted.
const CRATE: &str = "crates/pinfold/src";

/// What the cache has without maps, and with maps and clients: its lines, and how many of them are
/// neither blank nor a comment alone.
pub(super) fn told(root: &Path) -> Result<String> {
    let count = |maps: bool| -> Result<String> {
        let features: Vec<(&str, bool)> =
            OFF.into_iter().chain([("map", maps), ("serve", maps)]).collect();
        let (lines, code) = lines(&read(root, &features)?);
        Ok(format!("{lines} lines ({code} of code)"))
    };
    Ok(format!(
        "{CRATE}, without tests, models and mutants: {} without maps, {} with maps and clients",
        count(false)?,
        count(true)?
    ))
}

fn read(root: &Path, features: &Features<'_>) -> Result<Tree> {
    Ok(gather::read(&root.join(CRATE), &["lib.rs"], features)?.remove(0))
}

fn lines(tree: &Tree) -> (usize, usize) {
    let is_product = |file: &Path| !MUTANTS.iter().any(|it| file == Path::new(it));
    let modules = tree.modules.iter().enumerate();
    let files = modules.filter(|(id, module)| module.owner == *id && is_product(&module.file));
    let (mut lines, mut code) = (0, 0);
    for (_, module) in files {
        for (_, line) in module.lines() {
            let line = line.trim();
            lines += 1;
            code += usize::from(!line.is_empty() && !line.starts_with("//"));
        }
    }
    (lines, code)
}
