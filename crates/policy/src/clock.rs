//! Policies to compare with: CLOCK (second chance) and FIFO, in the same trait, so that the cache
//! itself can run them.
//!
//! Here: one ring. Not here: the policy of the cache (`s3fifo.rs`), or policies that move folios on
//! a hit, such as LRU: they do not fit a hit that writes nothing, and live in the simulator.
//!
//! CLOCK: Corbató, A paging experiment with the Multics system, 1969. The ring is the main queue;
//! ghosts are not kept.

use crate::policy::{PolicyState, Rules};
use crate::queues::{Queues, Usage};
use crate::residents::Queue;
use crate::shadow::Shadow;
use crate::sweep::Sweep;

/// CLOCK or FIFO. See the module's head.
#[derive(Debug)]
pub struct Clock {
    queues: Queues,
    second_chance: bool,
}

impl Clock {
    /// CLOCK: a folio that was used since the hand last passed is spared once.
    pub fn second_chance() -> Self {
        Self { queues: Queues::new(), second_chance: true }
    }

    /// FIFO: no folio is spared.
    pub fn fifo() -> Self {
        Self { queues: Queues::new(), second_chance: false }
    }
}

impl PolicyState for Clock {
    fn name(&self) -> &'static str {
        if self.second_chance { "clock" } else { "fifo" }
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

    fn enters(&self, _: Option<Shadow>) -> Queue {
        Queue::Main
    }

    fn pick(&self, sweep: &Sweep) -> Option<Queue> {
        self.queues.gives(Queue::Main, sweep).then_some(Queue::Main)
    }

    fn spares(&self, _: Queue, uses: u8) -> Option<u8> {
        (self.second_chance && uses > 0).then_some(0)
    }

    /// As many as the sweep has effort for.
    fn reprieves_max(&self) -> u32 {
        u32::MAX
    }

    fn ghost(&mut self, _: Queue, _: u32) -> Option<Shadow> {
        None
    }
}
