//! `File`: a handle to a file that is read through a cache.
//!
//! It stands on `access/`; a file uses only those below it.
//!
//! ```text
//! completions   futures for a program with an event loop of its own
//! owned         bytes of a range that own what keeps them
//! reading       the standard library's traits, many reads by a future
//! writing       writing, and making it durable
//! testing       what tests do to a file (feature `testing`)
//! kept          a counted guard with a share of its file
//! mod           `File`
//! refresh       what other programs do to a file: pages and length follow
//! ranges        ranges of bytes as programs give them
//! ```

pub(crate) mod completions;
pub(crate) mod kept;
pub(crate) mod owned;
pub(crate) mod ranges;
pub(crate) mod reading;
pub(crate) mod refresh;
pub(crate) mod writing;

use std::fmt::Debug;
use std::ops::{Range, RangeBounds};
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::path::Path;
use std::sync::Arc;

use self::refresh::{Changed, Since};
use crate::access::borrow::{Borrowed, FolioRef, Optimistic, Reader};
use crate::access::futures::{Get, GetMany, Read};
use crate::access::many::{self, ReadAt};
use crate::access::pin::{self, PinnedRange};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::Result;
use crate::frames::PAGE_BYTES;
use crate::index::PAGES_END;
use crate::pages::core::Core;
use crate::pages::fill;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::mapping::{Closed, Mapping};
use crate::pages::outside::Outside;
use crate::source::Hint;
use crate::write;

#[cfg(feature = "testing")]
mod testing;

/// A file, read through a [`Cache`](crate::Cache). Any number of threads may use it at once.
///
/// A clone is a handle of its own to the same pages: it detects sequential reading by itself, and
/// begins without the [hints](Self::advise) of the other one. Give each sequential scan its own: of
/// more than four scans that share a handle little is read ahead.
///
/// After the last handle is dropped, the pages of a file that was [opened](crate::Cache::open) stay
/// cached until their memory is needed, but not those of a deleted file or of a block device; those
/// of a source that was [attached](crate::Cache::attach) only if it has an
/// [identity](crate::source::Source::identity). `file.invalidate(..)` before the drop forgets all.
///
/// # A file that others change
///
/// The cache looks whether the file was changed when any handle of it is
/// [opened](crate::Cache::open) or [refreshed](Self::refresh). In between, what is cached stays as
/// it was read, until it is [invalidated](Self::invalidate) or evicted; what is not cached is read
/// as it is then; and the length stays. If the file has become shorter, a read of the source that
/// meets its new end fails with [`ErrorKind::Truncated`], also of bytes before it that are read in
/// the same piece, until a [`refresh`](Self::refresh).
pub struct File {
    handle: Handle,
    /// By which it was opened, if that is not the mapping's.
    path: Option<Arc<Path>>,
    pub(crate) writes: bool,
}

// As for `Cache`.
impl UnwindSafe for File {}
impl RefUnwindSafe for File {}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("path", &self.handle.mapping.path)
            .field("len_bytes", &self.len())
            .finish_non_exhaustive()
    }
}

impl File {
    pub(crate) fn new(core: Arc<Core>, mapping: Arc<Mapping>) -> Self {
        let frames = core.frames.frames() as usize;
        let window_max =
            core.options.readahead_max_bytes.min(2 << 20).min(frames / 32 * PAGE_BYTES);
        File { handle: Handle::new(core, mapping, window_max), path: None, writes: false }
    }

    pub(crate) fn opened(core: Arc<Core>, mapping: Arc<Mapping>, path: &Path) -> Self {
        let mut file = Self::new(core, mapping);
        if path.is_relative() {
            // The working directory may change.
            file.path = std::path::absolute(path).ok().map(Arc::from);
        } else if path != file.handle.mapping.path {
            file.path = Some(Arc::from(path));
        }
        file
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Copies bytes of the file to `buf`, as pread(2) does. Returns how many: `buf.len()`, fewer at
    /// the end of the file, 0 beyond it. What is not cached is read from the source, without a time
    /// limit ([front page](crate#what-blocks)). The bytes of one folio are of one moment. `buf`
    /// beyond the returned count, and all of it after an error, is unspecified.
    ///
    /// Cost of a hit: up to the [short-read limit](crate::Options::short_read_max_bytes) a look-up
    /// and the copy, with no store to shared memory but [to note a use](crate#which-way-in); above
    /// the limit, or where the short read fails, one atomic add and one subtraction per folio.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if `offset + buf.len()` is above 2^63 - 1; [`ErrorKind::Read`] if the
    /// source fails; [`ErrorKind::Truncated`] if the file was cut short (see [`File`]);
    /// [`ErrorKind::NoMemory`] if nothing can be evicted; [`ErrorKind::Forked`]. All threads that
    /// wait for one fill get its error. The next read tries again.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.handle.read_at(buf, offset)
    }

    /// The page number `page` (bytes `page * 4096` and up), in place, under a counted reference.
    /// Derefs to the page's bytes: 4096, fewer only at the file's end. Reads what is absent.
    ///
    /// Cost of a hit: a look-up and one atomic addition on the folio's line, and one subtraction
    /// when the guard is dropped.
    ///
    /// # What guards keep
    /// A guard keeps its folio as long as it lives, even of a file that was invalidated. Guards of
    /// n pages keep at most 2n pages in memory, or a tenth of the budget, whichever is more. Large
    /// folios with guards may take a 20th of the budget. Beyond that, the first guard of a large
    /// folio takes the file's mutex, splits the folio, copies the page, and keeps that alone. If
    /// that cannot be done, it keeps the whole folio, even beyond the bound: while one of its pages
    /// is pinned or borrowed, while other threads read it all the time, while several futures that
    /// waited for it were not all polled yet, or if there is no memory for the index of its pieces.
    /// So does [`Borrowed::upgrade`](crate::Borrowed::upgrade).
    ///
    /// # Errors
    /// [`ErrorKind::BeyondEnd`] if the page has no byte of the file; [`ErrorKind::TooMany`] if its
    /// folio has four million references; otherwise as [`read_at`](Self::read_at).
    #[inline]
    pub fn get(&self, page: u64) -> Result<FolioRef<'_>> {
        self.handle.get(page)
    }

    /// As [`read_at`](Self::read_at), but the thread that polls the future waits neither for the
    /// source nor for memory ([front page](crate#futures)). The kernel never gets `buf`, which may
    /// have been filled in part. While memory is short, futures wait for it in turn.
    ///
    /// Cost of a hit: that of `read_at`, and some 20 instructions. Of a miss: the read, an
    /// allocation, and one wake-up by the thread that completes it.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at). The cause of [`ErrorKind::Read`] is
    /// [`TimedOut`](std::io::ErrorKind::TimedOut) if the source's
    /// [deadline](crate::source::Source::deadline) passed, or if all of the cache's threads were
    /// busy with other sources for too long ([`Source`](crate::source::Source) says how long).
    #[inline]
    pub fn read_at_async<'f, 'b>(
        &'f self,
        buf: &'b mut [u8],
        offset: u64,
    ) -> impl Future<Output = Result<usize>> + Send + Unpin + Debug + use<'f, 'b> {
        Read::new(&self.handle, buf, offset)
    }

    /// As [`get`](Self::get), but as a future; see [`read_at_async`](Self::read_at_async).
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`read_at_async`](Self::read_at_async).
    #[inline]
    pub fn get_async(
        &self,
        page: u64,
    ) -> impl Future<Output = Result<FolioRef<'_>>> + Send + Unpin + Debug {
        Get::new(&self.handle, page)
    }

    /// All of `pages`, in their order, as [`get_async`](Self::get_async) gets one. A page may occur
    /// more than once. The first poll starts a read for each page that is not cached, as far as
    /// memory goes: the futures of one file may have a quarter of the budget on its way, those of
    /// all files half; one future of each file may always begin.
    ///
    /// A batch of which a page is not cached needs room within these limits for all of its pages
    /// before it reads any, and keeps that room until it returns. While it waits for room, it holds
    /// no page: so any number of batches may be polled at once. A future that is not polled any
    /// more keeps its room for half a second at most once its reads have ended, if others want it;
    /// what it has brought, until it is dropped.
    ///
    /// Cost: that of as many `get_async`, and two allocations; a few more if a page is absent.
    ///
    /// # Errors
    /// As [`get_async`](Self::get_async), for the first page that fails; then all guards are
    /// dropped. [`ErrorKind::NoMemory`] as for [`get_many`](Self::get_many), and if others of the
    /// file use its share up for too long.
    pub fn get_many_async<'f>(
        &'f self,
        pages: &[u64],
    ) -> impl Future<Output = Result<Vec<FolioRef<'f>>>> + Send + Unpin + Debug + use<'f> {
        GetMany::new(&self.handle, pages)
    }

    /// The page number `page`, in place as by [`get`](Self::get), but announced in a slot of
    /// `reader`, which belongs to the calling thread.
    ///
    /// Cost of a hit: a look-up and a store to a cache line of the thread's own. Nothing shared is
    /// stored but [to note a use](crate#which-way-in). A reader has 16 slots; while all are in use
    /// the guard takes a counted reference, as [`get`](Self::get) does.
    ///
    /// A guard with a slot keeps its whole folio, of up to 2 MiB and at most a 64th of the budget
    /// ([`Options::folio_max_bytes`](crate::Options::folio_max_bytes)): 16 slots keep at most a
    /// quarter of the budget, the 64 of [`borrow_many`](Self::borrow_many) can keep all.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`ErrorKind::Invalid`] if the reader belongs to another cache.
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

    /// The page number `page`, without holding it: copy its bytes, then ask whether the copy is
    /// valid. Reads what is not cached. Cost of a hit: a look-up; nothing is written.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn optimistic(&self, page: u64) -> Result<Optimistic<'_>> {
        self.handle.optimistic(page)
    }

    /// As [`read_at`](Self::read_at), but only what is cached at this moment: `None` if any of the
    /// bytes is not; `buf` is unspecified then. Waits for no read, and starts none of what is
    /// absent ([`prefetch`](Self::prefetch) does). But in a sequential scan, one call in each 64
    /// KiB to 2 MiB starts the next readahead: it takes the file's mutex and may evict. A page that
    /// is being evicted or moved may give `None` although it stays.
    ///
    /// Cost: a hit costs what it costs `read_at`; a miss is two look-ups, and takes no lock.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] as for `read_at`.
    #[inline]
    pub fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        self.handle.try_read_at(buf, offset)
    }

    /// As [`get`](Self::get), if the page is cached at this moment; otherwise `None`, as by
    /// [`try_read_at`](Self::try_read_at), at the same cost.
    ///
    /// # Errors
    /// [`ErrorKind::BeyondEnd`] if the page has no byte of the file.
    #[inline]
    pub fn try_get(&self, page: u64) -> Result<Option<FolioRef<'_>>> {
        self.handle.try_get(page)
    }

    /// As [`borrow`](Self::borrow), if the page is cached at this moment; otherwise `None`, as by
    /// [`try_read_at`](Self::try_read_at), at the same cost.
    ///
    /// # Errors
    /// As [`try_get`](Self::try_get); [`ErrorKind::Invalid`] if the reader is of another cache.
    #[inline]
    pub fn try_borrow<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Result<Option<Borrowed<'f, 'r>>> {
        self.handle.try_borrow(page, reader)
    }

    /// Starts to read those of `pages` that are neither cached nor on their way. Waits for no read.
    /// Pages past the end of the file are skipped. Adjacent pages are one read, up to
    /// [`Options::readahead_max_bytes`](crate::Options::readahead_max_bytes) (64 KiB if that is 0).
    ///
    /// It is a hint: it starts only what memory can be found for without waiting, and what the
    /// source takes; and at most a quarter of the budget is on its way in one file at a time.
    ///
    /// Cost: for a page that is there, a look-up. For others, an allocation each, and one mutex of
    /// the file and one submission for up to 64 reads. If no memory is free, it may have to evict.
    /// The folios are counted in [`Stats::readahead`](crate::Stats::readahead), not as misses.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`].
    pub fn prefetch(&self, pages: &[u64]) -> Result<()> {
        many::prefetch(&self.handle, pages)
    }

    /// Carries out all `reads`, each as [`read_at`](Self::read_at) does, and sets the result of
    /// each. They may be of any lengths, in any order, and overlap. A read that fails does not stop
    /// the others; but after the first [`ErrorKind::NoMemory`] the batch waits for no more memory,
    /// and every read of something that is not cached gets that error. What the source fails to
    /// read is not read again, unless it was asked for more at once than one of `reads` wants: then
    /// that one is tried once more, alone, if the source does not
    /// [hang](crate::source::Source#which-calls-it-gets).
    ///
    /// Cost of hits: they are done in blocks of 16, so that the processor's cache misses overlap.
    /// That pays from about eight reads of distant pages on (`cargo pinfold bench batch --cases
    /// memory`). Of misses: of 64 of `reads` at a time, up to 16 MiB are read at once, adjacent
    /// pages by one read; the rest one by one. This thread submits these reads together if the file
    /// is read by direct I/O; for other sources it makes the first read, and the others are one
    /// submission. The batch holds nothing from one read to the next, and so may be of any size.
    ///
    /// # Errors
    /// The first error in the order of `reads`, which its result has, too.
    #[inline]
    pub fn read_many(&self, reads: &mut [ReadAt<'_>]) -> Result<()> {
        self.handle.read_many(reads)
    }

    /// All of `pages`, each under a counted reference as by [`get`](Self::get), in their order. A
    /// page that is wanted twice has two guards, and is read once. Cost: that of as many calls of
    /// `get`, and an allocation; misses overlap as by [`read_many`](Self::read_many).
    ///
    /// # Errors
    /// The first error in the order of `pages`, as for `get`; then all guards are dropped.
    /// [`ErrorKind::NoMemory`] if not all pages fit the budget at once: at once, if `pages` has
    /// more different pages than the budget, unless one is [beyond the end](ErrorKind::BeyondEnd).
    #[inline]
    pub fn get_many(&self, pages: &[u64]) -> Result<Vec<FolioRef<'_>>> {
        self.handle.get_many(pages)
    }

    /// All of `pages`, announced in slots of `reader` as by [`borrow`](Self::borrow), in their
    /// order. A page that is wanted twice has two guards, and is read once.
    ///
    /// Cost: as of [`get_many`](Self::get_many), and one fence for each 16 pages where a borrow has
    /// one (for each page in a batch of fewer than four). A reader has 16 slots; batches that need
    /// more make further ones, up to 64, which it keeps. Guards for which none is free take a
    /// counted reference, and an allocation.
    ///
    /// # Errors
    /// As for [`get_many`](Self::get_many); [`ErrorKind::Invalid`] if the reader is of another
    /// cache, even if `pages` is empty.
    #[inline]
    pub fn borrow_many<'f, 'r>(
        &'f self,
        pages: &[u64],
        reader: &'r Reader,
    ) -> Result<Vec<Borrowed<'f, 'r>>> {
        self.handle.borrow_many(pages, reader)
    }

    /// Pins the bytes `range` of the file in memory, for I/O and DMA that outlive the call: they
    /// keep their addresses until the [`PinnedRange`] is dropped. Reads what is not cached.
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
    /// A pinned folio is neither evicted nor moved. It is kept as a whole, however few of its pages
    /// are pinned.
    ///
    /// # Moving before pinning
    ///
    /// A small folio that is pinned anywhere would keep the 2 MiB of memory around it from becoming
    /// free as one piece. So one below 2 MiB is first moved to memory that is set apart for such
    /// folios, unless it is there already or there is none. A folio can move only while nobody
    /// holds it. The call tries for half a second, and then fails with [`ErrorKind::Busy`]: so a
    /// thread must first drop its guards there. Pages that several threads hold in turn are pinned
    /// before they begin, as a pinned folio is not moved for further pins. Where neither will do,
    /// [`Options::pin_in_place`](crate::Options::pin_in_place) moves nothing, for a price.
    ///
    /// # Cost
    /// For each cached folio that need not move, a look-up and one atomic addition, and one atomic
    /// subtraction to unpin it. For the call, an addition and a subtraction on the count of the
    /// cache, which all threads that pin share. To move a folio takes the file's mutex and a copy.
    ///
    /// # Errors
    /// Nothing stays pinned after an error. [`ErrorKind::Invalid`] if the range is empty or
    /// reversed, [`ErrorKind::BeyondEnd`]; [`ErrorKind::TooLarge`] if it can never fit the budget;
    /// [`ErrorKind::Busy`]; [`ErrorKind::TooMany`]; otherwise as [`read_at`](Self::read_at).
    #[track_caller]
    #[inline]
    pub fn pin(&self, range: Range<u64>) -> Result<PinnedRange> {
        pin::pin::<false>(&self.handle, range, Location::caller())
    }

    /// As [`pin`](Self::pin), but page by page, with a look-up and an addition for each. Feature
    /// `testing`: for comparisons only.
    ///
    /// # Errors
    /// As for [`pin`](Self::pin).
    #[cfg(feature = "testing")]
    #[track_caller]
    #[inline]
    pub fn pin_per_page(&self, range: Range<u64>) -> Result<PinnedRange> {
        pin::pin::<true>(&self.handle, range, Location::caller())
    }

    /// The length in bytes, with what was written here; of what others do, as of the last time the
    /// file was opened, [refreshed](Self::refresh) or [invalidated](Self::invalidate).
    #[allow(clippy::len_without_is_empty, reason = "a file is no collection")]
    pub fn len(&self) -> u64 {
        self.handle.mapping.len_bytes()
    }

    /// Says how the bytes `range` of the file will be used. `Sequential` and `Random` set the mode
    /// of this handle, whatever the range, until the next of the two. `WillNeed` starts to read the
    /// range, up to a quarter of the budget, as [`prefetch`](Self::prefetch) does. `DontNeed` drops
    /// it as [`invalidate`](Self::invalidate) does. The source gets the hint as well.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the range ends before it begins, or above 2^63 - 1;
    /// [`ErrorKind::Forked`].
    pub fn advise(&self, range: impl RangeBounds<u64>, hint: Hint) -> Result<()> {
        let range = ranges::bytes_of(&range, ranges::END_MAX);
        let pages = ranges::pages_of(&self.handle.mapping, &range)?;
        self.handle.core.check_owner()?;
        match hint {
            Hint::Sequential | Hint::Random => self.handle.stream.advise(hint),
            Hint::WillNeed => many::will_need(&self.handle, pages),
            Hint::DontNeed => {
                self.drop_cached(&pages);
            }
        }
        let _ = self.handle.mapping.backing.advise(range, hint);
        Ok(())
    }

    /// Looks whether another program has changed the file, and lets go of what is cached and not
    /// the file's any more; the length follows. Reads by all handles of the file then return what
    /// it has had since this call. Guards and pins keep what they have. [`Changed`] says what goes.
    ///
    /// A change is seen by the file's length and times ([`Cache::open`](crate::Cache::open) says
    /// how far they can be trusted). A longer file counts as appended to if the first 64 KiB and
    /// the last 64 KiB of what is cached up to the old end are still the same. Of a file of more
    /// than 128 KiB that counted so the last time, too, as many bytes are compared at each end as
    /// it has grown by, 4 to 64 KiB. What was read after a change is the same and proves nothing:
    /// so if a file is cut short, grows beyond its old end, and is read near both ends before it is
    /// refreshed, old bytes in between may stay. A file that was written to elsewhere, too, needs
    /// [`invalidate`](Self::invalidate), or the next [`Cache::open`](crate::Cache::open). Of a
    /// source that the program implements, and of a block device, only the length is known.
    ///
    /// Cost: one system call, which looks at the path. After a change, two or three, and dropping;
    /// 16 more if the times have changed and the length has not; if the file is longer, two reads
    /// of 4 to 64 KiB. Waits for no other reads.
    ///
    /// ```
    /// # use pinfold::{Cache, Changed, Options};
    /// # use std::io::Write;
    /// # let cache = Cache::new(Options::new(8 << 20))?;
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("log");
    /// let mut log = std::fs::File::create(&path).unwrap();
    /// log.write_all(b"one ").unwrap();
    /// let file = cache.open(&path)?;
    /// let mut buf = [0; 16];
    /// assert_eq!(file.read_at(&mut buf, 0)?, 4);
    /// log.write_all(b"two").unwrap();
    /// assert_eq!((file.refresh()?, file.len()), (Changed::Grown, 7));
    /// assert_eq!(file.read_at(&mut buf, 0)?, 7);
    /// assert_eq!(&buf[..7], b"one two");
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`invalidate`](Self::invalidate).
    pub fn refresh(&self) -> Result<Changed> {
        let mapping = &self.handle.mapping;
        refresh::refresh(&self.handle, self.path.as_deref().unwrap_or(&mapping.path))
    }

    /// Drops every cached folio that has a byte of `range`, including those in use: their holders
    /// keep the old bytes, and later reads get the bytes from the source again. Also asks the
    /// source for its length, and drops the folio with the old end, and what is beyond the new one;
    /// `0..0` does only that. Returns the bytes dropped, in whole folios. The kernel's page cache,
    /// if the file is read through it, drops what is neither dirty nor mapped.
    ///
    /// # Errors
    /// Nothing is dropped after an error. [`ErrorKind::Invalid`] as for [`advise`](Self::advise);
    /// [`ErrorKind::Read`] if the source cannot report its length; [`ErrorKind::Unsupported`] if
    /// that is above 2^63 - 4096; [`ErrorKind::Forked`].
    pub fn invalidate(&self, range: impl RangeBounds<u64>) -> Result<u64> {
        let range = ranges::bytes_of(&range, ranges::END_MAX);
        let pages = ranges::pages_of(&self.handle.mapping, &range)?;
        let byte = |page: u64| page.saturating_mul(PAGE_BYTES as u64).min(i64::MAX as u64);
        self.handle.mapping.backing.forget(byte(pages.start)..byte(pages.end));
        let file_pages = self.len().div_ceil(PAGE_BYTES as u64);
        if pages.start == 0 && pages.end >= file_pages && !pages.is_empty() {
            return Ok(refresh::renew(&self.handle, Since::Invalidated)?.1);
        }
        let dropped = refresh::length(&self.handle)?;
        Ok(dropped + self.drop_cached(&pages))
    }

    /// Afterwards no map shows what was cached before, unless it is used. Gives the bytes dropped.
    fn drop_cached(&self, pages: &Range<u64>) -> u64 {
        let dropped = freeze::drop_clean(&self.handle.core, &self.handle.mapping, pages.clone());
        self.handle.core.settle(&self.handle.mapping, pages);
        dropped
    }
}

impl Clone for File {
    fn clone(&self) -> Self {
        if self.handle.core.owner.is_here() {
            self.handle.core.mappings.clone_handle(&self.handle.mapping);
        }
        let mut clone = File::new(self.handle.core.clone(), self.handle.mapping.clone());
        clone.path.clone_from(&self.path);
        clone.writes = self.writes;
        clone
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.handle.core.owner.is_here() {
            fill::end_ahead(&self.handle);
            close(&self.handle.core, &self.handle.mapping);
        }
    }
}

fn close(core: &Core, mapping: &Mapping) {
    let mut tried = false;
    let closed = core.mappings.drop_handle(mapping, false).or_else(|| {
        write::sync::before_last_drop(core, mapping);
        tried = true;
        core.mappings.drop_handle(mapping, true)
    });
    let Closed { for_good, source } = closed.expect("it was tried to sync");
    // Whether a block device has changed by the next open, nobody can say.
    let is_device = mapping.is_of_system() && mapping.read_under().is_none();
    let was_last = source.is_some();
    if for_good || (was_last && (is_device || source.is_deleted())) {
        freeze::drop_clean(core, mapping, 0..PAGES_END);
        if tried {
            // What could not be written goes, too: nobody can open it any more.
            freeze::discard(core, mapping, 0..PAGES_END);
        }
    } else if was_last && !mapping.is_of_system() {
        // The source may never answer. Whoever opens the file again has a source that does.
        freeze::drop_on_their_way(core, mapping);
    }
    core.mappings.retire(mapping);
    drop(source);
    if was_last {
        core.closed(mapping);
    }
}
