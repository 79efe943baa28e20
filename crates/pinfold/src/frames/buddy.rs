//! Which frames are free, in blocks of 2^order, by the binary buddy system (Knuth, The Art of
//! Computer Programming, 2.5): a free block of order k starts at a multiple of 2^k frames; its
//! *buddy* is the other half of the block of order k + 1 around it. A block that is freed merges
//! with its buddy if that is free and whole, and so on upwards. Blocks come from the smallest order
//! that has one, and the last freed goes first.
//!
//! # State, all of it under one mutex
//!
//! - `heads`: the first free blocks of each order; the rest follow through the entries' links.
//! - entry `block` = k + 1 exactly in the first frames of blocks on list k, 0 elsewhere.
//! - No two free blocks are buddies of the same order.
//! - A frame is the table's, free, held, or in use; `free_frames` and `held` count theirs.
//! - There is a set of lists for each kind of runs (`mobility`). A run that has become free as a
//!   whole is movable, except for the last hollow one while somebody wants one to stay.
//!   `free_frames` counts without the hollow ones, `free_hollow` those alone.
//!
//! The count and the version of a free frame are neither read under the mutex nor stored here.

use std::ops::Range;

use super::entry::Frame;
use super::mobility::{Mobility, RunKinds};
use super::run_map::RunMap;
use super::table::Table;
use super::units::{FrameNumber, Order};
use crate::base::mutant::{self, Mutant};

#[derive(Debug, Default)]
pub(super) struct Lists {
    /// The first free block of each order, by the kind of its run.
    heads: [[Option<FrameNumber>; Order::COUNT]; Mobility::COUNT],
    pub(super) free_frames: u32,
    pub(super) free_hollow: u32,
    pub(super) hollow_runs: u32,
    /// How many want a run to stay hollow.
    pub(super) hollow_users: u32,
    /// The run that is being emptied, and which of its frames are.
    held: Option<(FrameNumber, RunMap)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'a> {
    pub(super) table: &'a Table,
    pub(super) runs: &'a RunKinds,
}

impl Lists {
    pub(super) fn new(on: Ground<'_>, table_frames: u32) -> Self {
        let mut lists = Lists::default();
        let end = on.table.frames();
        let mut at = FrameNumber(table_frames);
        // Ends: each round adds a block of at least one frame.
        while at.0 < end {
            let order = Order::of_block_at(at.0.into(), end.into());
            lists.add(on, at, order);
            at = at.after(order.frames());
        }
        lists
    }

    pub(super) fn first(&self, kind: Mobility, order: Order) -> Option<FrameNumber> {
        self.heads[kind as usize][usize::from(order.get())]
    }

    /// How many there are.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn blocks(&self, on: Ground<'_>, kind: Mobility, order: Order) -> u32 {
        let next = |&head: &FrameNumber| on.table.frame(head).next();
        std::iter::successors(self.first(kind, order), next).count() as u32
    }

    /// The smallest block of `order` or more.
    pub(super) fn smallest(&self, kind: Mobility, order: Order) -> Option<(FrameNumber, Order)> {
        let enough = Order::all().filter(|from| *from >= order);
        enough.into_iter().find_map(|from| Some((self.first(kind, from)?, from)))
    }

    fn largest(&self, kind: Mobility) -> Option<(FrameNumber, Order)> {
        Order::all().rev().find_map(|order| Some((self.first(kind, order)?, order)))
    }

    /// The block is still frozen, with an odd version.
    pub(super) fn take(
        &mut self,
        on: Ground<'_>,
        order: Order,
        kind: Mobility,
    ) -> Option<FrameNumber> {
        let (head, from) = self.smallest(kind, order)?;
        self.cut(on, head, from, order);
        Some(head)
    }

    /// A block of `order`, or else the largest there is, of the first of these kinds that has any.
    pub(super) fn take_at_most(
        &mut self,
        on: Ground<'_>,
        order: Order,
        kinds: &[Mobility],
    ) -> Option<(FrameNumber, Order)> {
        kinds.iter().find_map(|&kind| {
            let order = order.min(self.largest(kind)?.1);
            Some((self.take(on, order, kind)?, order))
        })
    }

    /// A block of `order` from an unmovable run, but none of the few that are left for index nodes.
    pub(super) fn take_to_pin(&mut self, on: Ground<'_>, order: Order) -> Option<FrameNumber> {
        let for_nodes = on.runs.for_nodes();
        let (head, from) = Order::all().filter(|from| *from >= order).find_map(|from| {
            let mut block = self.first(Mobility::Unmovable, from);
            // Ends: with the list, or at a block elsewhere.
            while let Some(head) = block.filter(|head| for_nodes.contains(&head.0)) {
                block = on.table.frame(head).next();
            }
            Some((block?, from))
        })?;
        self.cut(on, head, from, order);
        Some(head)
    }

    /// The lowest free one of these frames, if they are those of an unmovable run.
    pub(super) fn take_lowest(
        &mut self,
        on: Ground<'_>,
        frames: Range<u32>,
    ) -> Option<FrameNumber> {
        let (head, order) = blocks_in(on.table, frames).next()?;
        if on.runs.kind(head) != Mobility::Unmovable {
            return None; // all of it was free meanwhile
        }
        self.cut(on, head, order, Order::MIN);
        Some(head)
    }

    fn cut(&mut self, on: Ground<'_>, head: FrameNumber, from: Order, order: Order) {
        self.unlink(on, head, from);
        // Keep the lower half, give the upper one back, as often as the block is too large.
        for half in (order.get()..from.get()).rev().map(Order) {
            self.push(on, head.after(half.frames()), half);
        }
        *self.free(on.runs.kind(head)) -= order.frames();
    }

    fn free(&mut self, kind: Mobility) -> &mut u32 {
        if kind == Mobility::Hollow { &mut self.free_hollow } else { &mut self.free_frames }
    }

    pub(super) fn claim_any(&mut self, on: Ground<'_>, order: Order) -> Option<FrameNumber> {
        let (block, _) =
            self.largest(Mobility::Movable).filter(|&(_, largest)| largest >= order)?;
        let run = block.align_down(Order::MAX);
        self.claim(on, run);
        Some(run)
    }

    /// What is free in a movable run changes lists.
    pub(super) fn claim(&mut self, on: Ground<'_>, run: FrameNumber) {
        let blocks: Vec<_> = blocks_in(on.table, frames_of(on.table, run)).collect();
        for &(head, order) in &blocks {
            self.unlink(on, head, order);
        }
        on.runs.set(run, Mobility::Unmovable);
        for (head, order) in blocks {
            self.push(on, head, order);
        }
    }

    pub(super) fn give(&mut self, on: Ground<'_>, head: FrameNumber, order: Order) {
        assert_not_free(on.table, head, order);
        if !self.give_held(head, order) {
            self.add(on, head, order);
        }
    }

    pub(super) fn give_held(&mut self, head: FrameNumber, order: Order) -> bool {
        match &mut self.held {
            Some((run, map))
                if head.align_down(Order::MAX) == *run && !mutant::on(Mutant::HoldLeaks) =>
            {
                map.insert(head.0 - run.0, order);
                true
            }
            _ => false,
        }
    }

    /// Adds a block, merged with its buddies as far as they are free.
    pub(super) fn add(&mut self, on: Ground<'_>, head: FrameNumber, order: Order) {
        let kind = on.runs.kind(head);
        *self.free(kind) += order.frames();
        let (mut head, mut order) = (head, order);
        // Ends: the order grows each time, up to MAX.
        while order < Order::MAX {
            let buddy = FrameNumber(head.0 ^ order.frames());
            // A buddy beyond the arena has no entry, one in the table's frames is on no list.
            if on.table.try_frame(buddy).and_then(Frame::block) != Some(order) {
                break;
            }
            self.unlink(on, buddy, order);
            order = Order(order.get() + 1);
            head = head.align_down(order);
        }
        let stays = kind == Mobility::Hollow && self.hollow_runs == 1 && self.hollow_users > 0;
        if order == Order::MAX && !stays {
            *self.free(kind) -= order.frames();
            *self.free(Mobility::Movable) += order.frames();
            self.set_movable(on, head);
        }
        self.push(on, head, order);
    }

    fn set_movable(&mut self, on: Ground<'_>, run: FrameNumber) {
        self.hollow_runs -= u32::from(on.runs.kind(run) == Mobility::Hollow);
        on.runs.set(run, Mobility::Movable);
    }

    pub(super) fn push(&mut self, on: Ground<'_>, head: FrameNumber, order: Order) {
        let entry = on.table.frame(head);
        debug_assert!(entry.block().is_none(), "{head:?} is on a free list already");
        let after = self.first_mut(on.runs.kind(head), order).replace(head);
        entry.set_prev(None);
        entry.set_next(after);
        entry.set_block(Some(order));
        if let Some(after) = after {
            on.table.frame(after).set_prev(Some(head));
        }
    }

    fn first_mut(&mut self, kind: Mobility, order: Order) -> &mut Option<FrameNumber> {
        &mut self.heads[kind as usize][usize::from(order.get())]
    }

    pub(super) fn unlink(&mut self, on: Ground<'_>, head: FrameNumber, order: Order) {
        let entry = on.table.frame(head);
        assert!(entry.block() == Some(order), "{head:?} is not on the free list of {order:?}");
        let (prev, next) = (entry.prev(), entry.next());
        match prev {
            Some(prev) => on.table.frame(prev).set_next(next),
            None => *self.first_mut(on.runs.kind(head), order) = next,
        }
        if let Some(next) = next {
            on.table.frame(next).set_prev(prev);
        }
        entry.set_prev(None);
        entry.set_next(None);
        entry.set_block(None);
    }

    /// False if a run is held already.
    pub(super) fn hold(&mut self, on: Ground<'_>, run: FrameNumber) -> bool {
        if self.held.is_some() {
            return false;
        }
        self.held = Some((run, free_in(on.table, run)));
        for (head, order) in blocks_in(on.table, frames_of(on.table, run)) {
            self.unlink(on, head, order);
            *self.free(on.runs.kind(head)) -= order.frames();
        }
        true
    }

    pub(super) fn held_frames(&self) -> u32 {
        self.held.as_ref().map_or(0, |(_, map)| map.len())
    }

    pub(super) fn held_map(&self, run: FrameNumber) -> RunMap {
        match self.held {
            Some((held, map)) if held == run => map,
            other => panic!("{run:?} is not the run that is held: {other:?}"),
        }
    }

    /// Makes the held run one of the arena, unless a hollow one is wanted and this is the last.
    #[cfg(feature = "map")]
    pub(super) fn take_back(&mut self, on: Ground<'_>, run: FrameNumber) -> bool {
        let may = self.may_take_back();
        if may {
            self.set_movable(on, run);
        }
        may
    }

    /// Whether one of the hollow runs may become one of the arena.
    #[cfg(feature = "map")]
    pub(super) fn may_take_back(&self) -> bool {
        self.hollow_runs > u32::from(self.hollow_users > 0)
    }

    /// Whether all that is not held of the held run are hollow folios.
    #[cfg(feature = "map")]
    pub(super) fn has_hollow_alone(&self, on: Ground<'_>, run: FrameNumber) -> bool {
        let map = self.held_map(run);
        let mut at = 0;
        // Ends: each turn advances by at least a frame.
        while at < RunMap::FRAMES {
            let frame = on.table.frame(run.after(at));
            let is_held = map.contains(at);
            if !is_held && !frame.is_hollow() && !mutant::on(Mutant::HollowOutUsed) {
                return false;
            }
            at += if is_held { 1 } else { frame.order().frames() };
        }
        true
    }

    /// Makes the held run hollow.
    #[cfg(feature = "map")]
    pub(super) fn hollow_out_rest(&mut self, on: Ground<'_>, run: FrameNumber) {
        on.runs.set(run, Mobility::Hollow);
        self.hollow_runs += 1;
    }

    pub(super) fn release_held(&mut self, on: Ground<'_>, run: FrameNumber) {
        let map = self.held_map(run);
        self.held = None;
        if map.is_full() {
            return self.add(on, run, Order::MAX);
        }
        for frame in (0..RunMap::FRAMES).filter(|&offset| map.contains(offset)) {
            self.add(on, run.after(frame), Order::MIN);
        }
    }
}

/// In debug builds, of all frames; else of the head. Call with the mutex held.
fn assert_not_free(table: &Table, head: FrameNumber, order: Order) {
    assert!(table.frame(head).block().is_none(), "{head:?} is freed twice");
    if cfg!(debug_assertions) {
        for around in Order::all().filter(|&around| around > order) {
            let block = table.frame(head.align_down(around)).block();
            assert!(block < Some(around), "{head:?} is freed inside a free block");
        }
        for frame in (1..order.frames()).map(|offset| head.after(offset)) {
            table.frame(frame).debug_assert_dead(frame);
        }
    }
}

pub(super) fn free_in(table: &Table, run: FrameNumber) -> RunMap {
    let mut map = RunMap::default();
    for (head, order) in blocks_in(table, frames_of(table, run)) {
        map.insert(head.0 - run.0, order);
    }
    map
}

/// The frames of a run, of which the last may be cut short.
fn frames_of(table: &Table, run: FrameNumber) -> Range<u32> {
    run.0..(run.0 + RunMap::FRAMES).min(table.frames())
}

/// The free blocks that begin in these frames, lowest first. The caller may take each off its list.
fn blocks_in(table: &Table, mut frames: Range<u32>) -> impl Iterator<Item = (FrameNumber, Order)> {
    std::iter::from_fn(move || {
        // Ends: the start grows each time, up to the end.
        while frames.start < frames.end {
            let head = FrameNumber(frames.start);
            let block = table.frame(head).block();
            frames.start += block.map_or(1, Order::frames);
            if let Some(order) = block {
                return Some((head, order));
            }
        }
        None
    })
}
