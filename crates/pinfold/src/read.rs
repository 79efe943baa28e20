//! The first door: copying out.
//!
//! Here: `read_at`, in its three ways. Not here: what happens on a miss (`fill`). Called by `file`.
//!
//! | way | when | stores to shared memory |
//! |---|---|---|
//! | short | all bytes lie in one folio that is up to date, and are no more than the limit | none; the use count while it is below its maximum |
//! | counted | the rest of what is cached | one add and one subtraction on the folio's count |
//! | filled | what is not cached | as counted, after `fill` |
//!
//! # The short way, step by step
//!
//! 1. to 3. the look (`found.rs`): a folio that is up to date, and has all that is wanted;
//! 4. copy, by loads that may race;
//! 5. fence, load the version again: unchanged means that 3 and 4 saw one thing.
//!
//! The end of the file is the folio's own affair: a length changes only when no folio is there that
//! knows another (`freeze::resize`). Nothing is held at any time. Step 4 reads only inside the arena, which stays mapped and ordinary
//! memory as long as the cache lives: a head's entry only ever holds orders of folios that began at
//! that frame, so head and order, of whatever times, give a range inside the arena.

use std::num::NonZero;

use crate::core::Held;
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::fill;
use crate::found::{Found, Mark, Want};
use crate::frame::{
    Flags, Frame, FrameNumber, PAGE_BYTES, PAGE_SHIFT, copy_racing, copy_still, guessed,
};
use crate::handle::Handle;

/// So many bytes, of one folio.
#[derive(Clone, Copy)]
struct Bytes(u64);

impl Want for Bytes {
    #[inline(always)]
    fn fits(self, at: u64, span: u64) -> bool {
        at < span && self.0 <= span - at
    }

    #[inline(always)]
    fn absent<const WHY: usize>(self, handle: &Handle) {
        not_shortly::<WHY>(handle);
    }

    #[inline(always)]
    fn misfit(self, handle: &Handle, frame: &Frame, at: u64) {
        not_in(handle, frame, at, self.0);
    }
}

impl Handle {
    /// As pread(2): fewer bytes than asked only at the end of the file, none beyond it.
    #[inline(always)]
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(bytes) = NonZero::new(buf.len()) {
            self.counters().shard().count_read(bytes);
            if self.short(buf, offset) {
                return Ok(buf.len());
            }
            return self.long(buf, offset);
        }
        self.counters().count(Event::EmptyRead);
        self.long(buf, offset)
    }

    /// All of `buf`, without a reference; or nothing, why not is counted, and `buf` holds garbage.
    #[inline(always)]
    pub(crate) fn short(&self, buf: &mut [u8], offset: u64) -> bool {
        if buf.len() > self.short_max_bytes as usize {
            not_shortly::<{ Event::LongRead as usize }>(self);
            return false;
        }
        let found = self.found_at(offset, Bytes(buf.len() as u64));
        let Some(Found { frame, head, from, stamp, at, .. }) = found else { return false };
        let from = guessed(from, at as usize, offset as usize & (PAGE_BYTES - 1));
        // SAFETY: `at + bytes` is inside the folio's order, so the source lies inside the arena
        // (see the head of the file) and may be read by racing loads; `buf` is the caller's alone.
        unsafe { copy_racing(buf.as_mut_ptr(), from, buf.len()) };
        if frame.read_retry(stamp) {
            not_shortly::<{ Event::Changed as usize }>(self);
            return false;
        }
        if !frame.is_used_most() {
            note_use(self, frame, head);
        }
        true
    }

    /// Piece by piece, each of one folio.
    #[cold]
    #[inline(never)]
    pub(crate) fn long(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let bytes = buf.len() as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::Range { offset, bytes });
        }
        let mut done = 0;
        // Ends: each turn copies at least a byte, or is the last.
        while done < buf.len() {
            match self.piece(&mut buf[done..], offset + done as u64)? {
                0 => break,
                copied => done += copied,
            }
        }
        Ok(done)
    }

    /// What of `buf` is in the folio at `offset`, under a reference; 0 at the end of the file.
    #[inline(always)]
    fn piece(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if offset >= self.mapping.len_bytes() {
            return Ok(0);
        }
        let page = offset >> PAGE_SHIFT;
        // From the start of the page: else a read across two pages looks like two in a row.
        let wanted = (offset as usize & (PAGE_BYTES - 1)) + buf.len();
        self.held(
            page,
            (Mark::Meet, true),
            || fill::get(self, page, wanted),
            |held| Ok(Some(self.copy_held(&held, buf, offset))),
        )
    }

    /// Copies from a folio that is held, has the page and was up to date; gives how much.
    ///
    /// All that the entry says is read before the copy: soon after the reference was taken, while
    /// the entry's line is still this core's. Asking after the copy would fetch it once more from
    /// whoever else is reading the folio.
    #[inline(always)]
    pub(crate) fn copy_held(&self, held: &Held<'_>, buf: &mut [u8], offset: u64) -> usize {
        let at = (offset - held.offset()) as usize;
        let bytes = buf.len().min(held.frame().file_bytes().saturating_sub(at));
        if !held.frame().is_used_most() && self.counters().shard().comes_to(held.head().0) {
            held.frame().note_use();
        }
        // SAFETY: inside the folio, which the reference keeps; nobody changes the bytes of a
        // folio that others hold. `buf` is the caller's alone.
        unsafe {
            let from = held.address().wrapping_add(at);
            copy_still(buf.as_mut_ptr(), from, bytes);
        }
        bytes
    }
}

/// A use more, if the thread comes to the folio from another one. Out of line: a folio that is read
/// all the time does not get here.
#[cold]
#[inline(never)]
fn note_use(handle: &Handle, frame: &Frame, head: FrameNumber) {
    if handle.counters().shard().comes_to(head.0) {
        frame.note_use();
    }
}

/// Counts why a read was not done shortly. Out of line, and a function for each reason: one that is
/// returned, or an argument, is put into a register on the way that is taken.
#[cold]
#[inline(never)]
fn not_shortly<const WHY: usize>(handle: &Handle) {
    handle.counters().count_numbered::<WHY>();
}

/// The same for so many bytes from `at` of the folio on.
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
