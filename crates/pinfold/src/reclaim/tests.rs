//! Waiting for memory.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::allocate;
use crate::frame::Order;
use crate::source::Memory;
use crate::{BUDGET_MIN_BYTES, Cache, Options};

/// How often a thread of this process has gone to sleep, counted by the kernel.
fn sleeps_of(thread: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status"));
    let status = status.unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// How long an allocation takes for five looks at memory while all of it is held. Then it is
/// released, and the allocation must get some.
fn from_look_to_fifth_look() -> Duration {
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).unwrap();
    let file = cache.attach("memory", Arc::new(Memory::new(vec![1; 4 << 20]))).unwrap();
    let pages = (4 << 20) / 4096;
    file.read_at(&mut vec![0; 4 << 20], 0).unwrap();
    let core = cache.core();
    let mapping = core.mappings.all().pop().unwrap();
    let mut held: Vec<_> = (0..pages).filter_map(|page| core.hold(&mapping, page)).collect();
    assert!(!held.is_empty());
    let mut free = Vec::new();
    // Ends: each turn but the last takes memory, which is not given back. The daemon may finish
    // evicting late.
    loop {
        while let Some((head, _)) = core.frames.alloc_at_most(Order::MIN) {
            free.push(head);
        }
        let number = OnceLock::new();
        let took = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                number.set(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                let got = allocate(core, Order::MIN, true).expect("they let go in time");
                got.expect("it is needed").0
            });
            let waiter_id = *number.wait();
            let (since, before) = (Instant::now(), sleeps_of(waiter_id));
            // Ends: the waiter sleeps between two looks, or has ended.
            while sleeps_of(waiter_id) < before + 5 && !waiter.is_finished() {
                std::thread::sleep(Duration::from_micros(50));
            }
            let took = since.elapsed();
            let early = waiter.is_finished();
            if !early {
                held.clear();
            }
            free.push(waiter.join().unwrap());
            (!early).then_some(took)
        });
        if let Some(took) = took {
            for head in free {
                core.put(head);
            }
            return took;
        }
    }
}

/// Giving back wakes no thread, and must be noticed without a long sleep all the same. On a busy
/// machine a look may come late, but never early: one quick run is enough.
#[test]
fn what_holders_let_go_of_is_noticed_soon() {
    let mut all = Vec::new();
    // Ends: after this many.
    while all.len() < 100 {
        all.push(from_look_to_fifth_look());
        if all.last() < Some(&Duration::from_millis(20)) {
            return;
        }
    }
    panic!("the five quickest looks of each run took {all:?}");
}
