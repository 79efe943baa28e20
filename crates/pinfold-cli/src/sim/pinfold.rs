//! The cache's own policy, driven as the cache drives it: the code is `pinfold-policy`'s.

use pinfold_policy::{Answer, GhostLine, Ghosts, Place, Residents, S3Fifo, Sweep, Table};

use super::engine::Engine;

/// As much effort as the cache spends to find one victim; nothing is pinned here, so it is enough.
const EFFORT_MAX: u32 = 1 << 20;

/// All pages of a trace are one file's.
const FILE: u64 = 0;

/// A cache of one-page folios around a policy, with a table of ghosts as the cache has it.
#[derive(Debug)]
pub(super) struct Driver {
    policy: S3Fifo,
    table: Table,
    ghosts: Box<[GhostLine]>,
    free_pages: u32,
}

impl Driver {
    pub(super) fn new(policy: S3Fifo, distinct: u32, capacity: u32) -> Self {
        assert!(capacity > 0, "a cache of no pages");
        Self {
            policy,
            table: Table::new(distinct as usize),
            ghosts: (0..Ghosts::lines_for(capacity)).map(|_| GhostLine::default()).collect(),
            free_pages: capacity,
        }
    }

    #[cfg(test)]
    pub(super) fn policy(&self) -> &S3Fifo {
        &self.policy
    }

    fn evict(&mut self) {
        let mut sweep = Sweep::new(EFFORT_MAX);
        let victim = self.policy.next_victim(&mut self.table, &mut sweep);
        let victim = victim.expect("a full cache without pins has a victim");
        let shadow = self.policy.answer(&mut self.table, &mut sweep, victim, Answer::Evicted);
        if let Some(shadow) = shadow {
            let page = u64::from(victim);
            Ghosts::new(&self.ghosts).put(FILE, page..page + 1, shadow);
        }
        self.free_pages += 1;
    }
}

impl Engine for Driver {
    fn access(&mut self, page: u32) -> bool {
        if self.table.place(page) != Place::Out {
            self.table.touch(page);
            return true;
        }
        if self.free_pages == 0 {
            self.evict();
        }
        self.free_pages -= 1;
        let shadow = Ghosts::new(&self.ghosts).get(FILE, page.into());
        self.policy.insert(&mut self.table, page, shadow);
        false
    }
}
