//! Waiting for memory.

use super::{Fixture, Plan, SMALL, Stores, holds_and_catches, race};
use crate::base::mutant::Mutant;

/// A frame for nodes, two for data, four readers: all memory is being filled or held by other
/// readers.
fn all_on_their_way() {
    let read = |fixture: &Fixture| {
        fixture.read_any().expect("the source does not fail");
    };
    race(&Fixture::new(Plan { frames: 4, ..SMALL }), &[read, read, read, read]);
}

#[test]
fn who_waits_for_what_is_on_its_way_gets_memory() {
    let mutants = [(Mutant::SleepUntilWoken, "deadlock"), (Mutant::FreezeAnyCount, "")];
    holds_and_catches(Stores::AtOnce, all_on_their_way, &mutants);
}

/// All frames are held. Giving one back wakes no thread; the waiter looks again by itself.
fn all_held() {
    let hold = |fixture: &Fixture| {
        let held = [0, 1].map(|page| fixture.files[0].get(page).expect("the source does not fail"));
        for (page, held) in held.iter().enumerate() {
            fixture.check_bytes(0, page as u64, &held[..]);
        }
    };
    let read = |fixture: &Fixture| {
        fixture.read(0, 3, 64).expect("the source does not fail");
    };
    race(&Fixture::new(Plan { frames: 4, files: 1, ..SMALL }), &[hold, read]);
}

#[test]
fn who_waits_for_what_is_held_looks_again() {
    holds_and_catches(Stores::AtOnce, all_held, &[(Mutant::SleepUntilWoken, "deadlock")]);
}

/// The daemon keeps some frames free while readers take them.
fn by_the_daemon() {
    let fixture = Fixture::new(Plan { frames: 9, watermarks: (2, 4), ..SMALL });
    let read = |fixture: &Fixture| {
        for _ in 0..4 {
            fixture.read_any().expect("the source does not fail");
        }
    };
    race(&fixture, &[read, read]);
}

#[test]
fn the_daemon_beside_readers() {
    holds_and_catches(Stores::AtOnce, by_the_daemon, &[(Mutant::FreezeAnyCount, "")]);
}
