//! A thread's own side of borrowing: its slots, and what each of its guards shows.
//!
//! Finds free slots and owns the memory that guards point to. The shared records are in `readers`,
//! the protocol in `slot.rs`. Called by `cache` and `slot.rs`.
//!
//! A guard is one pointer, to a [`State`] in here. If the guard were the five words of the state,
//! compilers would return it through memory, stored in words and loaded in pairs. Such loads wait
//! for the stores to reach the cache, which took twice as long as the rest of a borrow.
//!
//! Each state remembers the page it showed last, and its version. Versions only grow, over all uses
//! of a frame, so a folio with an unchanged version is unchanged and in the same frames. A thread
//! that borrows the same page again, to read its records one by one, therefore skips the look-up.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::frame::{Frame, FrameNumber, Stamp};
use crate::handle::Handle;
use crate::readers::{Barrier, Readers, SLOTS, Seat};
use crate::sync::{AtomicU32, Ordering};

/// The state of one guard: where it is announced, and what it shows.
#[derive(Debug)]
pub(super) struct State {
    /// The guard's slot, in the thread's record. `None`: the guard has a reference, and its state
    /// is boxed.
    pub(super) slot: Option<NonNull<AtomicU32>>,
    /// The handle of the guard that has the slot; stale if no guard has it.
    pub(super) handle: Cell<Option<NonNull<Handle>>>,
    /// What the guard that has the slot shows, or the last one that had it.
    pub(super) shown: Cell<Shown>,
}

/// A page as a look-up found it: page `page` of the mapping, in the folio at `head`. Valid as long
/// as the folio's version is `stamp`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// `u64::MAX`: none yet.
    pub(super) page: u64,
    pub(super) head: FrameNumber,
    pub(super) stamp: Stamp,
    /// The page's address, and how many of its bytes belong to the file.
    pub(super) bytes: *mut u8,
    pub(super) page_bytes: usize,
}

impl State {
    /// For a slot that announces nothing, or for a guard with a reference (`None`).
    pub(super) fn new(slot: Option<NonNull<AtomicU32>>) -> Self {
        let (head, stamp, bytes) = (FrameNumber(0), Stamp::default(), std::ptr::null_mut());
        let shown = Shown { page: u64::MAX, head, stamp, bytes, page_bytes: 0 };
        State { slot, handle: Cell::new(None), shown: Cell::new(shown) }
    }
}

/// A thread's registration to borrow from one cache: see [`File::borrow`](crate::File::borrow).
///
/// Made by [`Cache::reader`](crate::Cache::reader). It belongs to the thread that made it and
/// cannot leave it. Keep one per thread, for long: making one takes a mutex, using it takes none. A
/// drop unregisters it. It may live in a thread-local variable, whose destructors run in any order.
/// It does not keep the cache alive.
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
pub struct Reader {
    seat: Seat,
    /// The address of the cache's readers, if this reader needs no fence. `seat` keeps them there.
    unfenced_address: usize,
    /// The folio borrowed last: borrowing from it again is not a further use.
    last_head: Cell<u32>,
    /// One per slot.
    states: [State; SLOTS],
    /// Neither `Send` nor `Sync`: only this thread writes the slots.
    stays: PhantomData<*mut ()>,
}

// As for `Cache`. A slot whose guard is dropped while its thread unwinds is free again. What the
// cells remember is checked by the folio's version before each use.
impl UnwindSafe for Reader {}
impl RefUnwindSafe for Reader {}

impl fmt::Debug for Reader {
    /// One line: how many of its slots announce a page.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: only this thread stores there.
        let taken = |slot: &&AtomicU32| slot.load(Ordering::Relaxed) != 0;
        let borrowed = self.seat.slots().iter().filter(taken).count();
        f.debug_struct("Reader").field("borrowed", &borrowed).finish_non_exhaustive()
    }
}

impl Reader {
    pub(crate) fn new(seat: Seat) -> Self {
        let states = std::array::from_fn(|n| State::new(Some(NonNull::from(&seat.slots()[n]))));
        let unfenced_address = seat.unfenced_address();
        let last_head = Cell::new(u32::MAX);
        Reader { seat, unfenced_address, last_head, states, stays: PhantomData }
    }

    /// Whether it is a reader of the cache that has these `readers`.
    pub(super) fn is_of(&self, readers: &Arc<Readers>) -> bool {
        self.seat.is_of(readers)
    }

    /// Whether it is a reader of the cache whose readers are at `address`, and needs no fence.
    #[inline(always)]
    pub(super) fn is_unfenced_of(&self, readers_address: usize) -> bool {
        self.unfenced_address == readers_address
    }

    /// The first slot and its state, if the slot is free.
    #[inline(always)]
    pub(super) fn first_slot(&self) -> Option<(&AtomicU32, &State)> {
        let slot = &self.seat.slots()[0];
        // Relaxed: only this thread stores there.
        (slot.load(Ordering::Relaxed) == 0).then_some((slot, &self.states[0]))
    }

    /// A free slot and its state; by preference, of the first four, one that showed `page` last.
    pub(super) fn free_slot(&self, page: u64) -> Option<(&AtomicU32, &State)> {
        let slots = self.seat.slots().iter().zip(&self.states);
        // Relaxed: as in `first_slot`.
        let mut free = slots.filter(|(slot, _)| slot.load(Ordering::Relaxed) == 0);
        let first = free.next()?;
        let showed = |(_, state): &(_, &State)| state.shown.get().page == page;
        if showed(&first) { Some(first) } else { free.take(3).find(showed).or(Some(first)) }
    }

    /// All free slots and their states, the last ones first: the first slot is that of the quickest
    /// borrows, and what its state remembers is of most use.
    pub(super) fn free_slots(&self) -> impl Iterator<Item = (&AtomicU32, &State)> {
        let slots = self.seat.slots().iter().zip(&self.states).rev();
        // Relaxed: as in `first_slot`.
        slots.filter(|(slot, _)| slot.load(Ordering::Relaxed) == 0)
    }

    /// The reader's half of the fence. `ANY` is for all readers; without it, for those that need
    /// none.
    #[inline(always)]
    pub(super) fn light_fence<const ANY: bool>(&self) {
        if ANY {
            self.seat.light_fence();
        } else {
            Barrier::Membarrier.light();
        }
    }

    /// Notes a use of the folio, unless this thread borrowed from it last.
    #[inline(always)]
    pub(super) fn note_use(&self, frame: &Frame, head: FrameNumber) {
        if !frame.is_used_most() && self.last_head.get() != head.0 {
            self.come_to(frame, head);
        }
    }

    /// Out of line: a page that is used often gets here only three times.
    #[cold]
    #[inline(never)]
    fn come_to(&self, frame: &Frame, head: FrameNumber) {
        self.last_head.set(head.0);
        frame.note_use();
    }
}
