//! Counters without sharing: a shard per thread, summed on demand. `stats.rs` explains the numbers.

use std::cell::Cell;
use std::num::NonZero;
// Not from `crate::base::sync`: no protocol depends on a counter.
use std::sync::atomic::{AtomicU64, Ordering};

/// At most 64 threads; the others share the last shard.
const SHARDS: usize = crate::base::sizes::COUNTER_SHARDS;

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

/// Size classes of reads: powers of two. Sizes from 2^31 on are one class.
pub(crate) const READ_SIZE_BUCKETS: usize = 32;

const EVENTS: usize = Event::Migration as usize + 1;

#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Shard {
    /// The byte that this thread read last, among all files' (`frames::Global`): reading on is no
    /// further use.
    last: AtomicU64,
    reads: [AtomicU64; READ_SIZE_BUCKETS],
    events: [AtomicU64; EVENTS],
}

impl Shard {
    pub(crate) fn new() -> Self {
        Shard {
            last: AtomicU64::new(u64::MAX),
            reads: [const { AtomicU64::new(0) }; READ_SIZE_BUCKETS],
            events: [const { AtomicU64::new(0) }; EVENTS],
        }
    }

    #[inline(always)]
    pub(crate) fn count_reads(&self, bytes: NonZero<usize>, n: u64) {
        add(&self.reads[(bytes.ilog2() as usize).min(READ_SIZE_BUCKETS - 1)], n);
    }

    /// Exact for events that must balance: starts and ends of fills and pins.
    #[inline]
    pub(crate) fn add(&self, event: Event, n: u64) {
        let counter = &self.events[event as usize];
        let balances = matches!(
            event,
            Event::FillStarted | Event::FillEnded | Event::PinnedPages | Event::UnpinnedPages
        );
        if balances {
            // Relaxed: counters order nothing.
            counter.fetch_add(n, Ordering::Relaxed);
        } else {
            add(counter, n);
        }
    }

    /// The byte that the thread read last.
    #[inline(always)]
    pub(crate) fn last(&self) -> u64 {
        // Relaxed, as the store: it orders nothing. A wrong answer changes a use count by one.
        self.last.load(Ordering::Relaxed)
    }

    pub(crate) fn set_last(&self, byte: u64) {
        self.last.store(byte, Ordering::Relaxed);
    }
}

/// A shard has one writer; threads that share the last one may lose an addition.
#[inline(always)]
fn add(counter: &AtomicU64, n: u64) {
    // Relaxed, both: counters order nothing.
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

#[derive(Debug)]
pub(crate) struct Counters {
    /// Inline, not behind a pointer: one load less per read.
    shards: [Shard; SHARDS + 1],
}

impl Counters {
    pub(crate) fn new() -> Self {
        Counters { shards: std::array::from_fn(|_| Shard::new()) }
    }

    #[inline(always)]
    pub(crate) fn shard(&self) -> &Shard {
        let shards = self.shards.as_ptr();
        // One addition also says whether there is a shard: no address plus `usize::MAX` fits.
        let (address, none) = shards.addr().overflowing_add(SHARD_AT.get());
        if none {
            return &self.shards[take_seat()];
        }
        // SAFETY: within the shards, and a multiple of a shard's size: see `SHARD_AT`.
        unsafe { &*shards.with_addr(address) }
    }

    pub(crate) fn count_numbered<const EVENT: usize>(&self) {
        const { assert!(EVENT < EVENTS, "no such event") }
        add(&self.shard().events[EVENT], 1);
    }

    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    #[inline]
    pub(crate) fn add(&self, event: Event, n: u64) {
        self.shard().add(event, n);
    }

    pub(crate) fn sum(&self, event: Event) -> u64 {
        // Relaxed, here and below: the sum is approximate while threads count.
        self.shards.iter().map(|shard| shard.events[event as usize].load(Ordering::Relaxed)).sum()
    }

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
    /// before the first count. Without a destructor: usable at any time.
    static SHARD_AT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Gives the shard back when the thread ends.
    static LEAVING: LeavingThread = const { LeavingThread };
}

/// A bit for each shard that a thread has.
static TAKEN: AtomicU64 = AtomicU64::new(0);

struct LeavingThread;

impl Drop for LeavingThread {
    fn drop(&mut self) {
        let seat = SHARD_AT.replace(SHARDS * size_of::<Shard>()) / size_of::<Shard>();
        if seat < SHARDS {
            // Release: pairs with the acquire in `take_seat`, who goes on from these counts.
            TAKEN.fetch_and(!(1 << seat), Ordering::Release);
        }
    }
}

#[cold]
#[inline(never)]
fn take_seat() -> usize {
    let free = |taken: u64| (taken.trailing_ones() < SHARDS as u32).then(|| taken | (taken + 1));
    // A thread that is ending would not give another one back.
    let taken = match LEAVING.try_with(|_| ()) {
        // Acquire: pairs with the release of the thread that left it.
        Ok(()) => TAKEN.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).ok(),
        Err(_) => None,
    };
    let seat = taken.map_or(SHARDS, |taken| taken.trailing_ones() as usize);
    SHARD_AT.set(seat * size_of::<Shard>());
    seat
}
