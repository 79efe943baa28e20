//! The directory: what the tree says of each block of 64 pages, in one flat array.
//!
//! Here: the array, and how the writer keeps it in step. Not here: the tree, which alone is exact.
//! Who calls it: `Index::lookup_hint`, and the writer at the end of each change.
//!
//! A walk from the root costs some instructions for the root and more for each level, and a read of
//! what is in memory is paid by the instruction (docs/cache.md, "What a short read costs"). With the
//! directory any page of the first 16 GiB is found by one load, or two where its block is made of
//! small folios: that of the leaf's number, and that of its slot.
//!
//! A word of the directory is that of the tree's slot for the block: empty, a shadow, a folio of 64
//! pages or more (or the one that sits in the root), or the leaf. It is stored after the tree was
//! changed, so it may be old by one change; and as nodes and frames are type-stable, following an
//! old word leads to a wrong head at worst. Every reader checks the head's identity, so a word needs
//! no ordering.
//!
//! It lives on the heap, 4 bytes for each 256 KiB of the file as long as it was when it was opened,
//! 256 KiB at most; the system gives memory to the parts that are used. Beyond its end readers walk.

use super::entry::{Entry, Kind};
use super::writer::{IndexWriter, slot_of};
use crate::flaw::{self, Flaw};
use crate::sizes::DIRECTORY_BLOCKS_MAX;
use crate::sync::{AtomicU32, Ordering};

/// One word for each block of 2^`BITS` pages from the file's start on.
#[derive(Debug)]
pub(super) struct Directory {
    words: Box<[AtomicU32]>,
}

impl Directory {
    /// Of an index of `pages` pages, all empty; of none if there are none.
    pub(super) fn new<const BITS: u32>(pages: u64) -> Self {
        let blocks = pages.div_ceil(1 << BITS).min(DIRECTORY_BLOCKS_MAX);
        Directory { words: (0..blocks).map(|_| AtomicU32::new(Entry::EMPTY.0)).collect() }
    }

    /// What was said last of a block; nothing beyond the end.
    #[inline(always)]
    pub(super) fn get(&self, block: u64) -> Option<Entry> {
        // Relaxed: a hint, see the head of the file.
        Some(Entry(self.words.get(block as usize)?.load(Ordering::Relaxed)))
    }

    fn set(&self, block: u64, entry: Entry) {
        if let Some(word) = self.words.get(block as usize) {
            // Relaxed, both: the writer is alone, and readers take it for a hint. Most changes
            // change a leaf only: then the line stays shared.
            if word.load(Ordering::Relaxed) != entry.0 {
                word.store(entry.0, Ordering::Relaxed);
            }
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }
}

impl<const BITS: u32> IndexWriter<'_, BITS> {
    /// Brings the directory in step after a change of 2^`order` pages from `page` on. Block 0 goes
    /// with each: the root above it may have become a node, or been one.
    pub(super) fn enter_in_directory(&self, page: u64, order: u32) {
        if flaw::on(Flaw::DirectoryStays) {
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
    fn block(&self, block: u64) -> Entry {
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
