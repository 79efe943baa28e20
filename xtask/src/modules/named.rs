//! Files that comments and documents name, and that are not there.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A line for each name in a comment or document of `folders` and files that ends no path among
/// them. All are below `root`.
pub(super) fn gone(root: &Path, folders: &[&str]) -> Result<String> {
    let mut paths = Vec::new();
    for folder in folders {
        list(&root.join(folder), &mut paths)?;
    }
    let is_there = |name: &str| paths.iter().any(|path| path.ends_with(name));
    let mut gone = String::new();
    for path in &paths {
        let is_code = path.extension().is_some_and(|end| end == "rs");
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        for (n, line) in text.lines().enumerate() {
            let prose = if is_code { line.split_once("//").map_or("", |(_, it)| it) } else { line };
            for name in names(prose).filter(|name| !is_there(name)) {
                let path = path.strip_prefix(root).unwrap_or(path).display();
                let _ = writeln!(gone, "{path}:{}: there is no {name}", n + 1);
            }
        }
    }
    Ok(gone)
}

/// The names of Rust files in a line. One that begins with a dot is no path from anywhere.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let is_of_path = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    let words = line.split(move |c| !is_of_path(c)).map(|word| word.trim_end_matches('.'));
    words.filter(|word| {
        !word.starts_with('.') && word.strip_suffix(".rs").is_some_and(|it| !it.is_empty())
    })
}

fn list(path: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(|| path.display().to_string())? {
            let entry = entry?.path();
            if entry.file_name().is_some_and(|name| name != "target") {
                list(&entry, into)?;
            }
        }
    } else if path.extension().is_some_and(|end| end == "rs" || end == "md") {
        into.push(path.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_prose_ends_a_path() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let write = |path: &str, text: &str| -> Result<()> {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
            Ok(fs::write(path, text)?)
        };
        write(
            "src/map/a.rs",
            "//! `map/a.rs`, a.rs, ../x.rs; not `b.rs`.\nlet x = \"c.rs\"; // p/a.rs\n",
        )?;
        write("d.md", "See src/map/a.rs. And e.rs.\n")?;
        let told = gone(dir.path(), &["src", "d.md"])?;
        let expected = "src/map/a.rs:1: there is no b.rs\nsrc/map/a.rs:2: there is no p/a.rs\nd.md:1: there is no e.rs\n";
        assert_eq!(told, expected);
        Ok(())
    }
}
