//! Waiting for memory.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::allocate;
use super::evict::EVICTORS_MAX;
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::error::Cause;
use crate::frames::Order;
use crate::pages::pressure::Claim;
use crate::source::{Extent, Memory, Source};
use crate::{Cache, Error, File, Hint, Options};

const BUDGET_MIN_BYTES: u64 = *crate::Options::BUDGET_BYTES.start();

/// How long an allocation goes on after all of memory, which others held, was let go of; they held
/// it for about two milliseconds.
fn from_release_to_memory() -> Duration {
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).unwrap();
    let file = cache.attach("memory", Arc::new(Memory::new(vec![1; 4 << 20]))).unwrap();
    let pages = (4 << 20) / 4096;
    file.read_at(&mut vec![0; 4 << 20], 0).unwrap();
    let core = cache.core();
    let mapping = core.mappings.all().pop().unwrap();
    let mut held: Vec<_> = (0..pages).filter_map(|page| core.hold(&mapping, page)).collect();
    assert!(!held.is_empty());
    let mut free = Vec::new();
    // Ends: each turn but the last takes memory, and nobody gives it back. There may be some once
    // more: what the daemon had begun to evict comes late if something else has its core.
    loop {
        while let Some((head, _)) = core.frames.alloc_at_most(Order::MIN) {
            free.push(head);
        }
        let direct = core.counters.sum(Event::DirectReclaim);
        let waited = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let got = allocate(core, Order::MIN, true).expect("they let go in time");
                (got.expect("it is needed").0, Instant::now())
            });
            // Ends: it finds nothing free, and counts that; or it has found something.
            while core.counters.sum(Event::DirectReclaim) == direct && !waiter.is_finished() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(2));
            let in_vain = !waiter.is_finished();
            if in_vain {
                held.clear();
            }
            let released = Instant::now();
            let (head, had) = waiter.join().unwrap();
            free.push(head);
            in_vain.then_some(had.saturating_duration_since(released))
        });
        if let Some(waited) = waited {
            for head in free {
                core.put(head);
            }
            return waited;
        }
    }
}

/// Letting go wakes nobody; it must not take a long sleep to notice, for all that.
#[test]
fn what_holders_let_go_of_is_noticed_soon() {
    // Any may come late on a machine that does other things; twenty in a row come early by chance
    // where each sleep is long once in a thousand times at most.
    let mut all = Vec::new();
    for _ in 0..20 {
        all = (0..20).map(|_| from_release_to_memory()).collect();
        if all.iter().all(|waited| *waited < Duration::from_millis(8)) {
            return;
        }
    }
    panic!("it took {all:?}, and no less before");
}

/// Sevens, when the gate is open; or what another file has, at once.
#[derive(Debug)]
struct Slow {
    gate: Mutex<(bool, usize)>,
    changed: Condvar,
    lower: Option<File>,
}

impl Slow {
    fn new(lower: Option<File>) -> Arc<Self> {
        Arc::new(Slow { gate: Mutex::default(), changed: Condvar::new(), lower })
    }
    fn open(&self) {
        self.gate.lock().unwrap().0 = true;
        self.changed.notify_all();
    }
    fn wait_for(&self, arrived: usize) {
        let gate = self.gate.lock().unwrap();
        drop(self.changed.wait_while(gate, |gate| gate.1 < arrived).unwrap());
    }
}

impl Source for Slow {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut gate = self.gate.lock().unwrap();
        gate.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(gate, |gate| !gate.0).unwrap());
        if let Some(lower) = &self.lower {
            return lower.read_at(buf, offset).map_err(io::Error::other);
        }
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(64 << 20)
    }
    fn kind(&self) -> Cow<'static, str> {
        "slow".into()
    }
}

const PATIENCE: Duration = Duration::from_millis(200);

/// All of a small budget on its way to readers, each of a page of `slow`; then `body`.
fn with_all_on_its_way(cache: &Cache, slow: &Arc<Slow>, body: impl FnOnce(&File)) {
    let file = cache.attach("slow", slow.clone()).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    // All but a few frames, which are given back by a drop.
    let core = cache.core();
    let mut free = Vec::new();
    while core.frames.free_frames() > 24 {
        free.push(core.frames.alloc_at_most(Order::MIN).expect("there are free ones").0);
    }
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        // Ends: each turn takes a frame, or two with one for index nodes.
        while core.frames.free_frames() > 4 {
            let (before, file) = (readers.len(), &file);
            let read = move || file.read_at(&mut [0; 8], before as u64 * 64 * 4096);
            readers.push(scope.spawn(read));
            slow.wait_for(before + 1);
        }
        while let Some((head, _)) = core.frames.alloc_at_most(Order::MIN) {
            free.push(head);
        }
        body(&file);
        for reader in readers {
            let read = reader.join().unwrap();
            assert!(read.is_ok() || slow.lower.is_some(), "{read:?}");
        }
    });
    for head in free {
        core.put(head);
    }
}

fn impatient() -> Cache {
    let mut options = Options { io_uring: false, ..Options::new(BUDGET_MIN_BYTES) };
    options.patience = PATIENCE;
    Cache::new(options).unwrap()
}

/// All memory is on its way from a source that hangs: whoever wants more is told so.
#[test]
fn a_source_that_hangs_is_not_waited_for_without_end() {
    let (cache, slow) = (impatient(), Slow::new(None));
    with_all_on_its_way(&cache, &slow, |file| {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| file.read_at(&mut [0; 8], 32 << 20));
            // So long that only a thread that waits for the source is not done by then.
            let since = Instant::now();
            while !waiter.is_finished() && since.elapsed() < 100 * PATIENCE {
                std::thread::sleep(PATIENCE / 10);
            }
            slow.open();
            let read = waiter.join().unwrap();
            let error = read.expect_err("nothing can be evicted");
            let Cause::NoMemory { filling_bytes, .. } = *error.cause() else { panic!("{error:?}") };
            assert_ne!(filling_bytes, 0);
        });
    });
}

/// All memory is on its way from a source of which each read takes longer than others are waited
/// for.
#[test]
fn a_slow_read_is_waited_for_longer_than_those_who_hold_memory() {
    // Ends: unless something else has all cores again and again.
    loop {
        let (cache, slow) = (impatient(), Slow::new(None));
        let mut in_time = false;
        with_all_on_its_way(&cache, &slow, |file| {
            std::thread::scope(|scope| {
                let since = Instant::now();
                let waiter = scope.spawn(|| file.read_at(&mut [0; 8], 32 << 20));
                std::thread::sleep(3 * PATIENCE);
                let waits = !waiter.is_finished();
                slow.open();
                let read = waiter.join().unwrap();
                in_time = since.elapsed() < super::READS_TAKE * PATIENCE;
                if in_time {
                    assert!(waits, "it did not wait: {read:?}");
                    assert_eq!(read.unwrap(), 8);
                }
            });
        });
        if in_time {
            return;
        }
    }
}

/// While one read after another ends, memory is waited for, however long it takes. These reads are
/// into memory of the test's own: what they bring is no use to the cache.
#[test]
fn a_source_that_is_slow_is_waited_for() {
    // Ends: unless something else has all cores again and again.
    loop {
        let (cache, slow) = (impatient(), Slow::new(None));
        let other = cache.attach("other", Arc::new(Memory::new(vec![1; 4096]))).unwrap();
        let mut in_time = true;
        with_all_on_its_way(&cache, &slow, |file| {
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| file.read_at(&mut [0; 8], 32 << 20));
                let (began, mut before) = (Instant::now(), Instant::now());
                let mut opened = false;
                // Ends: the waiter has memory once the gate is open, or an error.
                while !waiter.is_finished() {
                    read_aside(&other);
                    in_time &= before.elapsed() < PATIENCE / 2;
                    before = Instant::now();
                    if !opened && began.elapsed() > 3 * PATIENCE {
                        slow.open();
                        opened = true;
                    }
                    std::thread::sleep(PATIENCE / 100);
                }
                in_time &= before.elapsed() < PATIENCE / 2;
                slow.open();
                let read = waiter.join().unwrap();
                if in_time {
                    assert!(opened, "it did not wait: {read:?}");
                    assert_eq!(read.unwrap(), 8);
                }
            });
        });
        if in_time {
            return;
        }
    }
}

/// A read of the first page of `file`'s source, past the cache.
fn read_aside(file: &File) {
    let mut page = vec![0_u8; 4096];
    let address = std::ptr::NonNull::new(page.as_mut_ptr()).unwrap();
    // SAFETY: the page is this call's alone, until it returns.
    let extent = unsafe { Extent::new(address, page.len()) };
    assert_eq!(file.handle().mapping.backing.read(0, &[extent]).unwrap(), page.len());
}

/// Nothing that is on its way can end before the readers of the lower file have memory.
#[test]
fn a_layered_source_that_waits_for_its_own_readers_is_told_that_there_is_no_memory() {
    let cache = impatient();
    let lower = cache.attach("lower", Arc::new(Memory::new(vec![1; 64 << 20]))).unwrap();
    let slow = Slow::new(Some(lower));
    with_all_on_its_way(&cache, &slow, |file| {
        slow.open();
        let read = file.read_at(&mut [0; 8], 32 << 20);
        // By now some of the others have failed, and there is memory; or it fails like them, or
        // because they took longer than it waits.
        match read.as_ref().map_err(Error::cause) {
            Err(Cause::Read { cause, .. }) => {
                assert!(cause.to_string().contains("no memory for"), "{cause}");
            }
            Err(Cause::NoMemory { .. }) | Ok(8) => {}
            other => panic!("{other:?}"),
        }
    });
}

/// Best effort is no waiting: a thread that reads ahead holds folios that others wait for.
#[test]
fn nodes_that_are_not_needed_are_not_waited_for() {
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).unwrap();
    let core = cache.core();
    let mut taken = Vec::new();
    while let Some((head, _)) = core.frames.alloc_at_most(Order::MIN) {
        taken.push(head);
    }
    let refilled = super::refill_nodes(core, u32::MAX, false);
    assert!(matches!(refilled, Ok(false)), "{refilled:?}");
    for head in taken {
        core.put(head);
    }
}

/// A cache of single pages, of which one in 16 stays, held or borrowed, without a free block of 16.
fn in_pieces(budget: u64, borrowed: bool) -> (Cache, File) {
    let cache = Cache::new(Options::new(budget)).unwrap();
    let file = cache.attach("pages", Arc::new(Memory::new(vec![7; budget as usize]))).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    for page in 0..budget / 4096 * 7 / 8 {
        let folio = file.get(page).unwrap();
        if page % 16 == 3 && borrowed {
            drop(folio);
            // Each has a slot of a reader, and so takes no reference.
            let reader = Box::leak(Box::new(cache.reader().unwrap()));
            std::mem::forget(file.borrow(page, reader).unwrap());
        } else if page % 16 == 3 {
            std::mem::forget(folio);
        }
    }
    while cache.core().frames.alloc(Order::new(4).unwrap()).is_some() {} // never freed
    (cache, file)
}

/// It would hang: what it prefetches needs a block, too. A block with a borrowed folio seems to be
/// one that can be emptied.
#[test]
fn no_waker_is_woken_while_a_block_is_made() {
    /// One at a time, and of a file that nobody else reads: it waits for no read of others.
    struct Reads(File, Mutex<bool>);
    impl std::task::Wake for Reads {
        fn wake(self: Arc<Self>) {
            if !std::mem::replace(&mut *self.1.lock().unwrap(), true) {
                self.0.prefetch(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]).unwrap();
                self.0.invalidate(0..64 << 10).unwrap();
                *self.1.lock().unwrap() = false;
            }
        }
    }
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (cache, file) = in_pieces(32 << 20, true);
        for page in (0..6000).step_by(2) {
            file.invalidate(page << 12..(page + 1) << 12).unwrap(); // memory enough, in pieces
        }
        let other = cache.attach("other", Arc::new(Memory::new(vec![7; 4 << 20]))).unwrap();
        let third = cache.attach("third", Arc::new(Memory::new(vec![7; 64 << 10]))).unwrap();
        let pressure = &cache.core().pressure;
        let waker = std::task::Waker::from(Arc::new(Reads(third, false.into())));
        for of_file in 1000..1200 {
            let seen = pressure.progress_seen();
            let why = (crate::pages::pressure::Refused::OwnFile, seen);
            let _ = pressure.queue((of_file, None), why, Claim::default(), &waker);
        }
        for _ in 0..100 {
            assert!(!cache.core().frames.has_free(Order::new(4).unwrap()), "the test's error");
            other.read_at(&mut vec![0; 64 << 10], 0).unwrap(); // makes a block
            other.invalidate(0..1 << 20).unwrap();
        }
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(10)).expect("a waker hung");
}

#[test]
fn nothing_is_moved_for_a_block_with_a_folio_that_stays() {
    let (cache, file) = in_pieces(32 << 20, false);
    for page in (5..6000).step_by(16) {
        file.invalidate(page << 12..(page + 1) << 12).unwrap();
    }
    let order = Order::new(4).unwrap();
    let before = cache.stats().migrations;
    let made = super::compact::make_block(cache.core(), order);
    let moved = cache.stats().migrations - before;
    assert!(moved <= 16, "{moved} pages were moved for a block of 16 pages; made: {made}");
}

/// A borrow takes no reference, so its folio seems to be one that can be moved. What was to become
/// the new folio was free before: if that counted as progress, a future that looks for memory by
/// moving would try again and again in one poll.
#[test]
fn a_move_in_vain_is_no_progress() {
    let cache = Cache::new(Options::new(32 << 20)).unwrap();
    let file = cache.attach("page", Arc::new(Memory::new(vec![7; 4096]))).unwrap();
    let reader = cache.reader().unwrap();
    let borrowed = file.borrow(0, &reader).unwrap();
    let core = cache.core();
    let mapping = core.mappings.all().pop().unwrap();
    let head = core.hold(&mapping, 0).unwrap().head();
    assert!(core.frames.frame(head).can_move().is_some());
    let before = core.pressure.progress_seen();
    assert!(!super::compact::move_out(core, head));
    assert_eq!(core.pressure.progress_seen(), before);
    drop(borrowed);
    assert!(super::compact::move_out(core, head));
}

#[test]
fn while_enough_threads_evict_no_other_does() {
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).unwrap();
    let file = cache.attach("page", Arc::new(Memory::new(vec![7; 4096]))).unwrap();
    file.read_at(&mut [0], 0).unwrap();
    let core = cache.core();
    // Each sweep ends the uses of a folio by one.
    let evict = || (0..8).any(|_| super::evict(core, 1).evicted > 0);
    let enter = || core.pressure.evictors.hold(1, EVICTORS_MAX);
    let mut all: Vec<_> = (0..EVICTORS_MAX).map(|_| enter().unwrap()).collect();
    assert!(enter().is_none() && !evict());
    all.pop();
    assert!(evict());
}

/// Whether a thread gets memory while all who may evict get on with nothing.
fn has_memory_while_others_evict(mutant: Option<Mutant>) -> bool {
    let mut options = Options::new(BUDGET_MIN_BYTES);
    options.patience = Duration::from_millis(100);
    let cache = Cache::new(options).unwrap();
    let file = cache.attach("memory", Arc::new(Memory::new(vec![7; 4 << 20]))).unwrap();
    file.read_at(&mut vec![0; 4 << 20], 0).unwrap();
    let core = cache.core();
    let enter = || core.pressure.evictors.hold(1, EVICTORS_MAX);
    let mut others = Vec::new();
    while others.len() < EVICTORS_MAX as usize {
        others.extend(enter()); // the daemon may be one of them, for a moment
    }
    let mut taken: Vec<_> =
        std::iter::from_fn(|| core.frames.alloc_at_most(Order::MIN).map(|(head, _)| head))
            .collect();
    assert!(core.frames.alloc_at_most(Order::MIN).is_none());
    let got = mutant::with(mutant, || allocate(core, Order::MIN, true));
    let got = got.ok().map(|got| got.expect("it is needed").0);
    taken.extend(got);
    for head in taken {
        core.put(head);
    }
    got.is_some()
}

#[test]
fn who_has_waited_for_long_for_those_who_evict_evicts_by_itself() {
    assert!(has_memory_while_others_evict(None));
    assert!(!has_memory_while_others_evict(Some(Mutant::EvictorsAwaited)));
}
