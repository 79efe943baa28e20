//! Compaction: frees one 2 MiB run, or a block of one, by moving its folios; or all of a run but
//! hollow folios, to make it a hollow one.
//!
//! 1. of a few runs, try the blocks with most free frames in which all folios seem to be movable.
//!    One that fills a run may be of an unmovable one. For a hollow run, `runs.rs` picks;
//! 2. hold the run's free frames, so that they are not allocated;
//! 3. move the run's folios, or the block's, elsewhere, a batch at a time; the frames that they
//!    free join the held ones. Hollow folios move to hollow runs, all others to the arena;
//! 4. release the run: what is free of it by then is in whole blocks again.

use std::ops::Range;

use crate::base::mutant::{self, Mutant};
use crate::base::sync::Ordering;
use crate::base::wait::Woken;
use crate::frames::{FrameNumber, HeldRun, Identity, MAPPING_NONE, Mobility, Order, RunMap};
use crate::index::FolioAt;
use crate::pages::core::Core;
use crate::pages::freeze::{self, Candidates, To};
use crate::pages::residency::Candidate;

#[cfg(all(feature = "map", not(loom)))]
use super::runs::{RunContent, RunRank, best_runs};

/// That are looked at for a block.
const RUNS_MAX: usize = 8;

const BLOCKS_MAX: usize = 2;

/// Frees a run, unless one is free: looks at all runs, a few at a time.
pub(crate) fn compact(core: &Core) -> bool {
    if core.frames.has_free(Order::MAX) {
        return true;
    }
    // Its folios need frames outside.
    let is_room = core.frames.free_frames() >= Order::MAX.frames();
    let looks = core.frames.frames().div_ceil(RUNS_MAX as u32 * Order::MAX.frames());
    is_room && (0..looks).any(|_| make_block(core, Order::MAX))
}

/// Makes one of the runs that it looks at hollow, with the hollow folios in it; false if that is
/// impossible. Takes small blocks of the heap.
#[cfg(all(feature = "map", not(loom)))]
pub(crate) fn hollow_out(core: &Core) -> bool {
    let becomes_hollow = |run| {
        let mut woken = Woken::default();
        let held = hold_and_empty(core, run, 0..Order::MAX.frames(), &mut woken);
        let Some(held) = held else { return false };
        if held.held().is_full() {
            drop(held);
            return core.frames.hollow_out_run();
        }
        held.hollow_out_rest()
    };
    // First those of which all is free then: a large folio may be wanted.
    let rank = |run, content: &RunContent| {
        let may_stay = content.held == 0 || !mutant::on(Mutant::UsedStaysUnhollow);
        let (all_free, free) = (content.held == 0, content.free);
        let rank = RunRank { all_free, is_movable: core.frames.is_movable(run), free };
        (free > 0 && may_stay).then_some(rank)
    };
    best_runs(core, &core.pressure.hollow_out_hand, false, rank).any(becomes_hollow)
}

/// Whether it is a free run of 2 MiB now.
#[cfg(all(test, feature = "map", not(any(loom, shuttle))))]
pub(crate) fn empty_run(core: &Core, run: FrameNumber) -> bool {
    let mut woken = Woken::default();
    let held = hold_and_empty(core, run, 0..Order::MAX.frames(), &mut woken);
    held.is_some_and(|held| held.held().is_full())
}

/// If the few runs that it looks at have a block that is free in part and can be emptied. Goes on
/// after those that the last call looked at.
pub(crate) fn make_block(core: &Core, order: Order) -> bool {
    // Dropped after the mutex is released.
    let mut woken = Woken::default();
    let _one_at_a_time = core.pressure.making_block.lock();
    if core.frames.has_free(order) {
        return true; // made by the one before
    }
    let mut candidates: Vec<(u32, FrameNumber, u32)> = Vec::with_capacity(RUNS_MAX);
    for _ in 0..RUNS_MAX {
        // Relaxed: a hint.
        let nth = core.pressure.block_hand.fetch_add(1, Ordering::Relaxed);
        let Some(run) = core.frames.whole_run(nth) else { return false };
        if candidates.iter().any(|other| other.1 == run) {
            break; // all were looked at
        }
        let may_be = order == Order::MAX || core.frames.is_movable(run);
        if may_be && !core.frames.is_hollow(run) {
            candidates.extend(best_block(core, run, order).map(|(free, at)| (free, run, at)));
        }
    }
    candidates.sort_unstable_by_key(|best| std::cmp::Reverse(best.0));
    let mut tried = candidates.into_iter().take(BLOCKS_MAX);
    tried.any(|(_, run, at)| {
        let block = at..at + order.frames();
        let held = hold_and_empty(core, run, block.clone(), &mut woken);
        held.map(|held| held.held()).is_some_and(|map| block.into_iter().all(|at| map.contains(at)))
    })
}

/// Of the blocks with the most free frames, the first without holders: how many, and where.
fn best_block(core: &Core, run: FrameNumber, order: Order) -> Option<(u32, u32)> {
    let free = core.frames.free_in(run);
    let free_of = |at| (at..at + order.frames()).filter(|&at| free.contains(at)).count() as u32;
    let blocks = (0..Order::MAX.frames()).step_by(order.frames() as usize);
    let mut blocks: Vec<_> = blocks.map(|at| (free_of(at), at)).filter(|best| best.0 > 0).collect();
    blocks.sort_unstable_by_key(|best| std::cmp::Reverse(best.0));
    let may_be_emptied = |at| movable(core, run.after(at), order, &free).is_some();
    blocks.into_iter().take(BLOCKS_MAX).find(|&(_, at)| may_be_emptied(at))
}

/// The folios of the block of `order` at `head`. `None`: not all seem to be movable.
pub(super) fn movable(
    core: &Core,
    head: FrameNumber,
    order: Order,
    free: &RunMap,
) -> Option<Vec<FrameNumber>> {
    let mut folios = Vec::new();
    let (mut at, end) = (head, head.after(order.frames()));
    // Ends: each turn advances by at least a frame.
    while at < end {
        if free.contains(at.0 % Order::MAX.frames()) {
            at = at.after(1);
        } else {
            folios.push(at);
            at = at.after(core.frames.frame(at).can_move()?.frames());
        }
    }
    Some(folios)
}

/// Holds what is free of `run`, and moves the folios of a block of it elsewhere, as far as that can
/// be done. `None` if the run has become hollow: it is nobody's to empty but who takes it back.
fn hold_and_empty<'a>(
    core: &'a Core,
    run: FrameNumber,
    block: Range<u32>,
    woken: &mut Woken,
) -> Option<HeldRun<'a>> {
    let held = core.frames.take_free_in(run)?;
    if core.frames.is_hollow(run) && !mutant::on(Mutant::CompactHollow) {
        return None;
    }
    let map = held.held();
    let mut at = block.start;
    // Ends: each turn advances by at least a frame.
    while at < block.end {
        at = empty_some(core, run, at..block.end, &map, woken);
    }
    Some(held)
}

/// Moves folios of `run` that begin in its `frames`: at most one batch. Returns where to continue;
/// `woken` gets the futures that waited for a folio.
pub(crate) fn empty_some(
    core: &Core,
    run: FrameNumber,
    frames: Range<u32>,
    map: &RunMap,
    woken: &mut Woken,
) -> u32 {
    let mut at = frames.start;
    let mut folios = Vec::with_capacity(Candidates::MAX);
    let mut places = Vec::with_capacity(Candidates::MAX);
    while at < frames.end && folios.len() < Candidates::MAX {
        let head = FrameNumber(run.0 + at);
        let (folio, frame) = (Candidate::of(&core.frames, head), core.frames.frame(head));
        let there = folio.identity.mapping != MAPPING_NONE && !frame.is_changing();
        if map.contains(at) || !there {
            at += 1;
            continue;
        }
        at += folio.identity.order.frames();
        if let Some(place) = core.frames.alloc_to_move(frame, folio.identity.order) {
            folios.push(folio);
            places.push(place);
        }
    }
    let batch = Candidates::new(core, folios);
    let mut moved = Vec::with_capacity(places.len());
    let mut frozen = batch.freeze_all(core, To::Move);
    for (n, &place) in places.iter().enumerate() {
        let Ok(changing) = frozen.get(n) else {
            moved.push(false);
            continue;
        };
        let Candidate { head: frame, identity: Identity { index: page, order, .. } } =
            batch.folios[n];
        let folio = FolioAt { page, order: u32::from(order.get()), frame };
        woken.add(freeze::move_frozen(core, changing, folio, place));
        moved.push(true);
    }
    drop(frozen);
    for ((place, is_moved), old) in places.into_iter().zip(moved).zip(&batch.folios) {
        if is_moved {
            core.frames.free(old.head, old.identity.order);
        } else {
            // Wakes nobody: the caller may hold a mutex.
            core.give_back(place);
        }
    }
    at
}

/// To a movable run, or a hollow folio to a hollow run, if it has no holders.
pub(crate) fn move_out(core: &Core, head: FrameNumber) -> bool {
    let frame = core.frames.frame(head);
    let Identity { mapping, index: page, order } = frame.identity();
    let new = if frame.is_hollow() {
        core.frames.alloc_to_move(frame, order)
    } else {
        core.frames.alloc_of(order, Mobility::Movable)
    };
    let Some(new) = new else { return false };
    let moved = core.mappings.get(mapping).and_then(|mapping| {
        let mut changing = mapping.change();
        let folio = changing.writer(&core.nodes).folio(page)?;
        // Now it cannot change: it may have been split, or have become hollow.
        let same = folio.frame == head && folio.page == page;
        let same = same && folio.order == u32::from(order.get());
        let moves = same && frame.is_hollow() == core.frames.frame(new).is_hollow();
        moves.then(|| freeze::migrate(core, &mut changing, folio, new).ok())?
    });
    let is_moved = moved.map(drop).is_some(); // wakes, without the mutex
    if is_moved {
        core.frames.free(head, order);
    } else {
        core.give_back(new); // it was free before: that is no progress
    }
    is_moved
}
