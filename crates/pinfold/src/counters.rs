//! Counting without sharing: a shard per thread, added up when somebody asks.
//!
//! Here: the shards and which thread has which. Not here: what the numbers mean to a program
//! (`stats.rs`). Called by every room; a read on the fast path makes one plain addition here, on a
//! cache line of its own thread.

use crate::stats::READ_SIZE_BUCKETS;
use std::cell::Cell;
// Not from `crate::sync`: no protocol hangs on a counter, and a model checker would have to tell
// apart what each of them says.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Threads that have a shard of their own; the others share the one behind these.
const SHARDS: usize = 64;

/// What is counted, beside the sizes of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Event {
    LongRead,
    Absent,
    Changing,
    Identity,
    ReadaheadMark,
    Crosses,
    EndOfFile,
    Changed,
    CountedHit,
    Miss,
    Wait,
    Readahead,
    FillStarted,
    FillEnded,
    FillError,
    Eviction,
    EvictedBytes,
    Refault,
    DirectReclaim,
    Split,
    Migration,
}

const EVENTS: usize = Event::Migration as usize + 1;

/// One thread's counters.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Shard {
    /// The head that this thread read last: reading on in a folio is no further use of it.
    last_head: AtomicU32,
    reads: [AtomicU64; READ_SIZE_BUCKETS],
    events: [AtomicU64; EVENTS],
}

impl Shard {
    fn new() -> Self {
        Shard {
            last_head: AtomicU32::new(u32::MAX),
            reads: [const { AtomicU64::new(0) }; READ_SIZE_BUCKETS],
            events: [const { AtomicU64::new(0) }; EVENTS],
        }
    }

    /// Counts a read of `bytes`. Not a read-modify-write: the shard has one writer, and where
    /// threads share one, a lost count is what that costs.
    #[inline]
    pub(crate) fn count_read(&self, bytes: usize) {
        let bucket = (usize::BITS - bytes.leading_zeros()) as usize;
        let counter = &self.reads[bucket.min(READ_SIZE_BUCKETS - 1)];
        // Relaxed, here and below: counters order nothing.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Whether the thread comes to the folio `head` from another one.
    #[inline]
    pub(crate) fn comes_to(&self, head: u32) -> bool {
        if self.last_head.load(Ordering::Relaxed) == head {
            return false;
        }
        self.last_head.store(head, Ordering::Relaxed);
        true
    }
}

/// All shards of a cache.
#[derive(Debug)]
pub(crate) struct Counters {
    shards: Box<[Shard]>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Counters { shards: (0..=SHARDS).map(|_| Shard::new()).collect() }
    }

    /// The calling thread's shard.
    #[inline]
    pub(crate) fn shard(&self) -> &Shard {
        let seat = SEAT.get();
        match self.shards.get(seat) {
            Some(shard) => shard,
            None => &self.shards[take_seat()],
        }
    }

    /// Counts one more of `event`.
    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// Counts `n` more of `event`.
    pub(crate) fn add(&self, event: Event, n: u64) {
        // Relaxed: see above.
        self.shard().events[event as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// How many of `event` there were.
    pub(crate) fn sum(&self, event: Event) -> u64 {
        self.shards.iter().map(|shard| shard.events[event as usize].load(Ordering::Relaxed)).sum()
    }

    /// Reads by size.
    pub(crate) fn reads(&self) -> [u64; READ_SIZE_BUCKETS] {
        std::array::from_fn(|bucket| {
            self.shards.iter().map(|shard| shard.reads[bucket].load(Ordering::Relaxed)).sum()
        })
    }
}

thread_local! {
    /// Which shard, in every cache; `usize::MAX` before the first count. Without a destructor, so
    /// that it can be used at any time in a thread's life.
    static SEAT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Gives the seat back when the thread ends.
    static LEAVING: Leaving = const { Leaving };
}

static FREE_SEATS: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
static SEATS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        let seat = SEAT.replace(SHARDS);
        if seat < SHARDS {
            FREE_SEATS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(seat);
        }
    }
}

#[cold]
#[inline(never)]
fn take_seat() -> usize {
    let free = FREE_SEATS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
    // Relaxed: only to be different. A thread that is ending already gets the shared shard.
    let seat = if LEAVING.try_with(|_| ()).is_err() {
        SHARDS
    } else {
        free.unwrap_or_else(|| SEATS.fetch_add(1, Ordering::Relaxed)).min(SHARDS)
    };
    SEAT.set(seat);
    seat
}
