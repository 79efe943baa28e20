//! Hollow runs: 2 MiB of the arena whose memory was given back to the system, for folios whose bytes
//! are outside (`pages/outside.rs`).

use super::Frames;
use super::entry::Flags;
use super::units::{FrameNumber, Order};

impl Frames {
    /// Takes a folio of `order` or smaller from a hollow run: its bytes are not in the arena, and its
    /// entry says so ([`Flags::HOLLOW`]). Otherwise as `alloc`.
    #[must_use = "the folio would be lost to the budget"]
    pub(crate) fn alloc_hollow(&self, order: Order) -> Option<(FrameNumber, Order)> {
        let (head, order) = self.buddy.take_hollow_at_most(&self.table, order)?;
        self.frame(head).hand_out(order);
        self.frame(head).set_flags(Flags::HOLLOW);
        Some((head, order))
    }

    /// Makes a free run of 2 MiB hollow: gives its memory back to the system. False if there is none,
    /// or if it is being emptied by now.
    ///
    /// Cost: two mutexes and a madvise(2).
    pub(crate) fn hollow_out_run(&self) -> bool {
        let Some(run) = self.buddy.take_run(&self.table) else { return false };
        // SAFETY: all of the run is free and on no list, so it is this thread's; a reader that has
        // found an earlier folio of it loads by racing loads, and notices by the version.
        let given = unsafe { self.arena.give_back(run, Order::MAX) };
        if given.is_err() {
            self.buddy.give(&self.table, run, Order::MAX);
        }
        given.is_ok() && self.buddy.hollow_out(&self.table, run)
    }

    /// From now on one run stays hollow, once one is: until [`Self::hollow_user_ends`] was called as
    /// often.
    pub(crate) fn hollow_user_begins(&self) {
        self.buddy.hollow_user_begins();
    }

    /// See [`Self::hollow_user_begins`].
    pub(crate) fn hollow_user_ends(&self) {
        self.buddy.hollow_user_ends(&self.table);
    }

    /// Whether a run that is hollow may become one of the arena again.
    pub(crate) fn may_take_back(&self) -> bool {
        self.buddy.may_take_back()
    }

    /// The heads of the runs that are hollow.
    pub(crate) fn hollow_runs(&self) -> impl Iterator<Item = FrameNumber> + '_ {
        self.whole_runs().filter(|&run| self.is_hollow(run))
    }

    /// Frames of hollow runs.
    pub(crate) fn hollow_frames(&self) -> u32 {
        self.buddy.runs().hollow() * Order::MAX.frames()
    }

    /// How many frames of hollow runs are free.
    pub(crate) fn free_hollow(&self) -> u32 {
        self.buddy.free_hollow()
    }
}
