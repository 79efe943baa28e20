//! Batches over several files, and compaction.

use super::{Fixture, Plan, SMALL, Stores, holds_and_catches, race, spawn};
use crate::base::mutant::Mutant;
use crate::frames::Order;
use crate::pages::reclaim;

/// Three runs of eight frames, the first of which has the table and the index nodes.
const RUNS: Plan = Plan { frames: 24, pages: 6, ..SMALL };

fn read_some(fixture: &Fixture) {
    for _ in 0..3 {
        fixture.read_any().expect("the source does not fail");
    }
}

fn evict_some(fixture: &Fixture) {
    reclaim::evict(&fixture.core, 3);
}

/// Two threads evict from both files at once, in batches of three: one batch starts with the first
/// file, the next one with the second.
fn batches() {
    let fixture = Fixture::new(Plan { frames: 10, ..SMALL });
    // As many as there is memory for: after an eviction both batches would start with one file.
    for n in 0..7 {
        fixture.read(n % 2, n as u64 / 2, 64).expect("the source does not fail");
    }
    race(&fixture, &[evict_some, evict_some, read_some]);
}

#[test]
fn batches_over_several_files_take_their_mutexes_in_one_order() {
    holds_and_catches(Stores::AtOnce, batches, &[(Mutant::BatchUnordered, "deadlock")]);
}

fn compact(fixture: &Fixture) {
    reclaim::compact(&fixture.core);
}

/// Both runs hold twelve pages, four of them in the one that is half free; then the pages are read
/// while two threads make room.
fn runs() {
    let fixture = Fixture::new(RUNS);
    let half = Order::new(Order::MAX.get() - 1).expect("half of a run");
    let halves = [half; 2].map(|order| fixture.core.frames.alloc(order).expect("half of a run"));
    let [first, second] = halves;
    assert!(fixture.core.frames.is_movable(first) && second == first.after(half.frames()));
    let read_all = |pages: std::ops::Range<u64>| {
        for (file, page) in pages.flat_map(|page| [(0, page), (1, page)]) {
            fixture.read(file, page, 64).expect("the source does not fail");
        }
    };
    read_all(0..4);
    fixture.core.put(second);
    read_all(4..6);
    fixture.core.put(first);
    let threads = [compact, compact, read_some, read_some].map(|side| {
        let fixture = fixture.clone();
        spawn(move || side(&fixture))
    });
    for thread in threads {
        thread.join().expect("a thread of the model");
    }
    let stats = fixture.core.frames.stats();
    assert_eq!(stats.held_frames, 0, "a run is held by nobody");
    assert!(stats.free_frames > Order::MAX.frames(), "nothing else was read");
    assert!(reclaim::compact(&fixture.core), "nobody holds anything, and no run can be emptied");
    fixture.ends();
}

#[test]
fn runs_are_emptied_beside_readers() {
    let mutants = [
        (Mutant::HoldLeaks, "no run can be emptied"),
        (Mutant::FreezeAnyCount, ""),
        (Mutant::MoveWakesNobody, "deadlock"),
    ];
    holds_and_catches(Stores::AtOnce, runs, &mutants);
}
