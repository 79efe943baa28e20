//! Reference: the optimum for pages of equal weight when every requested page must come in.
//!
//! Belady, A study of replacement algorithms for a virtual-storage computer, 1966 (MIN): evict the
//! page whose next use is farthest away.

use std::collections::BinaryHeap;

/// Not used again.
const NEVER: u32 = u32::MAX;

/// For each request, the position of the next request for the same page.
pub(super) fn next_uses(requests: &[u32], distinct: u32) -> Vec<u32> {
    assert!(requests.len() < NEVER as usize, "positions must fit 32 bits");
    let mut seen = vec![NEVER; distinct as usize];
    let mut next = vec![NEVER; requests.len()];
    for (at, &page) in requests.iter().enumerate().rev() {
        next[at] = seen[page as usize];
        seen[page as usize] = at as u32;
    }
    next
}

/// The hits of the optimum. `next` is from [`next_uses`].
pub(super) fn hits(requests: &[u32], next: &[u32], distinct: u32, capacity: u32) -> u64 {
    assert!(capacity > 0, "a cache of no pages");
    let mut resident = vec![false; distinct as usize];
    let mut used = 0;
    let mut hits = 0;
    // Each resident page by its next use. A page's entry from before its last request stays behind,
    // but names a use in the past, so it sorts below every entry that holds, and is never popped.
    let mut by_next_use = BinaryHeap::new();
    for (&page, &next) in requests.iter().zip(next) {
        if resident[page as usize] {
            hits += 1;
        } else {
            if used == capacity {
                let (_, victim) = by_next_use.pop().expect("a full cache holds pages");
                debug_assert!(resident[victim as usize], "an entry that does not hold");
                resident[victim as usize] = false;
            } else {
                used += 1;
            }
            resident[page as usize] = true;
        }
        by_next_use.push((next, page));
    }
    hits
}
