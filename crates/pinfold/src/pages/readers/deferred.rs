//! Folios that left their file while a reader had announced them: out of the index, with an odd
//! version, so they cannot be announced anew. The list has the reference that the index had.
//!
//! Except for folios added since the last scan, it is no longer than there are slots: a borrow that is
//! kept for ever keeps its folio in the list, and nothing else.

use std::collections::VecDeque;

use super::{Announced, LOOK_MAX};
use crate::base::sync::Mutex;
use crate::frames::{FrameNumber, Frames};

/// The list. Its folios' memory still counts in the budget.
#[derive(Debug)]
pub(crate) struct Deferred(Mutex<VecDeque<FrameNumber>>);

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

    /// Takes those of the first [`LOOK_MAX`] folios off the list that are not announced any more, as
    /// `look` says, with their references.
    pub(crate) fn take_over(&self, look: impl Fn(&[FrameNumber]) -> Announced) -> Vec<FrameNumber> {
        let mut list = self.0.lock();
        let looked = list.len().min(LOOK_MAX);
        let heads: Vec<_> = list.drain(..looked).collect();
        let mut over = Vec::new();
        if heads.is_empty() {
            return over;
        }
        let announced = look(&heads);
        for (n, head) in heads.into_iter().enumerate() {
            if announced.has(n) { list.push_back(head) } else { over.push(head) }
        }
        over
    }
}
