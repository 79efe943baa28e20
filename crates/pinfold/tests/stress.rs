//! The whole cache under stress: see `pinfold_testing::stress` for what is done and checked.
//!
//! Runs for some seconds; for as long as `PINFOLD_STRESS_SECONDS` says otherwise, with the seed in
//! `PINFOLD_STRESS_SEED`. The mutants show that it detects faults.
//!
//! A program of its own: its handler of SIGBUS has to be there before that of the first cache.

#![cfg(not(any(loom, shuttle)))] // the model checkers build without the public types

use std::time::Duration;

use pinfold_testing::pattern::Origin;
use pinfold_testing::stress::{Failure, Options, Report, Sabotage, Schedule, run};

const BUDGET_MIN_BYTES: u64 = *pinfold::Options::BUDGET_BYTES.start();

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

/// A run in a directory of its own, on the file system of the build: real files are read directly
/// there, which a temporary directory in memory could not do.
fn stress(change: impl FnOnce(&mut Options)) -> Result<Report, Box<Failure>> {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut options = Options::new(dir.path());
    options.seed = number("PINFOLD_STRESS_SEED").unwrap_or(1);
    change(&mut options);
    run(options, |_| {})
}

#[test]
fn every_byte_is_right_under_stress() {
    let change = |options: &mut Options| options.budget_bytes = 16 << 20; // maps want more than 8
    stress_until(number("PINFOLD_STRESS_SECONDS").unwrap_or(5), change, |report| {
        let stats = &report.stats;
        vec![
            (10_000, report.reads, "read"),
            (10, stats.evictions, "evicted"),
            (10, stats.splits, "split"),
            (10, stats.migrations, "moved"),
            (10, stats.fill_errors, "failed to fill"),
            (10, stats.short_reads, "read without a reference"),
            (10, stats.counted_hits, "read under a reference"),
            (10, stats.pin_migrations, "moved to be pinned"),
            (10, report.excused, "met a fault"),
            (10, report.faults.0, "brought for an access"),
        ]
    });
}

/// What is to have happened more often than how often, and how often it has.
type Counts = Vec<(u64, u64, &'static str)>;

/// Runs for this many seconds. It has to have been stress: on a machine that has other things to
/// do, too, it runs again, for longer, until all runs together had enough of everything.
fn stress_until(seconds: u64, change: impl Fn(&mut Options), counts: impl Fn(&Report) -> Counts) {
    let mut all: Counts = Vec::new();
    for factor in [1, 4, 16, 64] {
        let report = stress(|options| {
            options.time = Duration::from_secs(seconds * factor);
            change(options);
        });
        let report = report.unwrap_or_else(|failure| panic!("{failure}"));
        println!("{report}");
        let before = all.iter().map(|&(_, count, _)| count).chain(std::iter::repeat(0));
        let now = counts(&report).into_iter().zip(before);
        all = now.map(|((least, count, what), before)| (least, count + before, what)).collect();
        if all.iter().all(|(least, count, _)| count > least) {
            return;
        }
    }
    panic!("hardly ever: {all:?}");
}

#[test]
fn a_budget_of_the_smallest_size_holds_up_too() {
    let report = stress(|options| {
        options.time = Duration::from_secs(2);
        options.budget_bytes = BUDGET_MIN_BYTES;
        options.data_bytes = 10 * BUDGET_MIN_BYTES;
        options.mappers = 0; // maps want more
    });
    println!("{}", report.unwrap_or_else(|failure| panic!("{failure}")));
}

#[test]
fn races_by_themselves_hold_too() {
    for schedule in [Schedule::Moving, Schedule::Resizing, Schedule::Reopening] {
        let change = |options: &mut Options| options.schedule = schedule;
        stress_until(1, change, |report| vec![(1000, report.reads, "read")]);
    }
}

#[test]
fn files_that_another_process_writes_are_opened_and_refreshed_as_they_are() {
    let change = |options: &mut Options| options.schedule = Schedule::Foreign;
    stress_until(2, change, |report| {
        vec![(500, report.reads, "read"), (100, report.foreign_changes, "changed")]
    });
}

#[test]
fn maps_of_all_kinds_hold_up_under_stress() {
    let change = |options: &mut Options| {
        options.schedule = Schedule::Mapping;
        options.budget_bytes = 16 << 20;
    };
    stress_until(2, change, |report| {
        let (faults, failed) = report.faults;
        let forks = report.done.iter().find(|(what, _)| *what == "forks").map_or(0, |it| it.1);
        vec![
            (1000, faults, "brought for an access"),
            (10, failed, "failed for an access"),
            (2, forks, "forked"),
        ]
    });
}

#[test]
fn a_write_to_pinned_bytes_is_caught() {
    let text = caught(Sabotage::ScribblePins).to_string();
    assert!(text.contains("wrong byte at"), "{text}");
}

/// What a run says of something broken.
fn caught(sabotage: Sabotage) -> Failure {
    let result = stress(|options| {
        options.time = Duration::from_secs(60);
        if matches!(sabotage, Sabotage::Hang) {
            options.hang = Duration::from_secs(3);
            // What cannot be read keeps memory. Even if it takes long until it is noticed, there is
            // enough for the other files.
            options.budget_bytes = 32 << 20;
        }
        options.sabotage = Some(sabotage);
    });
    *result.expect_err("it should have been noticed")
}

#[test]
fn a_page_in_the_wrong_place_is_caught_and_named() {
    let failure = caught(Sabotage::WrongPage);
    let text = failure.to_string();
    let Failure::Wrong { wrong, .. } = failure else { panic!("{text}") };
    // A whole cell says that it belongs one page further on; a read of less cannot tell.
    let told = wrong.origins.iter().find_map(|(range, origin)| match origin {
        Origin::Cell { offset, .. } => Some(offset - range.start),
        _ => None,
    });
    assert_eq!(told.unwrap_or(4096), 4096, "{text}");
    assert!(text.contains("faulty of"), "names the file: {text}");
}

#[test]
fn bytes_that_never_came_are_caught() {
    let text = caught(Sabotage::MissingCell).to_string();
    assert!(text.contains("wrong byte at") && text.contains("got 0x00"), "{text}");
}

#[test]
fn an_invalidation_that_does_not_happen_is_caught() {
    let text = caught(Sabotage::NoInvalidate).to_string();
    assert!(text.contains("rewritten of") && text.contains("wrong byte at"), "{text}");
}

#[test]
fn a_hang_is_caught_and_described() {
    let failure = caught(Sabotage::Hang);
    let text = failure.to_string();
    let Failure::Hang { states, stats, .. } = failure else { panic!("{text}") };
    assert!(states.contains("faulty of") && states.contains("reader 0"), "{text}");
    assert!(stats.contains("fills_in_flight") && stats.contains("retry_io_miss"), "{text}");
}

#[test]
fn what_is_written_is_right_under_stress() {
    let change = |options: &mut Options| {
        options.schedule = Schedule::Writing;
        options.mappers = 0;
    };
    stress_until(number("PINFOLD_STRESS_SECONDS").unwrap_or(5), change, |report| {
        let stats = &report.stats;
        vec![(10_000, report.reads, "read"), (10, stats.evictions, "evicted")]
    });
}
