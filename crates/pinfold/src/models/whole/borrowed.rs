//! The shipped borrow: no fence of its own, a membarrier on the other side, delayed stores.

use super::{House, PAGE_BYTES, Plan, SMALL, Stores, draw, holds_and_catches, race};
use crate::borrow::Reader;
use crate::freeze;
use crate::mutant::Mutant;
use crate::readers::Barrier;
use crate::reclaim;
use crate::sync::scheduled;

const PLAN: Plan = Plan { frames: 6, ..SMALL };

/// Reads a held page again and again while other threads run.
fn look_long(house: &House, file: usize, page: u64, bytes: &[u8]) {
    for _ in 0..3 {
        house.check_bytes(file, page, &bytes[..PAGE_BYTES]);
        (0..20).for_each(|_| scheduled::point());
    }
    house.check_bytes(file, page, &bytes[..PAGE_BYTES]);
}

/// Borrows pages, each twice in a row, and reads each again after other threads have run.
fn borrow_some(house: &House) {
    let reader = Reader::new(house.core.readers.register().expect("there are records"));
    for _ in 0..2 {
        let (file, page) = (draw(2) as usize, draw(3));
        for _ in 0..2 {
            let guard = house.files[file].borrow(page, &reader).expect("the source does not fail");
            look_long(house, file, page, &guard);
        }
    }
}

fn read_some(house: &House) {
    for _ in 0..3 {
        house.read(draw(2) as usize, draw(3), 64).expect("the source does not fail");
    }
}

fn evict_some(house: &House) {
    for _ in 0..2 {
        house.evict();
        read_some(house);
    }
}

/// Against eviction and refills.
fn evicted() {
    race(&House::new(PLAN), &[borrow_some, borrow_some, evict_some]);
}

#[test]
fn what_is_borrowed_without_a_fence_is_not_evicted() {
    let mutants = [
        (Mutant::AnnounceLate, "wrong bytes"),
        (Mutant::NoScan, "wrong bytes"),
        (Mutant::ScanUnfenced, "wrong bytes"),
        (Mutant::RecallBlindly, ""),
    ];
    holds_and_catches(Stores::Buffered, evicted, &mutants);
}

fn drop_some(house: &House) {
    for _ in 0..2 {
        house.invalidate_any();
        read_some(house);
    }
}

/// Against invalidation: an announced folio is freed later.
fn invalidated() {
    race(&House::new(PLAN), &[borrow_some, borrow_some, drop_some]);
}

#[test]
fn what_is_borrowed_without_a_fence_and_dropped_is_freed_later() {
    let mutants = [(Mutant::GoneAtOnce, "wrong bytes"), (Mutant::ScanUnfenced, "wrong bytes")];
    holds_and_catches(Stores::Buffered, invalidated, &mutants);
}

/// With fences of the readers' own, for systems without membarrier.
fn fenced() {
    let plan = Plan { barrier: Barrier::FullFence, ..PLAN };
    race(&House::new(plan), &[borrow_some, borrow_some, evict_some]);
}

#[test]
fn what_is_borrowed_with_a_fence_is_not_evicted() {
    let mutants = [(Mutant::AnnounceUnfenced, "wrong bytes"), (Mutant::NoScan, "wrong bytes")];
    holds_and_catches(Stores::Buffered, fenced, &mutants);
}

/// The system refuses membarrier while a page is borrowed. The page is dropped, and can be freed
/// only when the reader has unregistered. Readers registered later have fences.
fn refused() {
    let house = House::new(Plan { frames: 12, ..PLAN });
    house.read(0, 0, 64).expect("the source does not fail");
    let borrow = |house: &House| {
        for _ in 0..2 {
            let reader = Reader::new(house.core.readers.register().expect("there are records"));
            let guard = house.files[0].borrow(0, &reader).expect("the source does not fail");
            look_long(house, 0, 0, &guard);
        }
    };
    let refuse = |house: &House| {
        house.core.readers.refuse_membarrier();
        for page in 0..2 {
            freeze::drop_clean(&house.core, &house.files[0].mapping, 0..1);
            house.read(1, page, 64).expect("the source does not fail");
        }
    };
    race(&house, &[borrow, refuse]);
}

#[test]
fn what_is_borrowed_when_the_membarrier_is_refused_stays() {
    holds_and_catches(Stores::Buffered, refused, &[(Mutant::CollectUnfenced, "wrong bytes")]);
}

/// Against compaction and splits.
fn moved() {
    let plan = Plan { frames: 24, order_max: 1, ..SMALL };
    let change = |house: &House| {
        reclaim::compact(&house.core);
        reclaim::migrate_range(&house.core, &house.files[0].mapping, 0..4);
        reclaim::split_range(&house.core, &house.files[1].mapping, 0..4);
        house.invalidate_any();
        read_some(house);
    };
    race(&House::new(plan), &[borrow_some, borrow_some, change]);
}

#[test]
fn what_is_borrowed_without_a_fence_is_not_moved() {
    let mutants = [(Mutant::NoScan, ""), (Mutant::ScanUnfenced, "")];
    holds_and_catches(Stores::Buffered, moved, &mutants);
}
