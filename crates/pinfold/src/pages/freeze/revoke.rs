//! Revoking a grant (`grants`), under the `change` mutex:
//! 1. freeze the folio, version odd: nobody has a reference, and whoever looked it up before finds
//!    another version. Borrows go on: the bytes stay;
//! 2. thaw it, which revokes the grant before the version is even.

use super::users;
use crate::base::mutant::{self, Mutant};
use crate::frames::Flags;
use crate::pages::core::Core;
use crate::pages::grants::Grant;

/// Revokes the grant of a folio that nobody has a reference to. False: it is in use or gone.
pub(crate) fn revoke(core: &Core, grant: &Grant) -> bool {
    let frame = core.frames.frame(grant.head);
    let identity = frame.identity();
    let Some(mapping) = core.mappings.get(identity.mapping) else { return false };
    let changing = mapping.change();
    // Checked now that it cannot change: another folio may have its frames.
    let there = changing.head(identity.index) == Some(grant.head);
    if !there || frame.since(grant.stamp) != 0 {
        return false;
    }
    if mutant::on(Mutant::RevokeUnfrozen) {
        let alone = frame.count.word().refs() == 1;
        return alone && frame.clear_flags(Flags::GRANTED).contains(Flags::GRANTED);
    }
    let frozen = users::freeze(frame).is_ok();
    if frozen {
        users::thaw(frame);
    }
    frozen
}
