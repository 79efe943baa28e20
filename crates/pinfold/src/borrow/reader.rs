//! A thread's own part of borrowing: its slots, and what each of its guards shows.
//!
//! Here: finding a free slot, and the memory that guards point to. Not here: the records that others
//! look at (`readers`), the protocol (`slot.rs`). Called by `cache` and by `slot.rs`.
//!
//! A guard is one pointer, to a [`State`] in here. Were it the five words of the state itself, compilers
//! would carry it through memory wherever it is returned, store it by words and load it by pairs;
//! and such a load waits for the stores to get to the cache, which took twice as long as all the rest
//! of a borrow.
//!
//! Each state remembers what it showed last, under which version. A folio whose version has not moved since
//! is what it was, where it was (versions only grow, over all lifetimes of a frame), so whoever borrows the
//! same page again, as one does who reads its records one by one, needs neither the look-up nor the identity.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::frame::{Frame, FrameNumber, Stamp};
use crate::handle::Handle;
use crate::readers::{Barrier, Readers, SLOTS, Seat};
use crate::sync::{AtomicU32, Ordering};

/// One guard's: where it is announced, and what it shows.
#[derive(Debug)]
pub(super) struct State {
    /// Its slot, in the thread's record. Without, the guard has a reference, and the state is boxed.
    pub(super) slot: Option<NonNull<AtomicU32>>,
    /// Of the guard that has the slot; stale without.
    pub(super) handle: Cell<Option<NonNull<Handle>>>,
    /// Of the guard that has the slot, or had it last.
    pub(super) shown: Cell<Shown>,
}

/// A page as it was found: this page of the mapping that the folio at `head` has, as long as its
/// version is that stamp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// `u64::MAX` where nothing was shown yet.
    pub(super) page: u64,
    pub(super) head: FrameNumber,
    pub(super) stamp: Stamp,
    /// Where it is, and how many bytes of it are the file's.
    pub(super) bytes: *mut u8,
    pub(super) page_bytes: usize,
}

impl State {
    /// With a slot that announces nothing, or with a reference.
    pub(super) fn new(slot: Option<NonNull<AtomicU32>>) -> Self {
        let (head, stamp, bytes) = (FrameNumber(0), Stamp::default(), std::ptr::null_mut());
        let shown = Shown { page: u64::MAX, head, stamp, bytes, page_bytes: 0 };
        State { slot, handle: Cell::new(None), shown: Cell::new(shown) }
    }
}

/// A thread's right to borrow from one cache: see [`File::borrow`](crate::File::borrow).
///
/// Made by [`Cache::reader`](crate::Cache::reader), it belongs to the thread that made it and cannot
/// leave it. Keep one a thread, for long: making one takes a mutex, and using one is what makes
/// borrowing cheap. Dropping it leaves; it may live in a thread-local variable, whose destructors may
/// run in any order. It does not keep the cache alive.
///
/// ```compile_fail,E0277
/// # let cache = pinfold::Cache::new(pinfold::Options::new(8 << 20)).unwrap();
/// let reader = cache.reader().unwrap();
/// std::thread::spawn(move || drop(reader)); // it cannot be sent
/// ```
/// ```compile_fail,E0277
/// # let cache = pinfold::Cache::new(pinfold::Options::new(8 << 20)).unwrap();
/// let reader = cache.reader().unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(|| drop(&reader)); // nor shared
/// });
/// ```
#[derive(Debug)]
pub struct Reader {
    seat: Seat,
    /// The address of the cache's readers, if this one of them needs no fence. `seat` keeps them there.
    unfenced_address: usize,
    /// The folio borrowed last: reading on in it is no further use of it.
    last_head: Cell<u32>,
    /// One for each slot.
    states: [State; SLOTS],
    /// Neither `Send` nor `Sync`: the slots have one writer.
    stays: PhantomData<*mut ()>,
}

impl Reader {
    pub(crate) fn new(seat: Seat) -> Self {
        let states = std::array::from_fn(|n| State::new(Some(NonNull::from(&seat.slots()[n]))));
        let unfenced_address = seat.unfenced_address();
        let last_head = Cell::new(u32::MAX);
        Reader { seat, unfenced_address, last_head, states, stays: PhantomData }
    }

    /// Whether it is one of `readers`' cache.
    pub(super) fn is_of(&self, readers: &Arc<Readers>) -> bool {
        self.seat.is_of(readers)
    }

    /// Whether it is one of the cache whose readers are at that address, and needs no fence.
    #[inline(always)]
    pub(super) fn is_unfenced_of(&self, readers_address: usize) -> bool {
        self.unfenced_address == readers_address
    }

    /// The first slot, if it announces nothing, and its state.
    #[inline(always)]
    pub(super) fn first_slot(&self) -> Option<(&AtomicU32, &State)> {
        let slot = &self.seat.slots()[0];
        // Relaxed: only this thread stores there.
        (slot.load(Ordering::Relaxed) == 0).then_some((slot, &self.states[0]))
    }

    /// A slot that announces nothing, and its state; rather one that showed `page` last.
    pub(super) fn free_slot(&self, page: u64) -> Option<(&AtomicU32, &State)> {
        let slots = self.seat.slots().iter().zip(&self.states);
        // Relaxed: as in `first_slot`.
        let mut free = slots.filter(|(slot, _)| slot.load(Ordering::Relaxed) == 0);
        let first = free.next()?;
        let showed = |(_, state): &(_, &State)| state.shown.get().page == page;
        if showed(&first) { Some(first) } else { free.find(showed).or(Some(first)) }
    }

    /// The reader's half of the fence; unless `ANY`, of a reader that needs none.
    #[inline(always)]
    pub(super) fn light_fence<const ANY: bool>(&self) {
        if ANY {
            self.seat.light_fence();
        } else {
            Barrier::Membarrier.light();
        }
    }

    /// Notes a use of the folio, if the thread comes to it from another one.
    #[inline(always)]
    pub(super) fn note_use(&self, frame: &Frame, head: FrameNumber) {
        if !frame.is_used_most() && self.last_head.get() != head.0 {
            self.come_to(frame, head);
        }
    }

    /// Out of line: each page that is used a lot comes here three times.
    #[cold]
    #[inline(never)]
    fn come_to(&self, frame: &Frame, head: FrameNumber) {
        self.last_head.set(head.0);
        frame.note_use();
    }
}
