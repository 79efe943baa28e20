//! Folios that left their file while a reader had announced them.
//!
//! `freeze/users.rs` adds and removes them. Such a folio is "gone" in the table of
//! `frames/entry.rs`: out of the index, with an odd version, so it cannot be announced anew. The
//! list has the reference that the index had.
//!
//! Except for folios added since the last scan, the list is no longer than there are slots; a
//! borrow that is kept for ever keeps its folio in the list, and nothing else.

use std::collections::VecDeque;

use super::LOOK_MAX;
use crate::base::sync::{Mutex, MutexGuard};
use crate::frames::{FrameNumber, Frames};

/// The list. Its folios' memory still counts in the budget.
#[derive(Debug)]
pub(crate) struct Deferred(Mutex<VecDeque<FrameNumber>>);

/// The first folios of the list, removed from it, with its lock held.
pub(crate) struct Looked<'a> {
    list: MutexGuard<'a, VecDeque<FrameNumber>>,
    heads: Vec<FrameNumber>,
}

impl Deferred {
    pub(crate) fn new() -> Self {
        Deferred(Mutex::new(VecDeque::new()))
    }

    /// Takes over a reference to a folio that is gone and was announced when it left its file.
    pub(crate) fn push(&self, head: FrameNumber) {
        self.0.lock().push_back(head);
    }

    /// The number of folios and pages in the list.
    pub(crate) fn outstanding(&self, frames: &Frames) -> (u64, u64) {
        let list = self.0.lock();
        let pages = |head: &FrameNumber| u64::from(frames.frame(*head).order().frames());
        (list.len() as u64, list.iter().map(pages).sum())
    }

    /// The next folios to scan for, [`LOOK_MAX`] at most; `None` if there are none.
    pub(crate) fn look(&self) -> Option<Looked<'_>> {
        let mut list = self.0.lock();
        let looked = list.len().min(LOOK_MAX);
        let heads: Vec<_> = list.drain(..looked).collect();
        (!heads.is_empty()).then_some(Looked { list, heads })
    }
}

impl Looked<'_> {
    /// Their heads.
    pub(crate) fn heads(&self) -> &[FrameNumber] {
        &self.heads
    }

    /// Puts those that are still `announced` (by their index in [`heads`](Self::heads)) back into
    /// the list. Returns the others, with their references.
    pub(crate) fn over(mut self, announced: impl Fn(usize) -> bool) -> Vec<FrameNumber> {
        let mut over = Vec::new();
        for (n, head) in self.heads.into_iter().enumerate() {
            if announced(n) { self.list.push_back(head) } else { over.push(head) }
        }
        over
    }
}
