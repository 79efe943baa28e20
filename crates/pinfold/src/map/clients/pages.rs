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
/// No two pieces share a block, and of two that touch each other not both have all of their pages;
/// all bits of no block are set, and those of none are clear.
#[derive(Debug, Clone, Default)]
pub(super) struct PageSet {
    /// By their first blocks.
    pieces: BTreeMap<u64, SetPiece>,
}

#[derive(Debug, Clone)]
enum SetPiece {
    /// Blocks that have all of their pages, up to this one.
    Whole(u64),
    /// A block that has some.
    Part(Box<Bits>),
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
        match self.pieces.range(..=block).next_back() {
            Some((_, SetPiece::Whole(end))) if block < *end => Block::All,
            Some((&first, SetPiece::Part(bits))) if first == block => Block::Some(bits),
            _ => Block::None,
        }
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
        self.change(&pages, true);
    }

    pub(super) fn remove_all(&mut self, pages: Range<u64>) {
        self.change(&pages, false);
    }

    /// How many intervals and blocks of bits it has. Its memory is at most 600 bytes for each.
    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// From now on it has all of `pages`, or none of them.
    fn change(&mut self, pages: &Range<u64>, has: bool) {
        let blocks = each_block(pages);
        self.change_blocks(blocks.whole, has);
        for (block, pages) in blocks.parts.into_iter().flatten() {
            let before = match self.block_of(block * BLOCK_PAGES) {
                Block::All if has => continue,
                Block::None if !has => continue,
                Block::All => Some(u64::MAX),
                Block::None => Some(0),
                Block::Some(_) => None,
            };
            if let Some(all) = before {
                self.cut(&(block..block + 1));
                self.pieces.insert(block, SetPiece::Part(Box::new([all; WORDS])));
            }
            let Some(SetPiece::Part(bits)) = self.pieces.get_mut(&block) else { continue };
            for_each_word(&pages, |word, mask| {
                if has {
                    bits[word] |= mask;
                } else {
                    bits[word] &= !mask;
                }
            });
            if bits.iter().all(|&word| word == if has { u64::MAX } else { 0 }) {
                self.change_blocks(block..block + 1, has);
            }
        }
    }

    /// As [`change`](Self::change), of whole blocks.
    fn change_blocks(&mut self, mut blocks: Range<u64>, has: bool) {
        if blocks.is_empty() {
            return;
        }
        self.cut(&blocks);
        if !has {
            return;
        }
        if let Some((&first, &SetPiece::Whole(end))) = self.pieces.range(..blocks.start).next_back()
            && end == blocks.start
        {
            blocks.start = first;
        }
        if let Some(&SetPiece::Whole(end)) = self.pieces.get(&blocks.end) {
            self.pieces.remove(&blocks.end);
            blocks.end = end;
        }
        self.pieces.insert(blocks.start, SetPiece::Whole(blocks.end));
    }

    /// Takes all pages of these blocks, of which there are some, out of it.
    fn cut(&mut self, blocks: &Range<u64>) {
        // Ends: what is put back has nothing of these.
        while let Some((&first, piece)) = self.pieces.range(..blocks.end).next_back() {
            let end = if let SetPiece::Whole(end) = piece { *end } else { first + 1 };
            if end <= blocks.start {
                break;
            }
            self.pieces.remove(&first);
            for (first, end) in [(first, blocks.start), (blocks.end, end)] {
                if first < end {
                    self.pieces.insert(first, SetPiece::Whole(end));
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

/// Those of these pages, in rising order, that follow each other, as ranges.
pub(super) fn adjacent(pages: &[u64]) -> impl Iterator<Item = Range<u64>> {
    pages.chunk_by(|one, next| one + 1 == *next).map(|run| run[0]..run[run.len() - 1] + 1)
}

/// The largest part of `bounds` that has `page`, and no other page that `stops`.
pub(super) fn widest(page: u64, bounds: &Range<u64>, stops: impl Fn(&u64) -> bool) -> Range<u64> {
    let start = (bounds.start..page).rev().find(&stops).map_or(bounds.start, |at| at + 1);
    let end = (page + 1..bounds.end).find(&stops).unwrap_or(bounds.end);
    start..end
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn check(pages: &PageSet) {
        let (mut last_end, mut touches) = (0, false);
        for (&first, piece) in &pages.pieces {
            assert!(last_end <= first, "a block in two pieces: {:?}", pages.pieces);
            match piece {
                SetPiece::Whole(end) => {
                    assert!(first < *end && !(touches && last_end == first), "{:?}", pages.pieces);
                    (last_end, touches) = (*end, true);
                }
                SetPiece::Part(bits) => {
                    assert!(bits.iter().any(|&it| it != 0));
                    assert!(bits.iter().any(|&it| it != u64::MAX));
                    (last_end, touches) = (first + 1, false);
                }
            }
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
