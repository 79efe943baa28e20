//! Hollow runs: 2 MiB of the arena whose memory was given back, for folios outside of it.
//!
//! The kind of a run says what its free frames are for; the entry of a folio says where its bytes
//! are ([`Flags::HOLLOW`]). So a run becomes one of the arena although hollow folios in it are in
//! use and cannot be moved: their frames stay without memory, and the others are the arena's. It
//! becomes hollow again although they are there. An ordinary folio in use keeps its run from
//! becoming hollow: of a part of a huge page, the system may keep what is given back.

use super::entry::Flags;
use super::mobility::Mobility;
use super::units::{FrameNumber, Order};
use super::{Frames, HeldRun};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::Ordering;

impl Frames {
    /// As `alloc_at_most`, from a hollow run: its entry says so ([`Flags::HOLLOW`]).
    #[must_use = "the folio would be lost to the budget"]
    pub(crate) fn alloc_hollow(&self, order: Order) -> Option<(FrameNumber, Order)> {
        let (head, order) =
            self.change(|lists, on| lists.take_at_most(on, order, &[Mobility::Hollow]))?;
        self.frame(head).hand_out(order);
        self.frame(head).set_flags(Flags::HOLLOW);
        Some((head, order))
    }

    /// Makes a free run of 2 MiB hollow. False if there is none, or if it is being emptied by now.
    /// Cost: two mutexes and a madvise(2).
    pub(crate) fn hollow_out_run(&self) -> bool {
        let run = self.change(|lists, on| lists.take(on, Order::MAX, Mobility::Movable));
        let Some(run) = run else { return false };
        // SAFETY: all of the run is free and on no list; late readers notice by the version.
        let given = unsafe { self.arena.give_back(run, Order::MAX) };
        if given.is_err() {
            self.free(run, Order::MAX);
        }
        given.is_ok() && self.hollow_out(run)
    }

    /// Makes a run that was taken off its list hollow. False, and it is given back, if it is held.
    pub(super) fn hollow_out(&self, run: FrameNumber) -> bool {
        self.change(|lists, on| {
            if lists.give_held(run, Order::MAX) {
                return false;
            }
            on.runs.set(run, Mobility::Hollow);
            lists.hollow_runs += 1;
            lists.free_hollow += Order::MAX.frames();
            lists.push(on, run, Order::MAX);
            true
        })
    }

    /// One run stays hollow, once one is, until [`Self::hollow_user_ends`] was called as often.
    pub(crate) fn hollow_user_begins(&self) {
        self.lists.lock().hollow_users += 1;
    }

    pub(crate) fn hollow_user_ends(&self) {
        self.change(|lists, on| {
            lists.hollow_users -= 1;
            let free = lists.first(Mobility::Hollow, Order::MAX);
            if let (0, Some(run)) = (lists.hollow_users, free) {
                lists.unlink(on, run, Order::MAX);
                lists.free_hollow -= Order::MAX.frames();
                lists.add(on, run, Order::MAX);
            }
        });
    }

    /// Whether a hollow run may become one of the arena again.
    pub(crate) fn may_take_back(&self) -> bool {
        self.lists.lock().may_take_back()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn hollow_runs(&self) -> impl Iterator<Item = FrameNumber> + '_ {
        self.whole_runs().filter(|&run| self.is_hollow(run))
    }

    pub(crate) fn hollow_frames(&self) -> u32 {
        self.runs.hollow() * Order::MAX.frames()
    }

    pub(crate) fn free_hollow(&self) -> u32 {
        // Relaxed: as in `free_frames`.
        self.free_hollow.load(Ordering::Relaxed)
    }
}

/// The fewest frames for which a run is taken back that cannot be emptied: an eighth of it. So what
/// is in use keeps no more than a seventh of its own size from the arena.
pub(crate) const TAKEN_BACK_MIN: u32 = Order::MAX.frames() / 8;

impl HeldRun<'_> {
    /// Makes the run, if it is a hollow one, one of the arena, but for the folios in it. False if
    /// hardly anything but these is there, or if somebody wants one run to stay hollow and this is
    /// the last. Cost: two mutexes; if there are folios in it, also two calls of madvise(2).
    pub(crate) fn take_back(self) -> bool {
        let (frames, run, map) = (self.frames, self.run, self.held());
        if !map.is_full() {
            if map.len() < TAKEN_BACK_MIN || mutant::on(Mutant::UsedKeepRuns) {
                return false;
            }
            // SAFETY: no frame of a hollow run has bytes, and what is free of it is this thread's.
            if unsafe { frames.arena.forbid_huge(run) }.is_err() {
                return false;
            }
        }
        frames.change(|lists, on| lists.take_back(on, run))
    }

    /// Makes the run a hollow one, with the hollow folios that are in use in it. False if it has
    /// others. Cost: three mutexes, and one madvise(2).
    pub(crate) fn hollow_out_rest(self) -> bool {
        let (frames, run) = (self.frames, self.run);
        // First: memory that is given back in vain would be paid for twice. The answer stays true:
        // what is freed in the run from now on is held, and has no memory.
        if !frames.change(|lists, on| lists.has_hollow_alone(on, run)) {
            return false;
        }
        // SAFETY: what is held is this thread's, and the other folios have their bytes elsewhere.
        let given = unsafe { frames.arena.give_back(run, Order::MAX) };
        let is_hollow = given.is_ok();
        if is_hollow {
            frames.change(|lists, on| lists.hollow_out_rest(on, run));
        }
        is_hollow
    }
}
