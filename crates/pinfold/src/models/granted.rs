//! Grants: a large folio whose grant was revoked has no guard that was taken at once.

use super::moved::pair;
use super::{Model, holds_and_catches, race};
use crate::base::mutant::Mutant;
use crate::pages::freeze;

/// Gets a page of a granted folio of two at once, while the grant is revoked.
fn revoke_under_get() {
    let model = pair();
    let frames = &model.core.frames;
    let head = model.files[0].mapping.index.lookup(0).expect("it was read");
    assert!(model.files[0].get_at_once(0).is_none(), "a large folio, not granted");
    let held = model.core.hold(&model.files[0].mapping, 0).expect("it was read");
    assert!(!model.core.grants.give(frames, head, false), "the limit is less than a page");
    assert!(model.core.grants.give(frames, head, true));
    drop(held);
    let revoke = |model: &Model| {
        if let Some(idle) = model.core.grants.oldest_idle(&model.core.frames) {
            let revoked = freeze::revoke(&model.core, &idle);
            model.core.grants.settle(idle, revoked);
        }
    };
    let get = |model: &Model| {
        let Some(page) = model.files[0].get_at_once(1) else { return };
        assert!(page.may_keep(), "a guard of a folio that is not granted");
        assert_eq!(page.word(), model.sources[0].word(1), "wrong bytes");
        assert!(page.may_keep(), "a guard of a folio that is not granted");
    };
    race(&model, revoke, get);
}

#[test]
fn a_folio_whose_grant_was_revoked_has_no_guard() {
    let mutants = [(Mutant::RevokeUnfrozen, "not granted"), (Mutant::FreezeAnyCount, "")];
    holds_and_catches(revoke_under_get, &mutants);
}
