//! How a run ended, in words.
//!
//! Belongs here: the failure and the report, and their texts.

use std::fmt;
use std::time::Duration;

use pinfold::Stats;

use crate::pattern::Wrong;

/// Why a run failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// It could not begin.
    Setup(String),
    /// A byte was wrong.
    Wrong {
        /// Who read it.
        thread: String,
        /// From which file.
        file: String,
        /// Which, and what it was instead.
        wrong: Box<Wrong>,
        /// The names of all files, by their numbers.
        names: Vec<String>,
    },
    /// A read gave another number of bytes than the file has there.
    Length {
        /// Who read.
        thread: String,
        /// From which file.
        file: String,
        /// Where.
        offset: u64,
        /// How much was asked for.
        asked_bytes: usize,
        /// How much came.
        got_bytes: usize,
        /// How much should have.
        expected_bytes: usize,
    },
    /// A page changed while somebody held it.
    Changed {
        /// Who.
        thread: String,
        /// Doing what.
        doing: String,
        /// Of which file.
        file: String,
        /// Which byte of the page.
        at: usize,
    },
    /// An error that nobody injected, or that should not have been kept.
    Unexpected {
        /// Who met it.
        thread: String,
        /// Doing what.
        doing: String,
        /// The error.
        error: String,
    },
    /// The cache used more than its budget, or its counters contradict each other.
    Budget(String),
    /// The cache says that something is pinned, and nothing is.
    Pins(String),
    /// A thread panicked.
    Panic {
        /// Which.
        thread: String,
        /// The panic's message.
        message: String,
        /// What it was doing.
        doing: String,
    },
    /// A thread does not get on.
    Hang {
        /// Which.
        thread: String,
        /// What it is doing.
        doing: String,
        /// For how long it has been, at least.
        allowed: Duration,
        /// All threads, a line each.
        states: String,
        /// The counters of the cache and of its spaces, and why accesses to maps failed last.
        stats: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Wrong { thread, file, wrong, names } => {
                write!(f, "{thread} read from {file}: {wrong}")?;
                names
                    .iter()
                    .enumerate()
                    .try_for_each(|(n, name)| write!(f, "\n  file {n} is {name}"))
            }
            Failure::Length { thread, file, offset, asked_bytes, got_bytes, expected_bytes } => {
                write!(
                    f,
                    "{thread} read {asked_bytes} bytes at {offset} of {file} and got {got_bytes}, not \
                 {expected_bytes}"
                )
            }
            Failure::Changed { thread, doing, file, at } => {
                write!(f, "{thread} ({doing}) held a page of {file}, and its byte {at} changed")
            }
            Failure::Unexpected { thread, doing, error } => {
                write!(f, "{thread} ({doing}) met an error that it should not have: {error}")
            }
            Failure::Setup(what) | Failure::Budget(what) | Failure::Pins(what) => f.write_str(what),
            Failure::Panic { thread, message, doing } => {
                write!(f, "{thread} ({doing}) panicked: {message}")
            }
            Failure::Hang { thread, doing, allowed, states, stats } => write!(
                f,
                "{thread} has not got on for {} s: {doing}\nthreads:\n{states}counters: {stats}",
                allowed.as_secs_f64()
            ),
        }
    }
}

impl std::error::Error for Failure {}

/// What was done in a run in which nothing was wrong.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// How long it took.
    pub elapsed: Duration,
    /// Reads that were checked, all of them right.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Reads that met an injected error or a file just cut short, and were excused.
    pub excused: u64,
    /// What else was done, and how often.
    pub done: Vec<(&'static str, u64)>,
    /// The cache's counters at the end.
    pub stats: Stats,
    /// Faults of maps, and how many of them failed.
    pub faults: (u64, u64),
    /// How often another process has changed a file.
    pub foreign_changes: u64,
    /// The seed, to do it again.
    pub seed: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        writeln!(
            f,
            "{} reads checked, {:.1} GiB, in {seconds:.1} s ({:.2} million/s), seed {}: every byte right",
            grouped(self.reads),
            self.read_bytes as f64 / f64::from(1 << 30),
            self.reads as f64 / seconds / 1e6,
            self.seed,
        )?;
        writeln!(f, "{:>16}  injected errors and short files met", grouped(self.excused))?;
        for &(name, times) in &self.done {
            writeln!(f, "{:>16}  {name}", grouped(times))?;
        }
        let stats = &self.stats;
        let lines = [
            (stats.short_reads, "reads without a reference"),
            (stats.counted_hits, "folios read under a reference"),
            (stats.misses, "misses"),
            (stats.readahead, "folios read ahead"),
            (stats.fill_errors, "fills that failed"),
            (stats.evictions, "evictions"),
            (stats.refaults, "refaults"),
            (stats.splits, "folios split"),
            (stats.migrations, "folios moved"),
            (stats.pin_migrations, "of these, to be pinned"),
            (stats.borrows_counted, "borrows that found no slot"),
            (stats.put_back, "folios put back: somebody borrowed them"),
            (stats.deferred, "folios dropped while somebody borrowed them"),
            (stats.membarriers, "membarriers"),
            (stats.fallbacks_changed, "copies thrown away: the folio had changed"),
            (stats.fallbacks_identity, "lookups thrown away: another folio by then"),
            (self.faults.0, "faults of maps"),
            (self.faults.1, "of these, failed"),
        ];
        for (count, name) in lines {
            writeln!(f, "{:>16}  {name}", grouped(count))?;
        }
        Ok(())
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
