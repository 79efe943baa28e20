//! Mutants of writing that `pinfold crash` finds, each by its first thousand seeds; and those that
//! `pinfold crash --kill` finds.

use std::path::PathBuf;

use pinfold_testing::crash::{self, CrashOptions, KillOptions, run, run_kills};

use crate::again::again;

const SEEDS: u64 = 1000;

const CAUGHT: &[&str] = &[
    "DirtUnmarked",
    "ChangeUnnoted",
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
    "HoleLate",
    "RangeCutShort",
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

const KILLS: u64 = 400;

/// The others concern a source that fails, or what is durable and not only given to the kernel.
const CAUGHT_BY_KILLS: &[&str] = &[
    "DirtUnmarked",
    "RedirtLost",
    "CopyUndirtied",
    "MadeUndirtied",
    "LoseDirty",
    "SyncOfOthers",
    "TailForgotten",
    "CutKeepsSource",
    "CutKeepsBytes",
];

#[test]
#[ignore = "a process that is killed"]
fn killed() {
    let of = |name: &str| std::env::var(name).unwrap();
    crash::child(of("PINFOLD_KILL_SEED").parse().unwrap(), &PathBuf::from(of("PINFOLD_KILL_DIR")));
    std::process::exit(1);
}

fn kill_with(mutant: Option<&str>) -> Result<(), String> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path().to_owned();
    let options = KillOptions { seed: 1, kills: KILLS, time: None, dir, jobs: 2 };
    let start = |seed: u64, dir: &std::path::Path| {
        let mut command = again(module_path!(), "killed");
        command.arg("--ignored").env("PINFOLD_KILL_SEED", seed.to_string());
        command.env("PINFOLD_KILL_DIR", dir);
        if let Some(mutant) = mutant {
            command.env("PINFOLD_MUTANT", mutant);
        }
        command
    };
    run_kills(&options, start, |_| ()).map(drop).map_err(|failure| failure.to_string())
}

#[test]
fn kills_find_what_is_not_written() {
    kill_with(None).unwrap();
    for mutant in CAUGHT_BY_KILLS {
        let found = kill_with(Some(mutant)).expect_err(mutant);
        println!("{mutant}: {found}");
        assert!(found.contains("was killed at operation"), "{mutant}: {found}");
    }
}
