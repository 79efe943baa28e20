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

use super::view::View;
use crate::frame::{Frame, FrameNumber, Stamp};
use crate::handle::Handle;
use crate::readers::{Readers, SLOTS, Seat};
use crate::sync::{AtomicU32, Ordering};

/// What a guard shows, and where it is announced.
///
/// # Invariants
/// With a memory there is a view: of that page, at that head, as long as the version is that stamp.
#[derive(Debug)]
pub(super) struct State {
    /// Its slot, in the thread's record. Without, the guard has a reference, and the state is boxed.
    pub(super) slot: Option<NonNull<AtomicU32>>,
    /// Of the guard that has the slot, or had it last.
    pub(super) view: Cell<Option<View>>,
    /// Where it came from; stale without a guard.
    pub(super) handle: Cell<Option<NonNull<Handle>>>,
    pub(super) memory: Cell<Memory>,
}

/// Which page a state showed last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// The handle's; 0 is nobody's.
    pub(super) serial: u64,
    pub(super) page: u64,
    pub(super) stamp: Stamp,
    pub(super) head: FrameNumber,
}

impl State {
    pub(super) fn new(slot: Option<NonNull<AtomicU32>>) -> Self {
        let (serial, page, stamp, head) = (0, 0, Stamp::default(), FrameNumber(0));
        let memory = Cell::new(Memory { serial, page, stamp, head });
        State { slot, view: Cell::new(None), handle: Cell::new(None), memory }
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
        Reader { seat, last_head: Cell::new(u32::MAX), states, stays: PhantomData }
    }

    /// Whether it is one of `readers`' cache.
    #[inline(always)]
    pub(super) fn is_of(&self, readers: &Arc<Readers>) -> bool {
        self.seat.is_of(readers)
    }

    /// A slot that announces nothing, and its state.
    #[inline(always)]
    pub(super) fn free_slot(&self) -> Option<(&AtomicU32, &State)> {
        let slot = &self.seat.slots()[0];
        // Relaxed: only this thread stores there.
        if slot.load(Ordering::Relaxed) == 0 {
            return Some((slot, &self.states[0]));
        }
        self.another_free_slot()
    }

    /// Not that it were rare: "cold" keeps the call's registers out of the way of the first slot's.
    #[cold]
    #[inline(never)]
    fn another_free_slot(&self) -> Option<(&AtomicU32, &State)> {
        let mut slots = self.seat.slots().iter().zip(&self.states).skip(1);
        // Relaxed: as in `free_slot`.
        slots.find(|(slot, _)| slot.load(Ordering::Relaxed) == 0)
    }

    /// The reader's half of the fence.
    #[inline(always)]
    pub(super) fn light_fence(&self) {
        self.seat.light_fence();
    }

    /// Notes a use of the folio, if the thread comes to it from another one.
    #[inline(always)]
    pub(super) fn note_use(&self, frame: &Frame, head: FrameNumber) {
        if !frame.is_used_most() && self.last_head.get() != head.0 {
            self.last_head.set(head.0);
            frame.note_use();
        }
    }
}
