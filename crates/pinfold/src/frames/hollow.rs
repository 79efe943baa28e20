//! Hollow runs: 2 MiB of the arena whose memory was given back, for folios outside of it.

use super::Frames;
use super::entry::Flags;
use super::mobility::Mobility;
use super::units::{FrameNumber, Order};
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
        let lists = self.lists.lock();
        lists.hollow_runs > u32::from(lists.hollow_users > 0)
    }

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
