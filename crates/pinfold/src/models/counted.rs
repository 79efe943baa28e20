//! The counted look-up: who gets a reference has the page that he asked for, and keeps it.

use super::{Model, holds_and_catches, race};
use crate::flaw::Flaw;

/// A page is read under a reference while it is evicted and its frame, the only one, filled with a
/// page of another file.
fn reclaim() {
    race(&Model::only(), Model::evict_and_refill, |model| model.check_counted(0));
}

#[test]
fn a_counted_reference_is_to_its_page_and_keeps_it() {
    let flaws = [
        (Flaw::CountedBlindly, "wrong bytes"),
        (Flaw::FreezeAnyCount, "Concurrent atomic store and `unsync_load`"),
    ];
    holds_and_catches(reclaim, &flaws);
}
