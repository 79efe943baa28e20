//! The third way in: pinning, for I/O and DMA that outlive the call (`docs/pin.md`). `get.rs` finds
//! and pins folios, `run.rs` has the list of pinned frames.

mod get;
mod run;

use std::fmt;
use std::ops::Range;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::PathBuf;
use std::sync::Arc;

use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Error, Result};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT, copy_racing};
use crate::pages::core::Core;

pub(crate) use get::pin;
#[cfg(all(test, loom))]
pub(crate) use get::try_pin;
use run::PinnedRuns;

/// A pinned range of a file: its bytes stay in memory, at fixed addresses, until it is dropped. It
/// can be sent to another thread, be given back in parts ([`unpin_front`](Self::unpin_front),
/// [`split_off`](Self::split_off)), and it keeps the cache alive. It cannot be unpinned twice:
///
/// ```compile_fail,E0382
/// # fn twice(pinned: pinfold::PinnedRange) {
/// drop(pinned);
/// drop(pinned); // used after it was given back
/// # }
/// ```
///
/// # Guarantees
///
/// - The memory stays mapped, and is the program's ordinary memory: the kernel and devices may read
///   it. Only the cache may write to it.
/// - Each folio's bytes are the file's as of one moment of the pin, whatever other programs write,
///   and after it what is [written](crate::File::write_at) through the cache. After
///   [`File::invalidate`](crate::File::invalidate) the pin keeps the old bytes.
/// - Safe code therefore gets no `&[u8]`: [`copy_to`](Self::copy_to) copies by racing loads. A
///   slice of an extent requires that nothing writes to it through the cache meanwhile.
#[must_use = "dropped at once, it pins nothing"]
pub struct PinnedRange {
    core: Arc<Core>,
    start: u64,
    end: u64,
    runs: PinnedRuns,
    /// In the list of pins; 0 if there is none.
    holder: u64,
}

impl PinnedRange {
    /// The pinned bytes of the file. Empty only after all of it was given back in parts.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// The bytes where they lie, from first to last, in as few pieces as the layout in memory
    /// allows. No piece is empty. They are valid to read from until this value is dropped. System
    /// calls and rings (`writev`, `register_buffers`) take them as `iovec`s: let nothing be written
    /// there.
    ///
    /// ```
    /// # use pinfold::{Cache, Options, source::Memory};
    /// # let cache = Cache::new(Options::new(8 << 20))?;
    /// # let file = cache.attach("numbers", std::sync::Arc::new(Memory::new(vec![7; 10_000])))?;
    /// let pinned = file.pin(5_000..9_000)?;
    /// let iovecs: Vec<libc::iovec> = pinned
    ///     .extents()
    ///     .map(|e| libc::iovec { iov_base: e.cast_mut().cast(), iov_len: e.len() })
    ///     .collect();
    /// assert_eq!(iovecs.iter().map(|iovec| iovec.iov_len).sum::<usize>(), 4_000);
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    pub fn extents(&self) -> impl Iterator<Item = *const [u8]> {
        let mut from = self.start;
        self.runs.iter().map(move |run| {
            let inside = (from % PAGE_BYTES as u64) as usize;
            let room = run.pages as usize * PAGE_BYTES - inside;
            let bytes = (self.end - from).min(room as u64) as usize;
            let address = self.core.frames.address(run.first()).wrapping_add(inside).cast_const();
            from += bytes as u64;
            std::ptr::slice_from_raw_parts(address, bytes)
        })
    }

    /// Copies `buf.len()` bytes from `offset` of the file on. If a write happens meanwhile, each
    /// aligned word is of one moment.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if not all of them are in this range; nothing is copied then.
    pub fn copy_to(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        let Some(end) = end.filter(|&end| offset >= self.start && end <= self.end) else {
            return Err(self.outside(end.unwrap_or(u64::MAX).max(offset)));
        };
        let mut start = self.start;
        for extent in self.extents() {
            let extent_start = start;
            start += extent.len() as u64;
            let (from, to) = (extent_start.max(offset), start.min(end));
            if from < to {
                let part = &mut buf[(from - offset) as usize..(to - offset) as usize];
                let address = extent.cast::<u8>().wrapping_add((from - extent_start) as usize);
                // SAFETY: pinned and inside the arena; the loads may race; `buf` is the caller's.
                unsafe { copy_racing(part.as_mut_ptr(), address, part.len()) };
            }
        }
        Ok(())
    }

    /// Cuts the range at byte `at` of the file: the returned value has the rest. Free on a page
    /// boundary; elsewhere the page that both parts have is pinned once more.
    ///
    /// # Errors
    /// The range is unchanged after an error. [`ErrorKind::Invalid`] if `at` is outside the range;
    /// [`ErrorKind::TooMany`] if the shared page cannot be pinned once more.
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
    fn share_last_page(&self, rest: &mut PinnedRuns, at: u64) -> Result<()> {
        let (head, skip) = self.runs.last_page(&self.core);
        if !mutant::on(Mutant::SplitSharesPin) {
            let count = &self.core.frames.frame(head).count;
            // The page has a pin, so the folio cannot be frozen.
            count.try_pin(1).map_err(|_| too_many(self.path(), at))?;
            self.core.counters.add(Event::PinnedPages, 1);
        }
        rest.prepend(head, skip);
        Ok(())
    }

    /// Unpins the first `bytes` bytes, as after a write(2) that took that many. A page that is only
    /// partly given back stays pinned.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the range is shorter than that; nothing is unpinned then.
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

    /// Unpins page by page, with a subtraction for each. Feature `testing`: for comparisons only.
    #[cfg(feature = "testing")]
    pub fn unpin_per_page(mut self) {
        self.runs.unpin::<true>(&self.core);
    }

    /// That many entries of the frame table are touched by a pin. Feature `testing`.
    #[cfg(feature = "testing")]
    pub fn folios(&self) -> u64 {
        self.runs.folios(&self.core)
    }

    #[cold]
    fn outside(&self, at: u64) -> Error {
        Cause::OutsidePin { path: self.path(), at, start: self.start, end: self.end }.into()
    }

    /// The file's name, if the cache can tell. To keep it would take a count that its pins share.
    fn path(&self) -> Option<PathBuf> {
        self.core.check_owner().ok()?; // a child may not lock the table of files
        self.runs.iter().find_map(|run| {
            let named = || self.core.frames.frame(run.head).identity().mapping;
            let id = named();
            let mapping = self.core.mappings.get(id)?;
            // A pinned folio that has left its file never names one again: so it has named this one
            // all the time.
            (named() == id).then(|| mapping.path.clone())
        })
    }
}

impl Drop for PinnedRange {
    #[inline]
    fn drop(&mut self) {
        if crate::base::sync::model_failed() {
            return;
        }
        if self.holder != 0 {
            self.core.holders.remove(self.holder);
        }
        self.runs.unpin::<false>(&self.core);
    }
}

// As for `Cache`.
impl UnwindSafe for PinnedRange {}
impl RefUnwindSafe for PinnedRange {}

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
fn too_many(path: Option<PathBuf>, offset: u64) -> Error {
    Cause::TooManyPins { path, offset, most_pages: <pinfold_refcount::RefCount>::MAX_PINS }.into()
}
