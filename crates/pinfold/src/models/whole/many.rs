//! Batches and prefetches in whole caches: against eviction, against dropping, against each other.

use super::{Fixture, PAGE, Plan, SMALL, Stores, draw, holds_and_catches, race};
use crate::access::borrow::Reader;
use crate::access::many::{self, ReadAt};
use crate::base::mutant::Mutant;
use crate::error::Result;

impl Fixture {
    /// Copies of `pages` in one batch, each checked.
    fn read_batch(&self, file: usize, pages: &[u64]) -> Result<()> {
        let mut bufs = vec![[0xEE; 64]; pages.len()];
        let reads = bufs.iter_mut().zip(pages);
        let mut reads: Vec<_> = reads.map(|(buf, page)| ReadAt::new(page * PAGE, buf)).collect();
        let all = self.files[file].read_many(&mut reads);
        for (read, &page) in reads.iter().zip(pages) {
            if let Ok(got) = read.result {
                assert_eq!(got, 64, "less than there is");
                self.check_bytes(file, page, read.buf);
            }
        }
        all
    }

    /// Counted guards of them.
    fn get_batch(&self, file: usize, pages: &[u64]) -> Result<()> {
        let guards = self.files[file].get_many(pages)?;
        for _ in 0..2 {
            for (guard, &page) in guards.iter().zip(pages) {
                self.check_bytes(file, page, guard);
            }
            crate::base::sync::scheduled::point();
        }
        Ok(())
    }

    /// Borrows of them.
    fn borrow_batch(&self, file: usize, pages: &[u64]) -> Result<()> {
        let reader = Reader::new(self.core.readers.register()?);
        let guards = self.files[file].borrow_many(pages, &reader)?;
        for _ in 0..2 {
            for (guard, &page) in guards.iter().zip(pages) {
                self.check_bytes(file, page, guard);
            }
            (0..10).for_each(|_| crate::base::sync::scheduled::point());
        }
        Ok(())
    }
}

/// So many pages of four, some perhaps twice.
fn some_pages(number: u64) -> Vec<u64> {
    (0..number).map(|_| draw(4)).collect()
}

const TIGHT: Plan = Plan { frames: 7, device: true, ..SMALL };

fn copy_many(fixture: &Fixture) {
    for _ in 0..2 {
        let pages = some_pages(4);
        fixture.read_batch(draw(2) as usize, &pages).expect("the source does not fail");
    }
}

/// Batches of up to four pages of eight, in four frames: each evicts what the others have read, and
/// wants what they are reading.
fn copies() {
    race(&Fixture::new(TIGHT), &[copy_many, copy_many, copy_many]);
}

#[test]
fn batches_of_copies_with_too_little_memory_all_end() {
    let mutants = [
        (Mutant::WakeFirst, ""),
        (Mutant::FreezeStaysEven, ""),
        (Mutant::InsertBlindly, "the range was checked"),
    ];
    holds_and_catches(Stores::AtOnce, copies, &mutants);
}

/// Two frames: one thread holds a page while it reads another one, which is among those that a
/// batch wants. If the batch waited for memory with that page on its way, neither would go on.
fn starved() {
    let hold_and_read = |fixture: &Fixture| {
        for _ in 0..2 {
            let held = fixture.files[1].get(0).expect("the source does not fail");
            fixture.read(0, draw(3), 64).expect("the source does not fail");
            fixture.check_bytes(1, 0, &held);
        }
    };
    let copy = |fixture: &Fixture| {
        fixture.read_batch(0, &[0, 1, 2]).expect("the source does not fail");
    };
    race(&Fixture::new(Plan { frames: 4, ..TIGHT }), &[hold_and_read, copy]);
}

#[test]
fn a_batch_with_pages_on_their_way_waits_for_no_memory() {
    holds_and_catches(Stores::AtOnce, starved, &[(Mutant::GroupsWait, "")]);
}

fn hold_some(fixture: &Fixture) {
    for _ in 0..2 {
        let pages = some_pages(3);
        fixture.get_batch(draw(2) as usize, &pages).expect("the source does not fail");
    }
}

fn borrow_some(fixture: &Fixture) {
    for _ in 0..2 {
        let pages = some_pages(3);
        fixture.borrow_batch(draw(2) as usize, &pages).expect("the source does not fail");
    }
}

fn evict_some(fixture: &Fixture) {
    for _ in 0..4 {
        fixture.evict();
        fixture.read_any().expect("the source does not fail");
    }
}

const GUARDED: Plan = Plan { frames: 12, device: true, ..SMALL };

/// Guards against eviction and refills.
fn guards() {
    race(&Fixture::new(GUARDED), &[hold_some, borrow_some, evict_some]);
}

#[test]
fn what_a_batch_guards_is_not_evicted() {
    let mutants = [
        (Mutant::NoScan, "wrong bytes"),
        (Mutant::ScanUnfenced, "wrong bytes"),
        (Mutant::FreezeAnyCount, ""),
        (Mutant::CountedBlindly, ""),
    ];
    holds_and_catches(Stores::Buffered, guards, &mutants);
}

/// Guards of a batch while pages are dropped.
fn dropped() {
    let drop_some = |fixture: &Fixture| {
        for _ in 0..3 {
            fixture.invalidate_any();
            fixture.read_any().expect("the source does not fail");
        }
    };
    race(&Fixture::new(GUARDED), &[hold_some, borrow_some, copy_many, drop_some]);
}

#[test]
fn batches_of_what_is_dropped() {
    let mutants = [
        (Mutant::GoneAtOnce, "wrong bytes"),
        (Mutant::LandBlindly, ""),
        (Mutant::NoLastLook, "wrong bytes"),
    ];
    holds_and_catches(Stores::Buffered, dropped, &mutants);
}

fn prefetch_some(fixture: &Fixture) {
    for file in 0..2 {
        let pages = some_pages(3);
        many::prefetch(&fixture.files[file], &pages).expect("this process owns it");
    }
}

/// Prefetches against single readers, batches, and pages dropped, with a source that fails now and
/// then.
fn prefetches() {
    let read = |fixture: &Fixture| {
        for _ in 0..3 {
            if let Err(error) = fixture.read(draw(2) as usize, draw(4), 64) {
                assert!(error.to_string().contains("as the model wants it"), "{error}");
            }
        }
    };
    let batch = |fixture: &Fixture| {
        if let Err(error) = fixture.read_batch(draw(2) as usize, &some_pages(4)) {
            assert!(error.to_string().contains("as the model wants it"), "{error}");
        }
        fixture.invalidate_any();
    };
    let plan = Plan { frames: 10, order_max: 1, ..TIGHT };
    race(&Fixture::failing(plan, 4), &[prefetch_some, read, batch]);
}

#[test]
fn what_is_prefetched_arrives_or_ends_for_all_who_wait() {
    let mutants = [
        (Mutant::ForgetUnsubmitted, ""),
        (Mutant::WakeFirst, "deadlock"),
        (Mutant::InsertBlindly, "the range was checked"),
    ];
    holds_and_catches(Stores::AtOnce, prefetches, &mutants);
}
