use super::directory::Directory;
use super::entry::{Entry, FrameNumber, Root};
use super::memory::NodeMemory;
use crate::base::sync::{AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Index<const BITS: u32 = { super::types::BITS }> {
    pub(super) root: AtomicU64,
    pub(super) memory: NodeMemory<BITS>,
    pub(super) directory: Directory,
    /// No other index of its pool has or had it.
    pub(super) id: u64,
}

/// The right to change one index, kept inside the file's mutex. A writer borrows it mutably.
#[derive(Debug)]
pub(crate) struct IndexOwner {
    pub(super) id: u64,
    /// Of a folio that sits in the root itself; bit m is mark m.
    pub(super) root_marks: u8,
    pub(super) nodes: u64,
}

impl<const BITS: u32> Index<BITS> {
    pub(super) fn new(memory: NodeMemory<BITS>, id: u64, pages: u64) -> (Self, IndexOwner) {
        const { assert!(BITS >= 1 && BITS <= 6, "a mark has 64 bits") };
        let owner = IndexOwner { id, root_marks: 0, nodes: 0 };
        let directory = Directory::new::<BITS>(pages);
        (Index { root: AtomicU64::new(Root::EMPTY.pack()), memory, directory, id }, owner)
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Outside of the arena, beside itself.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.directory.bytes()
    }

    /// The head of the folio that holds `page`: a hint in both directions. Wait-free, stores
    /// nothing. Costs one load for a file of one folio, and one more per level.
    #[inline]
    pub(crate) fn lookup(&self, page: u64) -> Option<FrameNumber> {
        self.walk(page).frame()
    }

    /// [`lookup`](Self::lookup), faster: of a page that is not in the index, or that is being put
    /// there, it may be any head, or a number that no arena has.
    #[inline(always)]
    pub(crate) fn lookup_hint(&self, page: u64) -> FrameNumber {
        let Some(entry) = self.directory.get(page >> BITS) else { return self.lookup_far(page) };
        if !self.memory.is_node(entry) {
            return entry.frame_or_none_such();
        }
        // Relaxed: a hint, as the directory's words.
        Entry(self.memory.slot(entry, page).load(Ordering::Relaxed)).frame_or_none_such()
    }

    #[cold]
    #[inline(never)]
    fn lookup_far(&self, page: u64) -> FrameNumber {
        self.walk(page).frame_or_none_such()
    }

    /// The next page behind `page`, which has no folio, that may have one. A hint as well.
    #[cfg(any(feature = "map", test))]
    pub(crate) fn next_hint(&self, page: u64) -> u64 {
        // Acquire, both: as in `walk`.
        let root = Root::unpack(self.root.load(Ordering::Acquire));
        if !root.covers(page) {
            return super::types::PAGES_END;
        }
        let (mut entry, mut shift) = (root.entry, root.bits);
        // Ends: the shift falls with every step.
        while self.memory.is_node(entry) && shift >= BITS {
            shift -= BITS;
            entry = Entry(self.memory.slot(entry, page >> shift).load(Ordering::Acquire));
        }
        ((page >> shift) + 1) << shift
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
}
