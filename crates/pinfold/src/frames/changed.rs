//! Where a folio was changed since it was clean: of one that is large, the rest is not written. A
//! bit of [`Flags::CHANGED`] stands for a page, or for a sixteenth of a folio of more pages. No bit
//! stands for all of it: a folio that is not clean, and moves or is split, has none.

use std::ops::Range;

use super::entry::Flags;
use super::units::{Order, PAGE_SHIFT};

const SHIFT: u32 = Flags::CHANGED.bits().trailing_zeros();
const BITS: u32 = Flags::CHANGED.bits().count_ones();

/// A bit's bytes are two to the power of this.
fn bit_shift(order: Order) -> u32 {
    PAGE_SHIFT + u32::from(order.get()).saturating_sub(BITS.ilog2())
}

impl Flags {
    /// Of a change of these bytes of a folio, at least one.
    pub(crate) fn changed(order: Order, bytes: &Range<usize>) -> Flags {
        let shift = bit_shift(order);
        let (first, last) = (bytes.start >> shift, (bytes.end - 1) >> shift);
        Flags::from_bits_retain(((2 << last) - (1 << first)) << SHIFT)
    }

    /// The bytes that were changed, and perhaps others: adjacent ones together, in ascending order.
    pub(crate) fn changed_bytes(self, order: Order) -> impl Iterator<Item = Range<usize>> {
        let shift = bit_shift(order);
        let mut bits = (self & Flags::CHANGED).bits() >> SHIFT;
        if bits == 0 {
            bits = (1 << order.frames().min(BITS)) - 1;
        }
        std::iter::from_fn(move || {
            let first = bits.trailing_zeros();
            let end = first + (bits.checked_shr(first)?).trailing_ones();
            bits = bits >> end << end;
            Some(1 << shift).map(|bytes: usize| first as usize * bytes..end as usize * bytes)
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn order(pages: u32) -> Order {
        Order::new(pages.ilog2() as u8).unwrap()
    }

    #[test]
    fn changes_are_told_by_pages_or_sixteenths() {
        const KIB: usize = 1 << 10;
        let told = |pages, changes: &[(usize, usize)]| {
            let folio = order(pages);
            let all = changes.iter().map(|&(from, to)| Flags::changed(folio, &(from..to)));
            let flags = all.fold(Flags::DIRTY, |all, it| all | it);
            flags.changed_bytes(folio).map(|it| (it.start, it.end)).collect::<Vec<_>>()
        };
        assert_eq!(told(1, &[(7, 8)]), [(0, 4 * KIB)]);
        assert_eq!(told(4, &[]), [(0, 16 * KIB)]);
        assert_eq!(told(4, &[(4095, 4097)]), [(0, 8 * KIB)]);
        assert_eq!(told(16, &[(0, 64 * KIB)]), [(0, 64 * KIB)]);
        let ends = [(0, 1), (64 * KIB - 1, 64 * KIB)];
        assert_eq!(told(16, &ends), [(0, 4 * KIB), (60 * KIB, 64 * KIB)]);
        assert_eq!(told(512, &[(130 * KIB, 130 * KIB + 1)]), [(128 * KIB, 256 * KIB)]);
        assert_eq!(told(512, &[]), [(0, 2048 * KIB)]);
    }
}
