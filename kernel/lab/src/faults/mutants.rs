//! The tests of faults that wait must fail on kernels that are wrong in what these test.

use super::boot::{run_broken, run_kunit};
use super::counts::{CASES, WAITS_LOCKED, WRITERS_WAIT};
use super::workloads::{SELFTEST, STORED, SWAP, WRITTEN};
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::{build, mutants, prepare, series};
use anyhow::{Context, Result, bail};

/// What notices a mutant.
#[derive(Clone, Copy)]
enum Noticed {
    /// A `KUnit` case.
    Kunit(&'static str),
    /// A case of the selftest.
    Case(&'static str),
    /// A workload, and what it should not count.
    Count(&'static str, &'static str),
}
use Noticed::{Case, Count, Kunit};

/// The mutants of *drop* in `kernel/mutants/faults`, and what must notice each.
const MUTANTS: [(&str, Noticed); 13] = [
    ("keep-whoever-locks", Count(WRITTEN, WAITS_LOCKED)),
    ("keep-off-the-lru", Kunit("fault_lock_test_dropped")),
    ("keep-while-written", Kunit("fault_lock_test_dropped_for_file")),
    ("keep-for-a-device", Kunit("fault_lock_test_dropped_for_swap")),
    ("never-keep", Kunit("fault_lock_test_kept")),
    ("never-keep", Case(CASES[6])),
    ("throttle-with-the-lock", Count(STORED, WRITERS_WAIT)),
    ("swap-in-by-mmap-lock", Count(SWAP, "retry_mmap_drop")),
    ("remember-the-vma", Case(CASES[3])),
    ("all-that-waited-are-major", Case(CASES[2])),
    ("drop-to-read-ahead", Case(CASES[1])),
    ("check-the-access-once", Case(CASES[4])),
    ("retry-after-a-punch", Case(CASES[5])),
];

/// Builds each mutant, and runs what must notice it.
///
/// # Errors
/// If a mutant does not apply, build or boot, or is not noticed.
pub(super) fn mutants(paths: &Paths) -> Result<()> {
    prepare::prepare_tree(paths, Tree::Drop)?;
    for (name, by) in MUTANTS {
        let seen = one(paths, name, by);
        // Without the mutant again, also after a failure.
        prepare::prepare_tree(paths, Tree::Drop)?;
        println!("{name}: noticed, {}", seen.with_context(|| format!("mutant {name}"))?);
    }
    Ok(())
}

/// Tells by what a mutant was noticed.
///
/// # Errors
/// If it was not.
fn one(paths: &Paths, name: &str, by: Noticed) -> Result<String> {
    let tree = paths.source(Tree::Drop);
    let before = series::Times::of(&tree);
    series::forget(paths, Tree::Drop);
    series::apply_one(&tree, &paths.kernel.join("mutants/faults").join(format!("{name}.patch")))?;
    before.restore(&tree)?;
    let image = build::build(paths, Tree::Drop, Config::Faults)?;
    let name = format!("mutant-{name}");
    match by {
        Kunit(case) => {
            let suites = mutants::suites(paths, Tree::Drop)?;
            let why = mutants::noticed(&run_kunit(paths, &name, &image)?, case, &suites)?;
            Ok(format!("{case} {why}"))
        }
        Case(case) => {
            let failed = run_broken(paths, &name, &image, SELFTEST)?.failed_cases();
            if !failed.contains(&case) {
                bail!("the selftest's {case} is 1; these are 0: {failed:?}");
            }
            Ok(format!("selftest: {} are 0", failed.join(", ")))
        }
        Count(workload, what) => {
            match run_broken(paths, &name, &image, workload)?.of(workload, what) {
                0 => bail!("{workload} has no {what}"),
                count => Ok(format!("{workload}: {what} {count}")),
            }
        }
    }
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
        let mut tried = MUTANTS.map(|(name, _)| name.to_string()).to_vec();
        tried.sort();
        tried.dedup();
        assert_eq!(found, tried);
    }
}
