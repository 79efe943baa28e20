//! The third door: pinning, for I/O and DMA that outlive the call.
//!
//! Here: [`PinnedRange`], what a program holds and does with it. The parts have files of their own:
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | the public type: where the bytes are, giving pins back, in parts too |
//! | `get.rs` | how a folio is found and pinned, and moved or filled before |
//! | `run.rs` | which frames are pinned, in as few words as they allow; unpinning them |
//!
//! Not here: where small folios go that stay (`reclaim::alloc_unmovable`), moving one (`freeze::migrate`).
//! Called by `file`. `docs/pin.md` has what it costs, and what it promises.
//!
//! # What is counted
//!
//! A pin is one for each page of the file that the range touches, in the count of the folio that has
//! the page: one addition of the number of pages for each folio. Each `PinnedRange` owns exactly the
//! pins of the pages it touches, so that it can be cut in two, and the parts be given back by
//! different threads. Where a cut goes through a page, that page is pinned once more.

mod get;
mod run;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::core::Core;
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::frame::{PAGE_BYTES, PAGE_SHIFT, copy_racing};
use crate::mutant::{self, Mutant};

#[cfg(all(test, loom))]
pub(crate) use get::try_pin;
pub(crate) use get::{Step, pin};
use run::Runs;

/// A range of a file, pinned: its bytes stay in memory, at the addresses they have, until it is
/// dropped.
///
/// It may go to another thread and be dropped there, it may be given back in parts
/// ([`unpin_front`](Self::unpin_front), [`split_off`](Self::split_off)), and it keeps the cache alive.
/// Nothing can be unpinned twice:
///
/// ```compile_fail,E0382
/// # fn twice(pinned: pinfold::PinnedRange) {
/// pinned.unpin();
/// pinned.unpin(); // used after it was given back
/// # }
/// ```
///
/// # What is promised of the bytes
///
/// - The memory stays mapped, and is the program's ordinary memory: the kernel and devices may read
///   it. Nobody may write to it but the cache.
/// - They are the file's as of the moment of the pin, each folio's of one moment. A write through
///   the cache to a pinned page changes it in place. Somebody else's write to the file does not;
///   after [`File::invalidate`](crate::File::invalidate) the pin keeps the old bytes, and whoever
///   reads or pins then gets the new ones.
/// - Therefore no `&[u8]` of them is given out by safe code: [`copy_to`](Self::copy_to) copies as a
///   racing reader must, and [`PinnedExtent::bytes`] says what has to hold for a slice.
#[must_use = "dropped at once, it pins nothing"]
pub struct PinnedRange {
    core: Arc<Core>,
    /// Bytes of the file.
    start: u64,
    end: u64,
    runs: Runs,
    /// Its number in the list of holders, if there is one; 0 otherwise.
    holder: u64,
}

impl PinnedRange {
    /// Which bytes of the file are pinned; never none, but after all of it was given back in parts.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// How many bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether all of it was given back by [`unpin_front`](Self::unpin_front) or
    /// [`split_off`](Self::split_off).
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where the bytes are, from the first to the last: as few pieces as their places in memory allow.
    ///
    /// A system call or a ring (`writev`, `sendmsg`, `register_buffers`) takes them as `iovec`s of
    /// whatever crate the program calls it by. Whoever hands them on sees to it that this value lives
    /// for as long as they are used, and that nothing is written through them: an `iovec` points to
    /// mutable memory because the system has no other kind.
    ///
    /// ```
    /// # use pinfold::{Cache, Options, source::Memory};
    /// # let cache = Cache::new(Options::new(8 << 20))?;
    /// # let file = cache.attach("numbers", std::sync::Arc::new(Memory::new(vec![7; 10_000])))?;
    /// let pinned = file.pin(5_000..9_000)?;
    /// let iovecs: Vec<libc::iovec> = pinned
    ///     .extents()
    ///     .map(|e| libc::iovec { iov_base: e.address().cast_mut().cast(), iov_len: e.len() })
    ///     .collect();
    /// assert_eq!(iovecs.iter().map(|iovec| iovec.iov_len).sum::<usize>(), 4_000);
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    pub fn extents(&self) -> impl Iterator<Item = PinnedExtent<'_>> {
        let mut from = self.start;
        self.runs.iter().filter(|run| run.pages() > 0).map(move |run| {
            let inside = (from % PAGE_BYTES as u64) as usize;
            let room = run.pages() as usize * PAGE_BYTES - inside;
            let bytes = (self.end - from).min(room as u64) as usize;
            let address = self.core.frames.address(run.first()).wrapping_add(inside).cast_const();
            let extent = PinnedExtent { address, bytes, offset: from, pinned: self };
            from += bytes as u64;
            extent
        })
    }

    /// Copies bytes out, those at `offset` of the file and after, as many as `buf` holds. Each aligned
    /// word is of one moment, should somebody write meanwhile.
    ///
    /// # Errors
    /// [`Error::OutsidePin`] if not all of them are pinned here; nothing was copied.
    pub fn copy_to(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        let Some(end) = end.filter(|&end| offset >= self.start && end <= self.end) else {
            return Err(self.outside(end.unwrap_or(u64::MAX).max(offset)));
        };
        for extent in self.extents() {
            let (from, to) = (extent.offset.max(offset), extent.end().min(end));
            if from < to {
                let part = &mut buf[(from - offset) as usize..(to - offset) as usize];
                let address = extent.address.wrapping_add((from - extent.offset) as usize);
                // SAFETY: the extent is pinned, and inside the arena, which `core` keeps mapped; the
                // loads may race; `buf` is the caller's alone.
                unsafe { copy_racing(part.as_mut_ptr(), address, part.len()) };
            }
        }
        Ok(())
    }

    /// Cuts the range at the byte `at` of the file: this value keeps what is before it, the other has
    /// the rest. Each is given back by itself, on whatever thread.
    ///
    /// Costs nothing on a page's border; elsewhere the page is pinned once more, for both have bytes of it.
    ///
    /// # Errors
    /// [`Error::OutsidePin`] if `at` is outside the range; [`Error::TooManyPins`] if the page that both
    /// have cannot be pinned once more. Nothing has changed then.
    #[track_caller]
    pub fn split_off(&mut self, at: u64) -> Result<PinnedRange> {
        if at < self.start || at > self.end {
            return Err(self.outside(at));
        }
        let first_page = self.start >> PAGE_SHIFT;
        let shared = !at.is_multiple_of(PAGE_BYTES as u64) && at != self.start && at != self.end;
        let keep = if at == self.start { 0 } else { at.div_ceil(PAGE_BYTES as u64) - first_page };
        let mut rest = self.runs.split_off(&self.core, keep as u32);
        if shared && let Err(error) = self.share_last_page(&mut rest, at) {
            self.runs.append(&rest);
            return Err(error);
        }
        let other = PinnedRange {
            core: self.core.clone(),
            start: at,
            end: self.end,
            runs: rest,
            holder: self.core.holders.split(self.holder, at),
        };
        self.end = at;
        Ok(other)
    }

    /// Pins the last page once more, for `rest`, which begins in it.
    fn share_last_page(&self, rest: &mut Runs, at: u64) -> Result<()> {
        let (head, skip) = self.runs.last_page(&self.core);
        if !mutant::on(Mutant::SplitSharesPin) {
            let count = &self.core.frames.frame(head).count;
            // It has a pin already, so it cannot be frozen.
            count.try_pin(1).map_err(|_| too_many(at))?;
            self.core.counters.add(Event::PinnedPages, 1);
        }
        rest.prepend(head, skip);
        Ok(())
    }

    /// Gives back the first `bytes` bytes, as after a write(2) that took so many. A page of which bytes
    /// are left stays pinned.
    ///
    /// # Errors
    /// [`Error::OutsidePin`] if there are not so many; nothing was given back.
    pub fn unpin_front(&mut self, bytes: u64) -> Result<()> {
        let Some(start) = self.start.checked_add(bytes).filter(|&start| start <= self.end) else {
            return Err(self.outside(self.start.saturating_add(bytes)));
        };
        let gone = if start == self.end {
            self.runs.pages()
        } else {
            ((start >> PAGE_SHIFT) - (self.start >> PAGE_SHIFT)) as u32
        };
        let mut front = self.runs.split_off(&self.core, gone);
        std::mem::swap(&mut self.runs, &mut front);
        self.start = start;
        self.core.holders.shrink(self.holder, start);
        front.unpin::<false>(&self.core);
        Ok(())
    }

    /// Gives the pins back: what a drop does, by a name to be seen by.
    pub fn unpin(self) {}

    /// The same page by page, with a subtraction for each. Feature `testing`: for comparisons only.
    #[cfg(feature = "testing")]
    pub fn unpin_per_page(mut self) {
        self.runs.unpin::<true>(&self.core);
    }

    /// Folios that have pages of it: that many entries of the frame table are touched by a pin.
    /// Feature `testing`: for explaining figures.
    #[cfg(feature = "testing")]
    pub fn folios(&self) -> u64 {
        self.runs.folios(&self.core)
    }

    fn outside(&self, at: u64) -> Error {
        Error::OutsidePin { at, start: self.start, end: self.end }
    }
}

impl Drop for PinnedRange {
    #[inline]
    fn drop(&mut self) {
        if crate::sync::model_failed() {
            return;
        }
        if self.holder != 0 {
            self.core.holders.remove(self.holder);
        }
        self.runs.unpin::<false>(&self.core);
    }
}

impl fmt::Debug for PinnedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedRange")
            .field("start", &self.start)
            .field("end", &self.end)
            .field("runs", &self.runs)
            .finish_non_exhaustive()
    }
}

#[cold]
fn too_many(offset: u64) -> Error {
    Error::TooManyPins { offset, most_pages: <pinfold_refcount::RefCount>::MAX_PINS }
}

/// A piece of a [`PinnedRange`] that lies in one piece in memory.
#[derive(Clone, Copy)]
pub struct PinnedExtent<'a> {
    address: *const u8,
    bytes: usize,
    offset: u64,
    /// Keeps it where it is.
    pinned: &'a PinnedRange,
}

// SAFETY: an address and a length; what they lead to may be read from any thread as long as the range
// is borrowed, which can be shared itself.
unsafe impl Send for PinnedExtent<'_> {}
// SAFETY: as above.
unsafe impl Sync for PinnedExtent<'_> {}

impl<'a> PinnedExtent<'a> {
    /// Where it begins. Good to read from until the [`PinnedRange`] is dropped; see there for who may
    /// be writing meanwhile.
    pub fn address(&self) -> *const u8 {
        self.address
    }

    /// How long it is.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no byte; no extent of a range is like that.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where in the file its first byte is.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn end(&self) -> u64 {
        self.offset + self.bytes as u64
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// For as long as the slice lives, nobody writes to these pages through the cache: another
    /// thread's write would change memory under a shared reference.
    pub unsafe fn bytes(&self) -> &'a [u8] {
        debug_assert!(!self.pinned.is_empty());
        // SAFETY: pinned for 'a, so it stays mapped and is not reused; the caller says that nobody
        // writes.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }
}

impl fmt::Debug for PinnedExtent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedExtent({:p}, {} bytes at {})", self.address, self.bytes, self.offset)
    }
}
