//! Mutants of writing that `pinfold crash` finds, each by its first thousand seeds.

use pinfold_testing::crash::{CrashOptions, run};

use crate::again::again;

const SEEDS: u64 = 1000;

const CAUGHT: &[&str] = &[
    "DirtUnmarked",
    "RedirtLost",
    "CopyUndirtied",
    "MadeUndirtied",
    "LoseDirty",
    "FailedStaysWritten",
    "WriteErrorUnsaid",
    "SyncFailedIsClean",
    "SyncOfOthers",
    "SyncOnlyWrites",
    "SyncsFirst",
    "CleanEarly",
    "TailForgotten",
    "TailUncut",
    "CutKeepsSource",
    "CutKeepsBytes",
    "ResizeIsDurable",
];

#[test]
#[ignore = "one process of the other tests"]
fn child() {
    let options = CrashOptions { seed: 1, seeds: SEEDS, time: None, fault: None };
    if let Err(failure) = run(&options, |_| ()) {
        println!("found: {failure}");
        // Threads of the cache may hang.
        std::process::exit(1);
    }
}

#[test]
fn each_is_found_by_the_first_seeds() {
    for mutant in CAUGHT {
        let output = again(module_path!(), "child")
            .arg("--ignored")
            .env("PINFOLD_MUTANT", mutant)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let found = said.lines().find(|line| line.starts_with("found: "));
        println!("{mutant}: {}", found.unwrap_or("not found"));
        let found = found.unwrap_or_else(|| panic!("{mutant} was not found: {said}"));
        assert!(!found.contains("a panic"), "{mutant}: {found}");
    }
}
