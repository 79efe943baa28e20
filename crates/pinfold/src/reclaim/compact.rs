//! Defragmenting: emptying one 2 MiB run by moving what is in it.
//!
//! 1. pick the run with most free frames that are not all of it;
//! 2. take its free frames out of everybody's reach;
//! 3. move the folios that are in it elsewhere, a batch at a time; what is freed joins the held frames by itself;
//! 4. let go of the run: if all of it is free by then, it is whole again.

use crate::core::Core;
use crate::frame::{FrameNumber, Identity, MAPPING_NONE, Order, RunMap};
use crate::freeze::{self, BATCH_MAX, Candidate, Frozen};
use crate::index::FolioAt;

/// Makes one free run of 2 MiB, if there is none; false if that cannot be had.
pub(crate) fn compact(core: &Core) -> bool {
    if core.frames.stats().free_blocks[Order::MAX.get() as usize] > 0 {
        return true;
    }
    let candidate = core
        .frames
        .whole_runs()
        .map(|run| (core.frames.free_in(run).len(), run))
        .max_by_key(|&(free, _)| free);
    let Some((free, run)) = candidate else { return false };
    // What is moved needs a place outside the run.
    if core.frames.free_frames() < Order::MAX.frames() || free == 0 {
        return false;
    }
    let Some(held) = core.frames.take_free_in(run) else { return false };
    let map = held.held();
    let mut at = 0;
    // Ends: each turn goes on by at least a frame.
    while at < Order::MAX.frames() {
        at = empty_some(core, run, at, &map);
    }
    held.into_folio().is_ok_and(|folio| {
        core.put(folio);
        true
    })
}

/// Moves folios of `run` elsewhere that begin `at` frames into it or later, as many as are one batch
/// and can be; gives where to go on.
fn empty_some(core: &Core, run: FrameNumber, mut at: u32, map: &RunMap) -> u32 {
    let mut folios = Vec::with_capacity(BATCH_MAX);
    let mut places = Vec::with_capacity(BATCH_MAX);
    while at < Order::MAX.frames() && folios.len() < BATCH_MAX {
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
    let mut moved = Vec::with_capacity(folios.len());
    freeze::freeze_batch(core, &folios, |n, frozen| {
        if let Ok(Frozen { folio, changing, .. }) = frozen {
            let Identity { index: page, order, .. } = folio.identity;
            let folio = FolioAt { page, order: u32::from(order.get()), frame: folio.head };
            freeze::move_frozen(core, changing, folio, places[n]);
            moved.push(n);
        }
    });
    for (n, (folio, place)) in folios.iter().zip(places).enumerate() {
        if moved.contains(&n) {
            core.frames.free(folio.head, folio.identity.order);
        } else {
            core.put(place);
        }
    }
    at
}
