//! Hits of a batch, in two passes, so that the processor's cache misses overlap. The second is
//! [`BEHIND`] pages behind the first: it works while memory is asked for what it will need.
//!
//! 1. look up where each page's folio is (a hint), and ask for the folio's entry; a read asks for
//!    its bytes, too, where they probably are;
//! 2. do what a single hit does with that hint, by the same functions (`found.rs`, `read.rs`,
//!    `borrow/`).
//!
//! The second pass goes by *rows*: its loop ends where a page needs a call, since around calls the
//! compiler keeps the loop's values in memory. A page for which a step fails is tried once more by
//! the single call, which says why if it fails there, too.

use std::num::NonZero;

use crate::access::borrow::{Borrowed, FolioRef, FreeSlots, Reader};
use crate::access::found::{AnyPage, Found, HoldablePage, Want, WholePage};
use crate::base::counters::Event;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT, prefetch};
use crate::pages::handle::{Asked, Handle};

use super::read_at::ReadAt;
use crate::access::read::{BytesWanted, copied};

/// Pages; a core waits for so many lines at a time. The checker has batches of two.
pub(super) const BEHIND: usize = if cfg!(loom) { 1 } else { 16 };

/// Pass 1, as far as it has got.
struct FirstPass<'a>([Asked<'a>; BEHIND]);

impl<'a> FirstPass<'a> {
    #[inline(always)]
    fn of<T>(handle: &'a Handle, all: &[T], ask: impl Fn(&T) -> Asked<'a>) -> Self {
        let mut first_pass = FirstPass([handle.nothing(); BEHIND]);
        for (of, place) in all.iter().zip(&mut first_pass.0) {
            *place = ask(of);
        }
        first_pass
    }

    /// What was asked for number `at` of `all`; each is taken, in order.
    #[inline(always)]
    fn take<T>(&mut self, all: &[T], at: usize, ask: impl Fn(&T) -> Asked<'a>) -> Asked<'a> {
        let place = &mut self.0[at % BEHIND];
        let there = *place;
        if let Some(later) = all.get(at + BEHIND) {
            *place = ask(later);
        }
        there
    }
}

/// What ended a row of short reads.
enum RowEnd<'a> {
    /// The batch's end, or a read of another length.
    Row,
    /// A read that is not done.
    NotDone,
    /// A read that is done, whose use is to be noted.
    Done(Found<'a>),
}

/// Out of line.
#[cold]
#[inline(never)]
fn alone<T>(call: impl FnOnce() -> T) -> T {
    call()
}

impl Handle {
    /// The short ones; `left` gets the numbers of the others.
    pub(crate) fn read_by_hints(&self, reads: &mut [ReadAt<'_>], left: &mut Vec<usize>) {
        let shard = self.counters().shard();
        let mut first_pass = FirstPass::of(self, reads, |read| self.ask_for_bytes(read.offset));
        let mut at = 0;
        // Ends: each turn is for one read at least.
        while let Some(read) = reads.get(at) {
            // Reads of one length in a row are counted together.
            let bytes = read.buf.len();
            let (end, why) = match NonZero::new(bytes) {
                Some(_) if bytes <= self.window.short_max_bytes as usize => match bytes {
                    // The most frequent one by a loop of its own.
                    64 => self.read_row::<64>(reads, at, &mut first_pass),
                    _ => self.read_row::<0>(reads, at, &mut first_pass),
                },
                _ => {
                    first_pass.take(reads, at, |read| self.ask_for_bytes(read.offset));
                    (at, RowEnd::NotDone)
                }
            };
            let mut done = end - at;
            at = end;
            match why {
                RowEnd::Row => {}
                RowEnd::Done(found) => {
                    found.frame.note_read(shard, found.byte, found.at as usize, bytes);
                    (at, done) = (at + 1, done + 1);
                }
                RowEnd::NotDone => {
                    // It is counted there.
                    if !self.read_one(&mut reads[at]) {
                        left.push(at);
                    }
                    at += 1;
                }
            }
            if let Some(bytes) = NonZero::new(bytes) {
                shard.count_reads(bytes, done as u64);
            }
        }
    }

    /// Pass 2 of a row: reads as long as number `first`, from that on. Returns the number of what
    /// ended it. There is no call in the loop, so that its values stay in registers. `BYTES`: their
    /// length, or 0 for any.
    #[inline(never)]
    fn read_row<'a, const BYTES: usize>(
        &'a self,
        reads: &mut [ReadAt<'_>],
        first: usize,
        first_pass: &mut FirstPass<'a>,
    ) -> (usize, RowEnd<'a>) {
        let bytes = if BYTES == 0 { reads[first].buf.len() } else { BYTES };
        let mut at = first;
        while at < reads.len() && reads[at].buf.len() == bytes {
            let there = first_pass.take(reads, at, |read| self.ask_for_bytes(read.offset));
            let read = &mut reads[at];
            let wanted = BytesWanted::<false>(bytes as u64);
            let head = self.window.frame_of(there.1);
            let Some(found) = self.look_there(head, there, self.global(read.offset), wanted) else {
                return (at, RowEnd::NotDone);
            };
            let Ok(result) = &mut read.result else { return (at, RowEnd::NotDone) };
            let from = found.from.wrapping_add(found.at as usize);
            // SAFETY: the buffer has so many bytes.
            if !unsafe { copied(&found, from, read.buf.as_mut_ptr(), bytes) } {
                return (at, RowEnd::NotDone);
            }
            *result = bytes;
            if !found.frame.is_used_most() {
                return (at, RowEnd::Done(found));
            }
            at += 1;
        }
        (at, RowEnd::Row)
    }

    /// Pass 1 of a read. Where the bytes are is a guess; pass 2 checks.
    #[inline(always)]
    fn ask_for_bytes(&self, offset: u64) -> Asked<'_> {
        let of_small = |head| {
            // SAFETY: `known` gives what the arena has.
            let (frame, from) = unsafe { self.window.get(head) };
            // Probably in its first page.
            prefetch(frame);
            prefetch(from.wrapping_add(offset as usize & (PAGE_BYTES - 1)));
            (frame, from)
        };
        let of_large = |head| {
            // SAFETY: `known` gives what the arena has.
            let (frame, from) = unsafe { self.window.get(head) };
            // One of few entries, so probably near.
            prefetch(from.wrapping_add(self.global(offset).from(frame.start()) as usize));
            (frame, from)
        };
        self.known(offset, PAGE_SHIFT, of_small, of_large).unwrap_or_else(|| self.nothing())
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
    #[inline(never)]
    pub(crate) fn get_by_hints<'a>(
        &'a self,
        pages: &[u64],
        guards: &mut Vec<FolioRef<'a>>,
        left: &mut Vec<usize>,
    ) {
        let shard = self.counters().shard();
        let quick =
            |page, there| self.get_found(self.look_again(there, page, HoldablePage)?, shard);
        let single = |page| self.get_at_once(page);
        let ask = |&page: &u64| self.ask_for_entry(page);
        let made = guard(self, pages, ask, guards, quick, single, left);
        shard.add(Event::CountedHit, made);
    }

    /// Of what is cached, in slots of `free`, which are of `reader`.
    #[inline(never)]
    pub(crate) fn borrow_by_hints<'f, 'r>(
        &'f self,
        pages: &[u64],
        reader: &'r Reader,
        guards: &mut Vec<Borrowed<'f, 'r>>,
        left: &mut Vec<usize>,
    ) {
        let mut free = reader.free_slots();
        if !self.needs_no_fence(reader) {
            return self.borrow_fenced(pages, reader, &mut free, guards, left);
        }
        let quick = |page, there| {
            let found = self.look_again(there, page, WholePage)?;
            self.borrow_found(page, found, reader, &mut free)
        };
        let single = |page| self.borrow_at_once(page, reader);
        let ask = |&page: &u64| self.ask_for_entry(page);
        guard(self, pages, ask, guards, quick, single, left);
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
        left: &mut Vec<usize>,
    ) {
        for (block, some) in pages.chunks(BEHIND).enumerate() {
            let mut asked = [self.nothing(); BEHIND];
            for (&page, there) in some.iter().zip(&mut asked) {
                *there = self.ask_for_entry(page);
            }
            let mut found = [None; BEHIND];
            for ((&page, &there), found) in some.iter().zip(&asked).zip(&mut found) {
                *found = self.look_again(there, page, AnyPage);
            }
            let left = |at| left.push(block * BEHIND + at);
            self.borrow_all_found(some, &found, reader, free, guards, left);
        }
    }

    /// Pass 1 for guards.
    #[inline(always)]
    fn ask_for_entry(&self, page: u64) -> Asked<'_> {
        let (_, there) = self.there(page);
        prefetch(there.0);
        there
    }

    #[inline(always)]
    fn look_again<'a, W: Want>(
        &'a self,
        there: Asked<'a>,
        page: u64,
        want: W,
    ) -> Option<Found<'a>> {
        self.look_there(self.window.frame_of(there.1), there, self.global(page << PAGE_SHIFT), want)
    }
}

/// Both passes for guards: `quick` gets a page by what was asked for it, in order; `left` gets the
/// numbers of the pages without any guard. Returns how many `quick` got.
#[inline(always)]
fn guard<'a, G>(
    handle: &'a Handle,
    pages: &[u64],
    ask: impl Fn(&u64) -> Asked<'a>,
    guards: &mut Vec<G>,
    mut quick: impl FnMut(u64, Asked<'a>) -> Option<G>,
    single: impl Fn(u64) -> Option<G>,
    left: &mut Vec<usize>,
) -> u64 {
    guards.reserve(pages.len());
    let (mut made, mut by_single) = (0, 0);
    let mut first_pass = FirstPass::of(handle, pages, &ask);
    let room = guards.spare_capacity_mut();
    let mut at = 0;
    // Ends: each turn is for one page at least.
    while at < pages.len() {
        // A row of hits, without a call.
        while let Some(&page) = pages.get(at) {
            let there = first_pass.take(pages, at, &ask);
            // The place is known before there is a guard, or that would pass through the stack.
            let place = &mut room[made];
            let Some(guard) = quick(page, there) else { break };
            place.write(guard);
            (made, at) = (made + 1, at + 1);
        }
        // What ended it.
        let Some(&page) = pages.get(at) else { break };
        match alone(|| single(page)) {
            Some(guard) => {
                room[made].write(guard);
                (made, by_single) = (made + 1, by_single + 1);
            }
            None => left.push(at),
        }
        at += 1;
    }
    let len = guards.len() + made;
    // SAFETY: the first `made` of the spare ones were written.
    unsafe { guards.set_len(len) };
    (made - by_single) as u64
}
