//! CLOCK (Corbató, A paging experiment with the Multics system, 1969) and FIFO, which spares
//! nobody.

use std::collections::VecDeque;

use super::engine::Engine;

/// The pages of a cache in the order in which they came, or were spared.
#[derive(Debug)]
pub(super) struct Ring {
    pages: VecDeque<u32>,
    /// By page: whether it was used since the hand last passed, if it is there.
    used: Vec<Option<bool>>,
    capacity: usize,
    second_chance: bool,
}

impl Ring {
    /// CLOCK, if a page that was used since the hand last passed has a `second_chance`.
    pub(super) fn new(distinct: u32, capacity: u32, second_chance: bool) -> Self {
        assert!(capacity > 0, "a cache of no pages");
        let used = vec![None; distinct as usize];
        Self { pages: VecDeque::new(), used, capacity: capacity as usize, second_chance }
    }

    fn evict(&mut self) {
        // Ends: a page is spared once in each round.
        while let Some(oldest) = self.pages.pop_front() {
            let used = self.used[oldest as usize].take();
            if !self.second_chance || used != Some(true) {
                return;
            }
            self.used[oldest as usize] = Some(false);
            self.pages.push_back(oldest);
        }
    }
}

impl Engine for Ring {
    fn access(&mut self, page: u32) -> bool {
        if let Some(used) = &mut self.used[page as usize] {
            *used = true;
            return true;
        }
        if self.pages.len() == self.capacity {
            self.evict();
        }
        self.pages.push_back(page);
        self.used[page as usize] = Some(false);
        false
    }
}
