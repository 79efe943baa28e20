//! How often a folio was used lately, and in which parts: hints of readers for the policy.
//!
//! # The word `uses`
//!
//! | bits | meaning |
//! |---|---|
//! | 0 and 1 | uses since the policy last looked, up to [`USES_MAX`] |
//! | 5, [`FIRST`] | some parts may not have been read since the folio was brought; `touched` has those that were |
//! | 6, [`FRESH`] | nobody has read the folio since it was brought; then there are no uses |
//! | 7, [`SETTLED`] | readers have nothing more to note: the uses are at their maximum, and the folio was used all over, or has one page |
//!
//! `touched` has a bit for each *part* of a large folio: a page, or a 64th of the folio. It is 0 as
//! long as nothing is known. The first read of a part is no use. Before the first use, the bit of a
//! part of several pages stands for one of these, at another place in each part: so whoever reads
//! one page of each has few bits. Then it stands for any page.
//!
//! # When a read stores here
//!
//! 1. Not if the word is `SETTLED`, which readers look at first ([`Frame::is_used_most`]).
//! 2. Not if a read of at most a page ends in the page in which the thread's last one ended, and
//!    the folio is not `FRESH` ([`Frame::note_read`]; from 4 TiB on, the page may be another
//!    file's); not if the page is the one that its reader borrowed last (`borrow/reader.rs`). These
//!    also say whether the thread *comes* from another folio. A pin always comes; an optimistic
//!    read never does.
//! 3. Not if the entry says already what the read would add (`is_noted`).
//! 4. Otherwise `note_news` stores first reads; then a use, if the thread comes; and used parts.

use std::ops::Range;

use super::entry::{Frame, Global};
use super::units::{Order, PAGE_BYTES, PAGE_SHIFT};
use crate::base::counters::Shard;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::Ordering;

pub(crate) const USES_MAX: u8 = 3;

const FIRST: u8 = 1 << 5;
const FRESH: u8 = 1 << 6;
const SETTLED: u8 = 1 << 7;

/// Log2 of the parts of a large folio whose uses are told apart: at least a page each.
const PARTS_BITS: u8 = 6;

impl Frame {
    /// The folio was brought just now.
    pub(crate) fn set_fresh(&self) {
        // Relaxed, as all loads and stores here: nothing is published by a hint.
        self.uses.store(FRESH, Ordering::Relaxed);
    }

    /// Whether some part may not have been read since it was brought.
    #[inline]
    pub(crate) fn is_first_read(&self) -> bool {
        self.uses.load(Ordering::Relaxed) & (FRESH | FIRST) != 0
    }

    /// How many of `pages`, counted from the folio's first, nobody has read since it was brought:
    /// an estimate, if parts have several pages; 0 if nothing is known.
    pub(crate) fn unread_pages(&self, pages: Range<u32>) -> u32 {
        let (uses, order) = (self.uses.load(Ordering::Relaxed), self.order());
        if uses & FRESH != 0 {
            return pages.end.saturating_sub(pages.start);
        }
        if uses & FIRST == 0 || order == Order::MIN || mutant::on(Mutant::PartIsWhole) {
            return 0;
        }
        let touched = self.touched.load(Ordering::Relaxed);
        let part_pages = Self::part_order(order).frames();
        // The folio may be another one by now: then any number will do.
        let parts = (pages.start / part_pages).min(64)..pages.end.div_ceil(part_pages).min(64);
        let unread_in = |part: u32| {
            let (start, end) = (part * part_pages, (part + 1) * part_pages);
            pages.end.min(end).saturating_sub(pages.start.max(start))
        };
        parts.filter(|part| touched >> part & 1 == 0).map(unread_in).sum()
    }

    /// Notes a read of `bytes` bytes from `at` of the folio on, the first of which is `first`:
    /// steps 1 and 2, and the others out of line.
    #[inline(always)]
    pub(crate) fn note_read(&self, shard: &Shard, first: Global, at: usize, bytes: usize) {
        let uses = self.uses.load(Ordering::Relaxed);
        if uses >= SETTLED {
            return;
        }
        // At least a byte, or nothing was read.
        let end = first.after(bytes.max(1) as u64 - 1);
        let reads_on = bytes <= PAGE_BYTES && end.is_in_page_of(Global::of_word(shard.last()));
        if !reads_on || uses & FRESH != 0 {
            self.note_other(shard, end, at, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_other(&self, shard: &Shard, end: Global, at: usize, bytes: usize) {
        let last = Global::of_word(shard.last());
        shard.set_last(end.word());
        // The folio may be another one by now: then any answer will do.
        let came = last.from(self.start()) >= self.order().bytes() as u64;
        self.note_use(came, at, bytes);
    }

    /// Notes a read of `bytes` bytes from `at` of the folio on, by a thread that `came` from
    /// another folio or read on in this one. Once all that is read was read before, each coming is
    /// one more use; from then on, reads show which parts are used. Two readers at once may count
    /// as one, and a stale reader may count for another folio.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_use(&self, came: bool, at: usize, bytes: usize) {
        if !self.is_noted(came, at, bytes) {
            self.note_news(came, at, bytes);
        }
    }

    /// Whether the entry says already what this read would add.
    #[inline]
    fn is_noted(&self, came: bool, at: usize, bytes: usize) -> bool {
        let uses = self.uses.load(Ordering::Relaxed);
        if uses & FRESH != 0 || came && uses & USES_MAX < USES_MAX {
            return false;
        }
        if uses & (FIRST | USES_MAX) == 0 {
            return true;
        }
        let bits = parts_of(self.order(), at, bytes);
        self.touched.load(Ordering::Relaxed) & bits == bits
    }

    fn note_news(&self, came: bool, at: usize, bytes: usize) {
        let (old, order) = (self.uses.load(Ordering::Relaxed), self.order());
        let touched = self.touched.load(Ordering::Relaxed);
        let bits = parts_of(order, at, bytes);
        let before_uses = old & (FRESH | FIRST) != 0 && old & USES_MAX == 0;
        let samples = samples_of(order, at, bytes);
        let all_read = old & FRESH == 0 && is_spread(touched, order);
        // Of other pages than samples nobody knows it before all was read.
        let was_read = all_read || samples != 0 && touched & samples == samples;
        let (new, now_touched) = if before_uses && !(came && was_read) {
            (FIRST, touched | samples)
        } else {
            let uses = (old & USES_MAX).saturating_add(came.into()).min(USES_MAX);
            // From the first use on, the parts that are used are noted.
            let kept = if before_uses && all_read || uses == 0 { 0 } else { touched };
            let now_touched = if uses > 0 { kept | bits } else { kept };
            let spread = is_spread(now_touched, order);
            let first = if all_read || spread { 0 } else { old & FIRST };
            let settled = if spread && uses == USES_MAX { SETTLED } else { 0 };
            (uses | first | settled, now_touched)
        };
        if now_touched != touched {
            self.touched.store(now_touched, Ordering::Relaxed);
        }
        if new != old {
            self.uses.store(new, Ordering::Relaxed);
        }
    }

    /// Takes over what is known of `other`, a folio of the same order.
    pub(crate) fn set_uses_of(&self, other: &Frame) {
        self.touched.store(other.touched.load(Ordering::Relaxed), Ordering::Relaxed);
        self.uses.store(other.uses.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn is_partly_used(&self) -> bool {
        let touched = self.touched.load(Ordering::Relaxed);
        let order = self.order();
        order > Order::MIN && touched != 0 && self.uses() > 0 && !is_spread(touched, order)
    }

    pub(crate) fn part_order(order: Order) -> Order {
        Order(order.get().saturating_sub(PARTS_BITS))
    }

    /// Whether the `n`th piece of `order` has a part that was used, as far as is known.
    pub(crate) fn is_piece_used(&self, n: u32, order: Order) -> bool {
        let touched = self.touched.load(Ordering::Relaxed);
        let part_frames = Self::part_order(self.order()).frames();
        let first = n * order.frames() / part_frames;
        let parts = (order.frames() / part_frames).max(1);
        touched == 0 || touched >> first & (u64::MAX >> (64 - parts)) != 0
    }

    #[inline(always)]
    pub(crate) fn is_used_most(&self) -> bool {
        self.uses.load(Ordering::Relaxed) >= SETTLED
    }

    #[inline]
    pub(crate) fn uses(&self) -> u8 {
        self.uses.load(Ordering::Relaxed) & USES_MAX
    }

    /// Cut off at [`USES_MAX`], of parts that are not known; for the policy's sweep.
    #[inline]
    pub(crate) fn set_uses(&self, uses: u8) {
        let settled = if uses >= USES_MAX && self.order() == Order::MIN { SETTLED } else { 0 };
        self.touched.store(0, Ordering::Relaxed);
        self.uses.store(uses.min(USES_MAX) | settled, Ordering::Relaxed);
    }
}

/// The parts of `bytes` bytes from `at` of a folio on. Of one page: none.
#[inline]
fn parts_of(order: Order, at: usize, bytes: usize) -> u64 {
    if order == Order::MIN {
        return 0;
    }
    let shift = PAGE_SHIFT + u32::from(order.get().saturating_sub(PARTS_BITS));
    // The folio may be another one by now: then any bits will do.
    let last = (at.saturating_add(bytes.max(1) - 1) >> shift).min(63);
    let first = (at >> shift).min(last);
    (u64::MAX >> (63 - (last - first))) << first
}

/// Those of them whose sample, one page of each part, is among these bytes.
fn samples_of(order: Order, at: usize, bytes: usize) -> u64 {
    let all = parts_of(order, at, bytes);
    let part_pages = Frame::part_order(order).frames() as usize;
    if part_pages == 1 || all == 0 {
        return all;
    }
    let pages = at >> PAGE_SHIFT..=at.saturating_add(bytes.max(1) - 1) >> PAGE_SHIFT;
    // The upper bits of the product differ from part to part without a period that is short.
    let sample = |part: u32| {
        let place = part.wrapping_mul(0x9E37_79B1) >> 16;
        (part as usize * part_pages) + (place as usize & (part_pages - 1))
    };
    let (first, last) = (all.trailing_zeros(), all.ilog2());
    let unread = [first, last].into_iter().filter(|&part| !pages.contains(&sample(part)));
    unread.fold(all, |bits, part| bits & !(1 << part))
}

/// Whether so many parts were used that seven eighths of all pages may have been. Where parts have
/// many pages, a few used ones touch most parts.
fn is_spread(touched: u64, order: Order) -> bool {
    if order == Order::MIN {
        return true;
    }
    let parts = 1_u32 << order.get().min(PARTS_BITS);
    let part_pages = 1 << order.get().saturating_sub(PARTS_BITS);
    let unused = parts - touched.count_ones().min(parts);
    unused <= parts.checked_shr(3 * part_pages).unwrap_or(0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::frames::Identity;

    #[test]
    fn a_thread_that_reads_on_adds_no_use() {
        let shard = Shard::new();
        let frames = [0, 1].map(|number| {
            let frame = Frame::new();
            frame.hand_out(Order(4));
            frame.set_identity(Identity { mapping: 5, index: 16 * number, order: Order(4) });
            frame.set_uses(0);
            frame
        });
        let read = |of: usize, page: usize, bytes: usize| {
            let at = page * PAGE_BYTES;
            frames[of].note_read(&shard, frames[of].start().after(at as u64), at, bytes);
            (frames[of].uses(), frames[of].touched.load(Ordering::Relaxed))
        };
        assert_eq!(read(0, 0, 64), (1, 0b1), "it comes");
        frames[0].touched.store(0, Ordering::Relaxed);
        assert_eq!(read(0, 0, 4096), (1, 0), "the same page is not noted again");
        frames[0].set_fresh();
        assert_eq!(read(0, 0, 64), (0, 0b1), "but for the first read of a folio");
        frames[0].set_uses(1);
        frames[0].touched.store(0b1, Ordering::Relaxed);
        assert_eq!(read(0, 1, 64), (1, 0b11), "it reads on");
        assert_eq!(read(0, 1, 4097), (1, 0b111), "to a further page");
        assert_eq!(read(0, 3, 2 * 4096), (1, 0b1_1111), "two others");
        frames[0].touched.store(0, Ordering::Relaxed);
        assert_eq!(read(0, 3, 2 * 4096), (1, 0b1_1000), "more than the page that it ends in");
        assert_eq!(read(1, 15, 4096), (1, 1 << 15), "of another folio");
        assert_eq!(read(0, 15, 4096), (2, 1 << 15 | 0b1_1000), "back again");
    }

    /// Of each state that a folio gets into by reads, moves of the policy's, and both.
    #[test]
    fn a_read_that_is_noted_would_change_nothing() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut noted = 0;
        for order in [0, 1, 4, 6, 9].map(Order) {
            let frame = Frame::new();
            frame.hand_out(order);
            for _ in 0..20_000 {
                let came = random.bool();
                let at = random.usize(..order.bytes());
                let bytes = random.usize(1..=(order.bytes() - at).min(4 * PAGE_BYTES));
                match random.u32(..100) {
                    0 => frame.set_fresh(),
                    1..4 => frame.set_uses(random.u8(..=USES_MAX)),
                    4..8 => frame.note_use(came, 0, order.bytes()),
                    _ => frame.note_use(came, at, bytes),
                }
                let state = || {
                    [
                        u64::from(frame.uses.load(Ordering::Relaxed)),
                        frame.touched.load(Ordering::Relaxed),
                    ]
                };
                let before = state();
                if frame.is_noted(came, at, bytes) {
                    frame.note_news(came, at, bytes);
                    assert_eq!(state(), before, "{order:?} {came} {at} {bytes}");
                    noted += 1;
                }
            }
        }
        assert!(noted > 10_000, "{noted}");
    }
}
