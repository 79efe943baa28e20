//! The tests of faults that wait must fail on kernels that are wrong in what these test.

use super::boot::{files, run_broken, run_kunit};
use super::counts::{CASES, Counts, WAITS_LOCKED, WRITERS_WAIT};
use super::workloads::{SELFTEST, STORED, SWAP, WRITTEN};
use crate::chosen::chosen;
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::{build, mutants, overlap, prepare, series, smoke};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What notices a mutant.
#[derive(Clone, Copy)]
enum Noticed {
    /// A `KUnit` case.
    Kunit(&'static str),
    /// A case of the selftest.
    Case(&'static str),
    /// A workload, and what it counts much more of than without the mutant.
    Count(&'static str, &'static str),
}
use Noticed::{Case, Count, Kunit};

/// The mutants of *drop* in `kernel/mutants/faults`, and what must notice each.
const MUTANTS: [(&str, Noticed); 19] = [
    ("keep-the-lock-when-killed", Case(CASES[7])),
    ("retry-by-mmap-lock", Case(CASES[0])),
    ("keep-whoever-locks", Count(WRITTEN, WAITS_LOCKED)),
    ("keep-off-the-lru", Kunit("fault_lock_test_dropped")),
    ("keep-while-written", Kunit("fault_lock_test_dropped_for_file")),
    ("keep-for-a-device", Kunit("fault_lock_test_dropped_for_swap")),
    ("never-keep", Kunit("fault_lock_test_kept")),
    ("retry-without-end", Kunit("fault_lock_test_once")),
    ("keep-mmap-lock", Kunit("fault_lock_test_no_vma")),
    ("read-ahead-later-anyway", Kunit("fault_lock_test_read_ahead_later")),
    ("read-ahead-later-for-anybody", Kunit("fault_lock_test_read_ahead_later")),
    ("never-keep", Case(CASES[6])),
    ("throttle-with-the-lock", Count(STORED, WRITERS_WAIT)),
    ("swap-in-by-mmap-lock", Count(SWAP, "retry_mmap_drop")),
    ("remember-the-vma", Case(CASES[3])),
    ("all-that-waited-are-major", Case(CASES[2])),
    ("drop-to-read-ahead", Case(CASES[1])),
    ("check-the-access-once", Case(CASES[4])),
    ("retry-after-a-punch", Case(CASES[5])),
];

impl Noticed {
    /// The workload that has to be run.
    fn workload(self) -> Option<&'static str> {
        match self {
            Kunit(_) => None,
            Case(_) => Some(SELFTEST),
            Count(workload, _) => Some(workload),
        }
    }
}

/// Runs the `KUnit` tests and the workloads without a mutant, then builds each of these, or of all,
/// and runs what must notice it.
///
/// # Errors
/// If a mutant does not apply, build or boot, or is not noticed.
pub(crate) fn mutants(paths: &Paths, only: &[String]) -> Result<()> {
    let mutants = chosen("mutant", MUTANTS.to_vec(), |mutant| mutant.0, only)?;
    prepare::prepare_tree(paths, Tree::Drop)?;
    let image = build::build(paths, Tree::Drop, Config::Faults)?;
    smoke::smoke(paths, Tree::Drop, Config::Faults)?;
    let (files, suites) = (files(paths, Tree::Drop)?, mutants::suites(paths, Tree::Drop)?);
    let mut without = BTreeMap::new();
    for workload in mutants.iter().filter_map(|(_, by)| by.workload()) {
        if !without.contains_key(workload) {
            let name = format!("no-mutant-{workload}");
            without.insert(workload, run_broken(paths, &name, &image, &files, workload)?);
        }
    }
    overlap::builds_and_boots(
        mutants,
        |(name, by), copy| {
            let image = built(paths, name, copy);
            // Without the mutant again, also after a failure.
            prepare::prepare_tree(paths, Tree::Drop)?;
            Ok((name, by, image.with_context(|| format!("mutant {name}"))?))
        },
        |(name, by, image)| {
            let boot = format!("mutant-{name}");
            let run = |workload| run_broken(paths, &boot, &image, &files, workload);
            let seen = match by {
                Kunit(case) => run_kunit(paths, &boot, &image)
                    .and_then(|ran| mutants::noticed(&ran, case, &suites))
                    .map(|why| format!("{case} {why}")),
                Case(case) => {
                    run(SELFTEST).and_then(|with| failed(case, &without[SELFTEST], &with))
                }
                Count(workload, what) => {
                    run(workload).and_then(|with| more(workload, what, &without[workload], &with))
                }
            };
            println!("{name}: noticed, {}", seen.with_context(|| format!("mutant {name}"))?);
            Ok(())
        },
    )
}

/// Builds a mutant, and returns a copy of its image.
fn built(paths: &Paths, name: &str, copy: &str) -> Result<PathBuf> {
    let tree = paths.source(Tree::Drop);
    let before = series::Times::of(&tree);
    series::forget(paths, Tree::Drop);
    series::apply_one(&tree, &paths.kernel.join("mutants/faults").join(format!("{name}.patch")))?;
    before.restore(&tree)?;
    let image = build::build(paths, Tree::Drop, Config::Faults)?;
    build::copied(paths, &image, copy)
}

/// The cases of the selftest that fail with the mutant, if `case` is one of them.
///
/// # Errors
/// If it is not, or if any fails without the mutant.
fn failed(case: &str, without: &Counts, with: &Counts) -> Result<String> {
    let (right, wrong) = (without.failed_cases(), with.failed_cases());
    if !right.is_empty() {
        bail!("without the mutant, the selftest's {} are 0", right.join(", "));
    }
    // One that was skipped did not look.
    if !wrong.contains(&case) || with.was_skipped(case) {
        bail!("the selftest's {case} did not fail; these did not pass: {wrong:?}");
    }
    Ok(format!("selftest: {} are 0", wrong.join(", ")))
}

/// Both counts, if the mutant has many more.
///
/// # Errors
/// If it has not. A few more may be of something else.
fn more(workload: &str, what: &str, without: &Counts, with: &Counts) -> Result<String> {
    let (right, wrong) = (without.of(workload, what), with.of(workload, what));
    if wrong <= 3 * (right + 1) {
        bail!("{workload}: {what} is {wrong}, and {right} without the mutant");
    }
    Ok(format!("{workload}: {what} {wrong}, without it {right}"))
}

#[cfg(test)]
mod tests {
    use super::super::counts::tests::drop;
    use super::super::workloads::WORKLOADS;
    use super::*;
    use std::path::Path;

    fn counts(text: &str) -> Counts {
        Counts::parse(text, &WORKLOADS).unwrap()
    }

    #[test]
    fn a_mutant_is_noticed_by_its_case_where_all_pass_without_it() {
        let right = counts(&drop());
        let wrong = counts(&drop().replace("passed-3 1", "passed-3 0"));
        assert!(failed(CASES[2], &right, &wrong).unwrap().contains(CASES[2]));
        assert!(failed(CASES[1], &right, &wrong).is_err());
        assert!(failed(CASES[2], &right, &right).is_err());
        assert!(failed(CASES[2], &wrong, &wrong).is_err());
        let skipped =
            counts(&(drop().replace("passed-3 1", "passed-3 0") + "selftest skipped-3 1\n"));
        assert!(failed(CASES[2], &right, &skipped).is_err());
    }

    #[test]
    fn a_mutant_is_noticed_by_many_more_than_without_it() {
        let with = |count: u64| counts(&format!("{}{SWAP} {WAITS_LOCKED} {count}\n", drop()));
        let more = |right, wrong| more(SWAP, WAITS_LOCKED, &with(right), &with(wrong));
        assert!(more(0, 4).is_ok());
        assert!(more(0, 3).is_err());
        assert!(more(2, 10).is_ok());
        assert!(more(2, 9).is_err());
    }

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
