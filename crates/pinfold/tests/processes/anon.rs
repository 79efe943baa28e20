//! Own memory: stored to and paged out by many threads at once, under a budget an eighth of it;
//! swaps that fail or are full; unmapping; forking.

use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pinfold::source::Memory;
use pinfold::{AnonMap, Cache, ErrorKind, FaultIo, FaultLock, Hint, Options, Space, SpaceOptions};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::told::number_before;

use crate::child::in_a_child;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

struct Subject {
    cache: Cache,
    swap: Arc<Faulty>,
    space: Space,
}

impl Subject {
    fn new(budget: usize, swap_bytes: usize, options: SpaceOptions) -> Self {
        let swap = Arc::new(Faulty::new(Arc::new(Memory::new(Vec::new()))));
        let options_of_cache = Options {
            swap_source: Some(swap.clone()),
            swap_bytes: swap_bytes as u64,
            ..Options::new(budget as u64)
        };
        let cache = Cache::new(options_of_cache).unwrap();
        let space = Space::with(&cache, options).unwrap();
        Subject { cache, swap, space }
    }

    fn fail(&self, operation: Operation) {
        let (when, fault) = (When::Always, Fault::Error(libc::EIO));
        self.swap.add(Rule { operation, when, fault });
    }
}

fn ways() -> impl Iterator<Item = SpaceOptions> {
    let locks = [FaultLock::Vma, FaultLock::Space];
    let ios = [FaultIo::Drop, FaultIo::Hold];
    let all = locks.into_iter().flat_map(move |lock| ios.map(|io| (lock, io)));
    all.flat_map(|(lock, io)| [0, 2].map(|handlers| SpaceOptions { lock, io, handlers }))
}

/// The word at byte `at` of a map.
fn word(map: &AnonMap, at: usize) -> &AtomicU64 {
    assert!(at + 8 <= map.len());
    // SAFETY: in the map, aligned, and all who use it do so by atomics.
    unsafe { AtomicU64::from_ptr(map.as_mut_ptr().wrapping_add(at).cast()) }
}

/// Stores a version of a page, which says which page and version it is in its first and last word.
fn write_page(map: &AnonMap, page: usize, version: u64) {
    let stamp = (page as u64) << 32 | version;
    word(map, page * PAGE).store(stamp, Ordering::Relaxed);
    word(map, page * PAGE + PAGE - 8).store(!stamp, Ordering::Relaxed);
}

fn check_page(map: &AnonMap, page: usize, version: u64) {
    let (first, last) = (word(map, page * PAGE), word(map, page * PAGE + PAGE - 8));
    let expected = match version {
        0 => (0, 0),
        _ => ((page as u64) << 32 | version, !((page as u64) << 32 | version)),
    };
    let got = (first.load(Ordering::Relaxed), last.load(Ordering::Relaxed));
    assert_eq!(got, expected, "page {page}, version {version}");
}

/// Each of `threads` has every so manyth page, and knows which version of each it stored last.
fn store_and_check(map: &AnonMap, thread: usize, threads: usize, turns: usize) {
    let mut random = fastrand::Rng::with_seed(thread as u64 + 1);
    let pages = map.len() / PAGE / threads;
    let mut versions = vec![0_u64; pages];
    let page_of = |n: usize| n * threads + thread;
    for _ in 0..turns {
        let n = random.usize(0..pages);
        check_page(map, page_of(n), versions[n]);
        if random.u8(0..3) > 0 {
            versions[n] += 1;
            write_page(map, page_of(n), versions[n]);
        }
    }
    for (n, &version) in versions.iter().enumerate() {
        check_page(map, page_of(n), version);
    }
}

#[test]
fn no_store_is_lost_while_all_is_paged_out_all_the_time() {
    for way in ways() {
        let subject = Subject::new(8 * MIB, 80 * MIB, way);
        let map = subject.space.map_anon(64 * MIB).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (map, over) = (&map, &over);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    // Ends: the others end.
                    while !over.load(Ordering::Relaxed) {
                        let at = random.usize(0..64 * MIB - MIB);
                        map.page_out(at..at + random.usize(1..MIB)).unwrap();
                    }
                });
            }
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    scope.spawn({
                        let map = &map;
                        move || store_and_check(map, thread, 4, 6_000)
                    })
                })
                .collect();
            let ended: Vec<_> =
                threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok), "{way:?}");
        });
        let stats = subject.cache.stats();
        assert!(stats.resident_bytes + stats.metadata_bytes + stats.free_bytes <= 8 << 20);
        let both = stats.swap_pages_written.min(stats.swap_pages_read);
        assert!(both > 1000, "{way:?}: {stats:?}");
        drop(map);
        assert_eq!(subject.cache.stats().swap_used_bytes, 0, "{way:?}");
    }
}

/// One page that is stored to as fast as it can be while others page it out: each store follows the
/// one before it.
#[test]
fn a_page_that_is_paged_out_while_it_is_stored_to_counts_on() {
    let subject = Subject::new(8 * MIB, MIB, SpaceOptions::default());
    let map = subject.space.map_anon(PAGE).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // Ends: the other thread ends.
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    map.page_out(0..PAGE).unwrap();
                }
            });
        }
        let mut n = 0;
        // Ends: the page is paged out again and again.
        while n % 1000 > 0 || subject.cache.stats().swap_pages_written < 200 {
            let (first, last) = (word(&map, 0), word(&map, PAGE - 8));
            let lost = first.load(Ordering::Relaxed) != n || last.load(Ordering::Relaxed) != n;
            if lost {
                over.store(true, Ordering::Relaxed);
            }
            assert!(!lost, "a store was lost after {n}");
            first.store(n + 1, Ordering::Relaxed);
            last.store(n + 1, Ordering::Relaxed);
            n += 1;
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn safe_calls_copy_through_what_is_paged_out() {
    for way in ways() {
        let subject = Subject::new(8 * MIB, 40 * MIB, way);
        let map = subject.space.map_anon(32 * MIB - 5).unwrap();
        let pattern = Pattern::new(3, 0);
        let bytes = pattern.to_vec(32 * MIB - 5);
        for (n, part) in bytes.chunks(100_000).enumerate() {
            assert_eq!(map.write_at(part, n * 100_000).unwrap(), part.len());
        }
        let mut back = vec![0; 32 * MIB];
        assert_eq!(map.read_at(&mut back, 0).unwrap(), bytes.len());
        assert!(back[..bytes.len()] == bytes[..], "{way:?}");
        assert_eq!(map.read_at(&mut back, bytes.len()).unwrap(), 0);
        assert_eq!(map.read_at(&mut back, bytes.len() - 3).unwrap(), 3);
    }
}

#[test]
fn a_failed_read_of_the_swap_is_an_error_and_the_next_one_tries_again() {
    let subject = Subject::new(8 * MIB, 4 * MIB, SpaceOptions::default());
    let map = subject.space.map_anon(MIB).unwrap();
    for page in 0..20 {
        write_page(&map, page, 1);
    }
    assert!(map.page_out(0..MIB).unwrap() >= 20 * PAGE);
    subject.fail(Operation::Read);
    let error = map.read_at(&mut [0; 10], 5 * PAGE + 7).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
    assert!(
        error.to_string().starts_with("cannot read byte 20480 of anonymous memory from the swap")
    );
    assert!(map.advise(0..20 * PAGE, Hint::WillNeed).is_err());
    let errors = subject.cache.stats().swap_read_errors;
    assert!(errors >= 2, "{errors}");
    assert_eq!(map.write_at(&[3; 2 * PAGE], 11 * PAGE).unwrap_err().kind(), ErrorKind::Read);
    subject.swap.heal();
    (0..20).for_each(|page| check_page(&map, page, 1));
    assert!(map.page_out(0..MIB).unwrap() >= 20 * PAGE, "nobody has them any more");
    check_page(&map, 8, 1);
}

#[test]
fn an_access_that_fails_leaves_its_error_with_its_map() {
    let subject =
        Subject::new(8 * MIB, 4 * MIB, SpaceOptions { handlers: 1, ..SpaceOptions::default() });
    if !subject.space.stats().serves_system_calls {
        return; // this process may not have it
    }
    let (map, other) = [(); 2].map(|()| subject.space.map_anon(MIB).unwrap()).into();
    write_page(&map, 5, 1);
    assert!(map.page_out(0..MIB).unwrap() >= PAGE);
    subject.fail(Operation::Read);
    let at = map.as_mut_ptr().wrapping_add(5 * PAGE);
    // SAFETY: within the map; the kernel reads it, and nobody stores to it.
    let bytes = unsafe { std::slice::from_raw_parts(at, PAGE) };
    let into = tempfile::tempfile().unwrap();
    assert_eq!(rustix::io::write(&into, bytes), Err(rustix::io::Errno::FAULT));
    let why = map.last_failure().unwrap();
    let text = "cannot read byte 20480 of anonymous memory from the swap";
    assert!(why.to_string().starts_with(text), "{why}");
    assert!(other.last_failure().is_none(), "the failure was another map's");
}

#[test]
fn a_failed_write_to_the_swap_keeps_the_page() {
    let subject = Subject::new(8 * MIB, 40 * MIB, SpaceOptions::default());
    let map = subject.space.map_anon(MIB).unwrap();
    write_page(&map, 7, 1);
    subject.fail(Operation::Write);
    assert_eq!(map.page_out(7 * PAGE..8 * PAGE).unwrap(), 0);
    check_page(&map, 7, 1);
    write_page(&map, 7, 2);
    let stats = subject.cache.stats();
    let written = (stats.swap_write_errors, stats.swap_used_bytes, stats.swap_pages_written);
    assert_eq!(written, (1, 0, 0), "{stats:?}");
    assert!(stats.swap_last_error.is_some());
    subject.swap.heal();
    assert_eq!(map.page_out(7 * PAGE..8 * PAGE).unwrap(), PAGE);
    check_page(&map, 7, 2);
}

#[test]
fn a_swap_that_cannot_be_made_is_named() {
    let make = |dir: &str, bytes| {
        Cache::new(Options { swap_dir: dir.into(), swap_bytes: bytes, ..Options::new(8 << 20) })
            .unwrap_err()
    };
    let error = make("/no/such/directory", 1 << 20).to_string();
    let text = "cannot make a swap of 1048576 bytes in /no/such/directory: No such file";
    assert!(error.starts_with(text), "{error}");
    let error = make("/tmp", 4095);
    assert_eq!(error.kind(), ErrorKind::System);
    let text = "cannot make a swap of 4095 bytes in /tmp: a page has 4096 bytes";
    assert_eq!(error.to_string(), text);
}

#[test]
fn where_nothing_can_be_paged_out_the_error_says_why() {
    let full = Subject::new(8 * MIB, MIB, SpaceOptions::default());
    let none = Cache::new(Options::new(8 << 20)).unwrap();
    let none_space = Space::new(&none, 0).unwrap();
    let cases =
        [(&full.space, "the swap of 1048576 bytes is full"), (&none_space, "there is no swap")];
    for (space, why) in cases {
        let map = space.map_anon(32 * MIB).unwrap();
        let mut stored = 0;
        let error = loop {
            match map.write_at(&[7; PAGE], stored * PAGE) {
                Ok(_) => stored += 1,
                Err(error) => break error,
            }
        };
        // Nearly all but 2 MiB, and what the swap has.
        assert!((5 * MIB / PAGE..9 * MIB / PAGE).contains(&stored), "{stored} pages");
        assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
        let at = stored * PAGE;
        let text = format!("no memory for byte {at} of anonymous memory: {why}; no memory for ");
        assert!(error.to_string().starts_with(&text), "{error}");
        let dirty_bytes = number_before(&error, " dirty");
        let reclaimable_bytes = number_before(&error, " reclaimable");
        // Some are kept for the accesses that wanted them.
        assert!(dirty_bytes > 4 << 20 && reclaimable_bytes < 1 << 20, "{error}");
        assert!(!error.to_string().contains("read "), "it was a store: {error}");
        // What is given up makes room, and the rest is there.
        map.discard(0..2 * MIB).unwrap();
        map.write_at(&[7; PAGE], stored * PAGE).unwrap();
        let mut byte = [0];
        for page in 0..=stored {
            map.read_at(&mut byte, page * PAGE + 9).unwrap();
            assert_eq!(byte, [if page < 512 { 0 } else { 7 }], "page {page}");
        }
    }
    let full = full.cache.stats().swap_full;
    assert!((1..10_000).contains(&full), "{full} attempts, in which 2 seconds were waited twice");
}

/// Who waits for memory does not try as often as it can.
#[test]
fn a_swap_that_fails_is_left_alone_for_a_while() {
    let subject = Subject::new(8 * MIB, 40 * MIB, SpaceOptions::default());
    subject.fail(Operation::Write);
    let map = subject.space.map_anon(32 * MIB).unwrap();
    let failed = (0..32 * MIB / PAGE).find_map(|page| map.write_at(&[7; PAGE], page * PAGE).err());
    let error = failed.expect("8 MiB have no room for 32");
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}");
    let stats = subject.cache.stats();
    assert!((1..1000).contains(&stats.swap_write_errors), "{stats:?}");
    // What the program asks for is tried, and what is well again is used at once.
    subject.swap.heal();
    assert!(map.page_out(0..MIB).unwrap() > 0);
    map.write_at(&[7; PAGE], 30 * MIB).unwrap();
}

#[test]
fn what_is_forgotten_is_zeros_and_takes_no_swap() {
    let subject = Subject::new(8 * MIB, 4 * MIB, SpaceOptions::default());
    let map = subject.space.map_anon(MIB).unwrap();
    for page in 0..20 {
        write_page(&map, page, 1);
    }
    map.page_out(0..10 * PAGE).unwrap();
    map.advise(0..20 * PAGE, Hint::DontNeed).unwrap();
    for page in 0..20 {
        check_page(&map, page, 1);
    }
    map.discard(5 * PAGE..15 * PAGE).unwrap();
    for page in 0..20 {
        check_page(&map, page, u64::from(!(5..15).contains(&page)));
    }
    assert_eq!(subject.cache.stats().swap_used_bytes, 5 * PAGE as u64);
}

#[test]
fn a_map_can_be_unmapped_while_it_is_paged_out_and_brought() {
    let subject = Subject::new(8 * MIB, 40 * MIB, SpaceOptions::default());
    for round in 0..40 {
        let map = Arc::new(subject.space.map_anon(16 * MIB).unwrap());
        std::thread::scope(|scope| {
            // The last to end unmaps it, while the daemon pages out what it evicts.
            for thread in 0..3 {
                let map = map.clone();
                scope.spawn(move || {
                    for page in (0..16 * MIB / PAGE).skip(thread).step_by(3 + round % 2) {
                        write_page(&map, page, 1);
                    }
                    drop(map);
                });
            }
            drop(map);
        });
    }
    assert_eq!(subject.cache.stats().swap_used_bytes, 0);
    assert_eq!(subject.cache.stats().files, 0);
}

#[test]
fn a_private_view_has_the_files_bytes_until_it_is_stored_to() {
    for way in ways() {
        let subject = Subject::new(8 * MIB, 40 * MIB, way);
        let pattern = Pattern::new(5, 0);
        let source = Arc::new(Memory::new(pattern.to_vec(20 * MIB - 100)));
        let file = subject.cache.attach("file", source.clone()).unwrap();
        let map = subject.space.map_private(&file, MIB as u64..file.len()).unwrap();
        let len = map.len();
        assert_eq!(len, 19 * MIB - 100);
        let stored = |page: usize| page.is_multiple_of(3);
        for page in (0..len / PAGE).filter(|&page| stored(page)) {
            write_page(&map, page, 1);
        }
        for _ in 0..2 {
            for page in 0..len / PAGE {
                if stored(page) {
                    check_page(&map, page, 1);
                    continue;
                }
                let mut bytes = vec![0; PAGE];
                for (n, byte) in bytes.chunks_mut(8).enumerate() {
                    let word = word(&map, page * PAGE + n * 8).load(Ordering::Relaxed);
                    byte.copy_from_slice(&word.to_ne_bytes());
                }
                pattern.check((MIB + page * PAGE) as u64, &bytes).unwrap();
            }
            map.page_out(0..len).unwrap();
        }
        assert!(source.to_vec() == pattern.to_vec(20 * MIB - 100), "the file was changed");
        map.discard(0..3 * PAGE).unwrap();
        let mut bytes = vec![0; 3 * PAGE];
        map.read_at(&mut bytes, 0).unwrap();
        pattern.check(MIB as u64, &bytes).unwrap();
    }
}

/// A copy that met a fault under a lock of its own map would wait for a thread that changes the
/// map, which waits for the lock.
#[test]
fn copies_wait_for_nobody_who_waits_for_them() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for handlers in [0, 2] {
            let options = SpaceOptions { handlers, ..SpaceOptions::default() };
            let subject = Subject::new(8 * MIB, 4 * MIB, options);
            let map = subject.space.map_anon(8 * PAGE).unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        map.discard(0..8 * PAGE).unwrap();
                    }
                });
                let mut bytes = vec![7; 8 * PAGE];
                for _ in 0..1000 {
                    map.read_at(&mut bytes, 0).unwrap();
                    map.write_at(&bytes, 0).unwrap();
                }
                over.store(true, Ordering::Relaxed);
            });
        }
        tell.send(()).unwrap();
    });
    told.recv_timeout(std::time::Duration::from_secs(60)).expect("they wait for each other");
}

/// Bytes that direct I/O reads into own memory while all of it is paged out all the time.
#[test]
fn what_is_held_can_be_read_into_by_direct_io() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    let pattern = Pattern::new(9, 0);
    std::fs::write(&path, pattern.to_vec(MIB)).unwrap();
    let direct = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    let Ok(direct) = direct else {
        println!("not tried: no direct I/O in {}", dir.path().display());
        return;
    };
    let subject = Subject::new(8 * MIB, 16 * MIB, SpaceOptions::default());
    let map = subject.space.map_anon(4 * MIB).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                map.page_out(0..4 * MIB).unwrap();
            }
        });
        let mut random = fastrand::Rng::with_seed(1);
        let mut bytes = vec![0; 16 * PAGE];
        let read = (0..300).try_for_each(|_| {
            let (from, to) = (random.usize(0..240) * PAGE, random.usize(0..1000) * PAGE);
            let held = map.hold(to..to + 16 * PAGE).unwrap();
            let (fd, at) = (std::os::fd::AsRawFd::as_raw_fd(&direct), held.as_mut_ptr());
            // SAFETY: pages that are held, which nobody else stores to.
            let got = unsafe { libc::pread(fd, at.cast(), 16 * PAGE, from.cast_signed() as i64) };
            if got != (16 * PAGE).cast_signed() {
                return Err(format!("read {got}: {}", std::io::Error::last_os_error()));
            }
            drop(held);
            std::thread::yield_now();
            map.read_at(&mut bytes, to).unwrap();
            pattern.check(from as u64, &bytes).map_err(|why| format!("{why}"))
        });
        over.store(true, Ordering::Relaxed);
        read.unwrap();
    });
    assert!(subject.cache.stats().swap_pages_written > 100);
}

/// Each step would take hours if it looked at each page.
#[test]
fn memory_beyond_all_bounds_takes_nothing_before_it_is_touched() {
    for handlers in [0, 1] {
        let subject =
            Subject::new(8 * MIB, 4 * MIB, SpaceOptions { handlers, ..SpaceOptions::default() });
        // As many addresses as the system gives.
        let made = (36..45).rev().find_map(|bits| match subject.space.map_anon(1 << bits) {
            Ok(map) => Some(map),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::System, "{error}");
                None
            }
        });
        let map = made.expect("64 GiB of addresses");
        let pages = [0, map.len() / PAGE / 2 + 1, map.len() / PAGE - 1];
        for page in pages {
            write_page(&map, page, 1);
        }
        // With the first page those come that follow it.
        assert!(map.page_out(0..map.len()).unwrap() >= 3 * PAGE);
        for page in pages {
            check_page(&map, page, 1);
        }
        map.discard(PAGE..map.len()).unwrap();
        check_page(&map, pages[0], 1);
        check_page(&map, pages[2], 0);
    }
}

#[track_caller]
fn is_for(error: &pinfold::Error, cause: &str) {
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().ends_with(cause), "{error}");
}

#[test]
fn bad_ranges_are_refused() {
    let subject = Subject::new(8 * MIB, 4 * MIB, SpaceOptions::default());
    is_for(&subject.space.map_anon(0).unwrap_err(), "the range is empty");
    assert!(subject.space.map_anon(usize::MAX).unwrap_err().kind() == ErrorKind::System);
    let map = subject.space.map_anon(3 * PAGE - 1).unwrap();
    is_for(&map.page_out(0..3 * PAGE).unwrap_err(), "the map has 12287 bytes");
    #[allow(clippy::reversed_empty_ranges, reason = "that is the case")]
    let reversed = map.advise(2..1, Hint::WillNeed).unwrap_err();
    is_for(&reversed, "the range ends before it begins");
    let unaligned = "the range must begin at a multiple of 4096";
    is_for(&map.discard(1..PAGE).unwrap_err(), unaligned);
    let unaligned_end = "the range must end at a multiple of 4096, or with the map";
    is_for(&map.discard(0..1).unwrap_err(), unaligned_end);
    is_for(&map.discard(PAGE..PAGE + 9).unwrap_err(), unaligned_end);
    map.discard(3 * PAGE - 1..3 * PAGE - 1).unwrap();
    map.discard(7..7).unwrap();
    let beyond = 0..3 * PAGE;
    for (what, error) in [
        ("hold", map.hold(beyond.clone()).map(drop).unwrap_err()),
        ("page out", map.page_out(beyond.clone()).map(drop).unwrap_err()),
        ("advise on", map.advise(beyond.clone(), Hint::WillNeed).unwrap_err()),
        ("discard", map.discard(beyond).unwrap_err()),
    ] {
        let text = "bytes 0..12288 of anonymous memory: the map has 12287 bytes";
        assert_eq!(error.to_string(), format!("cannot {what} {text}"));
    }
    let larger = subject.space.map_anon(4 * MIB).unwrap();
    let error = larger.hold(PAGE - 1..2 * MIB + PAGE - 1).map(drop).unwrap_err();
    let text = "their pages have 2101248 bytes, and of all maps and own memory 0 bytes are held";
    assert!(error.to_string().contains(text), "{error}");
    map.discard(PAGE..3 * PAGE - 1).unwrap();
    assert_eq!(map.page_out(5..5).unwrap(), 0);
    assert_eq!(map.write_at(&[1; 20], 3 * PAGE - 11).unwrap(), 10);
}

#[test]
fn a_forked_child_does_not_have_it_and_drops_it() {
    let subject = Subject::new(8 * MIB, 40 * MIB, SpaceOptions::default());
    let map = std::sync::Mutex::new(Some(subject.space.map_anon(16 * MIB).unwrap()));
    let store = |version| {
        let map = map.lock().unwrap();
        for page in 0..16 * MIB / PAGE {
            write_page(map.as_ref().unwrap(), page, version);
        }
    };
    store(1);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Page-outs are under way at the fork.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let other = subject.space.map_anon(MIB).unwrap();
                for page in 0..MIB / PAGE {
                    write_page(&other, page, 1);
                }
                other.page_out(0..MIB).unwrap();
            }
        });
        for _ in 0..10 {
            in_a_child(|| {
                let map = map.lock().unwrap().take().expect("it is there");
                let is_forked = |error: pinfold::Error| {
                    assert_eq!(error.kind(), ErrorKind::Forked, "{error}");
                };
                is_forked(map.read_at(&mut [0], 0).unwrap_err());
                is_forked(map.write_at(&[0], 0).unwrap_err());
                is_forked(map.page_out(0..MIB).unwrap_err());
                is_forked(map.discard(0..MIB).unwrap_err());
                is_forked(map.advise(0..MIB, Hint::WillNeed).unwrap_err());
                is_forked(subject.space.map_anon(MIB).unwrap_err());
                assert_eq!(subject.cache.stats().swap_bytes, 0);
                drop(map);
            });
        }
        over.store(true, Ordering::Relaxed);
    });
    let map = map.lock().unwrap();
    for page in 0..16 * MIB / PAGE {
        check_page(map.as_ref().unwrap(), page, 1);
    }
}

#[test]
fn system_calls_wait_for_pages_where_threads_serve() {
    let subject =
        Subject::new(8 * MIB, 4 * MIB, SpaceOptions { handlers: 1, ..SpaceOptions::default() });
    if !subject.space.stats().serves_system_calls {
        println!("not tried: the process may have no such userfaultfd");
        return;
    }
    let map = subject.space.map_anon(MIB).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let mut expected = vec![0; 3 * PAGE];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut expected, 64).unwrap();
    write_page(&map, 5, 1);
    map.page_out(0..MIB).unwrap();
    check_page(&map, 5, 1); // which is protected from now on
    let (fd, at) = (std::os::fd::AsRawFd::as_raw_fd(&file), map.as_mut_ptr());
    // SAFETY: three pages of the map, which nobody else uses.
    let read = unsafe { libc::pread(fd, at.wrapping_add(4 * PAGE).cast(), 3 * PAGE, 64) };
    assert_eq!(read, (3 * PAGE).cast_signed(), "{}", std::io::Error::last_os_error());
    map.page_out(0..MIB).unwrap();
    let mut bytes = vec![0; 3 * PAGE];
    assert_eq!(map.read_at(&mut bytes, 4 * PAGE).unwrap(), bytes.len());
    assert!(bytes == expected);
}

#[test]
fn a_private_view_has_no_pages_past_the_end_of_a_file_that_became_shorter() {
    let subject = Subject::new(8 * MIB, 4 * MIB, SpaceOptions::default());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7; 40 * PAGE]).unwrap();
    let file = subject.cache.open(&path).unwrap();
    let map = subject.space.map_private(&file, 0..file.len()).unwrap();
    let shorter = (20 * PAGE + 100) as u64;
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(shorter).unwrap();
    file.invalidate(0..i64::MAX as u64).unwrap();
    let mut bytes = [1; PAGE];
    for page in [3, 4, 20] {
        map.read_at(&mut bytes, page * PAGE).unwrap();
        let there = if page == 20 { 100 } else { PAGE };
        assert!(bytes[..there].iter().all(|&byte| byte == 7));
        assert!(bytes[there..].iter().all(|&byte| byte == 0));
    }
    for page in [21, 39] {
        let error = map.read_at(&mut bytes, page * PAGE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error}");
    }
}
