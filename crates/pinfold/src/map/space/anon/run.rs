//! A run: pages of own memory that come together, and the folios for them. They are on the stack of
//! who brings them: a fault takes no memory of the heap for them.

use std::ops::Deref;

use crate::frames::FrameNumber;
use crate::mapped::swap::pages::PageState;
use crate::mapped::swap::slots::Slot;
use crate::pages::core::Core;

pub(super) const RUN_MAX: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct RunToBring {
    pub(super) first: u64,
    /// What the first of them is.
    pub(super) state: PageState,
    pub(super) pages: usize,
}

impl RunToBring {
    pub(super) fn of(first: u64, state: PageState) -> Self {
        RunToBring { first, state, pages: 1 }
    }

    /// What the `n`th page is: they lie together in the swap, or were never stored to.
    pub(super) fn state(&self, n: usize) -> PageState {
        match self.state {
            PageState::Swapped(Slot(first)) => PageState::Swapped(Slot(first + n as u32)),
            state => state,
        }
    }

    pub(super) fn page(&self, n: usize) -> u64 {
        self.first + n as u64
    }
}

#[derive(Debug)]
pub(super) struct RunFrames {
    heads: [FrameNumber; RUN_MAX],
    n: usize,
}

impl RunFrames {
    pub(super) fn new() -> Self {
        RunFrames { heads: [FrameNumber(0); RUN_MAX], n: 0 }
    }

    pub(super) fn push(&mut self, head: FrameNumber) {
        self.heads[self.n] = head;
        self.n += 1;
    }

    /// Gives back those that were allocated in vain: all but the first `n`.
    pub(super) fn keep(&mut self, core: &Core, n: usize) {
        for &head in self.get(n..).unwrap_or_default() {
            core.give_back(head);
        }
        self.n = self.n.min(n);
    }
}

impl Deref for RunFrames {
    type Target = [FrameNumber];

    fn deref(&self) -> &[FrameNumber] {
        &self.heads[..self.n]
    }
}
