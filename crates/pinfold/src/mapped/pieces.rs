//! The queue of pieces of mirrors that wait to be evicted: each 2 MiB of a file or more, whose pages
//! were taken out of the page tables and may be used again before they go (`map/pieces.rs`).

use std::collections::VecDeque;
use std::ops::Range;

use crate::frames::Order;

/// The length of the shortest piece in pages: what one page table has.
const PIECE_PAGES_MIN: u64 = Order::MAX.frames() as u64;

/// The length of the longest: its page tables are walked, and most are empty.
const PIECE_PAGES_MAX: u64 = PIECE_PAGES_MIN << 6;

const PIECES_MAX: usize = 1024;

/// A piece of a file, which begins at a multiple of its length, or what is left of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) mapping: u32,
    pub(crate) pages: Range<u64>,
}

impl Piece {
    /// The shortest piece in which `page` lies.
    pub(crate) fn of(mapping: u32, page: u64) -> Self {
        Self::with(mapping, page, PIECE_PAGES_MIN)
    }

    /// The piece of twice its length in which it lies.
    pub(crate) fn doubled(&self) -> Option<Self> {
        let pages = (self.pages.end - self.pages.start) * 2;
        (pages <= PIECE_PAGES_MAX).then(|| Self::with(self.mapping, self.pages.start, pages))
    }

    fn with(mapping: u32, page: u64, pages: u64) -> Self {
        let first = page / pages * pages;
        Piece { mapping, pages: first..first + pages }
    }

    fn overlaps(&self, other: &Piece) -> bool {
        let (one, two) = (&self.pages, &other.pages);
        self.mapping == other.mapping && one.start.max(two.start) < one.end.min(two.end)
    }
}

/// The pieces that one eviction takes.
#[derive(Debug, Default)]
pub(crate) struct PieceTurns {
    pub(crate) now: Option<Piece>,
    /// Pieces in a row of which all was used.
    pub(crate) used: u32,
    /// Folios in a row that were offered in vain.
    pub(crate) offers: u32,
    /// Folios in a row that were spared.
    pub(crate) spared: u32,
}

impl PieceTurns {
    pub(crate) fn has_piece(&self) -> bool {
        self.now.is_some()
    }

    /// The turn goes on with the pages of `piece` from `first` on, if there are any.
    pub(crate) fn rest_is(&mut self, piece: &Piece, first: u64) {
        let pages = first..piece.pages.end;
        self.now = (!pages.is_empty()).then_some(Piece { mapping: piece.mapping, pages });
    }
}

/// The pieces that wait, and those whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// And how many pages each had in memory when it came.
    waiting: VecDeque<(Piece, u64)>,
    /// Of all that wait.
    pages: u64,
    /// So many of the first have had a part of their turn.
    begun: usize,
    in_turn: Vec<Piece>,
}

impl Pieces {
    pub(crate) fn has(&self, piece: &Piece) -> bool {
        let waits = self.waiting.iter().any(|(it, _)| it.overlaps(piece));
        waits || self.in_turn.iter().any(|it| it.overlaps(piece))
    }

    /// `piece` begins to wait, behind all others. It has so many pages in memory. False if some of
    /// it is here already.
    pub(crate) fn add(&mut self, piece: &Piece, pages: u64) -> bool {
        if self.has(piece) {
            return false;
        }
        self.pages += pages;
        self.waiting.push_back((piece.clone(), pages));
        true
    }

    /// It is the turn of the piece that has waited longest, if all together have more than `most`
    /// pages, and it is not the only one: the others make it wait. What is left of a piece whose
    /// turn has begun waits no more.
    pub(crate) fn next(&mut self, most: u64) -> Option<Piece> {
        let enough = self.pages > most && self.waiting.len() > 1;
        let now = enough || self.begun > 0 || self.waiting.len() > PIECES_MAX;
        now.then(|| self.first()).flatten()
    }

    /// It is the turn of the piece that has waited longest.
    pub(crate) fn first(&mut self) -> Option<Piece> {
        let (piece, pages) = self.waiting.pop_front()?;
        self.pages -= pages;
        self.begun = self.begun.saturating_sub(1);
        self.in_turn.push(piece.clone());
        Some(piece)
    }

    pub(crate) fn end(&mut self, piece: &Piece) {
        self.in_turn.retain(|it| !it.overlaps(piece));
    }

    /// What is left of a piece has its turn before all others.
    pub(crate) fn put_back(&mut self, piece: Piece) {
        self.end(&piece);
        self.waiting.push_front((piece, 0));
        self.begun += 1;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_piece_waits_for_others_with_enough_pages() {
        let mut pieces = Pieces::default();
        let [a, b, c] = [Piece::of(1, 511), Piece::of(1, 512), Piece::of(2, 0)];
        assert_eq!((a.pages.clone(), b.pages.clone()), (0..512, 512..1024));
        assert!(pieces.add(&a, 100) && !pieces.add(&a, 100));
        assert!(pieces.has(&a) && !pieces.has(&b) && !pieces.has(&c));
        assert_eq!(pieces.next(99), None, "it is the only one");
        assert!(pieces.add(&b, 1));
        assert_eq!(pieces.next(101), None);
        assert_eq!(pieces.next(100), Some(a.clone()));
        assert_eq!(pieces.next(0), None);
        assert!(pieces.has(&a) && !pieces.add(&a, 1), "it is its turn");
        // What is left of it is still a part of it, and the next.
        let rest = Piece { mapping: 1, pages: 64..512 };
        pieces.put_back(rest.clone());
        assert!(pieces.has(&a));
        assert_eq!(pieces.next(u64::MAX), Some(rest.clone()), "its turn has begun");
        assert_eq!(pieces.next(u64::MAX), None);
        pieces.end(&rest);
        assert!(!pieces.has(&a));
        assert_eq!(pieces.first(), Some(b));
        assert_eq!(pieces.first(), None);
    }

    #[test]
    fn longer_pieces_begin_at_multiples_of_their_length() {
        let mut piece = Piece::of(1, 3 * 512 + 7);
        let mut lengths = Vec::new();
        while let Some(longer) = piece.doubled() {
            let Range { start, end } = longer.pages;
            assert!(start <= piece.pages.start && piece.pages.end <= end);
            assert_eq!(start % (end - start), 0);
            lengths.push((end - start) / 512);
            piece = longer;
        }
        assert_eq!(lengths, [2, 4, 8, 16, 32, 64]);
        let mut pieces = Pieces::default();
        assert!(pieces.add(&Piece::of(1, 600), 1));
        assert!(pieces.has(&piece) && !pieces.add(&piece, 1), "a part of it waits");
        assert!(!pieces.has(&Piece::of(2, 600)));
    }

    #[test]
    fn there_is_a_limit_to_how_many_wait() {
        let mut pieces = Pieces::default();
        for n in 0..=PIECES_MAX as u32 {
            assert_eq!(pieces.next(u64::MAX), None);
            assert!(pieces.add(&Piece::of(n, 0), 1));
        }
        assert_eq!(pieces.next(u64::MAX), Some(Piece::of(0, 0)));
    }
}
