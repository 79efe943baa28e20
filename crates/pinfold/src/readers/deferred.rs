//! Folios that left their file while a reader had announced them: the list of them.
//!
//! Not here: how a folio gets here and leaves (`freeze/users.rs`).
//!
//! Such a folio is "gone" in the table of `frame/entry.rs`: out of the index, version odd, so nobody
//! can announce it anew. The list has the reference that the index had.
//!
//! The list is no longer than there are slots, but for what was added since the last look; a borrow
//! that is kept for ever keeps its folio there, and nothing else.

use std::collections::VecDeque;

use super::LOOK_MAX;
use crate::frame::{FrameNumber, Frames};
use crate::sync::{Mutex, MutexGuard};

/// The list. The folios' memory is still the budget's.
#[derive(Debug)]
pub(crate) struct Deferred(Mutex<VecDeque<FrameNumber>>);

/// The first folios of the list, taken off it with its lock held.
pub(crate) struct Looked<'a> {
    list: MutexGuard<'a, VecDeque<FrameNumber>>,
    heads: Vec<FrameNumber>,
}

impl Deferred {
    pub(crate) fn new() -> Self {
        Deferred(Mutex::new(VecDeque::new()))
    }

    /// Takes over a reference to a folio that is gone and was announced when it went.
    pub(crate) fn push(&self, head: FrameNumber) {
        self.0.lock().push_back(head);
    }

    /// How many folios and pages wait.
    pub(crate) fn outstanding(&self, frames: &Frames) -> (u64, u64) {
        let list = self.0.lock();
        let pages = |head: &FrameNumber| u64::from(frames.frame(*head).order().frames());
        (list.len() as u64, list.iter().map(pages).sum())
    }

    /// The next folios to look for, [`LOOK_MAX`] at most; `None` if there are none.
    pub(crate) fn look(&self) -> Option<Looked<'_>> {
        let mut list = self.0.lock();
        let looked = list.len().min(LOOK_MAX);
        let heads: Vec<_> = list.drain(..looked).collect();
        (!heads.is_empty()).then_some(Looked { list, heads })
    }
}

impl Looked<'_> {
    /// Which folios they are.
    pub(crate) fn heads(&self) -> &[FrameNumber] {
        &self.heads
    }

    /// Puts those back that are `announced` still, by their number in [`heads`](Self::heads), and
    /// gives the others, with their references.
    pub(crate) fn over(mut self, announced: impl Fn(usize) -> bool) -> Vec<FrameNumber> {
        let mut over = Vec::new();
        for (n, head) in self.heads.into_iter().enumerate() {
            if announced(n) { self.list.push_back(head) } else { over.push(head) }
        }
        over
    }
}
