//! What a guard shows: the bytes of one page, and of the folio around it. Each kind of guard has
//! its own argument why they stay.

use std::ptr::NonNull;

use crate::base::mutant::{self, Mutant};
use crate::base::sync::{Ordering, fence};
use crate::frames::{Frame, MAPPING_NONE, PAGE_BYTES, PAGE_SHIFT};

/// One page of a folio.
///
/// # Invariants
///
/// `frame` is the entry of the folio's head, in a table that outlives the view. `page_bytes` is at
/// least 1, and `bytes .. bytes + page_bytes` lies in one page of that folio, before the end of the
/// file as the folio has it.
#[derive(Clone, Copy)]
pub(crate) struct PageView {
    frame: NonNull<Frame>,
    bytes: NonNull<u8>,
    page_bytes: usize,
}

impl PageView {
    /// The page at byte `at` of a folio that begins at the address `from` and has `file_bytes`
    /// bytes of the file; valid while the folio's version is unchanged. `None`: it is beyond the
    /// end.
    ///
    /// # Safety
    /// `from + at` is the address of a whole page of the arena, in a folio whose entry is `frame`.
    #[inline(always)]
    pub(crate) unsafe fn of(
        frame: &Frame,
        from: *mut u8,
        at: usize,
        file_bytes: usize,
    ) -> Option<Self> {
        let page_bytes = page_bytes(at, file_bytes);
        // SAFETY: the caller's promise.
        (page_bytes > 0).then(|| unsafe { PageView::at(frame, from.wrapping_add(at), page_bytes) })
    }

    /// The page at the address `bytes`; `page_bytes` of its bytes belong to the file.
    ///
    /// # Safety
    /// As for [`Self::of`]; and `page_bytes` is right.
    #[inline(always)]
    pub(crate) unsafe fn at(frame: &Frame, bytes: *mut u8, page_bytes: usize) -> Self {
        // SAFETY: the arena is not at address 0.
        let bytes = unsafe { NonNull::new_unchecked(bytes) };
        PageView { frame: frame.into(), bytes, page_bytes }
    }

    #[inline(always)]
    pub(crate) fn frame(&self) -> &Frame {
        // SAFETY: see the invariants; entries change only through their atomics.
        unsafe { self.frame.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn address(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    #[inline(always)]
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// The page's bytes.
    ///
    /// # Safety
    /// For as long as the slice is used, the folio is neither freed nor written to.
    #[inline(always)]
    pub(crate) unsafe fn page<'a>(&self) -> &'a [u8] {
        // SAFETY: initialised and in one page of the arena by the invariants; the caller guarantees
        // that no thread writes.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.page_bytes) }
    }

    /// The page's word; the model checker fails if a store can race with this load.
    #[cfg(all(test, loom))]
    pub(crate) fn word(&self) -> u64 {
        let mut word = [0; 8];
        // SAFETY: the word is the caller's, and a model's memory is the checker's.
        unsafe { crate::frames::copy_still(word.as_mut_ptr(), self.bytes.as_ptr(), word.len()) };
        u64::from_ne_bytes(word)
    }

    /// The offset in the file, in bytes, at which the folio begins.
    ///
    /// Only for a folio that is not freed: until then its index and order do not change.
    #[inline]
    pub(crate) fn folio_offset(&self) -> u64 {
        self.frame().identity().index << PAGE_SHIFT
    }

    /// All of the folio's bytes, up to the end of the file.
    ///
    /// # Safety
    /// As for [`Self::page`].
    #[inline]
    pub(crate) unsafe fn folio<'a>(&self) -> &'a [u8] {
        let frame = self.frame();
        let bytes = frame.file_bytes();
        // The page's offset in the folio: a folio's frames are contiguous, and its head is aligned.
        let at = self.bytes.addr().get() & (frame.order().bytes() - 1) & !(PAGE_BYTES - 1);
        let start = self.bytes.as_ptr().wrapping_sub(at);
        // SAFETY: the folio's `order` frames begin at `start`, as the arena and each head are
        // aligned to the order; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    /// Whether a look-up in the file finds this folio, now or as soon as a thread that has it
    /// frozen thaws it.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        // Acquire: as in `Frame::read_retry`. A thread that has read, by any load, something stored
        // after this folio left its file, finds it gone.
        fence(Ordering::Acquire);
        // A folio that has a guard is never changed, split or moved: all that can happen to it is
        // that it leaves its file.
        self.frame().identity().mapping != MAPPING_NONE || mutant::on(Mutant::CurrentBlindly)
    }
}

/// How many bytes of the page at byte `at` of a folio belong to the file, if `file_bytes` of the
/// folio do.
#[inline(always)]
pub(crate) fn page_bytes(at: usize, file_bytes: usize) -> usize {
    file_bytes.saturating_sub(at).min(PAGE_BYTES)
}

impl std::fmt::Debug for PageView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (offset, bytes) = (self.folio_offset(), self.page_bytes);
        f.debug_struct("PageView")
            .field("folio_offset", &offset)
            .field("page_bytes", &bytes)
            .finish_non_exhaustive()
    }
}
