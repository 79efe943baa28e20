//! Where index nodes come from: one pool per cache. A writer reserves what its next change can
//! need, without the frame allocator, which may have to take other files' locks: on `NoNodes` the
//! caller releases its file's mutex, calls `refill`, and tries again.

use super::entry::Entry;
use super::memory::NodeMemory;
use super::node::Node;
use super::tree::{Index, IndexOwner};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::Mutex;
use std::ops::Range;
#[cfg(not(loom))]
use std::ptr::NonNull;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index needs {wanted} more nodes and the pool has {free}")]
pub(crate) struct NoNodes {
    /// What to pass to [`NodePool::refill`].
    pub(crate) wanted: u32,
    pub(crate) free: u64,
}

#[cfg(test)]
#[derive(Debug)]
pub(crate) struct PoolStats {
    pub(crate) nodes: u64,
    /// In some file's tree or in a writer's stash.
    pub(crate) nodes_in_use: u64,
}

#[derive(Debug)]
pub(crate) struct NodePool<const BITS: u32 = { super::types::BITS }> {
    memory: NodeMemory<BITS>,
    state: Mutex<NodePoolState>,
}

#[derive(Debug)]
struct NodePoolState {
    free: NodeChain,
    /// Nodes of the newest slab that were never used, nor their memory touched.
    fresh: Range<u32>,
    /// Never given back.
    slabs: u64,
    #[cfg(test)]
    nodes: u64,
    indexes: u64,
}

impl NodePoolState {
    fn available(&self) -> u64 {
        u64::from(self.free.len) + u64::from(self.fresh.end - self.fresh.start)
    }
}

/// Nodes that are in no tree, linked through their headers. Stale readers may still be in them.
#[derive(Debug, Default)]
pub(super) struct NodeChain {
    /// 0 is none.
    first: u32,
    len: u32,
}

impl<const BITS: u32> NodePool<BITS> {
    /// A pool without nodes, in the arena `base..base + bytes`, that will take slabs of
    /// `slab_bytes` (a power of two). Nodes reach the arena's first 256 GiB.
    ///
    /// # Safety
    /// The arena is one allocation that stays mapped for as long as the pool or any index made from
    /// it is used; what `refill`'s closure hands out is the pool's alone from then on.
    #[cfg(not(loom))]
    pub(crate) unsafe fn new(base: NonNull<u8>, bytes: usize, slab_bytes: usize) -> Self {
        // SAFETY: the caller's promise is the same.
        let memory = unsafe { NodeMemory::new(base, bytes, slab_bytes) };
        Self::over(memory, 0..0)
    }

    #[cfg(loom)]
    pub(crate) fn model(count: u32, garbage: u32) -> Self {
        let memory = NodeMemory::model(count, garbage);
        // The last word is -1; ranges end before it, so one node more is made than is used.
        Self::over(memory, count.wrapping_neg()..u32::MAX)
    }

    fn over(memory: NodeMemory<BITS>, fresh: Range<u32>) -> Self {
        let state = NodePoolState {
            free: NodeChain::default(),
            #[cfg(test)]
            nodes: u64::from(fresh.end - fresh.start),
            fresh,
            slabs: 0,
            indexes: 0,
        };
        NodePool { memory, state: Mutex::new(state) }
    }

    /// An empty index, and the token of its one writer, to be kept inside the file's mutex.
    pub(crate) fn new_index(&self, pages: u64) -> (Index<BITS>, IndexOwner) {
        let mut state = self.state.lock();
        state.indexes += 1;
        Index::new(self.memory.clone(), state.indexes, pages)
    }

    /// Adds to the number of indexes made so far, as if they had been dropped since.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn age(&self, indexes: u64) {
        self.state.lock().indexes += indexes;
    }

    pub(super) fn feeds(&self, memory: &NodeMemory<BITS>) -> bool {
        self.memory.same(memory)
    }

    pub(super) fn node(&self, entry: Entry) -> Node<'_, BITS> {
        Node::new(&self.memory, entry)
    }

    /// Makes sure of `wanted` free nodes, with slabs from `grow` (naturally aligned, of the size
    /// given to `new`). Call it with no file locked. Error: `grow` has no more; what it gave stays.
    #[cfg(not(loom))]
    pub(crate) fn refill(
        &self,
        wanted: u32,
        mut grow: impl FnMut() -> Option<NonNull<u8>>,
    ) -> Result<(), NoNodes> {
        let slabs_max = wanted / self.memory.nodes_per_slab() + 1;
        for _ in 0..=slabs_max {
            let free = self.state.lock().available();
            if free >= u64::from(wanted) {
                return Ok(());
            }
            let slab = grow().ok_or(NoNodes { wanted, free })?;
            self.add_slab(slab);
        }
        // Others took what was added.
        Err(NoNodes { wanted, free: self.state.lock().available() })
    }

    /// The checker's pool cannot grow.
    #[cfg(loom)]
    #[allow(clippy::unused_self, reason = "as the real one")]
    pub(crate) fn refill(
        &self,
        wanted: u32,
        _grow: impl FnMut() -> Option<std::ptr::NonNull<u8>>,
    ) -> Result<(), NoNodes> {
        panic!("the model's pool lacks {wanted} nodes: make it larger");
    }

    #[cfg(not(loom))]
    fn add_slab(&self, slab: NonNull<u8>) {
        let first = self.memory.slab_word(slab.as_ptr());
        let count = self.memory.nodes_per_slab();
        let mut state = self.state.lock();
        while let Some(word) = state.fresh.next() {
            self.link(&mut state.free, word); // at most one slab's worth
        }
        // The arena's last slab ends in spare bytes, so the end never wraps to 0.
        state.fresh = first..first + count;
        state.slabs += 1;
        #[cfg(test)]
        {
            state.nodes += u64::from(count);
        }
    }

    #[cfg(not(loom))]
    pub(crate) fn slab_bytes(&self) -> usize {
        self.memory.slab_bytes()
    }

    /// What the index costs the budget.
    #[cfg(not(loom))]
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().slabs * self.slab_bytes() as u64
    }

    #[cfg(loom)]
    pub(crate) fn bytes(&self) -> u64 {
        0
    }

    #[cfg(test)]
    pub(crate) fn stats(&self) -> PoolStats {
        let state = self.state.lock();
        PoolStats { nodes: state.nodes, nodes_in_use: state.nodes - state.available() }
    }

    /// Fills `stash` up to `wanted` nodes, all or nothing.
    pub(super) fn take(&self, stash: &mut NodeChain, wanted: u32) -> Result<(), NoNodes> {
        let Some(missing) = wanted.checked_sub(stash.len).filter(|&n| n > 0) else {
            return Ok(());
        };
        let mut state = self.state.lock();
        if state.available() < u64::from(missing) {
            return Err(NoNodes { wanted, free: state.available() });
        }
        for _ in 0..missing {
            let free = self.unlink(&mut state.free).or_else(|| state.fresh.next());
            self.link(stash, free.expect("counted before"));
        }
        Ok(())
    }

    pub(super) fn give_back(&self, stash: &mut NodeChain) {
        if stash.len == 0 || mutant::on(Mutant::LeakNodes) {
            return;
        }
        let mut state = self.state.lock();
        while let Some(word) = self.unlink(stash) {
            self.link(&mut state.free, word);
        }
    }

    pub(super) fn link(&self, chain: &mut NodeChain, word: u32) {
        self.node(Entry(word)).set_next_free(chain.first);
        chain.first = word;
        chain.len += 1;
    }

    pub(super) fn unlink(&self, chain: &mut NodeChain) -> Option<u32> {
        chain.len = chain.len.checked_sub(1)?;
        let word = chain.first;
        chain.first = self.node(Entry(word)).next_free();
        Some(word)
    }
}
