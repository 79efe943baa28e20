//! Maps of files where the program's allocator has no memory: an access to a page that is cached
//! ends no process. The allocator is that of the whole process, hence the children.

use std::sync::Arc;

use pinfold::source::Memory;
use pinfold::{Cache, Options, Space};

use super::refusing;
use crate::child::in_a_child;

const PAGE: usize = 4096;
const BYTES: u64 = 4 << 20;

/// Those that follow it in the file are cached, too, each as a folio of its own.
#[test]
fn without_a_heap_what_is_cached_can_be_accessed() {
    for handlers in [0, 1] {
        in_a_child(|| {
            let cache = Cache::new(Options::new(16 << 20)).unwrap();
            let content = (0..BYTES).map(|at| (at / PAGE as u64) as u8).collect();
            let file = cache.attach("file", Arc::new(Memory::new(content))).unwrap();
            file.read_at(&mut vec![0; BYTES as usize], 0).unwrap();
            assert!(file.split(0..BYTES) > 0);
            let map = Space::new(&cache, handlers).unwrap().map_file(&file, 0..BYTES).unwrap();
            println!("{handlers} handlers"); // which allocates
            let load = |page| {
                let at = map.as_ptr().wrapping_add(page * PAGE);
                // SAFETY: in the map, and no byte of the file changes.
                unsafe { at.read_volatile() }
            };
            let loaded = refusing(1 << 10, || [5, 300, 1023].map(load));
            assert_eq!(loaded, [5, 300, 1023].map(|page: usize| page as u8));
        });
    }
}
