//! The stress: readers of all sizes against everything that happens to pages behind their backs.
//!
//! Belongs here: what a run is asked for, how its threads are started and stopped, how it ends.
//! Each other file has one part: `files` what there is to read, `reader` those who read, `holder`
//! those who read in place, `pinner` those who pin, `judge` whether what they got is right, `shaker`
//! those who disturb them, `watch` who does what and whether it goes on, `report` what is said in the
//! end. Called by `tests/stress.rs` and `pinfold stress`.
//!
//! The bytes of every file are a [pattern](super::pattern): a read is right or wrong by itself,
//! whatever else goes on. Each run is made of the same decisions for the same seed, but the
//! interleaving is the machine's.

#![allow(clippy::unnecessary_box_returns, reason = "failures are large, and made once")]

mod files;
mod holder;
mod judge;
mod pinner;
mod reader;
mod report;
mod shaker;
mod watch;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::{Cache, Options as CacheOptions};

use files::Subjects;
pub use report::{Failure, Report};
use watch::{Desk, Watch};

/// What a run is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// It ends after so long.
    pub time: Duration,
    /// Or after so many checked reads, if that is sooner.
    pub reads: Option<u64>,
    /// Threads that read.
    pub readers: usize,
    /// Threads that borrow and hold pages.
    pub holders: usize,
    /// Threads that split, migrate, invalidate, compact, advise and reopen.
    pub shakers: usize,
    /// Threads that pin ranges, and hold them for a while.
    pub pinners: usize,
    /// Decides which files, ranges and faults there are.
    pub seed: u64,
    /// What goes on.
    pub schedule: Schedule,
    /// Of the cache.
    pub budget_bytes: u64,
    /// Of the files together, where the schedule is [`Schedule::Mixed`]; ten times the budget unless
    /// there is a reason.
    pub data_bytes: u64,
    /// Where the real files go; they are left there.
    pub dir: PathBuf,
    /// A thread that does not get on for so long hangs.
    pub hang: Duration,
    /// What is broken on purpose, to see that it is noticed.
    pub sabotage: Option<Sabotage>,
}

/// What goes on in a run. The first has everything; the others have little else but one race, so
/// that it is met, and that nothing heals what went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Files of all kinds, far more than the cache holds, and all that may happen to them.
    Mixed,
    /// Files that fit, of which folios are split and moved: nothing is filled or dropped that would
    /// wake a reader by chance.
    Moving,
    /// Small files that are cut short and restored without a rest.
    Resizing,
    /// Small real files that nobody keeps open: opened, read, dropped, given up.
    Reopening,
}

/// Ways to break what is under test, from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// One read in a hundred of one source brings the bytes of the page after.
    WrongPage,
    /// One read in a hundred of one source forgets its last 64 bytes.
    MissingCell,
    /// After a while, a read of one source does not come back.
    Hang,
    /// What is written anew is not invalidated.
    NoInvalidate,
    /// Somebody writes to what he has pinned.
    ScribblePins,
}

impl Options {
    /// Two readers and a holder per core, and two shakers, for 5 seconds, on files of ten times 8 MiB in `dir`.
    /// Two readers per core, two shakers and two pinners, for 5 seconds, on files of ten times 8 MiB in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Options {
            time: Duration::from_secs(5),
            reads: None,
            readers: 2 * cores,
            holders: cores,
            shakers: 2,
            pinners: 2,
            seed: 1,
            schedule: Schedule::Mixed,
            budget_bytes: 8 << 20,
            data_bytes: 80 << 20,
            dir: dir.into(),
            hang: Duration::from_secs(30),
            sabotage: None,
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since the threads were started.
    pub elapsed: Duration,
    /// Checked so far.
    pub reads: u64,
}

/// What the threads of a run share.
#[derive(Debug)]
struct Shared {
    options: Options,
    cache: Cache,
    subjects: Subjects,
    watch: Watch,
    shelf: holder::Shelf,
    stop: AtomicBool,
    /// Pinned by whom ever; whoever comes next goes on with it.
    pins: Mutex<Vec<pinner::Held>>,
    failure: Mutex<Option<Failure>>,
}

impl Shared {
    /// Whether a thread may go on. Relaxed: it only has to be seen at some time.
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        // Relaxed: pairs with `goes_on`.
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends the run; the first to fail is told.
    fn fail(&self, failure: Failure) {
        self.failure.lock().get_or_insert(failure);
        self.stop();
    }

    /// When all threads have left: once every file is dropped from the cache, nothing may be in it.
    fn leak(&self) -> Option<Failure> {
        for subject in &self.subjects.all {
            let dropped =
                subject.file(&self.cache).and_then(|file| file.invalidate(0..u64::MAX / 2));
            if let Err(error) = dropped {
                let name = &subject.name;
                return Some(Failure::Budget(format!(
                    "{name} cannot be dropped in the end: {error}"
                )));
            }
        }
        let since = Instant::now();
        // Ends: reads ahead that are in flight come back, or this does.
        loop {
            let stats = self.cache.stats();
            if stats.resident_bytes == 0 && stats.fills_in_flight == 0 {
                return None;
            }
            if since.elapsed() > self.options.hang {
                return Some(Failure::Budget(format!(
                    "every file was dropped from the cache, and {} bytes are left in it: {stats:#?}",
                    stats.resident_bytes
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits, but not for longer than the run.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while self.goes_on() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
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
    let shared = Arc::new(Shared {
        watch: Watch::new(&subjects),
        shelf: holder::Shelf::new(),
        options,
        cache,
        subjects,
        stop: AtomicBool::new(false),
        pins: Mutex::new(Vec::new()),
        failure: Mutex::new(None),
    });
    let since = Instant::now();
    let threads = start(&shared);
    let hang = wait(&shared, since, progress);
    let report = Report::of(&shared, since.elapsed());
    if hang.is_none() {
        for thread in threads {
            // Panics are caught inside, and reported as failures.
            let _ = thread.join();
        }
    }
    shared.pins.lock().clear();
    let failure = shared.failure.lock().take().or(hang);
    let failure = failure.or_else(|| still_pinned(&shared)).or_else(|| shared.leak());
    match failure {
        Some(failure) => Err(Box::new(failure)),
        None => Ok(report),
    }
}

/// Nothing is pinned any more; is that what the cache says?
fn still_pinned(shared: &Shared) -> Option<Failure> {
    shared.cache.clone().close().err().map(|error| Failure::Pins(error.to_string()))
}

/// What a thread does, with its desk and its seed.
type Work = fn(&Shared, &Desk, u64);

fn start(shared: &Arc<Shared>) -> Vec<JoinHandle<()>> {
    let options = &shared.options;
    let mut works: Vec<(String, Work)> = Vec::new();
    works.extend((0..options.readers).map(|n| (format!("reader {n}"), reader::run as Work)));
    works.extend((0..options.holders).map(|n| (format!("holder {n}"), holder::run as Work)));
    works.extend((0..options.shakers).map(|n| (format!("shaker {n}"), shaker::run as Work)));
    works.extend((0..options.pinners).map(|n| (format!("pinner {n}"), pinner::run as Work)));
    works.push(("auditor".into(), shaker::audit));
    let others: &[(&str, Work)] = match options.schedule {
        Schedule::Mixed => {
            &[("injector", shaker::inject), ("rewriter", shaker::rewrite), ("cutter", shaker::cut)]
        }
        Schedule::Moving | Schedule::Reopening => &[],
        Schedule::Resizing => &[("cutter", shaker::cut)],
    };
    works.extend(others.iter().map(|&(name, work)| (name.to_owned(), work)));
    let mut threads = Vec::with_capacity(works.len());
    for (n, (name, work)) in works.into_iter().enumerate() {
        let desk = shared.watch.desk(&name);
        let seed = options.seed.wrapping_mul(1000).wrapping_add(n as u64);
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
        threads.push(thread.expect("the system has room for a thread"));
    }
    threads
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
        }
        tick = tick.wrapping_add(1);
        if elapsed >= options.time || options.reads.is_some_and(|most| reads >= most) {
            shared.stop();
        }
        if !shared.goes_on() && shared.watch.all_left() {
            progress(Progress { elapsed, reads: shared.watch.reads() });
            return None;
        }
        if let Some(thread) = hangs.find(&shared.watch) {
            shared.stop();
            return Some(watch::hang(shared, &thread));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
