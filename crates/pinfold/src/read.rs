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
//! 1. look the page up: a hint, whatever it says;
//! 2. load the folio's version, acquire; odd: not up to date, or being changed;
//! 3. load its identity, and how many of its bytes are the file's; not what we want: another folio by
//!    now, or the end of the file;
//! 4. copy, by loads that may race;
//! 5. fence, load the version again: unchanged means that 3 and 4 saw one thing.
//!
//! The end of the file is the folio's own affair: a length changes only when no folio is there that
//! knows another (`freeze::resize`). Nothing is held at any time. Step 4 reads only inside the arena, which stays mapped and ordinary
//! memory as long as the cache lives: a head's entry only ever holds orders of folios that began at
//! that frame, so head and order, of whatever times, give a range inside the arena.

use std::num::NonZero;

use crate::core::{Core, Held};
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::fill;
use crate::flaw::{self, Flaw};
use crate::frame::{
    Flags, Frame, FrameNumber, PAGE_BYTES, PAGE_SHIFT, copy_racing, copy_still, guessed,
};
use crate::handle::Handle;
use crate::mapping::Mapping;

impl Handle {
    /// As pread(2): fewer bytes than asked only at the end of the file, none beyond it.
    #[inline(always)]
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        // Both looked up here, once: for all the compiler knows, a count may change them.
        let (core, mapping) = (&*self.core, &*self.mapping);
        if let Some(bytes) = NonZero::new(buf.len()) {
            core.counters.shard().count_read(bytes);
            if Self::short(core, mapping, buf, offset) {
                return Ok(buf.len());
            }
            return self.long(buf, offset);
        }
        core.counters.count(Event::EmptyRead);
        self.long(buf, offset)
    }

    /// All of `buf`, without a reference; or nothing, why not is counted, and `buf` holds garbage.
    /// Compiled into the program's own loops: each instruction here is one that other reads' memory
    /// waits behind (docs/cache.md, "What a short read costs").
    #[inline(always)]
    pub(crate) fn short(core: &Core, mapping: &Mapping, buf: &mut [u8], offset: u64) -> bool {
        if buf.len() > core.options.short_read_max_bytes {
            return not_shortly(core, Event::LongRead);
        }
        let head = mapping.index.lookup_hint(offset >> PAGE_SHIFT);
        let Some((frame, from)) = core.frames.try_both(head) else {
            return not_shortly(core, Event::Absent);
        };
        let Some(stamp) = frame.read_begin() else { return not_shortly(core, Event::Changing) };
        let (id, start, span) = frame.readable();
        let (at, bytes) = (offset.wrapping_sub(start), buf.len() as u64);
        if id != mapping.id && !flaw::on(Flaw::AnyIdentity) {
            return not_shortly(core, Event::Identity);
        }
        if at >= u64::from(span) || bytes > u64::from(span) - at {
            return not_in(core, frame, at, bytes);
        }
        let from = guessed(from, at as usize, offset as usize & (PAGE_BYTES - 1));
        // SAFETY: `at + bytes` is inside the folio's order, so the source lies inside the arena
        // (see the head of the file) and may be read by racing loads; `buf` is the caller's alone.
        unsafe { copy_racing(buf.as_mut_ptr(), from, buf.len()) };
        if frame.read_retry(stamp) {
            return not_shortly(core, Event::Changed);
        }
        if !frame.is_used_most() {
            note_use(core, frame, head);
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
        let held = self.core.hold(&self.mapping, page);
        // Given back before the fill, which may have to make room: hence no guard in the match.
        let held = match held.filter(|held| !held.frame().is_changing()) {
            Some(held) => {
                self.core.counters.count(Event::CountedHit);
                held
            }
            // From the start of the page: else a read across two pages looks like two in a row.
            None => fill::get(self, page, (offset as usize & (PAGE_BYTES - 1)) + buf.len())?,
        };
        if held.frame().flags().contains(Flags::READAHEAD) {
            fill::read_further(self, &held);
        }
        Ok(self.copy_held(&held, buf, offset))
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
        if !held.frame().is_used_most() && self.core.counters.shard().comes_to(held.head().0) {
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
fn note_use(core: &Core, frame: &Frame, head: FrameNumber) {
    if core.counters.shard().comes_to(head.0) {
        frame.note_use();
    }
}

/// Counts why a read was not done shortly. Out of line, and called from each place by itself: a
/// reason that is returned would be in a register of the way that is taken.
#[cold]
#[inline(never)]
fn not_shortly(core: &Core, why: Event) -> bool {
    core.counters.count(why);
    false
}

/// The same for so many bytes from `at` of the folio on.
#[cold]
#[inline(never)]
fn not_in(core: &Core, frame: &Frame, at: u64, bytes: u64) -> bool {
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
    not_shortly(core, why)
}
