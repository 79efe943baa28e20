//! The frame table: one entry for each frame of the arena, in the arena's own first frames.
//!
//! What belongs here: putting the entries there, and finding the one of a frame. What does not:
//! what an entry says (`entry`). Called by `frame::Frames` and `buddy`.
//!
//! The entries take 64 bytes of each 4096, 1.5625 % of the budget, and their frames have entries
//! too, which say frozen and odd for ever.

#[cfg(not(loom))]
use std::ptr::NonNull;

use super::entry::Frame;
use super::units::{FrameNumber, PAGE_BYTES};

/// The entries of all frames of an arena.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct Table {
    /// Points to `frames` entries that are initialised and live as long as the table.
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
    /// stays mapped for as long as the table lives and that nobody else uses, then or before.
    pub(super) unsafe fn place(base: NonNull<u8>, frames: u32) -> Self {
        let entries = base.cast::<Frame>();
        for n in 0..frames as usize {
            // SAFETY: entry `n` lies in the memory that the caller vouches for.
            let entry = unsafe { entries.add(n) };
            // SAFETY: as above; a page is aligned to more than an entry needs.
            unsafe { entry.write(Frame::new()) };
        }
        Table { entries, frames }
    }

    #[inline]
    fn entries(&self) -> &[Frame] {
        // SAFETY: `place` initialised that many; entries change through their atomics only.
        unsafe { std::slice::from_raw_parts(self.entries.as_ptr(), self.frames as usize) }
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
}

impl Table {
    /// Frames that the table of `frames` frames takes up, at the start of the arena.
    pub(super) fn frames_taken(frames: u32) -> u32 {
        let entries_per_frame = (PAGE_BYTES / 64) as u32;
        frames.div_ceil(entries_per_frame)
    }

    /// How many frames the table describes.
    pub(super) fn frames(&self) -> u32 {
        self.entries().len() as u32
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
        FrameNumber(number as u32)
    }

    #[inline]
    pub(super) fn try_frame(&self, frame: FrameNumber) -> Option<&Frame> {
        self.entries().get(frame.0 as usize)
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
}
