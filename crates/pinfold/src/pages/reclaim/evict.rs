//! Eviction: frees the frames of folios that are not in use.
//!
//! For one batch:
//! 1. ask the policy which folios should go next; mapped ones go in pieces (`mapped.rs`), and of a
//!    large folio that was used in a few parts the others go (`parts.rs`);
//! 2. freeze them together (`freeze/batch.rs`): from here on there are no new references, no
//!    optimistic read succeeds, and no reader borrows them. Folios in use stay, and so do dirty
//!    ones, for step 8. For files, their write-out will be started here;
//! 3. tell the policy of each, which leaves ghosts of its pages;
//! 4. remove it from the index: no look-up finds it any more; forget the identity;
//! 5. keep the places of what is mirrored, so that nothing else gets there. Pages of the program's own
//!    memory are taken out of memory before step 3, as the system may refuse it; whoever stores to
//!    them waits for the mutex;
//! 6. without the mutexes, take mirrored pages out of all maps; then free the frames. They stay frozen
//!    and odd until they are handed out;
//! 7. remove files that have no pages left;
//! 8. what is dirty of own memory is handed over to who writes it, or is written to the swap here: then
//!    steps 2 to 9 once more for what was written, where what is dirty stays;
//! 9. tell the policy which folios stayed.

use std::ops::Range;
use std::sync::Arc;

use pinfold_policy::{Answer, Sweep, SweepCounts};

use super::mapped::PieceTurns;
use super::{compact, parts};
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::frames::{FrameNumber, Identity};
use crate::mapped::mirror::Leaving;
use crate::mapped::swap::Swap;
use crate::pages::core::Core;
use crate::pages::freeze::{self, Candidate, Candidates, Frozen, FrozenBatch, InUse, To};
use crate::pages::mapping::{Changing, Mapping};

/// The most folios that one sweep examines.
pub(crate) const EFFORT_MAX: u32 = crate::base::sizes::SWEEP_EFFORT_MAX;

/// The most folios evicted under one hold of their files' mutexes, for which the fills of these
/// files wait. A membarrier for so many is a small part of what they cost.
pub(super) const FOLIOS_AT_ONCE: usize = if Candidates::MAX < 64 { Candidates::MAX } else { 64 };

/// Two places are taken out as one if there are at most so many pages between them, and in these so
/// many folios of the arena.
const GAP_PAGES_MAX: u64 = 256;
const GAP_FOLIOS_MAX: u32 = 8;

/// The most threads that evict at once. A batch takes the mutexes of all files of its folios, so
/// that more threads would mostly wait for each other, and threads with pages of these files to
/// bring would wait for all of them.
pub(super) const EVICTORS_MAX: u32 = 8;

/// Evicts in batches until `pages` are evicted, or are on their way to a swap that takes them, or the
/// effort is spent. Evicts nothing while as many threads do as may: their progress is to be waited for. Waits
/// for no write: dirty folios of the program's own memory are handed over to who writes them.
pub(crate) fn evict(core: &Core, pages: u32, effort_max: u32) -> SweepCounts {
    let turn = core.pressure.evictors.enter(EVICTORS_MAX);
    if turn.is_none() {
        freeze::collect(core);
        return Sweep::new(effort_max).counts();
    }
    evict_at_once(core, pages, effort_max)
}

/// [`evict`] for who may not wait, however many threads evict.
pub(crate) fn evict_at_once(core: &Core, pages: u32, effort_max: u32) -> SweepCounts {
    let collected = freeze::collect(core);
    let mut sweep = Sweep::new(effort_max);
    let hands_over = core.swap.is_some() && !mutant::on(Mutant::EvictorsWrite);
    let if_dirty = if hands_over { IfDirty::HandOver } else { IfDirty::Write };
    let mut turns = PieceTurns::default();
    let mut handed_over = 0;
    // Ends: the sweep's effort is bounded.
    while let on_their_way = sweep.counts().evicted_pages + handed_over
        && let left = u64::from(pages).saturating_sub(on_their_way)
        && left > 0
    {
        let folios = next_folios(core, &mut sweep, &mut turns, left);
        if folios.is_empty() {
            break;
        }
        for batch in folios.chunks(FOLIOS_AT_ONCE) {
            let handed = evict_batch(core, batch.to_vec(), &mut sweep, if_dirty);
            // What the swap does not take stays: what is clean has to do.
            handed_over += if takes_dirty(core) { handed } else { 0 };
        }
    }
    turns.end(core);
    compact::take_back_run(core);
    let counts = sweep.counts();
    if counts.evicted > 0 || collected > 0 {
        // A thread that evicts for itself may free more than it takes: other threads wait for it.
        core.pressure.progress();
    }
    counts
}

/// Step 1: a batch, of `pages` pages if they are not mapped.
fn next_folios(
    core: &Core,
    sweep: &mut Sweep,
    turns: &mut PieceTurns,
    pages: u64,
) -> Vec<Candidate> {
    // Ends: what the policy offers is bounded by the sweep's effort, and makes pieces wait; each
    // other turn takes from one of these.
    loop {
        let mapped = turns.next(core, FOLIOS_AT_ONCE);
        if !mapped.is_empty() {
            return mapped;
        }
        let mut folios: Vec<Candidate> = Vec::new();
        let mut offered = 0;
        // Ends: the same.
        while folios.len() < FOLIOS_AT_ONCE && offered < pages && !turns.has_piece() {
            let most = FOLIOS_AT_ONCE - folios.len();
            let left = pages - offered;
            let mut victims = core.residency.next_victims(&core.frames, sweep, left, most);
            let Some(&last) = victims.last() else {
                turns.offer_no_more(core);
                break;
            };
            if PieceTurns::concern(core, last) {
                victims.pop();
                turns.offer(core, sweep, last);
            }
            for head in victims {
                parts::push(core, sweep, head, &mut folios);
            }
            offered = folios.iter().map(|it| u64::from(it.identity.order.frames())).sum();
        }
        if !folios.is_empty() || !turns.has_piece() {
            return folios;
        }
    }
}

/// Evicts these folios, at most a batch, if nobody uses them, whatever the policy would evict, and
/// however short ago the swap has failed.
/// Returns how many pages.
pub(crate) fn evict_these(core: &Core, folios: Vec<Candidate>) -> u64 {
    let mut sweep = Sweep::new(0);
    evict_batch(core, folios, &mut sweep, IfDirty::WriteNow);
    core.pressure.progress();
    sweep.counts().evicted_pages
}

/// Writes pages to the swap that were handed over, and evicts them.
pub(super) fn evict_handed_over(core: &Core, pages: &[(FrameNumber, Identity)]) {
    let mut sweep = Sweep::new(0);
    let folios = pages.iter().map(|&(head, identity)| Candidate { head, identity }).collect();
    evict_batch(core, folios, &mut sweep, IfDirty::Write);
    if sweep.counts().evicted > 0 {
        core.pressure.progress();
    }
}

/// Whether dirty folios of the program's own memory may get to the swap now.
fn takes_dirty(core: &Core) -> bool {
    core.swap.as_ref().is_some_and(Swap::takes_pages)
}

/// What becomes of dirty folios that the program's own memory has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfDirty {
    /// They are handed over to who writes them, and stay for now.
    HandOver,
    /// They are written to the swap, and then evicted; unless it has just failed.
    Write,
    /// They are written to the swap, and then evicted, even if it has just failed.
    WriteNow,
    /// They stay.
    Stay,
}

/// Steps 2 to 9. Returns how many pages were handed over.
fn evict_batch(core: &Core, folios: Vec<Candidate>, sweep: &mut Sweep, if_dirty: IfDirty) -> u64 {
    let batch = Candidates::new(core, folios);
    let mut evicted = Vec::with_capacity(batch.len());
    let mut stayed = Vec::new();
    let mut frozen = batch.freeze(core, To::Leave);
    take_out_of_memory(core, &batch, &mut frozen);
    for n in 0..batch.len() {
        match frozen.get(n) {
            Ok(frozen) => {
                take_out_of_index(core, frozen, sweep);
                evicted.push(batch.folio(n));
            }
            Err(why) => stayed.push((batch.folio(n), why)),
        }
    }
    let leaving = leave(core, &batch, &mut frozen, &evicted);
    drop(frozen);
    leaving.into_iter().for_each(Leaving::take_out_of_maps);
    let bytes = evicted.iter().map(|folio| folio.identity.order.bytes() as u64).sum();
    core.counters.add(Event::Eviction, evicted.len() as u64);
    core.counters.add(Event::EvictedBytes, bytes);
    for folio in &evicted {
        core.frames.free(folio.head, folio.identity.order);
    }
    for mapping in batch.mappings() {
        if evicted.iter().any(|folio| folio.identity.mapping == mapping.id) {
            core.retire(mapping);
        }
    }
    // Step 8.
    let mut handed_over = 0;
    match if_dirty {
        IfDirty::Stay => {}
        IfDirty::HandOver => handed_over = hand_over(core, &batch, &stayed),
        IfDirty::Write | IfDirty::WriteNow => {
            let dirty = write_out(&batch, &mut stayed, if_dirty == IfDirty::WriteNow);
            if !dirty.is_empty() {
                // It calls itself once: what is dirty stays there.
                evict_batch(core, dirty, sweep, IfDirty::Stay);
            }
        }
    }
    for (folio, why) in stayed {
        // What the swap does not take must not stand before what is clean again and again.
        let is_own = |it: &Arc<Mapping>| it.id == folio.identity.mapping && it.own().is_some();
        let lasts =
            why == InUse::Dirty && !takes_dirty(core) && batch.mappings().iter().any(is_own);
        let answer = if lasts { Answer::Pinned } else { why.answer() };
        core.residency.stays(&core.frames, sweep, folio.head, answer);
    }
    handed_over
}

/// Hands the dirty folios of the program's own memory among these over, unless somebody uses them.
/// Returns how many pages.
fn hand_over(core: &Core, batch: &Candidates, stayed: &[(Candidate, InUse)]) -> u64 {
    let own: Vec<u32> =
        batch.mappings().iter().filter(|it| it.own().is_some()).map(|it| it.id).collect();
    let goes = |(folio, why): &&(Candidate, InUse)| {
        let is_used = || core.frames.frame(folio.head).count.word().refs() > 1;
        *why == InUse::Dirty && own.contains(&folio.identity.mapping) && !is_used()
    };
    let going = stayed.iter().filter(goes);
    core.pressure.to_write.add(going.map(|(folio, _)| (folio.head, folio.identity)))
}

/// Writes the dirty folios of the program's own memory among these to the swap, and takes them out of
/// `stayed`.
fn write_out(
    batch: &Candidates,
    stayed: &mut Vec<(Candidate, InUse)>,
    now: bool,
) -> Vec<Candidate> {
    let mut dirty = Vec::new();
    for mapping in batch.mappings() {
        let Some(memory) = mapping.own() else { continue };
        let is_its = |(folio, why): &mut (Candidate, InUse)| {
            *why == InUse::Dirty && folio.identity.mapping == mapping.id
        };
        let before = dirty.len();
        dirty.extend(stayed.extract_if(.., is_its).map(|(folio, _)| folio));
        let mut pages: Vec<u64> =
            dirty[before..].iter().map(|folio: &Candidate| folio.identity.index).collect();
        pages.sort_unstable();
        if !pages.is_empty() {
            memory.write_out(mapping, &pages, now);
        }
    }
    dirty
}

/// Takes the frozen pages of the program's own memory out of memory, under the mutexes. Those that the
/// system keeps there, as the program has sealed them, stay.
fn take_out_of_memory(core: &Core, batch: &Candidates, frozen: &mut FrozenBatch<'_>) {
    for (n, mapping) in batch.mappings().iter().enumerate() {
        let Some(memory) = mapping.own() else { continue };
        for run in frozen.frozen_of(n).chunk_by(|one, next| one.0 + 1 == next.0) {
            if memory.take_out_of_memory(run[0].0..run[run.len() - 1].0 + 1) {
                continue;
            }
            for &(page, it) in run {
                if !memory.take_out_of_memory(page..page + 1) {
                    frozen.stays(core, it);
                }
            }
        }
    }
}

/// Steps 3 and 4.
fn take_out_of_index(core: &Core, frozen: Frozen<'_, '_>, sweep: &mut Sweep) {
    let Frozen { folio, changing, .. } = frozen;
    let page = folio.identity.index;
    core.residency.evicted(&core.frames, sweep, folio.head, changing.mapping().ghosts_of);
    let removed = changing.writer(&core.nodes).remove(page);
    assert_eq!(removed.map(|gone| gone.frame), Some(folio.head), "evicted another folio");
    changing.folio_removed();
    core.frames.frame(folio.head).forget_identity();
}

/// Step 5, under the mutexes. What it returns is taken out of the maps in step 6.
fn leave<'a>(
    core: &Core,
    batch: &'a Candidates,
    frozen: &mut FrozenBatch<'_>,
    evicted: &[Candidate],
) -> Vec<Leaving<'a>> {
    let mut all = Vec::new();
    for (n, mapping) in batch.mappings().iter().enumerate() {
        let mirrored = evicted.iter().filter(|folio| {
            folio.identity.mapping == mapping.id && core.frames.frame(folio.head).is_mirrored()
        });
        let mut pages: Vec<Range<u64>> = mirrored.map(|folio| folio.identity.pages()).collect();
        if pages.is_empty() || mapping.own().is_some() {
            continue;
        }
        pages.sort_unstable_by_key(|pages| pages.start);
        let changing = frozen.changing(n);
        let is_free = |gap: &Range<u64>| has_no_mirrored(core, changing, gap);
        all.push(mapping.mirror_of_folios().leave(pages, is_free));
    }
    all
}

/// Whether no page of `gap` is in a mirrored folio; false if it would take long to say.
fn has_no_mirrored(core: &Core, changing: &mut Changing<'_>, gap: &Range<u64>) -> bool {
    if gap.end - gap.start > GAP_PAGES_MAX {
        return false;
    }
    let mut from = gap.start;
    for _ in 0..=GAP_FOLIOS_MAX {
        let next = changing.writer(&core.nodes).next_present(from..gap.end);
        match next {
            None => return true,
            Some(folio) if core.frames.frame(folio.frame).is_mirrored() => return false,
            Some(folio) => from = folio.end(),
        }
    }
    false
}
