//! Splitting an entry: one large folio becomes smaller ones.
//!
//! 1. The entry is found; the nodes it needs are taken from the pool.
//! 2. If the entry sits in the root itself, a node is put under it.
//! 3. Slot by slot, in rising order: if the pieces are of a lower level, their nodes are built
//!    completely; then one release store puts the piece, or the node, in place of the old head.
//!
//! So each page's way always leads to the old head or to its piece's, which has the same marks.

use super::entry::{Entry, FrameNumber};
use super::node::{Links, Node, slot_mask};
use super::pool::NoNodes;
use super::types::Mark;
use super::writer::{IndexWriter, Seat};
use crate::base::mutant::{self, Mutant};
use std::ops::Range;

impl<'a, const BITS: u32> IndexWriter<'a, BITS> {
    /// Takes from the pool what `split` of such an entry needs. Error: nothing was taken.
    pub(crate) fn reserve_split(&mut self, old_order: u32, new_order: u32) -> Result<(), NoNodes> {
        assert!(new_order < old_order, "a split from order {old_order} to {new_order}");
        let mut level_nodes = 1 << (old_order % BITS);
        let mut wanted = 1; // should the entry sit in the root itself
        for _ in new_order / BITS..old_order / BITS {
            wanted += level_nodes;
            level_nodes <<= BITS;
        }
        self.pool.take(&mut self.stash, wanted)
    }

    /// Splits the folio that holds `page` into pieces of `new_order`, each of its own frames.
    /// Error: nothing was changed. Panics if there is no folio, or one of `new_order` or less.
    pub(crate) fn split(&mut self, page: u64, new_order: u32) -> Result<(), NoNodes> {
        let folio = self.folio(page).expect("a folio to split");
        self.reserve_split(folio.order, new_order)?;
        self.push_root_down();
        let (_, seat) = self.find(page).expect("found before");
        let Seat::Slots { node, first, count } = seat else { unreachable!("was pushed down") };
        if mutant::on(Mutant::SplitClearsFirst) {
            self.store(seat, Entry::EMPTY);
        }
        self.store_pieces((node, first..first + count), folio.frame, new_order, Node::publish);
        self.shrink();
        self.enter_in_directory(folio.page, folio.order);
        Ok(())
    }

    /// Gives slots of a node their pieces of `order`, or nodes with them, by `store`. Those of the
    /// first begin at `frame`.
    fn store_pieces(
        &mut self,
        (node, slots): (Node<'a, BITS>, Range<u32>),
        frame: FrameNumber,
        order: u32,
        store: fn(Node<'a, BITS>, u32, Entry),
    ) {
        let level = node.links().level;
        // Ends: each call below is of a lower level.
        for (n, slot) in slots.enumerate() {
            let frames = (n as u32) << (level * BITS);
            let entry = if level == order / BITS {
                Entry::folio(frame.after(frames >> order << order))
            } else {
                self.subtree(node, slot, frame.after(frames), order)
            };
            store(node, slot, entry);
        }
    }

    /// The node that takes slot `slot` of `parent`, down to the pieces. Not published here.
    fn subtree(
        &mut self,
        parent: Node<'a, BITS>,
        slot: u32,
        frame: FrameNumber,
        order: u32,
    ) -> Entry {
        let all = Node::<BITS>::FANOUT;
        let level = parent.links().level - 1;
        let links = Links { parent: parent.entry().0, slot, level, present: all };
        let node = self.new_node(links);
        if mutant::on(Mutant::PublishBeforeFill) {
            parent.publish(slot, node.entry());
        }
        for mark in Mark::ALL {
            if parent.marks(mark) >> slot & 1 != 0 {
                node.set_marks(mark, slot_mask(0, all));
            }
        }
        self.store_pieces((node, 0..all), frame, order, Node::prepare);
        node.entry()
    }
}
