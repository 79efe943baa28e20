//! Crashes of files that are written through the cache, enumerated. docs/durability.md says what
//! is covered.
//!
//! Belongs here: the seeds of a run. Each other file has one part, and uses those above it in this
//! table.
//!
//! | file | what it has |
//! |---|---|
//! | `options.rs` | what a run is asked for, and how it ended |
//! | `contents.rs` | contents of sectors, by numbers |
//! | `recorder.rs` | a source in memory that records what is done to it, and fails now and then |
//! | `device.rs` | what a disk may have after a first part of that |
//! | `history.rs` | what the program has written and synced, and so what the file may be |
//! | `judge.rs` | whether what a disk may have is what the file may be |
//! | `driver.rs` | random calls of a cache |
//! | `kill.rs` | processes that write to real files, and are killed |

mod contents;
mod device;
mod driver;
mod history;
mod judge;
mod kill;
mod options;
mod recorder;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use contents::Contents;
use driver::{Plan, drive};
pub use kill::{child, run_kills};
pub use options::{CrashFailure, CrashOptions, CrashReport, DiskFault, KillOptions, KillReport};

/// Runs the seeds; `progress` is called after each.
///
/// # Errors
/// What went wrong first.
pub fn run(
    options: &CrashOptions,
    mut progress: impl FnMut(&CrashReport),
) -> Result<CrashReport, CrashFailure> {
    let since = Instant::now();
    let mut report = CrashReport::default();
    for seed in (options.seed..).take(usize::try_from(options.seeds).unwrap_or(usize::MAX)) {
        report.add(one(seed, options.fault)?);
        progress(&report);
        if options.time.is_some_and(|time| since.elapsed() >= time) {
            break;
        }
    }
    Ok(report)
}

fn one(seed: u64, fault: Option<DiskFault>) -> Result<CrashReport, CrashFailure> {
    let mut random = fastrand::Rng::with_seed(seed);
    let plan = Plan::new(seed, fault, &mut random);
    let ended = catch_unwind(AssertUnwindSafe(|| drive_and_judge(plan, &mut random)));
    let ended = ended.unwrap_or_else(|_| Err("a panic".to_owned()));
    let varies = (!plan.repeats()).then_some("Several threads wrote");
    ended.map_err(|what| CrashFailure { seed, varies, what })
}

fn drive_and_judge(plan: Plan, random: &mut fastrand::Rng) -> Result<CrashReport, String> {
    let contents = Arc::new(Mutex::new(Contents::new()));
    let (subjects, operations) = drive(plan, random, &contents)?;
    let mut report = CrashReport { seeds: 1, operations, ..CrashReport::default() };
    for subject in subjects {
        let (name, alignment) = (&subject.name[..], subject.alignment);
        let steps = &subject.recorder.steps();
        let versions = &subject.history.into_versions();
        let subject = judge::Judged { name, alignment, steps, versions };
        report.add(judge::judge(&subject, &mut contents.lock().unwrap(), random)?);
    }
    Ok(report)
}
