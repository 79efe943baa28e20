//! The first way in: copying.
//!
//! | path | when | stores to shared memory |
//! |---|---|---|
//! | short | all bytes lie in one folio that is up to date, and are no more than the limit | none, but to note a use (`frames/uses.rs`) |
//! | counted | the rest of what is cached | one add and one subtraction on the folio's count |
//! | filled | what is not cached | as counted, after `fill` |
//!
//! # The short path, step by step
//!
//! 1. to 3. the optimistic look-up (`found.rs`): a folio that is up to date, and has all bytes;
//! 4. copy, by racing loads;
//! 5. fence, load the version again: if it is unchanged, 3 and 4 saw one state of the folio.
//!
//! The path holds nothing. The folio says how many of its bytes the file has (`freeze::resize`).
//! Step 4 reads only inside the arena: each order that a head's entry has had is that of a folio
//! that began at that frame.

use std::num::NonZero;

use crate::access::found::{Found, MayWait, ReadaheadMark, Want, filled};
use crate::base::counters::{Event, Shard};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::{
    Flags, Frame, Global, PAGE_BYTES, PAGE_SHIFT, copy_racing, copy_still, predicted,
};
use crate::pages::core::Held;
use crate::pages::fill;
use crate::pages::handle::Handle;

/// All in one folio. What is not found shortly is `COUNTED`, with the reason.
#[derive(Clone, Copy)]
pub(crate) struct BytesWanted<const COUNTED: bool>(pub(crate) u64);

impl<const COUNTED: bool> Want for BytesWanted<COUNTED> {
    #[inline(always)]
    fn fits(self, at: u64, span: u64) -> bool {
        at < span && self.0 <= span - at
    }

    #[inline(always)]
    fn absent<const WHY: usize>(self, handle: &Handle) {
        if COUNTED {
            not_shortly::<WHY>(handle);
        }
    }

    #[inline(always)]
    fn misfit(self, handle: &Handle, frame: &Frame, at: u64) {
        if COUNTED {
            not_in(handle, frame, at, self.0);
        }
    }
}

impl Handle {
    #[inline(always)]
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if self.read_shortly(buf, offset) { Ok(buf.len()) } else { self.long(buf, offset, true) }
    }

    #[inline(always)]
    pub(crate) fn try_read_at(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>> {
        if self.read_shortly(buf, offset) {
            return Ok(Some(buf.len()));
        }
        self.slowly(buf, offset, (MayWait::Never, true))
    }

    /// The read is counted here.
    #[inline(always)]
    pub(crate) fn read_shortly(&self, buf: &mut [u8], offset: u64) -> bool {
        let Some(bytes) = NonZero::new(buf.len()) else {
            self.counters().count(Event::EmptyRead);
            return false;
        };
        let shard = self.counters().shard();
        shard.count_reads(bytes, 1);
        self.short(buf, offset, shard)
    }

    /// On failure counts the reason; `buf` is then unspecified.
    #[inline(always)]
    pub(crate) fn short(&self, buf: &mut [u8], offset: u64, shard: &Shard) -> bool {
        if buf.len() > self.window.short_max_bytes as usize {
            not_shortly::<{ Event::LongRead as usize }>(self);
            return false;
        }
        // Steps 1 to 3.
        let found = self.found_at(offset, BytesWanted::<true>(buf.len() as u64));
        let Some(found) = found else { return false };
        let from = found.from;
        let from = predicted(from, found.at as usize, offset as usize & (PAGE_BYTES - 1));
        self.copy_found(found, from, buf, shard)
    }

    /// Steps 4 and 5. At `from` is byte `found.at` of the folio.
    #[inline(always)]
    fn copy_found(&self, found: Found<'_>, from: *const u8, buf: &mut [u8], shard: &Shard) -> bool {
        // SAFETY: the buffer's own length.
        if !unsafe { copied(&found, from, buf.as_mut_ptr(), buf.len()) } {
            not_shortly::<{ Event::Changed as usize }>(self);
            return false;
        }
        found.frame.note_read(shard, found.byte, found.at as usize, buf.len());
        true
    }

    /// With `counted`, a folio that is present counts as a hit.
    #[cold]
    #[inline(never)]
    pub(crate) fn long(&self, buf: &mut [u8], offset: u64, counted: bool) -> Result<usize> {
        self.slowly(buf, offset, (MayWait::Yes, counted)).map(filled)
    }

    /// In pieces, each of one folio. `None`: something is absent, and the caller may not wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn slowly(
        &self,
        buf: &mut [u8],
        offset: u64,
        how: (MayWait, bool),
    ) -> Result<Option<usize>> {
        self.check_range(buf, offset)?;
        let mut done = 0;
        // Ends: each turn copies at least a byte, or is the last.
        while done < buf.len() {
            match self.piece(&mut buf[done..], offset + done as u64, how)? {
                None => return Ok(None),
                Some(0) => break,
                Some(copied) => done += copied,
            }
        }
        Ok(Some(done))
    }

    /// Error: [`ErrorKind::Invalid`].
    pub(crate) fn check_range(&self, buf: &[u8], offset: u64) -> Result<()> {
        let bytes = buf.len() as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Cause::Range { path: self.mapping.path.clone(), offset, bytes }.into());
        }
        Ok(())
    }

    /// What is in the folio at `offset`, under a reference; 0 at the end of the file.
    #[inline(always)]
    fn piece(
        &self,
        buf: &mut [u8],
        offset: u64,
        (wait, counted): (MayWait, bool),
    ) -> Result<Option<usize>> {
        if offset >= self.mapping.len_bytes() {
            return Ok(Some(0));
        }
        let page = offset >> PAGE_SHIFT;
        // From the start of the page: else a read across two pages looks like two in a row.
        let wanted = (offset as usize & (PAGE_BYTES - 1)) + buf.len();
        self.held(
            page,
            (ReadaheadMark::Meet, counted),
            || wait.fill(|| fill::get(self, page, wanted)),
            |held| Ok(Some(self.copy_held(&held, buf, offset))),
        )
    }

    /// Copies from a folio that is held, has the page and was up to date. Everything is read from
    /// the entry before the copy: other readers of the folio take its line away.
    #[inline(always)]
    pub(crate) fn copy_held(&self, held: &Held<'_>, buf: &mut [u8], offset: u64) -> usize {
        let at = (offset - held.offset()) as usize;
        let bytes = buf.len().min(held.frame().file_bytes().saturating_sub(at));
        let first = Global::of(self.id, offset);
        held.frame().note_read(self.counters().shard(), first, at, bytes);
        // SAFETY: inside the folio, whose bytes never change under the reference; `buf` is the
        // caller's.
        unsafe {
            let from = held.address(&self.mapping).cast_const().wrapping_add(at);
            copy_still(buf.as_mut_ptr(), from, bytes);
        }
        bytes
    }
}

/// Steps 4 and 5: whether `to` has the bytes that were found, whose first one is at `from`.
///
/// # Safety
/// `to` is the caller's alone, and has room for `bytes`, which are what was wanted.
#[inline(always)]
pub(crate) unsafe fn copied(found: &Found<'_>, from: *const u8, to: *mut u8, bytes: usize) -> bool {
    // Step 4. SAFETY: `at + bytes` is within the folio's order, so inside the arena (see the head),
    // and may be read by racing loads; `to` is as the caller says.
    unsafe { copy_racing(to, from, bytes) };
    // Step 5.
    !found.frame.read_retry(found.stamp)
}

/// One function per reason: an argument or a result would cost the hit path a register.
#[cold]
#[inline(never)]
fn not_shortly<const WHY: usize>(handle: &Handle) {
    handle.counters().count_numbered::<WHY>();
}

/// Why the short read does not apply to `bytes` bytes from `at` of the folio on.
#[cold]
#[inline(never)]
fn not_in(handle: &Handle, frame: &Frame, at: u64, bytes: u64) {
    let (order_bytes, file_bytes) = (frame.order().bytes() as u64, frame.file_bytes() as u64);
    let why = if at >= order_bytes {
        Event::Identity
    } else if frame.flags().contains(Flags::READAHEAD) {
        Event::ReadaheadMark
    } else if file_bytes < order_bytes && at + bytes > file_bytes {
        Event::EndOfFile
    } else {
        Event::Crosses
    };
    handle.counters().count(why);
}
