//! Pages that show how much of a folio is accessed by maps.
//!
//! The kernel tells nobody of accesses to what is in the memfd. But a page that was not in the page
//! table, and is there later, was accessed. So who lends a folio maps all of its pages but a few,
//! its *samples*. The kernel's fault on one maps what the memfd has around it, too: by default what
//! is in the same aligned 64 KiB, where hence is one sample at most. Whether samples were accessed,
//! `shown.rs` says.

use std::ops::Range;

/// What the kernel maps with a page of the memfd.
const BLOCK_PAGES: u64 = 16;

/// The most samples of a folio. Each costs a fault, if it is accessed, and two system calls.
const SAMPLES_MAX: u64 = 8;

/// A smaller folio has none.
const FOLIO_PAGES_MIN: u64 = 4;

/// A page, and the pages of its folio that are taken to be accessed if it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) page: u64,
    pub(super) stands_for: Range<u64>,
}

impl Sample {
    /// This sample for those of `pages` alone that it stands for, if there are any.
    pub(super) fn within(self, pages: &Range<u64>) -> Option<Self> {
        let Range { start, end } = self.stands_for;
        let stands_for = start.max(pages.start)..end.min(pages.end);
        (!stands_for.is_empty()).then_some(Sample { stands_for, ..self })
    }

    pub(super) fn pages(&self) -> u64 {
        self.stands_for.end - self.stands_for.start
    }
}

/// The samples of a folio of these pages, in their order.
pub(super) fn samples(folio: &Range<u64>) -> impl Iterator<Item = Sample> + use<> {
    let (folio, pages) = (folio.clone(), folio.end - folio.start);
    let step = BLOCK_PAGES * (pages / (BLOCK_PAGES * SAMPLES_MAX)).max(1);
    let blocks = (folio.start..folio.end).step_by(step as usize);
    blocks.filter(move |_| pages >= FOLIO_PAGES_MIN).filter_map(move |at| {
        let block = at / BLOCK_PAGES;
        // The place differs from block to block without a short period: so no stride misses all.
        let place = block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - BLOCK_PAGES.ilog2());
        let page = block * BLOCK_PAGES + place;
        let stands_for = at..(at + step).min(folio.end);
        folio.contains(&page).then_some(Sample { page, stands_for })
    })
}

/// A page of the same folio beside a sample, and no sample itself.
pub(super) fn beside(sample: u64) -> u64 {
    sample ^ 1
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn no_64_kib_have_two_samples_and_no_folio_has_many() {
        for order in 0..=9 {
            let pages = 1_u64 << order;
            let mut all = Vec::new();
            for start in (0..4096).step_by(pages as usize) {
                let folio = start..start + pages;
                let of_folio: Vec<Sample> = samples(&folio).collect();
                assert!(of_folio.len() as u64 <= SAMPLES_MAX);
                for Sample { page, stands_for } in &of_folio {
                    assert!(folio.contains(page) && folio.contains(&beside(*page)));
                    assert!(folio.start <= stands_for.start && stands_for.end <= folio.end);
                }
                all.extend(of_folio.into_iter().map(|sample| sample.page));
            }
            assert!(all.is_sorted_by_key(|page| page / BLOCK_PAGES));
            assert!(all.windows(2).all(|two| two[0] / BLOCK_PAGES != two[1] / BLOCK_PAGES));
            assert_eq!(all.is_empty(), pages < FOLIO_PAGES_MIN, "folios of {pages} pages");
        }
    }

    /// Of each stride about as many samples are accessed as pages.
    #[test]
    fn no_stride_misses_all_samples_or_meets_all() {
        let folios = (0..1 << 16).step_by(16).flat_map(|start| samples(&(start..start + 16)));
        let all: Vec<u64> = folios.map(|sample| sample.page).collect();
        for of in [2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64] {
            for first in 0..of {
                let met = all.iter().filter(|page| *page % of == first).count();
                let share = met as f64 * of as f64 / all.len() as f64;
                assert!((0.7..1.4).contains(&share), "{first} of {of}: {share}");
            }
        }
    }
}
