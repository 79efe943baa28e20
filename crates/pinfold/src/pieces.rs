//! Pieces of mirrors that wait to be evicted: 2 MiB of a file each, aligned, whose pages were taken
//! out of the page tables and may be used again before they go.
//!
//! Here: the queue. Not here: which pieces get into it, and what becomes of them
//! (`reclaim/mapped.rs`).

use std::collections::VecDeque;
use std::ops::Range;

use crate::frame::Order;
use crate::sync::Mutex;

/// The length of a piece in pages: what one page table has.
const PIECE_PAGES: u64 = Order::MAX.frames() as u64;

/// The most pieces that wait.
const PIECES_MAX: usize = 1024;

/// A piece of a file, or what is left of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The number of the file's mapping.
    pub(crate) mapping: u32,
    pub(crate) pages: Range<u64>,
}

impl Piece {
    /// The piece in which `page` lies.
    pub(crate) fn of(mapping: u32, page: u64) -> Self {
        let first = page / PIECE_PAGES * PIECE_PAGES;
        Piece { mapping, pages: first..first + PIECE_PAGES }
    }

    fn is_of(&self, whole: &Piece) -> bool {
        self.mapping == whole.mapping && whole.pages.contains(&self.pages.start)
    }
}

/// The pieces that wait, and how many pages each had in memory when it came.
#[derive(Debug)]
pub(crate) struct Pieces(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    queue: VecDeque<(Piece, u64)>,
    pages: u64,
}

impl Pieces {
    pub(crate) fn new() -> Self {
        Pieces(Mutex::new(Waiting::default()))
    }

    /// Whether some of `piece` waits.
    pub(crate) fn is_waiting(&self, piece: &Piece) -> bool {
        self.0.lock().queue.iter().any(|(it, _)| it.is_of(piece))
    }

    /// `piece` begins to wait, behind all others. It has so many pages in memory.
    pub(crate) fn add(&self, piece: Piece, pages: u64) {
        let mut waiting = self.0.lock();
        waiting.pages += pages;
        waiting.queue.push_back((piece, pages));
    }

    /// What is left of a piece waits before all others.
    pub(crate) fn put_back(&self, piece: Piece) {
        self.0.lock().queue.push_front((piece, 0));
    }

    /// The piece that has waited longest, if all together have more than `most` pages.
    pub(crate) fn next(&self, most: u64) -> Option<Piece> {
        let mut waiting = self.0.lock();
        if waiting.pages <= most && waiting.queue.len() <= PIECES_MAX {
            return None;
        }
        let (piece, pages) = waiting.queue.pop_front()?;
        waiting.pages -= pages;
        Some(piece)
    }

    /// The piece that has waited longest.
    pub(crate) fn first(&self) -> Option<Piece> {
        let mut waiting = self.0.lock();
        let (piece, pages) = waiting.queue.pop_front()?;
        waiting.pages -= pages;
        Some(piece)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_piece_waits_for_others_with_enough_pages() {
        let pieces = Pieces::new();
        let [a, b, c] = [Piece::of(1, 511), Piece::of(1, 512), Piece::of(2, 0)];
        assert_eq!((a.pages.clone(), b.pages.clone()), (0..512, 512..1024));
        pieces.add(a.clone(), 100);
        assert!(pieces.is_waiting(&a) && !pieces.is_waiting(&b) && !pieces.is_waiting(&c));
        assert_eq!(pieces.next(100), None);
        pieces.add(b.clone(), 1);
        assert_eq!(pieces.next(100), Some(a.clone()));
        assert_eq!(pieces.next(100), None);
        // What is left of it is still a part of it, and the next.
        let rest = Piece { mapping: 1, pages: 64..512 };
        pieces.put_back(rest.clone());
        assert!(pieces.is_waiting(&a));
        assert_eq!(pieces.first(), Some(rest));
        assert_eq!(pieces.first(), Some(b));
        assert_eq!(pieces.first(), None);
    }

    #[test]
    fn there_is_a_limit_to_how_many_wait() {
        let pieces = Pieces::new();
        for n in 0..=PIECES_MAX as u32 {
            assert_eq!(pieces.next(u64::MAX), None);
            pieces.add(Piece::of(n, 0), 1);
        }
        assert_eq!(pieces.next(u64::MAX), Some(Piece::of(0, 0)));
    }
}
