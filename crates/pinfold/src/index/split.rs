//! Splitting an entry: one large folio becomes smaller ones.
//!
//! 1. The entry is found; the nodes it needs are taken from the pool.
//! 2. If the entry sits in the root itself, a node is put under it.
//! 3. Slot by slot, in rising order: if the pieces are of a lower level, their nodes are built
//!    completely; then one release store puts the piece, or the node, in place of the old head.
//!
//! So at every moment each page's way leads to the old head or to its piece's, and every piece has
//! the marks the old entry had.

use super::entry::{Entry, FrameNumber};
use super::node::{Links, Node, slot_mask};
use super::pool::NoNodes;
use super::types::Mark;
use super::writer::{IndexWriter, Seat};
use crate::base::mutant::{self, Mutant};

struct SplitPieces<F> {
    order: u32,
    head: F,
    next: u32,
}

impl<F: FnMut(u32) -> FrameNumber> SplitPieces<F> {
    fn next_entry(&mut self) -> Entry {
        self.next += 1;
        Entry::folio((self.head)(self.next - 1))
    }
}

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

    /// Splits the folio that holds `page` into pieces of `new_order`; piece i, in the file's order,
    /// gets the head `head(i)`. The heads must differ. Error: nothing was changed. Panics if there
    /// is no folio, or one of `new_order` or less.
    pub(crate) fn split(
        &mut self,
        page: u64,
        new_order: u32,
        head: impl FnMut(u32) -> FrameNumber,
    ) -> Result<(), NoNodes> {
        let folio = self.folio(page).expect("a folio to split");
        let old_order = folio.order;
        self.reserve_split(old_order, new_order)?;
        self.push_root_down();
        let (_, seat) = self.find(page).expect("found before");
        let Seat::Slots { node, first, count } = seat else { unreachable!("was pushed down") };
        if mutant::on(Mutant::SplitClearsFirst) {
            self.store(seat, Entry::EMPTY);
        }
        let mut pieces = SplitPieces { order: new_order, head, next: 0 };
        if old_order / BITS == new_order / BITS {
            Self::store_pieces(node, first..first + count, &mut pieces, Node::publish);
        } else {
            for i in first..first + count {
                let child = self.subtree(node, i, &mut pieces);
                node.publish(i, child);
            }
        }
        assert_eq!(pieces.next, 1 << (old_order - new_order), "pieces made");
        self.shrink();
        self.enter_in_directory(folio.page, old_order);
        Ok(())
    }

    fn store_pieces<F: FnMut(u32) -> FrameNumber>(
        node: Node<'a, BITS>,
        slots: std::ops::Range<u32>,
        pieces: &mut SplitPieces<F>,
        store: impl Fn(Node<'a, BITS>, u32, Entry),
    ) {
        let each = 1 << (pieces.order % BITS);
        let mut entry = Entry::EMPTY;
        for i in slots {
            if i % each == 0 {
                entry = pieces.next_entry();
            }
            store(node, i, entry);
        }
    }

    /// The node that takes slot `slot` of `parent`, down to the pieces. Not published here.
    fn subtree<F: FnMut(u32) -> FrameNumber>(
        &mut self,
        parent: Node<'a, BITS>,
        slot: u32,
        pieces: &mut SplitPieces<F>,
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
        if level == pieces.order / BITS {
            Self::store_pieces(node, 0..all, pieces, Node::prepare);
        } else {
            // Ends: one level lower each time.
            for i in 0..all {
                let child = self.subtree(node, i, pieces);
                node.prepare(i, child);
            }
        }
        node.entry()
    }
}
