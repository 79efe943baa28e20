//! Reading pages without holding them: copy, then ask whether it was worth anything.
//!
//! Here: stamps of pages, racing copies under them, and the question asked of several at once. Not
//! here: guards, under which bytes stay (`slot.rs`, `counted.rs`). Called by `file`.
//!
//! # Why several stamps are one moment
//!
//! Versions only grow, so a version that is the same at two looks was the same in between. If all
//! stamps are taken before the last of them is, and all are found unchanged after the last copy, then at
//! the moment when the last stamp was taken every page was what its copy says.

use super::view::View;
use crate::error::Result;
use crate::found::{AnyPage, Found};
use crate::frame::{Frame, Stamp, copy_racing};
use crate::handle::Handle;

/// A page of a file that nothing holds: copies of its bytes, and whether they can be believed.
///
/// Made by [`File::optimistic`](crate::File::optimistic). Nothing shared is written to, not even a
/// slot; any number may be kept, by any thread, for any time. The page may be evicted, moved or written
/// to at any moment; then, and also when somebody only tried to evict it, [`validate`](Self::validate)
/// is false for ever, and the page must be asked for again.
///
/// ```
/// # use pinfold::{Cache, Optimistic, Options, source::Memory};
/// # let cache = Cache::new(Options::new(8 << 20))?;
/// # let file = cache.attach("bytes", std::sync::Arc::new(Memory::new(vec![7; 9000])))?;
/// let (mut parent, mut child) = ([0; 8], [0; 8]);
/// loop {
///     let first = file.optimistic(0)?;
///     first.read(16, &mut parent);
///     // A pointer that is followed must be a right one:
///     if !first.validate() {
///         continue;
///     }
///     let second = file.optimistic(u64::from(parent[0]) % 2)?;
///     second.read(32, &mut child);
///     // Both of one moment, or both again.
///     if Optimistic::validate_all(&[first, second]) {
///         break;
///     }
/// }
/// # assert_eq!((parent, child), ([7; 8], [7; 8]));
/// # Ok::<(), pinfold::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Optimistic<'a> {
    frame: &'a Frame,
    stamp: Stamp,
    view: View,
}

// SAFETY: the view points to an entry and to bytes of the arena, which the file whose lifetime this
// has keeps mapped; the bytes are loaded by racing loads only.
unsafe impl Send for Optimistic<'_> {}
// SAFETY: as above; nothing is stored.
unsafe impl Sync for Optimistic<'_> {}

impl Handle {
    /// The page number `page`, up to date at this moment.
    #[inline]
    pub(crate) fn optimistic(&self, page: u64) -> Result<Optimistic<'_>> {
        // Ends: each further turn follows an eviction or an invalidation of this very folio.
        loop {
            if let Some(found) = self.stamped(page) {
                return Ok(found);
            }
            // Waits for the folio, or fills it; a readahead mark is met there, too.
            drop(self.get(page)?);
        }
    }

    /// The page as the index has it now, if it is up to date.
    #[inline]
    pub(crate) fn stamped(&self, page: u64) -> Option<Optimistic<'_>> {
        let Found { frame, from, stamp, at, span, .. } = self.found(page, AnyPage)?;
        // SAFETY: inside the arena, and that page's if the stamp is still valid below.
        let view = unsafe { View::of(frame, from, at as usize, span as usize) }?;
        // So that length and address are those of the folio with this stamp.
        (!frame.read_retry(stamp)).then_some(Optimistic { frame, stamp, view })
    }
}

impl Optimistic<'_> {
    /// How many bytes of the page are the file's: 4096, or fewer at its end.
    #[allow(clippy::len_without_is_empty, reason = "a page behind the end is none")]
    pub fn len(&self) -> usize {
        self.view.page_bytes()
    }

    /// Copies the bytes `from ..` of the page to `buf`: garbage, unless [`validate`](Self::validate)
    /// then says that it is not.
    ///
    /// # Panics
    /// If the range is not in the page.
    pub fn read(&self, from: usize, buf: &mut [u8]) {
        let page_bytes = self.view.page_bytes();
        let inside = from.checked_add(buf.len()).is_some_and(|end| end <= page_bytes);
        assert!(inside, "{} bytes at {from} of a page of {page_bytes}", buf.len());
        let source = self.view.address().wrapping_add(from);
        // SAFETY: inside a page of the arena, read by racing loads; `buf` is the caller's alone.
        unsafe { copy_racing(buf.as_mut_ptr(), source, buf.len()) };
    }

    /// Whether all that was read of it so far is of one moment, and still the file's.
    #[must_use = "what was read may be used only if this is true"]
    pub fn validate(&self) -> bool {
        !self.frame.read_retry(self.stamp)
    }

    /// Whether all that was read of all of `pages` so far is of one moment, and still the file's.
    #[must_use = "what was read may be used only if this is true"]
    pub fn validate_all(pages: &[Self]) -> bool {
        pages.iter().all(Self::validate)
    }
}
