//! Shadows: when a folio was evicted, in 16 bits that the policy leaves for each.
//!
//! S3-FIFO keeps a ghost queue of as many names as the main queue has folios, and asks whether a
//! name is still in it. A FIFO queue needs no memory to answer that: a name is in it as long as no
//! more than the queue's length was put in since. So the clock counts the pages put in, the payload
//! is its reading, and the folio is recent while the clock is at most `reach` pages on.
//!
//! **Wrap.** The payload is the reading modulo 2^16 units. A ghost that was left for 2^16 units
//! looks new again for `reach` pages of every round; then one folio enters the main queue instead
//! of the small one, for one passage. A unit is one page up to a capacity of 2^10 pages (4 MiB) and
//! doubles from there, so that a round is never shorter than 64 capacities, and a unit never more
//! than a 512th of the capacity.

/// The bits of a shadow's payload.
pub const SHADOW_BITS: u32 = 16;
const MASK: u32 = (1 << SHADOW_BITS) - 1;
/// A round of the payload is at least this many capacities.
const ROUND_CAPACITIES: u64 = 64;

/// When a folio was evicted: stored then, and passed back when its pages return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow(u32);

impl Shadow {
    /// A shadow from its payload.
    ///
    /// # Panics
    /// If the payload has more than [`SHADOW_BITS`] bits.
    pub const fn from_payload(payload: u32) -> Self {
        assert!(payload <= MASK, "a shadow's payload has 16 bits");
        Self(payload)
    }

    /// The payload: below `2^SHADOW_BITS`.
    pub const fn payload(self) -> u32 {
        self.0
    }
}

/// Counts the pages that left the small queue for memory.
#[derive(Debug)]
pub(crate) struct GhostClock {
    now_pages: u64,
    reach_pages: u64,
    unit_shift: u32,
}

impl GhostClock {
    pub(crate) fn new(capacity_pages: u64, reach_pages: u64) -> Self {
        let round_pages = capacity_pages.saturating_mul(ROUND_CAPACITIES).max(1);
        let unit_shift =
            round_pages.checked_next_power_of_two().map_or(u64::BITS, u64::trailing_zeros);
        Self { now_pages: 0, reach_pages, unit_shift: unit_shift.saturating_sub(SHADOW_BITS) }
    }

    /// Notes that a folio of `pages` left now.
    pub(crate) fn stamp(&mut self, pages: u32) -> Shadow {
        let shadow = Shadow(self.reading());
        self.now_pages += u64::from(pages);
        shadow
    }

    pub(crate) fn is_recent(&self, shadow: Shadow) -> bool {
        let age_units = self.reading().wrapping_sub(shadow.0) & MASK;
        u64::from(age_units) << self.unit_shift <= self.reach_pages
    }

    fn reading(&self) -> u32 {
        (self.now_pages >> self.unit_shift) as u32 & MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_up_to_the_reach_and_not_beyond() {
        let mut clock = GhostClock::new(100, 90);
        let shadow = clock.stamp(1);
        for left_since in 1..=90 {
            assert!(clock.is_recent(shadow), "forgotten after {left_since} pages");
            clock.stamp(1);
        }
        assert!(!clock.is_recent(shadow), "remembered beyond the reach");
    }

    #[test]
    fn heavy_folios_age_their_ghosts_by_their_pages() {
        let mut clock = GhostClock::new(1000, 900);
        let shadow = clock.stamp(512);
        assert!(clock.is_recent(shadow));
        clock.stamp(512);
        assert!(!clock.is_recent(shadow));
    }

    #[test]
    fn payload_wraps_and_says_what_it_says() {
        let mut clock = GhostClock::new(100, 90);
        clock.now_pages = u64::from(MASK);
        let shadow = clock.stamp(1);
        assert_eq!(shadow.payload(), MASK);
        clock.stamp(50);
        assert!(clock.is_recent(shadow), "the wrap made a young ghost old");
        clock.now_pages += 1 << (SHADOW_BITS - 1);
        assert!(!clock.is_recent(shadow));
        clock.now_pages = u64::from(MASK) + (1 << SHADOW_BITS);
        assert!(clock.is_recent(shadow), "documented: after a whole round a ghost looks new");
    }

    #[test]
    fn a_round_is_at_least_64_capacities() {
        for capacity_pages in [1, 1000, 1 << 10, (1 << 10) + 1, 1 << 24, 1 << 30] {
            let clock = GhostClock::new(capacity_pages, capacity_pages);
            let round_pages = 1_u64 << (SHADOW_BITS + clock.unit_shift);
            assert!(round_pages >= 64 * capacity_pages, "{capacity_pages} pages");
        }
        assert_eq!(GhostClock::new(1 << 10, 1).unit_shift, 0);
        assert_eq!(GhostClock::new(1 << 30, 1).unit_shift, 20);
    }
}
