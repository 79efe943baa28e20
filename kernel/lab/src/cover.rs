//! Checks that a cover letter tells what its series is: what is changed in a patch is easily
//! forgotten there.

use crate::git::{self, git};
use crate::kernels::Tree;
use crate::paths::Paths;
use crate::{fixes, proc, series};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What has to be in a cover letter.
#[derive(Debug)]
struct Told {
    /// The first lines of the patches, in order.
    subjects: Vec<String>,
    /// Git's table of the changed files.
    stat: String,
    /// A line for each patch that the series is built on, as `git format-patch --base` writes it.
    prerequisites: Vec<String>,
    /// The lines of `get_maintainer.pl` for all patches.
    maintainers: String,
}

/// Checks the number of the patches, the list of them, the table of changed files, the patches
/// that the series is built on, and the addresses in the cover letter of each series. Returns how
/// many there are.
///
/// # Errors
/// What is not told, or not as it is.
pub(crate) fn check(paths: &Paths) -> Result<usize> {
    for folder in series::SENT {
        let file = paths.kernel.join(folder).join("0000-cover-letter");
        let cover =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        compare(&cover, &told(paths, folder)?).with_context(|| file.display().to_string())?;
    }
    Ok(series::SENT.len())
}

fn told(paths: &Paths, folder: &str) -> Result<Told> {
    let plain = paths.source(Tree::Plain);
    let (below, patches) = (series::below(paths, folder)?, series::patches_in(paths, folder)?);
    let [base, end] = series::trees(paths, &below, &patches)?;
    Ok(Told {
        subjects: patches.iter().map(|patch| subject(patch)).collect::<Result<_>>()?,
        stat: git(&plain, &["diff", "--stat=72", &base, &end])?,
        prerequisites: below.iter().map(|p| prerequisite(&plain, p)).collect::<Result<_>>()?,
        maintainers: fixes::maintainers(&plain, &patches)?,
    })
}

/// The first line of a patch's message, which a mail may have in several lines.
fn subject(patch: &Path) -> Result<String> {
    let text = fs::read_to_string(patch)?;
    let mut lines = text.lines().skip_while(|l| !l.starts_with("Subject: "));
    let mut subject = lines.next().context("a patch without a subject")?.to_string();
    for more in lines.take_while(|l| l.starts_with(' ')) {
        subject += more;
    }
    let (_, subject) = subject.split_once("] ").context("a subject without `[PATCH]`")?;
    Ok(subject.to_string())
}

fn prerequisite(tree: &Path, patch: &Path) -> Result<String> {
    let mut command = Command::new("sh");
    command.args(["-c", "git patch-id --stable < \"$0\""]).arg(patch).current_dir(tree);
    git::without_variables(&mut command);
    let out = proc::output(&mut command)?;
    let id = out.split_whitespace().next();
    Ok(format!("prerequisite-patch-id: {}", id.context("git patch-id finds no patch")?))
}

fn compare(cover: &str, told: &Told) -> Result<()> {
    let of = told.subjects.len().to_string();
    let number = format!(" {}/{of}] ", "0".repeat(of.len()));
    let subject = cover.lines().find(|line| line.starts_with("Subject: ")).unwrap_or_default();
    if !subject.contains(&number) {
        bail!("the subject has no `{}`: {subject}", number.trim());
    }
    let indented = |line: &String| format!("  {line}\n");
    let list: String = told.subjects.iter().map(indented).collect();
    for (what, text) in [
        ("the patches", list),
        ("the changed files", told.stat.clone()),
        ("the prerequisites", told.prerequisites.join("\n")),
    ] {
        if !cover.contains(&text) {
            bail!("it does not have the list of {what} as it is:\n{text}");
        }
    }
    let named = cover.lines().filter(|line| line.starts_with("prerequisite-patch-id: ")).count();
    let there = told.prerequisites.len();
    if named != there {
        bail!("it names {named} prerequisite patches, and there are {there}");
    }
    let mut missing = fixes::missing_addresses(cover, &told.maintainers);
    missing.sort();
    missing.dedup();
    if !missing.is_empty() {
        bail!("get_maintainer.pl also names {}", missing.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COVER: &str = "Subject: [RFC PATCH 0/2] mm: things\nTo: One <one@x>,\n    two@x\n\n\
                         Text.\n\n  mm: one\n  mm: two\n\n a | 2 +-\n 1 file changed\n\n\
                         prerequisite-patch-id: 12\nprerequisite-patch-id: 34\n";

    fn told() -> Told {
        let strings = |all: [&str; 2]| all.map(str::to_string).to_vec();
        Told {
            subjects: strings(["mm: one", "mm: two"]),
            stat: " a | 2 +-\n 1 file changed\n".into(),
            prerequisites: strings(["prerequisite-patch-id: 12", "prerequisite-patch-id: 34"]),
            maintainers: "One <one@x>\ntwo@x\ntwo@x\n".into(),
        }
    }

    #[test]
    fn a_subject_may_have_two_lines() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("0001.patch");
        let of = |text: &str| {
            fs::write(&file, text).unwrap();
            subject(&file)
        };
        let two = "From: a\nSubject: [PATCH 1/2] mm: one\n and two\nDate: x\n\nSubject: no\n";
        assert_eq!(of(two).unwrap(), "mm: one and two");
        assert_eq!(of("Subject: [RFC PATCH] mm: one\n\n two\n").unwrap(), "mm: one");
        of("Subject: mm: one\n").unwrap_err();
        of("").unwrap_err();
    }

    #[test]
    fn what_is_told_is_compared_with_what_is() {
        compare(COVER, &told()).unwrap();
        for (old, new, why) in [
            ("0/2", "0/3", "the subject"),
            ("mm: one\n  mm: two", "mm: two\n  mm: one", "list of the patches"),
            ("  mm: two\n", "", "list of the patches"),
            ("2 +-", "3 +-", "list of the changed files"),
            ("id: 34", "id: 43", "list of the prerequisites"),
            ("id: 34", "id: 34\nprerequisite-patch-id: 56", "names 3 prerequisite patches"),
            ("two@x", "three@x", "also names two@x"),
        ] {
            let error = compare(&COVER.replace(old, new), &told()).unwrap_err().to_string();
            assert!(error.contains(why), "{new}: {error}");
        }
    }
}
