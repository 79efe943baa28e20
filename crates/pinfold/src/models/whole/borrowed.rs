//! The shipped borrow: no fence of its own, a membarrier on the other side, delayed stores.

use super::{Fixture, PAGE_BYTES, Plan, SMALL, Stores, draw, holds_and_catches, race};
use crate::access::borrow::Reader;
use crate::base::barrier::Barrier;
use crate::base::mutant::Mutant;
use crate::base::sync::scheduled;
use crate::pages::freeze;
use crate::pages::reclaim;

const PLAN: Plan = Plan { frames: 6, ..SMALL };

/// Reads a held page again and again while other threads run.
fn look_long(fixture: &Fixture, file: usize, page: u64, bytes: &[u8]) {
    for _ in 0..3 {
        fixture.check_bytes(file, page, &bytes[..PAGE_BYTES]);
        (0..20).for_each(|_| scheduled::point());
    }
    fixture.check_bytes(file, page, &bytes[..PAGE_BYTES]);
}

/// Borrows pages, each twice in a row, and reads each again after other threads have run.
fn borrow_some(fixture: &Fixture) {
    let reader = Reader::new(fixture.core.readers.register().expect("there are records"));
    for _ in 0..2 {
        let (file, page) = (draw(2) as usize, draw(3));
        for _ in 0..2 {
            let guard =
                fixture.files[file].borrow(page, &reader).expect("the source does not fail");
            look_long(fixture, file, page, &guard);
        }
    }
}

fn read_some(fixture: &Fixture) {
    for _ in 0..3 {
        fixture.read(draw(2) as usize, draw(3), 64).expect("the source does not fail");
    }
}

fn evict_some(fixture: &Fixture) {
    for _ in 0..2 {
        fixture.evict();
        read_some(fixture);
    }
}

/// Against eviction and refills.
fn evicted() {
    race(&Fixture::new(PLAN), &[borrow_some, borrow_some, evict_some]);
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

fn drop_some(fixture: &Fixture) {
    for _ in 0..2 {
        fixture.invalidate_any();
        read_some(fixture);
    }
}

/// Against invalidation: an announced folio is freed later.
fn invalidated() {
    race(&Fixture::new(PLAN), &[borrow_some, borrow_some, drop_some]);
}

#[test]
fn what_is_borrowed_without_a_fence_and_dropped_is_freed_later() {
    let mutants = [(Mutant::GoneAtOnce, "wrong bytes"), (Mutant::ScanUnfenced, "wrong bytes")];
    holds_and_catches(Stores::Buffered, invalidated, &mutants);
}

/// With fences of the readers' own, for systems without membarrier.
fn fenced() {
    let plan = Plan { barrier: Barrier::FullFence, ..PLAN };
    race(&Fixture::new(plan), &[borrow_some, borrow_some, evict_some]);
}

#[test]
fn what_is_borrowed_with_a_fence_is_not_evicted() {
    let mutants = [(Mutant::AnnounceUnfenced, "wrong bytes"), (Mutant::NoScan, "wrong bytes")];
    holds_and_catches(Stores::Buffered, fenced, &mutants);
}

/// The system refuses membarrier while a page is borrowed. The page is dropped, and can be freed
/// only when the reader has unregistered. Readers registered later have fences.
fn refused() {
    let fixture = Fixture::new(Plan { frames: 12, ..PLAN });
    fixture.read(0, 0, 64).expect("the source does not fail");
    let borrow = |fixture: &Fixture| {
        for _ in 0..2 {
            let reader = Reader::new(fixture.core.readers.register().expect("there are records"));
            let guard = fixture.files[0].borrow(0, &reader).expect("the source does not fail");
            look_long(fixture, 0, 0, &guard);
        }
    };
    let refuse = |fixture: &Fixture| {
        fixture.core.readers.refuse_membarrier();
        for page in 0..2 {
            freeze::drop_clean(&fixture.core, &fixture.files[0].mapping, 0..1);
            fixture.read(1, page, 64).expect("the source does not fail");
        }
    };
    race(&fixture, &[borrow, refuse]);
}

#[test]
fn what_is_borrowed_when_the_membarrier_is_refused_stays() {
    holds_and_catches(Stores::Buffered, refused, &[(Mutant::CollectUnfenced, "wrong bytes")]);
}

/// Against compaction and splits.
fn moved() {
    let plan = Plan { frames: 24, order_max: 1, ..SMALL };
    let change = |fixture: &Fixture| {
        reclaim::compact(&fixture.core);
        reclaim::migrate_range(&fixture.core, &fixture.files[0].mapping, 0..4);
        reclaim::split_range(&fixture.core, &fixture.files[1].mapping, 0..4);
        fixture.invalidate_any();
        read_some(fixture);
    };
    race(&Fixture::new(plan), &[borrow_some, borrow_some, change]);
}

#[test]
fn what_is_borrowed_without_a_fence_is_not_moved() {
    let mutants = [(Mutant::NoScan, ""), (Mutant::ScanUnfenced, "")];
    holds_and_catches(Stores::Buffered, moved, &mutants);
}
