//! Batches over several files, and compaction.

use super::{House, Plan, SMALL, Stores, holds_and_catches, race, spawn};
use crate::frame::Order;
use crate::mutant::Mutant;
use crate::reclaim;

/// Three runs of eight frames, the first of which has the table and the index nodes.
const RUNS: Plan = Plan { frames: 24, pages: 6, ..SMALL };

fn read_some(house: &House) {
    for _ in 0..3 {
        house.read_any().expect("the source does not fail");
    }
}

fn evict_some(house: &House) {
    reclaim::evict(&house.core, 3, 64);
}

/// Two threads evict from both files at once, in batches of three: one batch starts with the first
/// file, the next one with the second.
fn batches() {
    let house = House::new(Plan { frames: 10, ..SMALL });
    // As many as there is memory for: after an eviction both batches would start with one file.
    for n in 0..7 {
        house.read(n % 2, n as u64 / 2, 64).expect("the source does not fail");
    }
    race(&house, &[evict_some, evict_some, read_some]);
}

#[test]
fn batches_over_several_files_take_their_mutexes_in_one_order() {
    holds_and_catches(Stores::AtOnce, batches, &[(Mutant::BatchUnordered, "deadlock")]);
}

fn compact(house: &House) {
    reclaim::compact(&house.core);
}

/// Both runs hold twelve pages, four of them in the one that is half free; then the pages are read
/// while two threads compact.
fn runs() {
    let house = House::new(RUNS);
    let half = Order::new(Order::MAX.get() - 1).expect("half of a run");
    let halves = [half; 2].map(|order| house.core.frames.alloc(order).expect("half of a run"));
    let [first, second] = halves;
    assert!(house.core.frames.is_movable(first) && second == first.after(half.frames()));
    let read_all = |pages: std::ops::Range<u64>| {
        for (file, page) in pages.flat_map(|page| [(0, page), (1, page)]) {
            house.read(file, page, 64).expect("the source does not fail");
        }
    };
    read_all(0..4);
    house.core.put(second);
    read_all(4..6);
    house.core.put(first);
    let threads = [compact as fn(&House), compact, read_some, read_some].map(|side| {
        let house = house.clone();
        spawn(move || side(&house))
    });
    for thread in threads {
        thread.join().expect("a thread of the model");
    }
    let stats = house.core.frames.stats();
    assert_eq!(stats.held_frames, 0, "a run is held by nobody");
    assert!(stats.free_frames > Order::MAX.frames(), "nothing else was read");
    assert!(reclaim::compact(&house.core), "nobody holds anything, and no run can be emptied");
    house.ends();
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
