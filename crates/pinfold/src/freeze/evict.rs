//! Eviction: a folio that nobody uses makes room.
//!
//! 1. find its mapping by what its entry says, and take the `change` mutex;
//! 2. check, under it, that the index has this folio there: the policy's offer may be old;
//! 3. freeze, version odd: no reference can be had from here on, no short read succeeds;
//! 4. tell the policy, which gives the shadow entry;
//! 5. store the shadow over the folio's slots: nobody finds it any more;
//! 6. forget the identity, free the frames. They stay frozen and odd until they are handed out.

use pinfold_policy::Sweep;

use super::{Outcome, freeze};
use crate::core::Core;
use crate::frame::FrameNumber;
use crate::reclaim;

/// Evicts the folio `head`, which the policy offered to `sweep`. Unless it is done, the caller
/// answers the policy.
pub(crate) fn evict(core: &Core, head: FrameNumber, sweep: &mut Sweep) -> Outcome {
    let frame = core.frames.frame(head);
    let identity = frame.identity();
    let Some(mapping) = core.mappings.get(identity.mapping) else { return Outcome::Busy };
    let mut changing = mapping.change();
    if changing.head(identity.index) != Some(head) || frame.identity() != identity {
        return Outcome::Busy;
    }
    if let Err(why) = freeze(frame) {
        return why;
    }
    let shadow = reclaim::answer_evicted(core, sweep, head);
    let mut writer = changing.writer(&core.nodes);
    let removed = match shadow {
        Some(payload) => writer.store_shadow(identity.index, payload),
        None => writer.remove(identity.index),
    };
    assert_eq!(removed.map(|folio| folio.frame), Some(head), "evicted another folio");
    drop(writer);
    changing.folio_removed();
    frame.forget_identity();
    drop(changing);
    core.frames.free(head, identity.order);
    Outcome::Done { mapping, bytes: identity.order.bytes() as u64 }
}
