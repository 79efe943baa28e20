//! Pages that are installed in a client's memory before it asks for them, cut into *pieces*: of an
//! aligned 1 MiB the pages that lie near each other. As long as memory is plenty, a piece is read
//! as a whole, with what is between its pages. Pieces come in the order of their first touches.

use std::ops::Range;
use std::sync::Arc;

use super::turns::AHEAD_MAX;

/// So many pages between two that are wanted are read with them: 64 KiB take a device about as long
/// as one more read.
const GAP_PAGES: u64 = 16;

/// The aligned blocks of which no piece has more than one.
const BLOCK_PAGES: u64 = 256;

/// Pages that are looked at in one turn, but for those of a last piece. Faults wait for the turn.
const TURN_PAGES: usize = 64;

#[derive(Debug)]
pub(super) struct AheadPlan {
    /// Those of each piece in rising order.
    pages: Vec<u64>,
    /// Where in `pages` each piece ends.
    ends: Vec<usize>,
}

impl AheadPlan {
    /// Of those of `pages` that are below `end`.
    pub(super) fn new(pages: &[u64], end: u64) -> Self {
        let mut by_page: Vec<(u64, usize)> =
            pages.iter().copied().zip(0..).filter(|&(page, _)| page < end).collect();
        by_page.sort_unstable();
        by_page.dedup_by_key(|&mut (page, _)| page);
        let joins = |one: &(u64, usize), next: &(u64, usize)| {
            next.0 - one.0 <= GAP_PAGES + 1 && next.0 / BLOCK_PAGES == one.0 / BLOCK_PAGES
        };
        let mut pieces: Vec<&[(u64, usize)]> = by_page.chunk_by(joins).collect();
        pieces.sort_by_cached_key(|piece| piece.iter().map(|&(_, touched)| touched).min());
        let mut plan = AheadPlan { pages: Vec::with_capacity(by_page.len()), ends: Vec::new() };
        for piece in pieces {
            plan.pages.extend(piece.iter().map(|&(page, _)| page));
            plan.ends.push(plan.pages.len());
        }
        plan
    }

    pub(super) fn pieces(&self, which: Range<usize>) -> impl Iterator<Item = &[u64]> {
        which.map(|n| &self.pages[self.start(n)..self.ends[n]])
    }

    fn start(&self, n: usize) -> usize {
        n.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

/// What a page is read for.
#[derive(Debug)]
pub(super) enum ReadFor {
    Fault(u64),
    /// Pieces that are installed ahead: so many parts of them are not read yet.
    Ahead(Arc<AheadPlan>, Range<usize>, usize),
}

#[derive(Debug)]
pub(super) struct Ahead {
    pub(super) plan: Arc<AheadPlan>,
    next: usize,
    /// Turns whose reads are under way.
    pub(super) reads: usize,
}

impl Ahead {
    pub(super) fn new(plan: Arc<AheadPlan>) -> Self {
        Ahead { plan, next: 0, reads: 0 }
    }

    /// Whether the next pieces can be looked at now.
    pub(super) fn goes_on(&self) -> bool {
        self.next < self.plan.ends.len() && self.reads < AHEAD_MAX
    }

    pub(super) fn is_over(&self) -> bool {
        self.next >= self.plan.ends.len() && self.reads == 0
    }

    pub(super) fn next(&mut self) -> Option<Range<usize>> {
        if !self.goes_on() {
            return None;
        }
        let (first, from) = (self.next, self.plan.start(self.next));
        let is_short = |&&end: &&usize| end < from + TURN_PAGES;
        let short = self.plan.ends[first..].iter().take_while(is_short).count();
        self.next = (first + short + 1).min(self.plan.ends.len());
        Some(first..self.next)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn pieces(pages: &[u64]) -> Vec<Vec<u64>> {
        let plan = AheadPlan::new(pages, 10_000);
        plan.pieces(0..plan.ends.len()).map(<[u64]>::to_vec).collect()
    }

    #[test]
    fn pages_near_each_other_are_a_piece_and_the_first_touch_comes_first() {
        let pages = [5000, 7, 300, 5, 24, 7, 42, 255, 256, 20_000];
        let right = [vec![5000], vec![5, 7, 24], vec![300], vec![42], vec![255], vec![256]];
        assert_eq!(pieces(&pages), right);
        assert_eq!(pieces(&[24, 7]), [[7, 24]], "a gap of 16");
        assert_eq!(pieces(&[25, 7]), [[25], [7]], "a gap of 17");
        assert!(pieces(&[]).is_empty());
    }

    #[test]
    fn a_turn_has_a_bounded_part_and_all_have_all() {
        let scattered = (0..1000).map(|n| n * 40);
        let plan =
            Arc::new(AheadPlan::new(&scattered.chain(50_000..51_000).collect::<Vec<_>>(), 1 << 20));
        let mut ahead = Ahead::new(plan.clone());
        let mut seen = 0;
        while let Some(turn) = ahead.next() {
            assert_eq!(turn.start, seen);
            let pages: usize = plan.pieces(turn.clone()).map(<[u64]>::len).sum();
            assert!((1..TURN_PAGES + BLOCK_PAGES as usize).contains(&pages), "{pages}");
            seen = turn.end;
        }
        assert_eq!(seen, plan.ends.len());
        assert!(ahead.is_over());
        ahead.reads = 1;
        assert!(!ahead.is_over() && !ahead.goes_on());
    }
}
