//! Counting without sharing: a shard per thread, added up when somebody asks.
//!
//! Here: the shards and which thread has which. Not here: what the numbers mean to a program
//! (`stats.rs`). Called by every room; a read on the fast path makes one plain addition here, on a
//! cache line of its own thread.

use std::cell::Cell;
use std::num::NonZero;
// Not from `crate::sync`: no protocol hangs on a counter, and a model checker would have to tell
// apart what each of them says.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::fork;

/// Threads that have a shard of their own; the others share the one behind these.
const SHARDS: usize = crate::sizes::COUNTER_SHARDS;

/// What is counted, beside the sizes of reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Event {
    EmptyRead,
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
    BorrowCounted,
    Announced,
    Deferred,
    Membarrier,
    PinMigration,
    PinnedPages,
    UnpinnedPages,
    Migration,
}

/// How many sizes of reads are told apart: powers of two.
pub const READ_SIZE_BUCKETS: usize = 32;

/// Sizes that a read can have, in powers of two. A slice has at most 2^63 - 1 bytes, but those of
/// 2^31 and more are counted as one.
const BITS: usize = READ_SIZE_BUCKETS;

const EVENTS: usize = Event::Migration as usize + 1;

/// One thread's counters.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Shard {
    /// The head that this thread read last: reading on in a folio is no further use of it.
    last_head: AtomicU32,
    reads: [AtomicU64; BITS],
    events: [AtomicU64; EVENTS],
}

impl Shard {
    fn new() -> Self {
        Shard {
            last_head: AtomicU32::new(u32::MAX),
            reads: [const { AtomicU64::new(0) }; BITS],
            events: [const { AtomicU64::new(0) }; EVENTS],
        }
    }

    /// Counts a read of so many bytes.
    #[inline(always)]
    pub(crate) fn count_read(&self, bytes: NonZero<usize>) {
        add(&self.reads[(bytes.ilog2() as usize).min(BITS - 1)], 1);
    }

    /// Whether the thread comes to the folio `head` from another one.
    #[inline(always)]
    pub(crate) fn comes_to(&self, head: u32) -> bool {
        // Relaxed: nobody else has it.
        if self.last_head.load(Ordering::Relaxed) == head {
            return false;
        }
        self.last_head.store(head, Ordering::Relaxed);
        true
    }
}

/// Not a read-modify-write: a shard has one writer. Where threads share the last one, an addition
/// may be lost.
#[inline(always)]
fn add(counter: &AtomicU64, n: u64) {
    // Relaxed, both: counters order nothing.
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// All shards of a cache.
#[derive(Debug)]
pub(crate) struct Counters {
    /// In place, not behind a pointer: one load less for each read.
    shards: [Shard; SHARDS + 1],
}

impl Counters {
    pub(crate) fn new() -> Self {
        Counters { shards: std::array::from_fn(|_| Shard::new()) }
    }

    /// The calling thread's shard.
    #[inline(always)]
    pub(crate) fn shard(&self) -> &Shard {
        let at = SHARD_AT.get();
        if at >= size_of_val(&self.shards) {
            return &self.shards[take_seat()];
        }
        let shard = self.shards.as_ptr().wrapping_byte_add(at);
        // SAFETY: below the end of the shards, and a multiple of their size: see `SHARD_AT`.
        unsafe { &*shard }
    }

    /// Counts one more of the event of that number.
    pub(crate) fn count_numbered<const EVENT: usize>(&self) {
        const { assert!(EVENT < EVENTS, "no such event") }
        add(&self.shard().events[EVENT], 1);
    }

    /// Counts one more of `event`.
    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// Counts `n` more of `event`. Exact for what must balance: starts and ends of fills and pins.
    #[inline]
    pub(crate) fn add(&self, event: Event, n: u64) {
        let counter = &self.shard().events[event as usize];
        let balances = matches!(
            event,
            Event::FillStarted | Event::FillEnded | Event::PinnedPages | Event::UnpinnedPages
        );
        if balances {
            // Relaxed: as in `add`.
            counter.fetch_add(n, Ordering::Relaxed);
        } else {
            add(counter, n);
        }
    }

    /// How many of `event` there were.
    pub(crate) fn sum(&self, event: Event) -> u64 {
        // Relaxed, here and below: the numbers are of about now.
        self.shards.iter().map(|shard| shard.events[event as usize].load(Ordering::Relaxed)).sum()
    }

    /// Reads by size: those of 2^n to 2^(n+1) - 1 bytes stand at n + 1, empty ones at 0, and the last
    /// bucket has all that are longer too.
    pub(crate) fn reads(&self) -> [u64; READ_SIZE_BUCKETS] {
        let mut reads = [0; READ_SIZE_BUCKETS];
        reads[0] = self.sum(Event::EmptyRead);
        for shard in &self.shards {
            for (bits, counter) in shard.reads.iter().enumerate() {
                reads[(bits + 1).min(READ_SIZE_BUCKETS - 1)] += counter.load(Ordering::Relaxed);
            }
        }
        reads
    }
}

thread_local! {
    /// Which shard, in every cache: the byte of `Counters::shards` that it begins with; `usize::MAX`
    /// before the first count. Without a destructor, so that it can be used at any time in a thread's
    /// life.
    static SHARD_AT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Gives the seat back when the thread ends.
    static LEAVING: Leaving = const { Leaving };
}

static FREE_SEATS: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
static SEATS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// `None` in a forked child, if a thread that is not there had them at the fork.
fn free_seats() -> Option<std::sync::MutexGuard<'static, Vec<usize>>> {
    use std::sync::TryLockError;
    if fork::is_child() {
        return match FREE_SEATS.try_lock() {
            Ok(free) => Some(free),
            Err(TryLockError::Poisoned(free)) => Some(free.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
    }
    Some(FREE_SEATS.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        let seat = SHARD_AT.replace(SHARDS * size_of::<Shard>()) / size_of::<Shard>();
        if seat < SHARDS
            && let Some(mut free) = free_seats()
        {
            free.push(seat);
        }
    }
}

#[cold]
#[inline(never)]
fn take_seat() -> usize {
    let free = free_seats().and_then(|mut free| free.pop());
    // Relaxed: only to be different. A thread that is ending already gets the shared shard.
    let seat = if LEAVING.try_with(|_| ()).is_err() {
        SHARDS
    } else {
        free.unwrap_or_else(|| SEATS.fetch_add(1, Ordering::Relaxed)).min(SHARDS)
    };
    SHARD_AT.set(seat * size_of::<Shard>());
    seat
}
