//! Hits of a batch: three passes over blocks of pages, so that the processor fetches for all of a
//! block at a time what it would fetch for one page after another.
//!
//! # The passes
//!
//! 1. look up where each page's folio is (a hint), and ask for the folio's entry; ask for the bytes
//!    where they probably are, too;
//! 2. take each folio's version, check its identity, and ask for the bytes where they are;
//! 3. do what a single hit does then: copy, count or announce, and compare the version again.
//!
//! Each pass does with each page what the single call does, by the same functions (`found.rs`,
//! `read.rs`, `borrow/`); only the order is another. That changes nothing for a page: whatever the
//! single call may meet between two of its steps, may happen between two passes. Borrows of a block
//! share one fence, between the announcements of all and the comparisons of all.
//!
//! A core waits for some number of lines at a time (16 on the machine of docs/log.md): hence the
//! size of a block.
//!
//! Called by `many/mod.rs`.

use std::num::NonZero;

use crate::borrow::{Borrowed, FolioRef, Reader};
use crate::counters::Event;
use crate::found::{AnyPage, Found, HoldablePage, Want};
use crate::frame::{FrameNumber, Order, PAGE_BYTES, PAGE_SHIFT, prefetch};
use crate::handle::Handle;
use crate::read::Bytes;

use super::read_at::ReadAt;

/// Pages of a block.
pub(super) const BLOCK: usize = 16;

impl Handle {
    /// The reads of a block that are short ones; `left` gets the numbers of the others.
    #[inline]
    pub(crate) fn read_block(&self, reads: &mut [ReadAt<'_>], mut left: impl FnMut(usize)) {
        let longest = self.short_max_bytes as usize;
        let wanted = reads.iter().map(|read| {
            let bytes = read.buf.len();
            let short = bytes != 0 && bytes <= longest;
            short.then_some((read.offset, Bytes(bytes as u64)))
        });
        let mut found = [None; BLOCK];
        self.begin::<true, _>(wanted, &mut found);
        let shard = self.counters().shard();
        for (at, (read, found)) in reads.iter_mut().zip(&found).enumerate() {
            let Some(bytes) = NonZero::new(read.buf.len()) else {
                self.counters().count(Event::EmptyRead);
                left(at);
                continue;
            };
            shard.count_read(bytes);
            if let &Some(found) = found
                && self.copy_found(found, found.from.wrapping_add(found.at as usize), read.buf)
            {
                read.result = Ok(bytes.get());
                continue;
            }
            if bytes.get() > longest {
                self.counters().count(Event::LongRead);
            }
            left(at);
        }
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
        let mut found = [None; BLOCK];
        let wanted = pages.iter().map(|&page| Some((page, HoldablePage)));
        self.begin::<false, _>(wanted, &mut found);
        for (at, found) in found.iter().take(pages.len()).enumerate() {
            match found.and_then(|found| self.get_found(found)) {
                Some(guard) => guards.push(guard),
                None => left(at),
            }
        }
    }

    /// The same for borrows.
    #[inline]
    pub(crate) fn borrow_block<'f, 'r>(
        &'f self,
        pages: &[u64],
        reader: &'r Reader,
        guards: &mut Vec<Borrowed<'f, 'r>>,
        left: impl FnMut(usize),
    ) {
        let mut found = [None; BLOCK];
        self.begin::<false, _>(pages.iter().map(|&page| Some((page, AnyPage))), &mut found);
        self.borrow_found(pages, &found, reader, guards, left);
    }

    /// Passes 1 and 2 for what is `wanted`: from where on, in `BYTES` or in pages, and what of it.
    /// What was not `found` stays as it was. (An array that is returned would be copied.)
    #[inline(always)]
    fn begin<'a, const BYTES: bool, W: Want>(
        &'a self,
        wanted: impl Iterator<Item = Option<(u64, W)>> + Clone,
        found: &mut [Option<Found<'a>>; BLOCK],
    ) {
        let mut heads = [FrameNumber(0); BLOCK];
        for (wanted, head) in wanted.clone().zip(&mut heads) {
            let Some((from, _)) = wanted else { continue };
            *head = if BYTES { self.hint_of_byte(from) } else { self.hint(from) };
            if let Some((entry, start)) = self.window.try_both(*head) {
                prefetch(entry);
                let offset = if BYTES { from } else { from << PAGE_SHIFT };
                prefetch(start.wrapping_add(offset as usize & (likely_bytes(*head) - 1)));
            }
        }
        for ((wanted, &head), found) in wanted.zip(&heads).zip(found) {
            let Some((from, want)) = wanted else { continue };
            let offset = if BYTES { from } else { from << PAGE_SHIFT };
            if let Some(it) = self.look(head, offset, want) {
                prefetch(it.from.wrapping_add(it.at as usize));
                *found = Some(it);
            }
        }
    }
}

/// The length of the folio that begins at `head`, probably: all of a run of 2 MiB, or one page.
#[inline(always)]
fn likely_bytes(head: FrameNumber) -> usize {
    if head.is_aligned(Order::MAX) { Order::MAX.bytes() } else { PAGE_BYTES }
}
