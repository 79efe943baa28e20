//! What a guard shows: the bytes of one page, and of the folio around it.

use std::ptr::NonNull;

use crate::base::mutant::{self, Mutant};
use crate::base::sync::{Ordering, fence};
use crate::frames::{Frame, MAPPING_NONE, PAGE_BYTES, PAGE_SHIFT};

/// `frame` is the entry of the folio's head, in a table that outlives the view. `bytes .. bytes +
/// page_bytes`, at least one, lies in one page of that folio, before the file's end as it has it.
#[derive(Clone, Copy)]
pub(crate) struct PageView {
    frame: NonNull<Frame>,
    bytes: NonNull<u8>,
    pub(super) page_bytes: usize,
}

impl PageView {
    /// The page at byte `at` of a folio that begins at `from` and has `file_bytes` bytes of the
    /// file; valid while the folio's version is unchanged. `None`: it is beyond the end.
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

    /// # Safety
    /// For as long as the slice is used, the folio is neither freed nor written to.
    #[inline(always)]
    pub(crate) unsafe fn page<'a>(&self) -> &'a [u8] {
        // SAFETY: initialised and in one page of the arena; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.page_bytes) }
    }

    /// The model checker fails if a store can race with this load.
    #[cfg(all(test, loom))]
    pub(crate) fn word(&self) -> u64 {
        let mut word = [0; 8];
        // SAFETY: the word is the caller's, and a model's memory is the checker's.
        unsafe { crate::frames::copy_still(word.as_mut_ptr(), self.bytes.as_ptr(), word.len()) };
        u64::from_ne_bytes(word)
    }

    /// Only for a folio that is not freed: until then its index and order do not change.
    #[inline]
    pub(crate) fn folio_offset(&self) -> u64 {
        self.frame().identity().index << PAGE_SHIFT
    }

    /// # Safety
    /// As for [`Self::page`].
    #[inline]
    pub(crate) unsafe fn folio<'a>(&self) -> &'a [u8] {
        let frame = self.frame();
        let bytes = frame.file_bytes();
        // A folio's frames are contiguous, and its head is aligned.
        let at = self.bytes.addr().get() & (frame.order().bytes() - 1) & !(PAGE_BYTES - 1);
        let start = self.bytes.as_ptr().wrapping_sub(at);
        // SAFETY: the folio's frames begin at `start`; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }

    /// [`Self::folio`], noted as read from end to end: else a scan by folios would look like reads
    /// of single pages.
    ///
    /// # Safety
    /// As for [`Self::page`].
    #[inline]
    pub(crate) unsafe fn folio_read<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        let folio = unsafe { self.folio() };
        self.note_read(0, folio.len());
        folio
    }

    /// So many bytes of the folio from its byte `at` on are read by whoever has the guard.
    #[inline]
    pub(crate) fn note_read(&self, at: usize, bytes: usize) {
        if !self.frame().is_used_most() {
            self.frame().note_use(false, at, bytes);
        }
    }

    /// Whether the folio is in the file's index, frozen or not.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        // Acquire: as in `Frame::read_retry`: whoever has read something stored after this folio
        // left its file finds it gone.
        fence(Ordering::Acquire);
        // All that can happen to a folio with a guard is that it leaves its file.
        self.frame().identity().mapping != MAPPING_NONE || mutant::on(Mutant::CurrentBlindly)
    }
}

/// Of the page at byte `at` of a folio, if `file_bytes` of the folio are the file's.
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
