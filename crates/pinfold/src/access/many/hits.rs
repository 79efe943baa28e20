//! Hits of a batch: passes over blocks of pages, so that the processor fetches for all of a block at
//! a time what it would fetch for one page after another.
//!
//! # The passes
//!
//! 1. look up where each page's folio is (a hint), and ask for the folio's entry; a read asks for
//!    its bytes, too, where they probably are;
//! 2. do what a single hit does with that hint: check the folio's version and identity, copy, count
//!    or announce, and compare the version again.
//!
//! A guard's bytes are not asked for: nobody knows yet which of them the program will look at. It
//! looks at all pages of the batch afterwards, which then are waited for together.
//!
//! By the same functions as the single call (`found.rs`, `read.rs`, `borrow/`); only the order is
//! another. That changes nothing for a page: whatever the single call may meet between two of its
//! steps, may happen between two passes. A page for which a step fails is tried once more by the
//! single call, which says why if it fails there, too.
//!
//! What the first pass leaves for the second is the hint alone: to find the entry once more takes
//! fewer instructions than to keep what else was found.
//!
//! A core waits for some number of lines at a time (16 on the machine of docs/log.md): hence the
//! size of a block.

use std::num::NonZero;

use crate::access::borrow::{Borrowed, FolioRef, FreeSlots, Reader};
use crate::access::found::{AnyPage, HoldablePage, Want, WholePage};
use crate::base::counters::Event;
use crate::frames::{Frame, FrameNumber, PAGE_BYTES, PAGE_SHIFT, prefetch};
use crate::pages::handle::Handle;

use super::read_at::ReadAt;
use crate::access::read::BytesWanted;

/// Pages of a block.
pub(super) const BLOCK: usize = 16;

/// What is wanted, without a count of what is not found: the single call is tried then.
#[derive(Clone, Copy)]
struct Uncounted<W>(W);

impl<W: Want> Want for Uncounted<W> {
    #[inline(always)]
    fn readable(self, frame: &Frame) -> (u32, u64, u64) {
        self.0.readable(frame)
    }

    #[inline(always)]
    fn fits(self, at: u64, span: u64) -> bool {
        self.0.fits(at, span)
    }
}

impl Handle {
    /// The reads of a block that are short ones; `left` gets the numbers of the others.
    #[inline]
    pub(crate) fn read_block(&self, reads: &mut [ReadAt<'_>], mut left: impl FnMut(usize)) {
        let mut heads = [FrameNumber(0); BLOCK];
        for (read, head) in reads.iter().zip(&mut heads) {
            *head = self.ask_for_bytes(read.offset);
        }
        let shard = self.counters().shard();
        // Reads of one length in a row, which are counted together; at first of none.
        let (mut length, mut row) = (0, 0);
        for (at, (read, &head)) in reads.iter_mut().zip(&heads).enumerate() {
            let bytes = read.buf.len();
            if bytes != length {
                if bytes == 0 || bytes > self.short_max_bytes as usize {
                    self.read_alone(read); // which is no short read, and counts why
                    left(at);
                    continue;
                }
                if let Some(length) = NonZero::new(length) {
                    shard.count_reads(length, row);
                }
                (length, row) = (bytes, 0);
            }
            let Some(found) = self.look(head, read.offset, Uncounted(BytesWanted(bytes as u64)))
            else {
                if !self.read_alone(read) {
                    left(at);
                }
                continue;
            };
            row += 1;
            let from = found.from.wrapping_add(found.at as usize);
            if self.copy_found(found, from, read.buf) {
                read.result = Ok(bytes);
            } else {
                left(at);
            }
        }
        if let Some(length) = NonZero::new(length) {
            shard.count_reads(length, row);
        }
    }

    /// Pass 1 of a read: the folio by the index, and its entry and the bytes asked for. Where the
    /// bytes are is a guess, as nothing is checked; pass 2 checks.
    #[inline(always)]
    fn ask_for_bytes(&self, offset: u64) -> FrameNumber {
        let (head, small) = self.hint_and_size_of_byte(offset);
        let (frame, from) = self.window.both(head);
        let at = if small {
            // Probably in its first page. Its entry is not waited for then.
            prefetch(frame);
            offset & (PAGE_BYTES as u64 - 1)
        } else {
            // One of few entries, so probably near.
            offset.wrapping_sub(frame.start_now())
        };
        prefetch(from.wrapping_add(at as usize));
        head
    }

    /// A read by the single call's short path.
    #[inline(always)]
    pub(super) fn read_one(&self, read: &mut ReadAt<'_>) -> bool {
        let Some(bytes) = NonZero::new(read.buf.len()) else {
            self.counters().count(Event::EmptyRead);
            return false;
        };
        self.counters().shard().count_read(bytes);
        let short = self.short(read.buf, read.offset);
        if short {
            read.result = Ok(bytes.get());
        }
        short
    }

    #[cold]
    #[inline(never)]
    fn read_alone(&self, read: &mut ReadAt<'_>) -> bool {
        self.read_one(read)
    }

    /// The pages of a block that can be held at once, in order, to the end of `guards`; `left` gets
    /// the numbers of the others.
    #[inline]
    pub(crate) fn get_block<'a>(
        &'a self,
        pages: &[u64],
        guards: &mut Vec<FolioRef<'a>>,
        mut left: impl FnMut(usize),
    ) {
        let heads = self.ask_for_entries(pages);
        guards.reserve(pages.len());
        let (room, mut made, mut alone) = (guards.spare_capacity_mut(), 0, 0);
        for (at, (&page, &head)) in pages.iter().zip(&heads).enumerate() {
            // Each guard is written to its place, which is known before there is a guard: otherwise
            // the guard would pass through the stack.
            let place = &mut room[made];
            if let Some(found) = self.look(head, page << PAGE_SHIFT, Uncounted(HoldablePage))
                && let Some(guard) = self.get_found(found)
            {
                place.write(guard);
                made += 1;
            } else if let Some(guard) = self.get_alone(page) {
                place.write(guard);
                (made, alone) = (made + 1, alone + 1);
            } else {
                left(at);
            }
        }
        let len = guards.len() + made;
        // SAFETY: the first `made` of the spare ones were written.
        unsafe { guards.set_len(len) };
        self.counters().add(Event::CountedHit, (made - alone) as u64);
    }

    #[cold]
    #[inline(never)]
    fn get_alone(&self, page: u64) -> Option<FolioRef<'_>> {
        self.get_at_once(page)
    }

    /// Borrows what is cached of a block of pages, in slots of `free`, which are of `reader`.
    #[inline]
    pub(crate) fn borrow_block<'f, 'r>(
        &'f self,
        pages: &[u64],
        reader: &'r Reader,
        free: &mut FreeSlots<'r>,
        guards: &mut Vec<Borrowed<'f, 'r>>,
        mut left: impl FnMut(usize),
    ) {
        let heads = self.ask_for_entries(pages);
        if !self.needs_no_fence(reader) {
            return self.borrow_fenced(pages, &heads, reader, free, guards, left);
        }
        guards.reserve(pages.len());
        let (room, mut made) = (guards.spare_capacity_mut(), 0);
        for (at, (&page, &head)) in pages.iter().zip(&heads).enumerate() {
            let place = &mut room[made]; // as in `get_block`
            if let Some(found) = self.look(head, page << PAGE_SHIFT, Uncounted(WholePage))
                && let Some(guard) = self.borrow_found(page, found, reader, free)
            {
                place.write(guard);
                made += 1;
            } else if let Some(guard) = self.borrow_alone(page, reader) {
                place.write(guard);
                made += 1;
            } else {
                left(at);
            }
        }
        let len = guards.len() + made;
        // SAFETY: as in `get_block`.
        unsafe { guards.set_len(len) };
    }

    /// The second pass of a reader that needs fences: one for the whole block, between the
    /// announcements of all and the comparisons of all.
    #[cold]
    #[inline(never)]
    fn borrow_fenced<'f, 'r>(
        &'f self,
        pages: &[u64],
        heads: &[FrameNumber; BLOCK],
        reader: &'r Reader,
        free: &mut FreeSlots<'r>,
        guards: &mut Vec<Borrowed<'f, 'r>>,
        left: impl FnMut(usize),
    ) {
        let mut found = [None; BLOCK];
        for ((&page, &head), found) in pages.iter().zip(heads).zip(&mut found) {
            *found = self.look(head, page << PAGE_SHIFT, Uncounted(AnyPage));
        }
        self.borrow_all_found(pages, &found, reader, free, guards, left);
    }

    #[cold]
    #[inline(never)]
    fn borrow_alone<'f, 'r>(&'f self, page: u64, reader: &'r Reader) -> Option<Borrowed<'f, 'r>> {
        self.borrow_at_once(page, reader)
    }

    /// Pass 1 for guards: the folios by the index, and their entries asked for.
    #[inline(always)]
    fn ask_for_entries(&self, pages: &[u64]) -> [FrameNumber; BLOCK] {
        let mut heads = [FrameNumber(0); BLOCK];
        for (&page, head) in pages.iter().zip(&mut heads) {
            *head = self.hint(page);
            prefetch(self.window.both(*head).0);
        }
        heads
    }
}
