//! The two passes of a batch: what comes of them is what single hits would have given, whatever
//! happens between two passes.

use super::borrowed::reader;
use super::{Barrier, Model, PAGE, RACE, holds_and_catches, holds_and_catches_within, race, word};
use crate::access::many::ReadAt;
use crate::base::mutant::Mutant;

/// Copies the first page of the first file twice in a batch, as far as that succeeds at once.
fn read_batch(model: &Model) {
    let (mut first, mut again) = ([0; 8], [0; 8]);
    let mut reads = [ReadAt::new(0, &mut first), ReadAt::new(0, &mut again)];
    let mut left = Vec::new();
    model.files[0].read_by_hints(&mut reads, &mut left);
    for (at, buf) in [first, again].iter().enumerate() {
        assert!(left.contains(&at) || word(buf) == model.sources[0].word(0), "wrong bytes");
    }
}

#[test]
fn a_batch_copies_bytes_of_its_pages() {
    let mutants = [
        (Mutant::NoLastLook, "wrong bytes"),
        (Mutant::LastLookUnfenced, "wrong bytes"),
        (Mutant::AnyIdentity, "wrong bytes"),
        (Mutant::FreezeStaysEven, "wrong bytes"),
    ];
    let against_eviction = || race(&Model::only(), Model::evict_and_refill, read_batch);
    // Two preemptions take more than ten minutes, as a first use stores which part it was of.
    holds_and_catches_within(1, against_eviction, &mutants);
}

/// Holds it twice.
fn get_batch(model: &Model) {
    let mut guards = Vec::new();
    model.files[0].get_by_hints(&[0, 0], &mut guards, &mut Vec::new());
    for guard in &guards {
        assert_eq!(guard.word(), model.sources[0].word(0), "wrong bytes");
    }
}

#[test]
fn a_batch_of_guards_is_of_its_pages_and_keeps_them() {
    let mutants = [
        (Mutant::CountedBlindly, "wrong bytes"),
        (Mutant::FreezeAnyCount, ""),
        (Mutant::FreezeStaysEven, "Causality violation: Concurrent"),
    ];
    let against_eviction = || race(&Model::only(), Model::evict_and_refill, get_batch);
    // Two preemptions take three minutes, and show no more.
    holds_and_catches_within(1, against_eviction, &mutants);
}

/// Borrows it, once: a model's reader has one slot.
fn borrow_batch(model: &Model) {
    let reader = reader(model);
    let mut guards = Vec::new();
    model.files[0].borrow_by_hints(&[0], &reader, &mut guards, &mut Vec::new());
    for guard in &guards {
        assert_eq!(guard.word(), model.sources[0].word(0), "wrong bytes");
        assert_eq!(guard.word(), model.sources[0].word(0), "wrong bytes");
    }
}

#[test]
fn what_a_batch_borrows_is_not_evicted() {
    let mutants = [
        (Mutant::BatchFencedFirst, RACE),
        (Mutant::AnnounceLate, RACE),
        (Mutant::AnnounceUnfenced, RACE),
        (Mutant::ScanUnfenced, RACE),
        (Mutant::NoScan, RACE),
        (Mutant::ClearRelaxed, RACE),
    ];
    let against_eviction = || race(&Model::only(), Model::evict_and_refill, borrow_batch);
    holds_and_catches(against_eviction, &mutants);
}

/// Borrows it twice. A model's reader has one slot: the second is of a further record, and lasts.
fn borrow_further(model: &Model) {
    let reader = reader(model);
    let mut guards = Vec::new();
    model.files[0].borrow_by_hints(&[0, 0], &reader, &mut guards, &mut Vec::new());
    if guards.len() == 2 {
        let last = guards.swap_remove(1);
        drop(guards);
        assert!(!last.is_counted());
        assert_eq!(last.word(), model.sources[0].word(0), "wrong bytes");
        assert_eq!(last.word(), model.sources[0].word(0), "wrong bytes");
    }
}

#[test]
fn what_a_batch_borrows_in_further_slots_is_not_evicted() {
    let against_eviction = || {
        let model = Model::with_barrier(1, 0, Barrier::Membarrier);
        model.check(0, 0, 1);
        race(&model, Model::evict_and_refill, borrow_further);
    };
    // Only what is new here: the first slot announces the same page, and so hides other mutants.
    holds_and_catches(against_eviction, &[(Mutant::FurtherUnseen, RACE)]);
}

/// A batch's further guards, by a reader without a fence of its own.
#[test]
fn what_a_batch_borrows_without_a_fence_is_not_evicted() {
    let against_eviction = || {
        let model = Model::with_barrier(1, 0, Barrier::Membarrier);
        model.check(0, 0, 1);
        race(&model, Model::evict_and_refill, borrow_batch);
    };
    holds_and_catches(
        against_eviction,
        &[(Mutant::BatchFencedFirst, RACE), (Mutant::NoScan, RACE)],
    );
}

/// A batch in which one page is there and the other is not, beside a thread that wants the other
/// one, too.
#[test]
fn a_batch_and_a_reader_agree_who_fills() {
    let against_a_reader = || {
        let model = Model::new(3, 0);
        model.check(0, 0, 1);
        let read = |model: &Model| {
            let (mut first, mut second) = ([0; 8], [0; 8]);
            let mut reads = [ReadAt::new(PAGE, &mut second), ReadAt::new(0, &mut first)];
            model.files[0].read_many(&mut reads).expect("the source does not fail");
            assert_eq!(word(&first), model.sources[0].word(0), "wrong bytes");
            assert_eq!(word(&second), model.sources[0].word(1), "wrong bytes");
        };
        race(&model, read, |model| model.check(0, 1, 1));
    };
    let mutants = [
        (Mutant::InsertBlindly, "the range was checked"),
        (Mutant::WakeFirst, "deadlock"),
        (Mutant::WakeUnlocked, "deadlock"),
    ];
    holds_and_catches(against_a_reader, &mutants);
}
