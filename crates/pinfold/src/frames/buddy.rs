//! The allocator: which frames are free, in blocks of 2^order, orders 0 to 9.
//!
//! What belongs here: the free lists, splitting and merging blocks, the one run that is being
//! emptied. What does not: the state of allocated folios (`entry`).
//!
//! The binary buddy system (Knowlton 1965; Knuth, The Art of Computer Programming, 2.5): a free
//! block of order k starts at a multiple of 2^k frames; its *buddy* is the other half of the block
//! of order k + 1 that both lie in, at the number with bit k flipped. A block that is freed merges
//! with its buddy if that is free and whole, and so on upwards, at most nine times.
//!
//! # State, all of it under one mutex
//!
//! - `heads[k]`: the first free block of order k; the rest follow through the entries' links.
//! - entry `block` = k + 1 exactly in the first frames of blocks on list k, 0 in every other entry.
//!   So one load says whether a block's buddy is free.
//! - No two free blocks are buddies of the same order: they would have been merged. So the set of
//!   free frames alone says which blocks there are, however they came about.
//! - A frame is the table's, free, held, or in use; `free_frames` and `held` count theirs.
//! - There are three sets of lists, for blocks in movable, in unmovable and in hollow runs
//!   (`mobility`): a block never crosses a run, so its first frame says which. A run that has
//!   become free as a whole is movable, except for the last hollow one while somebody wants one to
//!   stay. `free_frames` counts without the hollow ones, `free_hollow` those alone.
//!
//! Movable folios come from movable runs as long as these have free frames. Unmovable ones come
//! from unmovable runs; when those are full, another run is made unmovable.
//!
//! Blocks come from the smallest order that has one, and the last freed goes first: its entry and
//! bytes are warm, and large blocks stay whole as long as small ones do. There is nothing on the
//! heap: lists run through the table's entries.
//!
//! The count and the version of a free frame are not read under the mutex, and never stored here:
//! see the head of `entry`.

#[cfg(feature = "map")]
mod hollow;

use std::ops::Range;

use super::entry::Frame;
use super::mobility::{Mobility, RunKinds};
use super::run_map::RunMap;
use super::table::Table;
use super::units::{FrameNumber, Order};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU32, Mutex, Ordering};

/// What is free, and in which sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameStats {
    /// Frames in the arena.
    pub(crate) total_frames: u32,
    /// Frames that the table takes.
    pub(crate) table_frames: u32,
    /// Frames that can be allocated.
    pub(crate) free_frames: u32,
    /// Free frames of hollow runs: for folios whose bytes are outside.
    pub(crate) free_hollow: u32,
    /// Frames in the run that is being emptied: neither free nor in use.
    pub(crate) held_frames: u32,
    /// Free blocks of each order.
    pub(crate) free_blocks: [u32; Order::COUNT],
}

impl FrameStats {
    #[cfg(all(test, not(any(loom, shuttle))))]
    /// Frames that are folios: neither free, nor held, nor the table's.
    pub(crate) fn used_frames(&self) -> u32 {
        let free = self.free_frames + self.free_hollow;
        self.total_frames - self.table_frames - free - self.held_frames
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    /// Frames in free blocks of exactly `order`.
    pub(crate) fn free_frames_of(&self, order: Order) -> u32 {
        self.free_blocks[usize::from(order.get())] << order.get()
    }
}

/// The allocator of one arena. The table it works on is passed to each call: the same one always.
#[derive(Debug)]
pub(super) struct Buddy {
    lists: Mutex<Lists>,
    runs: RunKinds,
    /// Copy of `Lists::free_frames`, stored under the mutex and read without it.
    free_frames: AtomicU32,
    /// A copy of `Lists::free_hollow`.
    free_hollow: AtomicU32,
    table_frames: u32,
}

#[derive(Debug)]
struct Lists {
    /// By the kind of their runs.
    of: [KindLists; Mobility::COUNT],
    free_frames: u32,
    free_hollow: u32,
    hollow_runs: u32,
    /// How many want a run to stay hollow.
    hollow_users: u32,
    held: Option<EmptyingRun>,
}

/// The free blocks in runs of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct KindLists {
    heads: [Option<FrameNumber>; Order::COUNT],
    blocks: [u32; Order::COUNT],
    /// Bit k: list k has a block.
    nonempty: u32,
}

/// Passed to each call on the lists: the table, and the kinds of its runs.
#[derive(Clone, Copy)]
struct Ground<'a> {
    table: &'a Table,
    runs: &'a RunKinds,
}

/// The run that is being emptied, and which of its frames are.
#[derive(Debug)]
struct EmptyingRun {
    run: FrameNumber,
    map: RunMap,
}

impl Buddy {
    /// Takes over all frames of `table` but its first `table_frames`, as free.
    pub(super) fn new(table: &Table, table_frames: u32) -> Self {
        assert!(0 < table_frames && table_frames < table.frames());
        let runs = RunKinds::new(table.frames(), table_frames);
        let of = [KindLists::default(); Mobility::COUNT];
        let (free_frames, free_hollow, hollow_runs, hollow_users) = Default::default();
        let mut lists =
            Lists { of, free_frames, free_hollow, hollow_runs, hollow_users, held: None };
        lists.add_range(Ground { table, runs: &runs }, table_frames, table.frames());
        let free_frames = AtomicU32::new(lists.free_frames);
        let free_hollow = AtomicU32::new(0);
        Buddy { lists: Mutex::new(lists), runs, free_frames, free_hollow, table_frames }
    }

    /// Frames at the start of the arena that are the table's.
    pub(super) fn table_frames(&self) -> u32 {
        self.table_frames
    }

    fn ground<'a>(&'a self, table: &'a Table) -> Ground<'a> {
        Ground { table, runs: &self.runs }
    }

    /// The kinds of the runs.
    pub(super) fn runs(&self) -> &RunKinds {
        &self.runs
    }

    /// Takes a block of `order` off the free lists, from a movable run if one has it. It is still
    /// frozen, with an odd version.
    pub(super) fn take(&self, table: &Table, order: Order) -> Option<FrameNumber> {
        let mut lists = self.lists.lock();
        let ground = self.ground(table);
        let head = lists
            .take(ground, order, Mobility::Movable)
            .or_else(|| lists.take(ground, order, Mobility::Unmovable))?;
        self.publish(&lists);
        Some(head)
    }

    /// Takes a block of `order`, or else the largest there is; from a movable run if one has any.
    pub(super) fn take_at_most(&self, table: &Table, order: Order) -> Option<(FrameNumber, Order)> {
        let mut lists = self.lists.lock();
        let largest = |kind| lists.of[kind as usize].largest_at_most(order).map(|got| (kind, got));
        let (kind, order) = largest(Mobility::Movable).or_else(|| largest(Mobility::Unmovable))?;
        let head = lists.take(self.ground(table), order, kind)?;
        self.publish(&lists);
        Some((head, order))
    }

    /// Takes a block of `order` from a run of `kind` and no other; from an unmovable run for what
    /// is pinned, so that index nodes keep what is left for them.
    pub(super) fn take_of(
        &self,
        table: &Table,
        order: Order,
        kind: Mobility,
    ) -> Option<FrameNumber> {
        let mut lists = self.lists.lock();
        let head = match kind {
            Mobility::Unmovable => lists.take_to_pin(self.ground(table), order)?,
            kind => lists.take(self.ground(table), order, kind)?,
        };
        self.publish(&lists);
        Some(head)
    }

    /// Takes the lowest free one of these frames, if they are those of an unmovable run.
    pub(super) fn take_lowest(&self, table: &Table, frames: Range<u32>) -> Option<FrameNumber> {
        let mut lists = self.lists.lock();
        let (head, order) = blocks_in(table, frames).next()?;
        if self.runs.kind(head) != Mobility::Unmovable {
            return None; // all of it was free meanwhile
        }
        lists.cut(self.ground(table), head, order, Order::MIN);
        self.publish(&lists);
        Some(head)
    }

    /// Makes the movable run with the largest free block unmovable, if that is at least of `order`;
    /// gives the run.
    pub(super) fn claim(&self, table: &Table, order: Order) -> Option<FrameNumber> {
        let mut lists = self.lists.lock();
        let movable = &lists.of[Mobility::Movable as usize];
        let largest = movable.nonempty.checked_ilog2()?;
        let block = movable.heads[largest as usize].expect("its bit says there is one");
        if largest < u32::from(order.get()) {
            return None;
        }
        let run = block.align_down(Order::MAX);
        lists.claim(self.ground(table), run);
        self.assert_sane(&lists, table);
        Some(run)
    }

    /// Makes the run that `frame` lies in unmovable.
    pub(super) fn claim_at(&self, table: &Table, frame: FrameNumber) {
        let mut lists = self.lists.lock();
        if self.runs.kind(frame) == Mobility::Movable {
            lists.claim(self.ground(table), frame.align_down(Order::MAX));
        }
    }

    /// Puts the block of `order` at `head` on the free lists, or among the held frames if it lies
    /// in the run that is held.
    pub(super) fn give(&self, table: &Table, head: FrameNumber, order: Order) {
        assert!(head.is_aligned(order), "{head:?} is freed with {order:?}, but is not aligned");
        let end = u64::from(head.0) + u64::from(order.frames());
        let inside = self.table_frames <= head.0 && end <= u64::from(table.frames());
        assert!(inside, "{head:?} with {order:?} is freed, but is not all of it the arena's");
        table.frame(head).assert_freeable(head);

        let mut lists = self.lists.lock();
        assert_not_free(table, head, order);
        if !lists.give_held(head, order) {
            lists.add(self.ground(table), head, order);
        }
        self.assert_sane(&lists, table);
        self.publish(&lists);
    }

    pub(super) fn free_frames(&self) -> u32 {
        // Relaxed: a number to decide by, which publishes nothing; see `publish`.
        self.free_frames.load(Ordering::Relaxed)
    }

    pub(super) fn stats(&self, table: &Table) -> FrameStats {
        let lists = self.lists.lock();
        let blocks = |kind: Mobility| lists.of[kind as usize].blocks;
        let (movable, unmovable) = (blocks(Mobility::Movable), blocks(Mobility::Unmovable));
        FrameStats {
            total_frames: table.frames(),
            table_frames: self.table_frames,
            free_frames: lists.free_frames,
            free_hollow: lists.free_hollow,
            held_frames: lists.held_frames(),
            free_blocks: std::array::from_fn(|order| movable[order] + unmovable[order]),
        }
    }

    /// Whether a block of `order` can be taken.
    pub(super) fn has_free(&self, order: Order) -> bool {
        let lists = self.lists.lock();
        let has = |kind: Mobility| lists.of[kind as usize].nonempty >> order.get() != 0;
        has(Mobility::Movable) || has(Mobility::Unmovable)
    }

    pub(super) fn free_in(&self, table: &Table, run: FrameNumber) -> RunMap {
        assert!(run.is_aligned(Order::MAX) && run.0 < table.frames(), "{run:?} starts no run");
        let _lists = self.lists.lock();
        let mut map = RunMap::default();
        for (head, order) in blocks_in(table, frames_of(table, run)) {
            map.insert(head.0 - run.0, order);
        }
        map
    }

    /// Starts to hold `run`: its free blocks leave the lists. False if a run is held already.
    pub(super) fn hold(&self, table: &Table, run: FrameNumber) -> bool {
        self.assert_run(table, run);
        let mut lists = self.lists.lock();
        if lists.held.is_some() {
            return false;
        }
        let mut map = RunMap::default();
        for (head, order) in blocks_in(table, frames_of(table, run)) {
            lists.unlink(self.ground(table), head, order);
            *lists.free(self.runs.kind(head)) -= order.frames();
            map.insert(head.0 - run.0, order);
        }
        lists.held = Some(EmptyingRun { run, map });
        self.assert_sane(&lists, table);
        self.publish(&lists);
        true
    }

    /// Which frames of the held run are held.
    pub(super) fn held(&self, run: FrameNumber) -> RunMap {
        self.lists.lock().held_map(run)
    }

    /// Ends the hold if all of `run` is held: it is the caller's, frozen, with odd versions.
    pub(super) fn claim_held(&self, run: FrameNumber) -> bool {
        let mut lists = self.lists.lock();
        let full = lists.held_map(run).is_full();
        if full {
            lists.held = None;
            lists.hollow_runs -= u32::from(self.runs.kind(run) == Mobility::Hollow);
            self.runs.set(run, Mobility::Movable);
        }
        full
    }

    /// Ends the hold: what is held is free again.
    pub(super) fn release_held(&self, table: &Table, run: FrameNumber) {
        let mut lists = self.lists.lock();
        let map = lists.held_map(run);
        lists.held = None;
        let mut at = map.next_member(0);
        // Ends: each round starts past a gap that lies past where the last one started.
        while at < RunMap::FRAMES {
            let gap = map.next_gap(at);
            lists.add_range(self.ground(table), run.0 + at, run.0 + gap);
            at = map.next_member(gap);
        }
        self.assert_sane(&lists, table);
        self.publish(&lists);
    }

    fn publish(&self, lists: &Lists) {
        // Relaxed: pairs with nothing; stores are in the mutex's order, so the copy never goes
        // back to an older number.
        self.free_frames.store(lists.free_frames, Ordering::Relaxed);
        self.free_hollow.store(lists.free_hollow, Ordering::Relaxed);
    }

    fn assert_run(&self, table: &Table, run: FrameNumber) {
        let end = u64::from(run.0) + u64::from(RunMap::FRAMES);
        let whole = run.is_aligned(Order::MAX)
            && self.table_frames <= run.0
            && end <= u64::from(table.frames());
        assert!(whole, "{run:?} does not start a 2 MiB run in which all frames can be data");
    }

    /// A block freed twice, or one that overlaps another, adds up to more frames than there are.
    fn assert_sane(&self, lists: &Lists, table: &Table) {
        let managed = table.frames() - self.table_frames;
        let known = lists.free_frames + lists.free_hollow + lists.held_frames();
        assert!(known <= managed, "{known} frames are free of {managed} that there are");
    }
}

impl KindLists {
    /// The order that `take` can serve: `order` if there is a block for it, else the largest.
    fn largest_at_most(&self, order: Order) -> Option<Order> {
        if self.nonempty >> order.get() != 0 {
            return Some(order);
        }
        self.nonempty.checked_ilog2().map(|largest| Order(largest as u8))
    }
}

impl Lists {
    fn take(&mut self, ground: Ground<'_>, order: Order, kind: Mobility) -> Option<FrameNumber> {
        let lists = &self.of[kind as usize];
        let enough = lists.nonempty >> order.get();
        if enough == 0 {
            return None;
        }
        let from = Order(order.get() + enough.trailing_zeros() as u8);
        let head = lists.heads[usize::from(from.get())].expect("its bit says there is one");
        self.cut(ground, head, from, order);
        Some(head)
    }

    /// Takes a block of `order` from an unmovable run, except those that are left for index nodes:
    /// which are few, so that it passes over few.
    fn take_to_pin(&mut self, ground: Ground<'_>, order: Order) -> Option<FrameNumber> {
        let lists = &self.of[Mobility::Unmovable as usize];
        let for_nodes = ground.runs.for_nodes();
        let (head, from) = Order::all().filter(|from| *from >= order).find_map(|from| {
            let mut block = lists.heads[usize::from(from.get())];
            // Ends: with the list, or at a block elsewhere.
            while let Some(head) = block.filter(|head| for_nodes.contains(&head.0)) {
                block = ground.table.frame(head).next();
            }
            Some((block?, from))
        })?;
        self.cut(ground, head, from, order);
        Some(head)
    }

    /// Takes the first `order` of the free block of `from` at `head`, and frees the rest of it.
    fn cut(&mut self, ground: Ground<'_>, head: FrameNumber, from: Order, order: Order) {
        self.unlink(ground, head, from);
        // Keep the lower half, give the upper one back, as often as the block is too large.
        for half in (order.get()..from.get()).rev().map(Order) {
            self.push(ground, head.after(half.frames()), half);
        }
        *self.free(ground.runs.kind(head)) -= order.frames();
    }

    /// The count that free frames of runs of that kind are in.
    fn free(&mut self, kind: Mobility) -> &mut u32 {
        if kind == Mobility::Hollow { &mut self.free_hollow } else { &mut self.free_frames }
    }

    /// Makes a movable run unmovable: what is free in it changes lists.
    fn claim(&mut self, ground: Ground<'_>, run: FrameNumber) {
        // Collected first: the second pass would meet what the first has just put back.
        let blocks: Vec<_> = blocks_in(ground.table, frames_of(ground.table, run)).collect();
        for &(head, order) in &blocks {
            self.unlink(ground, head, order);
        }
        ground.runs.set(run, Mobility::Unmovable);
        for (head, order) in blocks {
            self.push(ground, head, order);
        }
    }

    /// Adds a block that is on no list, merged with its buddies as far as they are free.
    fn add(&mut self, ground: Ground<'_>, head: FrameNumber, order: Order) {
        let kind = ground.runs.kind(head);
        *self.free(kind) += order.frames();
        let mut head = head;
        let mut order = order;
        // Ends: the order grows each time, up to MAX.
        while order < Order::MAX {
            let buddy = FrameNumber(head.0 ^ order.frames());
            // A buddy beyond the end of the arena has no entry, one in the table's frames is
            // never on a list: neither is free.
            let free = ground.table.try_frame(buddy).and_then(Frame::block) == Some(order);
            if !free {
                break;
            }
            self.unlink(ground, buddy, order);
            order = Order(order.get() + 1);
            head = head.align_down(order);
        }
        let stays = kind == Mobility::Hollow && self.hollow_runs == 1 && self.hollow_users > 0;
        if order == Order::MAX && !stays {
            *self.free(kind) -= order.frames();
            *self.free(Mobility::Movable) += order.frames();
            self.hollow_runs -= u32::from(kind == Mobility::Hollow);
            ground.runs.set(head, Mobility::Movable);
        }
        self.push(ground, head, order);
    }

    /// Adds the frames `first..end`, cut into the largest aligned blocks.
    fn add_range(&mut self, ground: Ground<'_>, first: u32, end: u32) {
        let mut at = first;
        // Ends: each round adds a block of at least one frame, up to `end`.
        while at < end {
            let order = Order::of_block_at(at.into(), end.into());
            self.add(ground, FrameNumber(at), order);
            at += order.frames();
        }
    }

    /// Puts a block on the list of its order and its run's kind.
    fn push(&mut self, ground: Ground<'_>, head: FrameNumber, order: Order) {
        let list = usize::from(order.get());
        let entry = ground.table.frame(head);
        debug_assert!(entry.block().is_none(), "{head:?} is on a free list already");
        let lists = &mut self.of[ground.runs.kind(head) as usize];
        let after = lists.heads[list];
        entry.set_prev(None);
        entry.set_next(after);
        entry.set_block(Some(order));
        if let Some(after) = after {
            ground.table.frame(after).set_prev(Some(head));
        }
        lists.heads[list] = Some(head);
        lists.blocks[list] += 1;
        lists.nonempty |= 1 << list;
    }

    fn unlink(&mut self, ground: Ground<'_>, head: FrameNumber, order: Order) {
        let list = usize::from(order.get());
        let table = ground.table;
        let entry = table.frame(head);
        assert!(entry.block() == Some(order), "{head:?} is not on the free list of {order:?}");
        let lists = &mut self.of[ground.runs.kind(head) as usize];
        let (prev, next) = (entry.prev(), entry.next());
        match prev {
            Some(prev) => table.frame(prev).set_next(next),
            None => lists.heads[list] = next,
        }
        if let Some(next) = next {
            table.frame(next).set_prev(prev);
        }
        // The thread that gets the folio finds it on no list.
        entry.set_prev(None);
        entry.set_next(None);
        entry.set_block(None);
        lists.blocks[list] -= 1;
        if lists.heads[list].is_none() {
            lists.nonempty &= !(1 << list);
        }
    }

    /// Adds the block to the held frames, if it lies in the run that is held.
    fn give_held(&mut self, head: FrameNumber, order: Order) -> bool {
        match &mut self.held {
            Some(held)
                if head.align_down(Order::MAX) == held.run && !mutant::on(Mutant::HoldLeaks) =>
            {
                held.map.insert(head.0 - held.run.0, order);
                true
            }
            _ => false,
        }
    }

    fn held_frames(&self) -> u32 {
        self.held.as_ref().map_or(0, |held| held.map.len())
    }

    fn held_map(&self, run: FrameNumber) -> RunMap {
        match &self.held {
            Some(held) if held.run == run => held.map,
            other => panic!("{run:?} is not the run that is held: {other:?}"),
        }
    }
}

/// Asserts that no frame of the block is free yet: its head always, the rest in debug builds. Call
/// with the mutex held.
fn assert_not_free(table: &Table, head: FrameNumber, order: Order) {
    assert!(table.frame(head).block().is_none(), "{head:?} is freed twice");
    if cfg!(debug_assertions) {
        for around in Order::all().filter(|&around| around > order) {
            let first = head.align_down(around);
            let block = table.frame(first).block();
            assert!(block < Some(around), "{head:?} is freed inside a free block");
        }
        for frame in (1..order.frames()).map(|offset| head.after(offset)) {
            table.frame(frame).debug_assert_dead(frame);
        }
    }
}

/// The frames of a run, of which the last may be cut short.
fn frames_of(table: &Table, run: FrameNumber) -> Range<u32> {
    run.0..(run.0 + RunMap::FRAMES).min(table.frames())
}

/// The free blocks that begin in these frames, lowest first. Each is found before it is looked
/// past, so the caller may take it off its list. Call with the mutex held.
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
