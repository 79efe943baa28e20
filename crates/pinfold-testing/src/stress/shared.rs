//! What the threads of a run share.
//!
//! Belongs here: the end of a run, its first failure, what must hold when all threads have left,
//! and what is reported of it.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pinfold::{Cache, Space};

use super::clock::Clock;
use super::files::Subjects;
use super::foreign::Foreign;
use super::kept::{Guarded, Pinned};
use super::maps::Maps;
use super::options::Options;
use super::report::{Failure, Report};
use super::watch::{DOINGS, Desk, Doing, Watch};

/// What the threads of a run share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) cache: Cache,
    pub(super) subjects: Subjects,
    pub(super) watch: Watch,
    pub(super) clock: Clock,
    /// The spaces, and the maps that threads share.
    pub(super) maps: Maps,
    /// Where holders leave guards for each other.
    pub(super) shelf: Mutex<VecDeque<Guarded>>,
    /// The process that writes to the files, in the schedule that has one.
    pub(super) foreign: Option<Foreign>,
    stop: AtomicBool,
    /// Pinned by whom ever; whoever comes next goes on with it.
    pub(super) pins: Mutex<Vec<Pinned>>,
    failure: Mutex<Option<Failure>>,
}

impl Shared {
    /// All files of a run, and nobody there yet.
    pub(super) fn new(
        options: Options,
        cache: Cache,
        subjects: Subjects,
        maps: Maps,
        foreign: Option<Foreign>,
    ) -> Self {
        Shared {
            watch: Watch::new(&subjects),
            clock: Clock::new(),
            shelf: Mutex::new(VecDeque::new()),
            options,
            cache,
            subjects,
            maps,
            foreign,
            stop: AtomicBool::new(false),
            pins: Mutex::new(Vec::new()),
            failure: Mutex::new(None),
        }
    }

    /// What failed first, if anything did.
    pub(super) fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap().take()
    }

    /// Whether a thread may go on. Relaxed: it only has to be seen at some time.
    pub(super) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        // Relaxed: pairs with `goes_on`.
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Ends the run; the first failure is reported.
    pub(super) fn fail(&self, failure: Failure) {
        self.failure.lock().unwrap().get_or_insert(failure);
        self.stop();
    }

    /// When all threads have left: once every file is dropped from the cache, nothing may be in it.
    pub(super) fn leak(&self) -> Option<Failure> {
        if self.foreign.is_some() {
            return None; // what was cached of a file that was deleted then stays until it is evicted
        }
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
                let mirrored = self.subjects.mirrored_bytes();
                return (mirrored > 0).then(|| {
                    Failure::Budget(format!(
                        "every file was dropped from the cache, and {mirrored} bytes are left in \
                         memory that is mapped"
                    ))
                });
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
    pub(super) fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while self.goes_on() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
    /// Nothing is pinned any more; is that what the cache says?
    pub(super) fn still_pinned(&self) -> Option<Failure> {
        let bytes = self.cache.stats().pinned_bytes;
        let pins = self.cache.pins().unwrap_or_default();
        let list = pins.iter().fold(String::new(), |text, pin| text + "\n  " + &pin.to_string());
        (bytes > 0).then(|| Failure::Pins(format!("{bytes} bytes are still pinned:{list}")))
    }

    /// What is known about a run in which `thread` hangs.
    pub(super) fn hang(&self, thread: &Desk) -> Failure {
        // The counters may be what hangs.
        let (sender, receiver) = std::sync::mpsc::channel();
        let (cache, spaces) = (self.cache.clone(), self.maps.spaces.clone());
        std::thread::spawn(move || {
            // A map's accesses may fail again and again: the last failure says why.
            let failures: Vec<_> = spaces.iter().map(Space::last_failure).collect();
            let served: Vec<_> = spaces.iter().map(Space::stats).collect();
            let _ =
                sender.send(format!("{:#?}\nspaces: {served:#?}\n{failures:#?}", cache.stats()));
        });
        let stats = receiver
            .recv_timeout(Duration::from_secs(2))
            .unwrap_or_else(|_| "(stats() hangs, too)".to_owned());
        Failure::Hang {
            thread: thread.name.clone(),
            doing: thread.describe(&self.subjects),
            allowed: self.options.hang,
            states: self.watch.states(&self.subjects),
            stats,
        }
    }

    /// What was done until now.
    pub(super) fn report(&self, elapsed: Duration) -> Report {
        let watch = &self.watch;
        let counted = |&(doing, name): &(Doing, &'static str)| (name, watch.counted(doing));
        Report {
            elapsed,
            reads: watch.reads(),
            read_bytes: watch.read_bytes(),
            excused: watch.excused(),
            done: DOINGS.iter().map(counted).filter(|&(_, times)| times > 0).collect(),
            stats: self.cache.stats(),
            faults: self.maps.faults(),
            foreign_changes: self.foreign.as_ref().map_or(0, Foreign::changes),
            seed: self.options.seed,
        }
    }
}
