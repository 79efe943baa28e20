//! Readers: a record of slots for each thread, for the folios that it borrows; the scan of all
//! slots (`base/barrier.rs` has the fence).
//!
//! # A slot's word
//!
//! | state | value | stored by |
//! |---|---|---|
//! | free | 0 | the record's thread, at the end of a borrow and when it unregisters |
//! | announced | frame number of a folio's head (never 0: that is the table's) | the record's thread |
//!
//! Any thread may load it. An announcement becomes a borrow once the reader, *after* storing it,
//! has seen the folio's version even and unchanged.
//!
//! # Announcing against freezing
//!
//! | reader | freezer |
//! |---|---|
//! | load version v, even; identity; length | freeze the count, version odd |
//! | store the slot | |
//! | *light fence* | *heavy fence* |
//! | load the version: still v, or clear the slot and fail | load all slots |
//! | read in place | announced: thaw. Not announced: take the folio apart |
//! | clear the slot, release | |
//!
//! By the two fences at least one side sees the other. So a folio that the scan does not find is
//! not borrowed, and cannot be while its version is odd. The scan loads with acquire, so that what
//! the reader did before it cleared the slot happens before what the freezer does next.
//!
//! # Records
//!
//! Records are never freed or moved while the cache lives, and are reused. `high` bounds the scan:
//! a thread raises it before its record's first announcement. Batches of borrows may take *further*
//! records for a reader, which it keeps until it unregisters.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::base::barrier::Barrier;
use crate::base::counters::{Counters, Event};
use crate::base::fork::Birth;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU32, Mutex, MutexGuard, Ordering, fence};
use crate::error::{Cause, Result};
use crate::frames::{FrameNumber, Frames};

use crate::base::sizes::{RECORDS_CHUNK as CHUNK, RECORDS_CHUNKS as CHUNKS};
pub(crate) use crate::base::sizes::{SEATS_FURTHER, SLOTS};

/// One that has borrowed more than 16 pages in a batch counts as two, three or four.
pub(crate) const READERS_MAX: usize = CHUNK * CHUNKS;

/// From so many records in use on, no reader gets a further one: the rest is for new readers.
const FURTHER_END: usize = READERS_MAX - READERS_MAX / 4;

pub(crate) const LOOK_MAX: usize = 512;

/// The slots of one thread, on cache lines of their own: x86 fetches lines in pairs.
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

#[derive(Debug)]
pub(crate) struct Readers {
    chunks: [OnceLock<Box<[Record]>>; CHUNKS],
    /// One more than the largest record in use. Changes under the mutex.
    high: AtomicU32,
    /// Readers without a fence of their own. Changes under the mutex.
    unfenced: AtomicU32,
    seats: Mutex<Seats>,
    birth: Birth,
    /// Whether new readers have a fence. Changes at most once, under the mutex.
    fenced: std::sync::atomic::AtomicBool,
    #[cfg(test)]
    refuse: std::sync::atomic::AtomicBool,
}

#[derive(Debug)]
struct Seats {
    taken: [u64; CHUNKS],
    /// A reader's second, third or fourth.
    further: u64,
}

impl Seats {
    fn take(&mut self) -> Option<usize> {
        let free = |word: &u64| (word.trailing_ones() as usize) < CHUNK;
        let chunk = self.taken.iter().position(free)?;
        let bit = self.taken[chunk].trailing_ones() as usize;
        self.taken[chunk] |= 1 << bit;
        Some(chunk * CHUNK + bit)
    }

    fn leave(&mut self, number: usize) {
        let bit = 1 << (number % CHUNK);
        assert!(self.taken[number / CHUNK] & bit != 0, "a reader leaves that was not there");
        self.taken[number / CHUNK] &= !bit;
    }

    fn end(&self) -> usize {
        let chunk = self.taken.iter().rposition(|&word| word != 0);
        chunk.map_or(0, |chunk| chunk * CHUNK + 64 - self.taken[chunk].leading_zeros() as usize)
    }

    fn number(&self) -> u64 {
        self.taken.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// Which of the folios that were looked for, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced([bool; LOOK_MAX]);

impl Announced {
    const NONE: Self = Announced([false; LOOK_MAX]);
    const ALL: Self = Announced([true; LOOK_MAX]);

    pub(crate) fn has(&self, n: usize) -> bool {
        self.0[n]
    }
}

impl Readers {
    pub(crate) fn new(wished: Barrier) -> Self {
        let fenced = Barrier::choose(wished) == Barrier::FullFence;
        let readers = Readers {
            chunks: [const { OnceLock::new() }; CHUNKS],
            high: AtomicU32::new(0),
            unfenced: AtomicU32::new(0),
            seats: Mutex::new(Seats { taken: [0; CHUNKS], further: 0 }),
            birth: Birth::here(),
            fenced: fenced.into(),
            #[cfg(test)]
            refuse: false.into(),
        };
        if cfg!(loom) {
            // The checker does not see the lock under which records are made.
            readers.record(0);
        }
        readers
    }

    /// Of new readers.
    pub(crate) fn barrier(&self) -> Barrier {
        // Acquire: pairs with the release in `heavy`: after it no reader without a fence registers.
        if self.fenced.load(Ordering::Acquire) { Barrier::FullFence } else { Barrier::Membarrier }
    }

    pub(crate) fn registered(&self) -> u64 {
        let seats = self.seats.lock();
        seats.number() - seats.further
    }

    fn record(&self, number: usize) -> &Record {
        let chunk =
            self.chunks[number / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Record::new()).collect());
        &chunk[number % CHUNK]
    }

    pub(crate) fn register(self: &Arc<Self>) -> Result<ReaderSeat> {
        self.take(self.seats.lock(), false)
    }

    fn take(
        self: &Arc<Self>,
        mut seats: MutexGuard<'_, Seats>,
        further: bool,
    ) -> Result<ReaderSeat> {
        let number = seats.take().ok_or(Cause::TooManyReaders { most: READERS_MAX })?;
        seats.further += u64::from(further);
        // Release: pairs with the acquire in `announced`.
        let unseen = further && mutant::on(Mutant::FurtherUnseen);
        if !mutant::on(Mutant::RegisterLate) && !unseen {
            self.high.store(seats.end() as u32, Ordering::Release);
        }
        let barrier = self.barrier();
        if barrier == Barrier::Membarrier {
            // Relaxed: see `heavy`.
            self.unfenced.fetch_add(1, Ordering::Relaxed);
        }
        drop(seats);
        // SeqCst: pairs with the first fence in `announced`. Either that freezer sees `high`, or
        // the first load of a version here sees that it is odd.
        fence(Ordering::SeqCst);
        let slots = NonNull::from(&self.record(number).slots);
        Ok(ReaderSeat { slots, readers: self.clone(), barrier, number, further })
    }

    fn leave(&self, &ReaderSeat { number, barrier, further, .. }: &ReaderSeat) {
        for slot in &self.record(number).slots {
            // Release: pairs with the acquire in `look`, for a forgotten guard.
            let relaxed = mutant::on(Mutant::LeaveRelaxed);
            slot.store(0, if relaxed { Ordering::Relaxed } else { Ordering::Release });
        }
        let mut seats = self.seats.lock();
        seats.leave(number);
        seats.further -= u64::from(further);
        let end = if mutant::on(Mutant::LeaveByNumber) { number } else { seats.end() };
        // Release: pairs with the acquire in `announced`, after which the freezer is ordered after
        // all that this thread read in place.
        self.high.store(end as u32, Ordering::Release);
        if barrier == Barrier::Membarrier {
            // Release: as for `high`.
            self.unfenced.fetch_sub(1, Ordering::Release);
        }
    }

    /// Which of the folios at `heads` are announced. The caller has made their versions odd. Cost:
    /// one membarrier for all together, and a line per reader.
    pub(crate) fn announced(&self, heads: &[FrameNumber], counters: &Counters) -> Announced {
        // SeqCst: pairs with the fence in `take`, for the load of `high`.
        if !mutant::on(Mutant::ScanUnfenced) {
            fence(Ordering::SeqCst);
        }
        // Acquire: pairs with the release in `take` and `leave`.
        if heads.is_empty() || self.high.load(Ordering::Acquire) == 0 || mutant::on(Mutant::NoScan)
        {
            return Announced::NONE;
        }
        if !self.heavy(counters) {
            // Any of them may be borrowed.
            return Announced::ALL;
        }
        self.look(heads)
    }

    /// False if the fence is refused while there are readers that need it.
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
            // The process gave up the call (seccomp). Readers registered from now on have fences.
            let _seats = self.seats.lock();
            // Release: pairs with the acquire in `barrier`.
            self.fenced.store(true, Ordering::Release);
        }
        // Acquire: pairs with the release in `leave`. `take` adds no more of them.
        self.unfenced.load(Ordering::Acquire) == 0
    }

    /// After a call of `announced` for each, whose fence serves. If that was refused, all count as
    /// announced until the last reader without a fence has unregistered.
    pub(crate) fn look_again(&self, heads: &[FrameNumber]) -> Announced {
        // Acquire: pairs with the release in `leave`, as in `heavy`.
        let unfenced = || self.unfenced.load(Ordering::Acquire) > 0;
        // A thread whose fence was refused stored that before it put its folios on the list.
        let refused = self.barrier() == Barrier::FullFence && unfenced();
        if refused && !mutant::on(Mutant::CollectUnfenced) {
            return Announced::ALL;
        }
        self.look(heads)
    }

    /// Approximate: without a fence.
    pub(crate) fn seen_announced(&self) -> impl Iterator<Item = FrameNumber> + '_ {
        // Acquire: as in `announced`.
        let high = self.high.load(Ordering::Acquire) as usize;
        let slots = (0..high).flat_map(|number| &self.record(number).slots);
        // Relaxed: nothing is done to the folios.
        let heads = slots.map(|slot| slot.load(Ordering::Relaxed));
        heads.filter(|&head| head != 0).map(FrameNumber)
    }

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
                found.0[n] = true;
            }
        }
        found
    }

    #[cfg(test)]
    pub(crate) fn refuse_membarrier(&self) {
        self.refuse.store(true, Ordering::Relaxed);
    }
}

/// Unregistered on drop.
#[derive(Debug)]
pub(crate) struct ReaderSeat {
    /// Of `readers`.
    slots: NonNull<[AtomicU32; SLOTS]>,
    readers: Arc<Readers>,
    barrier: Barrier,
    number: usize,
    further: bool,
}

impl ReaderSeat {
    #[inline(always)]
    pub(crate) fn is_of(&self, readers: &Arc<Readers>) -> bool {
        Arc::ptr_eq(&self.readers, readers)
    }

    /// For a reader without a fence of its own; otherwise 0.
    pub(crate) fn unfenced_address(&self) -> usize {
        let unfenced = self.barrier == Barrier::Membarrier;
        if unfenced { Arc::as_ptr(&self.readers).addr() } else { 0 }
    }

    /// Only its thread may store to them.
    #[inline(always)]
    pub(crate) fn slots(&self) -> &[AtomicU32; SLOTS] {
        // SAFETY: records are neither freed nor moved while `readers` lives.
        unsafe { self.slots.as_ref() }
    }

    /// With the same kind of fence.
    #[cold]
    pub(crate) fn further(&self) -> Option<ReaderSeat> {
        // A forked child evicts nothing, and the mutex may be locked there for ever.
        if !self.readers.birth.is_here() {
            return None;
        }
        let seats = self.readers.seats.lock();
        if seats.number() >= FURTHER_END as u64 {
            return None;
        }
        let seat = self.readers.take(seats, true).ok()?;
        (seat.barrier == self.barrier).then_some(seat)
    }

    #[inline(always)]
    pub(crate) fn light_fence(&self) {
        self.barrier.light();
    }
}

impl Drop for ReaderSeat {
    fn drop(&mut self) {
        if crate::base::sync::model_failed() {
            return;
        }
        if self.readers.birth.is_here() {
            self.readers.leave(self);
        }
    }
}

/// Folios that left their file while announced, with the index's reference. But for those added
/// since the last scan, there are no more than slots.
#[derive(Debug)]
pub(crate) struct Deferred(Mutex<VecDeque<FrameNumber>>);

impl Deferred {
    pub(crate) fn new() -> Self {
        Deferred(Mutex::new(VecDeque::new()))
    }

    /// Of a folio that was announced when it left its file.
    pub(crate) fn push(&self, head: FrameNumber) {
        self.0.lock().push_back(head);
    }

    pub(crate) fn outstanding(&self, frames: &Frames) -> (u64, u64) {
        let list = self.0.lock();
        let pages = |head: &FrameNumber| u64::from(frames.frame(*head).order().frames());
        (list.len() as u64, list.iter().map(pages).sum())
    }

    /// Those of the first [`LOOK_MAX`] folios that are not announced any more, as `look` says.
    pub(crate) fn take_over(&self, look: impl Fn(&[FrameNumber]) -> Announced) -> Vec<FrameNumber> {
        let mut list = self.0.lock();
        let looked = list.len().min(LOOK_MAX);
        let heads: Vec<_> = list.drain(..looked).collect();
        let mut over = Vec::new();
        if heads.is_empty() {
            return over;
        }
        let announced = look(&heads);
        for (n, head) in heads.into_iter().enumerate() {
            if announced.has(n) { list.push_back(head) } else { over.push(head) }
        }
        over
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
