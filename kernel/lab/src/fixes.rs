//! The fixes of `kernel/fixes`: patches that stand without the series, each a mail that is ready
//! to send. The series is built on them. Here is what makes a mail ready; that it applies on top
//! of the others, and its style, are checked with the series.

use crate::git::{self, git};
use crate::kernels::Tree;
use crate::paths::Paths;
use crate::{proc, series};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;
use std::time::Duration;

/// Checks that each fix applies to Debian's source without the others, that it goes to everybody
/// whom `get_maintainer.pl` names, and that it says what it fixes. Returns how many there are.
///
/// # Errors
/// The first fix of which that is not true.
pub(crate) fn check(paths: &Paths) -> Result<usize> {
    let fixes = series::patches_in(paths, "fixes")?;
    if fixes.is_empty() {
        bail!("no fixes in {}", paths.kernel.join("fixes").display());
    }
    let plain = paths.source(Tree::Plain);
    for fix in &fixes {
        let name = fix.file_name().unwrap_or_default().to_string_lossy();
        let mail = fs::read_to_string(fix).with_context(|| format!("cannot read {name}"))?;
        applies_alone(&plain, fix).with_context(|| format!("{name}: not by itself"))?;
        let missing = missing_addresses(&mail, &maintainers(&plain, slice::from_ref(fix))?);
        if !missing.is_empty() {
            bail!("{name}: get_maintainer.pl also names {}", missing.join(", "));
        }
        if !says_what_it_fixes(&mail) {
            bail!("{name}: no `Fixes:`, neither in the message nor in what is said below it");
        }
    }
    Ok(fixes.len())
}

fn applies_alone(plain: &Path, fix: &Path) -> Result<()> {
    git(plain, &["apply", "--check", &fix.to_string_lossy()]).map(drop)
}

/// Whom `get_maintainer.pl` names for these patches, without looking at the history, which the
/// tree does not have.
///
/// # Errors
/// If it fails, or names nobody.
pub(crate) fn maintainers(plain: &Path, patches: &[PathBuf]) -> Result<String> {
    let mut perl = Command::new("perl");
    perl.args(["scripts/get_maintainer.pl", "--nogit", "--nogit-fallback", "--norolestats"])
        .args(patches)
        .current_dir(plain);
    git::without_variables(&mut perl);
    let out = proc::capture(&mut perl, Duration::from_secs(2 * 60))?;
    if !out.status.success() || out.stdout.is_empty() {
        let complaint = String::from_utf8_lossy(&out.stderr).trim().to_string();
        bail!("get_maintainer.pl names nobody: {complaint}");
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The address in `Name <address>`, or the whole if there is no name.
fn address(line: &str) -> &str {
    line.split_once('<').map_or(line, |(_, rest)| rest.trim_end_matches(['>', ','])).trim()
}

/// The addresses of `named` that are in neither of the mail's headers `To:` and `Cc:`. For a list
/// that MAINTAINERS gives with a name, `get_maintainer.pl` prints an empty line.
pub(crate) fn missing_addresses(mail: &str, named: &str) -> Vec<String> {
    let head = mail.split("\n\n").next().unwrap_or_default();
    let mut to = Vec::new();
    let mut counts = false;
    for line in head.lines() {
        if !line.starts_with([' ', '\t']) {
            counts = line.starts_with("To: ") || line.starts_with("Cc: ");
        }
        if counts {
            let line = line.trim_start_matches("To: ").trim_start_matches("Cc: ");
            to.push(address(line.trim().trim_end_matches(',')));
        }
    }
    named
        .lines()
        .map(|line| address(line.trim()))
        .filter(|wanted| !wanted.is_empty() && !to.contains(wanted))
        .map(str::to_string)
        .collect()
}

/// Whether the message has a tag `Fixes:`, or the notes below it say which one the sender adds.
fn says_what_it_fixes(mail: &str) -> bool {
    let Some((message, rest)) = mail.split_once("\n---\n") else {
        return false;
    };
    let notes = rest.split("\ndiff --git ").next().unwrap_or_default();
    message.lines().any(|line| line.starts_with("Fixes: ")) || notes.contains("Fixes:")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIL: &str = "From 0 Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nSubject: [PATCH] change\n\
                        To: One <one@x>,\n    Two <two@x>\nCc: list@x\n\n\
                        Text with three@x.\n\nFixes: 123456789012 (\"old\")\n\n---\n a | 2 +-\n\n\
                        diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n--\n";

    #[test]
    fn who_is_not_in_the_headers_is_missing() {
        let missing = |named: &str| missing_addresses(MAIL, named);
        assert_eq!(missing("One <one@x>\n\"T. Wo\" <two@x>\n\nlist@x\n"), Vec::<String>::new());
        assert_eq!(missing("Three <three@x>\na@b\none@x"), ["three@x", "a@b"]);
        // An address that only begins like one of the headers'.
        assert_eq!(missing("one@x.y"), ["one@x.y"]);
    }

    #[test]
    fn a_fix_says_what_it_fixes() {
        assert!(says_what_it_fixes(MAIL));
        let none = MAIL.replace("Fixes: 123456789012 (\"old\")\n", "");
        assert!(!says_what_it_fixes(&none));
        assert!(says_what_it_fixes(&none.replace("\n---\n", "\n---\nThe Fixes: tag to add\n")));
        // What the patch adds is not the mail's.
        assert!(!says_what_it_fixes(&none.replace("+two", "+Fixes: two")));
    }

    #[test]
    fn a_fix_that_needs_another_one_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        fs::write(tree.join("a"), "one\n").unwrap();
        for args in [&["init", "-q", "."][..], &["add", "a"], &["commit", "-qm", "base"]] {
            git(tree, args).unwrap();
        }
        let fix = tree.join("0001-change.patch");
        fs::write(&fix, MAIL).unwrap();
        applies_alone(tree, &fix).unwrap();
        assert_eq!(fs::read_to_string(tree.join("a")).unwrap(), "one\n");
        fs::write(&fix, MAIL.replace("-one\n+two", "-two\n+three")).unwrap();
        applies_alone(tree, &fix).unwrap_err();
    }
}
