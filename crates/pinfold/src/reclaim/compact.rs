//! Defragmenting: emptying one 2 MiB run by moving what is in it.
//!
//! 1. pick the run with most free frames that are not all of it;
//! 2. take its free frames out of everybody's reach;
//! 3. move each folio that is in it elsewhere; what is freed joins the held frames by itself;
//! 4. let go of the run: if all of it is free by then, it is whole again.

use crate::core::Core;
use crate::frame::{FrameNumber, MAPPING_NONE, Order};
use crate::freeze;
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
        let head = FrameNumber(run.0 + at);
        at += if map.contains(at) { 1 } else { empty(core, head) };
    }
    held.into_folio().is_ok_and(|folio| {
        core.put(folio);
        true
    })
}

/// Moves the folio at `head` elsewhere, if it is one and can be; gives how many frames to go on by.
fn empty(core: &Core, head: FrameNumber) -> u32 {
    let frame = core.frames.frame(head);
    let identity = frame.identity();
    if identity.mapping == MAPPING_NONE || frame.is_changing() {
        return 1;
    }
    let Some(mapping) = core.mappings.get(identity.mapping) else { return 1 };
    let Some(new) = core.frames.alloc(identity.order) else { return identity.order.frames() };
    let mut changing = mapping.change();
    let there = changing.writer(&core.nodes).folio(identity.index);
    // Looked at again, now that it cannot change: it may have been split in its place, and the
    // frames behind the first be those of others.
    let same = |folio: &FolioAt| {
        let order = u32::from(identity.order.get());
        folio.frame == head && folio.page == identity.index && folio.order == order
    };
    let moved = there
        .filter(same)
        .is_some_and(|folio| freeze::migrate(core, &mut changing, folio, new).is_ok());
    drop(changing);
    if moved {
        core.frames.free(head, identity.order);
    } else {
        core.put(new);
    }
    identity.order.frames()
}
