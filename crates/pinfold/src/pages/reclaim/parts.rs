//! Large folios of which a few parts are used (`frames/entry.rs`): where the policy would keep one
//! for these, it is split, and the other parts are evicted.

use std::ptr::NonNull;

use pinfold_policy::Sweep;

use crate::frames::{Frame, FrameNumber, Mobility, Order};
use crate::index::FolioAt;
use crate::pages::core::Core;
use crate::pages::freeze::{InUse, split};
use crate::pages::residency::Candidate;

/// Adds to `folios` what is to be evicted of the folio at `head`, which was offered. Nothing if it
/// cannot be split now; the policy is told.
pub(super) fn push(core: &Core, sweep: &mut Sweep, head: FrameNumber, folios: &mut Vec<Candidate>) {
    let whole = Candidate::of(&core.frames, head);
    if !core.residency.stays_in_part(&core.frames, head) {
        folios.push(whole);
        return;
    }
    match split_off(core, &whole) {
        Ok(unused) => folios.extend(unused),
        Err(None) => folios.push(whole),
        Err(Some(why)) => core.residency.stays(&core.frames, sweep, head, why.answer()),
    }
}

/// Splits the folio into its parts; returns those that were not used.
///
/// # Errors
/// It is in use; `None`: there is no memory for its index nodes.
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
        // Of the folio that was offered: it cannot change now.
        let frame = core.frames.frame(head);
        let unused: Vec<u32> = (1..parts).filter(|&n| !frame.is_piece_used(n, part)).collect();
        match split(core, &mut changing, there, part) {
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

/// More index nodes, if there is free memory for them.
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
