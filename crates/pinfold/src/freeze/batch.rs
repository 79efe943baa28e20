//! Freezing many folios at once, so that those who borrow cost one fence and one look for all.
//!
//! Here: what comes before and after the freeze of a folio that is to be evicted or moved. Not
//! here: what is done to it meanwhile. Called by `evict` and by compaction.
//!
//! 1. find the mapping of each folio by what its entry says;
//! 2. take their `change` mutexes, in rising order of the mappings' numbers;
//! 3. under them check that the index has this folio there, freeze it, version odd;
//! 4. the fence, and one look at all that readers have announced;
//! 5. what is announced is put back, what is not is the caller's to take apart;
//! 6. let go of the mutexes.
//!
//! This is the only place where more than one `change` mutex is held. Everybody else holds one and
//! takes no other meanwhile, and here they are taken in one order: there is no cycle.

use std::sync::Arc;

use super::{Outcome, freeze, thaw};
use crate::core::Core;
use crate::flaw::{self, Flaw};
use crate::frame::{FrameNumber, Identity, MAPPING_NONE};
use crate::mapping::{Changing, Mapping};
use crate::readers::LOOK_MAX;

/// The most folios of one batch. A membarrier takes many times as long as what else there is to
/// the eviction of one folio; and as long as a batch takes, others wait for the mutex.
pub(crate) const BATCH_MAX: usize = LOOK_MAX;

/// A folio that may be frozen, and what it was when it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) head: FrameNumber,
    pub(crate) identity: Identity,
}

impl Candidate {
    /// The folio at `head`, as it is now; nothing is held.
    pub(crate) fn of(core: &Core, head: FrameNumber) -> Self {
        Candidate { head, identity: core.frames.frame(head).identity() }
    }
}

/// A folio that is frozen, with its mapping's `change` mutex held.
#[derive(Debug)]
pub(crate) struct Frozen<'a, 'b> {
    pub(crate) folio: Candidate,
    pub(crate) mapping: &'a Arc<Mapping>,
    pub(crate) changing: &'b mut Changing<'a>,
}

/// Freezes what can be of `candidates` and calls `done` for each of them, in no order, with its
/// number: with the frozen folio, which it must take out of the index or replace there, or with the
/// reason why not.
///
/// # Panics
/// If there are more than [`BATCH_MAX`].
pub(crate) fn freeze_batch(
    core: &Core,
    candidates: &[Candidate],
    mut done: impl FnMut(usize, Result<Frozen<'_, '_>, Outcome>),
) {
    assert!(candidates.len() <= BATCH_MAX, "more folios at once than a batch has");
    let mut ids: Vec<u32> = candidates.iter().map(|one| one.identity.mapping).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.retain(|&id| id != MAPPING_NONE);
    let mappings: Vec<_> = ids.iter().filter_map(|&id| core.mappings.get(id)).collect();
    let mut changing: Vec<_> = if flaw::on(Flaw::BatchUnordered)
        && candidates.first().map(|first| first.identity.mapping) == ids.last().copied()
    {
        let mut downwards: Vec<_> = mappings.iter().rev().map(|mapping| mapping.change()).collect();
        downwards.reverse();
        downwards
    } else {
        mappings.iter().map(|mapping| mapping.change()).collect()
    };
    let place = |id: u32| mappings.binary_search_by_key(&id, |mapping| mapping.id);

    let mut frozen = Vec::with_capacity(candidates.len());
    let mut heads = Vec::with_capacity(candidates.len());
    for (n, &folio) in candidates.iter().enumerate() {
        let place = place(folio.identity.mapping);
        match place.map(|place| freeze_there(core, &changing[place], folio).map(|()| place)) {
            Ok(Ok(place)) => {
                frozen.push((n, place));
                heads.push(folio.head);
            }
            Ok(Err(why)) => done(n, Err(why)),
            Err(_) => done(n, Err(Outcome::Busy)),
        }
    }
    let announced = core.readers.announced(&heads, &core.counters);
    for (nth, (n, place)) in frozen.into_iter().enumerate() {
        let folio = candidates[n];
        if announced.has(nth) {
            thaw(core, core.frames.frame(folio.head));
            done(n, Err(Outcome::Borrowed));
        } else {
            let (mapping, changing) = (&mappings[place], &mut changing[place]);
            done(n, Ok(Frozen { folio, mapping, changing }));
        }
    }
}

/// Step 3 for one folio.
fn freeze_there(core: &Core, changing: &Changing<'_>, folio: Candidate) -> Result<(), Outcome> {
    let frame = core.frames.frame(folio.head);
    let there = changing.head(folio.identity.index) == Some(folio.head);
    // Looked at again, now that it cannot change: it may have been split or filled anew in its place.
    if !there || frame.identity() != folio.identity || frame.is_changing() {
        return Err(Outcome::Busy);
    }
    freeze(frame)
}
