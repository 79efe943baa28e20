//! The registry: registering, a refused membarrier, unregistering.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Barrier, LOOK_MAX, READERS_MAX, Readers};
use crate::base::counters::{Counters, Event};
use crate::base::mutant::{self, Mutant};
use crate::error::Cause;
use crate::frames::FrameNumber;
use crate::source::Memory;
use crate::{Cache, Options};

fn heads(numbers: impl IntoIterator<Item = u32>) -> Vec<FrameNumber> {
    numbers.into_iter().map(FrameNumber).collect()
}

#[test]
fn what_any_slot_of_any_record_announces_is_found() {
    let (readers, counters) = (Arc::new(Readers::new(Barrier::Membarrier)), Counters::new());
    let seats: Vec<_> = (0..200).map(|_| readers.register().unwrap()).collect();
    let wanted = heads(1..=LOOK_MAX as u32);
    for (n, seat) in seats.iter().enumerate() {
        let slot = &seat.slots()[n % super::SLOTS];
        let head = n as u32 + 1;
        slot.store(head, Ordering::Release);
        let found = readers.announced(&wanted, &counters);
        let all: Vec<_> = (0..LOOK_MAX).filter(|&n| found.has(n)).collect();
        assert_eq!(all, [n]);
        slot.store(0, Ordering::Release);
    }
    let found = readers.announced(&wanted, &counters);
    assert!((0..LOOK_MAX).all(|n| !found.has(n)));
}

#[test]
fn records_are_used_again_and_no_more_than_there_can_be() {
    let readers = Arc::new(Readers::new(Barrier::FullFence));
    let mut seats: Vec<_> = (0..READERS_MAX).map(|_| readers.register().unwrap()).collect();
    let error = readers.register().unwrap_err();
    assert!(matches!(error.cause(), Cause::TooManyReaders { most: READERS_MAX }), "{error:?}");
    let left = seats.swap_remove(100).number;
    assert_eq!(readers.register().unwrap().number, left);
    drop(seats);
    assert_eq!((readers.registered(), readers.high.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn readers_get_further_records_as_long_as_a_quarter_is_left_for_new_readers() {
    let readers = Arc::new(Readers::new(Barrier::FullFence));
    let first = readers.register().unwrap();
    let further: Vec<_> = std::iter::from_fn(|| first.further()).collect();
    assert_eq!(further.len(), READERS_MAX / 4 * 3 - 1);
    assert_eq!(readers.registered(), 1, "it is one reader");
    let others: Vec<_> = std::iter::from_fn(|| readers.register().ok()).collect();
    assert_eq!((others.len(), readers.registered()), (READERS_MAX / 4, 1 + others.len() as u64));
    drop(further);
    assert_eq!(readers.registered(), 1 + others.len() as u64);
    assert!(first.further().is_some());
    drop((first, others));
    assert_eq!((readers.registered(), readers.high.load(Ordering::Relaxed)), (0, 0));
}

/// A reader without a fence gets no record with one: it would have to issue it for all.
#[test]
fn a_further_record_has_the_fence_that_the_first_one_has() {
    let (readers, counters) = (Arc::new(Readers::new(Barrier::Membarrier)), Counters::new());
    if readers.barrier() != Barrier::Membarrier {
        return; // the system refuses it from the start
    }
    let seat = readers.register().unwrap();
    assert_eq!(seat.further().unwrap().barrier, Barrier::Membarrier);
    readers.refuse_membarrier();
    assert!(readers.announced(&heads([5]), &counters).has(0), "it cannot be known");
    assert!(seat.further().is_none());
}

#[test]
fn without_readers_nothing_is_asked_of_the_system() {
    let (readers, counters) = (Arc::new(Readers::new(Barrier::Membarrier)), Counters::new());
    assert!(!readers.announced(&heads([5]), &counters).has(0));
    assert_eq!(counters.sum(Event::Membarrier), 0);
    let seat = readers.register().unwrap();
    assert!(!readers.announced(&heads([5]), &counters).has(0));
    let expected = u64::from(readers.barrier() == Barrier::Membarrier);
    assert_eq!(counters.sum(Event::Membarrier), expected);
    drop(seat);
}

/// If the process gives up membarrier(2), folios stay until the last reader without a fence has
/// unregistered, and nothing worse happens.
#[test]
fn a_membarrier_that_is_refused_later_makes_everything_count_as_announced() {
    let (readers, counters) = (Arc::new(Readers::new(Barrier::Membarrier)), Counters::new());
    if readers.barrier() != Barrier::Membarrier {
        return; // the system refuses it from the start
    }
    let early = readers.register().unwrap();
    assert!(!readers.announced(&heads([5]), &counters).has(0));
    readers.refuse_membarrier();
    assert!(readers.announced(&heads([5]), &counters).has(0), "it cannot be known");
    assert_eq!(readers.barrier(), Barrier::FullFence);
    let late = readers.register().unwrap();
    assert_eq!(late.barrier, Barrier::FullFence);
    assert!(readers.announced(&heads([5]), &counters).has(0), "still not");
    drop(early);
    assert!(!readers.announced(&heads([5]), &counters).has(0));
    late.slots()[0].store(5, Ordering::Release);
    assert!(readers.announced(&heads([5]), &counters).has(0));
}

/// Drops a folio while a reader without a fence is registered and membarrier is refused: the
/// reader's announcement may still be in its store buffer, so no scan can say that the folio can be
/// freed. Returns the number of deferred folios: after the drop, after another collection, and
/// after the reader has unregistered.
fn dropped_while_refused() -> [u64; 3] {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 4096]))).unwrap();
    let core = &file.handle().core;
    file.read_at(&mut [0], 0).unwrap();
    let reader = cache.reader().unwrap();
    core.readers.refuse_membarrier();
    assert_eq!(file.invalidate(0..4096).unwrap(), 4096);
    let after_drop = cache.stats().deferred_folios;
    crate::pages::freeze::collect(core);
    let after_another = cache.stats().deferred_folios;
    drop(reader);
    crate::pages::freeze::collect(core);
    [after_drop, after_another, cache.stats().deferred_folios]
}

#[test]
fn what_is_dropped_while_the_membarrier_is_refused_waits_for_the_readers_without_a_fence() {
    if Readers::new(Barrier::Membarrier).barrier() != Barrier::Membarrier {
        return; // the system refuses it from the start
    }
    assert_eq!(dropped_while_refused(), [1, 1, 0]);
    mutant::with(Some(Mutant::CollectUnfenced), || {
        assert_eq!(dropped_while_refused(), [0, 0, 0], "the mutant does nothing");
    });
}
