//! The index of one file: from page offset to folio, in the manner of Linux's `XArray`, but for
//! readers that hold nothing, neither a lock nor RCU.
//!
//! Here: the tree and the pool its nodes come from. Not here: what a frame is and whether it is
//! still the right one (`frame/`), which thread may change a file (its mutex), which page to evict
//! (policy). Called by: the doors, which look up; fill inserts; reclaim stores shadows; writeback
//! follows marks.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | the lookup, and what a racing lookup may return |
//! | `entry.rs` | the words of a slot and of the root |
//! | `memory.rs` | from a node's number to its address |
//! | `node.rs` | a node's slots and header; the orderings of a writer |
//! | `pool.rs` | free nodes, shared by all files of a cache |
//! | `directory.rs` | a flat copy of the tree's upper levels, for hits |
//! | `writer.rs` | insert, remove, replace, `store_shadow` |
//! | `shape.rs` | growing, shrinking, pruning the tree |
//! | `split.rs` | one large entry becomes many small ones |
//! | `marks.rs` | dirty, writeback, towrite |
//! | `walk.rs` | the next folio, marked folio or hole in a range |
//! | `trim.rs` | giving up shadows, and the nodes that hold nothing else |
//!
//! # What a racing lookup may return
//!
//! One writer at a time; any number of lookups of page p meanwhile. A lookup is a load of the root
//! and one load per level, each a whole word, so no word is ever torn; every word it can meet is a
//! valid entry (`memory.rs` says why), so no address is ever outside the arena; and it makes at
//! most as many steps as the root it read has levels, so it ends whatever writers do.
//!
//! | writer | order of its stores | a racing lookup of p may return |
//! |---|---|---|
//! | insert | slots in rising order, each by one release store | nothing (or the shadow), or the new head. Of a large folio some pages may be found before others |
//! | tree grows | new node filled, then root or slot, release | what was there before: growth hides no page |
//! | replace | slots in rising order | the old head or the new one, never nothing; different pages may disagree until it is done |
//! | split | new nodes filled, then the slots of the old entry in rising order | the old head or the piece's, never nothing |
//! | remove, `store_shadow` | slots in rising order | the old head, or nothing (or the shadow) |
//! | tree shrinks, node pruned | root or parent's slot, then the node goes to the stash and the pool | as if nothing had happened, until the node is used again: |
//! | node used again, perhaps by another file | filled by relaxed stores, then linked | a reader still inside gets *any* folio of any file of this cache, any shadow, or nothing |
//!
//! So a caller must know two things:
//! 1. **A head is a hint.** Check the identity in the frame's entry (mapping, index, order) under
//!    its version before using it. Fill, reclaim, split and migration make the version odd while
//!    identity and index disagree.
//! 2. **Nothing is a hint too.** Through a recycled node a resident page can be missed, rarely. A
//!    miss looks again under the file's mutex before it fills.
//!
//! # Publication
//!
//! Node slots and the root are stored with release and loaded with acquire. The loads form a
//! dependent chain (each word is the next address), which every supported CPU keeps in order by
//! itself; but Rust has no consume, and a compiler may not know that it must keep the dependency.
//! On x86-64 acquire is a plain `mov`. On aarch64 it is `ldar` (`ldapr` where the target has
//! `rcpc`) in place of `ldr`: same port, and it waits for an earlier `stlr` of the same thread at
//! most, of which a reader has none.
//!
//! # Entries of many pages
//!
//! A folio of order n fills 2^(n % 6) slots at level n / 6, and *every* one of them holds the head.
//! Linux puts the head in one slot and "sibling" entries, that point at it, in the others: there
//! the lookup must, for a sibling, load a second slot and retry under races. Here any page is found
//! by the same loads as a page of a small folio; no state "sibling of a head that is gone" exists.
//! The writer pays for it: replacing stores up to 32 words instead of one, and a folio's order is
//! found by comparing neighbours, five loads at most.

mod directory;
mod entry;
mod marks;
mod memory;
mod node;
mod pool;
mod shape;
mod split;
mod trim;
mod walk;
mod writer;

#[cfg(test)]
mod tests;

#[allow(unused_imports, reason = "the room's front door")]
pub(crate) use self::{
    directory::Lookup,
    entry::FrameNumber,
    pool::{NoNodes, NodePool, PoolStats},
    split::SplitError,
    trim::{TrimWhere, Trimmed},
    writer::{IndexWriter, InsertError, Inserted},
};

use self::directory::Directory;
use self::entry::{Entry, Root};
use self::memory::NodeMemory;
use crate::sync::{AtomicU64, Ordering};

/// Largest order of an entry: 2 MiB.
pub(crate) const ORDER_MAX: u32 = 9;

/// Log2 of a node's slots.
pub(crate) const BITS: u32 = crate::sizes::NODE_BITS;

/// One more than the largest page offset: file offsets end at 2^63.
pub(crate) const PAGES_END: u64 = 1 << 51;

/// A property of a folio that a walk can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Has bytes that were not given to the source yet.
    Dirty = 0,
    /// Was given to the source, which has not said yet that it is durable.
    Writeback = 1,
    /// Was dirty when the running sync began.
    ToWrite = 2,
}

impl Mark {
    pub(crate) const ALL: [Mark; 3] = [Mark::Dirty, Mark::Writeback, Mark::ToWrite];
}

/// A folio and where it is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FolioAt {
    /// Page offset of the folio's first page; a multiple of 2^order.
    pub(crate) page: u64,
    /// Log2 of the folio's pages.
    pub(crate) order: u32,
    /// The folio's head.
    pub(crate) frame: FrameNumber,
}

impl FolioAt {
    /// Page offset of the first page behind the folio.
    pub(crate) fn end(self) -> u64 {
        self.page + (1 << self.order)
    }
}

/// What a page's slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing was ever here, or it was dropped.
    Empty,
    /// The head of a folio; a hint, see the head of the file.
    Folio(FrameNumber),
    /// A folio was here and was evicted; the policy's payload.
    Shadow(u32),
}

/// One file's index, for readers. 72 bytes; lookups load from it and never store.
#[derive(Debug)]
pub(crate) struct Index<const BITS: u32 = { self::BITS }> {
    root: AtomicU64,
    memory: NodeMemory<BITS>,
    directory: Directory,
    /// Of all indexes of its pool, for as long as the pool lives: 64 bits do not come round.
    id: u64,
}

/// The right to change one index. Keep it inside the file's mutex.
///
/// It can be neither copied nor made: [`NodePool::new_index`] makes one for each index, and a
/// writer borrows it mutably. So two writers at once do not type-check.
#[derive(Debug)]
pub(crate) struct IndexOwner {
    id: u64,
    /// Marks of a folio that sits in the root itself; bit m is mark m.
    root_marks: u8,
    /// Nodes in the tree.
    nodes: u64,
    /// Slots that hold a shadow, the root's included.
    shadow_slots: u64,
    /// Where `drop_shadows` goes on.
    trim_hand: u64,
}

impl<const BITS: u32> Index<BITS> {
    fn new(memory: NodeMemory<BITS>, id: u64, pages: u64) -> (Self, IndexOwner) {
        const { assert!(BITS >= 1 && BITS <= 6, "a mark has 64 bits") };
        let owner = IndexOwner { id, root_marks: 0, nodes: 0, shadow_slots: 0, trim_hand: 0 };
        let directory = Directory::new::<BITS>(pages);
        (Index { root: AtomicU64::new(Root::EMPTY.pack()), memory, directory, id }, owner)
    }

    /// Bytes that it takes outside of the arena, beside itself.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.directory.bytes()
    }

    /// Where its nodes are.
    #[cfg_attr(not(loom), allow(clippy::clone_on_copy, reason = "loom's memory is not Copy"))]
    fn node_memory(&self) -> NodeMemory<BITS> {
        self.memory.clone()
    }

    /// The head of the folio that holds `page`: a hint in both directions, see the head of the
    /// file.
    ///
    /// Wait-free, stores nothing. Costs one load for a file of one folio, and one more per level: 1
    /// up to 256 KiB, 2 up to 16 MiB, 3 up to 1 GiB, 4 up to 64 GiB.
    #[inline]
    pub(crate) fn lookup(&self, page: u64) -> Option<FrameNumber> {
        self.walk(page).frame()
    }

    /// As `lookup`, and faster, for a caller that checks the result: for a page that is not in the
    /// index, or is being inserted, it may be any head, or a number that the arena does not have.
    #[inline(always)]
    pub(crate) fn lookup_hint(&self, page: u64) -> FrameNumber {
        let Some(entry) = self.directory.get(page >> BITS) else { return self.lookup_far(page) };
        if !self.memory.is_node(entry) {
            return entry.frame_or_none_such();
        }
        // Relaxed: a hint, as the directory's words.
        Entry(self.memory.slot(entry, page).load(Ordering::Relaxed)).frame_or_none_such()
    }

    /// Behind the directory's end.
    #[cold]
    #[inline(never)]
    fn lookup_far(&self, page: u64) -> FrameNumber {
        self.walk(page).frame_or_none_such()
    }

    /// Like `lookup`, and tells a shadow from a hole.
    #[inline]
    pub(crate) fn lookup_raw(&self, page: u64) -> Slot {
        let entry = self.walk(page);
        match (entry.frame(), entry.payload()) {
            (Some(frame), _) => Slot::Folio(frame),
            (None, Some(payload)) => Slot::Shadow(payload),
            (None, None) => Slot::Empty,
        }
    }

    #[inline]
    fn walk(&self, page: u64) -> Entry {
        // Acquire: pairs with the Release in `IndexWriter::set_root`.
        let root = Root::unpack(self.root.load(Ordering::Acquire));
        if !root.covers(page) {
            return Entry::EMPTY;
        }
        let (mut entry, mut shift) = (root.entry, root.bits);
        // Ends: the shift falls with every step, also in a walk through recycled nodes.
        while self.memory.is_node(entry) {
            let (rest, below_leaf) = shift.overflowing_sub(BITS);
            if below_leaf {
                return Entry::EMPTY; // a recycled node, of a higher level than the one we came for
            }
            shift = rest;
            let slot = self.memory.slot(entry, page.wrapping_shr(shift));
            // Acquire: pairs with the Release in `Node::publish`.
            entry = Entry(slot.load(Ordering::Acquire));
        }
        entry
    }

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
