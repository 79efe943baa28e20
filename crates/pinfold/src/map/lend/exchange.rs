//! Lending: a folio's bytes move from the arena to its file's mirror, whether it is used or not.
//!
//! This is not a user of freeze, but a drop and an insertion in one step: guards, borrows and pins
//! keep the old folio with its bytes, and all others find the new one. The caller has claimed the
//! place and written the bytes there, from a folio that it has a reference to, and allocated the
//! new folio (count 1, version odd, no mapping). Under the `change` mutex:
//! 1. check that the index still has the old folio, up to date;
//! 2. make its version odd: no thread reads, announces or holds it anew;
//! 3. give the new folio its identity, store its head to the index, tell the policy;
//! 4. make the new folio's version even; its count of 1 is the index's;
//! 5. forget the old folio's identity.
//!
//! Then, without the mutex, for a whole batch: let go of the old ones (`freeze/users.rs`).

use crate::base::mutant::{self, Mutant};
use crate::base::wait::Woken;
use crate::frames::FrameNumber;
use crate::index::FolioAt;
use crate::pages::core::Core;
use crate::pages::mapping::Changing;

/// Steps 1 to 5. `None`: the folio has left the index, or changes.
pub(super) fn lend(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: FolioAt,
    new_head: FrameNumber,
) -> Option<Woken> {
    let (old, new) = (core.frames.frame(folio.frame), core.frames.frame(new_head));
    let there = changing.writer(&core.nodes).folio(folio.page);
    if (there != Some(folio) || old.is_changing()) && !mutant::on(Mutant::LendGone) {
        return None;
    }
    let identity = old.identity();
    assert_eq!(identity.order, new.order(), "lent to a folio of another size");
    old.change_begin();
    new.set_uses_of(old);
    new.set_identity(identity);
    new.set_file_bytes(old.file_bytes());
    let replaced = changing.writer(&core.nodes).replace(folio.page, new_head);
    assert_eq!(replaced, Some(folio), "lent another folio");
    core.residency.replace(&core.frames, folio.frame, new_head);
    new.change_end();
    // A reader may have taken a reference to it since step 3, and wait for this.
    let woken = core.waiters.wake_later(new_head.0);
    old.forget_identity();
    Some(woken)
}
