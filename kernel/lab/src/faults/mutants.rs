//! The selftest of faults that wait, and one of the workloads, must fail on kernels that are
//! wrong in what these test.

use super::boot::run_broken;
use super::counts::{CASES, WAITS_LOCKED};
use super::workloads::{SELFTEST, WRITTEN};
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::{build, prepare, series};
use anyhow::{Context, Result, bail};

/// The mutants of *drop* in `kernel/mutants/faults`, and what must notice each: a case of the
/// selftest, or a count that must be 0.
const MUTANTS: [(&str, &str); 6] = [
    ("keep-whoever-locks", WAITS_LOCKED),
    ("remember-the-vma", CASES[3]),
    ("all-that-waited-are-major", CASES[2]),
    ("drop-to-read-ahead", CASES[1]),
    ("check-the-access-once", CASES[4]),
    ("retry-after-a-punch", CASES[5]),
];

/// Builds each mutant, and runs the selftest and the workload on it.
///
/// # Errors
/// If a mutant does not apply, build or boot, or is not noticed.
pub(super) fn mutants(paths: &Paths) -> Result<()> {
    prepare::prepare_tree(paths, Tree::Drop)?;
    for (name, case) in MUTANTS {
        let seen = one(paths, name);
        // Without the mutant again, also after a failure.
        prepare::prepare_tree(paths, Tree::Drop)?;
        let seen = seen.with_context(|| format!("mutant {name}"))?;
        if !seen.contains(&case) {
            bail!("mutant {name}: noticed by {seen:?}, and not by {case}");
        }
        println!("{name}: noticed by {}", seen.join(", ").replace("passed", "selftest"));
    }
    Ok(())
}

/// What notices a mutant.
fn one(paths: &Paths, name: &str) -> Result<Vec<&'static str>> {
    let tree = paths.source(Tree::Drop);
    let before = series::Times::of(&tree);
    series::forget(paths, Tree::Drop);
    series::apply_one(&tree, &paths.kernel.join("mutants/faults").join(format!("{name}.patch")))?;
    before.restore(&tree)?;
    let image = build::build(paths, Tree::Drop, Config::Faults)?;
    let workloads = [WRITTEN, SELFTEST];
    let counts = run_broken(paths, &format!("mutant-{name}"), &image, &workloads)?;
    let mut seen = counts.failed_cases();
    if counts.of(WRITTEN, WAITS_LOCKED) > 0 {
        seen.push(WAITS_LOCKED);
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn each_mutant_of_the_faults_is_tried() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("mutants/faults");
        let mut found: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().display().to_string())
            .collect();
        found.sort();
        let mut tried = MUTANTS.map(|(name, _)| name.to_string());
        tried.sort();
        assert_eq!(found, tried);
    }
}
