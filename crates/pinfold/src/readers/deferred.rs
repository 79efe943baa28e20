//! Folios that left their file while somebody had announced them.
//!
//! Here: the list of them, and freeing those that nobody borrows any more. Not here: how a folio
//! leaves its file (`freeze/invalidate.rs`). Called by that, and by `reclaim` before it evicts.
//!
//! Such a folio is "gone" in the table of `frame/entry.rs`: out of the index, version odd, so nobody
//! can announce it anew. The list has the reference that the index had. When a look finds it no
//! longer announced that reference is given up, and whoever has the last one frees the folio.
//!
//! The list is no longer than there are slots, but for what was added since the last collection;
//! a borrow that is kept for ever keeps its folio there, and nothing else.

use std::collections::VecDeque;

use super::LOOK_MAX;
use crate::core::Core;
use crate::frame::FrameNumber;
use crate::sync::Mutex;

/// The list. Its memory is still the budget's.
#[derive(Debug)]
pub(crate) struct Deferred(Mutex<VecDeque<FrameNumber>>);

impl Deferred {
    pub(crate) fn new() -> Self {
        Deferred(Mutex::new(VecDeque::new()))
    }

    /// Takes over a reference to a folio that is gone and was announced when it went.
    pub(crate) fn push(&self, head: FrameNumber) {
        self.0.lock().push_back(head);
    }

    /// How many folios and pages wait.
    pub(crate) fn outstanding(&self, core: &Core) -> (u64, u64) {
        let list = self.0.lock();
        let pages = |head: &FrameNumber| u64::from(core.frames.frame(*head).order().frames());
        (list.len() as u64, list.iter().map(pages).sum())
    }

    /// Frees those that nobody borrows any more; looks at no more than [`LOOK_MAX`], the next ones
    /// the next time. Gives how many were freed.
    pub(crate) fn collect(&self, core: &Core) -> usize {
        let mut over = Vec::new();
        {
            let mut list = self.0.lock();
            if list.is_empty() {
                return 0;
            }
            let looked = list.len().min(LOOK_MAX);
            let heads: Vec<_> = list.drain(..looked).collect();
            let announced = core.readers.look_again(&heads);
            for (n, head) in heads.into_iter().enumerate() {
                if announced.has(n) { list.push_back(head) } else { over.push(head) }
            }
        }
        for &head in &over {
            core.put(head);
        }
        over.len()
    }
}
