//! Reference: least recently used.

use super::engine::Engine;
use super::lists::{Links, List};

/// An LRU cache of a fixed number of pages.
#[derive(Debug)]
pub(super) struct Lru {
    capacity: u32,
    links: Links,
    list: List,
    resident: Vec<bool>,
}

impl Lru {
    pub(super) fn new(distinct: u32, capacity: u32) -> Self {
        assert!(capacity > 0, "a cache of no pages");
        Self {
            capacity,
            links: Links::new(distinct),
            list: List::new(),
            resident: vec![false; distinct as usize],
        }
    }
}

impl Engine for Lru {
    fn access(&mut self, page: u32) -> bool {
        let hit = self.resident[page as usize];
        if hit {
            self.list.remove(&mut self.links, page);
        } else if self.list.len() == self.capacity
            && let Some(victim) = self.list.oldest()
        {
            self.list.remove(&mut self.links, victim);
            self.resident[victim as usize] = false;
        }
        self.resident[page as usize] = true;
        self.list.push(&mut self.links, page);
        hit
    }
}
