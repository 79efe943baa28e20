//! Waiting for memory.

use super::{House, Plan, SMALL, Stores, holds_and_catches, race};
use crate::flaw::Flaw;

/// A frame for nodes and two for data, four readers: what others fill and hold is all there is.
fn all_on_their_way() {
    let read = |house: &House| {
        house.read_any().expect("the source does not fail");
    };
    race(&House::new(Plan { frames: 4, ..SMALL }), &[read, read, read, read]);
}

#[test]
fn who_waits_for_what_is_on_its_way_gets_memory() {
    let flaws = [(Flaw::SleepUntilTold, "deadlock"), (Flaw::FreezeAnyCount, "")];
    holds_and_catches(Stores::AtOnce, all_on_their_way, &flaws);
}

/// All frames are held; whoever lets go tells nobody, and whoever waits looks again by itself.
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
    // So many that all is in the policy's small queue. It offers nothing of main while small has
    // its share, be all of small held.
    let plan = Plan { frames: 4, files: 1, ..SMALL };
    race(&House::new(plan), &[hold, read]);
}

#[test]
fn who_waits_for_what_is_held_looks_again() {
    holds_and_catches(Stores::AtOnce, all_held, &[(Flaw::SleepUntilTold, "deadlock")]);
}

/// The daemon keeps some frames free beside readers that take them.
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
    let flaws = [(Flaw::FreezeAnyCount, ""), (Flaw::NoLastLook, "wrong bytes")];
    holds_and_catches(Stores::AtOnce, by_the_daemon, &flaws);
}
