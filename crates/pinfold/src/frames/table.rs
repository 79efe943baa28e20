//! The frame table: an entry for each frame of the arena, in the arena's first frames, in order,
//! with gaps ([`entry_at`]); then the ghosts. Of each 4096 bytes entries take 64, ghosts 8.

#[cfg(not(loom))]
use std::ptr::NonNull;

use pinfold_policy::{GhostLine, Ghosts};

use super::entry::Frame;
use super::units::{FRAMES_MAX, FrameNumber, Order, PAGE_BYTES};

#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct Table {
    /// [`entries_for`] `frames` entries, initialised and living as long as the table, then ghosts.
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
    /// # Safety
    /// `base` points to [`Table::frames_taken`] fresh frames of writable memory, which stay mapped
    /// for as long as the table lives, and are its alone.
    pub(super) unsafe fn place(base: NonNull<u8>, frames: u32) -> Self {
        let entries = base.cast::<Frame>();
        for n in 0..entries_for(frames) {
            // SAFETY: entry `n` lies in the memory of the caller's contract.
            let entry = unsafe { entries.add(n) };
            // SAFETY: as above; a page is aligned to more than an entry needs.
            unsafe { entry.write(Frame::new()) };
        }
        Table { entries, frames }
    }

    #[inline]
    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    #[inline]
    pub(super) fn try_frame(&self, frame: FrameNumber) -> Option<&Frame> {
        if frame.0 >= self.frames {
            return None;
        }
        // SAFETY: one of `entries_for(self.frames)`, as `entry_at` grows with the frame.
        let entry = unsafe { self.entries.add(entry_at(frame.0)) };
        // SAFETY: `place` initialised it; it changes through its atomics only.
        Some(unsafe { entry.as_ref() })
    }

    /// To be used under the policy's lock.
    pub(super) fn ghosts(&self) -> Ghosts<'_> {
        // SAFETY: the lines follow the entries, in the memory of `place`'s contract.
        let lines = unsafe { self.entries.add(entries_for(self.frames)) }.cast::<GhostLine>();
        // SAFETY: so many lines lie there, as long and as aligned as entries; the memory was fresh,
        // so zero, which is a line, and changes through the lines' atomics only.
        let lines =
            unsafe { std::slice::from_raw_parts(lines.as_ptr(), Ghosts::lines_for(self.frames)) };
        Ghosts::new(lines)
    }

    fn index_of(&self, entry: &Frame) -> usize {
        let bytes = std::ptr::from_ref(entry).addr().wrapping_sub(self.entries.addr().get());
        bytes / size_of::<Frame>()
    }
}

/// For the checker, whose atomics don't live in mapped memory: the same entries on the heap.
#[cfg(loom)]
#[derive(Debug)]
pub(super) struct Table {
    entries: Box<[Frame]>,
    ghosts: Box<[GhostLine]>,
    frames: u32,
}

#[cfg(loom)]
impl Table {
    #[allow(clippy::missing_safety_doc, reason = "as the real one")]
    pub(super) unsafe fn place(_base: std::ptr::NonNull<u8>, frames: u32) -> Self {
        let entries = (0..entries_for(frames)).map(|_| Frame::new()).collect();
        let ghosts = (0..Ghosts::lines_for(frames)).map(|_| GhostLine::default()).collect();
        Table { entries, ghosts, frames }
    }

    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    pub(super) fn try_frame(&self, frame: FrameNumber) -> Option<&Frame> {
        (frame.0 < self.frames).then(|| &self.entries[entry_at(frame.0)])
    }

    pub(super) fn ghosts(&self) -> Ghosts<'_> {
        Ghosts::new(&self.ghosts)
    }

    fn index_of(&self, entry: &Frame) -> usize {
        let bytes = std::ptr::from_ref(entry).addr().wrapping_sub(self.entries.as_ptr().addr());
        bytes / size_of::<Frame>()
    }
}

const PAGE_ENTRIES: usize = PAGE_BYTES / 64;

/// After so many frames (log2), the table has an unused entry.
const GAP_SHIFT: u32 = Order::MAX.get() as u32;

const _: () = assert!(FRAMES_MAX.leading_zeros() > 0, "`entry_at` would overflow");
#[cfg(not(loom))]
const _: () = assert!(size_of::<GhostLine>() == 64 && align_of::<GhostLine>() == 64);

/// Which entry of the table is that of `frame`. Heads of folios of 2 MiB are 512 frames apart; were
/// their entries 512 entries apart, they would all compete for one set of the processor's first
/// cache. So an unused entry follows each 512.
#[inline(always)]
pub(super) const fn entry_at(frame: u32) -> usize {
    // In 32 bits: in 64 the compiler multiplies both parts by 64 and adds then.
    (frame + (frame >> GAP_SHIFT)) as usize
}

/// The other way round; `None` for an unused entry.
const fn frame_at(entry: usize) -> Option<u32> {
    let stretch = (1 << GAP_SHIFT) + 1;
    if entry % stretch == stretch - 1 { None } else { Some((entry - entry / stretch) as u32) }
}

const fn entries_for(frames: u32) -> usize {
    if frames == 0 { 0 } else { entry_at(frames - 1) + 1 }
}

impl Table {
    /// Frames that the table of `frames` frames takes up, with its ghosts.
    pub(super) fn frames_taken(frames: u32) -> u32 {
        (entries_for(frames) + Ghosts::lines_for(frames)).div_ceil(PAGE_ENTRIES) as u32
    }

    #[inline]
    pub(super) fn frame(&self, frame: FrameNumber) -> &Frame {
        match self.try_frame(frame) {
            Some(entry) => entry,
            None => panic!("{frame:?} is outside of the arena's {} frames", self.frames()),
        }
    }

    pub(super) fn number(&self, entry: &Frame) -> FrameNumber {
        let found = frame_at(self.index_of(entry)).map(FrameNumber);
        let number = found.filter(|&number| {
            self.try_frame(number).is_some_and(|there| std::ptr::eq(there, entry))
        });
        number.expect("an entry of another table")
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_table_takes_little_more_than_a_64th() {
        assert_eq!(Table::frames_taken(0), 0);
        assert_eq!(Table::frames_taken(56), 1);
        assert_eq!(Table::frames_taken(57), 2);
        assert_eq!(Table::frames_taken(1 << 30), (1 << 24) + (1 << 21) + (1 << 15));
    }

    #[test]
    fn entries_follow_each_other_and_those_of_large_folios_are_spread() {
        let mut last = None;
        for frame in (0..3000).chain(FRAMES_MAX - 3000..FRAMES_MAX) {
            let entry = entry_at(frame);
            assert_eq!(frame_at(entry), Some(frame));
            assert!(last < Some(entry), "frame {frame}");
            last = Some(entry);
        }
        assert_eq!(frame_at(entry_at(512) - 1), None, "the unused entry");
        // On which of the 64 lines of a page the heads of as many folios are: on all of them.
        let lines = (0..64).map(|folio| entry_at(folio << GAP_SHIFT) % PAGE_ENTRIES);
        assert_eq!(lines.collect::<std::collections::BTreeSet<_>>().len(), 64);
    }
}
