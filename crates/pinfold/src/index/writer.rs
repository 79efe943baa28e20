//! Changing what a page's slots hold: insert, remove, replace, and the shadow an eviction leaves.
//!
//! Here: the changes, in terms of slots. Not here: how the tree gets its shape (`shape.rs`). Called
//! by fill (insert), reclaim (`store_shadow`), migration (replace) and truncate (remove), all with
//! the file's mutex held, which contains the `IndexOwner`.
//!
//! Each change finds all its reasons to fail before its first store.

use super::entry::{Entry, FrameNumber, Kind, Root};
use super::node::{Node, slot_mask};
use super::pool::{NoNodes, NodePool, Stash};
use super::tree::{Index, IndexOwner};
use super::types::{FolioAt, Mark, ORDER_MAX, PAGES_END, Slot};
use crate::mutant::{self, Mutant};
use crate::sync::Ordering;

/// The one writer of an index; gives back what it reserved and did not use when dropped.
#[derive(Debug)]
pub(crate) struct IndexWriter<'a, const BITS: u32 = { super::types::BITS }> {
    pub(super) index: &'a Index<BITS>,
    pub(super) owner: &'a mut IndexOwner,
    pub(super) pool: &'a NodePool<BITS>,
    pub(super) stash: Stash,
}

/// What an insert found in its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// The shadow of the wanted page, if it had one: this is a refault.
    pub(crate) refault: Option<u32>,
    /// How many shadow slots the index has now fewer (negative: more, because a shadow of many
    /// pages had to be spelled out around the new folio).
    pub(crate) shadow_slots_gone: i64,
}

/// Why an insert changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InsertError {
    /// The range is not free.
    #[error("page {} is in the index already (frame {}, order {})", .0.page, .0.frame.0, .0.order)]
    Occupied(FolioAt),
    /// Refill the pool and try again.
    #[error(transparent)]
    NoNodes(#[from] NoNodes),
}

/// Where an entry sits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seat<'a, const BITS: u32> {
    Root,
    Slots { node: Node<'a, BITS>, first: u32, count: u32 },
}

/// The slot of `page` in a node whose slots cover 2^`shift` pages each.
pub(super) fn slot_of<const BITS: u32>(page: u64, shift: u32) -> u32 {
    (page >> shift) as u32 & ((1 << BITS) - 1)
}

/// # Panics
/// If the folio is not naturally aligned, too large, or beyond the largest file.
fn check_folio(page: u64, order: u32) {
    assert!(order <= ORDER_MAX, "order {order} is above {ORDER_MAX}");
    assert!(page.trailing_zeros() >= order, "page {page} is not aligned to order {order}");
    assert!(page < PAGES_END, "page {page} is beyond the largest file");
}

impl<'a, const BITS: u32> IndexWriter<'a, BITS> {
    pub(super) fn new(
        index: &'a Index<BITS>,
        owner: &'a mut IndexOwner,
        pool: &'a NodePool<BITS>,
    ) -> Self {
        IndexWriter { index, owner, pool, stash: Stash::default() }
    }

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

    /// The node that `entry` names; it lives as long as the pool, not as this borrow.
    pub(super) fn node(&self, entry: Entry) -> Node<'a, BITS> {
        let pool: &'a NodePool<BITS> = self.pool;
        pool.node(entry)
    }

    #[cfg(test)]
    /// Nodes in this file's tree.
    pub(crate) fn nodes(&self) -> u64 {
        self.owner.nodes
    }

    /// Slots that hold a shadow. A shadow of order 0 to 5 has a slot for each page, a larger one a
    /// slot for each 64 pages.
    pub(crate) fn shadow_slots(&self) -> u64 {
        self.owner.shadow_slots
    }

    /// What the slot of `page` holds; under the mutex this is exact, not a hint.
    pub(crate) fn get(&self, page: u64) -> Slot {
        self.index.lookup_raw(page)
    }

    /// The folio that holds `page`.
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

    /// Takes from the pool what the next insert of this order at `page` can need. After that, and
    /// before any other change, such an insert does not fail for lack of nodes.
    ///
    /// # Errors
    /// [`NoNodes`]; nothing was taken.
    ///
    /// # Panics
    /// If `page` is not aligned to `order`, or out of range.
    pub(crate) fn reserve(&mut self, page: u64, order: u32) -> Result<(), NoNodes> {
        check_folio(page, order);
        let wanted = self.nodes_for_insert(page, order);
        self.pool.take(&mut self.stash, wanted)
    }

    /// Puts the folio `frame` at `page..page + 2^order`. Overwrites the shadows there and returns
    /// that of `wanted`, the page that was asked for: it says how long ago it was evicted.
    ///
    /// # Errors
    /// `Occupied` if a folio is in the way, `NoNodes` if the pool is short; nothing was changed.
    ///
    /// # Panics
    /// If `page` is not aligned to `order`, out of range, or `wanted` is not in the folio.
    pub(crate) fn insert(
        &mut self,
        page: u64,
        order: u32,
        frame: FrameNumber,
        wanted: u64,
    ) -> Result<Inserted, InsertError> {
        check_folio(page, order);
        assert!(wanted >> order == page >> order, "page {wanted} is not in the folio at {page}");
        let end = page + (1 << order);
        if let Some(folio) = self.next_present(page..end)
            && !mutant::on(Mutant::InsertBlindly)
        {
            return Err(InsertError::Occupied(folio));
        }
        self.reserve(page, order)?;
        let refault = match self.get(wanted) {
            Slot::Shadow(payload) => Some(payload),
            _ => None,
        };
        let shadows_before = self.owner.shadow_slots;
        self.store_new(page, order, Entry::folio(frame));
        self.enter_in_directory(page, order);
        debug_assert_eq!(self.folio(page), Some(FolioAt { page, order, frame }));
        let shadow_slots_gone =
            shadows_before.cast_signed() - self.owner.shadow_slots.cast_signed();
        Ok(Inserted { refault, shadow_slots_gone })
    }

    /// Stores a folio where no folio is, with the nodes reserved.
    fn store_new(&mut self, page: u64, order: u32, entry: Entry) {
        if self.fits_root(page, order) {
            if self.root().entry.payload().is_some() {
                self.owner.shadow_slots -= 1;
            }
            self.owner.root_marks = 0;
            self.set_root(Root { entry, bits: order });
            return;
        }
        let level = order / BITS;
        self.grow(page + (1 << order) - 1, level);
        let node = self.descend(page, level);
        let count = 1 << (order % BITS);
        let first = slot_of::<BITS>(page, level * BITS);
        let (mut shadows, mut nodes) = (0, 0);
        for i in first..first + count {
            let old = node.load(i);
            node.publish(i, entry);
            match old.kind() {
                Kind::Empty => {}
                Kind::Shadow(_) => shadows += 1,
                Kind::Node => {
                    nodes += 1;
                    self.free_shadow_tree(old);
                }
                Kind::Folio(_) => unreachable!("the range was checked"),
            }
        }
        debug_assert!(Mark::ALL.iter().all(|&m| node.marks(m) & slot_mask(first, count) == 0));
        self.count(node, count.cast_signed() - nodes, -shadows);
        if shadows + nodes > 0 {
            self.shrink();
        }
    }

    /// Removes the folio that holds `page`, with its marks, and leaves no shadow.
    pub(crate) fn remove(&mut self, page: u64) -> Option<FolioAt> {
        let (folio, seat) = self.find(page)?;
        self.drop_marks(seat);
        self.store(seat, Entry::EMPTY);
        if let Seat::Slots { node, count, .. } = seat {
            self.count(node, -count.cast_signed(), 0);
            self.prune(node);
            self.shrink();
        }
        self.enter_in_directory(folio.page, folio.order);
        Some(folio)
    }

    /// Puts `new` in place of the head of the folio that holds `page` (migration); marks stay.
    /// Readers find the old head or the new one at any moment.
    ///
    /// Returns the folio as it was, `None` if there is none.
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

    /// Puts a shadow in place of the folio that holds `page` (eviction). Its marks are dropped.
    ///
    /// *Every* slot of the folio gets the payload, so that a refault of any of its pages finds it:
    /// one shadow per page for orders 0 to 5, one per 64 pages above. They cost no memory beyond
    /// the node, which is there anyway. No node is freed: see `drop_shadows`.
    ///
    /// Returns the folio, `None` if there is none.
    ///
    /// # Panics
    /// If `payload` is 2^30 or above.
    pub(crate) fn store_shadow(&mut self, page: u64, payload: u32) -> Option<FolioAt> {
        let entry = Entry::shadow(payload);
        let (folio, seat) = self.find(page)?;
        self.drop_marks(seat);
        match seat {
            Seat::Root => {
                self.set_root(Root { entry, bits: folio.order });
                self.owner.shadow_slots += 1;
            }
            Seat::Slots { node, count, .. } => {
                self.store(seat, entry);
                self.count(node, -count.cast_signed(), count.cast_signed());
                self.shrink();
            }
        }
        self.enter_in_directory(folio.page, folio.order);
        Some(folio)
    }

    /// Stores one entry over all slots of a seat, in rising order.
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

    /// Adds to a node's counts, and to the file's count of shadows.
    pub(super) fn count(&mut self, node: Node<'a, BITS>, present: i32, shadows: i32) {
        let mut links = node.links();
        let add = |old: u32, by: i32| old.checked_add_signed(by).expect("a node's count below 0");
        links.present = add(links.present, present);
        links.shadows = add(links.shadows, shadows);
        assert!(links.present + links.shadows <= Node::<BITS>::FANOUT, "a node counts too much");
        node.set_links(links);
        self.owner.shadow_slots = self
            .owner
            .shadow_slots
            .checked_add_signed(shadows.into())
            .expect("the file's count of shadows below 0");
    }
}

impl<const BITS: u32> Drop for IndexWriter<'_, BITS> {
    fn drop(&mut self) {
        self.pool.give_back(&mut self.stash);
    }
}

impl<const BITS: u32> IndexWriter<'_, BITS> {
    /// Brings the directory in step after a change of 2^`order` pages from `page` on. Block 0 goes
    /// with each: the root above it may have become a node, or been one.
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

    /// What the tree says of a block.
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
    /// The writer of this index. `owner` is the proof that the file's mutex is held.
    ///
    /// # Panics
    /// If `owner` belongs to another index, or the index to another pool.
    pub(crate) fn writer<'a>(
        &'a self,
        owner: &'a mut IndexOwner,
        pool: &'a NodePool<BITS>,
    ) -> IndexWriter<'a, BITS> {
        assert!(pool.feeds(&self.memory), "this index takes its nodes from another pool");
        assert_eq!(self.id, owner.id, "this owner belongs to another index");
        IndexWriter::new(self, owner, pool)
    }
}
