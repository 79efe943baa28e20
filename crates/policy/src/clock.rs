//! Policies to compare with: CLOCK (second chance) and FIFO, in the same trait, so that the cache
//! itself can run them.
//!
//! Here: one ring. Not here: the policy of the cache (`s3fifo.rs`), or policies that move folios on
//! a hit, such as LRU: they do not fit a hit that writes nothing, and live in the simulator.
//!
//! CLOCK: Corbató, A paging experiment with the Multics system, 1969. The ring is the main queue;
//! hints work as everywhere, by the once queue; ghosts are not kept.

use crate::policy::{Arrival, Hint, PolicyState, Rules};
use crate::queues::{Queues, Usage};
use crate::residents::{Queue, Residents};
use crate::shadow::Shadow;
use crate::sweep::Sweep;

/// CLOCK or FIFO. See the module's head.
#[derive(Debug)]
pub struct Clock {
    queues: Queues,
    second_chance: bool,
    once_target_pages: u64,
}

impl Clock {
    /// CLOCK: a folio that was used since the hand last passed is spared once.
    pub fn second_chance(capacity_pages: u64) -> Self {
        Self::new(capacity_pages, true)
    }

    /// FIFO: no folio is spared.
    pub fn fifo(capacity_pages: u64) -> Self {
        Self::new(capacity_pages, false)
    }

    fn new(capacity_pages: u64, second_chance: bool) -> Self {
        let once_target_pages = once_target_pages(capacity_pages);
        Self { queues: Queues::new(), second_chance, once_target_pages }
    }
}

/// A tenth for folios read ahead and not used yet, as in the cache's own policy.
fn once_target_pages(capacity_pages: u64) -> u64 {
    (capacity_pages / 10).max(1)
}

impl PolicyState for Clock {
    fn name(&self) -> &'static str {
        if self.second_chance { "clock" } else { "fifo" }
    }

    fn set_capacity(&mut self, capacity_pages: u64) {
        self.once_target_pages = once_target_pages(capacity_pages);
    }

    fn is_recent(&self, _: Shadow) -> bool {
        false
    }

    fn usage(&self) -> Usage {
        self.queues.usage()
    }
}

impl Rules for Clock {
    fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    fn enters(&self, arrival: Arrival) -> Queue {
        match arrival.hint {
            Hint::Sequential => Queue::Once,
            Hint::Normal => Queue::Main,
        }
    }

    fn pick<R: Residents + ?Sized>(&self, r: &R, sweep: &Sweep) -> Option<Queue> {
        let gives = |queue| self.queues.gives(queue, sweep);
        let once_is_due = gives(Queue::Once)
            && (self.queues.weight(Queue::Once).pages > self.once_target_pages
                || r.uses(self.queues.head(Queue::Once)) > 0);
        if !once_is_due && gives(Queue::Main) {
            return Some(Queue::Main);
        }
        gives(Queue::Once).then_some(Queue::Once)
    }

    fn spare<R: Residents + ?Sized>(&mut self, r: &mut R, queue: Queue, _: &Sweep) -> bool {
        let id = self.queues.head(queue);
        let spared = self.second_chance && queue == Queue::Main && r.uses(id) > 0;
        if spared {
            r.set_uses(id, 0);
            self.queues.rotate(r, queue, Queue::Main);
        }
        spared
    }

    /// As many as the sweep has effort for.
    fn reprieves_max(&self) -> u32 {
        u32::MAX
    }

    fn ghost(&mut self, _: Queue, _: u32) -> Option<Shadow> {
        None
    }
}
