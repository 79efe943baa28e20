//! `File`: a handle to a file that is read through a cache.

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use crate::borrow::{Borrowed, FolioRef, Optimistic, Reader};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::fill;
use crate::frame::{PAGE_BYTES, PAGE_SHIFT};
use crate::freeze;
use crate::handle::Handle;
use crate::mapping::{Mapping, ask_len};
use crate::pin::{self, PinnedRange, Step};
#[cfg(feature = "testing")]
use crate::reclaim;
use crate::source::Hint;

/// A file, read through a [`Cache`](crate::Cache). Any number of threads may use it at once.
///
/// A clone is a handle of its own on the same pages: it has its own run of sequential reading and
/// its own hints. When the last handle goes the pages stay cached, until their room is needed.
pub struct File {
    handle: Handle,
}

impl std::fmt::Debug for File {
    /// A line: which file, and how long it is.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("path", &self.handle.mapping.path)
            .field("len_bytes", &self.len())
            .finish_non_exhaustive()
    }
}

impl File {
    /// Takes over a handle that was counted.
    pub(crate) fn new(core: Arc<Core>, mapping: Arc<Mapping>) -> Self {
        let frames = core.frames.frames() as usize;
        let window_max =
            core.options.readahead_max_bytes.min(2 << 20).min(frames / 32 * PAGE_BYTES);
        File { handle: Handle::new(core, mapping, window_max) }
    }

    /// What its doors work on.
    #[cfg(test)]
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Copies bytes out, as pread(2) does: as many as `buf` holds, fewer at the end of the file, 0
    /// beyond it. What is not cached is read from the source first.
    ///
    /// Bytes that come from one folio are of one moment. `buf` beyond the returned count, and all of
    /// it after an error, holds unspecified bytes.
    ///
    /// Cost of a hit: up to the short-read limit a look-up and the copy, with nothing stored to
    /// shared memory; above it, or where that fails, one atomic add and one subtraction a folio.
    ///
    /// # Errors
    /// [`Error::Range`] if `offset + buf.len()` is above 2^63 - 1; [`Error::Read`] if the source fails;
    /// [`Error::Truncated`] if somebody cut the file short; [`Error::NoMemory`] if nothing can be
    /// evicted. The error of one fill goes to all who wait for it, and is not kept: the next read
    /// tries again.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.handle.read_at(buf, offset)
    }

    /// The page number `page` (bytes `page * 4096` on), in place and under a counted reference: it
    /// derefs to the page's bytes, fewer than 4096 only at the end of the file. What is not cached is
    /// read from the source first.
    ///
    /// Cost of a hit: a look-up and one atomic add on the folio's line; one subtraction when the
    /// guard is dropped. Nothing is copied.
    ///
    /// # Errors
    /// [`Error::BeyondEnd`] if the page has no byte of the file; [`Error::TooManyReferences`] if
    /// there are four million to its folio already; else as [`read_at`](Self::read_at).
    #[inline]
    pub fn get(&self, page: u64) -> Result<FolioRef<'_>> {
        self.handle.get(page)
    }

    /// The page number `page` (bytes `page * 4096` on), in place and announced in a slot of
    /// `reader`'s, which is the calling thread's: it derefs to the page's bytes, fewer than 4096 only
    /// at the end of the file. What is not cached is read from the source first.
    ///
    /// Cost of a hit: a look-up, and a store to a cache line of the thread's own; nothing shared is
    /// written to, and nothing copied. A thread has slots for eight borrows at once. With all of them
    /// in use the guard takes a counted reference, as [`get`](Self::get) does.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`Error::ForeignReader`] if the reader belongs to another cache.
    ///
    /// ```
    /// # use pinfold::{Cache, Options, source::Memory};
    /// # let cache = Cache::new(Options::new(8 << 20))?;
    /// let file = cache.attach("bytes", std::sync::Arc::new(Memory::new(vec![7; 5000])))?;
    /// let reader = cache.reader()?;
    /// let page = file.borrow(1, &reader)?;
    /// assert_eq!(page.len(), 5000 - 4096);
    /// let counted = page.upgrade()?;
    /// drop(page);
    /// drop(reader);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || assert_eq!(counted[0], 7));
    /// });
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    #[inline]
    pub fn borrow<'f, 'r>(&'f self, page: u64, reader: &'r Reader) -> Result<Borrowed<'f, 'r>> {
        self.handle.borrow(page, reader)
    }

    /// The page number `page`, without holding it: its bytes can be copied, and then it is asked
    /// whether they are to be believed, of several pages at once if need be. What is not cached is
    /// read from the source first.
    ///
    /// Cost of a hit: a look-up. Nothing is written to.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn optimistic(&self, page: u64) -> Result<Optimistic<'_>> {
        self.handle.optimistic(page)
    }

    /// Pins bytes of the file in memory, for I/O and DMA that outlive the call: they stay where they are
    /// until the [`PinnedRange`] is dropped. What is not cached is read from the source first, in
    /// folios of up to 2 MiB where the range allows it. See [`PinnedRange`] for what is promised.
    ///
    /// ```
    /// # use pinfold::{Cache, Options, source::Memory};
    /// # let cache = Cache::new(Options::new(8 << 20))?;
    /// let file = cache.attach("numbers", std::sync::Arc::new(Memory::new(vec![7; 10_000])))?;
    /// let mut pinned = file.pin(5_000..9_000)?;
    /// let bytes = pinned.extents().map(|extent| extent.len()); // for writev(2), or a ring's buffers
    /// assert_eq!(bytes.sum::<usize>(), 4_000);
    /// pinned.unpin_front(1_000)?; // so much has been sent
    /// assert_eq!(pinned.range(), 6_000..9_000);
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    ///
    /// A pinned folio is neither evicted nor moved. So a folio smaller than 2 MiB is moved before it is
    /// pinned, if it lies where it would keep 2 MiB from becoming free in one piece; its holders are
    /// waited for, half a second at most. A large folio is kept as a whole, however few of its pages
    /// are pinned.
    ///
    /// Cost, for what is cached and lies right: a look-up and one atomic addition for each folio, one
    /// atomic subtraction to give it back.
    ///
    /// # Errors
    /// [`Error::PinRange`] if the range is empty or reversed, or ends behind the file;
    /// [`Error::PinTooLarge`] if it can never fit into the budget; [`Error::PinHeld`] if a folio has to
    /// move and cannot; [`Error::TooManyPins`]; and as for [`read_at`](Self::read_at). Nothing is
    /// pinned then.
    #[track_caller]
    #[inline]
    pub fn pin(&self, range: Range<u64>) -> Result<PinnedRange> {
        pin::pin(&self.handle, range, Step::Folio, Location::caller())
    }

    /// The same page by page, with a look-up and an addition for each. Feature `testing`: for
    /// comparisons only.
    ///
    /// # Errors
    /// As for [`pin`](Self::pin).
    #[cfg(feature = "testing")]
    #[track_caller]
    #[inline]
    pub fn pin_per_page(&self, range: Range<u64>) -> Result<PinnedRange> {
        pin::pin(&self.handle, range, Step::Page, Location::caller())
    }

    /// The length in bytes, as it was when the file was last opened, or at the last
    /// [`invalidate`](Self::invalidate).
    pub fn len(&self) -> u64 {
        self.handle.mapping.len_bytes()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Says how `range` (bytes) will be used. `Sequential` and `Random` hold for this handle, whatever
    /// the range, until the next of them; `WillNeed` starts to read the range, as much of it as a
    /// quarter of the budget holds; `DontNeed` drops it. The source is told as well.
    ///
    /// # Errors
    /// [`Error::Range`] if the range ends before it begins or above 2^63 - 1; [`Error::Forked`].
    pub fn advise(&self, range: Range<u64>, hint: Hint) -> Result<()> {
        let pages = Self::pages(&range)?;
        self.handle.core.check_owner()?;
        match hint {
            Hint::Sequential | Hint::Random => self.handle.stream.advise(hint),
            Hint::WillNeed => fill::will_need(&self.handle, pages),
            Hint::DontNeed => {
                freeze::drop_clean(&self.handle.core, &self.handle.mapping, pages);
            }
        }
        // Nothing depends on the source's taking a hint.
        let _ = self.handle.mapping.backing.advise(range, hint);
        Ok(())
    }

    /// Drops every cached folio that has a byte of `range`, also those that others are reading from:
    /// they go on with the bytes they have, and whoever reads next gets them from the source anew.
    /// Asks the source for its length again. Gives the number of bytes dropped.
    ///
    /// # Errors
    /// [`Error::Range`] as for [`advise`](Self::advise); [`Error::Length`] if the source cannot tell
    /// its length, [`Error::TooLong`] if that is above 2^63 - 4096: nothing was dropped then.
    pub fn invalidate(&self, range: Range<u64>) -> Result<u64> {
        let pages = Self::pages(&range)?;
        self.refresh_len()?;
        Ok(freeze::drop_clean(&self.handle.core, &self.handle.mapping, pages))
    }

    /// Asks the source for its length, and acts on it if it has changed.
    pub(crate) fn refresh_len(&self) -> Result<()> {
        self.handle.core.check_owner()?;
        let mapping = &self.handle.mapping;
        // Across both: of two answers, the later must be the one that stays.
        let _resizing = mapping.resizing.lock();
        let len_bytes = ask_len(&mapping.backing, &mapping.path)?;
        freeze::resize(&self.handle.core, mapping, len_bytes);
        Ok(())
    }

    /// Splits the folios of `range` into single pages where nobody holds them; gives how many were
    /// split. Feature `testing`.
    #[cfg(feature = "testing")]
    pub fn split(&self, range: Range<u64>) -> u64 {
        let here = self.handle.core.owner.is_here();
        let pages = Self::pages(&range).ok().filter(|_| here).unwrap_or(0..0);
        reclaim::split_range(&self.handle.core, &self.handle.mapping, pages)
    }

    /// Moves the folios of `range` to other frames where nobody holds them; gives how many were
    /// moved. Feature `testing`.
    #[cfg(feature = "testing")]
    pub fn migrate(&self, range: Range<u64>) -> u64 {
        let here = self.handle.core.owner.is_here();
        let pages = Self::pages(&range).ok().filter(|_| here).unwrap_or(0..0);
        reclaim::migrate_range(&self.handle.core, &self.handle.mapping, pages)
    }

    /// The pages that have a byte of `range`, up to the file's last.
    fn pages(range: &Range<u64>) -> Result<Range<u64>> {
        if range.start > range.end || range.end > i64::MAX as u64 {
            let bytes = range.end.saturating_sub(range.start);
            return Err(Error::Range { offset: range.start, bytes });
        }
        if range.is_empty() {
            return Ok(0..0);
        }
        Ok(range.start >> PAGE_SHIFT..range.end.div_ceil(PAGE_BYTES as u64))
    }
}

impl Clone for File {
    fn clone(&self) -> Self {
        if self.handle.core.owner.is_here() {
            self.handle.core.mappings.clone_handle(&self.handle.mapping);
        }
        File::new(self.handle.core.clone(), self.handle.mapping.clone())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.handle.core.owner.is_here() {
            return;
        }
        if self.handle.core.mappings.drop_handle(&self.handle.mapping) {
            freeze::drop_clean(&self.handle.core, &self.handle.mapping, 0..crate::index::PAGES_END);
        }
        self.handle.core.retire(&self.handle.mapping);
    }
}
