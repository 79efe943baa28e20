//! The directory: the tree's entry for each block of 64 pages, in one flat array. With it any page
//! of the first 16 GiB is found by one load, or two where its block is made of small folios.
//!
//! A word is that of the tree's slot for the block: empty, a folio of 64 pages or more (or the one
//! that sits in the root), or the leaf. It is stored after the tree was changed, so it may be old
//! by one change; as nodes and frames are type-stable, that leads to a wrong head at worst, which
//! every reader checks. So a word needs no ordering.
//!
//! The array has 4 bytes for each 256 KiB of the file as long as it was when it was opened. The
//! first page that is inserted past that end allocates a second array, of the largest size (256
//! KiB): once in a file's life, under the file's mutex. The first one stays, and the writer updates
//! both, for readers that only know the first. Past the end of the second, readers walk the tree.

use std::sync::OnceLock;

use super::entry::Entry;
use crate::base::mutant::{self, Mutant};
use crate::base::sizes::DIRECTORY_BLOCKS_MAX;
use crate::base::sync::{AtomicU32, Ordering};

#[derive(Debug)]
pub(super) struct Directory {
    /// Of the file as long as it was when the index was made.
    first: Box<[AtomicU32]>,
    /// Of [`DIRECTORY_BLOCKS_MAX`] blocks, since a page was put past the end of `first`.
    whole: OnceLock<Box<[AtomicU32]>>,
}

impl Directory {
    pub(super) fn new<const BITS: u32>(pages: u64) -> Self {
        let blocks = pages.div_ceil(1 << BITS).min(DIRECTORY_BLOCKS_MAX);
        Directory { first: zeroed(blocks as usize), whole: OnceLock::new() }
    }

    #[inline]
    pub(super) fn words(&self) -> &[AtomicU32] {
        self.whole.get().unwrap_or(&self.first)
    }

    #[inline(always)]
    pub(super) fn get(&self, block: u64) -> Option<Entry> {
        // Relaxed: a hint, see the head of the file.
        Some(Entry(self.words().get(block as usize)?.load(Ordering::Relaxed)))
    }

    pub(super) fn set(&self, block: u64, entry: Entry) {
        let past = block >= self.words().len() as u64 && block < DIRECTORY_BLOCKS_MAX;
        if past && entry != Entry::EMPTY {
            self.grow();
        }
        let (old, whole) = (Some(&self.first), self.whole.get());
        let old = old.filter(|_| whole.is_none() || !mutant::on(Mutant::OldDirectoryStays));
        for word in [old, whole].into_iter().flatten().filter_map(|words| words.get(block as usize))
        {
            // Relaxed, both: the writer is alone, and readers take it for a hint. Most changes
            // change a leaf only: then the line stays shared.
            if word.load(Ordering::Relaxed) != entry.0 {
                word.store(entry.0, Ordering::Relaxed);
            }
        }
    }

    /// Makes the second array. Nothing was put past the end of the first one so far.
    #[cold]
    fn grow(&self) {
        self.whole.get_or_init(|| {
            let whole = zeroed(DIRECTORY_BLOCKS_MAX as usize);
            if mutant::on(Mutant::DirectoryGrowsEmpty) {
                return whole;
            }
            for (word, first) in whole.iter().zip(&self.first) {
                // Relaxed, both: the caller is the writer of `first`, and publishes `whole` by
                // this.
                word.store(first.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            whole
        });
    }

    pub(super) fn bytes(&self) -> u64 {
        (size_of_val(&*self.first) + self.whole.get().map_or(0, |whole| size_of_val(&**whole)))
            as u64
    }
}

/// From the system's zeroed memory where they are many.
#[cfg(not(any(loom, shuttle)))]
fn zeroed(words: usize) -> Box<[AtomicU32]> {
    const { assert!(Entry::EMPTY.0 == 0, "zeroed memory says that all blocks are empty") }
    let plain = Box::into_raw(vec![0_u32; words].into_boxed_slice());
    // SAFETY: the box's own pointer; an atomic word is in memory what the plain one is.
    unsafe { Box::from_raw(plain as *mut [AtomicU32]) }
}

#[cfg(any(loom, shuttle))]
fn zeroed(words: usize) -> Box<[AtomicU32]> {
    (0..words).map(|_| AtomicU32::new(Entry::EMPTY.0)).collect()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::index::FrameNumber;

    #[test]
    fn a_directory_grows_when_something_is_put_behind_its_end_and_not_before() {
        let directory = Directory::new::<6>(64 * 3);
        let (small, folio) = (directory.bytes(), Entry::folio(FrameNumber(7)));
        directory.set(2, folio);
        directory.set(3, Entry::EMPTY);
        directory.set(DIRECTORY_BLOCKS_MAX, folio);
        assert_eq!((directory.bytes(), directory.get(3)), (small, None));
        directory.set(3, folio);
        let all: Vec<_> = (0..5).map(|block| directory.get(block)).collect();
        let (empty, folio) = (Some(Entry::EMPTY), Some(folio));
        assert_eq!(all, [empty, empty, folio, folio, empty]);
        assert_eq!(directory.get(DIRECTORY_BLOCKS_MAX), None);
        assert_eq!(directory.bytes(), small + 4 * DIRECTORY_BLOCKS_MAX);
    }

    #[test]
    fn both_arrays_are_kept_in_step() {
        let directory = Directory::new::<6>(64);
        let first = &directory.first;
        directory.set(9, Entry::folio(FrameNumber(9)));
        directory.set(0, Entry::folio(FrameNumber(1)));
        assert_eq!(first[0].load(Ordering::Relaxed), Entry::folio(FrameNumber(1)).0);
        assert_eq!(directory.get(0), Some(Entry::folio(FrameNumber(1))));
    }
}
