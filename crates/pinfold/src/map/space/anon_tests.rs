//! One page at a time: where its bytes are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use rustix::mm::MprotectFlags;

use crate::base::mutant::{self, Mutant};
use crate::error::Cause;
use crate::mapped::swap::pages::PageState;
use crate::source::{Memory, Source, in_a_source};
use crate::{AnonMap, Cache, Hint, Options, Space};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn map(budget: usize, swap: usize, len: usize) -> (Cache, Space, AnonMap) {
    let source = Arc::new(Memory::new(Vec::new()));
    let cache = Cache::new(Options {
        swap_source: Some(source),
        swap_bytes: swap as u64,
        ..Options::new(budget as u64)
    })
    .unwrap();
    let space = Space::new(&cache, 0).unwrap();
    let map = space.map_anon(len).unwrap();
    (cache, space, map)
}

fn word(map: &AnonMap, at: usize) -> &AtomicU64 {
    // SAFETY: in the map, and aligned.
    unsafe { AtomicU64::from_ptr(map.as_mut_ptr().wrapping_add(at).cast()) }
}

fn load(map: &AnonMap, at: usize) -> u64 {
    word(map, at).load(Ordering::Relaxed)
}

fn store(map: &AnonMap, at: usize, value: u64) {
    word(map, at).store(value, Ordering::Relaxed);
}

fn state(map: &AnonMap, page: u64) -> PageState {
    map.state(page)
}

#[test]
fn a_page_goes_to_the_swap_and_comes_back() {
    let (cache, _space, map) = map(16 * MIB, 4 * MIB, 4 * MIB);
    assert_eq!(load(&map, 5 * PAGE), 0);
    // In no order that would bring more.
    for (page, value) in [(5, 55), (8, 88), (7, 77)] {
        store(&map, page * PAGE, value);
    }
    assert_eq!(map.page_out(0..4 * MIB).unwrap(), 3 * PAGE);
    assert!(matches!(state(&map, 5), PageState::Swapped(_)));
    let stats = cache.stats();
    let swapped = (stats.swap_pages_written, stats.swap_writes, stats.swap_used_bytes);
    assert_eq!(swapped, (3, 1, 3 * PAGE as u64));
    assert_eq!([5, 7, 8].map(|page| load(&map, page * PAGE)), [55, 77, 88]);
    assert!(matches!(state(&map, 5), PageState::Swapped(_)), "it was only read");
    // What is clean leaves without a write.
    assert_eq!(map.page_out(0..4 * MIB).unwrap(), 3 * PAGE);
    assert_eq!(cache.stats().swap_pages_written, 3);
    assert_eq!(load(&map, 5 * PAGE), 55);
    store(&map, 5 * PAGE, 56);
    assert_eq!(state(&map, 5), PageState::Dirty);
    assert_eq!(cache.stats().swap_used_bytes, 2 * PAGE as u64, "its slot is free");
    assert_eq!(map.page_out(0..4 * MIB).unwrap(), PAGE);
    store(&map, 5 * PAGE + 8, 57);
    assert_eq!((load(&map, 5 * PAGE), load(&map, 5 * PAGE + 8)), (56, 57));
}

#[test]
fn more_than_the_budget_keeps_its_bytes() {
    let (cache, space, map) = map(8 * MIB, 80 * MIB, 64 * MIB);
    for round in 1..4 {
        for at in (0..64 * MIB).step_by(PAGE) {
            if round > 1 {
                assert_eq!(load(&map, at), (at + round - 1) as u64, "byte {at}, round {round}");
            }
            store(&map, at, (at + round) as u64);
        }
    }
    let stats = cache.stats();
    assert!(stats.resident_bytes <= 8 * MIB as u64);
    println!("{stats:?} {:?}", space.stats());
}

/// A swap that says which of its calls the cache has noted.
#[derive(Debug)]
struct Noted(Memory, std::sync::Mutex<Vec<(&'static str, bool)>>);

impl Noted {
    fn note(&self, call: &'static str) {
        self.1.lock().unwrap().push((call, in_a_source()));
    }
}

impl Source for Noted {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        self.note("read");
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        self.note("write");
        self.0.write_at(offset, buf)
    }

    fn len_bytes(&self) -> std::io::Result<u64> {
        self.0.len_bytes()
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "noted".into()
    }
}

/// Threads that wait for memory wait for these calls, and the source's own accesses do not.
#[test]
fn calls_of_the_swap_are_calls_of_a_source() {
    let source = Arc::new(Noted(Memory::new(Vec::new()), std::sync::Mutex::default()));
    let options = Options {
        swap_source: Some(source.clone()),
        swap_bytes: MIB as u64,
        ..Options::new(8 * MIB as u64)
    };
    let cache = Cache::new(options).unwrap();
    let map = Space::new(&cache, 0).unwrap().map_anon(MIB).unwrap();
    store(&map, 0, 7);
    map.page_out(0..MIB).unwrap();
    assert_eq!(load(&map, 0), 7);
    assert_eq!(*source.1.lock().unwrap(), [("write", true), ("read", true)]);
}

#[test]
fn nearly_all_of_the_budget_can_be_own_memory() {
    for budget in [8, 16, 64, 128].map(|mib| mib * MIB) {
        let mut options = Options::new(budget as u64);
        options.patience = std::time::Duration::from_millis(20);
        let cache = Cache::new(options).unwrap();
        let map = Space::new(&cache, 0).unwrap().map_anon(budget).unwrap();
        let pages = (0..budget).step_by(PAGE);
        let stored = pages.take_while(|&at| map.write_at(&[1], at).is_ok()).count() * PAGE;
        let left = (2 * MIB).max(budget / 16);
        assert!(stored + left >= budget, "{} of {budget} bytes are left", budget - stored);
    }
}

/// Memory whose reads wait until they may go on.
#[derive(Debug)]
struct WaitingReads {
    memory: Memory,
    begun: Barrier,
    goes_on: Barrier,
}

impl Source for WaitingReads {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        self.begun.wait();
        self.goes_on.wait();
        self.memory.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        self.memory.write_at(offset, from)
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "waiting".into()
    }

    fn len_bytes(&self) -> std::io::Result<u64> {
        self.memory.len_bytes()
    }
}

/// Three pages are read from the swap together, and two of them are forgotten meanwhile: how many
/// slots are in use then, and after the read.
fn used_while_read(mutant: Option<Mutant>) -> [u64; 2] {
    let [begun, goes_on] = [(); 2].map(|()| Barrier::new(2));
    let source = Arc::new(WaitingReads { memory: Memory::new(Vec::new()), begun, goes_on });
    let cache = Cache::new(Options {
        swap_source: Some(source.clone()),
        swap_bytes: MIB as u64,
        ..Options::new(16 * MIB as u64)
    })
    .unwrap();
    let map = Space::new(&cache, 0).unwrap().map_anon(MIB).unwrap();
    (0..3).for_each(|page| store(&map, page * PAGE, page as u64 + 1));
    assert!(map.page_out(0..MIB).unwrap() >= 3 * PAGE);
    let used = || cache.stats().swap_used_bytes / PAGE as u64;
    let meanwhile = std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut word = [0; 8];
            mutant::with(mutant, || map.read_at(&mut word, 0)).unwrap();
            assert_eq!(word, 1_u64.to_ne_bytes());
        });
        source.begun.wait();
        mutant::with(mutant, || map.discard(PAGE..3 * PAGE)).unwrap();
        let meanwhile = used();
        source.goes_on.wait();
        reads.join().unwrap();
        meanwhile
    });
    let after = used();
    assert_eq!([1, 2].map(|page| load(&map, page * PAGE)), [0, 0]);
    [meanwhile, after]
}

#[test]
fn a_slot_is_not_free_while_it_is_read() {
    assert_eq!(used_while_read(None), [3, 1]);
    assert_eq!(used_while_read(Some(Mutant::SlotFreedEarly)), [1, 1]);
}

#[test]
fn what_is_all_zeros_is_not_written() {
    let (cache, _space, map) = map(16 * MIB, 4 * MIB, 4 * MIB);
    for at in (0..MIB).step_by(PAGE) {
        store(&map, at, 1);
        store(&map, at, 0);
    }
    assert!(map.page_out(0..4 * MIB).unwrap() >= MIB);
    let stats = cache.stats();
    assert_eq!((stats.swap_pages_written, stats.swap_used_bytes), (0, 0));
    assert!(stats.swap_zeros >= 256, "{stats:?}");
    map.advise(0..MIB, Hint::WillNeed).unwrap();
    assert_eq!(load(&map, 0), 0);
}

/// What leaves memory by a page-out of three pages that are held, and the state of the second,
/// which was written to the swap before.
fn page_out_held() -> (usize, PageState) {
    let (_cache, _space, map) = map(16 * MIB, 4 * MIB, 4 * MIB);
    map.advise(0..4 * MIB, Hint::Random).unwrap();
    store(&map, 5 * PAGE, 55);
    assert_eq!(map.page_out(0..4 * MIB).unwrap(), PAGE);
    let held = map.hold(4 * PAGE + 1..6 * PAGE + 1).unwrap();
    assert_eq!(
        (held.as_mut_ptr().len(), held.as_mut_ptr().addr()),
        (2 * PAGE, map.as_mut_ptr().addr() + 4 * PAGE + 1)
    );
    assert_eq!(load(&map, 5 * PAGE), 55);
    map.advise(0..4 * MIB, Hint::DontNeed).unwrap();
    let gone = map.page_out(0..4 * MIB).unwrap();
    let page = state(&map, 5);
    drop(held);
    assert_eq!(map.page_out(0..4 * MIB).unwrap(), 3 * PAGE);
    (gone, page)
}

#[test]
fn what_is_held_stays_and_is_not_written() {
    assert_eq!(page_out_held(), (0, PageState::Dirty));
    let caught = mutant::with(Some(Mutant::PageOutHeld), page_out_held);
    assert!(matches!(caught, (0, PageState::Swapped(_))), "{caught:?}");
}

#[test]
fn a_quarter_of_the_budget_can_be_held() {
    let (_cache, space, map) = map(16 * MIB, 4 * MIB, 16 * MIB);
    let other = space.map_anon(4 * MIB).unwrap();
    let first = map.hold(0..MIB).unwrap();
    let again = map.hold(0..MIB).unwrap();
    let _third = other.hold(0..2 * MIB).unwrap();
    let error = other.hold(0..1).unwrap_err();
    let Cause::HoldTooLarge { held_bytes, most_bytes, .. } = *error.cause() else {
        panic!("{error:?}")
    };
    assert_eq!((held_bytes, most_bytes), (4 * MIB as u64, 4 * MIB as u64));
    drop(again);
    drop(other.hold(MIB..2 * MIB).unwrap());
    assert!(map.hold(0..16 * MIB).is_err());
    assert_eq!(map.hold(5..5).unwrap().as_mut_ptr().len(), 0);
    assert_eq!(map.page_out(0..MIB).unwrap(), 0);
    drop(first);
    assert_eq!(map.page_out(0..MIB).unwrap(), MIB);
}

/// Stores to pages whose protection has ended without a fault, where they are clean and where they
/// are being dropped as clean; returns what they have when they come back.
fn stored_to_without_a_fault() -> [u64; 4] {
    let (cache, _space, map) = map(16 * MIB, 4 * MIB, 4 * MIB);
    map.advise(0..4 * MIB, Hint::Random).unwrap(); // a page at a time
    for page in 0..4 {
        store(&map, page * PAGE, 1);
    }
    assert_eq!(map.page_out(0..4 * MIB).unwrap(), 4 * PAGE);
    for page in 0..4 {
        assert_eq!(load(&map, page * PAGE), 1);
        assert!(matches!(state(&map, page as u64), PageState::Swapped(_)));
    }
    for page in [1, 3] {
        map.end_protection(page as u64);
        store(&map, page * PAGE, 2);
        assert!(
            matches!(state(&map, page as u64), PageState::Swapped(_)),
            "the store made no fault"
        );
    }
    // One way to leave for what is clean alone, and the other.
    map.advise(0..2 * PAGE, Hint::DontNeed).unwrap();
    map.page_out(0..4 * MIB).unwrap();
    let loaded = [0, 1, 2, 3].map(|page| load(&map, page * PAGE));
    map.discard(0..4 * MIB).unwrap();
    assert_eq!(cache.stats().swap_used_bytes, 0, "a slot was lost");
    loaded
}

#[test]
fn a_page_that_is_not_protected_any_more_does_not_leave_as_clean() {
    assert_eq!(stored_to_without_a_fault(), [1, 2, 1, 2]);
    let trusted = mutant::with(Some(Mutant::ProtectionTrusted), stored_to_without_a_fault);
    assert_eq!(trusted, [1; 4], "the mutant does nothing");
}

/// A swap whose writes wait.
#[derive(Debug, Default)]
struct Hangs {
    /// Whether one waits, and whether they may go on.
    now: std::sync::Mutex<(bool, bool)>,
    changed: std::sync::Condvar,
}

impl Hangs {
    fn change(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.now.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(&(bool, bool)) -> bool) {
        let now = self.now.lock().unwrap();
        drop(self.changed.wait_while(now, |now| !until(now)).unwrap());
    }
}

impl Source for Hangs {
    fn read_at(&self, _: u64, _: &mut [u8]) -> std::io::Result<usize> {
        self.change(|now| now.0 = true);
        self.wait(|now| now.1);
        Err(std::io::Error::other("nothing can be read here"))
    }

    fn write_at(&self, _: u64, _: &[u8]) -> std::io::Result<()> {
        self.change(|now| now.0 = true);
        self.wait(|now| now.1);
        Ok(())
    }

    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(0)
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "hangs".into()
    }
}

fn map_whose_swap_hangs() -> (Arc<Hangs>, Space, AnonMap) {
    let swap = Arc::new(Hangs::default());
    let options = Options {
        swap_source: Some(swap.clone()),
        swap_bytes: MIB as u64,
        ..Options::new(16 * MIB as u64)
    };
    let space = Space::new(&Cache::new(options).unwrap(), 0).unwrap();
    let map = space.map_anon(MIB).unwrap();
    (swap, space, map)
}

#[test]
fn while_a_page_out_hangs_the_map_can_be_used() {
    let (swap, _space, map) = map_whose_swap_hangs();
    store(&map, 0, 1);
    store(&map, PAGE, 2);
    std::thread::scope(|scope| {
        let out = scope.spawn(|| map.page_out(0..PAGE).unwrap());
        swap.wait(|now| now.0);
        assert_eq!((load(&map, 0), load(&map, PAGE)), (1, 2));
        store(&map, 2 * PAGE, 3); // it was absent
        store(&map, 0, 4); // it is protected against stores
        assert_eq!(map.read_at(&mut [0; 8], PAGE).unwrap(), 8);
        assert_eq!(map.write_at(&[5; 8], 3 * PAGE).unwrap(), 8);
        map.advise(PAGE..5 * PAGE, Hint::WillNeed).unwrap();
        map.discard(PAGE..2 * PAGE).unwrap();
        drop(map.hold(4 * PAGE..5 * PAGE).unwrap());
        assert!(map.last_failure().is_none());
        swap.change(|now| now.1 = true);
        assert_eq!(out.join().unwrap(), 0, "it was stored to");
    });
    assert_eq!(load(&map, 0), 4);
}

#[test]
fn a_read_that_fails_after_its_page_was_discarded_fails_no_access() {
    let (swap, _space, map) = map_whose_swap_hangs();
    store(&map, 0, 1);
    swap.change(|now| now.1 = true);
    assert_eq!(map.page_out(0..PAGE).unwrap(), PAGE);
    swap.change(|now| *now = (false, false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut word = [1; 8];
            map.read_at(&mut word, 0).map(|_| word)
        });
        swap.wait(|now| now.0);
        map.discard(0..PAGE).unwrap();
        swap.change(|now| now.1 = true);
        assert_eq!(reader.join().unwrap().unwrap(), [0; 8]);
    });
}

#[test]
fn a_late_write_out_does_not_meet_the_file_that_has_the_number_now() {
    let (cache, _space, map) = map(16 * MIB, MIB, MIB);
    store(&map, 0, 1);
    let (memory, number) = map.memory_and_number();
    drop(map);
    let file = cache.attach("other", Arc::new(Memory::new(vec![1; PAGE]))).unwrap();
    assert_eq!(file.handle().mapping.id, number, "the test is of a number that is used again");
    memory.write_out(number, &[0], true);
    assert_eq!(cache.stats().swap_used_bytes, 0);
}

#[test]
fn what_may_not_be_read_is_paged_out_all_the_same() {
    let (cache, _space, map) = map(16 * MIB, 4 * MIB, MIB);
    map.advise(0..MIB, Hint::Random).unwrap();
    (0..16).for_each(|page| store(&map, page * PAGE, 1));
    let allow = |to| {
        // SAFETY: the map's addresses, which nobody else uses.
        unsafe { rustix::mm::mprotect(map.as_mut_ptr().cast(), MIB, to) }.unwrap();
    };
    allow(MprotectFlags::empty());
    assert_eq!(map.page_out(0..MIB).unwrap(), 16 * PAGE);
    assert_eq!(cache.stats().swap_pages_written, 16);
    allow(MprotectFlags::READ | MprotectFlags::WRITE);
    assert!((0..16).all(|page| load(&map, page * PAGE) == 1));
}

/// Maps other memory over a range of a map, and stores to it. The cache cannot protect it any more.
pub(super) fn replace(map: &AnonMap, pages: std::ops::Range<usize>) {
    let at = map.as_mut_ptr().wrapping_add(pages.start * PAGE).cast();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: addresses of the map, which nobody accesses meanwhile.
    let replaced = unsafe { libc::mmap(at, pages.len() * PAGE, access, flags, -1, 0) };
    assert_eq!(replaced, at);
    pages.for_each(|page| store(map, page * PAGE, 9));
}

/// Whether other memory leaves in one turn of eviction beside what could not before.
fn others_leave_beside_what_cannot(mutant: Option<Mutant>) -> bool {
    let (cache, space, stuck) = map(32 * MIB, 16 * MIB, 2 * MIB);
    let other = space.map_anon(MIB).unwrap();
    // So much is lent that the daemon, which has no mutant, has nothing to do.
    let filler = space.map_anon(8 * MIB).unwrap();
    (0..8 * MIB / PAGE).for_each(|page| store(&filler, page * PAGE, 6));
    drop(filler);
    (0..2 * MIB / PAGE).for_each(|page| store(&stuck, page * PAGE, 7));
    replace(&stuck, 0..2 * MIB / PAGE);
    (0..MIB / PAGE).for_each(|page| store(&other, page * PAGE, 8));
    assert_eq!(stuck.page_out(0..2 * MIB).unwrap(), 0);
    let core = cache.core();
    mutant::with(mutant, || crate::pages::reclaim::evict(core, 16));
    while !core.mapped.to_write.is_idle() {
        std::thread::yield_now();
    }
    (0..MIB / PAGE).any(|page| state(&other, page as u64) != PageState::Dirty)
}

#[test]
fn what_cannot_leave_keeps_no_other_memory_from_the_swap() {
    assert!(others_leave_beside_what_cannot(None));
    assert!(!others_leave_beside_what_cannot(Some(Mutant::StuckStaysFirst)));
}

/// The kernel may refuse to end a protection.
#[test]
fn a_store_to_a_page_that_is_protected_whatever_its_state_is_made() {
    let (_cache, _space, map) = map(16 * MIB, 4 * MIB, MIB);
    store(&map, 3 * PAGE, 7);
    assert_eq!(state(&map, 3), PageState::Dirty);
    map.begin_protection(3);
    store(&map, 3 * PAGE, 8);
    assert_eq!((load(&map, 3 * PAGE), state(&map, 3)), (8, PageState::Dirty));
}

/// Whether the system can store to a held page that is protected, whatever its state is.
fn the_system_stores_to_what_is_held(mutant: Option<Mutant>) -> bool {
    let (_cache, _space, map) = map(16 * MIB, 4 * MIB, MIB);
    store(&map, 3 * PAGE, 7);
    map.begin_protection(3);
    let held = mutant::with(mutant, || map.hold(3 * PAGE..4 * PAGE).unwrap());
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::io::write(&writer, &[9; 8]).unwrap();
    // SAFETY: the map's, and nobody else uses the bytes meanwhile.
    let bytes = unsafe { &mut *held.as_mut_ptr() };
    rustix::io::read(&reader, &mut bytes[..8]) == Ok(8)
        && load(&map, 3 * PAGE) == u64::MAX / 255 * 9
}

#[test]
fn a_page_that_is_protected_whatever_its_state_is_held_for_system_calls() {
    assert!(the_system_stores_to_what_is_held(None));
    assert!(!the_system_stores_to_what_is_held(Some(Mutant::ProtectedForGood)));
}

#[test]
fn a_copy_to_a_page_that_is_protected_whatever_its_state_is_made() {
    let (_cache, _space, map) = map(16 * MIB, 4 * MIB, MIB);
    store(&map, 3 * PAGE, 7);
    map.begin_protection(3);
    map.write_at(&8_u64.to_ne_bytes(), 3 * PAGE).unwrap();
    assert_eq!((load(&map, 3 * PAGE), state(&map, 3)), (8, PageState::Dirty));
}

/// Whether KSM may merge the memory.
fn is_mergeable(map: &AnonMap) -> bool {
    let start = format!("{:x}-", map.as_mut_ptr().addr());
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let its = all.split_once(&start).expect("it is mapped").1;
    its.lines().find(|line| line.starts_with("VmFlags:")).unwrap().contains(" mg")
}

#[test]
fn ksm_is_told_to_keep_away_where_a_page_has_lost_its_protection() {
    let (_cache, _space, map) = map(16 * MIB, 4 * MIB, MIB);
    map.advise(0..0, Hint::Random).unwrap();
    for page in 0..8 {
        store(&map, page * PAGE, 7);
    }
    assert_eq!(map.page_out(0..MIB).unwrap(), 8 * PAGE);
    assert!((0..8).all(|page| load(&map, page * PAGE) == 7));
    // SAFETY: the map's addresses; no byte changes.
    let merges = unsafe { libc::madvise(map.as_mut_ptr().cast(), MIB, libc::MADV_MERGEABLE) } == 0;
    if !merges {
        return println!("skipped: the kernel has no KSM");
    }
    map.end_protection(0);
    store(&map, 0, 8);
    // It is written, as it may have been stored to.
    assert_eq!(map.page_out(0..MIB).unwrap(), 8 * PAGE);
    assert!(!is_mergeable(&map));
    assert_eq!((load(&map, 0), load(&map, PAGE)), (8, 7));
}
