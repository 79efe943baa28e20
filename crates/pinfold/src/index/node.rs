//! One node: 64 slots that readers load, and a header that only the file's writer touches. Every
//! `Ordering` of a slot that a writer uses is in this file.
//!
//! # The header
//!
//! Three 64-bit marks, a bit a slot, then the links in one word:
//!
//! | bits | field | legal values |
//! |---|---|---|
//! | 0..32 | parent | a node's word; 0 for the root's node |
//! | 32..38 | slot in the parent | 0..64 |
//! | 38..44 | level | 0 is a leaf, level l has 64^l pages a slot |
//! | 44..51 | present | slots that hold a folio or a node, 0..=64 |
//!
//! In a free node the links word holds the next free node. The file's mutex and the pool's order
//! all accesses to the header: they are relaxed.

use super::entry::Entry;
use super::memory::NodeMemory;
use super::types::Mark;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU32, AtomicU64, Ordering};

const LINKS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Links {
    pub(super) parent: u32,
    pub(super) slot: u32,
    pub(super) level: u32,
    pub(super) present: u32,
}

impl Links {
    fn pack(self) -> u64 {
        debug_assert!(self.slot < 64 && self.level < 64);
        debug_assert!(self.present <= 64);
        u64::from(self.parent)
            | u64::from(self.slot) << 32
            | u64::from(self.level) << 38
            | u64::from(self.present) << 44
    }

    fn unpack(word: u64) -> Links {
        let field = |at: u32, bits: u32| (word >> at & ((1 << bits) - 1)) as u32;
        Links {
            parent: word as u32,
            slot: field(32, 6),
            level: field(38, 6),
            present: field(44, 7),
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.present == 0
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'m, const BITS: u32> {
    memory: &'m NodeMemory<BITS>,
    entry: Entry,
}

impl<'m, const BITS: u32> Node<'m, BITS> {
    pub(super) const FANOUT: u32 = 1 << BITS;

    /// Panics if `entry` is no node.
    pub(super) fn new(memory: &'m NodeMemory<BITS>, entry: Entry) -> Self {
        assert!(memory.is_node(entry), "{entry:?} is no node");
        Node { memory, entry }
    }

    pub(super) fn entry(self) -> Entry {
        self.entry
    }

    fn slot(self, i: u32) -> &'m AtomicU32 {
        debug_assert!(i < Self::FANOUT);
        self.memory.slot(self.entry, u64::from(i))
    }

    fn header(self, i: usize) -> &'m AtomicU64 {
        self.memory.header(self.entry, i)
    }

    pub(super) fn load(self, i: u32) -> Entry {
        // Relaxed: only the file's writer stores here, and the file's mutex orders writers.
        Entry(self.slot(i).load(Ordering::Relaxed))
    }

    pub(super) fn publish(self, i: u32, entry: Entry) {
        let order = if mutant::on(Mutant::PublishRelaxed) {
            Ordering::Relaxed // a deliberate mistake, tests only
        } else {
            // Release: pairs with the Acquire in `Index::walk`, whose reader sees a node's slots
            // filled, and what the writer did to a frame before.
            Ordering::Release
        };
        self.slot(i).store(entry.0, order);
    }

    /// Fills a slot of a node that is not linked yet; only stale readers can be in it.
    pub(super) fn prepare(self, i: u32, entry: Entry) {
        // Relaxed: made visible by the `publish` that links the node. A stale reader in this
        // recycled node may see the word early; it is a valid entry at any time.
        self.slot(i).store(entry.0, Ordering::Relaxed);
    }

    pub(super) fn clear(self, links: Links) {
        if !mutant::on(Mutant::KeepOldSlots) {
            for i in 0..Self::FANOUT {
                self.prepare(i, Entry::EMPTY);
            }
        }
        for mark in Mark::ALL {
            self.set_marks(mark, 0);
        }
        self.set_links(links);
    }

    pub(super) fn marks(self, mark: Mark) -> u64 {
        self.header(mark as usize).load(Ordering::Relaxed)
    }

    pub(super) fn set_marks(self, mark: Mark, bits: u64) {
        self.header(mark as usize).store(bits, Ordering::Relaxed);
    }

    pub(super) fn links(self) -> Links {
        Links::unpack(self.header(LINKS).load(Ordering::Relaxed))
    }

    pub(super) fn set_links(self, links: Links) {
        self.header(LINKS).store(links.pack(), Ordering::Relaxed);
    }

    pub(super) fn count(self, by: i32) {
        let links = self.links();
        let present = links.present.checked_add_signed(by).expect("a node's count below 0");
        assert!(present <= Self::FANOUT, "a node counts too much");
        self.set_links(Links { present, ..links });
    }

    pub(super) fn next_free(self) -> u32 {
        self.header(LINKS).load(Ordering::Relaxed) as u32
    }

    pub(super) fn set_next_free(self, word: u32) {
        self.header(LINKS).store(u64::from(word), Ordering::Relaxed);
    }

    /// The folio that slot `i` belongs to: its first slot, and the log2 of its slots. A head's
    /// number is in the tree once, so the slots that hold it are one aligned run.
    pub(super) fn run(self, i: u32) -> (u32, u32) {
        let entry = self.load(i);
        debug_assert!(entry.frame().is_some());
        let mut log2 = 0;
        while log2 < BITS && self.load(i ^ 1 << log2) == entry {
            log2 += 1;
        }
        (i & !((1 << log2) - 1), log2)
    }
}

pub(super) fn slot_mask(first: u32, count: u32) -> u64 {
    debug_assert!(count >= 1 && first + count <= 64);
    u64::MAX >> (64 - count) << first
}
