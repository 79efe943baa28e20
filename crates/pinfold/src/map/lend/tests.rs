//! Pages that are lent, one step at a time and by many threads.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::base::heap::HAS_NO_ROOM;
use crate::error::Cause;
use crate::map::bring::{AccessWaits, bring, put, ready};
use crate::mapped::task::now;
use crate::pages::reclaim;
use crate::source::Memory;
use crate::{Cache, File, Hint, Options};

const MIB: usize = 1 << 20;

fn bytes_of(page: u64) -> u8 {
    (page * 7 + 1) as u8
}

fn file(budget: usize, bytes: usize) -> (Cache, File) {
    let cache = Cache::new(Options::new(budget as u64)).unwrap();
    let content = (0..bytes).map(|at| bytes_of((at / PAGE_BYTES) as u64)).collect();
    let file = cache.attach("file", Arc::new(Memory::new(content))).unwrap();
    (cache, file)
}

/// A mapped access to `page`, without the mapping.
fn access(file: &File, page: u64) -> u8 {
    let handle = file.handle();
    let mut brought = None;
    loop {
        // SAFETY: nothing is shown.
        match unsafe { look(handle, page, None, brought.take(), Waiter::Thread) }.unwrap() {
            Look::There(held) => {
                let mirror = handle.mapping.mirror_of_folios();
                // SAFETY: the reference keeps the page.
                let byte = unsafe { mirror.address(page).read() };
                drop(held);
                return byte;
            }
            Look::LeftOver => std::thread::yield_now(),
            Look::Absent => brought = Some(now(bring(handle, page, Waiter::Thread)).unwrap()),
        }
    }
}

/// Bytes of the mirror's memory.
fn mirrored_bytes(file: &File) -> u64 {
    let mirror = file.handle().mapping.mirror_of_folios();
    rustix::fs::fstat(mirror.fd()).unwrap().st_blocks.cast_unsigned() * 512
}

#[test]
fn pages_have_their_bytes_and_the_budget_holds() {
    let (cache, file) = file(16 * MIB, 64 * MIB);
    for step in [1, 7, 61] {
        for page in (0..64 * MIB as u64 / 4096).step_by(step) {
            assert_eq!(access(&file, page), bytes_of(page), "page {page}, step {step}");
        }
        let stats = cache.stats();
        assert!(stats.resident_bytes + stats.metadata_bytes + stats.free_bytes <= 16 * MIB as u64);
        let mirrored = mirrored_bytes(&file);
        let lent = file.handle().core.frames.hollow_runs().count() * 2 * MIB;
        assert!(mirrored <= lent as u64, "{mirrored} bytes in runs of {lent}");
        assert!(mirrored > 8 * MIB as u64, "it uses the cache: {mirrored}");
    }
}

/// A file whose first page was read, and those behind it ahead; and the first page with a mark.
fn read_ahead() -> (Cache, File, u64) {
    let (cache, file) = file(16 * MIB, 4 * MIB);
    file.advise(0..1, Hint::Sequential).unwrap();
    file.read_at(&mut [0], 0).unwrap();
    let handle = file.handle();
    let hold = |page| handle.core.hold(&handle.mapping, page);
    let is_marked = |held: Held<'_>| held.frame().flags().contains(Flags::READAHEAD);
    let marked = (0..48).find(|&page| hold(page).is_some_and(is_marked)).unwrap();
    // Ends: it comes.
    while hold(marked).is_none_or(|held| held.frame().is_changing()) {
        std::thread::yield_now();
    }
    (cache, file, marked)
}

#[test]
fn a_loan_keeps_what_is_known_of_uses() {
    let (cache, file, _) = read_ahead();
    let unread = |hollow| {
        let held = cache.core().hold(&file.handle().mapping, 0).unwrap();
        assert_eq!(held.frame().is_hollow(), hollow);
        held.frame().unread_pages(0..held.frame().order().frames())
    };
    let before = unread(false);
    assert!(before > 0);
    access(&file, 0);
    assert_eq!(unread(true), before);
}

/// Whether an access to a page with a mark has more read ahead.
fn reads_further(has_room: bool) -> bool {
    let (_cache, file, marked) = read_ahead();
    file.read_at(&mut vec![0; marked as usize * PAGE_BYTES], 0).unwrap();
    let is_there = |page: &u64| file.handle().mapping.index.lookup(*page).is_some();
    let absent = (0..1024).find(|page| !is_there(page)).unwrap();
    HAS_NO_ROOM.set(!has_room);
    // SAFETY: nothing is shown.
    let looked = unsafe { look(file.handle(), marked, None, None, Waiter::Thread) };
    assert!(matches!(looked.unwrap(), Look::There(_)));
    HAS_NO_ROOM.set(false);
    is_there(&absent)
}

#[test]
fn nothing_is_read_ahead_for_a_map_where_the_heap_has_no_room() {
    assert_eq!([true, false].map(reads_further), [true, false]);
}

#[test]
fn every_way_in_reads_what_is_mirrored() {
    let (cache, file) = file(16 * MIB, 4 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    for page in 0..20 {
        assert_eq!(access(&file, page), bytes_of(page));
    }
    let reader = cache.reader().unwrap();
    let mut buf = [0; 100];
    for page in 0..20 {
        assert_eq!(file.read_at(&mut buf, page * 4096 + 50).unwrap(), 100);
        assert_eq!(buf, [bytes_of(page); 100]);
        assert_eq!(file.get(page).unwrap()[..], [bytes_of(page); 4096]);
        assert_eq!(file.borrow(page, &reader).unwrap()[..], [bytes_of(page); 4096]);
    }
    let handle = file.handle();
    let mirrored = |page| handle.core.hold(&handle.mapping, page).unwrap().frame().is_hollow();
    assert!((0..20).all(mirrored));
    let pinned = file.pin(0..10 * 4096).unwrap();
    assert!(!(0..10).any(mirrored), "a pin has it moved to the arena");
    assert_eq!(mirrored_bytes(&file), 10 * 4096);
    let mut all = vec![0; 10 * 4096];
    pinned.copy_to(&mut all, 0).unwrap();
    assert!(all.chunks(4096).zip(0..).all(|(page, n)| page[9] == bytes_of(n)));
    // The map wants them again, while they are pinned.
    assert_eq!(access(&file, 3), bytes_of(3));
    assert!(mirrored(3));
    drop(pinned);
}

#[test]
fn a_guard_keeps_the_bytes_of_a_page_that_is_dropped_and_read_anew() {
    let (_cache, file) = file(16 * MIB, 4 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    assert_eq!(access(&file, 5), bytes_of(5));
    let guard = file.get(5).unwrap();
    file.invalidate(0..4 * MIB as u64).unwrap();
    assert!(!guard.is_current());
    assert_eq!(mirrored_bytes(&file), 4096, "the guard's");
    assert_eq!(guard[7], bytes_of(5));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| access(&file, 5));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(guard[7], bytes_of(5));
        drop(guard);
        assert_eq!(waits.join().unwrap(), bytes_of(5));
    });
}

/// A guard of a mirrored page that has left its file: the page's bytes go with it, not before.
fn leave_with_a_guard() -> (u64, u64) {
    let (_cache, file) = file(16 * MIB, 4 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    assert_eq!(access(&file, 5), bytes_of(5));
    let guard = file.get(5).unwrap();
    file.invalidate(0..4 * MIB as u64).unwrap();
    let while_held = mirrored_bytes(&file);
    drop(guard);
    (while_held, mirrored_bytes(&file))
}

#[test]
fn a_page_that_left_its_file_goes_with_its_last_user() {
    assert_eq!(leave_with_a_guard(), (4096, 0));
    let caught = mutant::with(Some(Mutant::LeftoverForgotten), leave_with_a_guard);
    assert_ne!(caught.1, 0, "nobody owns the place");
}

/// Bytes that the mirror has of a file of which all was evicted.
fn evict_all() -> u64 {
    let (_cache, file) = file(16 * MIB, 4 * MIB);
    for page in 0..100 {
        assert_eq!(access(&file, page), bytes_of(page));
    }
    assert!(mirrored_bytes(&file) >= 100 * 4096);
    // All, also what was brought last.
    file.handle().core.let_go_of_recent(|_| true);
    // Each sweep ends the uses of a folio by one.
    for _ in 0..8 {
        reclaim::evict(&file.handle().core, 4096);
    }
    mirrored_bytes(&file)
}

#[test]
fn what_is_evicted_leaves_the_mirror() {
    assert_eq!(evict_all(), 0);
    assert_ne!(mutant::with(Some(Mutant::EvictKeepsPages), evict_all), 0);
}

/// A thread that comes with a folio which another has lent meanwhile: whether it may write.
fn come_late() -> bool {
    let (_cache, file) = file(16 * MIB, 4 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    file.read_at(&mut [0], 5 * 4096).unwrap();
    let handle = file.handle();
    let late = handle.core.hold(&handle.mapping, 5).expect("it was read");
    assert!(!late.frame().is_hollow());
    assert_eq!(access(&file, 5), bytes_of(5));
    let (head, order) = lent::allocate_lent(&handle.core, Order::MIN).unwrap();
    let new = Spare { core: &handle.core, head, order };
    Lending::of(of(handle).unwrap(), late, new).is_some()
}

#[test]
fn who_comes_late_to_lend_a_folio_leaves_its_place_alone() {
    assert!(!come_late());
    assert!(mutant::with(Some(Mutant::LendBlindly), come_late));
}

#[test]
fn a_cache_that_is_too_small_for_maps_is_told_the_least() {
    let (_cache, file) = file(4 * MIB, MIB);
    let error = Mapper::new(&file.handle().core).unwrap_err();
    let text = "cannot make a space for mapped files: the cache has a budget of 4194304 bytes, \
                and needs 8388608";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_large_folio_waits_for_no_guard_of_another_of_its_pages() {
    let (_cache, file) = file(16 * MIB, 4 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    assert_eq!(access(&file, 5), bytes_of(5));
    let guard = file.get(5).unwrap();
    file.invalidate(0..4 * MIB as u64).unwrap();
    let mut all = vec![0; MIB];
    file.read_at(&mut all, 0).unwrap();
    let handle = file.handle();
    let around = handle.core.hold(&handle.mapping, 4).expect("it was read");
    assert!(around.frame().order() > Order::MIN);
    drop(around);
    assert_eq!(access(&file, 4), bytes_of(4));
    assert_eq!(access(&file, 6), bytes_of(6));
    assert_eq!(guard[0], bytes_of(5));
    drop(guard);
    assert_eq!(access(&file, 5), bytes_of(5));
}

#[test]
fn the_arena_and_mirrors_take_memory_from_each_other() {
    let (cache, file) = file(16 * MIB, 64 * MIB);
    let hollow_runs = || file.handle().core.frames.hollow_runs().count();
    let mut buf = vec![0; MIB];
    for round in 0..3 {
        // More than once, as what is read once does not displace what was used before.
        let mut reads = (0..12).cycle().take(2000);
        while hollow_runs() > 2
            && let Some(at) = reads.next()
        {
            assert_eq!(file.read_at(&mut buf, at * MIB as u64).unwrap(), MIB);
        }
        assert!(hollow_runs() <= 2, "round {round}: {} runs are still lent", hollow_runs());
        let mut pages = (16 * MIB..28 * MIB).step_by(4096).cycle().take(300_000);
        while hollow_runs() < 5
            && let Some(page) = pages.next()
        {
            let page = (page / 4096) as u64;
            assert_eq!(access(&file, page), bytes_of(page));
        }
        assert!(hollow_runs() >= 5, "round {round}: {} runs are lent", hollow_runs());
    }
    assert_eq!(cache.stats().dirty_bytes, 0);
}

#[test]
fn many_threads_want_pages_by_all_ways() {
    let (_cache, file) = file(8 * MIB, 32 * MIB);
    let file = &file;
    std::thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut buf = [0; 64];
                for n in 0..4000 {
                    let page = random.u64(0..32 * MIB as u64 / 4096);
                    match random.u8(0..10) {
                        0 => {
                            file.read_at(&mut buf, page * 4096).unwrap();
                            assert_eq!(buf, [bytes_of(page); 64]);
                        }
                        1 => assert_eq!(file.get(page).unwrap()[99], bytes_of(page)),
                        2 if n % 64 == 0 => {
                            let _ = file.invalidate(page * 4096..page * 4096 + 65_536).unwrap();
                        }
                        _ => assert_eq!(access(file, page), bytes_of(page)),
                    }
                }
            });
        }
    });
}

#[test]
fn a_place_that_is_kept_for_too_long_is_an_error_that_says_so() {
    let mut options = Options::new(16 * MIB as u64);
    options.patience = Duration::from_millis(20);
    let cache = Cache::new(options).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; MIB]))).unwrap();
    assert_eq!(access(&file, 5), 7);
    file.invalidate(0..MIB as u64).unwrap();
    let claim = file.handle().mapping.mirror_of_folios().claim(5..6).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let error = std::thread::scope(|scope| {
        // What is read of other files has no say in it.
        scope.spawn(|| {
            let other = cache.attach("other", Arc::new(Memory::new(vec![8; MIB]))).unwrap();
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                other.read_at(&mut [0], 0).unwrap();
                other.invalidate(0..MIB as u64).unwrap();
            }
        });
        let brought = now(bring(file.handle(), 5, Waiter::Thread)).map(drop);
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        brought.unwrap_err()
    });
    let Cause::Mirror { cause, .. } = error.cause() else { panic!("{error}") };
    assert_eq!(cause.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(
        error.to_string(),
        "mapped pages of file: cannot put pages there: an older version of the page is still in use \
         there"
    );
    drop(claim);
    assert_eq!(access(&file, 5), 7);
}

/// Whether a place is still claimed when a future is woken that waited for its folio.
fn is_claimed_when_woken() -> bool {
    struct Look(File, std::sync::Mutex<Option<bool>>);
    impl std::task::Wake for Look {
        fn wake(self: Arc<Self>) {
            let is_taken = self.0.handle().mapping.mirror_of_folios().is_taken(&(5..6));
            *self.1.lock().unwrap() = Some(is_taken);
        }
    }
    let (_cache, file) = file(16 * MIB, 4 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    file.read_at(&mut [0], 5 * 4096).unwrap();
    let (handle, core) = (file.handle(), &*file.handle().core);
    let (head, order) = lent::allocate_lent(core, Order::MIN).unwrap();
    let look = Arc::new(Look(file.clone(), None.into()));
    let waker = std::task::Waker::from(look.clone());
    assert!(!core.waiters.poll(head.0, wait::Ticket::new(), &waker, || false));
    let held = core.hold(&handle.mapping, 5).expect("it was read");
    let spare = Some(Spare { core, head, order });
    // SAFETY: nothing is shown.
    let lent = unsafe { lend(handle, of(handle).unwrap(), held, spare, None) };
    assert_eq!(lent.unwrap(), Lent::Done);
    let seen = look.1.lock().unwrap().take();
    seen.expect("it was woken")
}

#[test]
fn futures_are_woken_when_no_place_is_claimed_any_more() {
    assert!(!is_claimed_when_woken());
    assert!(mutant::with(Some(Mutant::LendWakesEarly), is_claimed_when_woken));
}

/// Pages that are accessed where hollow frames are scattered.
const PIECES: u64 = 40;

/// Sevens that can be read so many times: who reads without end gets an error.
#[derive(Debug)]
struct Bounded {
    left: AtomicU64,
    bytes: u64,
}

impl crate::source::Source for Bounded {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let less = |left: u64| left.checked_sub(1);
        let order = std::sync::atomic::Ordering::Relaxed;
        let left = self.left.fetch_update(order, order, less);
        left.map_err(|_| std::io::Error::other("read too often"))?;
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.bytes)
    }
    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "bounded".into()
    }
}

/// Lent memory in pieces of one page, whose other pages stay in use, and large folios to lend:
/// they are not read for ever.
fn access_in_pieces() -> crate::Result<()> {
    let cache = Cache::new(Options::new(16 * MIB as u64)).unwrap();
    // Each page is read in vain once at most, and with those around it.
    let left = AtomicU64::new(20 * PIECES);
    let file = cache.attach("file", Arc::new(Bounded { left, bytes: 64 << 20 })).unwrap();
    file.advise(0..1, Hint::Sequential).unwrap();
    let core = &file.handle().core;
    // Ends: there is so much memory.
    while core.frames.hollow_out_run() {}
    let mut used = Vec::new();
    while let Some((head, _)) = core.frames.alloc_hollow(Order::MIN) {
        used.push(head);
    }
    for head in used.into_iter().filter(|head| head.0 % 2 == 0).take(200) {
        core.give_back(head);
    }
    assert_eq!(core.frames.free_hollow(), 200);
    for page in 0..PIECES {
        drop(now(put(file.handle(), page, Waiter::Thread))?);
    }
    Ok(())
}

/// Whether it becomes true while the daemon ends what it is at.
fn soon(mut is_true: impl FnMut() -> bool) -> bool {
    let since = std::time::Instant::now();
    // Ends: after so long at most.
    loop {
        if is_true() {
            return true;
        }
        if since.elapsed() > std::time::Duration::from_secs(10) {
            return false;
        }
        std::thread::yield_now();
    }
}

/// A cache that was full of pages each of which had an index node of its own, and some of which
/// were pinned, and has none of them any more.
fn emptied(pinned: u64) -> (Cache, File) {
    const APART: u64 = 64;
    let mut options = Options::new(8 * MIB as u64);
    options.patience = Duration::from_millis(300);
    let cache = Cache::new(options).unwrap();
    let (left, bytes) = (AtomicU64::new(u64::MAX), 8 << 30);
    let file = cache.attach("file", Arc::new(Bounded { left, bytes })).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    let mut pins = Vec::new();
    for n in 0..6000 {
        let at = n * APART * PAGE_BYTES as u64;
        if n % 8 == 0 && (pins.len() as u64) < pinned {
            pins.push(file.pin(at..at + 1).unwrap());
        } else {
            assert_eq!(file.read_at(&mut [0], at).unwrap(), 1);
        }
    }
    drop(pins);
    file.invalidate(0..bytes).unwrap();
    (cache, file)
}

#[test]
fn index_nodes_keep_no_run_from_being_lent() {
    for pinned in [0, 10, 300] {
        let (_cache, file) = emptied(pinned);
        let core = &file.handle().core;
        for page in 0..2000 {
            drop(now(put(file.handle(), page, Waiter::Thread)).unwrap());
        }
        file.invalidate(0..file.len()).unwrap();
        core.let_go_of_recent(|_| true);
        let all_are_lent = || {
            let _ = reclaim::compact(core) && core.frames.hollow_out_run();
            core.frames.hollow_runs().count() == core.frames.whole_runs().count()
        };
        assert!(soon(all_are_lent), "{pinned} pages were pinned");
    }
}

#[test]
fn runs_whose_pins_have_ended_can_be_lent() {
    let (_cache, file) = file(8 * MIB, 8 * MIB);
    let (core, page) = (&file.handle().core, PAGE_BYTES as u64);
    file.advise(0..1, Hint::Random).unwrap();
    let pin = |n: u64| file.pin(n * page..(n + 1) * page).unwrap();
    let pinned: Vec<_> = (0..1000).map(pin).collect();
    let claimed = core.frames.whole_runs().filter(|&run| !core.frames.is_movable(run)).count();
    assert!(claimed > 0, "pins need no run");
    drop(pinned);
    for first in (0..2048).step_by(50) {
        file.invalidate((first + 1) * page..(first + 50) * page).unwrap();
    }
    let all_are_lent = || {
        let _ = reclaim::compact(core) && core.frames.hollow_out_run();
        core.frames.hollow_runs().count() == core.frames.whole_runs().count()
    };
    assert!(soon(all_are_lent));
    assert!((0..1000).step_by(50).all(|page| core.hold(&file.handle().mapping, page).is_some()));
}

#[test]
fn a_run_stays_lent_while_there_are_maps() {
    let mut options = Options::new(8 * MIB as u64);
    options.patience = Duration::from_millis(300);
    let cache = Cache::new(options).unwrap();
    let content: Vec<u8> = (0..16 * MIB).map(|at| bytes_of((at / PAGE_BYTES) as u64)).collect();
    let file = cache.attach("file", Arc::new(Memory::new(content))).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    let mapper = Mapper::new(cache.core()).unwrap();
    assert_eq!(access(&file, 0), bytes_of(0));
    cache.core().let_go_of_recent(|_| true);
    // Reads want all memory, and guards lie wherever the arena has any.
    for page in (0..16 * MIB as u64 / 4096).cycle().take(20_000) {
        file.read_at(&mut [0], page * 4096).unwrap();
    }
    let guards: Vec<_> = (0..1000).step_by(9).map(|page| file.get(page).unwrap()).collect();
    for page in 2000..3000 {
        assert_eq!(access(&file, page), bytes_of(page));
    }
    drop(guards);
    file.invalidate(0..file.len()).unwrap();
    let lent = || cache.core().frames.hollow_runs().count();
    assert!(soon(|| lent() == 1));
    drop(mapper);
    assert!(soon(|| lent() == 0));
    assert_eq!(cache.core().frames.free_hollow(), 0);
}

#[test]
fn guards_that_were_there_before_the_first_access_do_not_keep_it_from_memory() {
    let mut options = Options::new(8 * MIB as u64);
    options.patience = Duration::from_millis(300);
    let cache = Cache::new(options).unwrap();
    let content: Vec<u8> = (0..16 * MIB).map(|at| bytes_of((at / PAGE_BYTES) as u64)).collect();
    let file = cache.attach("file", Arc::new(Memory::new(content))).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    let all = || (0..16 * MIB as u64 / 4096).step_by(2);
    all().for_each(|page| drop(file.get(page).unwrap()));
    let _mapper = Mapper::new(cache.core()).unwrap();
    let guards: Vec<_> = all().map(|page| file.get(page).unwrap()).step_by(50).collect();
    assert_eq!(access(&file, 1), bytes_of(1));
    drop(guards);
}

#[test]
fn a_page_gets_into_lent_memory_that_has_no_large_block() {
    access_in_pieces().unwrap();
    let caught = mutant::with(Some(Mutant::BringLargeAgain), access_in_pieces);
    let error = caught.expect_err("the mutant does nothing");
    assert!(error.to_string().contains("read too often"), "{error}");
}

/// What becomes of a thread that has read a folio and finds no hollow frames for it, where others
/// wait with as much as may be.
fn ready_where_many_wait(patience: Duration) -> Result<bool> {
    let mut options = Options::new(16 * MIB as u64);
    options.patience = patience;
    let cache = Cache::new(options).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; MIB]))).unwrap();
    let (handle, core) = (file.handle(), &*file.handle().core);
    let read = fill::get(handle, 0, PAGE_BYTES)?;
    // By hand: what the reclaiming thread lends meanwhile is used, too, and no run is left to lend.
    while core.frames.hollow_out_run() {}
    while core.frames.alloc_hollow(Order::MIN).is_some() {}
    let others: Vec<_> = (0..99).map_while(|_| core.mapped.may_wait_with(16)).collect();
    let is_ready =
        now(ready(handle, 0, read, &mut AccessWaits::default(), Waiter::Thread))?.is_some();
    let at_most = if mutant::on(Mutant::AllWaitWithFolios) { 99 } else { 4096 / 16 / 16 };
    assert_eq!(others.len(), at_most);
    Ok(is_ready)
}

#[test]
fn who_waits_for_lent_memory_leaves_others_some() {
    assert!(!ready_where_many_wait(Duration::from_secs(60)).unwrap(), "it comes again");
    let waits = || ready_where_many_wait(Duration::from_millis(100));
    let caught = mutant::with(Some(Mutant::AllWaitWithFolios), waits);
    let error = caught.expect_err("the mutant does nothing");
    assert!(matches!(error.cause(), Cause::NoMemory { .. }), "{error}");
}

/// What a loop finds that looks for a page whose folio is too large for what is lent, where the
/// index has no nodes for smaller ones, and no memory for nodes.
fn look_without_nodes() -> Result<bool> {
    let mut options = Options::new(64 * MIB as u64);
    options.patience = Duration::from_millis(20);
    let cache = Cache::new(options).unwrap();
    let attach =
        |name, bytes: usize| cache.attach(name, Arc::new(Memory::new(vec![7; bytes]))).unwrap();
    let (file, other) = (attach("file", 2 * MIB), attach("other", 8 * MIB));
    let (handle, core) = (file.handle(), &*file.handle().core);
    file.read_at(&mut vec![0; MIB], 0).unwrap();
    let large = core.hold(&handle.mapping, 0).expect("it was read");
    assert_eq!(large.frame().order().bytes(), MIB);
    of(handle)?;
    // To be split, it needs a node for each 64 pages.
    let nodes = |core: &Core| core.nodes.stats().nodes - core.nodes.stats().nodes_in_use;
    let mut held = Vec::new();
    let mut page = 0;
    while nodes(core) >= 4 {
        other.read_at(&mut [0], page * 4096).unwrap();
        held.push(core.hold(&other.handle().mapping, page).expect("it was read"));
        page += 64;
    }
    // All memory is used but one lent frame.
    while core.frames.hollow_out_run() {}
    let mut used = Vec::new();
    while let Some((head, _)) = core.frames.alloc_hollow(Order::MIN) {
        used.push(head);
    }
    while let Some(head) = core.frames.alloc(Order::MIN) {
        used.push(head);
    }
    core.give_back(used[0]);
    let there = look_now(handle, 0)?.is_some();
    for head in used.drain(1..) {
        core.give_back(head);
    }
    Ok(there)
}

#[test]
fn a_loop_that_looks_for_a_page_does_not_wait_for_memory() {
    assert!(!look_without_nodes().unwrap());
    let caught = mutant::with(Some(Mutant::LookWaits), look_without_nodes);
    assert!(caught.is_err(), "the mutant does nothing");
}
