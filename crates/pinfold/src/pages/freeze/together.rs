//! Freezing many folios, to evict or move them: one fence and one scan of the slots serve all.
//!
//! 1. find the mapping of each folio from its entry;
//! 2. take the mappings' `change` mutexes, in rising order of the mappings' numbers;
//! 3. check that the index has this folio there, and that it is clean if it is to leave; freeze it;
//! 4. the fence, and one scan of the slots of all readers;
//! 5. thaw what is announced; the caller takes the rest out of the index or replaces it;
//! 6. release the mutexes, when the batch is dropped.
//!
//! Nowhere else more than one `change` mutex is held.

use std::sync::Arc;

use super::users::{self, InUse};
use crate::base::mutant::{self, Mutant};
use crate::frames::MAPPING_NONE;
use crate::pages::core::Core;
use crate::pages::mapping::{Changing, Mapping};
use crate::pages::outside::Outside;
use crate::pages::readers::LOOK_MAX;
use crate::pages::residency::Candidate;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// Dirty folios stay.
    Leave,
    /// To other frames. What is dirty of a file that is outside moves, too: its bytes stay there.
    Move,
}

#[derive(Debug)]
pub(crate) struct Candidates {
    pub(crate) folios: Vec<Candidate>,
    /// In rising order of their numbers, without duplicates.
    pub(crate) mappings: Vec<Arc<Mapping>>,
}

/// The mappings' `change` mutexes are held. Each folio is frozen or in use.
#[derive(Debug)]
pub(crate) struct FrozenBatch<'a> {
    folios: &'a [Candidate],
    /// In the order of the batch's `mappings`.
    pub(crate) changing: Vec<Changing<'a>>,
    /// The index of the folio's mapping, or why it is not frozen.
    states: Vec<Result<usize, InUse>>,
}

impl Candidates {
    /// A membarrier takes as long as many evictions; but others wait for the mutexes.
    pub(crate) const MAX: usize = LOOK_MAX;

    /// Step 1.
    pub(crate) fn new(core: &Core, folios: Vec<Candidate>) -> Self {
        assert!(folios.len() <= Self::MAX, "more folios at once than a batch has");
        let mut ids: Vec<u32> = folios.iter().map(|folio| folio.identity.mapping).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|&id| id != MAPPING_NONE);
        let mappings = ids.iter().filter_map(|&id| core.mappings.get(id)).collect();
        Candidates { folios, mappings }
    }

    /// Steps 2 to 5.
    pub(crate) fn freeze_all(&self, core: &Core, to: To) -> FrozenBatch<'_> {
        let mut changing = self.change_all();
        if to == To::Leave {
            self.notice_stores(core, &mut changing);
        }
        let mut states = Vec::with_capacity(self.folios.len());
        for &folio in &self.folios {
            let id = folio.identity.mapping;
            let at = self.mappings.binary_search_by_key(&id, |mapping| mapping.id);
            states.push(match at {
                Ok(at) => freeze_if_there(core, &mut changing[at], folio, to).map(|()| at),
                Err(_) => Err(InUse::Busy),
            });
        }
        let frozen: Vec<usize> = (0..states.len()).filter(|&n| states[n].is_ok()).collect();
        let heads: Vec<_> = frozen.iter().map(|&n| self.folios[n].head).collect();
        let announced = users::announced(core, &heads);
        for (nth, n) in frozen.into_iter().enumerate() {
            if announced.has(nth) {
                users::thaw_announced(core, core.frames.frame(heads[nth]));
                states[n] = Err(InUse::Borrowed);
            }
        }
        FrozenBatch { folios: &self.folios, changing, states }
    }

    /// Whether pages that are outside are clean is looked up right before they leave.
    fn notice_stores(&self, core: &Core, changing: &mut [Changing<'_>]) {
        for (mapping, changing) in self.mappings.iter().zip(changing) {
            if !core.is_outside(mapping) {
                continue;
            }
            let its = self.folios.iter().filter(|folio| folio.identity.mapping == mapping.id);
            let mut pages: Vec<u64> = its.map(|folio| folio.identity.index).collect();
            pages.sort_unstable();
            pages.dedup();
            core.notice_stores(changing, &pages);
        }
    }

    /// Step 2.
    fn change_all(&self) -> Vec<Changing<'_>> {
        if mutant::on(Mutant::BatchUnordered)
            && let (Some(first), Some(last)) = (self.folios.first(), self.mappings.last())
            && first.identity.mapping == last.id
        {
            let mut downwards: Vec<_> = self.mappings.iter().rev().map(|it| it.change()).collect();
            downwards.reverse();
            return downwards;
        }
        self.mappings.iter().map(|mapping| mapping.change()).collect()
    }
}

impl<'a> FrozenBatch<'a> {
    /// Of the `n`th folio, which the caller must take out of the index or replace there.
    pub(crate) fn get(&mut self, n: usize) -> Result<&mut Changing<'a>, InUse> {
        Ok(&mut self.changing[self.states[n]?])
    }

    /// Of the `n`th mapping: the pages of frozen folios, in rising order, with their numbers.
    pub(crate) fn frozen_of(&self, n: usize) -> Vec<(u64, usize)> {
        let its = (0..self.states.len()).filter(|&it| self.states[it] == Ok(n));
        let mut its: Vec<_> = its.map(|it| (self.folios[it].identity.index, it)).collect();
        its.sort_unstable();
        its
    }

    /// A frozen folio stays as if it were pinned.
    pub(crate) fn stays(&mut self, core: &Core, n: usize) {
        users::thaw(core.frames.frame(self.folios[n].head));
        self.states[n] = Err(InUse::Pinned);
    }
}

/// Step 3 for one folio.
fn freeze_if_there(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: Candidate,
    to: To,
) -> Result<(), InUse> {
    let (frame, page) = (core.frames.frame(folio.head), folio.identity.index);
    let there = changing.head(page) == Some(folio.head);
    // Now it cannot change: it may have been split, or filled anew in its frames.
    if !there || frame.identity() != folio.identity || frame.is_changing() {
        return Err(InUse::Busy);
    }
    let may_be_dirty =
        to == To::Move && core.is_outside(changing.mapping()) && !mutant::on(Mutant::DirtyStays);
    if !may_be_dirty && !core.is_clean(changing, page) && !mutant::on(Mutant::LoseDirty) {
        return Err(InUse::NotClean);
    }
    users::freeze(frame)
}
