//! Memory for what cannot move: index nodes, and small folios that are about to be pinned. It is
//! packed into unmovable runs (`frames::mobility`), and looked for in this order:
//! 1. a free block in an unmovable run;
//! 2. a block of an unmovable run with movable folios only, which are moved to movable runs;
//! 3. a movable run with such a block, which becomes unmovable: the rest is moved out later, as in
//!    2;
//! 4. the same again after evicting some pages.
//!
//! For index nodes, which stay for ever, this comes before ([`alloc_for_nodes`]): the lowest frame
//! of the unmovable runs that is free or can be made so, first of those that pins leave. No lock
//! may be held.

use std::ops::Range;

use crate::base::sync::Ordering;
use crate::frames::{FrameNumber, Mobility, Order};
use crate::pages::core::Core;
use crate::pages::residency::Candidate;

use super::compact;
use super::evict::{evict, evict_these};

/// By one search for a block to empty: four runs.
const LOOKED_AT_MAX: u32 = 4 * Order::MAX.frames();

/// Counted as [`alloc`](crate::frames::Frames::alloc) does. `None`: the caller may claim a run.
pub(crate) fn alloc_unmovable(core: &Core, order: Order) -> Option<FrameNumber> {
    let got = alloc_unmovable_now(core, order);
    if got.is_some() {
        return got;
    }
    evict(core, order.frames().max(core.pressure.direct_pages));
    alloc_unmovable_now(core, order)
}

/// Steps 1 to 3.
pub(crate) fn alloc_unmovable_now(core: &Core, order: Order) -> Option<FrameNumber> {
    let alloc = || core.frames.alloc_of(order, Mobility::Unmovable);
    alloc().or_else(|| make_room(core, order).then(alloc)?).or_else(|| {
        let run = core.frames.claim_run(order)?;
        // This run's folios are moved out first. Relaxed: a hint.
        core.pressure.unmovable_hand.store(run.0, Ordering::Relaxed);
        alloc()
    })
}

/// `None`: they have to be among pins.
pub(crate) fn alloc_for_nodes(core: &Core) -> Option<FrameNumber> {
    let mut left = LOOKED_AT_MAX;
    let all = std::iter::once(core.frames.for_nodes()).chain(core.frames.unmovable());
    for frames in all {
        let alloc = || core.frames.alloc_lowest(frames.clone());
        // Ends: each turn but the last looks at the frames after those of the one before.
        let mut at = frames.start;
        loop {
            if let Some(frame) = alloc() {
                return Some(frame);
            }
            let Some(next) = empty_lowest(core, at..frames.end) else { break };
            at = next;
        }
        left = left.saturating_sub(frames.end - frames.start);
        if left == 0 {
            break;
        }
    }
    None
}

/// Moves the first folio that begins in these frames and has no users elsewhere, or evicts it;
/// returns where the next begins, if there was one.
fn empty_lowest(core: &Core, frames: Range<u32>) -> Option<u32> {
    let mut folios = frames.map(FrameNumber);
    let (head, order) =
        folios.find_map(|head| Some((head, core.frames.frame(head).can_move()?)))?;
    // A hollow one is not evicted: it may have to be written first.
    if !compact::move_out(core, head) && !core.frames.frame(head).is_hollow() {
        evict_these(core, vec![Candidate::of(&core.frames, head)]);
    }
    Some(head.0 + order.frames())
}

/// Step 2, continuing where the last search ended.
fn make_room(core: &Core, order: Order) -> bool {
    // Relaxed, here and below: a hint.
    let hand = core.pressure.unmovable_hand.load(Ordering::Relaxed);
    let is_after = |frames: &Range<u32>| frames.end > hand;
    let after = core.frames.unmovable().filter(is_after);
    let before = core.frames.unmovable().filter(|frames| !is_after(frames));
    let mut left = LOOKED_AT_MAX;
    for frames in after.chain(before) {
        let run = FrameNumber(frames.start).align_down(Order::MAX);
        let free = core.frames.free_in(run);
        let first = if frames.contains(&hand) { hand } else { frames.start };
        let mut head = FrameNumber(first.next_multiple_of(order.frames()));
        // Ends: each turn advances by a block of `order`.
        while head.0 + order.frames() <= frames.end {
            let folios = compact::movable(core, head, order, &free).unwrap_or_default();
            // After a failure, some may have been moved.
            let emptied = !folios.is_empty()
                && folios.into_iter().all(|folio| compact::move_out(core, folio));
            head = head.after(order.frames());
            left = left.saturating_sub(order.frames());
            if emptied || left == 0 {
                core.pressure.unmovable_hand.store(head.0, Ordering::Relaxed);
                return emptied;
            }
        }
    }
    false
}
