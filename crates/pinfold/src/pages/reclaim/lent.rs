//! Frames for folios whose bytes are in mirrors: runs of 2 MiB are lent for them, and taken back.
//!
//! A lent run has no memory of its own (`frames::mobility`), so its frames and those of the arena do
//! not stand in for each other. The policy evicts in one order, whatever kind of frame that frees.
//! This file lends a free run of the arena, when frames for mirrors are wanted and the arena has
//! more free than it wants.
//!
//! Eviction takes back a lent run, when the arena wants frames and the lent runs have as many free
//! as one has: what is in it moves to the others, which copies no byte (`compact.rs`). One run
//! stays lent while there are maps: where guards lie in all others, none could be lent anew, and
//! accesses would fail although nearly all is free.

use std::time::Duration;

use crate::base::sync::Ordering;
use crate::frames::{FrameNumber, Order};
use crate::mapped::task::{Rests, Waiter};
use crate::pages::core::Core;

use super::compact;
use super::evict::{EFFORT_MAX, evict, evict_at_once};
use super::{NAP_MAX, NAP_MIN, Patience, Shortage, shortage};

/// How often room for the first run is made: other threads take what is free.
const FIRST_TRIES: u32 = 4;

/// Pages that a thread without lent memory evicts at a time: an access waits for it.
const PAGES_AT_ONCE: u32 = 16;

/// How long a task rests that has found no lent memory.
pub(crate) const TASK_NAP: Duration = Duration::from_micros(500);

/// A folio for a mirror, of order `wish` or smaller, counted as
/// [`alloc_lent`](crate::frames::Frames::alloc_lent) does. With `needed`, evicts until there is one,
/// or says why there is none; without, returns `None` if there is none at once.
pub(crate) fn allocate_lent(
    core: &Core,
    wish: Order,
    needed: bool,
) -> Result<Option<(FrameNumber, Order)>, Shortage> {
    if let Some(got) = at_once(core, wish) {
        if core.frames.free_lent() < core.pressure.low_frames {
            core.pressure.bell.ring();
        }
        return Ok(Some(count(core, got)));
    }
    if !needed {
        return Ok(None);
    }
    let (mut patience, mut nap) = (Patience::new(core), NAP_MIN);
    // Ends: when memory comes, or patience is at an end.
    loop {
        let seen = core.pressure.progress_seen();
        let evicted = evict(core, wish.frames().max(PAGES_AT_ONCE), EFFORT_MAX);
        if let Some(got) = at_once(core, wish) {
            return Ok(Some(count(core, got)));
        }
        if patience.is_over_for_lent(core) {
            return Err(shortage(core, wish.bytes() as u64));
        }
        if evicted.evicted == 0 {
            core.pressure.wait_for_progress(seen, nap);
            nap = (nap * 2).min(NAP_MAX);
        }
    }
}

/// A turn of eviction and a short sleep, for a thread or a task that has no folio, and then tries
/// again.
///
/// # Errors
/// Its patience is at an end.
pub(crate) async fn wait_for_lent(
    core: &Core,
    wish: Order,
    patience: &mut Patience,
    waiter: Waiter<'_>,
) -> Result<(), Shortage> {
    if patience.is_over_for_lent(core) {
        return Err(shortage(core, wish.bytes() as u64));
    }
    let seen = core.pressure.progress_seen();
    match waiter {
        Waiter::Thread => {
            if evict(core, wish.frames().max(PAGES_AT_ONCE), EFFORT_MAX).evicted == 0 {
                core.pressure.wait_for_progress(seen, NAP_MAX);
            }
        }
        // What could be evicted was, and the reclaiming thread is at work.
        Waiter::Task(rests) => rests.rest(TASK_NAP).await,
    }
    Ok(())
}

/// [`allocate_lent`] after one turn of eviction, for who may not sleep.
pub(crate) fn evict_for_lent(core: &Core, wish: Order) -> Option<(FrameNumber, Order)> {
    core.pressure.bell.ring();
    evict_at_once(core, core.pressure.direct_pages.max(wish.frames()), EFFORT_MAX);
    at_once(core, wish)
}

/// [`evict_for_lent`] for a task, of which there may be many: one in a while evicts for all of its thread.
pub(crate) fn evict_for_task(
    core: &Core,
    wish: Order,
    rests: &Rests,
) -> Option<(FrameNumber, Order)> {
    if rests.once_in(TASK_NAP) { evict_for_lent(core, wish) } else { at_once(core, wish) }
}

/// What is free, or can be lent.
fn at_once(core: &Core, wish: Order) -> Option<(FrameNumber, Order)> {
    let got = core.frames.alloc_lent(wish);
    if got.is_some_and(|(_, order)| order == wish) || !lend(core) {
        return got;
    }
    if let Some((smaller, _)) = got {
        core.give_back(smaller);
    }
    core.frames.alloc_lent(wish)
}

/// Lends a run if none is lent, for which it evicts what is in it. Best effort: users of folios may
/// lie in all runs.
pub(crate) fn lend_first(core: &Core) {
    for _ in 0..FIRST_TRIES {
        if core.frames.lent_frames() > 0 || lend(core) {
            break;
        }
        evict(core, Order::MAX.frames() + core.pressure.high_frames, EFFORT_MAX);
    }
}

/// Notes that a folio was lent.
fn count(core: &Core, got: (FrameNumber, Order)) -> (FrameNumber, Order) {
    core.pressure.lent.fetch_add(1, Ordering::Relaxed); // a count
    got
}

/// Lends a run, if the arena has more than enough free.
fn lend(core: &Core) -> bool {
    let enough = core.pressure.high_frames + Order::MAX.frames();
    core.frames.free_frames() >= enough
        && (core.frames.lend_run() || (compact::compact(core) && core.frames.lend_run()))
}

/// Frees lent frames up to the high watermark, if any are in use, or lends more. For the reclaiming
/// thread.
pub(super) fn keep_some_free(core: &Core) {
    let wanted = || core.pressure.high_frames.saturating_sub(core.frames.free_lent());
    // Ends: each turn evicts something, lends a run, or is the last.
    while core.frames.lent_frames() > core.frames.free_lent() && wanted() > 0 {
        if !lend(core) && evict(core, wanted(), EFFORT_MAX).evicted == 0 {
            break;
        }
    }
}
