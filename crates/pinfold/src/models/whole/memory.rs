//! Waiting for memory.

use super::{House, Plan, SMALL, Stores, holds_and_catches, race};
use crate::mutant::Mutant;

/// A frame for nodes, two for data, four readers: all memory is being filled or held by other
/// readers.
fn all_on_their_way() {
    let read = |house: &House| {
        house.read_any().expect("the source does not fail");
    };
    race(&House::new(Plan { frames: 4, ..SMALL }), &[read, read, read, read]);
}

#[test]
fn who_waits_for_what_is_on_its_way_gets_memory() {
    let mutants = [(Mutant::SleepUntilTold, "deadlock"), (Mutant::FreezeAnyCount, "")];
    holds_and_catches(Stores::AtOnce, all_on_their_way, &mutants);
}

/// All frames are held. Giving one back wakes no thread; the waiter looks again by itself.
fn all_held() {
    let hold = |house: &House| {
        let held = [0, 1].map(|page| house.files[0].get(page).expect("the source does not fail"));
        for (page, held) in held.iter().enumerate() {
            house.check_bytes(0, page as u64, &held[..]);
        }
    };
    let read = |house: &House| {
        house.read(0, 3, 64).expect("the source does not fail");
    };
    race(&House::new(Plan { frames: 4, files: 1, ..SMALL }), &[hold, read]);
}

#[test]
fn who_waits_for_what_is_held_looks_again() {
    holds_and_catches(Stores::AtOnce, all_held, &[(Mutant::SleepUntilTold, "deadlock")]);
}

/// The daemon keeps some frames free while readers take them.
fn by_the_daemon() {
    let house = House::new(Plan { frames: 9, watermarks: (2, 4), ..SMALL });
    let read = |house: &House| {
        for _ in 0..4 {
            house.read_any().expect("the source does not fail");
        }
    };
    race(&house, &[read, read]);
}

#[test]
fn the_daemon_beside_readers() {
    holds_and_catches(Stores::AtOnce, by_the_daemon, &[(Mutant::FreezeAnyCount, "")]);
}
