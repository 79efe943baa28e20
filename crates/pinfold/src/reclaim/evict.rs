//! Eviction: folios that nobody uses make room.
//!
//! For one batch:
//! 1. ask the policy what should go next;
//! 2. freeze these folios together (`freeze/batch.rs`): no reference can be had from here on, no
//!    read without one succeeds, and nobody borrows them. What is in use stays, and so does what is
//!    dirty: that is where its writing out will be started;
//! 3. of each, tell the policy, which gives the shadow entry;
//! 4. store the shadow over the folio's slots: nobody finds it any more; forget the identity;
//! 5. without the mutexes, free the frames. They stay frozen and odd until they are handed out;
//! 6. keep the index's shadows few, and give up files of which nothing is left;
//! 7. tell the policy of what stayed.

use std::sync::Arc;

use pinfold_policy::{Answer, Sweep, SweepCounts};

use crate::core::Core;
use crate::counters::Event;
use crate::frame::{FrameNumber, PAGE_BYTES};
use crate::freeze::{self, Batch, Candidate, Frozen, InUse};
use crate::index::{NodePool, TrimWhere};
use crate::mapping::Mapping;

/// Folios that one sweep looks at, at most.
pub(crate) const EFFORT_MAX: u32 = crate::sizes::SWEEP_EFFORT_MAX;

/// Of the frames, so many in a thousand may hold index nodes before shadows are given up.
const NODES_PER_MILLE: u64 = 9;

/// Evicts until `pages` are gone or the effort is spent, in batches.
pub(crate) fn evict(core: &Core, pages: u32, effort_max: u32) -> SweepCounts {
    let collected = freeze::collect(core);
    let mut sweep = Sweep::new(effort_max);
    // Ends: the sweep's effort is bounded.
    while let left = u64::from(pages).saturating_sub(sweep.counts().evicted_pages)
        && left > 0
    {
        let victims = core.residency.next_victims(&core.frames, &mut sweep, left, Batch::MAX);
        if victims.is_empty() {
            break;
        }
        evict_batch(core, &victims, &mut sweep);
    }
    let counts = sweep.counts();
    if counts.evicted > 0 || collected > 0 {
        // A reader that evicts for itself may free more than it takes: others wait for it.
        core.pressure.progress();
    }
    counts
}

/// Steps 2 to 7.
fn evict_batch(core: &Core, victims: &[FrameNumber], sweep: &mut Sweep) {
    let folios = victims.iter().map(|&head| Candidate::of(core, head)).collect();
    let batch = Batch::new(core, folios);
    let mut evicted = Vec::with_capacity(batch.len());
    let mut stayed = Vec::new();
    let mut frozen = batch.freeze(core);
    for n in 0..batch.len() {
        match frozen.get(n) {
            Ok(frozen) => evicted.push(take_out(core, frozen, sweep)),
            Err(why) => stayed.push((batch.folio(n).head, why)),
        }
    }
    drop(frozen);
    for (folio, mapping) in evicted {
        let order = folio.identity.order;
        core.frames.free(folio.head, order);
        core.counters.count(Event::Eviction);
        core.counters.add(Event::EvictedBytes, order.bytes() as u64);
        bound_shadows(core, &mapping);
        core.retire(&mapping);
    }
    for (head, why) in stayed {
        let answer = match why {
            InUse::Busy | InUse::Borrowed | InUse::Dirty => Answer::Busy,
            InUse::Pinned => Answer::Pinned,
        };
        core.residency.answer(&core.frames, sweep, head, answer);
    }
}

/// Steps 3 and 4.
fn take_out(core: &Core, frozen: Frozen<'_, '_>, sweep: &mut Sweep) -> (Candidate, Arc<Mapping>) {
    let Frozen { folio, mapping, changing } = frozen;
    let page = folio.identity.index;
    let shadow = core.residency.answer(&core.frames, sweep, folio.head, Answer::Evicted);
    let mut writer = changing.writer(&core.nodes);
    let removed = match shadow {
        Some(payload) => writer.store_shadow(page, payload),
        None => writer.remove(page),
    };
    assert_eq!(removed.map(|gone| gone.frame), Some(folio.head), "evicted another folio");
    drop(writer);
    changing.folio_removed();
    core.frames.frame(folio.head).forget_identity();
    (folio, mapping.clone())
}

/// Shadows are no more than the cache has pages, and where the index takes too much of the budget,
/// nodes with nothing else but shadows go.
fn bound_shadows(core: &Core, mapping: &Mapping) {
    let frames = u64::from(core.frames.frames());
    let nodes = core.nodes.stats();
    let too_many_nodes = nodes.nodes_in_use * <NodePool>::node_bytes() as u64
        > frames * PAGE_BYTES as u64 * NODES_PER_MILLE / 1000;
    let mut changing = mapping.change();
    let mut writer = changing.writer(&core.nodes);
    if writer.shadow_slots() > frames {
        writer.drop_shadows(64, TrimWhere::Anywhere);
    } else if too_many_nodes && writer.shadow_slots() > 0 {
        writer.drop_shadows(64, TrimWhere::ShadowOnlyNodes);
    }
}
