//! Who borrows: a record for each thread, with slots for the folios that it reads in place.
//!
//! Here: registering and leaving, the slots, and the one look at all of them. Not here: the guard
//! over a slot (`borrow/`), who freezes what (`freeze`). Called by `cache`, by the borrowing
//! door, and by everybody who freezes.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | the registry: records, the look at all slots |
//! | `barrier.rs` | the fence between announcing and freezing |
//! | `deferred.rs` | folios that left their file while they were announced |
//!
//! # A slot's word
//!
//! | state | value | who stores it |
//! |---|---|---|
//! | free | 0 | the record's thread, at the end of a borrow and when it leaves |
//! | announced | frame number of a folio's head (never 0: that is the table's) | the record's thread |
//!
//! Only its thread stores a slot; anybody may look. An announcement alone means nothing: it is a
//! borrow once the reader, *after* storing it, has seen the folio's version unchanged and even.
//!
//! # Announcing against freezing
//!
//! | reader | freezer |
//! |---|---|
//! | load version v, even; identity; length | freeze the count, version odd |
//! | store the slot | |
//! | *light fence* | *heavy fence* |
//! | load the version: still v, or clear the slot and give up | load all slots |
//! | read in place | announced: put back. Not announced: take it apart |
//! | clear the slot, release | |
//!
//! By the two fences at least one side sees the other: a reader that sees v again is seen by every
//! later look. So what the look does not find nobody borrows, and nobody can begin to while the
//! version is odd. The look loads with acquire, so that whatever the reader did before it cleared
//! the slot comes before what the freezer does next.
//!
//! # Records
//!
//! They are made in chunks, never freed or moved before the cache goes, and used again by others.
//! `high` is one more than the largest number in use, and bounds the look. It is raised before its
//! record's first announcement, by the same thread, so that whoever must see the announcement sees
//! it, too.

mod barrier;
mod deferred;

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

pub use barrier::Barrier;
pub(crate) use deferred::Deferred;

use crate::counters::{Counters, Event};
use crate::error::{Error, Result};
use crate::flaw::{self, Flaw};
use crate::fork::Birth;
use crate::frame::FrameNumber;
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, fence};

pub(crate) use crate::sizes::SLOTS;
use crate::sizes::{RECORDS_CHUNK as CHUNK, RECORDS_CHUNKS as CHUNKS};

/// The most [`Reader`](crate::Reader)s that one cache can have at once.
pub const READERS_MAX: usize = CHUNK * CHUNKS;

/// The most folios that are looked for at once.
pub(crate) const LOOK_MAX: usize = 512;

/// One thread's slots, on lines of their own: x86 fetches them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Record {
    slots: [AtomicU32; SLOTS],
}

impl Record {
    fn new() -> Self {
        Record { slots: std::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

/// All records of a cache.
#[derive(Debug)]
pub(crate) struct Readers {
    chunks: [OnceLock<Box<[Record]>>; CHUNKS],
    /// One more than the largest record in use. Raised and lowered under the mutex.
    high: AtomicU32,
    /// Of readers without a fence of their own, how many there are. Changed under the mutex.
    unfenced: AtomicU32,
    seats: Mutex<Seats>,
    birth: Birth,
    /// What new readers have. Not from `crate::sync`: changed once at most, under the mutex.
    fenced: std::sync::atomic::AtomicBool,
    #[cfg(test)]
    refuse: std::sync::atomic::AtomicBool,
}

/// Which records are in use: a bit for each.
#[derive(Debug)]
struct Seats([u64; CHUNKS]);

impl Seats {
    fn take(&mut self) -> Option<usize> {
        let free = |word: &u64| (word.trailing_ones() as usize) < CHUNK;
        let chunk = self.0.iter().position(free)?;
        let bit = self.0[chunk].trailing_ones() as usize;
        self.0[chunk] |= 1 << bit;
        Some(chunk * CHUNK + bit)
    }

    fn leave(&mut self, number: usize) {
        let bit = 1 << (number % CHUNK);
        assert!(self.0[number / CHUNK] & bit != 0, "a reader leaves that was not there");
        self.0[number / CHUNK] &= !bit;
    }

    fn end(&self) -> usize {
        let chunk = self.0.iter().rposition(|&word| word != 0);
        chunk.map_or(0, |chunk| chunk * CHUNK + 64 - self.0[chunk].leading_zeros() as usize)
    }

    fn taken(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// What a look at all announcements found: a bit for each folio that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced([u64; LOOK_MAX / 64]);

impl Announced {
    const NONE: Self = Announced([0; LOOK_MAX / 64]);
    const ALL: Self = Announced([u64::MAX; LOOK_MAX / 64]);

    /// Whether the `n`th of them is announced.
    pub(crate) fn has(self, n: usize) -> bool {
        self.0[n / 64] >> (n % 64) & 1 == 1
    }

    fn add(&mut self, n: usize) {
        self.0[n / 64] |= 1 << (n % 64);
    }
}

impl Readers {
    pub(crate) fn new(wished: Barrier) -> Self {
        let fenced = Barrier::choose(wished) == Barrier::FullFence;
        let readers = Readers {
            chunks: [const { OnceLock::new() }; CHUNKS],
            high: AtomicU32::new(0),
            unfenced: AtomicU32::new(0),
            seats: Mutex::new(Seats([0; CHUNKS])),
            birth: Birth::here(),
            fenced: fenced.into(),
            #[cfg(test)]
            refuse: false.into(),
        };
        if cfg!(loom) {
            // The checker does not see the lock under which they are made.
            readers.record(0);
        }
        readers
    }

    /// How announcing and freezing are kept apart.
    pub(crate) fn barrier(&self) -> Barrier {
        // Acquire: pairs with the release in `heavy`; who sees the change sees no reader without a
        // fence registered after it.
        if self.fenced.load(Ordering::Acquire) { Barrier::FullFence } else { Barrier::Membarrier }
    }

    /// How many readers are registered.
    pub(crate) fn registered(&self) -> u64 {
        self.seats().taken()
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock()
    }

    fn record(&self, number: usize) -> &Record {
        let chunk =
            self.chunks[number / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Record::new()).collect());
        &chunk[number % CHUNK]
    }

    /// A record for the calling thread.
    ///
    /// # Errors
    /// All are in use.
    pub(crate) fn register(self: &Arc<Self>) -> Result<Seat> {
        let mut seats = self.seats();
        let number = seats.take().ok_or(Error::TooManyReaders { most: READERS_MAX })?;
        // Release: pairs with the acquire in `announced`.
        if !flaw::on(Flaw::RegisterLate) {
            self.high.store(seats.end() as u32, Ordering::Release);
        }
        let barrier = self.barrier();
        if barrier == Barrier::Membarrier {
            // Relaxed: see `heavy`.
            self.unfenced.fetch_add(1, Ordering::Relaxed);
        }
        drop(seats);
        // SeqCst: pairs with the first fence in `announced`. Either that freezer sees `high`, or the
        // first look at a version here sees that it is odd.
        fence(Ordering::SeqCst);
        let slots = NonNull::from(&self.record(number).slots);
        Ok(Seat { slots, readers: self.clone(), barrier, number })
    }

    fn leave(&self, number: usize, barrier: Barrier) {
        for slot in &self.record(number).slots {
            // Release: pairs with the acquire in `look`, for a guard that was forgotten.
            let relaxed = flaw::on(Flaw::LeaveRelaxed);
            slot.store(0, if relaxed { Ordering::Relaxed } else { Ordering::Release });
        }
        let mut seats = self.seats();
        seats.leave(number);
        let end = if flaw::on(Flaw::LeaveByNumber) { number } else { seats.end() };
        // Release: pairs with the acquire in `announced`: a freezer that does not look at this
        // record any more comes after all that its thread has read in place.
        self.high.store(end as u32, Ordering::Release);
        if barrier == Barrier::Membarrier {
            // Release: as for `high`.
            self.unfenced.fetch_sub(1, Ordering::Release);
        }
    }

    /// Which of the folios at `heads` are announced. The caller has made their versions odd, so
    /// that nobody can begin to borrow them from here on.
    ///
    /// Cost: one membarrier, however many folios, and a line for each reader; without any reader
    /// one fence.
    pub(crate) fn announced(&self, heads: &[FrameNumber], counters: &Counters) -> Announced {
        // SeqCst: pairs with the fence in `register`, for the look at `high`.
        if !flaw::on(Flaw::ScanUnfenced) {
            fence(Ordering::SeqCst);
        }
        // Acquire: pairs with the release in `register` and `leave`.
        if heads.is_empty() || self.high.load(Ordering::Acquire) == 0 || flaw::on(Flaw::NoScan) {
            return Announced::NONE;
        }
        if !self.heavy(counters) {
            // It cannot be known: whoever looked before may borrow anything.
            return Announced::ALL;
        }
        self.look(heads)
    }

    /// The freezer's fence. False if it cannot be had while there are readers that need it.
    fn heavy(&self, counters: &Counters) -> bool {
        let barrier = self.barrier();
        #[cfg(test)]
        let refused = barrier == Barrier::Membarrier && self.refuse.load(Ordering::Relaxed);
        #[cfg(not(test))]
        let refused = false;
        if !refused && barrier.heavy() {
            if barrier == Barrier::Membarrier {
                counters.count(Event::Membarrier);
                return true;
            }
        } else {
            // The process took the call away from itself (seccomp). Readers from now on have fences.
            let _seats = self.seats();
            // Release: pairs with the acquire in `barrier`.
            self.fenced.store(true, Ordering::Release);
        }
        // Acquire: pairs with the release in `leave`. Nobody is added any more, see `register`.
        self.unfenced.load(Ordering::Acquire) == 0
    }

    /// Which of the folios at `heads` are announced still, each of which `announced` was asked for
    /// before. Without a fence of its own, as that call had one; where it was refused, all of them count as
    /// announced until the last reader without a fence has left.
    pub(crate) fn look_again(&self, heads: &[FrameNumber]) -> Announced {
        // Acquire: pairs with the release in `leave`, as in `heavy`.
        let unfenced = || self.unfenced.load(Ordering::Acquire) > 0;
        // Whoever was refused has said so before it put its folios where the caller found them.
        let refused = self.barrier() == Barrier::FullFence && unfenced();
        if refused && !flaw::on(Flaw::CollectUnfenced) {
            return Announced::ALL;
        }
        self.look(heads)
    }

    /// The look itself, without the fence.
    fn look(&self, heads: &[FrameNumber]) -> Announced {
        assert!(heads.len() <= LOOK_MAX, "more folios at once than a look has bits");
        // Acquire: as in `announced`.
        let high = self.high.load(Ordering::Acquire) as usize;
        let mut found = Announced::NONE;
        for slot in (0..high).flat_map(|number| &self.record(number).slots) {
            // Acquire: pairs with the release that cleared the slot, or announced another folio.
            let head = slot.load(Ordering::Acquire);
            if head != 0
                && let Some(n) = heads.iter().position(|wanted| wanted.0 == head)
            {
                found.add(n);
            }
        }
        found
    }

    /// From now on the system refuses the membarrier.
    #[cfg(test)]
    pub(crate) fn refuse_membarrier(&self) {
        self.refuse.store(true, Ordering::Relaxed);
    }
}

/// A record in use; left on drop.
#[derive(Debug)]
pub(crate) struct Seat {
    /// In `readers`, which keeps it where it is.
    slots: NonNull<[AtomicU32; SLOTS]>,
    readers: Arc<Readers>,
    barrier: Barrier,
    number: usize,
}

impl Seat {
    /// Whether it is one of `readers`.
    #[inline(always)]
    pub(crate) fn is_of(&self, readers: &Arc<Readers>) -> bool {
        Arc::ptr_eq(&self.readers, readers)
    }

    /// Where the registry is, for a reader without a fence of its own; 0 for one that has one.
    pub(crate) fn unfenced_address(&self) -> usize {
        let unfenced = self.barrier == Barrier::Membarrier;
        if unfenced { Arc::as_ptr(&self.readers).addr() } else { 0 }
    }

    /// Its slots, which only its thread may store to.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &[AtomicU32; SLOTS] {
        // SAFETY: records are neither freed nor moved while `readers` lives.
        unsafe { self.slots.as_ref() }
    }

    /// The reader's half of the fence.
    #[inline(always)]
    pub(crate) fn light_fence(&self) {
        self.barrier.light();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if crate::sync::model_failed() {
            return;
        }
        // In a forked child nobody evicts, and nobody may be there to unlock what it takes.
        if self.readers.birth.is_here() {
            self.readers.leave(self.number, self.barrier);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
