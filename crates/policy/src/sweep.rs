//! One caller's attempt to free memory: the effort left, and the results so far.
//!
//! Here: the effort cap, the answers a caller gives, why an attempt ended. Not here: choosing.
//! A sweep belongs to one caller; several may be under way on one policy.
//!
//! **A folio that refuses (busy or pinned) is not offered to the same sweep again.** It goes to the
//! newest end of a queue, and the sweep counts how many in a row went there. As long as that is
//! less than what the queue holds, its head was not offered yet; then the queue has nothing more
//! for this sweep. A spared folio ends main's row, since it stands behind those that refused. What
//! other callers add and remove meanwhile makes a row end a little early or late; the next sweep
//! counts anew.

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

/// The folios that a sweep met. Folios met twice count twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepCounts {
    /// Folios looked at; never more than the sweep's effort.
    pub examined: u32,
    /// Of these, spared because they were used.
    pub reprieved: u32,
    /// Answered evicted.
    pub evicted: u32,
    /// Answered busy.
    pub busy: u32,
    /// Answered pinned.
    pub pinned: u32,
    /// Pages of the evicted.
    pub evicted_pages: u64,
    /// Pages of the busy.
    pub busy_pages: u64,
    /// Pages of the pinned.
    pub pinned_pages: u64,
}

/// Why a sweep can offer nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUpReason {
    /// No folio is queued (some may be on offer to other sweeps).
    Empty,
    /// Every queued folio was offered in turn, and every one was answered pinned.
    AllPinned,
    /// Every queued folio was offered in turn and refused, and this sweep met some that were busy:
    /// a moment later they may not be.
    AllBusy,
    /// The effort was spent first; the counts say on what.
    EffortExhausted,
}

/// A sweep that ended without a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GaveUp {
    /// Why.
    pub reason: GaveUpReason,
    /// What the sweep met.
    pub counts: SweepCounts,
}

impl core::fmt::Display for GaveUp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let c = &self.counts;
        match self.reason {
            GaveUpReason::Empty => write!(f, "nothing is cached that could be evicted"),
            GaveUpReason::AllPinned => write!(
                f,
                "everything is pinned: {} pages in the {} folios last looked at",
                c.pinned_pages, c.pinned
            ),
            GaveUpReason::AllBusy => write!(
                f,
                "everything is in use: {} busy ({} pages) and {} pinned ({} pages) in the folios \
                 last looked at",
                c.busy, c.busy_pages, c.pinned, c.pinned_pages
            ),
            GaveUpReason::EffortExhausted => write!(
                f,
                "gave up after looking at {} folios: {} evicted, {} pinned ({} pages), {} busy \
                 ({} pages), {} in use",
                c.examined, c.evicted, c.pinned, c.pinned_pages, c.busy, c.busy_pages, c.reprieved
            ),
        }
    }
}

impl core::error::Error for GaveUp {}

/// A caller's attempt to free memory; lives over several [`crate::Policy::next_victim`] calls.
#[derive(Debug)]
pub struct Sweep {
    effort_max: u32,
    /// By queue: the folios that refused in a row and went to its newest end.
    refused: [u32; Queue::ALL.len()],
    counts: SweepCounts,
}

impl Sweep {
    /// A sweep that looks at no more than `effort_max` folios, spared ones included.
    pub const fn new(effort_max: u32) -> Self {
        Self {
            effort_max,
            refused: [0; Queue::ALL.len()],
            counts: SweepCounts {
                examined: 0,
                reprieved: 0,
                evicted: 0,
                busy: 0,
                pinned: 0,
                evicted_pages: 0,
                busy_pages: 0,
                pinned_pages: 0,
            },
        }
    }

    /// What the sweep met so far.
    pub const fn counts(&self) -> SweepCounts {
        self.counts
    }

    /// The folios in a row, up to the newest end of this queue, that refused.
    #[inline]
    pub(crate) const fn refused(&self, queue: Queue) -> u32 {
        self.refused[queue as usize]
    }

    /// A folio refused and is at the newest end of this queue now.
    pub(crate) const fn note_refusal(&mut self, queue: Queue) {
        self.refused[queue as usize] += 1;
    }

    /// Pays for looking at one folio; false if the effort is spent.
    #[inline]
    pub(crate) const fn spend(&mut self) -> bool {
        if self.counts.examined == self.effort_max {
            return false;
        }
        self.counts.examined += 1;
        true
    }

    /// A folio was spared and is at the newest end of main now.
    pub(crate) const fn note_reprieve(&mut self) {
        self.counts.reprieved += 1;
        self.refused[Queue::Main as usize] = 0;
    }

    pub(crate) fn note(&mut self, answer: Answer, pages: u32) {
        let pages = u64::from(pages);
        let (folios, sum) = match answer {
            Answer::Evicted => (&mut self.counts.evicted, &mut self.counts.evicted_pages),
            Answer::Busy => (&mut self.counts.busy, &mut self.counts.busy_pages),
            Answer::Pinned => (&mut self.counts.pinned, &mut self.counts.pinned_pages),
        };
        *folios += 1;
        *sum += pages;
    }

    pub(crate) const fn gave_up(&self, reason: GaveUpReason) -> GaveUp {
        GaveUp { reason, counts: self.counts }
    }
}
