//! The stress: readers of all sizes beside everything that can happen to pages.
//!
//! Belongs here: how a run's threads are started and waited for. Each other file has one part, and
//! uses those above it in this table.
//!
//! | file | what it has |
//! |---|---|
//! | `options.rs` | what a run is asked for |
//! | `report.rs` | how it ended, in words |
//! | `kept.rs` | guards and pins that go from thread to thread |
//! | `files.rs` | what there is to read |
//! | `foreign.rs` | another process that writes to files |
//! | `watch.rs` | who does what, and whether it goes on |
//! | `clock.rs` | the clock by which a thread hangs |
//! | `shared.rs` | what the threads share, and what must hold in the end |
//! | `check.rs` | whether the bytes that came are right |
//! | `access.rs` | accesses to maps that may fail |
//! | `maps.rs` | maps that threads share |
//! | `reader.rs`, `holder.rs`, `waiter.rs`, `pinner.rs`, `mapper.rs`, `shaker.rs`, `forker.rs`, `follower.rs`, `writer.rs` | the threads |
//!
//! The bytes of every file are a [pattern](super::pattern): a read is right or wrong by itself,
//! whatever else goes on. Each run is made of the same decisions for the same seed, but the
//! interleaving is the machine's.

#![allow(clippy::unnecessary_box_returns, reason = "failures are large, and made once")]

mod access;
mod check;
mod clock;
mod files;
mod follower;
mod foreign;
mod forker;
mod holder;
mod kept;
mod mapper;
mod maps;
mod options;
mod pinner;
mod reader;
mod report;
mod shaker;
mod shared;
mod waiter;
mod watch;
mod writer;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pinfold::{Cache, Options as CacheOptions};

use files::Subjects;
use foreign::Foreign;
use maps::Maps;
pub use options::{Options, Sabotage, Schedule};
pub use report::{Failure, Report};
use shared::Shared;
use watch::Desk;

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since the threads were started.
    pub elapsed: Duration,
    /// Checked so far.
    pub reads: u64,
}

/// Runs the stress; `progress` is called some ten times a second.
///
/// # Errors
/// The first thing that went wrong: a wrong byte, a wrong length, an error that nobody injected,
/// a budget not kept, a thread that panicked or hangs. Threads that hang are left behind.
pub fn run(options: Options, progress: impl FnMut(Progress)) -> Result<Report, Box<Failure>> {
    let setup = |what: &str, cause: &dyn std::fmt::Display| {
        Box::new(Failure::Setup(format!("{what}: {cause}")))
    };
    let cache = Cache::new(CacheOptions::new(options.budget_bytes))
        .map_err(|error| setup("cannot open the cache", &error))?;
    let subjects =
        Subjects::new(&cache, &options).map_err(|error| setup("cannot make the files", &error))?;
    let maps = if options.maps_files() {
        Maps::new(&cache).map_err(|error| setup("cannot map files", &error))?
    } else {
        Maps::default()
    };
    let foreign = (options.schedule == Schedule::Foreign).then(|| Foreign::new(&options));
    let foreign = foreign.transpose().map_err(|error| setup("cannot start a process", &error))?;
    let shared = Arc::new(Shared::new(options, cache, subjects, maps, foreign));
    let since = Instant::now();
    let threads = start(&shared);
    let hang = wait(&shared, since, progress);
    let report = shared.report(since.elapsed());
    if hang.is_none() {
        for thread in threads {
            // Panics are caught inside, and reported as failures.
            let _ = thread.join();
        }
    }
    shared.pins.lock().unwrap().clear();
    let hang = hang.or_else(|| last_look(&shared));
    let failure = shared.failure().or(hang);
    let failure = failure.or_else(|| shared.still_pinned()).or_else(|| shared.leak());
    match failure {
        Some(failure) => Err(Box::new(failure)),
        None => Ok(report),
    }
}

/// What a thread does, with its desk and its seed.
type Work = fn(&Shared, &Desk, u64);

fn start(shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let options = &shared.options;
    let mut works: Vec<(String, Work)> = Vec::new();
    if options.schedule == Schedule::Foreign {
        works.extend((0..options.readers).map(|n| (format!("reader {n}"), follower::run as Work)));
        works.push(("auditor".into(), shaker::audit));
        return start_all(shared, works);
    }
    works.extend((0..options.readers).map(|n| (format!("reader {n}"), reader::run as Work)));
    works.extend((0..options.holders).map(|n| (format!("holder {n}"), holder::run as Work)));
    works.extend((0..options.waiters).map(|n| (format!("waiter {n}"), waiter::run as Work)));
    works.extend((0..options.shakers).map(|n| (format!("shaker {n}"), shaker::run as Work)));
    works.extend((0..options.pinners).map(|n| (format!("pinner {n}"), pinner::run as Work)));
    if options.maps_files() {
        let mappers = options.mappers * if options.schedule == Schedule::Mapping { 3 } else { 1 };
        works.extend((0..mappers).map(|n| (format!("mapper {n}"), mapper::run as Work)));
        works.push(("forker".into(), forker::run));
    }
    works.push(("auditor".into(), shaker::audit));
    let others: &[(&str, Work)] = match options.schedule {
        Schedule::Mixed | Schedule::Mapping => {
            &[("injector", shaker::inject), ("rewriter", shaker::rewrite), ("cutter", shaker::cut)]
        }
        Schedule::Moving | Schedule::Reopening | Schedule::Foreign => &[],
        Schedule::Resizing => &[("cutter", shaker::cut)],
        Schedule::Writing => &[("writer 0", writer::run), ("writer 1", writer::run)],
    };
    works.extend(others.iter().map(|&(name, work)| (name.to_owned(), work)));
    start_all(shared, works)
}

fn start_all(shared: &Arc<Shared>, works: Vec<(String, Work)>) -> Vec<JoinHandle<()>> {
    let seed = |n| shared.options.seed.wrapping_mul(1000).wrapping_add(n as u64);
    let works = works.into_iter().enumerate();
    works.map(|(n, (name, work))| start_one(shared, name, work, seed(n))).collect()
}

fn start_one(shared: &Arc<Shared>, name: String, work: Work, seed: u64) -> JoinHandle<()> {
    let desk = shared.watch.desk(&name);
    let shared = shared.clone();
    let body = move || {
        let worked = AssertUnwindSafe(|| work(&shared, &desk, seed));
        if let Err(panic) = std::panic::catch_unwind(worked) {
            shared.fail(Failure::Panic {
                thread: desk.name.clone(),
                message: message(&*panic),
                doing: desk.describe(&shared.subjects),
            });
        }
        desk.leave();
    };
    let thread = std::thread::Builder::new().name(name).spawn(body);
    thread.expect("the system has room for a thread")
}

/// Looks at all maps when the other threads have left, and takes them down; a failure if that
/// hangs.
fn last_look(shared: &Arc<Shared>) -> Option<Failure> {
    let look: Work = |shared, desk, _| mapper::last_look(shared, desk);
    let thread = start_one(shared, "last look".to_owned(), look, 0);
    let hang = wait(shared, Instant::now(), |_| ());
    if hang.is_none() {
        let _ = thread.join(); // as above
    }
    hang
}

fn message(panic: &dyn std::any::Any) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

/// Waits for the end of the run, then for the threads; a failure if one of them hangs. Ends: each
/// thread leaves its desk once it is told to stop, or is found hanging.
fn wait(shared: &Shared, since: Instant, mut progress: impl FnMut(Progress)) -> Option<Failure> {
    let options = &shared.options;
    let mut hangs = watch::Hangs::new(options.hang);
    let mut tick = 0u32;
    loop {
        let (elapsed, reads) = (since.elapsed(), shared.watch.reads());
        if tick.is_multiple_of(5) {
            progress(Progress { elapsed, reads });
            shared.clock.tick();
        }
        tick = tick.wrapping_add(1);
        if elapsed >= options.time || options.reads.is_some_and(|most| reads >= most) {
            shared.stop();
        }
        if !shared.goes_on() && shared.watch.all_left() {
            progress(Progress { elapsed, reads: shared.watch.reads() });
            return None;
        }
        if let Some(thread) = hangs.find(&shared.watch, shared.clock.now()) {
            shared.stop();
            return Some(shared.hang(&thread));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
