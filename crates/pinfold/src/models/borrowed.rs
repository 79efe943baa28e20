//! The borrow: an announced folio does not change, whatever else happens to it.
//!
//! loom has no membarrier: both sides have a full fence here. loom treats `SeqCst` accesses as
//! acquire and release, but supports fences, and the protocol uses only fences.

use std::sync::Arc;

use super::{Model, RACE, holds_and_catches, moved, race};
use crate::access::borrow::Reader;
use crate::base::barrier::Barrier;
use crate::base::counters::Counters;
use crate::base::mutant::Mutant;
use crate::base::sync::{AtomicU32, Ordering};
use crate::frames::FrameNumber;
use crate::pages::freeze;
use crate::pages::readers::Readers;

pub(super) fn reader(model: &Model) -> Reader {
    Reader::new(model.core.readers.register().expect("there are two records"))
}

/// Borrows the page of the first file, if that succeeds at once, and reads it twice.
fn borrow_page(model: &Model, page: u64) {
    let reader = reader(model);
    if let Some(borrowed) = model.files[0].borrow_at_once(page, &reader) {
        assert!(!borrowed.is_counted());
        assert_eq!(borrowed.word(), model.sources[0].word(page), "wrong bytes");
        assert_eq!(borrowed.word(), model.sources[0].word(page), "wrong bytes");
    }
}

fn borrow_first(model: &Model) {
    borrow_page(model, 0);
}

fn borrow_second(model: &Model) {
    borrow_page(model, 1);
}

/// Drops the page from its file, and fills its frame anew if it is free then.
fn drop_and_refill(model: &Model) {
    freeze::drop_clean(&model.core, &model.files[0].mapping, 0..1);
    model.refill();
}

fn against_eviction() {
    race(&Model::only(), Model::evict_and_refill, borrow_first);
}

#[test]
fn what_is_borrowed_is_not_evicted() {
    let mutants = [
        (Mutant::AnnounceLate, RACE),
        (Mutant::AnnounceUnfenced, RACE),
        (Mutant::ScanUnfenced, RACE),
        (Mutant::NoScan, RACE),
        (Mutant::ClearRelaxed, RACE),
        (Mutant::FreezeStaysEven, RACE),
    ];
    holds_and_catches(against_eviction, &mutants);
}

/// Borrows the same page twice: the second time the slot remembers it.
fn borrow_again(model: &Model) {
    let reader = reader(model);
    for _ in 0..2 {
        if let Some(borrowed) = model.files[0].borrow_at_once(0, &reader) {
            assert_eq!(borrowed.word(), model.sources[0].word(0), "wrong bytes");
        }
    }
}

#[test]
fn what_a_slot_remembers_is_borrowed_only_if_it_is_still_there() {
    let against_eviction = || {
        let evict_and_refill = |model: &Model| {
            model.evict();
            // With another page of the same file: the file's number is checked, too.
            if model.core.frames.free_frames() > 0 {
                model.check(0, 1, 1);
            }
        };
        race(&Model::only(), evict_and_refill, borrow_again);
    };
    let mutants = [(Mutant::RecallBlindly, "wrong bytes"), (Mutant::AnnounceUnfenced, RACE)];
    holds_and_catches(against_eviction, &mutants);
}

/// The borrow as it is inlined into a program: in the first slot, without a fence of its own; by
/// the slow path if that fails.
fn borrow_shipped(model: &Model) {
    let reader = reader(model);
    let borrowed = model.files[0].borrow(0, &reader).expect("the source does not fail");
    assert!(!borrowed.is_counted());
    assert_eq!(borrowed.word(), model.sources[0].word(0), "wrong bytes");
    assert_eq!(borrowed.word(), model.sources[0].word(0), "wrong bytes");
}

fn shipped_against_eviction() {
    let model = Model::with_barrier(2, 0, Barrier::Membarrier);
    model.check(0, 0, 1);
    race(&model, Model::evict_and_refill, borrow_shipped);
}

#[test]
fn what_is_borrowed_without_a_fence_is_not_evicted() {
    let mutants = [
        (Mutant::AnnounceLate, RACE),
        (Mutant::AnnounceUnfenced, RACE),
        (Mutant::ScanUnfenced, RACE),
        (Mutant::NoScan, RACE),
        (Mutant::ClearRelaxed, RACE),
    ];
    holds_and_catches(shipped_against_eviction, &mutants);
}

fn against_invalidation() {
    race(&Model::only(), drop_and_refill, borrow_first);
}

#[test]
fn what_is_borrowed_and_invalidated_is_freed_later() {
    let mutants = [
        (Mutant::GoneAtOnce, RACE),
        (Mutant::AnnounceLate, RACE),
        (Mutant::AnnounceUnfenced, RACE),
        (Mutant::ScanUnfenced, RACE),
        (Mutant::ClearRelaxed, RACE),
    ];
    holds_and_catches(against_invalidation, &mutants);
}

/// Splits a folio of two pages, drops the second, and fills its frame anew.
fn against_split() {
    race(&moved::pair(), moved::split_and_refill, borrow_second);
}

#[test]
fn what_is_borrowed_is_not_split() {
    holds_and_catches(against_split, &[(Mutant::NoScan, RACE)]);
}

fn against_migration() {
    race(&moved::single(), moved::migrate_and_refill, borrow_second);
}

#[test]
fn what_is_borrowed_is_not_moved() {
    holds_and_catches(
        against_migration,
        &[(Mutant::NoScan, RACE), (Mutant::AnnounceUnfenced, RACE)],
    );
}

/// Borrows, upgrades, ends the borrow, and reads the page under the reference.
fn upgrade(model: &Model) {
    let reader = reader(model);
    let Some(borrowed) = model.files[0].borrow_at_once(0, &reader) else { return };
    let Ok(counted) = borrowed.upgrade() else { return };
    drop(borrowed);
    drop(reader);
    assert_eq!(counted.word(), model.sources[0].word(0), "wrong bytes");
}

fn upgrade_against_eviction() {
    race(&Model::only(), Model::evict_and_refill, upgrade);
}

fn upgrade_against_invalidation() {
    race(&Model::only(), drop_and_refill, upgrade);
}

#[test]
fn an_upgrade_is_not_too_late() {
    holds_and_catches(upgrade_against_eviction, &[(Mutant::UpgradeUnannounced, "wrong bytes")]);
}

#[test]
fn an_upgrade_of_what_is_invalidated_is_not_too_late() {
    holds_and_catches(upgrade_against_invalidation, &[(Mutant::UpgradeUnannounced, "wrong bytes")]);
}

/// A thread unregisters the first record while it borrows by the second; a freezer makes the
/// version odd and scans. The registry alone: with a whole cache around it this takes a minute.
fn leave_below() {
    const HEAD: FrameNumber = FrameNumber(5);
    let readers = Arc::new(Readers::new(Barrier::FullFence));
    let shared = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let (its_readers, its) = (readers.clone(), shared.clone());
    let thread = loom::thread::spawn(move || {
        let (version, freed) = &*its;
        let first = its_readers.register().expect("there are two records");
        let second = its_readers.register().expect("there are two records");
        second.slots()[0].store(HEAD.0, Ordering::Release);
        second.light_fence();
        let even = version.load(Ordering::Relaxed) == 0;
        drop(first);
        assert!(!even || freed.load(Ordering::Relaxed) == 0, "free, and borrowed");
        second.slots()[0].store(0, Ordering::Release);
    });
    let (version, freed) = &*shared;
    version.store(1, Ordering::Relaxed);
    if !readers.announced(&[HEAD], &Counters::new()).has(0) {
        freed.store(1, Ordering::Relaxed);
    }
    thread.join().expect("the other thread");
}

#[test]
fn a_reader_that_leaves_hides_no_other() {
    let mutants = [
        (Mutant::LeaveByNumber, "free, and borrowed"),
        (Mutant::RegisterLate, "free, and borrowed"),
        (Mutant::ScanUnfenced, "free, and borrowed"),
    ];
    holds_and_catches(leave_below, &mutants);
}

/// A record is used, unregistered and reused, the second time without a guard that clears its slot.
fn leave_and_enter(model: &Model) {
    borrow_page(model, 0);
    let reader = reader(model);
    if let Some(borrowed) = model.files[0].borrow_at_once(0, &reader) {
        assert_eq!(borrowed.word(), model.sources[0].word(0), "wrong bytes");
        std::mem::forget(borrowed);
    }
}

fn entering_against_eviction() {
    race(&Model::only(), Model::evict_and_refill, leave_and_enter);
}

#[test]
fn a_record_that_is_used_again_protects_its_new_thread() {
    let mutants =
        [(Mutant::ClearRelaxed, RACE), (Mutant::LeaveRelaxed, RACE), (Mutant::NoScan, RACE)];
    holds_and_catches(entering_against_eviction, &mutants);
}
