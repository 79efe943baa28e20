//! The whole cache under stress: see `pinfold_testing::stress` for what is done and checked.
//!
//! Runs for some seconds; for as long as `PINFOLD_STRESS_SECONDS` says otherwise, with the seed in
//! `PINFOLD_STRESS_SEED`. The mutants show that it detects faults.

use std::time::Duration;

use pinfold_testing::pattern::Origin;
use pinfold_testing::stress::{Failure, Options, Report, Sabotage, Schedule, run};

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
    let seconds = number("PINFOLD_STRESS_SECONDS").unwrap_or(5);
    // It has to have been stress; on a machine that does other things, too, that may take longer.
    let report = stress_until(seconds, |report| hardly_done(report).is_none());
    println!("{report}");
    assert_eq!(hardly_done(&report), None, "hardly ever, in {report}");
}

/// Runs for this many seconds, and for up to 16 times as many until there was enough of it.
fn stress_until(seconds: u64, enough: impl Fn(&Report) -> bool) -> Report {
    for factor in [1, 4, 16] {
        let report = stress(|options| {
            options.time = Duration::from_secs(seconds * factor);
            options.budget_bytes = 16 << 20; // more than the fewest runs that maps can have
        });
        let report = report.unwrap_or_else(|failure| panic!("{failure}"));
        if enough(&report) || factor == 16 {
            return report;
        }
    }
    unreachable!("the last one returns")
}

/// What happened too seldom to have been stress.
fn hardly_done(report: &Report) -> Option<&'static str> {
    let stats = &report.stats;
    [
        (report.reads / 1000, "read"),
        (stats.evictions, "evicted"),
        (stats.splits, "split"),
        (stats.migrations, "moved"),
        (stats.fill_errors, "failed to fill"),
        (stats.short_reads, "read without a reference"),
        (stats.counted_hits, "read under a reference"),
        (stats.pin_migrations, "moved to be pinned"),
        (report.excused, "met a fault"),
        (report.faults.0, "brought for an access"),
    ]
    .into_iter()
    .find_map(|(count, what)| (count <= 10).then_some(what))
}

#[test]
fn a_budget_of_the_smallest_size_holds_up_too() {
    let report = stress(|options| {
        options.time = Duration::from_secs(2);
        options.budget_bytes = pinfold::BUDGET_MIN_BYTES;
        options.data_bytes = 10 * pinfold::BUDGET_MIN_BYTES;
        options.mappers = 0; // maps want more
    });
    println!("{}", report.unwrap_or_else(|failure| panic!("{failure}")));
}

#[test]
fn races_by_themselves_hold_too() {
    for schedule in [Schedule::Moving, Schedule::Resizing, Schedule::Reopening] {
        let reads = [1, 4, 16].map(Duration::from_secs).into_iter().find_map(|time| {
            let report = stress(|options| {
                options.time = time;
                options.schedule = schedule;
            });
            let report = report.unwrap_or_else(|failure| panic!("{schedule:?}: {failure}"));
            (report.reads > 1000).then_some(report.reads)
        });
        assert!(reads.is_some(), "{schedule:?}: hardly anything was read");
    }
}

#[test]
fn maps_of_all_kinds_hold_up_under_stress() {
    let done = |report: &Report| {
        let (faults, failed) = report.faults;
        let forks = report.done.iter().find(|(what, _)| *what == "forks").map_or(0, |it| it.1);
        faults > 1000 && failed > 10 && forks > 2
    };
    let report = [2, 8, 32].map(Duration::from_secs).into_iter().find_map(|time| {
        let report = stress(|options| {
            options.time = time;
            options.schedule = Schedule::Mapping;
            options.budget_bytes = 16 << 20;
        });
        Some(report.unwrap_or_else(|failure| panic!("{failure}"))).filter(done)
    });
    println!("{}", report.expect("hardly anything was done through maps"));
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
