//! Checks that a cover letter tells what its series is: what is changed in a patch is easily
//! forgotten there.

use crate::git::{self, BASE_TAG, git};
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
    /// A line for each fix that the series is built on, as `git format-patch --base` writes it.
    prerequisites: Vec<String>,
    /// The lines of `get_maintainer.pl` for all patches.
    maintainers: String,
}

/// Checks the number of the patches, the list of them, the table of changed files, the fixes that
/// the series is built on, and the addresses in its cover letter. The patched tree must have all
/// patches.
///
/// # Errors
/// What is not told, or not as it is.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let file = paths.kernel.join("series/0000-cover-letter");
    let cover =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    compare(&cover, &told(paths)?).with_context(|| file.display().to_string())
}

fn told(paths: &Paths) -> Result<Told> {
    let (tree, plain) = (paths.source(Tree::Series), paths.source(Tree::Plain));
    let fixes = series::patches_in(paths, "fixes")?;
    let patches = series::patches_in(paths, "series")?;
    let commits = git(&tree, &["rev-list", "--reverse", &format!("{BASE_TAG}..HEAD")])?;
    let commits: Vec<_> = commits.lines().collect();
    let last_of = |patches: usize| commits.get(patches.checked_sub(1)?);
    let (Some(base), Some(end)) = (last_of(fixes.len()), last_of(fixes.len() + patches.len()))
    else {
        bail!("{} does not have all patches", tree.display());
    };
    let subjects = git(&tree, &["log", "--reverse", "--format=%s", &format!("{base}..{end}")])?;
    let stat = git(&tree, &["diff", "--stat=72", base, end])?;
    let prerequisites = fixes.iter().map(|fix| prerequisite(&tree, fix)).collect::<Result<_>>()?;
    let subjects = subjects.lines().map(str::to_string).collect();
    Ok(Told { subjects, stat, prerequisites, maintainers: fixes::maintainers(&plain, &patches)? })
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
    let number = format!(" 00/{}] ", told.subjects.len());
    let subject = cover.lines().find(|line| line.starts_with("Subject: ")).unwrap_or_default();
    if !subject.contains(&number) {
        bail!("the subject has no `{}`: {subject}", number.trim());
    }
    let indented = |line: &String| format!("  {line}\n");
    let list: String = told.subjects.iter().map(indented).collect();
    for (what, text) in [
        ("the patches", list),
        ("the changed files", told.stat.clone()),
        ("the fixes", told.prerequisites.join("\n")),
    ] {
        if !cover.contains(&text) {
            bail!("it does not have the list of {what} as it is:\n{text}");
        }
    }
    let named = cover.lines().filter(|line| line.starts_with("prerequisite-patch-id: ")).count();
    let fixes = told.prerequisites.len();
    if named != fixes {
        bail!("it names {named} prerequisite patches, and there are {fixes} fixes");
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

    const COVER: &str = "Subject: [RFC PATCH 00/2] mm: things\nTo: One <one@x>,\n    two@x\n\n\
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
    fn what_is_told_is_compared_with_what_is() {
        compare(COVER, &told()).unwrap();
        for (old, new, why) in [
            ("00/2", "00/3", "the subject"),
            ("mm: one\n  mm: two", "mm: two\n  mm: one", "list of the patches"),
            ("  mm: two\n", "", "list of the patches"),
            ("2 +-", "3 +-", "list of the changed files"),
            ("id: 34", "id: 43", "list of the fixes"),
            ("id: 34", "id: 34\nprerequisite-patch-id: 56", "names 3 prerequisite patches"),
            ("two@x", "three@x", "also names two@x"),
        ] {
            let error = compare(&COVER.replace(old, new), &told()).unwrap_err().to_string();
            assert!(error.contains(why), "{new}: {error}");
        }
    }
}
