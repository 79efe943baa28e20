//! The allocator's part of hollow runs: lists of their own, of which the last run may have to stay.

use super::Buddy;
use crate::base::sync::Ordering;
use crate::frames::mobility::Mobility;
use crate::frames::table::Table;
use crate::frames::units::{FrameNumber, Order};

impl Buddy {
    /// Takes a block of `order`, or else the largest there is, from a hollow run.
    pub(in crate::frames) fn take_hollow_at_most(
        &self,
        table: &Table,
        order: Order,
    ) -> Option<(FrameNumber, Order)> {
        let mut lists = self.lists.lock();
        let order = lists.of[Mobility::Hollow as usize].largest_at_most(order)?;
        let head = lists.take(self.ground(table), order, Mobility::Hollow)?;
        self.publish(&lists);
        Some((head, order))
    }

    /// Takes a free run of 2 MiB that may become hollow. It is on no list until [`Self::hollow_out`] or
    /// [`Self::give`].
    pub(in crate::frames) fn take_run(&self, table: &Table) -> Option<FrameNumber> {
        self.take_of(table, Order::MAX, Mobility::Movable)
    }

    /// Makes a run that [`Self::take_run`] has taken a hollow one, all of it free. False if it is held
    /// by now: what is held stays what it is, so it is given back.
    pub(in crate::frames) fn hollow_out(&self, table: &Table, run: FrameNumber) -> bool {
        let mut lists = self.lists.lock();
        if lists.give_held(run, Order::MAX) {
            return false;
        }
        self.runs.set(run, Mobility::Hollow);
        lists.hollow_runs += 1;
        lists.free_hollow += Order::MAX.frames();
        lists.push(self.ground(table), run, Order::MAX);
        self.assert_sane(&lists, table);
        self.publish(&lists);
        true
    }

    /// From now on one run stays hollow, once one is: until [`Self::hollow_user_ends`] was called as
    /// often.
    pub(in crate::frames) fn hollow_user_begins(&self) {
        self.lists.lock().hollow_users += 1;
    }

    /// See [`Self::hollow_user_begins`].
    pub(in crate::frames) fn hollow_user_ends(&self, table: &Table) {
        let mut lists = self.lists.lock();
        lists.hollow_users -= 1;
        let free = lists.of[Mobility::Hollow as usize].heads[usize::from(Order::MAX.get())];
        if let (0, Some(run)) = (lists.hollow_users, free) {
            let ground = self.ground(table);
            lists.unlink(ground, run, Order::MAX);
            lists.free_hollow -= Order::MAX.frames();
            lists.add(ground, run, Order::MAX);
            self.publish(&lists);
        }
    }

    /// Whether a hollow run may be another again.
    pub(in crate::frames) fn may_take_back(&self) -> bool {
        let lists = self.lists.lock();
        lists.hollow_runs > u32::from(lists.hollow_users > 0)
    }

    pub(in crate::frames) fn free_hollow(&self) -> u32 {
        // Relaxed: as above.
        self.free_hollow.load(Ordering::Relaxed)
    }
}
