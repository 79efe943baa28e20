//! A fault (`space/fault.rs`) against whoever unmaps, maps again, or evicts.

use std::sync::Arc;

use super::behind::Spaces;
use super::{SWAPPED, holds_and_catches};
use crate::base::mutant::Mutant;
use crate::map::space::compared::{FaultIo, FaultLock};
use crate::map::space::fault::Fault;

/// Runs both sides at once on two files and one record, of which the first is mapped.
fn race(way: (FaultLock, FaultIo), one: fn(&Spaces), other: fn(&Spaces)) {
    let spaces = Arc::new(Spaces::new(2, 1, way));
    assert!(spaces.map(0));
    let (first, second) = if SWAPPED.get() { (other, one) } else { (one, other) };
    let shared = spaces.clone();
    let thread = loom::thread::spawn(move || second(&shared));
    first(&spaces);
    thread.join().expect("the other thread");
    spaces.ends();
}

/// An access, while the file is unmapped, and another mapped by the same record. A program does not
/// unmap what it accesses; but a fault may find the record of a map that was there before.
fn remapped(lock: FaultLock, io: FaultIo) {
    let access = |spaces: &Spaces| {
        assert_ne!(spaces.fault(0), Fault::Failed);
    };
    let remap = |spaces: &Spaces| {
        spaces.unmap(0);
        assert!(spaces.map(1), "the record is free");
    };
    race((lock, io), access, remap);
}

const SERVED_WRONGLY: [(Mutant, &str); 4] = [
    (Mutant::FaultAnyRange, "a page that the map does not have"),
    (Mutant::FaultAnyGeneration, "the file "),
    (Mutant::FaultGenerationEarly, "the file is not mapped any more"),
    (Mutant::FaultSharesNothing, "the file was closed"),
];

#[test]
fn a_fault_that_retries_under_its_maps_lock_serves_that_map_alone() {
    holds_and_catches(|| remapped(FaultLock::Vma, FaultIo::Drop), &SERVED_WRONGLY);
    // The lock of the space would do, too.
    let unlocked = [(Mutant::FaultLooksUnlocked, "the file ")];
    holds_and_catches(|| remapped(FaultLock::Vma, FaultIo::Drop), &unlocked);
}

#[test]
fn a_fault_that_retries_under_the_spaces_lock_serves_its_map_alone() {
    holds_and_catches(|| remapped(FaultLock::Space, FaultIo::Drop), &SERVED_WRONGLY);
}

#[test]
fn a_fault_that_keeps_its_lock_serves_its_map_alone() {
    let mutants = [(Mutant::FaultAnyRange, "a page that the map does not have")];
    holds_and_catches(|| remapped(FaultLock::Vma, FaultIo::Hold), &mutants);
}

#[test]
fn a_fault_that_keeps_the_spaces_lock_serves_its_map_alone() {
    holds_and_catches(|| remapped(FaultLock::Space, FaultIo::Hold), &SERVED_WRONGLY);
}

/// A map ends while another thread wants a record for its own.
fn succeeded() {
    let next = |spaces: &Spaces| {
        if spaces.map(1) {
            assert_eq!(spaces.fault(1), Fault::Served, "the new map was not found");
        }
    };
    race((FaultLock::Vma, FaultIo::Drop), |spaces| spaces.unmap(0), next);
}

#[test]
fn a_record_is_free_when_nothing_leads_to_it_any_more() {
    holds_and_catches(succeeded, &[(Mutant::UnmapReleasesFirst, "file 0")]);
}

/// The page is evicted meanwhile, before the retry or after it.
fn evicted(lock: FaultLock) {
    let access = |spaces: &Spaces| {
        assert_eq!(spaces.fault(0), Fault::Served);
        let counted = spaces.shared[0].stats(false);
        assert!(counted.retry_io_miss <= counted.retries && counted.changed == 0, "{counted:?}");
    };
    race((lock, FaultIo::Drop), access, |spaces| spaces.evict(0));
}

#[test]
fn a_fault_whose_page_is_evicted_again_ends() {
    holds_and_catches(|| evicted(FaultLock::Vma), &[]);
    holds_and_catches(|| evicted(FaultLock::Space), &[]);
}
