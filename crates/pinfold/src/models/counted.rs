//! The counted look-up: a thread that gets a reference has the page it asked for, and keeps it.

use super::{Model, holds_and_catches, race};
use crate::base::mutant::Mutant;

/// Reads a page under a reference while it is evicted and its frame, the only one, is filled with a
/// page of another file.
fn reclaim() {
    race(&Model::only(), Model::evict_and_refill, |model| model.check_counted(0));
}

#[test]
fn a_counted_reference_is_to_its_page_and_keeps_it() {
    let mutants = [
        (Mutant::CountedBlindly, "wrong bytes"),
        (Mutant::FreezeAnyCount, "Concurrent atomic store and `unsync_load`"),
    ];
    holds_and_catches(reclaim, &mutants);
}

/// Reclaim against a guard, which validates the version.
fn reclaim_under_guard() {
    let get = |model: &Model| {
        let Some(page) = model.files[0].get_at_once(0) else { return };
        assert_eq!(page.word(), model.sources[0].word(0), "wrong bytes");
        assert_eq!(page.word(), model.sources[0].word(0), "wrong bytes");
    };
    race(&Model::only(), Model::evict_and_refill, get);
}

#[test]
fn a_guard_is_of_its_page_and_keeps_it() {
    let mutants = [
        (Mutant::CountedBlindly, "wrong bytes"),
        (Mutant::FreezeAnyCount, "Concurrent"),
        (Mutant::FreezeStaysEven, "Causality violation: Concurrent"),
    ];
    holds_and_catches(reclaim_under_guard, &mutants);
}
