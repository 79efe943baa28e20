//! Marks: which folios are dirty, or given to the source and not known to be durable. One is set in
//! all slots of a folio: so a split or a replacement keeps it. A parent's bit for a child is set
//! exactly while the child has a bit set.

use super::entry::Entry;
use super::node::{Node, slot_mask};
use super::types::Mark;
use super::writer::{IndexWriter, Seat};
use crate::base::mutant::{self, Mutant};

impl<'a, const BITS: u32> IndexWriter<'a, BITS> {
    /// `None`: there is no folio; else whether `mark` was clear before.
    pub(crate) fn set_mark(&mut self, page: u64, mark: Mark) -> Option<bool> {
        let (_, seat) = self.find(page)?;
        let was = self.seat_marked(seat, mark);
        match seat {
            Seat::Root => self.owner.root_marks |= 1 << mark as u32,
            Seat::Slots { node, first, count } => {
                self.set_bits(node, slot_mask(first, count), mark);
            }
        }
        Some(!was)
    }

    /// `None`: there is no folio; else whether `mark` was set before.
    pub(crate) fn clear_mark(&mut self, page: u64, mark: Mark) -> Option<bool> {
        let (_, seat) = self.find(page)?;
        let was = self.seat_marked(seat, mark);
        self.clear_seat(seat, mark);
        Some(was)
    }

    pub(crate) fn is_marked(&self, page: u64, mark: Mark) -> bool {
        self.find(page).is_some_and(|(_, seat)| self.seat_marked(seat, mark))
    }

    pub(crate) fn any_marked(&self, mark: Mark) -> bool {
        let entry = self.root().entry;
        if entry.frame().is_some() {
            return self.seat_marked(Seat::Root, mark);
        }
        entry != Entry::EMPTY && self.node(entry).marks(mark) != 0
    }

    /// Whether the source has all bytes of the folio that holds `page`, durably. Costs four loads
    /// in a file of which that is true of every folio.
    pub(crate) fn is_clean(&self, page: u64) -> bool {
        let marked = |mark| self.any_marked(mark) && self.is_marked(page, mark);
        !marked(Mark::Dirty) && !marked(Mark::Writeback)
    }

    pub(crate) fn is_all_clean(&self) -> bool {
        !self.any_marked(Mark::Dirty) && !self.any_marked(Mark::Writeback)
    }

    pub(super) fn drop_marks(&mut self, seat: Seat<'a, BITS>) {
        for mark in Mark::ALL {
            self.clear_seat(seat, mark);
        }
    }

    pub(super) fn seat_marked(&self, seat: Seat<'a, BITS>, mark: Mark) -> bool {
        match seat {
            Seat::Root => self.owner.root_marks >> mark as u32 & 1 != 0,
            Seat::Slots { node, first, .. } => node.marks(mark) >> first & 1 != 0,
        }
    }

    fn clear_seat(&mut self, seat: Seat<'a, BITS>, mark: Mark) {
        match seat {
            Seat::Root => self.owner.root_marks &= !(1 << mark as u32),
            Seat::Slots { node, first, count } => {
                self.clear_bits(node, slot_mask(first, count), mark);
            }
        }
    }

    fn set_bits(&self, mut node: Node<'a, BITS>, mut mask: u64, mark: Mark) {
        // Ends: one level higher each time.
        loop {
            let old = node.marks(mark);
            node.set_marks(mark, old | mask);
            let links = node.links();
            if old != 0 || links.parent == 0 || mutant::on(Mutant::MarkStaysLow) {
                return; // a node with a bit set is marked in its parent already
            }
            node = self.node(Entry(links.parent));
            mask = 1 << links.slot;
        }
    }

    fn clear_bits(&self, mut node: Node<'a, BITS>, mut mask: u64, mark: Mark) {
        // Ends: one level higher each time.
        loop {
            let old = node.marks(mark);
            node.set_marks(mark, old & !mask);
            let links = node.links();
            if old == 0 || old & !mask != 0 || links.parent == 0 {
                return;
            }
            node = self.node(Entry(links.parent));
            mask = 1 << links.slot;
        }
    }
}
