//! Counters without sharing: a shard per thread, summed on demand.
//!
//! The shards, and which thread has which. `stats.rs` explains the numbers.

use std::cell::Cell;
use std::num::NonZero;
use std::ops::RangeInclusive;
// Not from `crate::base::sync`: no protocol depends on a counter, and a model checker would explore every
// value.
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::fork;

/// Threads that have a shard of their own; the others share the last one.
const SHARDS: usize = crate::base::sizes::COUNTER_SHARDS;

/// The events that are counted, besides the sizes of reads.
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
    ReadaheadDropped,
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

/// The number of size classes of reads: powers of two.
pub(crate) const READ_SIZE_BUCKETS: usize = 32;

/// Size classes that a read can have. A slice has at most 2^63 - 1 bytes; sizes from 2^31 on are
/// one class.
const BITS: usize = READ_SIZE_BUCKETS;

const EVENTS: usize = Event::Migration as usize + 1;

/// One thread's counters.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Shard {
    /// The head that this thread read last, and the pages of its folio from which and to which:
    /// reading on in that folio is not a further use.
    last: AtomicU64,
    reads: [AtomicU64; BITS],
    events: [AtomicU64; EVENTS],
}

impl Shard {
    fn new() -> Self {
        Shard {
            last: AtomicU64::new(u64::MAX),
            reads: [const { AtomicU64::new(0) }; BITS],
            events: [const { AtomicU64::new(0) }; EVENTS],
        }
    }

    /// Counts a read of `bytes` bytes.
    #[inline(always)]
    pub(crate) fn count_read(&self, bytes: NonZero<usize>) {
        self.count_reads(bytes, 1);
    }

    /// Counts `n` reads of `bytes` bytes each.
    #[inline(always)]
    pub(crate) fn count_reads(&self, bytes: NonZero<usize>, n: u64) {
        add(&self.reads[(bytes.ilog2() as usize).min(BITS - 1)], n);
    }

    /// Whether the thread comes to the folio of `head` from another one. `None` if what it read last
    /// were these very pages of it, which are numbered from the folio's first. Of a shard that
    /// threads share: one of them.
    #[inline(always)]
    pub(crate) fn comes_to(&self, head: u32, pages: RangeInclusive<u16>) -> Option<bool> {
        let now = u64::from(head) << 32 | u64::from(*pages.start()) << 16 | u64::from(*pages.end());
        // Relaxed, both: it orders nothing. A wrong answer changes a use count by one.
        let last = self.last.load(Ordering::Relaxed);
        if last == now {
            return None;
        }
        self.last.store(now, Ordering::Relaxed);
        Some(last >> 32 != u64::from(head))
    }
}

/// A load and a store, as a shard has one writer. Threads that share the last shard may lose an
/// addition.
#[inline(always)]
fn add(counter: &AtomicU64, n: u64) {
    // Relaxed, both: counters order nothing.
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// All shards of a cache.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Inline, not behind a pointer: one load less per read.
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
        // SAFETY: within the shards, and a multiple of a shard's size: see `SHARD_AT`.
        unsafe { &*shard }
    }

    /// Adds 1 to the event number `EVENT`.
    pub(crate) fn count_numbered<const EVENT: usize>(&self) {
        const { assert!(EVENT < EVENTS, "no such event") }
        add(&self.shard().events[EVENT], 1);
    }

    /// Adds 1 to `event`.
    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// Adds `n` to `event`. Exact, for events that must balance: starts and ends of fills and pins.
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

    /// The sum of `event` over all shards.
    pub(crate) fn sum(&self, event: Event) -> u64 {
        // Relaxed, here and below: the sum is approximate while threads count.
        self.shards.iter().map(|shard| shard.events[event as usize].load(Ordering::Relaxed)).sum()
    }

    /// Reads by size: bucket 0 has empty reads, bucket n + 1 reads of 2^n to 2^(n+1) - 1 bytes, the
    /// last bucket also all longer ones.
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
    /// The thread's shard in every cache, as a byte offset into `Counters::shards`; `usize::MAX`
    /// before the first count. It has no destructor, so it can be used at any time in a thread's
    /// life.
    static SHARD_AT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Gives the shard back when the thread ends.
    static LEAVING: LeavingThread = const { LeavingThread };
}

static FREE_SEATS: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
static SEATS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// `None` in a forked child if another thread of the parent held the lock at the fork.
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

struct LeavingThread;

impl Drop for LeavingThread {
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
    // A thread that is ending gets the shared shard: it would not give another one back.
    let seat = if LEAVING.try_with(|_| ()).is_err() {
        SHARDS
    } else {
        let free = free_seats().and_then(|mut free| free.pop());
        // Relaxed: only uniqueness matters.
        free.unwrap_or_else(|| SEATS.fetch_add(1, Ordering::Relaxed)).min(SHARDS)
    };
    SHARD_AT.set(seat * size_of::<Shard>());
    seat
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_comes_to_a_folio_from_another_one() {
        let shard = Shard::new();
        let (page, next) = (0..=0, 1..=1);
        assert_eq!(shard.comes_to(5, page.clone()), Some(true));
        assert_eq!(shard.comes_to(5, page.clone()), None, "the same page");
        assert_eq!(shard.comes_to(5, next.clone()), Some(false), "it reads on");
        assert_eq!(shard.comes_to(5, 0..=1), Some(false), "both pages are others than one");
        assert_eq!(shard.comes_to(6, 0..=1), Some(true), "of another folio");
        assert_eq!(shard.comes_to(5, page), Some(true), "back again");
        // The last page of the largest folio does not touch the head's bits.
        assert_eq!(shard.comes_to(5, 511..=511), Some(false));
        assert_eq!(shard.comes_to(u32::MAX, 511..=511), Some(true));
    }
}
