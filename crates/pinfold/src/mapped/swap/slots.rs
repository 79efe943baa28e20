//! Which slots of the swap are free.
//!
//! A slot is the place of one page. Slots are taken for pages that are written together, and lie
//! together where that is possible: 64 slots are a *cluster*, one word of the bitmap.

use std::ops::Range;

use crate::base::sync::Mutex;

/// Slots of a cluster: the most that are taken at once.
pub(crate) const CLUSTER_SLOTS: u32 = u64::BITS;

/// All numbers of slots are below it: the words of `pages.rs` have no room for more.
pub(crate) const SLOTS_MAX: u32 = 1 << 29;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) u32);

#[derive(Debug)]
pub(crate) struct SwapSlots {
    all: u32,
    state: Mutex<SlotsState>,
}

#[derive(Debug)]
struct SlotsState {
    /// A set bit is a slot in use, or one that is not there at the end of the last word.
    used: Vec<u64>,
    free: u32,
    /// Words without a set bit.
    free_clusters: u32,
    /// Where the last cluster goes on.
    next: u32,
}

impl SwapSlots {
    pub(crate) fn new(all: u32) -> Self {
        assert!(all <= SLOTS_MAX / 2, "more slots than can be numbered");
        let mut used = vec![0; all.div_ceil(CLUSTER_SLOTS) as usize];
        if let (Some(last), rest @ 1..) = (used.last_mut(), all % CLUSTER_SLOTS) {
            *last = u64::MAX << rest;
        }
        let state = SlotsState { used, free: all, free_clusters: all / CLUSTER_SLOTS, next: 0 };
        SwapSlots { all, state: Mutex::new(state) }
    }

    pub(crate) fn all(&self) -> u32 {
        self.all
    }

    pub(crate) fn free(&self) -> u32 {
        self.state.lock().free
    }

    /// Takes `wanted` slots, at most a cluster's; fewer if there are no more. They are adjacent as
    /// long as a cluster is free.
    pub(crate) fn take(&self, wanted: u32) -> Vec<Range<u32>> {
        let wanted = wanted.min(CLUSTER_SLOTS);
        let mut state = self.state.lock();
        match state.adjacent(wanted) {
            _ if wanted == 0 => Vec::new(),
            Some(start) => {
                state.mark(start..start + wanted);
                state.next = start + wanted;
                std::iter::once(start..start + wanted).collect()
            }
            None => state.pieces(wanted),
        }
    }

    /// What was to be written to the cluster of this slot was not: the next slots are of another.
    pub(crate) fn pass_over(&self, Slot(slot): Slot) {
        let next = (slot / CLUSTER_SLOTS + 1) * CLUSTER_SLOTS;
        self.state.lock().next = if next < self.all { next } else { 0 };
    }

    /// A number that is no slot's, for a page that needs none if it is all zeros. `nth` tells it
    /// from others.
    pub(crate) fn none(all: u32, nth: u32) -> Slot {
        Slot(all + nth % (SLOTS_MAX - all))
    }

    /// Gives a slot back. One that is none is ignored.
    /// Panics: if it is free.
    pub(crate) fn give(&self, Slot(slot): Slot) {
        if slot >= self.all {
            return;
        }
        let mut state = self.state.lock();
        let (word, bit) = ((slot / CLUSTER_SLOTS) as usize, 1 << (slot % CLUSTER_SLOTS));
        assert!(state.used[word] & bit != 0, "slot {slot} was free");
        state.used[word] &= !bit;
        state.free += 1;
        state.free_clusters += u32::from(state.used[word] == 0);
    }
}

impl SlotsState {
    /// Where that many adjacent slots are free: the rest of the last cluster, or a free one.
    fn adjacent(&self, wanted: u32) -> Option<u32> {
        let (word, at) = ((self.next / CLUSTER_SLOTS) as usize, self.next % CLUSTER_SLOTS);
        let is_free = |used: u64| used >> at == 0;
        if at + wanted <= CLUSTER_SLOTS && self.used.get(word).copied().is_some_and(is_free) {
            return Some(self.next);
        }
        if self.free_clusters == 0 {
            return None;
        }
        let (before, after) = self.used.split_at(word.min(self.used.len()));
        let found = after.iter().position(|&used| used == 0).map(|at| at + before.len());
        let found = found.or_else(|| before.iter().position(|&used| used == 0));
        found.map(|word| word as u32 * CLUSTER_SLOTS)
    }

    fn mark(&mut self, slots: Range<u32>) {
        let (word, at) = ((slots.start / CLUSTER_SLOTS) as usize, slots.start % CLUSTER_SLOTS);
        let n = slots.end - slots.start;
        debug_assert!(n > 0 && at + n <= CLUSTER_SLOTS);
        let bits = (u64::MAX >> (CLUSTER_SLOTS - n)) << at;
        debug_assert_eq!(self.used[word] & bits, 0);
        self.free_clusters -= u32::from(self.used[word] == 0);
        self.used[word] |= bits;
        self.free -= n;
    }

    /// Whatever is free, from where the last cluster goes on.
    fn pieces(&mut self, wanted: u32) -> Vec<Range<u32>> {
        let mut got = Vec::new();
        let mut left = wanted.min(self.free);
        let words = self.used.len();
        let first = self.next / CLUSTER_SLOTS;
        // Ends: there are as many free slots as are left to be found.
        let mut turn = 0;
        while left > 0 {
            let word = (first as usize + turn) % words;
            let used = self.used[word];
            if used == u64::MAX {
                turn += 1;
                continue;
            }
            let start = used.trailing_ones();
            let n = (used >> start).trailing_zeros().min(CLUSTER_SLOTS - start).min(left);
            let start = word as u32 * CLUSTER_SLOTS + start;
            self.mark(start..start + n);
            self.next = start + n;
            left -= n;
            got.push(start..start + n);
        }
        got
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn only<T>(it: T) -> Vec<T> {
        Vec::from([it])
    }

    #[test]
    fn pages_that_are_written_together_lie_together() {
        let slots = SwapSlots::new(1000);
        assert_eq!(slots.take(16), only(0..16));
        assert_eq!(slots.take(40), only(16..56));
        assert_eq!(slots.take(9), only(64..73), "not across a cluster");
        assert_eq!(slots.take(100), only(128..192), "at most a cluster");
        assert_eq!(slots.free(), 1000 - 16 - 40 - 9 - 64);
    }

    #[test]
    fn a_cluster_that_cannot_be_written_is_passed_over() {
        let slots = SwapSlots::new(200);
        for cluster in [0, 64, 128, 0] {
            assert_eq!(slots.take(40), only(cluster..cluster + 40));
            slots.pass_over(Slot(cluster));
            (cluster..cluster + 40).for_each(|slot| slots.give(Slot(slot)));
        }
    }

    #[test]
    fn all_slots_are_given_once_and_again_when_they_are_free() {
        let slots = SwapSlots::new(200);
        let mut taken = Vec::new();
        // Ends: there are 200.
        loop {
            let some: Vec<u32> = slots.take(7).into_iter().flatten().collect();
            if some.is_empty() {
                break;
            }
            taken.extend(some);
        }
        taken.sort_unstable();
        assert_eq!(taken, (0..200).collect::<Vec<_>>());
        assert_eq!(slots.free(), 0);
        assert!(slots.take(1).is_empty());
        for slot in [199, 3, 4, 70] {
            slots.give(Slot(slot));
        }
        let mut again: Vec<u32> = slots.take(64).into_iter().flatten().collect();
        again.sort_unstable();
        assert_eq!(again, [3, 4, 70, 199]);
        assert_eq!(slots.free(), 0);
    }

    #[test]
    fn a_random_history_gives_no_slot_twice() {
        let slots = SwapSlots::new(500);
        let mut random = fastrand::Rng::with_seed(7);
        let mut held = Vec::new();
        for _ in 0..20_000 {
            if random.bool() {
                for slot in slots.take(random.u32(0..70)).into_iter().flatten() {
                    assert!(slot < 500 && !held.contains(&slot), "{slot}");
                    held.push(slot);
                }
            } else {
                for _ in 0..random.usize(0..70).min(held.len()) {
                    slots.give(Slot(held.swap_remove(random.usize(0..held.len()))));
                }
            }
            assert_eq!(slots.free() as usize + held.len(), 500);
        }
    }

    #[test]
    #[should_panic(expected = "slot 5 was free")]
    fn a_slot_is_not_given_back_twice() {
        SwapSlots::new(10).give(Slot(5));
    }

    #[test]
    fn a_swap_without_slots_has_none() {
        let slots = SwapSlots::new(0);
        assert!(slots.take(5).is_empty());
        assert_eq!((slots.all(), slots.free()), (0, 0));
        slots.give(SwapSlots::none(0, 77));
        assert_eq!(slots.free(), 0);
    }
}
