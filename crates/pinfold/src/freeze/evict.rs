//! Eviction: folios that nobody uses make room.
//!
//! 1. freeze them, as a batch: no reference can be had from here on, no read without one succeeds,
//!    and nobody borrows them;
//! 2. of each, tell the policy, which gives the shadow entry;
//! 3. store the shadow over the folio's slots: nobody finds it any more;
//! 4. forget the identity;
//! 5. without the mutexes, free the frames. They stay frozen and odd until they are handed out.

use pinfold_policy::Sweep;

use super::Outcome;
use super::batch::{Candidate, Frozen, freeze_batch};
use crate::core::Core;
use crate::frame::FrameNumber;
use crate::reclaim;

/// Evicts the folios at `heads`, which the policy offered to `sweep`, and calls `done` for each,
/// without a mutex held. Of those that are not evicted the caller tells the policy.
pub(crate) fn evict(
    core: &Core,
    heads: &[FrameNumber],
    sweep: &mut Sweep,
    mut done: impl FnMut(FrameNumber, Outcome, &mut Sweep),
) {
    let candidates: Vec<_> = heads.iter().map(|&head| Candidate::of(core, head)).collect();
    let mut outcomes = Vec::with_capacity(heads.len());
    freeze_batch(core, &candidates, |n, frozen| {
        outcomes.push((n, frozen.map_or_else(|why| why, |frozen| take_out(core, frozen, sweep))));
    });
    for (n, outcome) in outcomes {
        let Candidate { head, identity } = candidates[n];
        if let Outcome::Done { .. } = outcome {
            core.frames.free(head, identity.order);
        }
        done(head, outcome, sweep);
    }
}

/// Steps 2 to 4.
fn take_out(core: &Core, frozen: Frozen<'_, '_>, sweep: &mut Sweep) -> Outcome {
    let Frozen { folio: Candidate { head, identity }, mapping, changing } = frozen;
    let shadow = reclaim::answer_evicted(core, sweep, head);
    let mut writer = changing.writer(&core.nodes);
    let removed = match shadow {
        Some(payload) => writer.store_shadow(identity.index, payload),
        None => writer.remove(identity.index),
    };
    assert_eq!(removed.map(|folio| folio.frame), Some(head), "evicted another folio");
    drop(writer);
    changing.folio_removed();
    core.frames.frame(head).forget_identity();
    Outcome::Done { mapping: mapping.clone(), bytes: identity.order.bytes() as u64 }
}
