//! Own memory where the program's allocator has no memory: no access ends the process but by the
//! signal of an access that fails. The allocator is that of the whole process, hence the children.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinfold::source::Memory;
use pinfold::{AnonMap, Cache, Options, Space};

use super::{REFUSED_BYTES, refusing};
use crate::child::in_a_child;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const BYTES: usize = 32 * MIB;
const PAGES: usize = BYTES / PAGE;

fn map(handlers: usize) -> (Space, AnonMap) {
    let swap = Arc::new(Memory::new(vec![0; 2 * BYTES]));
    let options = Options {
        swap_source: Some(swap),
        swap_bytes: 2 * BYTES as u64,
        ..Options::new(16 * MIB as u64)
    };
    let space = Space::new(&Cache::new(options).unwrap(), handlers).unwrap();
    let map = space.map_anon(BYTES).unwrap();
    (space, map)
}

fn word(map: &AnonMap, page: usize) -> &AtomicU64 {
    let at = map.as_mut_ptr().wrapping_add(page * PAGE);
    // SAFETY: in the map, aligned, and all who use it do so by atomics.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

fn store_all(map: &AnonMap, value: u64) {
    (0..PAGES).for_each(|page| word(map, page).store(value + page as u64, Ordering::Relaxed));
}

fn differ(map: &AnonMap, value: u64) -> usize {
    let is_other = |page: &usize| word(map, *page).load(Ordering::Relaxed) != value + *page as u64;
    (0..PAGES).filter(is_other).count()
}

/// Without large blocks, pages come singly, and are written a few at a time.
#[test]
fn without_large_blocks_own_memory_goes_on() {
    for handlers in [0, 1] {
        in_a_child(|| {
            let (_space, map) = map(handlers);
            word(&map, 0).store(0, Ordering::Relaxed);
            refusing(40 << 10, || {
                for value in [1, 2] {
                    store_all(&map, value);
                    assert_eq!(differ(&map, value), 0);
                }
            });
            assert!(differ(&map, 2) == 0 && map.last_failure().is_none());
        });
    }
}

/// Without any but the smallest blocks, what is there can be used, and what is not there is an
/// error.
#[test]
fn without_a_heap_what_is_absent_is_an_error() {
    for handlers in [0, 1] {
        in_a_child(|| {
            let (_space, map) = map(handlers);
            store_all(&map, 1);
            map.page_out(0..MIB).unwrap();
            println!("{handlers} handlers"); // which allocates
            let (there, absent) = (PAGES - 1, 5);
            refusing(1 << 10, || {
                word(&map, there).store(7, Ordering::Relaxed);
                let error = map.read_at(&mut [0; 8], absent * PAGE).unwrap_err().to_string();
                assert!(error.contains("bytes 20480..24576"), "{error}");
                assert!(error.contains("RLIMIT_DATA"), "{error}");
                assert!(map.write_at(&[1], absent * PAGE).is_err());
                assert_eq!(map.page_out(there * PAGE..BYTES).unwrap(), 0);
            });
            assert_eq!(word(&map, there).load(Ordering::Relaxed), 7);
            word(&map, there).store(1 + there as u64, Ordering::Relaxed);
            assert_eq!(differ(&map, 1), 0);
            assert_eq!(map.page_out(there * PAGE..BYTES).unwrap(), PAGE);
        });
    }
}

/// The access gets SIGBUS, and the map says why.
#[test]
fn without_a_heap_an_access_gets_the_signal_of_one_that_fails() {
    static MAP: std::sync::OnceLock<(Space, AnonMap)> = std::sync::OnceLock::new();
    extern "C" fn end(_: libc::c_int) {
        REFUSED_BYTES.store(usize::MAX, Ordering::Relaxed);
        let why = MAP.get().and_then(|(_, map)| map.last_failure());
        let told = why.is_some_and(|why| why.to_string().contains("RLIMIT_DATA"));
        // SAFETY: it ends the process, as it is to.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    for handlers in [0, 1] {
        in_a_child(|| {
            // SAFETY: of this child; `end` interrupts nothing but the access.
            unsafe { libc::signal(libc::SIGBUS, end as *const () as libc::sighandler_t) };
            let (_, map) = MAP.get_or_init(|| map(handlers));
            store_all(map, 1);
            map.page_out(0..MIB).unwrap();
            refusing(1 << 10, || word(map, 5).load(Ordering::Relaxed));
            panic!("there is no memory for the page, and the access was made");
        });
    }
}
