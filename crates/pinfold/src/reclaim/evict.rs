//! Eviction: frees the frames of folios that are not in use.
//!
//! For one batch:
//! 1. ask the policy which folios should go next;
//! 2. freeze them together (`freeze/batch.rs`): from here on there are no new references, no
//!    optimistic read succeeds, and no reader borrows them. Folios in use stay, and so do dirty
//!    ones: here their write-out will be started;
//! 3. tell the policy of each, which returns the shadow entry;
//! 4. store the shadow to the folio's index slots: no look-up finds it any more; forget the
//!    identity;
//! 5. take what is mirrored out of the mirror, and so out of all mappings. Before the mutexes are
//!    released: from then on the pages can be read anew;
//! 6. without the mutexes, free the frames. They stay frozen and odd until they are handed out;
//! 7. limit the index's shadows, and remove files that have no pages left;
//! 8. tell the policy which folios stayed.

use std::ops::Range;

use pinfold_policy::{Answer, Sweep, SweepCounts};

use super::compact;
use crate::core::Core;
use crate::counters::Event;
use crate::frame::{FrameNumber, PAGE_BYTES};
use crate::freeze::{self, Batch, Candidate, Frozen, InUse};
use crate::index::{NodePool, TrimWhere};
use crate::mapping::Mapping;
use crate::mutant::{self, Mutant};

/// The most folios that one sweep examines.
pub(crate) const EFFORT_MAX: u32 = crate::sizes::SWEEP_EFFORT_MAX;

/// If index nodes take more than this many thousandths of the frames, shadows are dropped.
const NODES_PER_MILLE: u64 = 9;

/// The most folios evicted under one hold of their files' mutexes, for which the fills of these
/// files wait. A membarrier for so many is a small part of what they cost.
const FOLIOS_AT_ONCE: usize = if Batch::MAX < 64 { Batch::MAX } else { 64 };

/// The most shadows dropped under one hold of a file's mutex.
const SHADOWS_AT_ONCE: u64 = 64;

/// Evicts in batches until `pages` are evicted or the effort is spent.
pub(crate) fn evict(core: &Core, pages: u32, effort_max: u32) -> SweepCounts {
    let collected = freeze::collect(core);
    let mut sweep = Sweep::new(effort_max);
    // Ends: the sweep's effort is bounded.
    while let left = u64::from(pages).saturating_sub(sweep.counts().evicted_pages)
        && left > 0
    {
        let victims = core.residency.next_victims(&core.frames, &mut sweep, left, FOLIOS_AT_ONCE);
        if victims.is_empty() {
            break;
        }
        evict_batch(core, &victims, &mut sweep);
    }
    compact::take_back_run(core);
    let counts = sweep.counts();
    if counts.evicted > 0 || collected > 0 {
        // A thread that evicts for itself may free more than it takes: other threads wait for it.
        core.pressure.progress();
    }
    counts
}

/// Steps 2 to 8.
fn evict_batch(core: &Core, victims: &[FrameNumber], sweep: &mut Sweep) {
    let folios = victims.iter().map(|&head| Candidate::of(core, head)).collect();
    let batch = Batch::new(core, folios);
    let mut evicted = Vec::with_capacity(batch.len());
    let mut stayed = Vec::new();
    let mut frozen = batch.freeze(core);
    for n in 0..batch.len() {
        match frozen.get(n) {
            Ok(frozen) => {
                take_out(core, frozen, sweep);
                evicted.push(batch.folio(n));
            }
            Err(why) => stayed.push((batch.folio(n).head, why)),
        }
    }
    punch(core, &batch, &evicted);
    drop(frozen);
    let bytes = evicted.iter().map(|folio| folio.identity.order.bytes() as u64).sum();
    core.counters.add(Event::Eviction, evicted.len() as u64);
    core.counters.add(Event::EvictedBytes, bytes);
    for folio in &evicted {
        core.frames.free(folio.head, folio.identity.order);
    }
    for mapping in batch.mappings() {
        let of_it = |folio: &&Candidate| folio.identity.mapping == mapping.id;
        match evicted.iter().filter(of_it).count() {
            0 => {}
            folios => {
                bound_shadows(core, mapping, folios);
                core.retire(mapping);
            }
        }
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
fn take_out(core: &Core, frozen: Frozen<'_, '_>, sweep: &mut Sweep) {
    let Frozen { folio, changing, .. } = frozen;
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
}

/// Step 5: one hole for pages that are adjacent.
fn punch(core: &Core, batch: &Batch, evicted: &[Candidate]) {
    if mutant::on(Mutant::EvictKeepsPages) {
        return;
    }
    for mapping in batch.mappings() {
        let mirrored = evicted.iter().filter(|folio| {
            folio.identity.mapping == mapping.id && core.frames.frame(folio.head).is_mirrored()
        });
        let mut pages: Vec<Range<u64>> = mirrored
            .map(|folio| folio.identity)
            .map(|it| it.index..it.index + u64::from(it.order.frames()))
            .collect();
        pages.sort_unstable_by_key(|pages| pages.start);
        for hole in pages.chunk_by(|one, next| one.end == next.start) {
            mapping.mirror_of_folios().punch(hole[0].start..hole[hole.len() - 1].end);
        }
    }
}

/// After so many folios of a file were evicted: limits shadows to the cache's number of pages;
/// where the index takes too much of the budget, drops nodes that hold nothing but shadows.
fn bound_shadows(core: &Core, mapping: &Mapping, folios: usize) {
    let frames = u64::from(core.frames.frames());
    // Each turn may drop as many as there are new ones, and lets other threads have the mutex.
    for _ in 0..folios.div_ceil(SHADOWS_AT_ONCE as usize) {
        let nodes = core.nodes.stats();
        let too_many_nodes = nodes.nodes_in_use * <NodePool>::node_bytes() as u64
            > frames * PAGE_BYTES as u64 * NODES_PER_MILLE / 1000;
        let mut changing = mapping.change();
        let mut writer = changing.writer(&core.nodes);
        if writer.shadow_slots() > frames {
            writer.drop_shadows(SHADOWS_AT_ONCE, TrimWhere::Anywhere);
        } else if too_many_nodes && writer.shadow_slots() > 0 {
            writer.drop_shadows(SHADOWS_AT_ONCE, TrimWhere::ShadowOnlyNodes);
        } else {
            break;
        }
    }
}
