//! Reference: W-TinyLFU, as Caffeine has it without its adaptive window.
//!
//! Einziger, Friedman, Manes, "`TinyLFU`, a highly efficient cache admission policy", ACM TOS 2017.
//! An LRU window of 1 %; what it pushes out competes with the oldest page on probation of a
//! segmented LRU (20 % probation, 80 % protected) and stays if it was asked for more often, by a
//! sketch of four rows of 4-bit counters that halves after ten capacities of increments. Caffeine's
//! random admission against flooding is left out: runs are to repeat.

use super::engine::Engine;
use super::lists::{Links, List};

/// How often a page was asked for lately, roughly: never less than true between two halvings.
#[derive(Debug)]
pub(super) struct Sketch {
    /// Four rows, 16 counters a word.
    rows: [Vec<u64>; 4],
    index_mask: u64,
    increments: u32,
    increments_max: u32,
}

const COUNTER_MAX: u64 = 15;
/// Bits of every counter but the lowest bit of its left neighbour, once all are shifted right.
const HALVED: u64 = 0x7777_7777_7777_7777;

impl Sketch {
    pub(super) fn new(capacity: u32) -> Self {
        // Caffeine: one word of 16 counters per page, so four counters of each row.
        let counters = u64::from(capacity).next_power_of_two() * 4;
        let words = counters.div_ceil(16) as usize;
        Self {
            rows: std::array::from_fn(|_| vec![0; words]),
            index_mask: counters - 1,
            increments: 0,
            increments_max: capacity.saturating_mul(10),
        }
    }

    /// Word and shift of a page's counter in each row.
    fn counters(&self, page: u32) -> [(usize, u32); 4] {
        std::array::from_fn(|row| {
            let index = mix(u64::from(page) << 2 | row as u64) & self.index_mask;
            ((index / 16) as usize, (index % 16) as u32 * 4)
        })
    }

    pub(super) fn frequency(&self, page: u32) -> u64 {
        let counters = self.counters(page).into_iter().zip(&self.rows);
        let counts = counters.map(|((word, shift), row)| row[word] >> shift & COUNTER_MAX);
        counts.min().expect("there are four rows")
    }

    pub(super) fn increment(&mut self, page: u32) {
        let mut raised = false;
        for ((word, shift), row) in self.counters(page).into_iter().zip(&mut self.rows) {
            if row[word] >> shift & COUNTER_MAX < COUNTER_MAX {
                row[word] += 1 << shift;
                raised = true;
            }
        }
        self.increments += u32::from(raised);
        if self.increments >= self.increments_max {
            self.increments /= 2;
            for word in self.rows.iter_mut().flatten() {
                *word = *word >> 1 & HALVED;
            }
        }
    }
}

/// The finaliser of `SplitMix64` (Steele, Lea, Flood, 2014).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment {
    Out,
    Window,
    Probation,
    Protected,
}

/// A W-TinyLFU cache of a fixed number of pages.
#[derive(Debug)]
pub(super) struct WTinyLfu {
    capacity: u32,
    window_max: u32,
    protected_max: u32,
    sketch: Sketch,
    links: Links,
    segments: Vec<Segment>,
    window: List,
    probation: List,
    protected: List,
}

impl WTinyLfu {
    pub(super) fn new(distinct: u32, capacity: u32) -> Self {
        assert!(capacity > 0, "a cache of no pages");
        let window_max = (capacity / 100).max(1);
        Self {
            capacity,
            window_max,
            protected_max: (u64::from(capacity - window_max) * 80 / 100) as u32,
            sketch: Sketch::new(capacity),
            links: Links::new(distinct),
            segments: vec![Segment::Out; distinct as usize],
            window: List::new(),
            probation: List::new(),
            protected: List::new(),
        }
    }

    pub(super) fn resident(&self) -> u32 {
        self.window.len() + self.probation.len() + self.protected.len()
    }

    fn place(&mut self, page: u32, to: Segment) {
        match self.segments[page as usize] {
            Segment::Out => {}
            Segment::Window => self.window.remove(&mut self.links, page),
            Segment::Probation => self.probation.remove(&mut self.links, page),
            Segment::Protected => self.protected.remove(&mut self.links, page),
        }
        match to {
            Segment::Out => {}
            Segment::Window => self.window.push(&mut self.links, page),
            Segment::Probation => self.probation.push(&mut self.links, page),
            Segment::Protected => self.protected.push(&mut self.links, page),
        }
        self.segments[page as usize] = to;
    }

    fn protect(&mut self, page: u32) {
        self.place(page, Segment::Protected);
        if self.protected.len() > self.protected_max
            && let Some(demoted) = self.protected.oldest()
        {
            self.place(demoted, Segment::Probation);
        }
    }

    fn admit(&mut self, page: u32) {
        self.place(page, Segment::Window);
        if self.window.len() <= self.window_max {
            return;
        }
        let candidate = self.window.oldest().expect("longer than its maximum");
        let victim = self.probation.oldest().or_else(|| self.protected.oldest());
        self.place(candidate, Segment::Probation);
        if self.resident() <= self.capacity {
            return;
        }
        let admitted =
            victim.filter(|&v| self.sketch.frequency(candidate) > self.sketch.frequency(v));
        self.place(admitted.unwrap_or(candidate), Segment::Out);
    }
}

impl Engine for WTinyLfu {
    fn access(&mut self, page: u32) -> bool {
        self.sketch.increment(page);
        match self.segments[page as usize] {
            Segment::Out => {
                self.admit(page);
                return false;
            }
            Segment::Window => self.place(page, Segment::Window),
            Segment::Probation | Segment::Protected => self.protect(page),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halving_keeps_neighbours_apart() {
        let mut sketch = Sketch::new(64);
        for word in sketch.rows.iter_mut().flatten() {
            *word = 0x1111_1111_1111_1111;
        }
        sketch.increments = sketch.increments_max - 1;
        sketch.increment(3);
        assert_eq!((sketch.frequency(3), sketch.frequency(4)), (1, 0));
    }
}
