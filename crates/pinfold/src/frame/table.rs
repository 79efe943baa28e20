//! The frame table: one entry for each frame of the arena, in the arena's own first frames.
//!
//! What belongs here: putting the entries there, and finding the one of a frame. What does not:
//! what an entry says (`entry`). Called by `frame::Frames` and `buddy`.
//!
//! The entries take 64 bytes of each 4096, 1.5625 % of the budget, and their frames have entries
//! too, which say frozen and odd for ever.
//!
//! Those of 64 frames, which are a page of the table, do not lie in the frames' order: see
//! [`entry_at`].

#[cfg(not(loom))]
use std::ptr::NonNull;

use super::entry::Frame;
use super::units::{FrameNumber, Order, PAGE_BYTES};

/// The entries of all frames of an arena.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct Table {
    /// Points to as many entries as whole pages of the table have, initialised and living as long
    /// as the table.
    entries: NonNull<Frame>,
    frames: u32,
}

// SAFETY: a table is a shared slice of entries that are made of atomics alone.
#[cfg(not(loom))]
unsafe impl Send for Table {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Sync for Table {}

#[cfg(not(loom))]
impl Table {
    /// Writes a table for `frames` frames to `base` on.
    ///
    /// # Safety
    ///
    /// `base` points to [`Table::frames_taken`] frames of writable memory, aligned to a page, that
    /// stays mapped for as long as the table lives, and that nothing else uses or has used.
    pub(super) unsafe fn place(base: NonNull<u8>, frames: u32) -> Self {
        let entries = base.cast::<Frame>();
        for n in 0..frames.next_multiple_of(PAGE_ENTRIES) as usize {
            // SAFETY: entry `n` lies in the memory of the caller's contract, which is whole pages.
            let entry = unsafe { entries.add(n) };
            // SAFETY: as above; a page is aligned to more than an entry needs.
            unsafe { entry.write(Frame::new()) };
        }
        Table { entries, frames }
    }

    /// How many frames the table describes.
    #[inline]
    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    #[inline]
    fn entries(&self) -> &[Frame] {
        let entries = self.frames.next_multiple_of(PAGE_ENTRIES) as usize;
        // SAFETY: `place` initialised that many; entries change through their atomics only.
        unsafe { std::slice::from_raw_parts(self.entries.as_ptr(), entries) }
    }
}

/// For the checker, whose atomics don't live in mapped memory: the same entries on the heap.
#[cfg(loom)]
#[derive(Debug)]
pub(super) struct Table(Box<[Frame]>);

#[cfg(loom)]
impl Table {
    #[allow(clippy::missing_safety_doc, reason = "as the real one")]
    pub(super) unsafe fn place(_base: std::ptr::NonNull<u8>, frames: u32) -> Self {
        Table((0..frames).map(|_| Frame::new()).collect())
    }

    fn entries(&self) -> &[Frame] {
        &self.0
    }

    /// How many frames the table describes.
    pub(super) fn frames(&self) -> u32 {
        self.0.len() as u32
    }
}

/// Entries in a page of the table.
const PAGE_ENTRIES: u32 = (PAGE_BYTES / 64) as u32;

/// log2 of the frames after which entries begin elsewhere in their page: those of a folio, but no
/// fewer than a page describes, where a model has small folios.
const SPREAD_SHIFT: u32 = {
    let (folio, page) = (Order::MAX.get() as u32, PAGE_ENTRIES.ilog2());
    if folio > page { folio } else { page }
};

const _: () = assert!(1 << SPREAD_SHIFT >= PAGE_ENTRIES, "`entry_at` would not be its own inverse");

/// Which entry of the table is that of `frame`; the other way round, the same: it changes the bits
/// below `PAGE_ENTRIES` only, by those from `SPREAD_SHIFT` on.
///
/// Heads of folios of 2 MiB are 512 frames apart, and were their entries 512 entries apart, they
/// would all compete for one set of the processor's first cache, and for few of its second. So each
/// 512 entries begin elsewhere in their page.
#[inline(always)]
pub(super) const fn entry_at(frame: u32) -> u32 {
    frame ^ ((frame >> SPREAD_SHIFT) & (PAGE_ENTRIES - 1))
}

impl Table {
    /// Frames that the table of `frames` frames takes up, at the start of the arena.
    pub(super) fn frames_taken(frames: u32) -> u32 {
        frames.div_ceil(PAGE_ENTRIES)
    }

    #[inline]
    pub(super) fn frame(&self, frame: FrameNumber) -> &Frame {
        match self.try_frame(frame) {
            Some(entry) => entry,
            None => panic!("{frame:?} is outside of the arena's {} frames", self.frames()),
        }
    }

    pub(super) fn number(&self, entry: &Frame) -> FrameNumber {
        let entries = self.entries();
        let bytes = std::ptr::from_ref(entry).addr().wrapping_sub(entries.as_ptr().addr());
        let number = bytes / size_of::<Frame>();
        assert!(std::ptr::eq(entry, &raw const entries[number]), "an entry of another table");
        let frame = entry_at(number as u32);
        assert!(frame < self.frames(), "an entry past the last frame's");
        FrameNumber(frame)
    }

    #[inline]
    pub(super) fn try_frame(&self, frame: FrameNumber) -> Option<&Frame> {
        if frame.0 >= self.frames() {
            return None;
        }
        self.entries().get(entry_at(frame.0) as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_table_takes_a_64th() {
        assert_eq!(Table::frames_taken(64), 1);
        assert_eq!(Table::frames_taken(65), 2);
        assert_eq!(Table::frames_taken(1 << 30), 1 << 24);
    }

    #[test]
    fn entries_change_places_in_their_page_and_the_heads_of_large_folios_are_spread() {
        for frame in (0..3000).chain(u32::MAX - 3000..u32::MAX) {
            let entry = entry_at(frame);
            assert_eq!((entry_at(entry), entry / PAGE_ENTRIES), (frame, frame / PAGE_ENTRIES));
        }
        // Which line of its page each of 64 heads has: all of them.
        let lines = (0..64).map(|run| entry_at(run << SPREAD_SHIFT) % PAGE_ENTRIES);
        assert_eq!(lines.collect::<std::collections::BTreeSet<_>>().len(), 64);
    }
}
