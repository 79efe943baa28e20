use super::entry::{Entry, FrameNumber};
use super::memory::NodeMemory;
use super::tree::Index;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// What a handle keeps of an index, to look pages up without a load that waits for another one.
/// `words` has at least `blocks` words, and is an array of the index's directory.
#[derive(Debug)]
pub(crate) struct Lookup<const BITS: u32 = { super::types::BITS }> {
    words: AtomicPtr<AtomicU32>,
    blocks: AtomicUsize,
    memory: NodeMemory<BITS>,
    #[cfg(loom)]
    first: (usize, u64),
}

impl<const BITS: u32> Lookup<BITS> {
    /// # Safety
    /// It is used only as long as the index lives.
    pub(crate) unsafe fn of(index: &Index<BITS>) -> Self {
        let words = index.directory.words();
        Lookup {
            words: AtomicPtr::new(words.as_ptr().cast_mut()),
            blocks: AtomicUsize::new(words.len()),
            memory: index.memory.clone(),
            #[cfg(loom)]
            first: (words.as_ptr().addr(), words.len() as u64),
        }
    }

    /// As [`Index::lookup_hint`] of the page that has byte `at` of an array of `1 << unit` bytes a
    /// page, but 0 for an empty slot; as far as the directory is known here. Else there is
    /// [`Self::hint_behind`].
    #[inline(always)]
    pub(crate) fn hint(&self, at: u64, unit: u32) -> Option<FrameNumber> {
        self.known(at, unit, |head| head, |head| head)
    }

    /// What one of two functions makes of a [`hint`](Self::hint): `in_block`, if the folio is
    /// smaller than a block, gets any number; `of_blocks` 0 or a head that the index has or had.
    #[inline(always)]
    pub(crate) fn known<T>(
        &self,
        at: u64,
        unit: u32,
        in_block: impl FnOnce(FrameNumber) -> T,
        of_blocks: impl FnOnce(FrameNumber) -> T,
    ) -> Option<T> {
        let block = at >> (unit + BITS);
        // Acquire: pairs with the release of the bound in `hint_behind`.
        if block >= self.blocks.load(Ordering::Acquire) as u64 {
            return None;
        }
        // Acquire: pairs with the release of the pointer, for what the array has. An older bound
        // goes with a newer array, too, which is longer.
        let words = self.words.load(Ordering::Acquire);
        #[cfg(loom)]
        assert!(words.addr() != self.first.0 || block < self.first.1, "a bound of another array");
        let word = words.wrapping_add(block as usize);
        // SAFETY: below the bound, so in the array, which lives as long as the index does.
        let word = unsafe { &*word };
        // Relaxed, here and below: hints, see the head of `directory.rs`.
        let entry = Entry(word.load(Ordering::Relaxed));
        if !self.memory.is_node(entry) {
            return Some(of_blocks(entry.head()));
        }
        let slot = self.memory.slot(entry, at >> unit);
        Some(in_block(Entry(slot.load(Ordering::Relaxed)).head()))
    }

    /// For a page past what is known here of the directory of `index`.
    #[cold]
    #[inline(never)]
    pub(crate) fn hint_behind(&self, index: &Index<BITS>, page: u64) -> FrameNumber {
        let words = index.directory.words();
        // Relaxed: the bound grows once in an index's life, so all store the same.
        if words.len() > self.blocks.load(Ordering::Relaxed) {
            // Release: pairs with the acquire of the pointer in `known`.
            self.words.store(words.as_ptr().cast_mut(), Ordering::Release);
            let order = if mutant::on(Mutant::BoundRelaxed) {
                Ordering::Relaxed // a deliberate mistake, tests only
            } else {
                // Release: pairs with the acquire of the bound in `known`.
                Ordering::Release
            };
            self.blocks.store(words.len(), order);
        }
        index.lookup_hint(page)
    }
}
