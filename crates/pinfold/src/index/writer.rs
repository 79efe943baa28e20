//! Insert, remove, replace. Each finds all its reasons to fail before its first store.

use super::entry::{Entry, FrameNumber, Kind, Root};
use super::node::{Node, slot_mask};
use super::pool::{NoNodes, NodeChain, NodePool};
use super::tree::{Index, IndexOwner};
use super::types::{FolioAt, Mark, ORDER_MAX, PAGES_END};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::Ordering;

/// Gives back what it reserved and did not use when dropped.
#[derive(Debug)]
pub(crate) struct IndexWriter<'a, const BITS: u32 = { super::types::BITS }> {
    pub(super) index: &'a Index<BITS>,
    pub(super) owner: &'a mut IndexOwner,
    pub(super) pool: &'a NodePool<BITS>,
    pub(super) stash: NodeChain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InsertError {
    #[error("page {} is in the index already (frame {}, order {})", .0.page, .0.frame.0, .0.order)]
    Occupied(FolioAt),
    #[error(transparent)]
    NoNodes(#[from] NoNodes),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Seat<'a, const BITS: u32> {
    Root,
    Slots { node: Node<'a, BITS>, first: u32, count: u32 },
}

/// In a node whose slots cover 2^`shift` pages each.
pub(super) fn slot_of<const BITS: u32>(page: u64, shift: u32) -> u32 {
    (page >> shift) as u32 & ((1 << BITS) - 1)
}

/// Panics if the folio is not naturally aligned, too large, or beyond the largest file.
fn check_folio(page: u64, order: u32) {
    assert!(order <= ORDER_MAX, "order {order} is above {ORDER_MAX}");
    assert!(page.trailing_zeros() >= order, "page {page} is not aligned to order {order}");
    assert!(page < PAGES_END, "page {page} is beyond the largest file");
}

impl<'a, const BITS: u32> IndexWriter<'a, BITS> {
    pub(super) fn root(&self) -> Root {
        // Relaxed: only the writer stores the root, and the file's mutex orders writers.
        Root::unpack(self.index.root.load(Ordering::Relaxed))
    }

    pub(super) fn set_root(&mut self, root: Root) {
        let order = if mutant::on(Mutant::PublishRelaxed) {
            Ordering::Relaxed // a deliberate mistake, tests only
        } else {
            // Release: pairs with the Acquire in `Index::walk`, as `Node::publish` does.
            Ordering::Release
        };
        self.index.root.store(root.pack(), order);
    }

    /// It lives as long as the pool, not as this borrow.
    pub(super) fn node(&self, entry: Entry) -> Node<'a, BITS> {
        let pool: &'a NodePool<BITS> = self.pool;
        pool.node(entry)
    }

    #[cfg(test)]
    pub(crate) fn nodes(&self) -> u64 {
        self.owner.nodes
    }

    pub(crate) fn folio(&self, page: u64) -> Option<FolioAt> {
        self.find(page).map(|(folio, _)| folio)
    }

    pub(super) fn find(&self, page: u64) -> Option<(FolioAt, Seat<'a, BITS>)> {
        let root = self.root();
        if !root.covers(page) {
            return None;
        }
        if let Kind::Folio(frame) = root.entry.kind() {
            return Some((FolioAt { page: 0, order: root.bits, frame }, Seat::Root));
        }
        let (mut entry, mut shift) = (root.entry, root.bits);
        // Ends: the shift falls with every step, and leaves hold no nodes.
        while entry.kind() == Kind::Node {
            shift -= BITS;
            let node = self.node(entry);
            let i = slot_of::<BITS>(page, shift);
            entry = node.load(i);
            if let Kind::Folio(frame) = entry.kind() {
                let (first, log2) = node.run(i);
                let order = shift + log2;
                let folio = FolioAt { page: page >> order << order, order, frame };
                return Some((folio, Seat::Slots { node, first, count: 1 << log2 }));
            }
        }
        None
    }

    /// Takes from the pool what the next insert of this order at `page` can need. Before any other
    /// change, such an insert does not fail for lack of nodes. Error: nothing was taken.
    pub(crate) fn reserve(&mut self, page: u64, order: u32) -> Result<(), NoNodes> {
        check_folio(page, order);
        let wanted = self.nodes_for_insert(page, order);
        self.pool.take(&mut self.stash, wanted)
    }

    /// Puts the folio `frame` at `page..page + 2^order`. Error: nothing was changed.
    pub(crate) fn insert(
        &mut self,
        page: u64,
        order: u32,
        frame: FrameNumber,
    ) -> Result<(), InsertError> {
        check_folio(page, order);
        if let Some(folio) = self.next_present(page..page + (1 << order))
            && !mutant::on(Mutant::InsertBlindly)
        {
            return Err(InsertError::Occupied(folio));
        }
        self.reserve(page, order)?;
        self.store_new(page, order, Entry::folio(frame));
        self.enter_in_directory(page, order);
        debug_assert_eq!(self.folio(page), Some(FolioAt { page, order, frame }));
        Ok(())
    }

    fn store_new(&mut self, page: u64, order: u32, entry: Entry) {
        if self.fits_root(page) {
            self.owner.root_marks = 0;
            self.set_root(Root { entry, bits: order });
            return;
        }
        let level = order / BITS;
        self.grow(page + (1 << order) - 1, level);
        let node = self.descend(page, level);
        let count = 1 << (order % BITS);
        let first = slot_of::<BITS>(page, level * BITS);
        let mut slots = first..first + count;
        assert!(slots.all(|slot| node.load(slot) == Entry::EMPTY), "the range was checked");
        debug_assert!(Mark::ALL.iter().all(|&m| node.marks(m) & slot_mask(first, count) == 0));
        self.store(Seat::Slots { node, first, count }, entry);
        node.count(count.cast_signed());
    }

    pub(crate) fn remove(&mut self, page: u64) -> Option<FolioAt> {
        let (folio, seat) = self.find(page)?;
        self.drop_marks(seat);
        self.store(seat, Entry::EMPTY);
        if let Seat::Slots { node, count, .. } = seat {
            node.count(-count.cast_signed());
            self.prune(node);
            self.shrink();
        }
        self.enter_in_directory(folio.page, folio.order);
        Some(folio)
    }

    /// Puts `new` in place of the head of the folio that holds `page`; marks stay. Readers find one
    /// or the other at any moment. Returns the folio as it was, if there is one.
    pub(crate) fn replace(&mut self, page: u64, new: FrameNumber) -> Option<FolioAt> {
        let (folio, seat) = self.find(page)?;
        if mutant::on(Mutant::ReplaceClearsFirst) {
            self.store(seat, Entry::EMPTY);
        }
        match seat {
            Seat::Root => self.set_root(Root { entry: Entry::folio(new), bits: folio.order }),
            Seat::Slots { .. } => self.store(seat, Entry::folio(new)),
        }
        self.enter_in_directory(folio.page, folio.order);
        debug_assert_eq!(self.folio(page), Some(FolioAt { frame: new, ..folio }));
        Some(folio)
    }

    /// In rising order.
    pub(super) fn store(&mut self, seat: Seat<'a, BITS>, entry: Entry) {
        match seat {
            Seat::Root => {
                let bits = if entry == Entry::EMPTY { 0 } else { self.root().bits };
                self.set_root(Root { entry, bits });
            }
            Seat::Slots { node, first, count } => {
                for i in first..first + count {
                    node.publish(i, entry);
                }
            }
        }
    }
}

impl<const BITS: u32> Drop for IndexWriter<'_, BITS> {
    fn drop(&mut self) {
        self.pool.give_back(&mut self.stash);
    }
}

impl<const BITS: u32> IndexWriter<'_, BITS> {
    /// After a change of 2^`order` pages from `page` on. Block 0 goes with each: the root above it
    /// may have become a node, or been one.
    pub(super) fn enter_in_directory(&self, page: u64, order: u32) {
        if mutant::on(Mutant::DirectoryStays) {
            return;
        }
        self.enter_block(0);
        let last = page + (1 << order) - 1;
        for block in page >> BITS..=last >> BITS {
            self.enter_block(block);
        }
    }

    fn enter_block(&self, block: u64) {
        self.index.directory.set(block, self.block(block));
    }

    pub(super) fn block(&self, block: u64) -> Entry {
        let (root, page) = (self.root(), block << BITS);
        if !root.covers(page) {
            return Entry::EMPTY;
        }
        let (mut entry, mut shift) = (root.entry, root.bits);
        // Ends: the shift falls with every step.
        while shift > BITS && entry.kind() == Kind::Node {
            shift -= BITS;
            entry = self.node(entry).load(slot_of::<BITS>(page, shift));
        }
        entry
    }
}

impl<const BITS: u32> Index<BITS> {
    /// `owner` is the proof that the file's mutex is held.
    pub(crate) fn writer<'a>(
        &'a self,
        owner: &'a mut IndexOwner,
        pool: &'a NodePool<BITS>,
    ) -> IndexWriter<'a, BITS> {
        assert!(pool.feeds(&self.memory), "this index takes its nodes from another pool");
        assert_eq!(self.id, owner.id, "this owner belongs to another index");
        IndexWriter { index: self, owner, pool, stash: NodeChain::default() }
    }
}
