//! Policies to compare with: CLOCK (second chance) and FIFO, in the same trait, so that the cache
//! itself can run them.
//!
//! Here: one ring. Not here: the policy of the cache (`s3fifo.rs`), or policies that move folios on
//! a hit, such as LRU: they do not fit a hit that writes nothing, and live in the simulator.
//!
//! CLOCK: Corbató, A paging experiment with the Multics system, 1969. The ring is the main queue;
//! hints work as everywhere, by the once queue; ghosts are not kept.

use crate::policy::{Arrival, Hint, Policy, PolicyState};
use crate::queues::{Queues, Usage};
use crate::residents::{Id, Queue, Residents};
use crate::shadow::Shadow;
use crate::sweep::{Answer, GaveUp, GaveUpReason, Sweep};

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

    /// FIFO: nobody is spared.
    pub fn fifo(capacity_pages: u64) -> Self {
        Self::new(capacity_pages, false)
    }

    fn new(capacity_pages: u64, second_chance: bool) -> Self {
        let once_target_pages = once_target_pages(capacity_pages);
        Self { queues: Queues::new(), second_chance, once_target_pages }
    }

    fn pick<R: Residents + ?Sized>(&self, r: &R, sweep: &Sweep) -> Option<Queue> {
        let once = self.queues.weight(Queue::Once);
        let once_is_due = once.folios > 0
            && (once.pages > self.once_target_pages || r.uses(self.queues.head(Queue::Once)) > 0);
        if !once_is_due && sweep.pinned_in_row() < self.queues.weight(Queue::Main).folios {
            return Some(Queue::Main);
        }
        (once.folios > 0).then_some(Queue::Once)
    }

    fn spare<R: Residents + ?Sized>(&mut self, r: &mut R, queue: Queue) -> bool {
        let id = self.queues.head(queue);
        let spared = self.second_chance && queue == Queue::Main && r.uses(id) > 0;
        if spared {
            r.set_uses(id, 0);
            self.queues.rotate(r, queue, Queue::Main);
        }
        spared
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

impl<R: Residents + ?Sized> Policy<R> for Clock {
    fn insert(&mut self, residents: &mut R, id: Id, arrival: Arrival) {
        let queue = match arrival.hint {
            Hint::Sequential => Queue::Once,
            Hint::Normal => Queue::Main,
        };
        let used = queue == Queue::Once && !arrival.ahead;
        residents.set_uses(id, u8::from(used));
        self.queues.push_tail(residents, id, queue);
    }

    fn next_victim(&mut self, residents: &mut R, sweep: &mut Sweep) -> Result<Id, GaveUp> {
        // Ends: each turn spends one of the sweep's effort.
        loop {
            let Some(queue) = self.pick(residents, sweep) else {
                return Err(sweep.gave_up(self.queues.why_nothing()));
            };
            if !sweep.spend() {
                return Err(sweep.gave_up(GaveUpReason::EffortExhausted));
            }
            if !self.spare(residents, queue) {
                return Ok(self.queues.offer(residents, queue));
            }
            sweep.note_reprieve();
        }
    }

    fn answer(
        &mut self,
        residents: &mut R,
        sweep: &mut Sweep,
        id: Id,
        answer: Answer,
    ) -> Option<Shadow> {
        sweep.note(answer, residents.pages(id));
        if answer == Answer::Evicted {
            let queue = self.queues.take_out(residents, id);
            debug_assert!(queue.is_some(), "folio {id} was evicted, but not the policy's");
        } else {
            self.queues.put_back(residents, id, answer == Answer::Pinned);
        }
        None
    }

    fn remove(&mut self, residents: &mut R, id: Id) {
        self.queues.take_out(residents, id);
    }

    fn demote(&mut self, residents: &mut R, id: Id) {
        self.queues.demote(residents, id);
    }

    fn split(&mut self, residents: &mut R, head: Id, pages_before: u32, rest: &[Id]) {
        self.queues.split(residents, head, pages_before, rest);
    }

    fn replace(&mut self, residents: &mut R, old: Id, new: Id) {
        self.queues.replace(residents, old, new);
    }
}
