//! What the cache proper is answered and told of hollow folios (`pages/outside.rs`): each call
//! finds the module of `map/` that it concerns.
//!
//! The bytes of a hollow folio are in one of two places: in its file's mirror (`mapped/mirror/`),
//! or, if the file is memory of the program's own, in the map itself (`space/anon/`).

use std::ops::Range;
use std::sync::Arc;

use pinfold_policy::Sweep;

use super::{lent, pieces, writers};
use crate::base::mutant::{self, Mutant};
use crate::error::Result;
use crate::frames::{Flags, FrameNumber};
use crate::index::{FolioAt, PAGES_END};
use crate::mapped::swap::Swap;
use crate::mapped::{Leaving, PieceTurns};
use crate::pages::core::Core;
use crate::pages::freeze;
use crate::pages::mapping::{Changing, Mapping};
use crate::pages::outside::{Outside, WriteWhen, WrittenOut};
use crate::pages::residency::Candidate;

/// Two places are taken out as one if there are at most so many pages between them, and in these so
/// many folios of the arena.
const GAP_PAGES_MAX: u64 = 256;
const GAP_FOLIOS_MAX: u32 = 8;

impl Outside for Core {
    #[inline]
    fn outside_at(&self, mapping: &Mapping, page: u64) -> *mut u8 {
        mapping.mirror_of_folios().address(page)
    }

    fn copy_outside(&self, mapping: &Mapping, at: u64, to: &mut [u8]) {
        mapping.mirror_of_folios().load(at, to);
    }

    fn is_outside(&self, mapping: &Mapping) -> bool {
        mapping.own().is_some()
    }

    fn unaccessed(&self, mapping: &Mapping, folios: &[(Range<u64>, Range<u64>)]) -> u64 {
        mapping.mirror_if_made().map_or(0, |mirror| mirror.shown.unaccessed(folios))
    }

    fn notice_stores(&self, changing: &mut Changing<'_>, pages: &[u64]) {
        let Some(memory) = changing.mapping().own().cloned() else { return };
        // Not those that are absent or on their way: their slots may be read at this moment.
        let index = changing.writer(&self.nodes);
        let is_there = |folio: FolioAt| !self.frames.frame(folio.frame).is_changing();
        let there = |&page: &u64| index.folio(page).is_some_and(is_there);
        let pages: Vec<u64> = pages.iter().copied().filter(there).collect();
        drop(index);
        if let Some(states) = changing.own() {
            self.give_slots(memory.distrust(states, &pages));
        }
    }

    fn may_leave(&self, changing: &mut Changing<'_>, page: u64) -> bool {
        changing.own().is_none_or(|states| states.may_leave(page))
    }

    fn leave_memory(&self, mapping: &Mapping, pages: &[(u64, usize)]) -> Vec<usize> {
        let mut kept = Vec::new();
        let Some(memory) = mapping.own() else { return kept };
        for run in pages.chunk_by(|one, next| one.0 + 1 == next.0) {
            // By one call, unless the program has sealed some of them.
            if memory.take_out_of_memory(run[0].0..run[run.len() - 1].0 + 1) {
                continue;
            }
            for &(page, number) in run {
                let stays = run.len() == 1 || !memory.take_out_of_memory(page..page + 1);
                if stays && !mutant::on(Mutant::SealedLeaves) {
                    kept.push(number);
                }
            }
        }
        kept
    }

    fn leave<'a>(
        &self,
        changing: &mut Changing<'_>,
        mapping: &'a Mapping,
        gone: &[Candidate],
    ) -> Option<Leaving<'a>> {
        let mirrored = gone.iter().filter(|folio| {
            folio.identity.mapping == mapping.id && self.frames.frame(folio.head).is_hollow()
        });
        let mut pages: Vec<Range<u64>> = mirrored.map(|folio| folio.identity.pages()).collect();
        if pages.is_empty() || mapping.own().is_some() {
            return None;
        }
        pages.sort_unstable_by_key(|pages| pages.start);
        let is_free = |gap: &Range<u64>| has_no_mirrored(self, changing, gap);
        Some(mapping.mirror_of_folios().leave(pages, is_free))
    }

    fn taken_in(&self, mapping: &Mapping, pages: Range<u64>) {
        mapping.mirror_of_folios().punch(pages);
    }

    fn left_in_use(&self, mapping: &Mapping, head: FrameNumber, pages: Range<u64>) {
        // Of own memory nobody reads the bytes by the folio: its pages are taken out with it.
        if mapping.own().is_none() && !mutant::on(Mutant::LeftoverForgotten) {
            self.mapped.leftovers.begin(head, mapping.mirror_of_folios(), pages);
        }
    }

    fn freed(&self, head: FrameNumber) {
        self.mapped.leftovers.end(head);
    }

    fn settle(&self, mapping: &Mapping, pages: &Range<u64>) {
        if let Some(mirror) = mapping.mirror_if_made() {
            mirror.settle(pages);
        }
    }

    fn is_unsettled(&self, mapping: &Mapping, pages: &Range<u64>) -> bool {
        mapping.mirror_if_made().is_some_and(|mirror| mirror.is_unsettled(pages))
    }

    fn let_go_of_kept(&self, goes: impl Fn(FrameNumber) -> bool) {
        self.let_go_of_recent(goes);
    }

    fn closed(&self, mapping: &Mapping) {
        if mapping.mirror_if_made().is_none() {
            return;
        }
        let first = self.mapped.closed.add(mapping.id);
        let first = first.and_then(|id| self.mappings.get(id));
        if let Some(mapping) = first.filter(|it| it.is_closed() && it.mirror_if_made().is_some()) {
            freeze::drop_clean(self, &mapping, 0..PAGES_END);
            self.mappings.retire(&mapping);
        }
    }

    fn offer(&self, turns: &mut PieceTurns, sweep: &mut Sweep, head: FrameNumber) -> bool {
        pieces::offer(self, turns, sweep, head)
    }

    fn next_in_turn(&self, turns: &mut PieceTurns, most: usize) -> Vec<Candidate> {
        pieces::next(self, turns, most)
    }

    fn offer_no_more(&self, turns: &mut PieceTurns) {
        turns.now = self.mapped.pieces.lock().first();
    }

    fn end_turns(&self, turns: PieceTurns) {
        if let Some(piece) = turns.now {
            self.mapped.pieces.lock().put_back(piece);
        }
    }

    fn write_dirty(
        &self,
        mappings: &[Arc<Mapping>],
        dirty: Vec<Candidate>,
        when: WriteWhen,
    ) -> WrittenOut {
        let hands_over = self.own_swap().is_some() && !mutant::on(Mutant::EvictorsWrite);
        let mut written = WrittenOut::default();
        for mapping in mappings {
            let Some(memory) = mapping.own() else { continue };
            let mut its: Vec<Candidate> =
                dirty.iter().filter(|it| it.identity.mapping == mapping.id).copied().collect();
            if when == WriteWhen::Later && hands_over {
                its.retain(|it| self.frames.frame(it.head).count.word().refs() <= 1);
                // It may stay again, and must not be taken for what was wanted.
                let has_stayed = |it: &Candidate| {
                    self.frames.frame(it.head).flags().contains(Flags::WRITTEN)
                        && !mutant::on(Mutant::StuckStaysFirst)
                };
                let pages = its.iter().map(|it| ((it.head, it.identity), has_stayed(it)));
                written.on_their_way += self.mapped.to_write.add(pages);
                continue;
            }
            let mut pages: Vec<u64> = its.iter().map(|folio| folio.identity.index).collect();
            pages.sort_unstable();
            if !pages.is_empty() {
                memory.write_out(mapping.id, &pages, when == WriteWhen::NowAnyway);
            }
            for it in &its {
                self.frames.frame(it.head).set_flags(Flags::WRITTEN);
            }
            written.now.extend(its);
        }
        // What the swap does not take stays: what is clean has to do.
        if !takes_dirty(self) {
            written.on_their_way = 0;
        }
        written
    }

    fn stays_dirty(&self, mapping: &Mapping) -> bool {
        mapping.own().is_some() && !takes_dirty(self)
    }

    fn take_run_back(&self, enough: u32) -> bool {
        lent::take_run_back(self, enough)
    }

    fn keep_some_free(&self) {
        lent::keep_some_free(self);
    }

    fn start(self: &Arc<Self>) -> Result<()> {
        if self.own_swap().is_some() { writers::start(self) } else { Ok(()) }
    }
}

/// Whether dirty folios of own memory may get to the swap now.
fn takes_dirty(core: &Core) -> bool {
    core.own_swap().is_some_and(Swap::takes_pages)
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
            Some(folio) if core.frames.frame(folio.frame).is_hollow() => return false,
            Some(folio) => from = folio.end(),
        }
    }
    false
}
