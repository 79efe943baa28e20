//! The short read: it returns bytes of the page asked for, of one moment.

use super::{Model, holds_and_catches, race, race_of_three};
use crate::base::mutant::Mutant;

/// A page is read while it is evicted and its frame filled with a page of another file. There is
/// only one frame, so it must be the same.
fn reuse() {
    race(&Model::only(), Model::evict_and_refill, |model| model.check_shortly(0));
}

#[test]
fn a_short_read_returns_bytes_of_its_page() {
    let mutants = [
        (Mutant::NoLastLook, "wrong bytes"),
        (Mutant::LastLookUnfenced, "wrong bytes"),
        (Mutant::AnyIdentity, "wrong bytes"),
        (Mutant::FreezeStaysEven, "wrong bytes"),
    ];
    holds_and_catches(reuse, &mutants);
}

/// A frame's reuse by three threads: one evicts, another fills the frame, a third reads. The fence
/// of the thread that made the version odd does not order the stores of another thread.
fn reuse_by_another() {
    race_of_three(&Model::only(), |model| model.check_shortly(0), Model::evict, Model::refill);
}

#[test]
fn a_short_read_of_a_frame_that_another_thread_fills() {
    let mutants = [(Mutant::RefillUnfenced, "wrong bytes"), (Mutant::NoLastLook, "wrong bytes")];
    holds_and_catches(reuse_by_another, &mutants);
}
