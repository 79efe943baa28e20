//! Compaction: frees one 2 MiB run by moving its folios.
//!
//! 1. pick the movable runs with most free frames that are not entirely free, and try them in turn;
//! 2. hold the run's free frames, so that they are not allocated;
//! 3. move the run's folios elsewhere, a batch at a time; the frames that they free join the held
//!    ones;
//! 4. release the run: if all of it is free by then, it is whole again.
//!
//! A movable run has no long-lived contents except folios that fill it (`frame::mobility`). A run
//! that cannot be emptied is being read at this moment, and the next one is tried.

use crate::core::Core;
use crate::frame::{FrameNumber, Identity, MAPPING_NONE, Mobility, Order, RunMap};
use crate::freeze::{self, Batch, Candidate, Frozen};
use crate::index::FolioAt;
use crate::wait::Woken;

/// The most runs that are tried.
const RUNS_MAX: usize = 8;

/// Makes one free run of 2 MiB, if there is none; false if that is impossible.
pub(crate) fn compact(core: &Core) -> bool {
    if core.frames.stats().free_blocks[Order::MAX.get() as usize] > 0 {
        return true;
    }
    let mut candidates: Vec<(u32, FrameNumber)> = core
        .frames
        .whole_runs()
        .filter(|&run| core.frames.is_movable(run))
        .map(|run| (core.frames.free_in(run).len(), run))
        .filter(|&(free, _)| free > 0)
        .collect();
    candidates.sort_unstable();
    candidates.into_iter().rev().take(RUNS_MAX).any(|(_, run)| empty_run(core, run))
}

/// Empties `run`; returns whether it is a free run of 2 MiB now.
fn empty_run(core: &Core, run: FrameNumber) -> bool {
    // Its folios need frames outside the run.
    if core.frames.free_frames() < Order::MAX.frames() {
        return false;
    }
    let Some(held) = core.frames.take_free_in(run) else { return false };
    let map = held.held();
    let mut at = 0;
    // Ends: each turn advances by at least a frame.
    while at < Order::MAX.frames() {
        at = empty_some(core, run, at, &map);
    }
    held.into_folio().is_ok_and(|folio| {
        core.put(folio);
        true
    })
}

/// Moves folios of `run`, from frame `at` of it on, elsewhere: at most one batch, and as many as
/// can be moved. Returns where to continue.
fn empty_some(core: &Core, run: FrameNumber, mut at: u32, map: &RunMap) -> u32 {
    let mut folios = Vec::with_capacity(Batch::MAX);
    let mut places = Vec::with_capacity(Batch::MAX);
    while at < Order::MAX.frames() && folios.len() < Batch::MAX {
        let head = FrameNumber(run.0 + at);
        let folio = Candidate::of(core, head);
        let there =
            folio.identity.mapping != MAPPING_NONE && !core.frames.frame(head).is_changing();
        if map.contains(at) || !there {
            at += 1;
            continue;
        }
        at += folio.identity.order.frames();
        if let Some(place) = core.frames.alloc(folio.identity.order) {
            folios.push(folio);
            places.push(place);
        }
    }
    let batch = Batch::new(core, folios);
    let mut moved = Vec::with_capacity(batch.len());
    let mut woken = Woken::default();
    let mut frozen = batch.freeze(core);
    for (n, &place) in places.iter().enumerate() {
        let Ok(Frozen { folio, changing, .. }) = frozen.get(n) else {
            moved.push(false);
            continue;
        };
        let Identity { index: page, order, .. } = folio.identity;
        let folio = FolioAt { page, order: u32::from(order.get()), frame: folio.head };
        woken.add(freeze::move_frozen(core, changing, folio, place));
        moved.push(true);
    }
    drop(frozen);
    drop(woken); // without the mutexes
    for (n, place) in places.into_iter().enumerate() {
        if moved[n] {
            let folio = batch.folio(n);
            core.frames.free(folio.head, folio.identity.order);
        } else {
            core.put(place);
        }
    }
    at
}

/// Moves the folio at `head` to a movable run, if it has no holders.
pub(super) fn move_out(core: &Core, head: FrameNumber) -> bool {
    let order = core.frames.frame(head).order();
    core.frames.alloc_of(order, Mobility::Movable).is_some_and(|new| move_to(core, head, new))
}

/// Moves the folio at `head` to `new`, which is the caller's, if it has that size and no holders.
/// If not, returns false and frees `new`.
fn move_to(core: &Core, head: FrameNumber, new: FrameNumber) -> bool {
    let order = core.frames.frame(new).order();
    let identity = core.frames.frame(head).identity();
    let Some(mapping) = core.mappings.get(identity.mapping) else {
        core.put(new);
        return false;
    };
    let mut changing = mapping.change();
    let there = changing.writer(&core.nodes).folio(identity.index);
    // Checked again, now that it cannot change: it may have been split, so that the frames after
    // the first belong to other folios.
    let same = |folio: &FolioAt| {
        let page = identity.index;
        folio.frame == head && folio.page == page && folio.order == u32::from(order.get())
    };
    let moved =
        there.filter(same).and_then(|folio| freeze::migrate(core, &mut changing, folio, new).ok());
    drop(changing);
    let is_moved = moved.is_some();
    drop(moved); // wakes
    if is_moved {
        core.frames.free(head, order);
    } else {
        core.put(new);
    }
    is_moved
}
