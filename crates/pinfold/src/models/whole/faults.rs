//! Faults of several maps, in spaces that share records, while maps begin and end and pages are
//! evicted. Each thread maps and unmaps a file of its own, and accesses all.

use std::sync::Arc;

use super::behind::Spaces;
use super::{Stores, draw, holds_and_catches, spawn};
use crate::base::mutant::Mutant;
use crate::map::space::compared::{FaultIo, FaultLock};
use crate::map::space::fault::Fault;

const THREADS: usize = 3;
const RECORDS: u32 = 2;
const STEPS: u64 = 6;

fn run(lock: FaultLock, io: FaultIo) {
    let spaces = Arc::new(Spaces::new(THREADS, RECORDS, (lock, io)));
    let threads: Vec<_> = (0..THREADS)
        .map(|own| {
            let spaces = spaces.clone();
            spawn(move || step_by_step(&spaces, own))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread of the model");
    }
    spaces.ends();
}

fn step_by_step(spaces: &Spaces, own: usize) {
    let mut is_mapped = false;
    for _ in 0..STEPS {
        match draw(4) {
            0 if is_mapped => {
                spaces.unmap(own);
                is_mapped = false;
            }
            0 | 1 => is_mapped = is_mapped || spaces.map(own),
            2 => spaces.evict(draw(THREADS as u64) as usize),
            _ => {
                let fault = spaces.fault(draw(THREADS as u64) as usize);
                assert_ne!(fault, Fault::Failed);
            }
        }
        if is_mapped {
            assert_eq!(spaces.fault(own), Fault::Served, "a map was not found");
        }
    }
}

const SERVED_WRONGLY: [(Mutant, &str); 5] = [
    (Mutant::FaultAnyRange, "a page that the map does not have"),
    (Mutant::FaultAnyGeneration, "the file "),
    (Mutant::FaultGenerationEarly, "the file "),
    (Mutant::FaultSharesNothing, "the file was closed"),
    (Mutant::UnmapReleasesFirst, ""),
];

#[test]
fn faults_that_drop_their_lock_serve_their_maps_alone() {
    holds_and_catches(Stores::AtOnce, || run(FaultLock::Vma, FaultIo::Drop), &SERVED_WRONGLY);
    let unlocked = [(Mutant::FaultLooksUnlocked, "the file ")];
    holds_and_catches(Stores::AtOnce, || run(FaultLock::Vma, FaultIo::Drop), &unlocked);
}

#[test]
fn faults_that_retry_under_the_spaces_lock_serve_their_maps_alone() {
    holds_and_catches(Stores::AtOnce, || run(FaultLock::Space, FaultIo::Drop), &SERVED_WRONGLY);
}

#[test]
fn faults_that_keep_a_lock_serve_their_maps_alone() {
    let mutants = [SERVED_WRONGLY[0], SERVED_WRONGLY[4]];
    holds_and_catches(Stores::AtOnce, || run(FaultLock::Vma, FaultIo::Hold), &mutants);
    holds_and_catches(Stores::AtOnce, || run(FaultLock::Space, FaultIo::Hold), &SERVED_WRONGLY);
}
