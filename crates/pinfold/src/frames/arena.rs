//! The arena: one private, anonymous mapping. It starts at a multiple of 2 MiB, so that a folio of
//! the largest order is one huge page. Nothing is unmapped, remapped or protected before the drop:
//! any address inside it can be read, even after its folio was freed. Runs of 2 MiB can be given
//! back to the system: a late reader then reads zeros.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::base::mutant::{self, Mutant};
use crate::base::sync::locks::Mutex;

use super::give_back::give_back;
use super::run_map::RunSet;
use super::units::{
    BUDGET_MAX_BYTES, BUDGET_MIN_BYTES, FrameNumber, Order, PAGE_BYTES, PAGE_SHIFT,
};

/// One huge page, and one folio of the largest order.
const ALIGN_BYTES: usize = Order::MAX.bytes();

/// `base .. base + frames * PAGE_BYTES` is mapped, readable, writable, and this struct's to unmap.
#[derive(Debug)]
pub(super) struct Arena {
    base: NonNull<u8>,
    frames: u32,
    huge_pages_advised: bool,
    /// Huge pages that have been used. Threads that touch one at the same moment for the first time
    /// are each charged a whole one for a moment: 32 threads can exceed the budget by 64 MiB. So
    /// the first one that allocates frames in it touches it, and the others wait.
    touched: RunSet,
    /// Each is for every [`TOUCHING`]th huge page; no protocol depends on them.
    touching: [Mutex<()>; TOUCHING],
    forbidden: RunSet,
}

/// Huge pages next to each other that can be touched at the same time.
const TOUCHING: usize = 32;

/// The most runs in which huge pages are forbidden: each can take two of a process's 65530
/// mappings.
#[cfg(feature = "map")]
const FORBIDDEN_MAX: u32 = 8192;

// SAFETY: an address and a length that never change; only raw pointers are handed out.
unsafe impl Send for Arena {}
// SAFETY: as above; no method changes anything.
unsafe impl Sync for Arena {}

impl Arena {
    /// Rounded down to whole frames. Panics unless there can be so many.
    pub(super) fn reserve(budget_bytes: u64) -> Result<Self, Errno> {
        assert!((BUDGET_MIN_BYTES..=BUDGET_MAX_BYTES).contains(&budget_bytes), "{budget_bytes}");
        let frames = (budget_bytes >> PAGE_SHIFT) as u32;
        let bytes = frames as usize * PAGE_BYTES;
        let base = map_aligned(bytes, rustix::param::page_size())?;
        // SAFETY: of the fresh mapping, the advice changes how it is backed, not what it holds.
        let advised = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Ok(Arena {
            base,
            frames,
            huge_pages_advised: advised.is_ok(),
            touched: RunSet::new(frames),
            touching: std::array::from_fn(|_| Mutex::new(())),
            forbidden: RunSet::new(frames),
        })
    }

    /// For the thread that has just allocated `frame`: faults in its huge page, if that has not
    /// been used yet. Cost: one load; for the first frame of each 2 MiB, a page fault.
    #[inline]
    pub(super) fn first_touch(&self, frame: FrameNumber) {
        // A thread that sees the old value takes the mutex.
        if !self.touched.contains(frame) && self.huge_pages_advised {
            self.touch(frame);
        }
    }

    fn touching(&self, frame: FrameNumber) -> &Mutex<()> {
        let in_turn = mutant::on(Mutant::TouchesInTurn);
        let huge_page = if in_turn { 0 } else { frame.0 / Order::MAX.frames() };
        &self.touching[huge_page as usize % TOUCHING]
    }

    #[cold]
    fn touch(&self, frame: FrameNumber) {
        let _touching = self.touching(frame).lock();
        if !self.touched.contains(frame) {
            // SAFETY: the frame is inside the arena, and the caller's alone.
            let byte = unsafe { AtomicU8::from_ptr(self.address(frame)) };
            // Relaxed: the value means nothing.
            byte.store(0, Ordering::Relaxed);
            self.touched.set(frame, true);
        }
    }

    /// Gives the memory of a folio back to the system, until it is touched again. Of a part of a
    /// huge page, the system may keep it until memory is short.
    ///
    /// # Safety
    /// All frames of the folio are the caller's alone, and their bytes are of no use.
    pub(super) unsafe fn give_back(&self, head: FrameNumber, order: Order) -> Result<(), Errno> {
        // SAFETY: the folio is inside the arena; by the caller's promise nobody needs its bytes.
        unsafe { give_back(self.address(head), order.bytes()) }?;
        if order == Order::MAX {
            // Who allocates a frame of it next comes after, by the allocator's mutex.
            self.touched.set(head, false);
            self.allow_huge(head);
        }
        Ok(())
    }

    /// From now on each frame of `run`, which has no memory, gets its own when it is touched: a
    /// huge page would be memory for those, too, whose bytes are elsewhere.
    ///
    /// # Errors
    /// The system has no more mappings, or the arena leaves the others to the program.
    ///
    /// # Safety
    /// As [`Self::give_back`], of all of the run.
    #[cfg(feature = "map")]
    pub(super) unsafe fn forbid_huge(&self, run: FrameNumber) -> Result<(), Errno> {
        if !self.huge_pages_advised || mutant::on(Mutant::HugeBesideHollow) {
            return Ok(());
        }
        if self.forbidden.len() >= FORBIDDEN_MAX {
            return Err(Errno::NOMEM);
        }
        let at = self.address(run);
        // SAFETY: the run is inside the arena, and the advice changes how it is backed alone.
        unsafe { madvise(at.cast(), ALIGN_BYTES, Advice::LinuxNoHugepage) }?;
        // Whoever has all of the run comes after, by the allocator's mutex.
        self.forbidden.set(run, true);
        // A late reader may have brought the system's huge page of zeros.
        // SAFETY: by the caller's promise nobody needs the bytes.
        unsafe { give_back(at, ALIGN_BYTES) }
    }

    /// Ends [`Self::forbid_huge`], for who has all of `run`. Cost: one load, as a rule.
    pub(super) fn allow_huge(&self, run: FrameNumber) {
        let at = self.address(run).cast();
        // SAFETY: as there.
        let allow = || unsafe { madvise(at, ALIGN_BYTES, Advice::LinuxHugepage) };
        if self.forbidden.contains(run) && allow().is_ok() {
            self.forbidden.set(run, false);
        }
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    pub(super) fn huge_pages_advised(&self) -> bool {
        self.huge_pages_advised
    }

    #[inline]
    pub(super) fn address(&self, frame: FrameNumber) -> *mut u8 {
        match self.try_address(frame) {
            Some(address) => address,
            None => panic!("{frame:?} is outside of the arena's {} frames", self.frames),
        }
    }

    #[inline]
    pub(super) fn try_address(&self, frame: FrameNumber) -> Option<*mut u8> {
        if frame.0 >= self.frames {
            return None;
        }
        let offset = (frame.0 as usize) << PAGE_SHIFT;
        // SAFETY: the frame is one of the arena's, so the sum stays inside of the one mapping.
        Some(unsafe { self.base.as_ptr().add(offset) })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let bytes = self.frames as usize * PAGE_BYTES;
        // SAFETY: mapped by `reserve`; every use of an address in it borrows from its owner.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok(), "the arena's own range is valid to unmap: {unmapped:?}");
    }
}

/// Maps at least `bytes` bytes (a multiple of a frame) from a multiple of [`ALIGN_BYTES`] on, by
/// asking for that much more and trimming both ends.
fn map_aligned(bytes: usize, page_bytes: usize) -> Result<NonNull<u8>, Errno> {
    debug_assert!(bytes > 0 && bytes.is_multiple_of(PAGE_BYTES));
    let asked = bytes.next_multiple_of(page_bytes) + ALIGN_BYTES;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the system's choice replaces nothing.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), asked, protection, flags) }?;
    let start = start.cast::<u8>();

    let kept = kept(start.addr(), bytes, page_bytes);
    let (before, after) = (0..kept.start - start.addr(), kept.end - start.addr()..asked);
    // SAFETY: `kept` lies in the mapping, which is longer by ALIGN_BYTES.
    let base = unsafe { start.add(before.end) };
    for trim in [before, after] {
        if !trim.is_empty() {
            // SAFETY: the range lies in the mapping made above, outside of what is kept. If the
            // system is out of mappings to split, all that is lost is address space.
            let trimmed = unsafe { munmap(start.wrapping_add(trim.start).cast(), trim.len()) };
            debug_assert!(trimmed.is_ok(), "both ends of a fresh mapping can go: {trimmed:?}");
        }
    }
    Ok(NonNull::new(base).expect("a mapping never starts at address 0"))
}

/// Which addresses of a mapping at `start` are kept. The system unmaps only whole pages of its own.
fn kept(start: usize, bytes: usize, page_bytes: usize) -> Range<usize> {
    let base = start.next_multiple_of(ALIGN_BYTES);
    base..base + bytes.next_multiple_of(page_bytes)
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::cast_ptr_alignment, reason = "a frame starts at a multiple of a page")]
mod tests {
    use super::*;

    #[test]
    fn starts_at_a_huge_page_and_has_exactly_the_budget() {
        for budget in [BUDGET_MIN_BYTES, (4 << 20) + 8191, (16 << 20) + 4096] {
            let arena = Arena::reserve(budget).unwrap();
            assert!(arena.base().as_ptr().addr().is_multiple_of(ALIGN_BYTES));
            assert_eq!(u64::from(arena.frames()), budget / 4096, "budget {budget}");
        }
    }

    /// As a system sees it whose pages are larger than a frame: 16 KiB and 64 KiB on aarch64.
    #[test]
    fn both_ends_that_are_trimmed_are_the_systems_pages() {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            for bytes in [BUDGET_MIN_BYTES as usize, (4 << 20) + 4096, (5 << 20) - 4096] {
                for start in [ALIGN_BYTES, ALIGN_BYTES + page_bytes, 2 * ALIGN_BYTES - page_bytes] {
                    let kept = kept(start, bytes, page_bytes);
                    assert!(kept.start.is_multiple_of(ALIGN_BYTES), "{kept:?}");
                    assert!(kept.end.is_multiple_of(page_bytes), "{kept:?}, pages of {page_bytes}");
                    assert!((bytes..bytes + page_bytes).contains(&kept.len()), "{kept:?}");
                    let mapped = start..start + bytes.next_multiple_of(page_bytes) + ALIGN_BYTES;
                    assert!(mapped.start <= kept.start && kept.end <= mapped.end, "{kept:?}");
                }
                let base = map_aligned(bytes, page_bytes).unwrap().as_ptr();
                // SAFETY: the last byte of a fresh mapping of that length, used only here.
                unsafe { base.wrapping_add(bytes - 1).write(7) };
                // SAFETY: the same mapping, to its end.
                let unmapped = unsafe { munmap(base.cast(), bytes.next_multiple_of(page_bytes)) };
                assert!(unmapped.is_ok(), "{unmapped:?}");
            }
        }
    }

    #[test]
    fn every_frame_is_readable_writable_and_its_own() {
        let arena = Arena::reserve(5 << 20).unwrap();
        for n in 0..arena.frames() {
            let word = arena.address(FrameNumber(n)).cast::<u32>();
            // SAFETY: the frame is the arena's, aligned, and no other thread uses this arena.
            unsafe { word.write(n + 1) };
        }
        for n in 0..arena.frames() {
            let word = arena.address(FrameNumber(n)).cast::<u32>();
            // SAFETY: as above.
            assert_eq!(unsafe { word.read() }, n + 1);
        }
    }

    #[test]
    fn a_run_that_is_given_back_takes_no_memory_until_it_is_touched() {
        let arena = Arena::reserve(300 << 20).unwrap();
        let run = FrameNumber(512);
        let resident = || {
            let mut pages = vec![0u8; 512];
            let at = arena.address(run).cast();
            // SAFETY: the range is the arena's, and the call writes one byte for each page.
            assert_eq!(unsafe { libc::mincore(at, 512 * PAGE_BYTES, pages.as_mut_ptr()) }, 0);
            pages.iter().filter(|&&page| page & 1 == 1).count()
        };
        arena.first_touch(run);
        // SAFETY: the arena is this test's alone.
        unsafe { std::ptr::write_bytes(arena.address(run), 7, 512 * PAGE_BYTES) };
        assert_eq!(resident(), 512);
        // SAFETY: as above.
        unsafe { arena.give_back(run, Order::MAX) }.unwrap();
        assert_eq!(resident(), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { arena.address(run).read() }, 0, "what a late reader reads");
        arena.first_touch(run);
        assert!(resident() > 0 || !arena.huge_pages_advised());
    }

    /// Each huge page is touched once, by the first frame of it that is handed out, and no other
    /// is.
    #[test]
    fn a_huge_page_is_touched_when_its_first_frame_is_handed_out() {
        let arena = Arena::reserve(300 << 20).unwrap();
        let resident = |block: u32| {
            let at = arena.address(FrameNumber(block * 512));
            let mut page = 0u8;
            // SAFETY: the range is the arena's, and the call writes one byte for its one page.
            let told = unsafe { libc::mincore(at.cast(), PAGE_BYTES, &raw mut page) };
            assert_eq!(told, 0);
            page & 1 == 1
        };
        for block in [0, 63, 64, 149] {
            assert!(!resident(block), "block {block} before");
            arena.first_touch(FrameNumber(block * 512));
            assert_eq!(resident(block), arena.huge_pages_advised(), "block {block} after");
            assert!(!resident(block ^ 1), "its neighbour");
            // SAFETY: the arena is this test's alone.
            unsafe { arena.address(FrameNumber(block * 512)).write(7) };
            arena.first_touch(FrameNumber(block * 512));
            // SAFETY: as above.
            let byte = unsafe { arena.address(FrameNumber(block * 512)).read() };
            assert!(byte == 7 || !arena.huge_pages_advised(), "touched twice");
        }
    }

    /// Whether one huge page can be touched while the one before it is being touched.
    fn touches_side_by_side() -> bool {
        let arena = Arena::reserve(16 << 20).unwrap();
        let lock = |frame| std::ptr::from_ref(arena.touching(FrameNumber(frame)));
        assert_eq!(lock(512), lock(1023), "one at a time in the same one");
        lock(511) != lock(512)
    }

    #[test]
    fn huge_pages_are_touched_side_by_side() {
        assert!(touches_side_by_side());
        let in_turn = mutant::with(Some(Mutant::TouchesInTurn), touches_side_by_side);
        assert!(!in_turn, "the mutant does nothing");
        let arena = Arena::reserve(16 << 20).unwrap();
        let _other = arena.touching(FrameNumber(0)).lock();
        arena.first_touch(FrameNumber(512)); // which would wait for ever
    }

    #[test]
    fn no_number_leads_outside() {
        let arena = Arena::reserve(BUDGET_MIN_BYTES).unwrap();
        let frames = arena.frames();
        assert!(arena.try_address(FrameNumber(frames - 1)).is_some());
        for n in [frames, frames + 1, 1 << 30, u32::MAX] {
            assert_eq!(arena.try_address(FrameNumber(n)), None, "frame {n}");
        }
    }

    #[test]
    #[should_panic(expected = "outside of the arena's 64 frames")]
    fn an_address_outside_panics() {
        let arena = Arena::reserve(BUDGET_MIN_BYTES).unwrap();
        let _ = arena.address(FrameNumber(64));
    }
}
