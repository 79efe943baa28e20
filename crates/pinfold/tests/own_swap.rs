//! Own memory whose swap fails, is full, or hangs: what becomes of it, and of files that share its
//! budget.

#![cfg(not(loom))] // the model checker builds without the public types

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinfold::source::Memory;
use pinfold::{AnonMap, Cache, Hint, Options, Space, SpaceOptions};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// A cache of 8 MiB whose swap of 4 MiB fails as told.
fn faulty(options: SpaceOptions) -> (Arc<Faulty>, Space) {
    let swap = Arc::new(Faulty::new(Arc::new(Memory::new(Vec::new()))));
    let options_of_cache = Options::new(8 * MIB as u64).swap_source(swap.clone(), 4 * MIB as u64);
    let space = Space::new(&Cache::new(options_of_cache).unwrap(), options).unwrap();
    (swap, space)
}

fn fail(swap: &Faulty, operation: Operation) {
    let (when, fault) = (When::Always, Fault::Error(libc::EIO));
    swap.add(Rule { operation, when, fault });
}

fn word(map: &AnonMap, page: usize) -> &AtomicU64 {
    let at = map.as_mut_ptr().wrapping_add(page * PAGE);
    // SAFETY: in the map, aligned, and all who use it do so by atomics.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

/// Whether a system call can read a page of a map whose faults threads serve.
fn system_call_reads(map: &AnonMap, page: usize) -> bool {
    // SAFETY: within the map; the kernel reads it, and nobody stores to it.
    let bytes = unsafe { std::slice::from_raw_parts(map.as_ptr().wrapping_add(page * PAGE), PAGE) };
    rustix::io::write(tempfile::tempfile().unwrap(), bytes) == Ok(PAGE)
}

/// What a failed access has left behind ends without a byte being given up, in each of these ways.
#[test]
fn a_poisoned_page_is_brought_back_by_what_can_read_it() {
    let read = |map: &AnonMap, page| map.read_at(&mut [0; 8], page * PAGE).map(drop);
    let hold = |map: &AnonMap, page| map.hold(page * PAGE..page * PAGE + 1).map(drop);
    let will_need = |map: &AnonMap, page| map.advise(page * PAGE..page * PAGE + 1, Hint::WillNeed);
    let ways: [fn(&AnonMap, usize) -> pinfold::Result<()>; 3] = [read, hold, will_need];
    for (n, brings) in ways.into_iter().enumerate() {
        let (swap, space) = faulty(SpaceOptions::new().handlers(1));
        if !space.serves_system_calls() {
            return; // this process may not have it
        }
        let map = space.map_anon(16 * MIB).unwrap();
        word(&map, 5).store(1, Ordering::Relaxed);
        assert!(map.page_out(0..MIB).unwrap() >= PAGE);
        fail(&swap, Operation::Read);
        assert!(!system_call_reads(&map, 5));
        swap.heal();
        assert!(!system_call_reads(&map, 5), "way {n}: it is poisoned");
        brings(&map, 5).unwrap();
        assert!(system_call_reads(&map, 5), "way {n}");
        assert_eq!(word(&map, 5).load(Ordering::Relaxed), 1);
        // The same for a page that was never stored to, for which there was no memory.
        fail(&swap, Operation::Write);
        let mut pages = 0..3000;
        assert!(pages.any(|page| map.write_at(&[7; PAGE], MIB + page * PAGE).is_err()));
        assert!(!system_call_reads(&map, 4000));
        map.discard(MIB..2 * MIB).unwrap();
        brings(&map, 4000).unwrap();
        assert!(system_call_reads(&map, 4000), "way {n}");
        assert_eq!(word(&map, 4000).load(Ordering::Relaxed), 0);
    }
}
