//! The arena, as a handle keeps it for reads that hold nothing, where `Frames` would take a load.

#[cfg(not(loom))]
use std::ptr::NonNull;

use super::{Frame, FrameNumber, Frames};
#[cfg(not(loom))]
use super::{PAGE_SHIFT, table::entry_at};
use crate::base::mutant;

#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Window {
    base: NonNull<u8>,
    frames: u32,
    /// The longest read that is tried without a reference: a hit needs it in the same cache line.
    pub(crate) short_max_bytes: u32,
}

// SAFETY: what it leads to are entries, which are made of atomics, and addresses.
#[cfg(not(loom))]
unsafe impl Send for Window {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Sync for Window {}

#[cfg(not(loom))]
impl Window {
    /// # Safety
    /// It is used only as long as `frames` lives.
    pub(crate) unsafe fn of(frames: &Frames, short_max_bytes: u32) -> Self {
        Window { base: frames.base(), frames: frames.frames(), short_max_bytes }
    }

    #[inline(always)]
    fn frames(&self) -> u32 {
        self.frames
    }

    /// The entry of `frame` and the address of its bytes.
    ///
    /// # Safety
    /// The arena has that frame.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, frame: FrameNumber) -> (&Frame, *mut u8) {
        mutant::pause();
        debug_assert!(frame.0 < self.frames, "{frame:?} of {}", self.frames);
        // SAFETY: the table has an entry for each frame of the arena, and is the first thing in it.
        let entry = unsafe { self.base.cast::<Frame>().add(entry_at(frame.0)) };
        // SAFETY: as above, and it lives as long as the window is used.
        let entry = unsafe { entry.as_ref() };
        (entry, self.base.as_ptr().wrapping_add((frame.0 as usize) << PAGE_SHIFT))
    }

    /// The frame whose first byte is at `from`, as [`Self::get`] gave it.
    #[inline(always)]
    pub(crate) fn frame_of(&self, from: *mut u8) -> FrameNumber {
        FrameNumber(((from.addr() - self.base.addr().get()) >> PAGE_SHIFT) as u32)
    }
}

/// For the checker, whose entries are not in the arena.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Window {
    all: std::ptr::NonNull<Frames>,
    pub(crate) short_max_bytes: u32,
}

// SAFETY: it leads to `Frames`, which can be shared.
#[cfg(loom)]
unsafe impl Send for Window {}
// SAFETY: as above.
#[cfg(loom)]
unsafe impl Sync for Window {}

#[cfg(loom)]
impl Window {
    #[allow(clippy::missing_safety_doc, reason = "as the real one")]
    pub(crate) unsafe fn of(frames: &Frames, short_max_bytes: u32) -> Self {
        Window { all: frames.into(), short_max_bytes }
    }

    fn frames(&self) -> u32 {
        // SAFETY: the promise made to `of`.
        unsafe { self.all.as_ref() }.frames()
    }

    #[allow(clippy::missing_safety_doc, reason = "as the real one")]
    pub(crate) unsafe fn get(&self, frame: FrameNumber) -> (&Frame, *mut u8) {
        mutant::pause();
        // SAFETY: the promise made to `of`.
        let frames = unsafe { self.all.as_ref() };
        (frames.frame(frame), frames.address(frame))
    }

    pub(crate) fn frame_of(&self, from: *mut u8) -> FrameNumber {
        // SAFETY: the promise made to `of`.
        let first = unsafe { self.all.as_ref() }.address(FrameNumber(0));
        FrameNumber(((from.addr() - first.addr()) >> super::PAGE_SHIFT) as u32)
    }
}

impl Window {
    /// [`get`](Self::get), if the arena has the frame. Cost: one comparison.
    #[inline(always)]
    pub(crate) fn try_both(&self, frame: FrameNumber) -> Option<(&Frame, *mut u8)> {
        // SAFETY: checked before.
        (frame.0 < self.frames()).then(|| unsafe { self.get(frame) })
    }

    /// [`get`](Self::get) of frame 0 if the arena has no such frame: that is the table's own, whose
    /// version is odd for ever, so it is no folio.
    #[inline(always)]
    pub(crate) fn both(&self, frame: FrameNumber) -> (&Frame, *mut u8) {
        // SAFETY: checked.
        unsafe { self.get(self.checked(frame)) }
    }

    /// 0 for a frame that the arena has not; it always has that.
    #[inline(always)]
    pub(crate) fn checked(&self, frame: FrameNumber) -> FrameNumber {
        if frame.0 < self.frames() { frame } else { FrameNumber(0) }
    }
}
