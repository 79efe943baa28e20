//! The table of ghosts: which pages were evicted, and when, as far as it can matter.
//!
//! The caller places it: the cache, behind the frame table.
//!
//! An entry is a *fingerprint* of the page, 16 bits, and its shadow, 16 bits. Sixteen of them are a
//! *line*, which is one of the processor's. A page belongs to one line, so a look-up costs one line
//! of memory, and so does a page that is put there: it goes to the front, the others move on, and
//! the oldest falls out. Nothing else is ever removed. A page that came back stays until it falls
//! out; if it is evicted again, the newer entry is found first.
//!
//! **Size.** There are two entries for each page of the cache, 0.2 % of its memory, and the policy
//! asks about the last 0.9 of a cache of evicted pages. So a line has 7.2 of these on average, and
//! has lost the oldest of them, if more than 16 pages of the same line were evicted since: at most
//! 0.4 % of those at the edge of what is asked for, where pages meet in a line by chance. Adjacent
//! pages have adjacent lines, and meet less often.
//!
//! **Wrong answers.** Another page's fingerprint is found where 16 entries of 65,535 values allow
//! it: one page in 4,096 is taken for one that came back, and enters main for one passage.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::shadow::{SHADOW_BITS, Shadow};

/// Entries of a line: two in each word, the newest in the low half of the first.
const WORDS: usize = 8;
const ENTRY_BITS: u32 = 32;
const LINE_ENTRIES: u32 = 16;
/// Entries for each page of the cache.
const PAGE_ENTRIES: u32 = 2;
/// Pages of which the lines are adjacent: a folio of the largest size.
const STRETCH_BITS: u32 = 9;

/// Sixteen entries. Zero is empty: fresh memory is a line of no ghosts.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct GhostLine([AtomicU64; WORDS]);

/// The table in the caller's lines, which are shared memory. One thread at a time calls it.
#[derive(Clone, Copy, Debug)]
pub struct Ghosts<'a>(&'a [GhostLine]);

impl<'a> Ghosts<'a> {
    /// The lines that a cache of `pages` pages needs.
    pub const fn lines_for(pages: u32) -> usize {
        pages.div_ceil(LINE_ENTRIES / PAGE_ENTRIES) as usize
    }

    /// The table in these lines.
    ///
    /// # Panics
    /// If there are none.
    pub const fn new(lines: &'a [GhostLine]) -> Self {
        assert!(!lines.is_empty(), "a table of no lines");
        Self(lines)
    }

    /// Notes that these pages of `file`, any number that stands for one, were evicted.
    pub fn put(self, file: u64, pages: Range<u64>, shadow: Shadow) {
        for page in pages {
            let (line, fingerprint) = self.place(file, page);
            let entry = fingerprint << SHADOW_BITS | shadow.payload();
            let mut carried = u64::from(entry);
            // Relaxed, here and in `get`: the caller's lock orders all calls.
            for word in &line.0 {
                let old = word.load(Ordering::Relaxed);
                word.store(old << ENTRY_BITS | carried, Ordering::Relaxed);
                carried = old >> ENTRY_BITS;
            }
        }
    }

    /// What was noted of the page last, unless it has fallen out.
    pub fn get(self, file: u64, page: u64) -> Option<Shadow> {
        let (line, fingerprint) = self.place(file, page);
        let words = line.0.iter().map(|word| word.load(Ordering::Relaxed));
        let mut entries = words.flat_map(|word| [word as u32, (word >> ENTRY_BITS) as u32]);
        let entry = entries.find(|entry| entry >> SHADOW_BITS == fingerprint)?;
        Some(Shadow::from_payload(entry & ((1 << SHADOW_BITS) - 1)))
    }

    /// The page's line and its fingerprint, which is not 0.
    fn place(self, file: u64, page: u64) -> (&'a GhostLine, u32) {
        let stretch = mix(file ^ mix(page >> STRETCH_BITS));
        let in_stretch = page & ((1 << STRETCH_BITS) - 1);
        let lines = self.0.len() as u64;
        let first = ((stretch >> 32) * lines) >> 32;
        let line = (first + in_stretch) % lines;
        let fingerprint = mix(stretch ^ in_stretch) % 0xffff + 1;
        (&self.0[line as usize], fingerprint as u32)
    }
}

/// Spreads a number over 64 bits (the finalizer of `MurmurHash3`).
const fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pages: u32) -> Box<[GhostLine]> {
        (0..Ghosts::lines_for(pages)).map(|_| GhostLine::default()).collect()
    }

    fn at(reading: u32) -> Shadow {
        Shadow::from_payload(reading)
    }

    /// The share of `pages`, each evicted once and in this order, of which the last 0.9 capacities
    /// are found.
    fn remembered(
        capacity: u32,
        pages: &(impl ExactSizeIterator<Item = (u64, u64)> + Clone),
    ) -> f64 {
        let lines = lines(capacity);
        let table = Ghosts::new(&lines);
        for (file, page) in pages.clone() {
            table.put(file, page..page + 1, at(5));
        }
        let asked = capacity as usize * 9 / 10;
        let last = pages.clone().skip(pages.len() - asked);
        let found = last.filter(|&(file, page)| table.get(file, page) == Some(at(5))).count();
        found as f64 / asked as f64
    }

    #[test]
    fn what_is_asked_for_is_found_whatever_the_shape_of_the_files() {
        const CAPACITY: u32 = 1 << 14;
        let count = 4 * CAPACITY;
        let shares = [
            ("in order", remembered(CAPACITY, &(0..count).map(|n| (1, n.into())))),
            ("sparse", remembered(CAPACITY, &(0..count).map(|n| (1, u64::from(n) << 12)))),
            ("random", remembered(CAPACITY, &(0..count).map(|n| (1, mix(n.into()) >> 32)))),
            (
                "100 files",
                remembered(CAPACITY, &(0..count).map(|n| ((n % 100).into(), (n / 100).into()))),
            ),
            ("files of a page", remembered(CAPACITY, &(0..count).map(|n| (n.into(), 0)))),
        ];
        for (shape, share) in shares {
            assert!(share > 0.999, "{shape}: {share}");
        }
    }

    #[test]
    fn strangers_are_rarely_taken_for_ghosts() {
        let lines = lines(1 << 12);
        let table = Ghosts::new(&lines);
        table.put(1, 0..1 << 14, at(1)); // all entries are taken
        let strangers = 1_u64 << 20;
        let taken = (0..strangers).filter(|&page| table.get(2, page).is_some()).count();
        assert!(taken > 0 && taken < strangers as usize / 3000, "{taken} of {strangers}");
    }

    #[test]
    fn the_newest_entry_of_a_page_counts_and_the_oldest_of_a_line_falls_out() {
        let lines = lines(1);
        let table = Ghosts::new(&lines);
        assert_eq!(table.get(1, 0), None);
        for reading in [3, 7] {
            table.put(1, 0..1, at(reading));
            assert_eq!(table.get(1, 0), Some(at(reading)));
        }
        table.put(1, 1..16, at(8));
        assert_eq!(table.get(1, 0), Some(at(7)));
        table.put(1, 16..17, at(9));
        assert_eq!((table.get(1, 0), table.get(1, 1)), (None, Some(at(8))));
    }
}
