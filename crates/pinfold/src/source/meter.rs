//! Counts of the calls to one source and of the time they took, independent of each other. Cost:
//! two clock reads and four additions on one line.

use std::io;
use std::time::Duration;

// Not from `crate::base::sync`: no protocol depends on a counter.
use std::sync::atomic::{AtomicU64, Ordering};

const LATENCY_BUCKETS: usize = 40;

#[derive(Debug)]
pub(super) struct CallCounters {
    calls: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    short: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

#[derive(Debug, Default)]
pub(super) struct Meter {
    pub(super) read: CallCounters,
    pub(super) read_ahead: CallCounters,
    pub(super) write: CallCounters,
}

/// What was counted for one kind of call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneStats {
    /// Calls that have ended.
    pub calls: u64,
    /// Bytes moved by those that succeeded.
    pub bytes: u64,
    /// Calls that ended in an error.
    pub errors: u64,
    /// Calls that moved fewer bytes than asked: reads at the end of the source.
    pub short: u64,
    /// Time of all calls together.
    pub total_ns: u64,
    /// Time of the longest call.
    pub max_ns: u64,
    /// Calls by duration: bucket 0 counts 0 ns, bucket `n` from 2^(n-1) to below 2^n ns, the last
    /// everything from 2^38 ns (275 s) on.
    pub latency: [u64; 40],
}

/// What was counted for one file since its first open. Requests are timed from their submission on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceStats {
    /// [`Source::kind`](super::Source::kind); `"none: the file is closed"` for pages that are
    /// cached while no handle of their file is left.
    pub kind: String,
    /// Reads that a thread or a future waited for.
    pub read: LaneStats,
    /// Reads ahead and prefetches: nobody waited when they were submitted.
    pub read_ahead: LaneStats,
    /// Writes.
    pub write: LaneStats,
}

impl Default for CallCounters {
    fn default() -> Self {
        Self {
            calls: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            short: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            latency: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

// Relaxed throughout: counters that order nothing and pair with nothing.
impl CallCounters {
    pub(super) fn count(&self, time: Duration, asked: usize, result: &io::Result<usize>) {
        let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        add(&self.calls, 1);
        add(&self.total_ns, ns);
        add(&self.latency[bucket(ns)], 1);
        // Mostly no store: a maximum is seldom beaten.
        if self.max_ns.load(Ordering::Relaxed) < ns {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
        match result {
            Ok(got) => {
                add(&self.bytes, *got as u64);
                if *got < asked {
                    add(&self.short, 1);
                }
            }
            Err(_) => {
                add(&self.errors, 1);
            }
        }
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed) // pairs with nothing
    }

    fn snapshot(&self) -> LaneStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed); // pairs with nothing
        LaneStats {
            calls: read(&self.calls),
            bytes: read(&self.bytes),
            errors: read(&self.errors),
            short: read(&self.short),
            total_ns: read(&self.total_ns),
            max_ns: read(&self.max_ns),
            latency: std::array::from_fn(|n| read(&self.latency[n])),
        }
    }
}

impl Meter {
    pub(super) fn snapshot(&self, kind: String) -> SourceStats {
        SourceStats {
            kind,
            read: self.read.snapshot(),
            read_ahead: self.read_ahead.snapshot(),
            write: self.write.snapshot(),
        }
    }
}

fn bucket(ns: u64) -> usize {
    ((u64::BITS - ns.leading_zeros()) as usize).min(LATENCY_BUCKETS - 1)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_lane_counts_calls_bytes_errors_and_times() {
        let lane = CallCounters::default();
        lane.count(Duration::from_micros(1), 4096, &Ok(4096));
        lane.count(Duration::from_micros(3), 4096, &Ok(100));
        lane.count(Duration::from_nanos(500), 4096, &Err(io::Error::other("x")));
        let seen = lane.snapshot();
        assert_eq!((seen.calls, seen.bytes, seen.errors, seen.short), (3, 4196, 1, 1));
        assert_eq!((seen.total_ns, seen.max_ns), (4500, 3000));
        // 512..1024, 2048..4096, 256..512
        assert_eq!((seen.latency[10], seen.latency[12], seen.latency[9]), (1, 1, 1));
        assert_eq!(seen.latency.iter().sum::<u64>(), 3);
    }

    #[test]
    fn buckets_have_the_documented_edges() {
        assert_eq!([0, 1, 2, 3, 4].map(bucket), [0, 1, 2, 2, 3]);
        assert_eq!(bucket((1 << 38) - 1), 38);
        assert_eq!([1 << 38, u64::MAX].map(bucket), [39, 39]);
    }
}
