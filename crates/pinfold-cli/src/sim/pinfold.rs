//! The cache's own policies, driven as the cache drives them: the code is `pinfold-policy`'s.

use pinfold_policy::{Answer, Place, Policy, Residents, Shadow, Sweep, Table};

use super::engine::Engine;

/// As much effort as the cache spends to find one victim; nothing is pinned here, so it is enough.
const EFFORT_MAX: u32 = 1 << 20;

/// A cache of one-page folios around a policy. Shadow entries are kept beside the pages, as the
/// cache keeps them in its index.
#[derive(Debug)]
pub(super) struct Driver<P> {
    policy: P,
    table: Table,
    shadows: Vec<Option<Shadow>>,
    free_pages: u32,
}

impl<P: Policy<Table>> Driver<P> {
    pub(super) fn new(policy: P, distinct: u32, capacity: u32) -> Self {
        assert!(capacity > 0, "a cache of no pages");
        Self {
            policy,
            table: Table::new(distinct as usize),
            shadows: vec![None; distinct as usize],
            free_pages: capacity,
        }
    }

    #[cfg(test)]
    pub(super) fn policy(&self) -> &P {
        &self.policy
    }

    fn evict(&mut self) {
        let mut sweep = Sweep::new(EFFORT_MAX);
        let victim = self.policy.next_victim(&mut self.table, &mut sweep);
        let victim = victim.expect("a full cache without pins has a victim");
        let shadow = self.policy.answer(&mut self.table, &mut sweep, victim, Answer::Evicted);
        self.shadows[victim as usize] = shadow;
        self.free_pages += 1;
    }
}

impl<P: Policy<Table>> Engine for Driver<P> {
    fn access(&mut self, page: u32) -> bool {
        if self.table.place(page) != Place::Out {
            self.table.touch(page);
            return true;
        }
        if self.free_pages == 0 {
            self.evict();
        }
        self.free_pages -= 1;
        let shadow = self.shadows[page as usize].take();
        self.policy.insert(&mut self.table, page, shadow);
        false
    }
}
