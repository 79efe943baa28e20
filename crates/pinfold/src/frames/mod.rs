//! Frames: the memory of the cache, and its allocation. It stands on `base/`; a file uses only
//! those below it.
//!
//! ```text
//! window      what a handle keeps of the arena
//! hollow      runs without memory of their own
//! mod         `Frames`, which all other modules call
//! buddy       the free lists
//! mobility    which runs are for what stays
//! table       the frame table
//! uses        how often, and in which parts, a folio was used lately
//! changed     where a folio that is not clean was changed
//! entry       the words of an entry, by which readers check a frame
//! count       the count, or the same on a model checker's atomics
//! arena       one reservation of memory, kept until the cache is dropped
//! copy        copying out of a frame that may change meanwhile (under loom, `bytes`)
//! predict     a page's address, guessed before its entry is there
//! prefetch    asking the processor for memory
//! give_back   giving memory back to the system
//! run_map     sets of frames of one run, and sets of runs
//! units       pages, frames, orders, and their limits
//! ```

mod arena;
mod buddy;
#[cfg(loom)]
pub(crate) mod bytes;
mod changed;
#[cfg(not(loom))]
mod copy;
mod count;
mod entry;
mod give_back;
#[cfg(feature = "map")]
mod hollow;
mod mobility;
mod predict;
mod prefetch;
mod run_map;
mod table;
mod units;
mod uses;
mod window;

#[cfg(all(test, not(any(loom, shuttle))))]
mod cost;
#[cfg(all(test, loom))]
#[path = "../models/entry.rs"]
mod model;
#[cfg(all(test, not(any(loom, shuttle))))]
mod stress;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

#[cfg(loom)]
pub(crate) use bytes::{copy_racing, copy_still};
#[cfg(not(loom))]
pub(crate) use copy::{copy_racing, copy_still};
pub(crate) use count::CountWord;
pub(crate) use entry::{Flags, Frame, Global, Identity, MAPPING_NONE, MAPPINGS_END, Stamp};
#[cfg(feature = "map")]
pub(crate) use give_back::give_back;
#[cfg(feature = "map")]
pub(crate) use hollow::TAKEN_BACK_MIN;
pub(crate) use mobility::Mobility;
pub(crate) use predict::predicted;
pub(crate) use prefetch::prefetch;
pub(crate) use run_map::RunMap;
pub(crate) use units::{FrameNumber, Order, PAGE_BYTES, PAGE_SHIFT};
pub(crate) use window::Window;

use std::ops::Range;
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::base::sync::{AtomicU32, Mutex, Ordering};
use arena::Arena;
use buddy::{Ground, Lists};
use mobility::RunKinds;
use table::Table;

/// The arena, its table and its allocator: one budget's worth of memory. The table covers exactly
/// the frames of the arena, itself included, and lives in its first frames, which are never handed
/// out. Nothing is unmapped and no entry changes its type before the drop: so an address or an
/// entry found by *any* frame number below `frames()` may be read at any time.
#[derive(Debug)]
pub(crate) struct Frames {
    table: Table,
    runs: RunKinds,
    lists: Mutex<Lists>,
    /// Copies of numbers of `lists`, to be read without the mutex.
    free: AtomicU32,
    free_hollow: AtomicU32,
    #[cfg(loom)]
    bytes: std::sync::Arc<bytes::ArenaWords>,
    /// The last field: dropped after those that point into it.
    arena: Arena,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameStats {
    pub(crate) total_frames: u32,
    pub(crate) table_frames: u32,
    pub(crate) free_frames: u32,
    pub(crate) free_hollow: u32,
    /// In the run that is being emptied: neither free nor in use.
    pub(crate) held_frames: u32,
    #[cfg(any(test, feature = "testing"))]
    pub(crate) free_blocks: [u32; Order::COUNT],
}

const FOR_ALL: [Mobility; 2] = [Mobility::Movable, Mobility::Unmovable];

impl Frames {
    /// Reserves `budget_bytes`, rounded down to whole frames, of which all but the table's are
    /// free. Cost: touches the table. Error: the system refuses the address space.
    pub(crate) fn open(budget_bytes: u64) -> Result<Self, Errno> {
        let arena = Arena::reserve(budget_bytes)?;
        let frames = arena.frames();
        let table_frames = Table::frames_taken(frames);
        assert!(0 < table_frames && table_frames < frames);
        // SAFETY: the reservation is fresh; `frames_taken` frames hold that many entries; the arena
        // is dropped after the table; the allocator never hands out the table's frames.
        let table = unsafe { Table::place(arena.base(), frames) };
        let runs = RunKinds::new(frames, table_frames);
        let lists = Lists::new(Ground { table: &table, runs: &runs }, table_frames);
        Ok(Frames {
            table,
            runs,
            free: AtomicU32::new(lists.free_frames),
            free_hollow: AtomicU32::new(0),
            lists: Mutex::new(lists),
            #[cfg(loom)]
            bytes: bytes::ArenaWords::of(arena.base(), frames),
            arena,
        })
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        u64::from(self.runs.table_frames()) << PAGE_SHIFT
    }

    /// To be used under the policy's lock.
    pub(crate) fn ghosts(&self) -> pinfold_policy::Ghosts<'_> {
        self.table.ghosts()
    }

    pub(crate) fn frames(&self) -> u32 {
        self.arena.frames()
    }

    pub(crate) fn huge_pages_advised(&self) -> bool {
        self.arena.huge_pages_advised()
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.arena.base()
    }

    /// Cost: one compare. Panics if the arena has no such frame.
    #[inline]
    pub(crate) fn frame(&self, frame: FrameNumber) -> &Frame {
        self.table.frame(frame)
    }

    #[inline]
    pub(crate) fn try_frame(&self, frame: FrameNumber) -> Option<&Frame> {
        self.table.try_frame(frame)
    }

    /// Panics if it is not one of this table's.
    pub(crate) fn number(&self, entry: &Frame) -> FrameNumber {
        self.table.number(entry)
    }

    /// Where the bytes of `frame` are. Cost and panics: as of [`frame`](Self::frame).
    #[inline]
    pub(crate) fn address(&self, frame: FrameNumber) -> *mut u8 {
        self.arena.address(frame)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Lists, Ground<'_>) -> T) -> T {
        let mut lists = self.lists.lock();
        let on = Ground { table: &self.table, runs: &self.runs };
        let done = change(&mut lists, on);
        // A block freed twice, or one that overlaps another, adds up to more frames than there are.
        let managed = self.frames() - self.runs.table_frames();
        let known = lists.free_frames + lists.free_hollow + lists.held_frames();
        assert!(known <= managed, "{known} frames are free of {managed} that there are");
        // Relaxed, both: pair with nothing; stores are in the mutex's order.
        self.free.store(lists.free_frames, Ordering::Relaxed);
        self.free_hollow.store(lists.free_hollow, Ordering::Relaxed);
        done
    }

    /// Takes a folio of exactly `order`, from a movable run if one has it, as
    /// [`Frame::hand_out`] leaves it. Cost: one mutex, and a split for each order that is missing.
    #[must_use = "the folio would be lost to the budget"]
    pub(crate) fn alloc(&self, order: Order) -> Option<FrameNumber> {
        let head =
            self.change(|lists, on| FOR_ALL.iter().find_map(|&kind| lists.take(on, order, kind)))?;
        Some(self.hand_out(head, order))
    }

    #[must_use = "the folio would be lost to the budget"]
    pub(crate) fn alloc_at_most(&self, order: Order) -> Option<(FrameNumber, Order)> {
        let (head, order) = self.change(|lists, on| lists.take_at_most(on, order, &FOR_ALL))?;
        Some((self.hand_out(head, order), order))
    }

    /// Takes a folio from a run of that kind. An unmovable one is none of [`Self::for_nodes`].
    #[must_use = "the folio would be lost to the budget"]
    pub(crate) fn alloc_of(&self, order: Order, kind: Mobility) -> Option<FrameNumber> {
        let head = self.change(|lists, on| match kind {
            Mobility::Unmovable => lists.take_to_pin(on, order),
            kind => lists.take(on, order, kind),
        })?;
        Some(self.hand_out(head, order))
    }

    /// As `alloc`, but hollow if `old` is, whose folio moves to it.
    #[must_use = "the folio would be lost to the budget"]
    pub(crate) fn alloc_to_move(&self, old: &Frame, order: Order) -> Option<FrameNumber> {
        if !old.is_hollow() {
            return self.alloc(order);
        }
        let head = self.change(|lists, on| lists.take(on, order, Mobility::Hollow))?;
        self.frame(head).hand_out(order);
        self.frame(head).set_flags(Flags::HOLLOW);
        Some(head)
    }

    /// Takes the lowest free one of these frames of an unmovable run.
    #[must_use = "the frame would be lost to the budget"]
    pub(crate) fn alloc_lowest(&self, frames: Range<u32>) -> Option<FrameNumber> {
        let head = self.change(|lists, on| lists.take_lowest(on, frames))?;
        Some(self.hand_out(head, Order::MIN))
    }

    /// Takes a folio as `alloc_at_most` does, and gives its memory back to the system: the caller
    /// has other memory in its place. Cost: two mutexes and a madvise(2).
    #[must_use = "the folio would be lost to the budget"]
    pub(crate) fn alloc_empty(&self, wish: Order) -> Option<(FrameNumber, Order)> {
        let (head, order) = self.change(|lists, on| lists.take_at_most(on, wish, &FOR_ALL))?;
        // SAFETY: the folio is on no list, and late readers notice by the version.
        if unsafe { self.arena.give_back(head, order) }.is_err() {
            self.free(head, order);
            return None;
        }
        self.frame(head).hand_out(order); // and nothing of it is touched
        Some((head, order))
    }

    fn hand_out(&self, head: FrameNumber, order: Order) -> FrameNumber {
        if order == Order::MAX {
            self.arena.allow_huge(head);
        }
        self.arena.first_touch(head);
        self.frame(head).hand_out(order);
        head
    }

    /// Gives back the 2^order frames from `head` on: a folio, a part of one that was split, or
    /// several that form one block. Only the caller can reach it: it froze the count, or its `put`
    /// was the last; the folio is out of every index and off every queue; its version is odd.
    ///
    /// Panics if that is not so; if the frames are the table's, unaligned, beyond the arena, or free
    /// already (inside a larger free block: in debug builds).
    pub(crate) fn free(&self, head: FrameNumber, order: Order) {
        assert!(head.is_aligned(order), "{head:?} is freed with {order:?}, but is not aligned");
        let end = u64::from(head.0) + u64::from(order.frames());
        let inside = self.runs.table_frames() <= head.0 && end <= u64::from(self.frames());
        assert!(inside, "{head:?} with {order:?} is freed, but is not all of it the arena's");
        self.frame(head).assert_freeable(head);
        if self.frame(head).is_hollow() {
            // Who finds the flag under the mutex knows that the folio is hollow, and not free yet.
            self.frame(head).clear_flags(Flags::HOLLOW);
        }
        self.change(|lists, on| lists.give(on, head, order));
    }

    /// Cuts the folio at `head`, which only the caller has, down to `pages` pages, as one or more
    /// folios. `None`: a late reader has a reference for a moment, and then frees all of it.
    #[must_use = "the folios would be lost to the budget"]
    pub(crate) fn cut(&self, head: FrameNumber, pages: u32) -> Option<Vec<FrameNumber>> {
        let end = head.after(self.frame(head).order().frames());
        if !self.frame(head).count.put(1) {
            return None;
        }
        let mut kept = Vec::new();
        let mut at = head;
        // Ends: each turn advances by a folio, up to the end.
        while at < end {
            let keep = at.0 - head.0 < pages;
            let until = if keep { head.after(pages) } else { end };
            let order = Order::of_block_at(at.0.into(), until.0.into());
            if keep {
                self.frame(at).hand_out(order);
                kept.push(at);
            } else {
                self.free(at, order);
            }
            at = at.after(order.frames());
        }
        Some(kept)
    }

    /// Exact at some moment during the call. Cost: one load.
    pub(crate) fn free_frames(&self) -> u32 {
        // Relaxed: a number to decide by; see `change`.
        self.free.load(Ordering::Relaxed)
    }

    pub(crate) fn stats(&self) -> FrameStats {
        let lists = self.lists.lock();
        FrameStats {
            total_frames: self.frames(),
            table_frames: self.runs.table_frames(),
            free_frames: lists.free_frames,
            free_hollow: lists.free_hollow,
            held_frames: lists.held_frames(),
            #[cfg(any(test, feature = "testing"))]
            free_blocks: std::array::from_fn(|order| {
                let on = Ground { table: &self.table, runs: &self.runs };
                FOR_ALL.iter().map(|&kind| lists.blocks(on, kind, Order(order as u8))).sum()
            }),
        }
    }

    pub(crate) fn has_free(&self, order: Order) -> bool {
        let lists = self.lists.lock();
        FOR_ALL.iter().any(|&kind| lists.smallest(kind, order).is_some())
    }

    /// Which frames of the run at `run` are free at this moment. Cost: the mutex, held while 512
    /// entries are walked. Panics if no run begins there.
    pub(crate) fn free_in(&self, run: FrameNumber) -> RunMap {
        assert!(run.is_aligned(Order::MAX) && run.0 < self.frames(), "{run:?} starts no run");
        let _lists = self.lists.lock();
        buddy::free_in(&self.table, run)
    }

    /// Makes the movable run with the largest free block unmovable, if that is at least of `order`.
    /// Its folios stay until their frames are needed.
    pub(crate) fn claim_run(&self, order: Order) -> Option<FrameNumber> {
        self.change(|lists, on| lists.claim_any(on, order))
    }

    /// Makes the run that `frame` lies in unmovable, if it is movable.
    pub(crate) fn claim_run_of(&self, frame: FrameNumber) {
        self.change(|lists, on| {
            if on.runs.kind(frame) == Mobility::Movable {
                lists.claim(on, frame.align_down(Order::MAX));
            }
        });
    }

    pub(crate) fn for_nodes(&self) -> Range<u32> {
        self.runs.for_nodes()
    }

    /// Other frames of unmovable runs, a run each; first of runs that are never whole.
    pub(crate) fn unmovable(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.runs.unmovable()
    }

    pub(crate) fn is_hollow(&self, frame: FrameNumber) -> bool {
        self.runs.is_hollow(frame)
    }

    /// Whether `frame` lies in a movable or a hollow run, where nothing smaller than the run may be
    /// pinned. `mobility` says when that is valid without the mutex.
    #[inline]
    pub(crate) fn is_movable(&self, frame: FrameNumber) -> bool {
        self.runs.is_movable(frame)
    }

    #[cfg(all(test, loom))]
    pub(crate) fn set_splinter(&self, frame: FrameNumber) {
        self.runs.set_splinter(frame);
    }

    /// The heads of the aligned 2 MiB runs in which every frame can be data.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn whole_runs(&self) -> impl DoubleEndedIterator<Item = FrameNumber> + use<> {
        self.runs.whole()
    }

    pub(crate) fn whole_run(&self, nth: u32) -> Option<FrameNumber> {
        self.runs.nth_whole(nth)
    }

    /// Takes all free frames of one of `whole_runs` off the free lists, so that the run can be
    /// emptied. Frames that are freed in it later are held, too. `None` if a run is held already.
    #[must_use = "dropping it gives the frames back at once"]
    pub(crate) fn take_free_in(&self, run: FrameNumber) -> Option<HeldRun<'_>> {
        let whole = self.runs.is_whole(run);
        assert!(whole, "{run:?} does not start a 2 MiB run in which all frames can be data");
        // Not `then_some`: that would make a `HeldRun` to throw away, whose drop ends the hold.
        self.change(|lists, on| lists.hold(on, run)).then(|| HeldRun { frames: self, run })
    }
}

/// A run that is being emptied: its free frames belong to the holder of this, and are on no free
/// list. What is freed in it becomes held, too. Dropping this frees it.
#[derive(Debug)]
pub(crate) struct HeldRun<'a> {
    frames: &'a Frames,
    run: FrameNumber,
}

impl HeldRun<'_> {
    pub(crate) fn held(&self) -> RunMap {
        self.frames.lists.lock().held_map(self.run)
    }
}

impl Drop for HeldRun<'_> {
    fn drop(&mut self) {
        self.frames.change(|lists, on| lists.release_held(on, self.run));
    }
}
