//! Eviction: frees the frames of folios that nobody uses. [`evict`] chooses (step 1), and
//! [`evict_batch`] does the rest: steps 2 to 7 are [`take_out`], called again for what step 8 has
//! written. For what is outside of the arena, `pages/outside.rs` is called.

use std::ptr::NonNull;
use std::sync::Arc;

use pinfold_policy::{Answer, Sweep, SweepCounts};

use crate::base::counters::Event;
use crate::base::heap;
use crate::base::sizes::SWEEP_EFFORT_MAX;
use crate::base::sync::thread;
use crate::frames::{Frame, FrameNumber, Mobility, Order};
use crate::index::FolioAt;
use crate::mapped::{Leaving, PieceTurns};
use crate::pages::core::Core;
use crate::pages::freeze::{self, Candidates, InUse, To};
use crate::pages::mapping::Mapping;
use crate::pages::outside::{Outside, WriteWhen};
use crate::pages::residency::Candidate;

/// Evicted under one hold of their files' mutexes, for which the fills of these files wait.
pub(crate) const FOLIOS_AT_ONCE: usize = if Candidates::MAX < 64 { Candidates::MAX } else { 64 };

/// A batch takes the mutexes of all files of its folios: more threads would mostly wait for each
/// other, and keep all who bring pages of these files waiting.
pub(super) const EVICTORS_MAX: u32 = 8;

/// Evicts in batches until `pages` are evicted, or are on their way out, or the effort is spent.
/// Nothing while as many threads evict as may. Waits for no write.
pub(crate) fn evict(core: &Core, pages: u32) -> SweepCounts {
    let turn = core.pressure.evictors.hold(1, EVICTORS_MAX);
    if turn.is_none() {
        freeze::collect(core);
        return SweepCounts::default();
    }
    evict_at_once(core, pages)
}

/// However many threads evict.
pub(crate) fn evict_at_once(core: &Core, pages: u32) -> SweepCounts {
    let mut sweep = Sweep::new(SWEEP_EFFORT_MAX);
    if !heap::has_room() {
        return sweep.counts(); // who waits for memory has an error to return
    }
    let collected = freeze::collect(core);
    let mut turns = PieceTurns::default();
    let mut on_their_way = 0;
    // Ends: the sweep's effort is bounded.
    while let gone = sweep.counts().evicted_pages + on_their_way
        && let left = u64::from(pages).saturating_sub(gone)
        && left > 0
    {
        let folios = choose(core, &mut sweep, &mut turns, left);
        if folios.is_empty() {
            break;
        }
        let leaves_maps = leave_maps(core, &folios);
        for batch in folios.chunks(FOLIOS_AT_ONCE) {
            on_their_way += evict_batch(core, batch.to_vec(), &mut sweep, WriteWhen::Later);
        }
        // To take pages out of page tables takes long, and who brings others waits for a processor.
        if leaves_maps {
            thread::yield_now();
        }
    }
    core.end_turns(turns);
    core.take_run_back(core.pressure.high_frames);
    let counts = sweep.counts();
    if counts.evicted > 0 || collected > 0 {
        // It may free more than it takes.
        core.pressure.progress();
    }
    counts
}

/// Whether they are of a file, and maps show them.
fn leave_maps(core: &Core, folios: &[Candidate]) -> bool {
    let is_hollow = |it: &&Candidate| core.frames.frame(it.head).is_hollow();
    let first = folios.iter().find(is_hollow);
    let mapping = first.and_then(|it| core.mappings.get(it.identity.mapping));
    mapping.is_some_and(|it| !core.is_outside(&it))
}

/// At most a batch, whatever the policy says, and whatever became of the last write; how many
/// pages.
pub(crate) fn evict_these(core: &Core, folios: Vec<Candidate>) -> u64 {
    let mut sweep = Sweep::new(0);
    evict_batch(core, folios, &mut sweep, WriteWhen::NowAnyway);
    core.pressure.progress();
    sweep.counts().evicted_pages
}

/// Writes these folios, at most a batch, and evicts them.
#[cfg(feature = "map")]
pub(crate) fn evict_handed_over(core: &Core, folios: Vec<Candidate>) {
    let mut sweep = Sweep::new(0);
    evict_batch(core, folios, &mut sweep, WriteWhen::Now);
    if sweep.counts().evicted > 0 {
        core.pressure.progress();
    }
}

/// Step 1: of about `pages` pages.
fn choose(core: &Core, sweep: &mut Sweep, turns: &mut PieceTurns, pages: u64) -> Vec<Candidate> {
    // Ends: each iteration uses up effort of the sweep, or takes folios of a piece whose turn it
    // is; only what the policy offers makes it a piece's turn.
    loop {
        // Whole batches first.
        let together = core.next_in_turn(turns, FOLIOS_AT_ONCE);
        if !together.is_empty() {
            return together;
        }
        let mut folios: Vec<Candidate> = Vec::new();
        let mut offered = 0;
        // Ends: as the outer loop.
        while folios.len() < FOLIOS_AT_ONCE && offered < pages && !turns.has_piece() {
            // A hollow folio is the last: it may go with others.
            let most = FOLIOS_AT_ONCE - folios.len();
            let left = pages - offered;
            let mut victims = core.residency.next_victims(&core.frames, sweep, left, most);
            let Some(&last) = victims.last() else {
                core.offer_no_more(turns);
                break;
            };
            if core.frames.frame(last).is_hollow() && core.offer(turns, sweep, last) {
                victims.pop();
            }
            for head in victims {
                push(core, sweep, head, &mut folios);
            }
            offered = folios.iter().map(|it| u64::from(it.identity.order.frames())).sum();
        }
        if !folios.is_empty() || !turns.has_piece() {
            return folios;
        }
    }
}

/// Adds to `folios` what is to be evicted of the folio at `head`, which was offered: all but the
/// parts that are used of a large one that the policy would keep, unless it is hollow. Nothing if
/// it cannot be split.
fn push(core: &Core, sweep: &mut Sweep, head: FrameNumber, folios: &mut Vec<Candidate>) {
    let whole = Candidate::of(&core.frames, head);
    let is_hollow = core.frames.frame(head).is_hollow();
    if is_hollow || !core.residency.stays_in_part(&core.frames, head) {
        folios.push(whole);
        return;
    }
    match split_off(core, &whole) {
        Ok(unused) => folios.extend(unused),
        Err(None) => folios.push(whole),
        Err(Some(why)) => core.residency.stays(&core.frames, sweep, head, why.answer()),
    }
}

/// Returns the parts that were not used. Error: it is in use; `None`: no memory for index nodes.
fn split_off(core: &Core, whole: &Candidate) -> Result<Vec<Candidate>, Option<InUse>> {
    let (head, identity) = (whole.head, whole.identity);
    let part = Frame::part_order(identity.order);
    let parts = identity.order.frames() / part.frames();
    let mapping = core.mappings.get(identity.mapping).ok_or(InUse::Busy)?;
    let order = u32::from(identity.order.get());
    let is_it = |it: &FolioAt| it.frame == head && it.order == order;
    for _ in 0..2 {
        let mut changing = mapping.change();
        let there = changing.writer(&core.nodes).folio(identity.index).filter(is_it);
        let there = there.ok_or(InUse::Busy)?;
        // It cannot change now.
        let frame = core.frames.frame(head);
        let unused: Vec<u32> = (1..parts).filter(|&n| !frame.is_piece_used(n, part)).collect();
        match freeze::split(core, &mut changing, there, part) {
            Ok(Ok(woken)) => {
                drop(changing);
                drop(woken);
                let first = core.residency.is_offered(&core.frames, head).then_some(0);
                let at = |n| Candidate::of(&core.frames, FrameNumber(head.0 + n * part.frames()));
                return Ok(first.into_iter().chain(unused).map(at).collect());
            }
            Ok(Err(why)) => return Err(Some(why)),
            Err(short) => {
                drop(changing);
                refill(core, short.wanted);
            }
        }
    }
    Err(None)
}

/// If there is free memory for them.
fn refill(core: &Core, wanted: u32) {
    let _ = core.nodes.refill(wanted, || {
        let frame = core.frames.alloc_lowest(core.frames.for_nodes());
        let frame = frame.or_else(|| core.frames.alloc_of(Order::MIN, Mobility::Unmovable));
        let frame = frame.or_else(|| {
            let frame = core.frames.alloc(Order::MIN)?;
            core.frames.claim_run_of(frame);
            Some(frame)
        })?;
        NonNull::new(core.frames.address(frame))
    });
}

/// Steps 2 to 9. Returns how many pages others write now.
fn evict_batch(core: &Core, folios: Vec<Candidate>, sweep: &mut Sweep, when: WriteWhen) -> u64 {
    let batch = Candidates::new(core, folios);
    let mut stayed = take_out(core, &batch, sweep);

    // 8. What is dirty stays. What of it is outside is written, here or by others. What was written
    //    here goes through the steps once more, and stays if it has become dirty again.
    let is_dirty = |(_, why): &&(Candidate, InUse)| *why == InUse::NotClean;
    let dirty: Vec<Candidate> = stayed.iter().filter(is_dirty).map(|(folio, _)| *folio).collect();
    let mut on_their_way = 0;
    if !dirty.is_empty() {
        let written = core.write_dirty(&batch.mappings, dirty, when);
        on_their_way = written.on_their_way;
        if !written.now.is_empty() {
            stayed.retain(|(folio, _)| written.now.iter().all(|it| it.head != folio.head));
            stayed.extend(take_out(core, &Candidates::new(core, written.now), sweep));
        }
    }

    // 9. Tell the policy which folios stay, and why. Dirty ones of files, until a sync, and those
    //    that cannot be written for now must not stand before what is clean again and again: they
    //    are as good as pinned.
    for (folio, why) in stayed {
        let mapping = || batch.mappings.iter().find(|it| it.id == folio.identity.mapping);
        let stays = |it: &Arc<Mapping>| !core.is_outside(it) || core.stays_dirty(it);
        let lasts = why == InUse::NotClean && mapping().is_some_and(stays);
        let answer = if lasts { Answer::Pinned } else { why.answer() };
        core.residency.stays(&core.frames, sweep, folio.head, answer);
    }
    on_their_way
}

/// Steps 2 to 7. Returns what stays, and why.
fn take_out(core: &Core, batch: &Candidates, sweep: &mut Sweep) -> Vec<(Candidate, InUse)> {
    // 2. Take the files' mutexes and freeze the folios together: from here on there are no new
    //    references, reads or borrows. Folios in use stay, and so do dirty ones.
    let mut frozen = batch.freeze_all(core, To::Leave);

    // 3. Of files all of whose pages are outside: they leave memory now, as the system may refuse
    //    it. Then they stay. Whoever stores to them waits for the mutex. (Other files: step 6.)
    for (n, mapping) in batch.mappings.iter().enumerate() {
        if core.is_outside(mapping) {
            for it in core.leave_memory(mapping, &frozen.frozen_of(n)) {
                frozen.stays(core, it);
            }
        }
    }

    // 4. Tell the policy of each (`residency.rs` leaves ghosts of its pages); remove it from the
    //    index: no look-up finds it any more; forget the identity.
    let (mut evicted, mut stayed) = (Vec::with_capacity(batch.folios.len()), Vec::new());
    for (n, &folio) in batch.folios.iter().enumerate() {
        match frozen.get(n) {
            Ok(changing) => {
                let ghosts_of = changing.mapping().ghosts_of;
                core.residency.evicted(&core.frames, sweep, folio.head, ghosts_of);
                core.remove(changing, folio.identity.index, folio.head);
                evicted.push(folio);
            }
            Err(why) => stayed.push((folio, why)),
        }
    }

    // 5. The places of hollow folios are kept, so that nothing else gets there.
    let mut leaving: Vec<Leaving<'_>> = Vec::new();
    for (n, mapping) in batch.mappings.iter().enumerate() {
        leaving.extend(core.leave(&mut frozen.changing[n], mapping, &evicted));
    }

    // 6. Release the mutexes. Then take the pages in these places out of all maps.
    drop(frozen);
    leaving.into_iter().for_each(Leaving::take_out_of_maps);

    // 7. Free the frames, which stay frozen and odd; remove files without pages.
    let bytes = evicted.iter().map(|folio| folio.identity.order.bytes() as u64).sum();
    core.counters.add(Event::Eviction, evicted.len() as u64);
    core.counters.add(Event::EvictedBytes, bytes);
    for folio in &evicted {
        core.frames.free(folio.head, folio.identity.order);
    }
    for mapping in &batch.mappings {
        if evicted.iter().any(|folio| folio.identity.mapping == mapping.id) {
            core.mappings.retire(mapping);
        }
    }
    stayed
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::counters::Event;
    use crate::pages::reclaim::split_range;
    use crate::source::Memory;
    use crate::{Cache, Options};

    /// What was offered may be smaller by now, or have left its file.
    #[test]
    fn what_is_not_as_it_was_offered_is_not_split() {
        let cache = Cache::new(Options::new(32 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 2 << 20]))).unwrap();
        let (core, mapping) = (cache.core(), &*file.handle().mapping);
        let offered = || {
            file.read_at(&mut vec![0; 2 << 20], 0).unwrap();
            let head = core.hold(mapping, 0).unwrap().head();
            let whole = Candidate::of(&core.frames, head);
            assert!(whole.identity.order > Order::MIN);
            whole
        };
        let whole = offered();
        let is_split = |whole: &Candidate| split_off(core, whole).is_ok();
        let splits = || core.counters.sum(Event::Split);
        assert_eq!(split_range(core, mapping, whole.identity.pages()), 1);
        let before = splits();
        assert!(!is_split(&whole) && splits() == before, "it is a page");
        file.invalidate(0..2 << 20).unwrap();
        assert!(!is_split(&whole) && splits() == before, "it is gone");
        assert!(is_split(&offered()));
    }
}
