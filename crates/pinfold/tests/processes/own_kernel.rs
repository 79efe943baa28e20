//! Own memory, and what the kernel does to its page table by itself or because the program asks for
//! it by a system call: no store is lost, and nothing hangs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pinfold::source::Memory;
use pinfold::{AnonMap, Cache, Hint, Options, Space};

use crate::child::in_a_child;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const PAGES: usize = 512;
const BYTES: usize = PAGES * PAGE;

fn map(handlers: usize) -> (Space, AnonMap) {
    let source = Arc::new(Memory::new(Vec::new()));
    let cache = Cache::new(Options {
        swap_source: Some(source),
        swap_bytes: 8 * MIB as u64,
        ..Options::new(16 * MIB as u64)
    });
    let space = Space::new(&cache.unwrap(), handlers).unwrap();
    let map = space.map_anon(BYTES).unwrap();
    map.advise(0..BYTES, Hint::Random).unwrap();
    (space, map)
}

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Whether mprotect(2) is done to the first `bytes` bytes.
fn protect(map: &AnonMap, bytes: usize, to: libc::c_int) -> bool {
    // SAFETY: the map's addresses; who accesses them may.
    unsafe { libc::mprotect(map.as_mut_ptr().cast(), bytes, to) == 0 }
}

fn word(map: &AnonMap, page: usize) -> &AtomicU64 {
    let at = map.as_mut_ptr().wrapping_add(page * PAGE);
    // SAFETY: in the map, aligned, and all who use it do so by atomics.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

fn store_all(map: &AnonMap, value: u64) {
    (0..PAGES).for_each(|page| word(map, page).store(value, Ordering::Relaxed));
}

/// How many pages have another value.
fn differ(map: &AnonMap, value: u64) -> usize {
    (0..PAGES).filter(|&page| word(map, page).load(Ordering::Relaxed) != value).count()
}

fn page_out(map: &AnonMap) -> usize {
    map.page_out(0..BYTES).unwrap() / PAGE
}

/// How many pages are protected against stores.
fn protected(map: &AnonMap) -> usize {
    let mut entries = vec![0; PAGES * 8];
    let at = map.as_mut_ptr().addr() / PAGE * 8;
    File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entries, at as u64).unwrap();
    let entries = entries.as_chunks::<8>().0.iter();
    entries.filter(|entry| u64::from_ne_bytes(**entry) & 1 << 57 != 0).count()
}

/// Sets what KSM does, if the machine has it and lets the test; as it was when this is dropped.
struct Ksm(Vec<(&'static str, String)>);

impl Ksm {
    fn start() -> Option<Ksm> {
        let mut was = Ksm(Vec::new());
        for (name, value) in [("pages_to_scan", "100000"), ("sleep_millisecs", "1"), ("run", "1")] {
            let path = format!("/sys/kernel/mm/ksm/{name}");
            let before = std::fs::read_to_string(&path).ok()?;
            was.0.push((name, before));
            std::fs::write(&path, value).ok()?;
        }
        Some(was)
    }
}

impl Drop for Ksm {
    fn drop(&mut self) {
        for (name, value) in self.0.drain(..).rev() {
            let _ = std::fs::write(format!("/sys/kernel/mm/ksm/{name}"), value);
        }
    }
}

fn merge_all(on: bool) -> bool {
    /// `PR_SET_MEMORY_MERGE`.
    const SET: libc::c_int = 67;
    // SAFETY: it changes what KSM does with this process's memory.
    unsafe { libc::prctl(SET, libc::c_ulong::from(on), 0, 0, 0) == 0 }
}

fn advise(map: &AnonMap, advice: libc::c_int) -> bool {
    // SAFETY: the map's addresses, in a test of what comes of it.
    unsafe { libc::madvise(map.as_mut_ptr().cast(), BYTES, advice) == 0 }
}

/// Clean pages in memory are merged, stored to, and paged out; how many stores are lost. `None`:
/// KSM did not come to them.
fn stores_lost_to_ksm(merge: impl FnOnce(&AnonMap)) -> Option<usize> {
    let (_space, map) = map(0);
    store_all(&map, 1);
    assert_eq!(page_out(&map), PAGES);
    assert_eq!((differ(&map, 1), protected(&map)), (0, PAGES));
    merge(&map);
    let since = Instant::now();
    // Each page that others share was a page of its own, and keeps its entry.
    while protected(&map) > PAGES / 4 {
        if since.elapsed() > Duration::from_secs(20) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    store_all(&map, 2);
    page_out(&map);
    Some(differ(&map, 2))
}

#[test]
fn no_store_is_lost_to_ksm() {
    let Some(_ksm) = Ksm::start() else {
        return println!("skipped: the machine has no KSM, or this user may not start it");
    };
    let zero = |lost: Option<usize>, how: &str| {
        println!("stores lost after {how}: {lost:?} of {PAGES} (None: KSM did not come to them)");
        assert!(matches!(lost, None | Some(0)));
    };
    in_a_child(|| {
        let merge = |map: &AnonMap| assert!(advise(map, libc::MADV_MERGEABLE));
        zero(stores_lost_to_ksm(merge), "MADV_MERGEABLE");
    });
    let later = |_: &AnonMap| assert!(merge_all(true));
    in_a_child(|| zero(stores_lost_to_ksm(later), "PR_SET_MEMORY_MERGE"));
}

/// Whether KSM may merge the memory.
fn is_mergeable(map: &AnonMap) -> bool {
    let start = format!("{:x}-", map.as_mut_ptr().addr());
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let its = all.split_once(&start).expect("it is mapped").1;
    its.lines().find(|line| line.starts_with("VmFlags:")).unwrap().contains(" mg")
}

#[test]
fn ksm_is_told_to_keep_away_whenever_the_process_has_asked_for_it() {
    in_a_child(|| {
        if !merge_all(true) {
            return println!("skipped: the kernel merges no whole processes");
        }
        let (_space, before) = map(0);
        assert!(!is_mergeable(&before), "it was made mergeable");
        assert!(merge_all(false) && merge_all(true));
        assert!(is_mergeable(&before), "the process asked once more, for all that is there");
        store_all(&before, 1);
        assert_eq!(page_out(&before), PAGES);
        assert_eq!(differ(&before, 1), 0);
        assert_eq!(page_out(&before), PAGES, "what is clean leaves");
        assert!(!is_mergeable(&before), "nobody has told KSM again");
    });
}

/// Registers the memory with another userfaultfd, and ends its registration by that one.
fn register_elsewhere(map: &AnonMap) -> bool {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const UNREGISTER: libc::c_ulong = 0x8010_aa01;
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) } as i32;
    // The version, features, what the kernel tells; the range, the mode, what the kernel tells.
    let (mut api, at) = ([0xAA_u64, 0, 0], map.as_mut_ptr().addr() as u64);
    let mut range = [at, BYTES as u64, 3, 0];
    let calls =
        [(API, api.as_mut_ptr()), (REGISTER, range.as_mut_ptr()), (UNREGISTER, range.as_mut_ptr())];
    // SAFETY: the kernel's structs for these numbers.
    let done = calls.map(|(call, with)| unsafe { libc::ioctl(fd, call, with) } == 0);
    // SAFETY: made above.
    unsafe { libc::close(fd) };
    assert!(!done[1] && !done[2], "the kernel gives the memory to another descriptor");
    done[0]
}

/// Asks for pages that were written to, and for their protection.
fn scan_and_protect(map: &AnonMap) -> bool {
    const SCAN: libc::c_ulong = 0xc060_6610;
    let (at, mut regions) = (map.as_mut_ptr().addr() as u64, [0_u64; 3 * 64]);
    let end = at + BYTES as u64;
    let (regions_at, written) = (regions.as_mut_ptr().expose_provenance() as u64, 1 << 1);
    // The size, "protect", the range, the walk's end, the regions; what to ask for and to tell.
    let mut scan = [96_u64, 1, at, end, 0, regions_at, 64, 0, 0, 0, written, written];
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    // SAFETY: the kernel's struct for this number, and room for what it tells.
    unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&pagemap), SCAN, scan.as_mut_ptr()) >= 0 }
}

/// What is done to memory. False: the machine or this user cannot.
type Done = (&'static str, fn(&AnonMap) -> bool);

/// To pages that are clean.
const DONE: &[Done] = &[
    ("MADV_COLD", |map| advise(map, libc::MADV_COLD)),
    ("MADV_PAGEOUT", |map| advise(map, libc::MADV_PAGEOUT)),
    ("MADV_FREE", |map| advise(map, libc::MADV_FREE)),
    ("MADV_DONTNEED", |map| advise(map, libc::MADV_DONTNEED)),
    ("MADV_POPULATE_READ", |map| advise(map, libc::MADV_POPULATE_READ)),
    ("MADV_POPULATE_WRITE", |map| advise(map, libc::MADV_POPULATE_WRITE)),
    ("MADV_COLLAPSE", |map| advise(map, libc::MADV_HUGEPAGE) && advise(map, libc::MADV_COLLAPSE)),
    ("soft-dirty", |_| std::fs::write("/proc/self/clear_refs", "4").is_ok()),
    ("accessed bits", |_| std::fs::write("/proc/self/clear_refs", "1").is_ok()),
    ("compaction", |_| std::fs::write("/proc/sys/vm/compact_memory", "1").is_ok()),
    ("mprotect", |map| {
        [libc::PROT_NONE, READ_WRITE].map(|to| protect(map, BYTES, to)) == [true; 2]
    }),
    ("MADV_UNMERGEABLE", |map| advise(map, libc::MADV_UNMERGEABLE)),
    ("another userfaultfd", |map| register_elsewhere(map)),
    ("PAGEMAP_SCAN", |map| scan_and_protect(map)),
    ("a fork", |_| {
        in_a_child(|| {});
        true
    }),
    ("a fork that has it", |map| {
        let may = advise(map, libc::MADV_DOFORK);
        in_a_child(|| {});
        may
    }),
];

#[test]
fn what_the_kernel_does_to_clean_pages_loses_no_store() {
    for handlers in [0, 1] {
        for (name, done) in DONE {
            let (_space, map) = map(handlers);
            store_all(&map, 1);
            assert_eq!(page_out(&map), PAGES);
            assert_eq!((differ(&map, 1), protected(&map)), (0, PAGES));
            let could = done(&map);
            println!("{name}, {handlers} handlers: {could}, protected: {}", protected(&map));
            assert_eq!(differ(&map, 1), 0, "{name}: bytes changed");
            store_all(&map, 2);
            page_out(&map);
            assert_eq!(differ(&map, 2), 0, "{name}: stores were lost");
        }
    }
}

/// Installs a handler of SIGBUS that ends the process well: the access failed, and did not hang.
fn end_well_by_sigbus() {
    extern "C" fn end(_: libc::c_int) {
        // SAFETY: it ends the process, as it is to.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: of this child; `end` does what a handler may.
    unsafe { libc::signal(libc::SIGBUS, end as *const () as libc::sighandler_t) };
}

/// To pages that were stored to.
const TAKES_AWAY: &[Done] = &[
    ("MADV_DONTNEED", |map| advise(map, libc::MADV_DONTNEED)),
    ("MADV_GUARD_INSTALL and _REMOVE", |map| advise(map, 102) && advise(map, 103)),
];

#[test]
fn what_the_program_took_out_of_memory_is_an_error_and_no_hang() {
    for handlers in [0, 1] {
        for (name, take_away) in TAKES_AWAY {
            let (_space, map) = map(handlers);
            store_all(&map, 1);
            if !take_away(&map) {
                println!("{name}: this kernel has it not");
                continue;
            }
            let error = map.read_at(&mut [0; 8], 5 * PAGE).unwrap_err().to_string();
            assert!(error.contains("bytes 20480..24576") && error.contains("madvise"), "{error}");
            assert!(map.write_at(&[1; 8], 6 * PAGE).is_err(), "the rest of the page is lost");
            assert!(map.hold(7 * PAGE..8 * PAGE).is_err());
            // They have no bytes to be written, and take no memory.
            assert_eq!(page_out(&map), 0);
            assert!(map.read_at(&mut [0; 8], 8 * PAGE).is_err());
            // What is not wanted any more is as good as ever.
            map.discard(0..BYTES).unwrap();
            assert_eq!(differ(&map, 0), 0);
            store_all(&map, 4);
            page_out(&map);
            assert_eq!(differ(&map, 4), 0);
        }
        for access in [0, 1] {
            in_a_child(|| {
                end_well_by_sigbus();
                let (_space, map) = map(handlers);
                store_all(&map, 1);
                assert!(advise(&map, libc::MADV_DONTNEED));
                match access {
                    0 => word(&map, 5).store(2, Ordering::Relaxed),
                    _ => assert_eq!(word(&map, 5).load(Ordering::Relaxed), 1),
                }
                panic!("the bytes are lost, and the access was made");
            });
        }
    }
}

/// What is done to the addresses. The program must not; if it does, nothing else may suffer.
type Replace = (&'static str, fn(&AnonMap));

const REPLACES: &[Replace] = &[
    ("munmap", |map| {
        // SAFETY: nobody accesses it any more.
        assert_eq!(unsafe { libc::munmap(map.as_mut_ptr().cast(), BYTES / 2) }, 0);
    }),
    ("mremap", |map| {
        let (at, half) = (map.as_mut_ptr().cast(), BYTES / 2);
        let (flags, anywhere) =
            (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, std::ptr::null_mut::<libc::c_void>());
        // SAFETY: as above; the kernel chooses the place.
        let to = unsafe { libc::mremap(at, half, half, flags, anywhere) };
        assert_ne!(to, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    }),
    ("mmap", |map| {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = map.as_mut_ptr().cast();
        // SAFETY: as above.
        let to = unsafe { libc::mmap(at, BYTES / 2, access, flags | libc::MAP_FIXED, -1, 0) };
        assert_eq!(to, at);
    }),
];

#[test]
fn what_the_program_unmapped_hangs_nobody() {
    for (name, replace) in REPLACES {
        for handlers in [0, 1] {
            for clean in [true, false] {
                in_a_child(|| {
                    let (space, map) = map(handlers);
                    let other = space.map_anon(BYTES).unwrap();
                    for map in [&map, &other] {
                        store_all(map, 1);
                    }
                    if clean {
                        page_out(&map);
                        assert_eq!(differ(&map, 1), 0);
                    }
                    replace(&map);
                    let gone = page_out(&map);
                    println!("{name}, {handlers} handlers, clean {clean}: {gone} pages left");
                    assert!(page_out(&other) == PAGES && differ(&other, 1) == 0);
                    let end = PAGES - 1;
                    assert_eq!(
                        word(&map, end).load(Ordering::Relaxed),
                        1,
                        "what is mapped is well"
                    );
                    drop(map);
                    drop(space);
                });
            }
        }
    }
}

#[test]
fn what_a_debugger_stores_is_refused_or_not_lost() {
    for handlers in [0, 1] {
        let (_space, map) = map(handlers);
        store_all(&map, 1);
        assert_eq!(page_out(&map), PAGES);
        assert_eq!(differ(&map, 1), 0);
        let memory = File::options().write(true).open("/proc/self/mem").unwrap();
        let stored = (0..PAGES).map(|page| {
            let at = map.as_mut_ptr().addr() + page * PAGE;
            memory.write_all_at(&2_u64.to_ne_bytes(), at as u64).is_ok()
        });
        let stored: Vec<bool> = stored.collect();
        println!("{handlers} handlers: {} stored", stored.iter().filter(|it| **it).count());
        page_out(&map);
        for (page, stored) in stored.into_iter().enumerate() {
            assert_eq!(word(&map, page).load(Ordering::Relaxed), 1 + u64::from(stored));
        }
    }
}

/// Whoever copies finds the bytes or an error, and never zeros, whoever else accesses the page, or
/// changes what may be done with it.
#[test]
fn copies_of_what_the_program_takes_away_meanwhile_end_and_find_no_zeros() {
    for handlers in [0, 1] {
        in_a_child(|| {
            let (_space, map) = map(handlers);
            store_all(&map, u64::from_ne_bytes([1; 8]));
            let ends = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let (map, ends) = (&map, &ends);
                for _ in 0..2 {
                    scope.spawn(move || {
                        // Ends: the other thread does.
                        while !ends.load(Ordering::Relaxed) {
                            for page in 0..8 {
                                let _ = map.write_at(&[1; PAGE], page * PAGE);
                                let mut word = [0; 8];
                                if map.read_at(&mut word, page * PAGE).is_ok() {
                                    assert_eq!(word, [1; 8]);
                                }
                            }
                        }
                    });
                }
                scope.spawn(move || {
                    // Ends: as above.
                    while !ends.load(Ordering::Relaxed) {
                        assert!(protect(map, BYTES, READ_WRITE));
                    }
                });
                for _ in 0..10_000 {
                    assert!(advise(map, libc::MADV_DONTNEED));
                    let _ = map.page_out(0..8 * PAGE);
                }
                ends.store(true, Ordering::Relaxed);
            });
            map.discard(0..BYTES).unwrap();
            store_all(&map, 2);
            page_out(&map);
            assert_eq!(differ(&map, 2), 0);
        });
    }
}

/// As an allocator protects what lies before and after a block. What is in memory then is paged
/// out, or stays.
#[test]
fn what_the_program_has_forbidden_to_access_ends_no_page_out() {
    for handlers in [0, 1] {
        in_a_child(|| {
            let (_space, map) = map(handlers);
            let protect = |to| assert!(protect(&map, BYTES / 2, to));
            // Half of what is forbidden is zeros, which nobody knows without a look.
            (PAGES / 4..PAGES).for_each(|page| word(&map, page).store(1, Ordering::Relaxed));
            (0..PAGES / 4).for_each(|page| word(&map, page).store(0, Ordering::Relaxed));
            protect(libc::PROT_NONE);
            println!("{handlers} handlers: {} of {PAGES} pages left", page_out(&map));
            let mut word_of = [0; 8];
            map.read_at(&mut word_of, (PAGES / 2 - 1) * PAGE).unwrap();
            assert_eq!(u64::from_ne_bytes(word_of), 1);
            protect(libc::PROT_READ | libc::PROT_WRITE);
            assert_eq!(differ(&map, 1), PAGES / 4);
            (0..PAGES / 4).for_each(|page| word(&map, page).store(1, Ordering::Relaxed));
            assert_eq!(differ(&map, 1), 0);
        });
    }
}

/// While there are guards, nothing hangs and no thread of the cache gets a signal; once they are
/// gone, a page has its bytes or is lost.
#[test]
fn what_the_program_guards_is_there_again_or_an_error() {
    /// `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE`.
    const GUARD: [libc::c_int; 2] = [102, 103];
    for handlers in [0, 1] {
        for clean in [true, false] {
            in_a_child(|| {
                let (_space, map) = map(handlers);
                store_all(&map, 1);
                if clean {
                    assert_eq!(page_out(&map), PAGES);
                    assert_eq!(differ(&map, 1), 0);
                }
                if !advise(&map, GUARD[0]) {
                    return println!("skipped: this kernel has no guards");
                }
                let gone = page_out(&map);
                println!("{handlers} handlers, clean {clean}: {gone} pages left");
                for page in [0, PAGES - 1] {
                    let mut word = [0; 8];
                    match map.read_at(&mut word, page * PAGE) {
                        Ok(_) => assert!(clean && u64::from_ne_bytes(word) == 1),
                        Err(error) => assert!(!clean && error.to_string().contains("madvise")),
                    }
                    map.discard(page * PAGE..(page + 1) * PAGE).unwrap();
                    assert_eq!(map.write_at(&[1; PAGE], page * PAGE).unwrap(), PAGE);
                }
                assert!(advise(&map, GUARD[1]));
                for page in 1..PAGES - 1 {
                    let mut word = [0; 8];
                    match map.read_at(&mut word, page * PAGE) {
                        Ok(_) => assert_eq!(u64::from_ne_bytes(word), 1),
                        Err(error) => assert!(!clean && error.to_string().contains("madvise")),
                    }
                }
                map.discard(0..BYTES).unwrap();
                store_all(&map, 2);
                page_out(&map);
                assert_eq!(differ(&map, 2), 0);
            });
        }
    }
}

/// Seals a map: what it may be used for does not change any more, and its bytes do not go. False if
/// the kernel cannot.
fn seal(map: &AnonMap) -> bool {
    seal_pages(map, 0, PAGES)
}

fn seal_pages(map: &AnonMap, first: usize, pages: usize) -> bool {
    /// `mseal(2)` (Linux 6.10).
    const MSEAL: libc::c_long = 462;
    let at = map.as_mut_ptr().wrapping_add(first * PAGE);
    // SAFETY: addresses of the map, which the process keeps.
    unsafe { libc::syscall(MSEAL, at, pages * PAGE, 0) == 0 }
}

#[test]
fn what_the_program_has_sealed_stays_in_memory_and_the_rest_leaves() {
    in_a_child(|| {
        let (space, map) = map(0);
        let other = space.map_anon(BYTES).unwrap();
        store_all(&map, 7);
        store_all(&other, 8);
        assert!(protect(&map, BYTES, libc::PROT_READ));
        if !seal(&map) {
            return println!("skipped: the kernel seals nothing");
        }
        assert_eq!((page_out(&map), page_out(&other)), (0, PAGES));
        assert_eq!((differ(&map, 7), differ(&other, 8)), (0, 0));
        assert_eq!(page_out(&other), PAGES);
        std::mem::forget((space, map)); // it cannot be unmapped
    });
}

#[test]
fn what_is_sealed_is_not_discarded_and_the_rest_is() {
    for handlers in [0, 1] {
        in_a_child(|| {
            let (space, map) = map(handlers);
            store_all(&map, 7);
            // These are not in memory, and can be forgotten all the same.
            assert_eq!(map.page_out(0..8 * PAGE).unwrap(), 8 * PAGE);
            assert!(protect(&map, BYTES, libc::PROT_READ));
            if !seal_pages(&map, 0, 16) {
                return println!("skipped: the kernel seals nothing");
            }
            let error = map.discard(0..32 * PAGE).unwrap_err().to_string();
            assert!(error.contains("bytes 32768..36864") && error.contains("mseal"), "{error}");
            let value = |page| word(&map, page).load(Ordering::Relaxed);
            let (gone, kept) = ([0..8, 16..32], [8..16, 32..PAGES]);
            assert!(gone.into_iter().flatten().all(|page| value(page) == 0));
            assert!(kept.into_iter().flatten().all(|page| value(page) == 7));
            // Of all of it that can leave, the bytes are the same when it is back.
            page_out(&map);
            assert_eq!(differ(&map, 7), 24);
            drop(map);
            drop(space);
        });
    }
}

/// As much as is handed over to be written at a time cannot leave; three times the budget is stored
/// to beside it.
#[test]
fn much_that_the_program_has_replaced_keeps_no_other_from_the_swap() {
    for handlers in [0, 1] {
        in_a_child(|| {
            let source = Arc::new(Memory::new(Vec::new()));
            let options = Options {
                swap_source: Some(source),
                swap_bytes: 64 * MIB as u64,
                ..Options::new(16 * MIB as u64)
            };
            let space = Space::new(&Cache::new(options).unwrap(), handlers).unwrap();
            let map = space.map_anon(BYTES).unwrap();
            store_all(&map, 7);
            let at = map.as_mut_ptr().cast();
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: all of the map, which this child alone uses.
            let replaced = unsafe { libc::mmap(at, BYTES, access, flags, -1, 0) };
            assert_eq!(replaced, at);
            store_all(&map, 9);
            let other = space.map_anon(48 * MIB).unwrap();
            for page in 0..48 * MIB / PAGE {
                other.write_at(&page.to_ne_bytes(), page * PAGE).unwrap();
            }
            for page in 0..48 * MIB / PAGE {
                let mut word = [0; 8];
                other.read_at(&mut word, page * PAGE).unwrap();
                assert_eq!(usize::from_ne_bytes(word), page);
            }
            assert_eq!(differ(&map, 9), 0);
            std::mem::forget((space, map));
        });
    }
}

#[test]
fn a_page_that_the_program_has_replaced_keeps_no_other_in_memory() {
    in_a_child(|| {
        let (space, map) = map(0);
        store_all(&map, 7);
        let at = word(&map, 100).as_ptr().cast();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: a page of the map, which this child alone uses.
        let replaced = unsafe { libc::mmap(at, PAGE, access, flags, -1, 0) };
        assert_eq!(replaced, at);
        word(&map, 100).store(9, Ordering::Relaxed);
        assert_eq!(page_out(&map), PAGES - 1);
        assert_eq!((differ(&map, 7), word(&map, 100).load(Ordering::Relaxed)), (1, 9));
        std::mem::forget((space, map));
    });
}

/// Makes mappings until the system allows no more.
fn exhaust_mappings() {
    const AT_ONCE: usize = 2 * 10_000 * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // Ends: with the limit of the system.
    loop {
        // SAFETY: new addresses.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), AT_ONCE, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return;
        }
        for page in (0..AT_ONCE / PAGE).step_by(2) {
            let at = start.wrapping_byte_add(page * PAGE);
            // SAFETY: of the mapping above, which nobody uses.
            if unsafe { libc::mprotect(at, PAGE, libc::PROT_READ) } != 0 {
                return;
            }
        }
    }
}

#[test]
fn where_the_process_may_have_no_more_mappings_memory_that_is_there_goes_on() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if most.trim().parse::<u64>().unwrap() > 1 << 20 {
        return println!("skipped: it would take long to reach the limit");
    }
    for handlers in [0, 1] {
        in_a_child(|| {
            let (space, map) = map(handlers);
            store_all(&map, 1);
            // What is started when it is first used is there from now on.
            assert_eq!((page_out(&map), differ(&map, 1)), (PAGES, 0));
            println!("{handlers} handlers"); // which allocates
            exhaust_mappings();
            for value in 2..4 {
                assert_eq!(page_out(&map), PAGES);
                assert_eq!(differ(&map, value - 1), 0);
                store_all(&map, value);
            }
            let error = space.map_anon(BYTES).unwrap_err().to_string();
            assert!(error.contains("vm.max_map_count"), "{error}");
            map.discard(0..BYTES / 2).unwrap();
            assert_eq!(differ(&map, 3), PAGES / 2);
            drop(map);
        });
    }
}

/// A thread that the cache starts for a fault would end the process there.
#[test]
fn where_the_process_may_have_no_more_mappings_a_thread_that_is_wanted_is_an_error() {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if most.trim().parse::<u64>().unwrap() > 1 << 20 {
        return println!("skipped: it would take long to reach the limit");
    }
    in_a_child(|| {
        end_well_by_sigbus();
        let (_space, map) = map(1);
        store_all(&map, 1);
        assert_eq!(page_out(&map), PAGES);
        exhaust_mappings();
        // Made, or refused, as the system has a mapping left or not.
        assert_eq!(differ(&map, 1), 0);
    });
}

#[test]
fn faults_are_served_whatever_limit_of_descriptors_the_program_sets() {
    in_a_child(|| {
        let (_space, map) = map(2);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit of this process alone.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
        store_all(&map, 7);
        assert_eq!(differ(&map, 7), 0);
        page_out(&map);
        assert_eq!(differ(&map, 7), 0);
    });
}
