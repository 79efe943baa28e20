//! Memory for what cannot move: index nodes, and small folios that are about to be pinned.
//!
//! It is packed into unmovable runs (`frame::mobility`), and looked for in this order:
//! 1. a free block in an unmovable run;
//! 2. a block of an unmovable run with movable folios only, which are moved to movable runs;
//! 3. a movable run with such a free block, which becomes unmovable: its other folios are moved out
//!    later, as in 2;
//! 4. the same again after evicting some pages.
//!
//! Its users are `pin`, `refill_nodes`, and counted guards, for a page of a folio that they split.
//! No lock may be held.

use crate::core::Core;
use crate::frame::{FrameNumber, Mobility, Order, RunMap};
use crate::sync::Ordering;

use super::compact;
use super::evict::{EFFORT_MAX, evict};

/// The most frames that one search for a block to empty examines: four runs.
const LOOKED_AT_MAX: u32 = 4 * Order::MAX.frames();

/// A folio of `order` in an unmovable run, counted as [`alloc`](crate::frame::Frames::alloc) does.
/// `None` if there is no such memory; then the caller may claim the run that its folio is in.
pub(crate) fn alloc_unmovable(core: &Core, order: Order) -> Option<FrameNumber> {
    let got = alloc_unmovable_now(core, order);
    if got.is_some() {
        return got;
    }
    evict(core, order.frames().max(core.pressure.direct_pages), EFFORT_MAX);
    alloc_unmovable_now(core, order)
}

/// Steps 1 to 3: the same without evicting.
pub(crate) fn alloc_unmovable_now(core: &Core, order: Order) -> Option<FrameNumber> {
    let alloc = || core.frames.alloc_of(order, Mobility::Unmovable);
    alloc().or_else(|| make_room(core, order).then(alloc)?).or_else(|| {
        let run = core.frames.claim_run(order)?;
        // From now on this run's folios are moved out first. Relaxed: where to look is a hint.
        core.pressure.unmovable_hand.store(run.0, Ordering::Relaxed);
        alloc()
    })
}

/// Step 2: empties one block of `order` or larger, continuing where the last search ended.
fn make_room(core: &Core, order: Order) -> bool {
    // Relaxed, here and below: a hint.
    let hand = core.pressure.unmovable_hand.load(Ordering::Relaxed);
    let first = FrameNumber(hand).align_down(Order::MAX);
    let after = core.frames.unmovable_runs().filter(|run| *run >= first);
    let before = core.frames.unmovable_runs().filter(|run| *run < first);
    let mut left = LOOKED_AT_MAX;
    for run in after.chain(before) {
        let mut at = if run == first { hand - first.0 } else { 0 };
        let free = core.frames.free_in(run);
        // Ends: each turn advances by at least a block of `order`.
        while at < Order::MAX.frames() {
            let head = run.after(at).align_down(order);
            let (emptied, frames) = empty_block(core, head, order, &free);
            at = head.0 - run.0 + frames;
            left = left.saturating_sub(frames);
            if emptied || left == 0 {
                core.pressure.unmovable_hand.store(run.0 + at, Ordering::Relaxed);
                return emptied;
            }
        }
    }
    false
}

/// Moves the contents of the block of `order` at `head` elsewhere, if all of it can move. Returns
/// whether anything was moved, and how many frames to advance by.
fn empty_block(core: &Core, head: FrameNumber, order: Order, free: &RunMap) -> (bool, u32) {
    let end = head.0 + order.frames();
    let mut folios = Vec::new();
    let mut at = head;
    // Ends: each turn advances by at least a frame.
    while at.0 < end {
        if free.contains(at.0 % Order::MAX.frames()) {
            at = at.after(1);
        } else if let Some(order) = compact::can_move(core, at) {
            folios.push(at);
            at = at.after(order.frames());
        } else {
            return (false, order.frames());
        }
    }
    let emptied =
        !folios.is_empty() && folios.into_iter().all(|folio| compact::move_out(core, folio));
    (emptied, at.0 - head.0)
}
