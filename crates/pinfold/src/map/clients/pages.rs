//! Sets of pages of a snapshot. A set takes memory for what was put into it, however long the
//! snapshot is.
//!
//! A *block* is [`BLOCK_PAGES`] adjacent pages, aligned. Blocks of which a set has all pages are
//! kept as intervals, and those of which it has some as a bit for each page. To add or remove a
//! range takes as many steps as it swallows intervals and blocks of bits.

use std::collections::BTreeMap;
use std::ops::Range;

/// The pages of a block: 16 MiB, whose bits take 512 bytes.
pub(super) const BLOCK_PAGES: u64 = 4096;

const WORDS: usize = (BLOCK_PAGES / 64) as usize;

type Bits = [u64; WORDS];

/// A set of pages.
///
/// # Invariants
///
/// No block is in both maps; no two intervals touch each other; all bits of no block are set, and
/// those of none are clear.
#[derive(Debug, Clone, Default)]
pub(super) struct PageSet {
    /// Intervals of blocks that have all of their pages: the first block, and the one behind.
    whole: BTreeMap<u64, u64>,
    /// The blocks that have some.
    parts: BTreeMap<u64, Box<Bits>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Block<'a> {
    None,
    All,
    Some(&'a Bits),
}

impl Block<'_> {
    /// Whether the set has `page`, which is of this block.
    pub(super) fn has(self, page: u64) -> bool {
        match self {
            Block::None => false,
            Block::All => true,
            Block::Some(bits) => {
                let at = page % BLOCK_PAGES;
                bits[(at / 64) as usize] >> (at % 64) & 1 == 1
            }
        }
    }
}

impl PageSet {
    pub(super) fn block_of(&self, page: u64) -> Block<'_> {
        let block = page / BLOCK_PAGES;
        if let Some(bits) = self.parts.get(&block) {
            return Block::Some(bits);
        }
        let before = self.whole.range(..=block).next_back();
        if before.is_some_and(|(_, &end)| block < end) { Block::All } else { Block::None }
    }

    pub(super) fn has(&self, page: u64) -> bool {
        self.block_of(page).has(page)
    }

    /// Adds `page`; whether it is new.
    pub(super) fn add(&mut self, page: u64) -> bool {
        let is_new = !self.has(page);
        if is_new {
            self.add_all(page..page + 1);
        }
        is_new
    }

    pub(super) fn add_all(&mut self, pages: Range<u64>) {
        let blocks = each_block(&pages);
        self.swallow_parts(&blocks.whole);
        self.add_blocks(blocks.whole);
        for (block, pages) in blocks.parts.into_iter().flatten() {
            if matches!(self.block_of(block * BLOCK_PAGES), Block::All) {
                continue;
            }
            let bits = self.parts.entry(block).or_insert_with(|| Box::new([0; WORDS]));
            for_each_word(&pages, |word, mask| bits[word] |= mask);
            if bits.iter().all(|&word| word == u64::MAX) {
                self.parts.remove(&block);
                self.add_blocks(block..block + 1);
            }
        }
    }

    pub(super) fn remove_all(&mut self, pages: Range<u64>) {
        let blocks = each_block(&pages);
        self.swallow_parts(&blocks.whole);
        self.remove_blocks(blocks.whole);
        for (block, pages) in blocks.parts.into_iter().flatten() {
            if matches!(self.block_of(block * BLOCK_PAGES), Block::All) {
                self.remove_blocks(block..block + 1);
                self.parts.insert(block, Box::new([u64::MAX; WORDS]));
            }
            let Some(bits) = self.parts.get_mut(&block) else { continue };
            for_each_word(&pages, |word, mask| bits[word] &= !mask);
            if bits.iter().all(|&word| word == 0) {
                self.parts.remove(&block);
            }
        }
    }

    /// How many intervals and blocks of bits it has. Its memory is at most 600 bytes for each.
    pub(super) fn pieces(&self) -> usize {
        self.whole.len() + self.parts.len()
    }

    fn swallow_parts(&mut self, blocks: &Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        // Ends: each turn removes one.
        while let Some((&block, _)) = self.parts.range(blocks.clone()).next() {
            self.parts.remove(&block);
        }
    }

    fn add_blocks(&mut self, mut blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        // Ends: each turn removes one that touches these.
        while let Some((&first, &end)) = self.whole.range(..=blocks.end).next_back() {
            if end < blocks.start {
                break;
            }
            self.whole.remove(&first);
            blocks = blocks.start.min(first)..blocks.end.max(end);
        }
        self.whole.insert(blocks.start, blocks.end);
    }

    fn remove_blocks(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        // Ends: what is put back has nothing of these.
        while let Some((&first, &end)) = self.whole.range(..blocks.end).next_back() {
            if end <= blocks.start {
                break;
            }
            self.whole.remove(&first);
            for (first, end) in [(first, blocks.start), (blocks.end, end)] {
                if first < end {
                    self.whole.insert(first, end);
                }
            }
        }
    }
}

/// A range of pages by blocks: those of which it has all, and the parts that it has of the first
/// and of the last.
struct Blocks {
    whole: Range<u64>,
    parts: [Option<(u64, Range<u64>)>; 2],
}

fn each_block(pages: &Range<u64>) -> Blocks {
    if pages.is_empty() {
        return Blocks { whole: 0..0, parts: [None, None] };
    }
    let (first, last) = (pages.start / BLOCK_PAGES, (pages.end - 1) / BLOCK_PAGES);
    let whole = pages.start.div_ceil(BLOCK_PAGES)..pages.end / BLOCK_PAGES;
    let part = |block: u64| {
        let from = block * BLOCK_PAGES;
        let part = pages.start.max(from) - from..pages.end.min(from + BLOCK_PAGES) - from;
        (part != (0..BLOCK_PAGES)).then_some((block, part))
    };
    Blocks { whole, parts: [part(first), part(last).filter(|_| last != first)] }
}

/// Calls `change` for each word of a block that has some of `pages`, counted from the block's
/// first, with their bits.
fn for_each_word(pages: &Range<u64>, mut change: impl FnMut(usize, u64)) {
    for word in pages.start / 64..pages.end.div_ceil(64) {
        let from = pages.start.max(word * 64) - word * 64;
        let count = pages.end.min(word * 64 + 64) - word * 64 - from;
        change(word as usize, (u64::MAX >> (64 - count)) << from);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn check(pages: &PageSet) {
        let mut last = None;
        for (&first, &end) in &pages.whole {
            assert!(first < end && last.is_none_or(|last| last < first), "{:?}", pages.whole);
            assert!(pages.parts.range(first..end).next().is_none(), "a block in both");
            last = Some(end);
        }
        for bits in pages.parts.values() {
            assert!(bits.iter().any(|&it| it != 0) && bits.iter().any(|&it| it != u64::MAX));
        }
    }

    #[test]
    fn a_set_has_what_was_added_and_not_removed() {
        const END: u64 = 6 * BLOCK_PAGES;
        for seed in 0..20 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut pages, mut plain) = (PageSet::default(), vec![false; END as usize]);
            for _ in 0..300 {
                let mut at = || match random.u8(0..3) {
                    0 => random.u64(0..=END),
                    1 => random.u64(0..=6) * BLOCK_PAGES,
                    _ => (random.u64(0..6) * BLOCK_PAGES + random.u64(0..130)).min(END),
                };
                let (one, other) = (at(), at());
                let range = one.min(other)..one.max(other);
                let adds = random.bool();
                plain[range.start as usize..range.end as usize].fill(adds);
                if adds {
                    pages.add_all(range);
                } else {
                    pages.remove_all(range);
                }
                if random.bool() {
                    let page = random.u64(0..END);
                    assert_eq!(pages.add(page), !plain[page as usize]);
                    plain[page as usize] = true;
                }
                check(&pages);
            }
            for (page, &is) in plain.iter().enumerate() {
                assert_eq!(pages.has(page as u64), is, "seed {seed}, page {page}");
            }
        }
    }

    #[test]
    fn a_range_of_any_length_is_a_piece_or_three() {
        let mut pages = PageSet::default();
        let all = 1 << 48;
        pages.add_all(5..all);
        assert!(pages.pieces() <= 2 && !pages.has(4) && pages.has(5) && pages.has(all - 1));
        // Every other page of the first blocks: each took a call.
        for page in (0..3 * BLOCK_PAGES).step_by(2) {
            pages.remove_all(page..page + 1);
        }
        assert_eq!(pages.pieces(), 4);
        pages.remove_all(0..all - 1);
        assert_eq!((pages.pieces(), pages.has(all - 1), pages.has(all - 2)), (1, true, false));
        pages.remove_all(0..1 << 52);
        assert_eq!(pages.pieces(), 0);
    }
}
