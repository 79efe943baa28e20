//! What a run is asked for.
//!
//! Belongs here: the options, the schedules, and what may be broken on purpose.

use std::path::PathBuf;
use std::time::Duration;

/// What a run is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// It ends after so long.
    pub time: Duration,
    /// Or after this many checked reads, if that is sooner.
    pub reads: Option<u64>,
    /// Threads that read.
    pub readers: usize,
    /// Threads that borrow and hold pages.
    pub holders: usize,
    /// Threads that read by futures, many at once, and drop some of them.
    pub waiters: usize,
    /// Threads that split, migrate, invalidate, compact, advise and reopen.
    pub shakers: usize,
    /// Threads that pin ranges, and hold them for a while.
    pub pinners: usize,
    /// Threads that map files, and access them; with any, another one forks. Only in the schedules
    /// [`Schedule::Mixed`] and [`Schedule::Mapping`], the latter of which has three times as many.
    pub mappers: usize,
    /// Decides which files, ranges and faults there are.
    pub seed: u64,
    /// What goes on.
    pub schedule: Schedule,
    /// Of the cache.
    pub budget_bytes: u64,
    /// Of the files together, where the schedule is [`Schedule::Mixed`]; ten times the budget
    /// unless there is a reason.
    pub data_bytes: u64,
    /// Where the real files go; they are left there.
    pub dir: PathBuf,
    /// A thread that does not get on for so long hangs. Time in which other processes have the
    /// processors does not count.
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
    /// Files of all kinds, twice the budget, most of which are accessed through maps.
    Mapping,
    /// Small real files that another process appends to, cuts, rewrites, replaces and deletes,
    /// while readers open and refresh them.
    Foreign,
    /// Files that are written to through the cache, three times the budget, of sources some of which
    /// fail to write and to sync.
    Writing,
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
    /// Somebody writes to a range that it has pinned.
    ScribblePins,
}

impl Options {
    /// Two readers and a holder per core, two waiters, two shakers, two pinners and two mappers,
    /// for 5 seconds, on files of ten times 8 MiB in `dir`.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Options {
            time: Duration::from_secs(5),
            reads: None,
            readers: 2 * cores,
            holders: cores,
            waiters: 2,
            shakers: 2,
            pinners: 2,
            mappers: 2,
            seed: 1,
            schedule: Schedule::Mixed,
            budget_bytes: 8 << 20,
            data_bytes: 80 << 20,
            dir: dir.into(),
            hang: Duration::from_secs(30),
            sabotage: None,
        }
    }

    /// Whether files are mapped in this run.
    pub(super) fn maps_files(&self) -> bool {
        self.mappers > 0 && matches!(self.schedule, Schedule::Mixed | Schedule::Mapping)
    }
}
