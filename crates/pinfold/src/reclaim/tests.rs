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
    let mut held: Vec<_> = (0..pages).filter_map(|page| core.hold(&mapping, page)).collect();
    assert!(!held.is_empty());
    let mut free = Vec::new();
    // Ends: each turn but the last takes memory, and nobody gives it back. There may be some once
    // more: what the daemon had begun to evict comes late if something else has its core.
    loop {
        while let Some((head, _)) = core.frames.alloc_at_most(Order::MIN) {
            free.push(head);
        }
        let direct = core.counters.sum(Event::DirectReclaim);
        let waited = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let got = allocate(core, Order::MIN, true).expect("they let go in time");
                (got.expect("it is needed").0, Instant::now())
            });
            // Ends: it finds nothing free, and counts that; or it has found something.
            while core.counters.sum(Event::DirectReclaim) == direct && !waiter.is_finished() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(2));
            let in_vain = !waiter.is_finished();
            if in_vain {
                held.clear();
            }
            let released = Instant::now();
            let (head, had) = waiter.join().unwrap();
            free.push(head);
            in_vain.then_some(had.saturating_duration_since(released))
        });
        if let Some(waited) = waited {
            for head in free {
                core.put(head);
            }
            return waited;
        }
    }
}

/// Letting go wakes nobody; it must not take a long sleep to notice, for all that.
#[test]
fn what_holders_let_go_of_is_noticed_soon() {
    // Any may come late on a machine that does other things; twenty in a row come early by chance
    // where each sleep is long once in a thousand times at most.
    let mut all = Vec::new();
    for _ in 0..20 {
        all = (0..20).map(|_| from_release_to_memory()).collect();
        if all.iter().all(|waited| *waited < Duration::from_millis(8)) {
            return;
        }
    }
    panic!("it took {all:?}, and no less before");
}
