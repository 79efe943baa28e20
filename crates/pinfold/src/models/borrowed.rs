//! The borrow: what is announced stays what it is, through whatever others want with its folio.
//!
//! loom has no membarrier; both sides have a full fence here. It treats accesses that are `SeqCst` as
//! acquire and release, but knows fences for what they are, and the protocol has only those.

use std::sync::Arc;

use super::{Model, RACE, holds_and_catches, moved, race};
use crate::borrow::Reader;
use crate::counters::Counters;
use crate::flaw::Flaw;
use crate::frame::FrameNumber;
use crate::freeze;
use crate::readers::{Barrier, Readers};
use crate::sync::{AtomicU32, Ordering};

pub(super) fn reader(model: &Model) -> Reader {
    Reader::new(model.core.readers.register().expect("there are two records"))
}

/// Borrows the page of the first file, if that can be had at once, and looks at it twice.
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

/// The page is dropped from its file, and its frame, if it is free then, filled anew.
fn drop_and_refill(model: &Model) {
    freeze::drop_clean(&model.core, &model.files[0].mapping, 0..1);
    model.refill();
}

fn against_eviction() {
    race(&Model::only(), Model::evict_and_refill, borrow_first);
}

#[test]
fn what_is_borrowed_is_not_evicted() {
    let flaws = [
        (Flaw::AnnounceLate, RACE),
        (Flaw::AnnounceUnfenced, RACE),
        (Flaw::ScanUnfenced, RACE),
        (Flaw::NoScan, RACE),
        (Flaw::ClearRelaxed, RACE),
        (Flaw::FreezeStaysEven, RACE),
    ];
    holds_and_catches(against_eviction, &flaws);
}

/// The same page twice: the second time the slot remembers it.
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
            // With another page of the same file: that much is looked at.
            if model.core.frames.free_frames() > 0 {
                model.check(0, 1, 1);
            }
        };
        race(&Model::only(), evict_and_refill, borrow_again);
    };
    let flaws = [(Flaw::RecallBlindly, "wrong bytes"), (Flaw::AnnounceUnfenced, RACE)];
    holds_and_catches(against_eviction, &flaws);
}

/// The borrow as it is compiled into a program: in the first slot, without a fence of its own, and
/// the slow way if that is not to be had.
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
    let flaws = [
        (Flaw::AnnounceLate, RACE),
        (Flaw::AnnounceUnfenced, RACE),
        (Flaw::ScanUnfenced, RACE),
        (Flaw::NoScan, RACE),
        (Flaw::ClearRelaxed, RACE),
    ];
    holds_and_catches(shipped_against_eviction, &flaws);
}

fn against_invalidation() {
    race(&Model::only(), drop_and_refill, borrow_first);
}

#[test]
fn what_is_borrowed_and_invalidated_is_freed_later() {
    let flaws = [
        (Flaw::GoneAtOnce, RACE),
        (Flaw::AnnounceLate, RACE),
        (Flaw::AnnounceUnfenced, RACE),
        (Flaw::ScanUnfenced, RACE),
        (Flaw::ClearRelaxed, RACE),
    ];
    holds_and_catches(against_invalidation, &flaws);
}

/// A folio of two pages is split, the second dropped, and its frame filled anew.
fn against_split() {
    race(&moved::pair(), moved::split_and_refill, borrow_second);
}

#[test]
fn what_is_borrowed_is_not_split() {
    holds_and_catches(against_split, &[(Flaw::NoScan, RACE)]);
}

fn against_migration() {
    race(&moved::single(), moved::migrate_and_refill, borrow_second);
}

#[test]
fn what_is_borrowed_is_not_moved() {
    holds_and_catches(against_migration, &[(Flaw::NoScan, RACE), (Flaw::AnnounceUnfenced, RACE)]);
}

/// Borrows, upgrades, ends the borrow, and looks at the page under the reference.
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
    holds_and_catches(upgrade_against_eviction, &[(Flaw::UpgradeUnannounced, "wrong bytes")]);
}

#[test]
fn an_upgrade_of_what_is_invalidated_is_not_too_late() {
    holds_and_catches(upgrade_against_invalidation, &[(Flaw::UpgradeUnannounced, "wrong bytes")]);
}

/// A thread leaves the first record while it borrows by the second; a freezer makes the version odd and
/// looks. The registry alone: with a whole cache around it this takes a minute.
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
    let flaws = [
        (Flaw::LeaveByNumber, "free, and borrowed"),
        (Flaw::RegisterLate, "free, and borrowed"),
        (Flaw::ScanUnfenced, "free, and borrowed"),
    ];
    holds_and_catches(leave_below, &flaws);
}

/// A record is used, left and used again, the second time without a guard that clears its slot.
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
    let flaws = [(Flaw::ClearRelaxed, RACE), (Flaw::LeaveRelaxed, RACE), (Flaw::NoScan, RACE)];
    holds_and_catches(entering_against_eviction, &flaws);
}
