//! Hits of a batch, in two passes over blocks of pages, so that the processor's cache misses
//! overlap:
//!
//! 1. look up where each page's folio is (a hint), and ask for the folio's entry; a read asks for
//!    its bytes, too, where they probably are;
//! 2. do what a single hit does with that hint, by the same functions (`found.rs`, `read.rs`,
//!    `borrow/`).
//!
//! A page for which a step fails is tried once more by the single call, which says why if it fails
//! there, too. The first pass leaves the hint alone: to find the entry once more takes fewer
//! instructions than to keep it.

use std::num::NonZero;

use crate::access::borrow::{Borrowed, FolioRef, FreeSlots, Reader};
use crate::access::found::{AnyPage, HoldablePage, WholePage};
use crate::base::counters::Event;
use crate::frames::{FrameNumber, PAGE_BYTES, PAGE_SHIFT, prefetch};
use crate::pages::handle::Handle;

use super::read_at::ReadAt;
use crate::access::read::BytesWanted;

/// Pages; a core waits for so many lines at a time.
pub(super) const BLOCK: usize = 16;

/// Out of line.
#[cold]
#[inline(never)]
fn alone<T>(call: impl FnOnce() -> T) -> T {
    call()
}

impl Handle {
    /// The short ones; `left` gets the numbers of the others.
    #[inline]
    pub(crate) fn read_block(&self, reads: &mut [ReadAt<'_>], mut left: impl FnMut(usize)) {
        let mut heads = [FrameNumber(0); BLOCK];
        for (read, head) in reads.iter().zip(&mut heads) {
            *head = self.ask_for_bytes(read.offset);
        }
        let shard = self.counters().shard();
        // Reads of one length in a row are counted together.
        let (mut length, mut row) = (0, 0);
        for (at, (read, &head)) in reads.iter_mut().zip(&heads).enumerate() {
            let bytes = read.buf.len();
            if bytes != length {
                if bytes == 0 || bytes > self.short_max_bytes as usize {
                    alone(|| self.read_one(read)); // which is no short read, and counts why
                    left(at);
                    continue;
                }
                if let Some(length) = NonZero::new(length) {
                    shard.count_reads(length, row);
                }
                (length, row) = (bytes, 0);
            }
            let Some(found) = self.look(head, read.offset, BytesWanted::<false>(bytes as u64))
            else {
                if !alone(|| self.read_one(read)) {
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

    /// Pass 1 of a read. Where the bytes are is a guess; pass 2 checks.
    #[inline(always)]
    fn ask_for_bytes(&self, offset: u64) -> FrameNumber {
        let (head, small) = self.hint_and_size_of_byte(offset);
        let (frame, from) = self.window.both(head);
        let at = if small {
            // Probably in its first page.
            prefetch(frame);
            offset & (PAGE_BYTES as u64 - 1)
        } else {
            // One of few entries, so probably near.
            offset.wrapping_sub(frame.start_now())
        };
        prefetch(from.wrapping_add(at as usize));
        head
    }

    #[inline(always)]
    pub(super) fn read_one(&self, read: &mut ReadAt<'_>) -> bool {
        let short = self.read_shortly(read.buf, read.offset);
        if short {
            read.result = Ok(read.buf.len());
        }
        short
    }

    /// Those that can be held at once, in order; `left` gets the numbers of the others.
    #[inline]
    pub(crate) fn get_block<'a>(
        &'a self,
        pages: &[u64],
        guards: &mut Vec<FolioRef<'a>>,
        left: impl FnMut(usize),
    ) {
        let heads = self.ask_for_entries(pages);
        let quick =
            |page, head| self.get_found(self.look(head, page << PAGE_SHIFT, HoldablePage)?);
        let made = guard_block(pages, &heads, guards, quick, |page| self.get_at_once(page), left);
        self.counters().add(Event::CountedHit, made);
    }

    /// Of what is cached, in slots of `free`, which are of `reader`.
    #[inline]
    pub(crate) fn borrow_block<'f, 'r>(
        &'f self,
        pages: &[u64],
        reader: &'r Reader,
        free: &mut FreeSlots<'r>,
        guards: &mut Vec<Borrowed<'f, 'r>>,
        left: impl FnMut(usize),
    ) {
        let heads = self.ask_for_entries(pages);
        if !self.needs_no_fence(reader) {
            return self.borrow_fenced(pages, &heads, reader, free, guards, left);
        }
        let quick = |page, head| {
            let found = self.look(head, page << PAGE_SHIFT, WholePage)?;
            self.borrow_found(page, found, reader, free)
        };
        let single = |page| self.borrow_at_once(page, reader);
        guard_block(pages, &heads, guards, quick, single, left);
    }

    /// With one fence for the whole block, between all announcements and all comparisons.
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
            *found = self.look(head, page << PAGE_SHIFT, AnyPage);
        }
        self.borrow_all_found(pages, &found, reader, free, guards, left);
    }

    /// Pass 1 for guards.
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

/// Pass 2 for guards, by `quick` with the hint, in order; `left` gets the numbers of the pages
/// without any. Returns how many `quick` got.
#[inline(always)]
fn guard_block<G>(
    pages: &[u64],
    heads: &[FrameNumber; BLOCK],
    guards: &mut Vec<G>,
    mut quick: impl FnMut(u64, FrameNumber) -> Option<G>,
    single: impl Fn(u64) -> Option<G>,
    mut left: impl FnMut(usize),
) -> u64 {
    guards.reserve(pages.len());
    let (room, mut made, mut by_single) = (guards.spare_capacity_mut(), 0, 0);
    for (at, (&page, &head)) in pages.iter().zip(heads).enumerate() {
        // The place is known before there is a guard, or that would pass through the stack.
        let place = &mut room[made];
        if let Some(guard) = quick(page, head) {
            place.write(guard);
            made += 1;
        } else if let Some(guard) = alone(|| single(page)) {
            place.write(guard);
            (made, by_single) = (made + 1, by_single + 1);
        } else {
            left(at);
        }
    }
    let len = guards.len() + made;
    // SAFETY: the first `made` of the spare ones were written.
    unsafe { guards.set_len(len) };
    (made - by_single) as u64
}
