//! The next folio, marked folio, or hole of a range. Costs one descent, and one for each node
//! without any.

use super::entry::{Entry, Kind};
use super::node::Node;
use super::types::{FolioAt, Mark, PAGES_END};
use super::writer::{IndexWriter, slot_of};
use std::ops::Range;

#[derive(Clone, Copy, Debug)]
enum Seek {
    Folio,
    Marked(Mark),
    Hole,
}

impl Seek {
    fn may_hold(self, entry: Entry) -> bool {
        match entry.kind() {
            Kind::Node => true,
            Kind::Folio(_) => matches!(self, Seek::Folio | Seek::Marked(_)),
            Kind::Empty => matches!(self, Seek::Hole),
        }
    }
}

impl<const BITS: u32> IndexWriter<'_, BITS> {
    /// It may begin before the range.
    pub(crate) fn next_present(&self, range: Range<u64>) -> Option<FolioAt> {
        let page = self.seek(range, Seek::Folio)?;
        Some(self.folio(page).expect("the walk found a folio here"))
    }

    /// It may begin before the range.
    pub(crate) fn next_marked(&self, range: Range<u64>, mark: Mark) -> Option<FolioAt> {
        let page = self.seek(range, Seek::Marked(mark))?;
        Some(self.folio(page).expect("only folios are marked"))
    }

    pub(crate) fn next_absent(&self, range: Range<u64>) -> Option<u64> {
        self.seek(range, Seek::Hole)
    }

    #[cfg(test)]
    pub(crate) fn for_each_in(&self, range: Range<u64>, mut visit: impl FnMut(FolioAt)) {
        let mut from = range.start;
        // Ends: `from` rises with every folio.
        while let Some(folio) = self.next_present(from..range.end) {
            visit(folio);
            from = folio.end();
        }
    }

    fn seek(&self, range: Range<u64>, what: Seek) -> Option<u64> {
        let end = range.end.min(PAGES_END);
        let mut page = range.start;
        // Ends: `page` rises with every step that finds nothing.
        while page < end {
            let root = self.root();
            if !root.covers(page) {
                return matches!(what, Seek::Hole).then_some(page);
            }
            if root.entry.kind() != Kind::Node {
                let holds = match what {
                    Seek::Marked(mark) => self.any_marked(mark),
                    _ => what.may_hold(root.entry),
                };
                if holds {
                    return Some(page);
                }
                page = 1 << root.bits;
                continue;
            }
            match self.seek_down(page, end, what) {
                Ok(found) => return Some(found).filter(|&page| page < end),
                Err(next) => page = next,
            }
        }
        None
    }

    /// `Err` is the first page after a node that holds nothing from `page` on.
    fn seek_down(&self, mut page: u64, end: u64, what: Seek) -> Result<u64, u64> {
        let root = self.root();
        let mut node = self.node(root.entry);
        let mut shift = root.bits - BITS;
        // Ends: one level lower each time.
        loop {
            let slot = slot_of::<BITS>(page, shift);
            let base = page >> (shift + BITS) << (shift + BITS);
            let slots_end = (end - 1 - base) >> shift; // may be beyond this node
            let last = slots_end.min(u64::from(Node::<BITS>::FANOUT) - 1) as u32;
            let Some(found) = first_slot(node, slot..last + 1, what) else {
                return Err(base + (1 << (shift + BITS)));
            };
            if found != slot {
                page = base + (u64::from(found) << shift);
            }
            let entry = node.load(found);
            if entry.kind() != Kind::Node {
                return Ok(page);
            }
            node = self.node(entry);
            shift -= BITS;
        }
    }
}

fn first_slot<const BITS: u32>(
    node: Node<'_, BITS>,
    mut slots: Range<u32>,
    what: Seek,
) -> Option<u32> {
    if let Seek::Marked(mark) = what {
        let ahead = node.marks(mark) & u64::MAX << slots.start;
        let first = ahead.trailing_zeros();
        return (first < slots.end).then_some(first);
    }
    slots.find(|&i| what.may_hold(node.load(i)))
}
