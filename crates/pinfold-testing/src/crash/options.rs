//! What a run is asked for, and how it ended.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What a run is asked for. It ends with the first of these ends.
#[derive(Clone, Debug)]
pub struct CrashOptions {
    /// The first seed; the others follow it.
    pub seed: u64,
    /// How many seeds.
    pub seeds: u64,
    /// For how long.
    pub time: Option<Duration>,
    /// What the source does wrong, to see that it is noticed.
    pub fault: Option<DiskFault>,
}

/// What a source may do wrong, in one of some calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// A sync says that it has succeeded, and has done nothing.
    SyncLies,
    /// A write says that it has succeeded, and has done nothing.
    WriteLost,
    /// A write says that it has succeeded, and has written a first part.
    WriteTorn,
    /// A write goes to the sector after.
    WriteMisplaced,
}

/// What a run has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// Runs of a cache of their own.
    pub seeds: u64,
    /// Calls of the cache.
    pub operations: u64,
    /// Writes, syncs and changes of the length that sources have recorded.
    pub steps: u64,
    /// States after a crash that were checked.
    pub states: u64,
}

impl CrashReport {
    pub(super) fn add(&mut self, other: CrashReport) {
        self.seeds += other.seeds;
        self.operations += other.operations;
        self.steps += other.steps;
        self.states += other.states;
    }
}

/// What a run of kills is asked for. It ends with the first of these ends.
#[derive(Clone, Debug)]
pub struct KillOptions {
    /// The seed of the first process; the others follow it.
    pub seed: u64,
    /// How many processes.
    pub kills: u64,
    /// For how long.
    pub time: Option<Duration>,
    /// Where the files are, in folders that the run makes.
    pub dir: PathBuf,
    /// So many processes at a time.
    pub jobs: usize,
}

/// What a run of kills has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KillReport {
    /// Processes, of which all files were right.
    pub kills: u64,
    /// Calls of theirs that had returned.
    pub calls: u64,
    /// Those of them that were syncs.
    pub syncs: u64,
}

impl KillReport {
    pub(super) fn add(&mut self, other: KillReport) {
        self.kills += other.kills;
        self.calls += other.calls;
        self.syncs += other.syncs;
    }
}

/// What went wrong first.
#[derive(Clone, Debug)]
pub struct CrashFailure {
    /// With this seed.
    pub seed: u64,
    /// Why two runs with the seed may differ, if they may.
    pub varies: Option<&'static str>,
    /// In words.
    pub what: String,
}

impl fmt::Display for CrashFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CrashFailure { seed, varies, what } = self;
        write!(f, "seed {seed}: {what}")?;
        let Some(why) = varies else { return Ok(()) };
        write!(f, "\n{why}: it may take some runs of the seed to see it again.")
    }
}

impl std::error::Error for CrashFailure {}
