//! The short read: what it returns is bytes of the page that it was asked for, of one moment.

use super::{Model, holds_and_catches, race, race_of_three};
use crate::flaw::Flaw;

/// A page is read while it is evicted and its frame filled with a page of another file. There is
/// one frame, so that it must be the same.
fn reuse() {
    race(&Model::only(), Model::evict_and_refill, |model| model.check_shortly(0));
}

#[test]
fn a_short_read_returns_bytes_of_its_page() {
    let flaws = [
        (Flaw::NoLastLook, "wrong bytes"),
        (Flaw::LastLookUnfenced, "wrong bytes"),
        (Flaw::AnyIdentity, "wrong bytes"),
        (Flaw::FreezeStaysEven, "wrong bytes"),
    ];
    holds_and_catches(reuse, &flaws);
}

/// The same by three threads: one evicts, another fills the frame, a third reads. The fence of the
/// thread that made the version odd says nothing of what another thread stores.
fn reuse_by_another() {
    race_of_three(&Model::only(), |model| model.check_shortly(0), Model::evict, Model::refill);
}

#[test]
fn a_short_read_of_a_frame_that_another_thread_fills() {
    let flaws = [(Flaw::RefillUnfenced, "wrong bytes"), (Flaw::NoLastLook, "wrong bytes")];
    holds_and_catches(reuse_by_another, &flaws);
}
