//! A thread that has a ring of its own forks: the child's copy of the thread cannot use it.
//!
//! Alone in its process for the reason that `fork_own_cache.rs` gives.

use std::io;
use std::path::Path;

use pinfold::{Cache, Options};

use crate::alone::alone;
use crate::child::in_a_child;
use crate::starts::wait_until_others_sleep;

const PAGE: u64 = 4096;
const PAGES: u64 = 64;

/// Reads absent pages of a file of the system in batches, by a cache made here.
fn read_in_batches(path: &Path) {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let file = cache.open(path).unwrap();
    let pages: Vec<u64> = (0..PAGES).step_by(2).collect();
    for (&page, got) in pages.iter().zip(&file.get_many(&pages).unwrap()) {
        assert_eq!(got[..], [page as u8; PAGE as usize]);
    }
}

#[test]
fn a_child_reads_batches_by_a_cache_of_its_own() {
    let name = "a_child_reads_batches_by_a_cache_of_its_own";
    let signal = alone(module_path!(), name, || {
        // On a disk, as far as the build's directory is on one: memory needs no ring.
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bytes: Vec<u8> = (0..PAGES).flat_map(|page| [page as u8; PAGE as usize]).collect();
        io::Write::write_all(&mut file, &bytes).unwrap();
        read_in_batches(file.path());
        wait_until_others_sleep();
        in_a_child(|| {
            // Memory that may get the addresses that the ring's queues had.
            let _elsewhere = vec![0xEE_u8; 64 << 20];
            read_in_batches(file.path());
            read_in_batches(file.path());
        });
        read_in_batches(file.path());
    });
    assert_eq!(signal, None);
}
