//! A thread's own side of borrowing: its slots, and what each of its guards shows. The shared
//! records are in `readers`, the protocol in `slot.rs`.
//!
//! A guard is one pointer, to a [`GuardState`] in here: five words would be returned through
//! memory. Each state remembers the page it showed last, and its version: a folio with an unchanged
//! version is unchanged and in the same frames. So a thread that borrows the same page again skips
//! the look-up.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::iter::Rev;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::slice;

use crate::base::barrier::Barrier;
use crate::base::sync::{AtomicU32, Ordering};
use crate::frames::{Frame, FrameNumber, PAGE_BYTES, PAGE_SHIFT, Stamp};
use crate::pages::handle::Handle;
use crate::pages::readers::{ReaderSeat, SEATS_FURTHER, SLOTS};

/// Where a guard is announced, and what it shows.
#[derive(Debug)]
pub(super) struct GuardState {
    /// `None`: the guard has a reference, and its state is boxed.
    pub(super) slot: Option<NonNull<AtomicU32>>,
    /// Stale if no guard has the slot.
    pub(super) handle: Cell<Option<NonNull<Handle>>>,
    /// By the guard that has the slot, or the last one that had it.
    pub(super) shown: Cell<ShownPage>,
}

/// As a look-up found it, in the folio at `head`: valid as long as the folio's version is `stamp`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownPage {
    /// `u64::MAX`: none yet.
    pub(super) page: u64,
    pub(super) head: FrameNumber,
    pub(super) stamp: Stamp,
    /// The page's address, and how many of its bytes belong to the file.
    pub(super) bytes: *mut u8,
    pub(super) page_bytes: usize,
}

impl GuardState {
    /// For a slot that announces nothing, or a guard with a reference (`None`).
    pub(super) fn new(slot: Option<NonNull<AtomicU32>>) -> Self {
        let (head, stamp, bytes) = (FrameNumber(0), Stamp::default(), std::ptr::null_mut());
        let shown = ShownPage { page: u64::MAX, head, stamp, bytes, page_bytes: 0 };
        GuardState { slot, handle: Cell::new(None), shown: Cell::new(shown) }
    }
}

/// A thread's registration to borrow from one cache ([`File::borrow`](crate::File::borrow)). Made
/// by [`Cache::reader`](crate::Cache::reader). It cannot leave the thread that made it. Keep one
/// per thread, for long: making one takes a mutex. It may live in a thread-local variable, whose
/// destructors run in any order. It does not keep the cache alive.
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
    pub(super) seat: ReaderSeat,
    /// Of the cache's readers, if this reader needs no fence.
    pub(super) unfenced_address: usize,
    /// Borrowed last: borrowing from that folio again is not a further use.
    last: Cell<(u32, u32)>,
    states: [GuardState; SLOTS],
    /// More of both, for large batches.
    further: [OnceCell<Box<Further>>; SEATS_FURTHER],
    /// Neither `Send` nor `Sync`.
    stays: PhantomData<*mut ()>,
}

/// Slots for large batches, which the reader keeps.
#[derive(Debug)]
struct Further {
    seat: ReaderSeat,
    states: [GuardState; SLOTS],
}

fn states_of(seat: &ReaderSeat) -> [GuardState; SLOTS] {
    std::array::from_fn(|n| GuardState::new(Some(NonNull::from(&seat.slots()[n]))))
}

/// The last ones first: a reader's first slot is that of the quickest borrows.
pub(crate) struct FreeSlots<'r> {
    reader: &'r Reader,
    left: Rev<slice::Iter<'r, GuardState>>,
    /// Which of the further slots are next.
    further: usize,
}

impl<'r> FreeSlots<'r> {
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<(&'r AtomicU32, &'r GuardState)> {
        // Ends: there are so many further slots.
        loop {
            for state in &mut self.left {
                let Some(slot) = state.slot else { continue };
                // SAFETY: the slot is in a record of the reader, whose lifetime the states have.
                let slot = unsafe { slot.as_ref() };
                // Relaxed: as in `Reader::first_slot`.
                if slot.load(Ordering::Relaxed) == 0 {
                    return Some((slot, state));
                }
            }
            self.turn()?;
        }
    }

    #[cold]
    #[inline(never)]
    fn turn(&mut self) -> Option<()> {
        let further = self.reader.further(self.further)?;
        self.further += 1;
        self.left = further.states.iter().rev();
        Some(())
    }
}

// As for `Cache`. What the cells remember is checked by the folio's version before each use.
impl UnwindSafe for Reader {}
impl RefUnwindSafe for Reader {}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: only this thread stores there.
        let taken = |slot: &&AtomicU32| slot.load(Ordering::Relaxed) != 0;
        let further = self.further.iter().filter_map(OnceCell::get).map(|further| &further.seat);
        let seats = further.chain([&self.seat]);
        let borrowed = seats.flat_map(ReaderSeat::slots).filter(taken).count();
        f.debug_struct("Reader").field("borrowed", &borrowed).finish_non_exhaustive()
    }
}

impl Reader {
    pub(crate) fn new(seat: ReaderSeat) -> Self {
        let states = states_of(&seat);
        let unfenced_address = seat.unfenced_address();
        let last = Cell::new((u32::MAX, 0));
        let further = [const { OnceCell::new() }; SEATS_FURTHER];
        Reader { seat, unfenced_address, last, states, further, stays: PhantomData }
    }

    /// If it is free.
    #[inline(always)]
    pub(super) fn first_slot(&self) -> Option<(&AtomicU32, &GuardState)> {
        let slot = &self.seat.slots()[0];
        // Relaxed: only this thread stores there.
        (slot.load(Ordering::Relaxed) == 0).then_some((slot, &self.states[0]))
    }

    /// By preference, of the first four, one that showed `page` last.
    pub(super) fn free_slot(&self, page: u64) -> Option<(&AtomicU32, &GuardState)> {
        let slots = self.seat.slots().iter().zip(&self.states);
        // Relaxed: as in `first_slot`.
        let mut free = slots.filter(|(slot, _)| slot.load(Ordering::Relaxed) == 0);
        let Some(first) = free.next() else { return self.free_further_slot() };
        let showed = |(_, state): &(_, &GuardState)| state.shown.get().page == page;
        if showed(&first) { Some(first) } else { free.take(3).find(showed).or(Some(first)) }
    }

    #[cold]
    fn free_further_slot(&self) -> Option<(&AtomicU32, &GuardState)> {
        let further = self.further.iter().map_while(OnceCell::get);
        let mut slots =
            further.flat_map(|further| further.seat.slots().iter().zip(&further.states));
        // Relaxed: as in `first_slot`.
        slots.find(|(slot, _)| slot.load(Ordering::Relaxed) == 0)
    }

    #[inline(always)]
    pub(crate) fn free_slots(&self) -> FreeSlots<'_> {
        FreeSlots { reader: self, left: self.states.iter().rev(), further: 0 }
    }

    /// If no slot is free, as far as there may be more.
    pub(crate) fn make_room(&self) {
        let _ = self.free_slots().next();
    }

    /// Made if need be, and if there may be more.
    fn further(&self, n: usize) -> Option<&Further> {
        let further = self.further.get(n)?;
        if further.get().is_none() {
            let seat = self.seat.further()?;
            let states = states_of(&seat);
            further.get_or_init(|| Box::new(Further { seat, states }));
        }
        further.get().map(|further| &**further)
    }

    /// `ANY` is for all readers; without it, for those that need none.
    #[inline(always)]
    pub(super) fn light_fence<const ANY: bool>(&self) {
        if ANY {
            self.seat.light_fence();
        } else {
            Barrier::Membarrier.light();
        }
    }

    /// Unless it is the page borrowed last.
    #[inline(always)]
    pub(super) fn note_use(&self, frame: &Frame, head: FrameNumber, page: u64) {
        if !frame.is_used_most() && self.last.get() != (head.0, page as u32) {
            self.come_to(frame, head, page);
        }
    }

    /// A folio that is used often, in all parts, does not get here.
    #[cold]
    #[inline(never)]
    fn come_to(&self, frame: &Frame, head: FrameNumber, page: u64) {
        let came = self.last.replace((head.0, page as u32)).0 != head.0;
        // Of the folio that is there now: if it is another one, any number will do.
        let at = (page << PAGE_SHIFT).wrapping_sub(frame.start().offset());
        frame.note_use(came, at as usize, PAGE_BYTES);
    }
}
