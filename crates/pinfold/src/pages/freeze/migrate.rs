//! Migration: a folio's bytes move to other frames: [`migrate`] for one folio, [`move_frozen`]
//! (steps 2 to 7) for one of a frozen batch. The caller has allocated the new folio (count 1,
//! version odd, no mapping), and frees the old frames without the mutex. Under the `change` mutex:
//! 1. freeze the old folio, version odd, not announced: from here on no thread reads or changes it;
//! 2. copy the bytes, and what is known of their uses. The bytes of a hollow folio stay outside if
//!    it remains one; if not, they are taken in (`pages/outside.rs`);
//! 3. give the new folio the old one's identity; its version is still odd;
//! 4. store the new head to the index: a racing look-up finds either, and fails on the old version;
//! 5. tell the policy;
//! 6. make the new folio's version even; its count of 1 is the index's;
//! 7. forget the old folio's identity.
//!
//! The caller wakes the futures that met the folio meanwhile when it has released the mutexes.

use super::users::{InUse, freeze_alone};
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::base::wait::Woken;
use crate::frames::{Flags, FrameNumber, copy_racing};
use crate::index::FolioAt;
use crate::pages::core::Core;
use crate::pages::mapping::Changing;
use crate::pages::outside::Outside;

/// Error: the folio is held or borrowed; nothing was changed.
pub(crate) fn migrate(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: FolioAt,
    new_head: FrameNumber,
) -> Result<Woken, InUse> {
    // Its filler has a reference, and its version is odd.
    if core.frames.frame(folio.frame).is_changing() {
        return Err(InUse::Busy);
    }
    freeze_alone(core, folio.frame)?;
    Ok(move_frozen(core, changing, folio, new_head))
}

/// Steps 2 to 7.
pub(crate) fn move_frozen(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: FolioAt,
    new_head: FrameNumber,
) -> Woken {
    let old = core.frames.frame(folio.frame);
    let new = core.frames.frame(new_head);
    let identity = old.identity();
    assert_eq!(identity.order, new.order(), "moved to a folio of another size");
    if !new.is_hollow() {
        let from = core.address(changing.mapping(), folio.frame);
        let to = core.frames.address(new_head);
        let bytes = if old.is_hollow() { old.file_bytes() } else { identity.order.bytes() };
        // SAFETY: two folios of this order. The old one is frozen, so no thread changes it; the new
        // one is the caller's alone, but for readers of its last use, who notice by the version.
        unsafe { copy_racing(to, from, bytes) };
    }
    if old.is_hollow() && !new.is_hollow() && !mutant::on(Mutant::MoveKeepsPages) {
        // Whoever finds the new folio may want to put it outside again.
        core.taken_in(changing.mapping(), identity.pages());
    }
    assert!(old.is_hollow() || !new.is_hollow(), "a folio became hollow by a move");
    new.set_uses_of(old);
    if old.is_hollow() && !new.is_hollow() {
        new.set_uses(old.uses()); // maps may have read any of it
    }
    let stays_outside = new.is_hollow() && !mutant::on(Mutant::MoveForgetsHuge);
    let of_place = if stays_outside { Flags::HUGE } else { Flags::empty() };
    new.set_flags(old.flags() & (Flags::READAHEAD | of_place));
    new.set_identity(identity);
    new.set_file_bytes(old.file_bytes());
    let replaced = changing.writer(&core.nodes).replace(folio.page, new_head);
    assert_eq!(replaced.map(|folio| folio.frame), Some(folio.frame), "moved another folio");
    core.residency.replace(&core.frames, folio.frame, new_head);
    mutant::pause();
    new.change_end();
    // A reader may have a reference since step 4, and wait for this.
    let woken = if mutant::on(Mutant::MoveWakesNobody) {
        Woken::default()
    } else {
        core.waiters.wake_later(new_head.0)
    };
    old.forget_identity();
    core.counters.count(Event::Migration);
    woken
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use crate::pages::reclaim::migrate_range;
    use crate::pages::stream::Asks;
    use crate::source::Memory;
    use crate::{Cache, Hint, Options};

    const PAGE: u64 = 4096;

    #[test]
    fn a_move_keeps_what_is_known_of_uses() {
        let cache = Cache::new(Options::new(32 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 8 << 20]))).unwrap();
        let (core, mapping) = (cache.core(), &*file.handle().mapping);
        // A few pages of a large folio, by a reader that also reads elsewhere.
        file.read_at(&mut vec![0; 2 << 20], 0).unwrap();
        for _ in 0..3 {
            for page in [5, 600] {
                file.read_at(&mut [0], page * PAGE).unwrap();
            }
        }
        // What is read ahead.
        file.advise(0..0, Hint::Sequential).unwrap();
        file.read_at(&mut [0], 1024 * PAGE).unwrap();
        let known = || {
            let is_partly_used = core.hold(mapping, 5).unwrap().frame().is_partly_used();
            (is_partly_used, file.handle().unread(1024..1072, Asks::Maps).unused)
        };
        let before = known();
        assert!(before.0 && before.1 > 40, "{before:?}");
        // Ends: what is read ahead comes.
        let is_there = |page| !core.hold(mapping, page).unwrap().frame().is_changing();
        while !(1024..1072).all(is_there) {
            std::thread::yield_now();
        }
        let head = |page| core.hold(mapping, page).unwrap().head();
        let heads = [head(5), head(1060)];
        assert!(migrate_range(core, mapping, 0..2048) > 1);
        assert!(head(5) != heads[0] && head(1060) != heads[1]);
        assert_eq!(known(), before);
    }
}
