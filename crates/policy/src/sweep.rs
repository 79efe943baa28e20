//! One caller's attempt to free memory: the effort left, and the results so far. Several may be
//! under way on one policy.
//!
//! **A folio that refuses (busy or pinned) is not offered to the same sweep again.** It goes to the
//! newest end of a queue, and the sweep counts how many in a row went there. As long as that is
//! less than what the queue holds, its head was not offered yet; then the queue has nothing more
//! for this sweep. A spared folio ends main's row, since it stands behind those that refused. What
//! others add and remove meanwhile makes a row end a little early or late.

use crate::residents::Queue;

/// The outcome for a folio that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Frozen and taken out of its file: the policy forgets it and returns the shadow to
    /// leave. Answered before the frame is freed, since the policy still reads the folio's weight.
    Evicted,
    /// It is held for a moment, or being written: back to the newest end of its queue.
    Busy,
    /// Pinned, which may last: to the newest end of the main queue.
    Pinned,
}

/// The folios that a sweep met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Folios looked at, spared ones included; never more than the sweep's effort.
    pub examined: u32,
    /// Answered evicted.
    pub evicted: u32,
    /// Pages of these.
    pub evicted_pages: u64,
}

/// A caller's attempt to free memory; lives over several [`crate::S3Fifo::next_victim`] calls.
#[derive(Debug)]
pub struct Sweep {
    effort_max: u32,
    /// By queue: the folios that refused in a row and went to its newest end.
    pub(crate) refused: [u32; Queue::ALL.len()],
    pub(crate) counts: SweepCounts,
}

impl Sweep {
    /// A sweep that looks at no more than `effort_max` folios, spared ones included.
    pub fn new(effort_max: u32) -> Self {
        Self { effort_max, refused: Default::default(), counts: SweepCounts::default() }
    }

    /// What the sweep met so far.
    pub fn counts(&self) -> SweepCounts {
        self.counts
    }

    /// Pays for looking at one folio; false if the effort is spent.
    #[inline]
    pub(crate) fn spend(&mut self) -> bool {
        let left = self.counts.examined < self.effort_max;
        self.counts.examined += u32::from(left);
        left
    }
}
