//! Hits of a batch, in two passes, so that the processor's cache misses overlap. The second is
//! [`BEHIND`] pages behind the first: it works while memory is asked for what it will need.
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
pub(super) const BEHIND: usize = 16;

/// Pass 1 is `ask`, and pass 2 `take`, which gets the number of each of `all` and its hint.
#[inline(always)]
fn in_two_passes<T: ?Sized>(
    all: &mut T,
    count: usize,
    ask: impl Fn(&T, usize) -> FrameNumber,
    mut take: impl FnMut(&mut T, usize, FrameNumber),
) {
    let mut heads = [FrameNumber(0); BEHIND];
    for (at, head) in heads.iter_mut().enumerate().take(count) {
        *head = ask(all, at);
    }
    for at in 0..count {
        let place = &mut heads[at % BEHIND];
        let head = *place;
        if at + BEHIND < count {
            *place = ask(all, at + BEHIND);
        }
        take(all, at, head);
    }
}

/// Out of line.
#[cold]
#[inline(never)]
fn alone<T>(call: impl FnOnce() -> T) -> T {
    call()
}

impl Handle {
    /// The short ones; `left` gets the numbers of the others.
    #[inline]
    pub(crate) fn read_by_hints(&self, reads: &mut [ReadAt<'_>], mut left: impl FnMut(usize)) {
        let shard = self.counters().shard();
        // Reads of one length in a row are counted together.
        let (mut length, mut row) = (0, 0);
        let ask = |reads: &[ReadAt<'_>], at: usize| self.ask_for_bytes(reads[at].offset);
        in_two_passes(reads, reads.len(), ask, |reads, at, head| {
            let read = &mut reads[at];
            let bytes = read.buf.len();
            if bytes != length {
                if bytes == 0 || bytes > self.short_max_bytes as usize {
                    alone(|| self.read_one(read)); // which is no short read, and counts why
                    return left(at);
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
                return;
            };
            row += 1;
            let from = found.from.wrapping_add(found.at as usize);
            if self.copy_found(found, from, read.buf) {
                read.result = Ok(bytes);
            } else {
                left(at);
            }
        });
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
    pub(crate) fn get_by_hints<'a>(
        &'a self,
        pages: &[u64],
        guards: &mut Vec<FolioRef<'a>>,
        left: impl FnMut(usize),
    ) {
        let quick =
            |page, head| self.get_found(self.look(head, page << PAGE_SHIFT, HoldablePage)?);
        let single = |page| self.get_at_once(page);
        let made = guard(pages, |page| self.ask_for_entry(page), guards, quick, single, left);
        self.counters().add(Event::CountedHit, made);
    }

    /// Of what is cached, in slots of `free`, which are of `reader`.
    #[inline]
    pub(crate) fn borrow_by_hints<'f, 'r>(
        &'f self,
        pages: &[u64],
        reader: &'r Reader,
        guards: &mut Vec<Borrowed<'f, 'r>>,
        left: impl FnMut(usize),
    ) {
        let mut free = reader.free_slots();
        if !self.needs_no_fence(reader) {
            return self.borrow_fenced(pages, reader, &mut free, guards, left);
        }
        let quick = |page, head| {
            let found = self.look(head, page << PAGE_SHIFT, WholePage)?;
            self.borrow_found(page, found, reader, &mut free)
        };
        let single = |page| self.borrow_at_once(page, reader);
        guard(pages, |page| self.ask_for_entry(page), guards, quick, single, left);
    }

    /// With one fence for each [`BEHIND`] pages, between all announcements and all comparisons.
    #[cold]
    #[inline(never)]
    fn borrow_fenced<'f, 'r>(
        &'f self,
        pages: &[u64],
        reader: &'r Reader,
        free: &mut FreeSlots<'r>,
        guards: &mut Vec<Borrowed<'f, 'r>>,
        mut left: impl FnMut(usize),
    ) {
        for (block, some) in pages.chunks(BEHIND).enumerate() {
            let mut heads = [FrameNumber(0); BEHIND];
            for (&page, head) in some.iter().zip(&mut heads) {
                *head = self.ask_for_entry(page);
            }
            let mut found = [None; BEHIND];
            for ((&page, &head), found) in some.iter().zip(&heads).zip(&mut found) {
                *found = self.look(head, page << PAGE_SHIFT, AnyPage);
            }
            let left = |at| left(block * BEHIND + at);
            self.borrow_all_found(some, &found, reader, free, guards, left);
        }
    }

    /// Pass 1 for guards.
    #[inline(always)]
    fn ask_for_entry(&self, page: u64) -> FrameNumber {
        let head = self.hint(page);
        prefetch(self.window.both(head).0);
        head
    }
}

/// Both passes for guards: `quick` gets a page by its hint, in order; `left` gets the numbers of the
/// pages without any guard. Returns how many `quick` got.
#[inline(always)]
fn guard<G>(
    pages: &[u64],
    ask: impl Fn(u64) -> FrameNumber,
    guards: &mut Vec<G>,
    mut quick: impl FnMut(u64, FrameNumber) -> Option<G>,
    single: impl Fn(u64) -> Option<G>,
    mut left: impl FnMut(usize),
) -> u64 {
    guards.reserve(pages.len());
    let (mut made, mut by_single) = (0, 0);
    in_two_passes(
        guards.spare_capacity_mut(),
        pages.len(),
        |_, at| ask(pages[at]),
        |room, at, head| {
            // The place is known before there is a guard, or that would pass through the stack.
            let (page, place) = (pages[at], &mut room[made]);
            if let Some(guard) = quick(page, head) {
                place.write(guard);
                made += 1;
            } else if let Some(guard) = alone(|| single(page)) {
                place.write(guard);
                (made, by_single) = (made + 1, by_single + 1);
            } else {
                left(at);
            }
        },
    );
    let len = guards.len() + made;
    // SAFETY: the first `made` of the spare ones were written.
    unsafe { guards.set_len(len) };
    (made - by_single) as u64
}
