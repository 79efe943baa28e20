//! Waiting for memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::allocate;
use crate::counters::Event;
use crate::frame::Order;
use crate::source::Memory;
use crate::{BUDGET_MIN_BYTES, Cache, Options};

/// How long an allocation goes on after all of memory, which others held, was let go of; they held
/// it for about two milliseconds.
fn from_release_to_memory() -> Duration {
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).unwrap();
    let file = cache.attach("memory", Arc::new(Memory::new(vec![1; 4 << 20]))).unwrap();
    let pages = (4 << 20) / 4096;
    file.read_at(&mut vec![0; 4 << 20], 0).unwrap();
    let core = cache.core();
    let mapping = core.mappings.all().pop().unwrap();
    let held: Vec<_> = (0..pages).filter_map(|page| core.hold(&mapping, page)).collect();
    let mut free = Vec::new();
    while let Some((head, _)) = core.frames.alloc_at_most(Order::MIN) {
        free.push(head);
    }
    assert!(!held.is_empty());
    let direct = core.counters.sum(Event::DirectReclaim);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let got = allocate(core, Order::MIN, true).expect("they let go in time");
            (got.expect("it is needed").0, Instant::now())
        });
        // Ends: it finds nothing free, and counts that. Then it, and the daemon, look around once.
        while core.counters.sum(Event::DirectReclaim) == direct {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(2));
        assert!(!waiter.is_finished(), "there was memory all along");
        drop(held);
        let released = Instant::now();
        let (head, had) = waiter.join().unwrap();
        core.put(head);
        for head in free {
            core.put(head);
        }
        had.saturating_duration_since(released)
    })
}

/// Letting go wakes nobody; it must not take a long sleep to notice, for all that.
#[test]
fn what_holders_let_go_of_is_noticed_soon() {
    // The middle of some: any may meet a busy machine, or be so early that it never sleeps.
    let mut all: Vec<_> = (0..9).map(|_| from_release_to_memory()).collect();
    all.sort();
    assert!(all[4] < Duration::from_millis(8), "it took {all:?}");
}
