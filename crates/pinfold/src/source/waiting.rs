//! The requests of one file that wait for others of the same file.
//!
//! Those that somebody waits for go first. But one in eight is a read ahead, if any waits: somebody
//! may have found its page on its way, and be waiting for it by now. The request does not tell.

use std::collections::VecDeque;

use super::request::Request;
use crate::base::mutant::{self, Mutant};

/// Of so many requests one is a read ahead, if any waits.
const AHEAD_ONE_IN: u32 = 8;

/// A request, with what belongs to it.
pub(super) trait HasRequest {
    fn request(&self) -> &Request;
}

impl<T> HasRequest for (T, Request) {
    fn request(&self) -> &Request {
        &self.1
    }
}

/// The queues.
#[derive(Debug)]
pub(super) struct RequestQueues<T> {
    demand: VecDeque<T>,
    ahead: VecDeque<T>,
    /// How many went before the first of `ahead` since one of these went.
    passed: u32,
}

impl<T> Default for RequestQueues<T> {
    fn default() -> Self {
        RequestQueues { demand: VecDeque::new(), ahead: VecDeque::new(), passed: 0 }
    }
}

impl<T: HasRequest> RequestQueues<T> {
    pub(super) fn len(&self) -> usize {
        self.demand.len() + self.ahead.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn push(&mut self, it: T) {
        let queue = if it.request().is_awaited() { &mut self.demand } else { &mut self.ahead };
        queue.push_back(it);
    }

    /// The next to be carried out.
    pub(super) fn pop(&mut self) -> Option<T> {
        let overdue = self.passed + 1 >= AHEAD_ONE_IN && !mutant::on(Mutant::AheadWaits);
        if (overdue || self.demand.is_empty())
            && let Some(it) = self.ahead.pop_front()
        {
            self.passed = 0;
            return Some(it);
        }
        self.passed = if self.ahead.is_empty() { 0 } else { self.passed + 1 };
        self.demand.pop_front()
    }

    /// Takes out those of which `goes` is true.
    pub(super) fn take_if(&mut self, goes: impl Fn(&T) -> bool) -> Vec<T> {
        let mut gone = Vec::new();
        for queue in [&mut self.demand, &mut self.ahead] {
            for it in std::mem::take(queue) {
                if goes(&it) { gone.push(it) } else { queue.push_back(it) }
            }
        }
        gone
    }

    pub(super) fn into_all(self) -> impl Iterator<Item = T> {
        self.demand.into_iter().chain(self.ahead)
    }
}
