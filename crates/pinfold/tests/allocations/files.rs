//! What a cache keeps for each file outside of its budget. It counts for the whole process, so it
//! is alone in it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pinfold::source::Memory;
use pinfold::{Cache, File, Options};

use crate::alone::alone;
use crate::{ALLOCATED, IN_USE};

const FILES: usize = 200;

/// Bytes that each of the files which `open` makes takes: by the allocator, and by the statistics.
fn each(cache: &Cache, mut open: impl FnMut(usize) -> File) -> (usize, usize) {
    // What is allocated once.
    let first = open(FILES);
    let told = |stats: pinfold::Stats| (stats.files, stats.files_bytes, stats.directories_bytes);
    let told_before = told(cache.stats());
    let mut files = Vec::with_capacity(FILES);
    let before = IN_USE.load(Ordering::Relaxed);
    files.extend((0..FILES).map(&mut open));
    let in_use = IN_USE.load(Ordering::Relaxed) - before;
    let before = ALLOCATED.load(Ordering::Relaxed);
    let told_after = told(cache.stats());
    let for_totals = ALLOCATED.load(Ordering::Relaxed) - before;
    assert!(for_totals < FILES, "totals of {FILES} files took {for_totals} bytes");
    assert_eq!(cache.sources().len() as u64, told_after.0);
    assert_eq!(told_after.0 - told_before.0, FILES as u64);
    drop((first, files));
    let directories = (told_after.2 - told_before.2) as usize;
    ((in_use - directories) / FILES, (told_after.1 - told_before.1) as usize / FILES)
}

#[test]
fn what_is_kept_for_each_file_is_counted() {
    let name = "what_is_kept_for_each_file_is_counted";
    let signal = alone(module_path!(), name, || {
        let cache = Cache::new(Options { io_uring: false, ..Options::new(8 << 20) }).unwrap();
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = |n: usize| dir.path().join(n.to_string());
        (0..=FILES).for_each(|n| std::fs::write(path(n), vec![7; 10_000]).unwrap());
        let of_system = each(&cache, |n| cache.open(path(n)).unwrap());
        // The source is the program's own, and one for all.
        let source = Arc::new(Memory::new(vec![7; 10_000]));
        let attached = each(&cache, |_| cache.attach("file", source.clone()).unwrap());
        for (kind, (in_use, told)) in [("opened", of_system), ("attached", attached)] {
            println!(
                "a file that is {kind}: {in_use} bytes by the allocator, {told} by the statistics"
            );
            assert!(
                told.abs_diff(in_use) < in_use / 8,
                "{kind}: {in_use} bytes, and told are {told}"
            );
            assert!((1_200..=2_048).contains(&told), "{kind}: not up to 2 KiB: {told}");
        }
        let left = cache.stats();
        assert_eq!(
            (left.files, left.files_bytes),
            (0, 0),
            "nothing is kept of a file that is gone"
        );
    });
    assert_eq!(signal, None);
}
