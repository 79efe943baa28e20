//! How often a folio was used lately, and in which of its parts.
//!
//! Here: the hints that readers leave in the entry for the policy. Not here: what follows from them
//! (`pinfold_policy`, `reclaim/parts.rs`).
//!
//! # The word `uses`
//!
//! | bits | meaning |
//! |---|---|
//! | 0 and 1 | uses since the policy last looked, up to [`USES_MAX`] |
//! | 6, [`FRESH`] | nobody has read the folio since it was brought; then there are no uses |
//! | 7, [`SETTLED`] | readers have nothing more to note: the uses are at their maximum, and the folio was used all over, or has one page |
//!
//! `touched` has a bit for each *part* of a large folio: a page, or a 64th of the folio. It is 0 as
//! long as nothing is known of parts.

use super::entry::Frame;
use super::units::{Order, PAGE_SHIFT};
use crate::base::sync::Ordering;

/// The maximum of the two-bit count of uses.
pub(crate) const USES_MAX: u8 = 3;

/// Of `uses`: nobody has read the folio since it was brought.
const FRESH: u8 = 1 << 6;
/// Of `uses`: readers have nothing more to note.
const SETTLED: u8 = 1 << 7;

/// Log2 of the parts of a large folio whose uses are told apart: at least a page each.
const PARTS_BITS: u8 = 6;

impl Frame {
    /// The folio was brought just now: the first read of it is what it was brought for, and no use.
    pub(crate) fn set_fresh(&self) {
        // Relaxed, here and below: nothing is published by a hint.
        self.uses.store(FRESH, Ordering::Relaxed);
    }

    /// Whether nobody has read the folio since it was brought.
    #[inline]
    pub(crate) fn is_unread(&self) -> bool {
        self.uses.load(Ordering::Relaxed) & FRESH != 0
    }

    /// Notes a read of `bytes` bytes from `at` of the folio on, by a thread that `came` from another
    /// folio or read on in this one. The first is one more use, up to [`USES_MAX`]; and reads of a
    /// folio that has a use show which parts of it are used. A folio that is used all the time, and
    /// in all parts, costs its readers one load and no store. Two readers at once may count as one,
    /// and a stale reader may count a use of the folio that is in the frame now: it is a hint.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_use(&self, came: bool, at: usize, bytes: usize) {
        let old = self.uses.load(Ordering::Relaxed);
        let uses = match old & USES_MAX {
            _ if old & FRESH != 0 => 0,
            uses if came => (uses + 1).min(USES_MAX),
            uses => uses,
        };
        let fresh = if came { 0 } else { old & FRESH };
        let spread = uses > 0 && self.touch(at, bytes);
        let settled = if spread && uses == USES_MAX { SETTLED } else { 0 };
        let new = uses | fresh | settled;
        if new != old {
            self.uses.store(new, Ordering::Relaxed);
        }
    }

    /// Notes which parts of the folio were used; returns whether all are by now, but for a few.
    fn touch(&self, at: usize, bytes: usize) -> bool {
        let order = self.order();
        if order == Order::MIN {
            return true;
        }
        let shift = PAGE_SHIFT + u32::from(order.get().saturating_sub(PARTS_BITS));
        // The folio may be another one by now: then any bits will do.
        let last = (at.saturating_add(bytes.max(1) - 1) >> shift).min(63);
        let first = (at >> shift).min(last);
        let bits = (u64::MAX >> (63 - (last - first))) << first;
        let old = self.touched.load(Ordering::Relaxed);
        if old & bits != bits {
            self.touched.store(old | bits, Ordering::Relaxed);
        }
        is_spread(old | bits, order)
    }

    /// The parts in which the uses of a large folio are told apart, if these are uses of a few.
    pub(crate) fn is_partly_used(&self) -> bool {
        let touched = self.touched.load(Ordering::Relaxed);
        let order = self.order();
        order > Order::MIN && touched != 0 && self.uses() > 0 && !is_spread(touched, order)
    }

    /// The order of the parts in which uses of a folio of `order` are told apart.
    pub(crate) fn part_order(order: Order) -> Order {
        Order(order.get().saturating_sub(PARTS_BITS))
    }

    /// Whether the `n`th piece of `order` has a part that was used; if nothing is known of parts, all
    /// were.
    pub(crate) fn is_piece_used(&self, n: u32, order: Order) -> bool {
        let touched = self.touched.load(Ordering::Relaxed);
        let part_frames = Self::part_order(self.order()).frames();
        let first = n * order.frames() / part_frames;
        let parts = (order.frames() / part_frames).max(1);
        touched == 0 || touched >> first & (u64::MAX >> (64 - parts)) != 0
    }

    /// Whether readers have nothing more to note.
    #[inline(always)]
    pub(crate) fn is_used_most(&self) -> bool {
        // Relaxed: a hint.
        self.uses.load(Ordering::Relaxed) >= SETTLED
    }

    /// How often the folio was used lately, 0 to [`USES_MAX`].
    #[inline]
    pub(crate) fn uses(&self) -> u8 {
        self.uses.load(Ordering::Relaxed) & USES_MAX
    }

    /// Sets the uses, cut off at [`USES_MAX`], of parts that are not known; for the policy's sweep.
    #[inline]
    pub(crate) fn set_uses(&self, uses: u8) {
        // Relaxed, both: hints.
        self.touched.store(0, Ordering::Relaxed);
        self.uses.store(uses.min(USES_MAX), Ordering::Relaxed);
    }
}

/// Whether the parts that were used are so many that seven eighths of all pages may have been. Where
/// parts have many pages, a few used ones touch most parts.
fn is_spread(touched: u64, order: Order) -> bool {
    let parts = 1_u32 << order.get().min(PARTS_BITS);
    let part_pages = 1 << order.get().saturating_sub(PARTS_BITS);
    let unused = parts - touched.count_ones().min(parts);
    unused <= parts.checked_shr(3 * part_pages).unwrap_or(0)
}
