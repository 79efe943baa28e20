//! The sections that the report takes from the pages of `kernel/docs`, which are written by hand.

use crate::paths::Paths;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// The sections of each part's page: what was objected, and what is still open.
const SECTIONS: [&str; 2] = ["The objections", "Not shown"];

/// The lines below a heading, up to the next one of the same level.
fn below<'a>(page: &'a str, heading: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n"))?;
    Some(rest.split("\n## ").next().unwrap_or(rest).trim())
}

fn read(paths: &Paths, name: &str) -> Result<(PathBuf, String)> {
    let path = paths.kernel.join("docs").join(name).with_extension("md");
    let page =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok((path, page))
}

/// What is compared: the beginning of the report.
///
/// # Errors
/// If `kernel/docs/summary.md` cannot be read, or has no such section.
pub(super) fn summary(paths: &Paths) -> Result<String> {
    const HEADING: &str = "What is compared";
    let (path, page) = read(paths, "summary")?;
    let found = below(&page, HEADING)
        .with_context(|| format!("{} has no section `{HEADING}`", path.display()))?;
    Ok(format!("\n## {HEADING}\n\n{found}\n"))
}

/// The objections to a part of the patches with their tests, and what is still open.
///
/// # Errors
/// If `kernel/docs/PART.md` cannot be read, or has no such section.
pub(super) fn answers(paths: &Paths, part: &str) -> Result<String> {
    let (path, page) = read(paths, part)?;
    let mut text = String::new();
    for heading in SECTIONS {
        let found = below(&page, heading)
            .with_context(|| format!("{} has no section `{heading}`", path.display()))?;
        let _ = write!(text, "\n### {heading}\n\n{found}\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_where_the_next_one_begins() {
        let page = "# P\n\n## A\n\none\n\n### B\n\ntwo\n\n## C\n\nthree\n";
        assert_eq!(below(page, "A"), Some("one\n\n### B\n\ntwo"));
        assert_eq!(below(page, "C"), Some("three"));
        assert_eq!(below(page, "B"), None);
    }

    /// The report in the repository has the pages' sections as they are now.
    #[test]
    fn the_report_is_not_older_than_the_pages() {
        let paths = Paths::find().unwrap();
        let (_, report) = read(&paths, "report").unwrap();
        assert!(report.contains(&summary(&paths).unwrap()), "summary.md");
        for part in super::super::PARTS {
            assert!(report.contains(&answers(&paths, part).unwrap()), "{part}.md");
        }
    }

    #[test]
    fn each_part_has_its_page() {
        let paths = Paths::find().unwrap();
        for part in super::super::PARTS {
            let text = answers(&paths, part).unwrap();
            assert!(
                text.starts_with("\n### The objections\n") && text.contains("\n|---|---|---|\n")
            );
        }
        assert!(summary(&paths).unwrap().starts_with("\n## What is compared\n\n*Plain* is"));
        let error = format!("{:#}", answers(&paths, "runs").unwrap_err());
        assert!(error.contains("runs.md has no section `The objections`"), "{error}");
    }
}
