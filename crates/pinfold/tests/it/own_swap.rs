//! Own memory whose swap fails, is full, or hangs: what becomes of it, and of files that share its
//! budget.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use pinfold::source::{Extent, Memory, Source};
use pinfold::{AnonMap, Cache, File, Hint, Options, Space, SpaceOptions};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// A cache of 8 MiB whose swap of 4 MiB fails as told.
fn faulty(options: SpaceOptions) -> (Arc<Faulty>, Space) {
    let swap = Arc::new(Faulty::new(Arc::new(Memory::new(Vec::new()))));
    let options_of_cache = Options {
        swap_source: Some(swap.clone()),
        swap_bytes: 4 * MIB as u64,
        ..Options::new(8 * MIB as u64)
    };
    let space = Space::with(&Cache::new(options_of_cache).unwrap(), options).unwrap();
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
    let bytes =
        unsafe { std::slice::from_raw_parts(map.as_mut_ptr().wrapping_add(page * PAGE), PAGE) };
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
        let (swap, space) = faulty(SpaceOptions { handlers: 1, ..SpaceOptions::default() });
        if !space.stats().serves_system_calls {
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

/// Memory whose writes wait until they may go on.
#[derive(Debug)]
struct Hangs {
    memory: Memory,
    /// Whether writes wait, and how many do.
    now: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Hangs {
    fn new() -> Arc<Self> {
        let (memory, now) = (Memory::new(Vec::new()), Mutex::new((true, 0)));
        Arc::new(Hangs { memory, now, changed: Condvar::new() })
    }

    fn wait_until(&self, is_so: impl Fn(&(bool, usize)) -> bool) {
        let now = self.now.lock().unwrap();
        drop(self.changed.wait_while(now, |now| !is_so(now)).unwrap());
    }

    fn go_on(&self) {
        self.now.lock().unwrap().0 = false;
        self.changed.notify_all();
    }
}

impl Source for Hangs {
    fn len_bytes(&self) -> std::io::Result<u64> {
        self.memory.len_bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
        self.memory.read_at(offset, into)
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "hangs".into()
    }

    fn write_extents_at(&self, offset: u64, from: &[Extent<'_>]) -> std::io::Result<()> {
        self.now.lock().unwrap().1 += 1;
        self.changed.notify_all();
        self.wait_until(|(hangs, _)| !hangs);
        self.memory.write_extents_at(offset, from)
    }
}

/// Files are read through a cache that is full of own memory whose swap hangs, by calls, by maps
/// and by futures, while threads store to own memory; then the swap goes on, and nothing is lost.
#[test]
fn while_the_swap_hangs_files_are_read_and_own_memory_has_what_is_clean() {
    const OWN: usize = 20 * MIB;
    const THREADS: usize = 12;
    let swap = Hangs::new();
    let options = Options {
        swap_source: Some(swap.clone()),
        swap_bytes: 64 * MIB as u64,
        ..Options::new(32 * MIB as u64)
    };
    let cache = Cache::new(options).unwrap();
    let space = Space::new(&cache, 0).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 64 * MIB]))).unwrap();
    let own = space.map_anon(OWN).unwrap();
    let map = space.map_file(&file, 0..file.len()).unwrap();
    // More of own memory than leaves room for files, by more threads than may evict at once.
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let own = &own;
            scope.spawn(move || {
                for page in (thread..OWN / PAGE).step_by(THREADS) {
                    word(own, page).store(page as u64 + 1, Ordering::Relaxed);
                }
            });
        }
        let file = &file;
        let map = &map;
        scope.spawn(move || {
            let mut bytes = vec![0; MIB];
            for round in 0..3 {
                for at in (0..64 * MIB).step_by(MIB) {
                    assert_eq!(file.read_at(&mut bytes, at as u64).unwrap(), MIB);
                    assert!(bytes.iter().all(|byte| *byte == 7));
                    // SAFETY: a byte of the map, whose source cannot fail.
                    assert_eq!(unsafe { map.as_ptr().wrapping_add(at + round).read_volatile() }, 7);
                }
            }
        });
    });
    swap.wait_until(|(_, waiting)| *waiting > 0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut bytes = vec![0; MIB];
    for at in (0..64 * MIB).step_by(MIB) {
        let read = runtime.block_on(file.read_at_async(&mut bytes, at as u64));
        assert_eq!(read.unwrap(), MIB);
    }
    let stats = cache.stats();
    println!("{stats:?}");
    assert_eq!(stats.swap_writes, 0, "a write has ended");
    swap.go_on();
    own.page_out(0..OWN).unwrap();
    for page in 0..OWN / PAGE {
        assert_eq!(word(&own, page).load(Ordering::Relaxed), page as u64 + 1, "page {page}");
    }
    assert!(cache.stats().swap_pages_written > 0);
}

/// What files have of 64 MiB once 56 MiB of own memory were stored to, and all but a page of each 2
/// MiB were given up; and the swap is well, full, fails, or hangs.
fn files_have(swap: Arc<dyn Source>, swap_bytes: usize) -> usize {
    const OWN: usize = 56 * MIB;
    let options = Options {
        swap_source: Some(swap),
        swap_bytes: swap_bytes as u64,
        ..Options::new(64 * MIB as u64)
    };
    let cache = Cache::new(options).unwrap();
    let space = Space::new(&cache, 0).unwrap();
    let own = space.map_anon(OWN).unwrap();
    own.advise(0..OWN, Hint::Sequential).unwrap();
    for page in 0..OWN / PAGE {
        word(&own, page).store(1, Ordering::Relaxed);
    }
    for run in 0..OWN / (2 * MIB) {
        let at = run * 2 * MIB;
        own.discard(at..at + MIB).unwrap();
        own.discard(at + MIB + PAGE..at + 2 * MIB).unwrap();
    }
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 60 * MIB]))).unwrap();
    let mut bytes = vec![0; MIB];
    for _ in 0..3 {
        for at in (0..60 * MIB).step_by(MIB) {
            file.read_at(&mut bytes, at as u64).unwrap();
        }
    }
    for run in 0..OWN / (2 * MIB) {
        assert_eq!(word(&own, (run * 2 * MIB + MIB) / PAGE).load(Ordering::Relaxed), 1);
    }
    cache.stats().resident_bytes as usize
}

#[test]
fn a_few_dirty_pages_do_not_keep_the_budget_from_files() {
    let well = || Arc::new(Faulty::new(Arc::new(Memory::new(Vec::new()))));
    let fails = well();
    fail(&fails, Operation::Write);
    let hangs = Hangs::new();
    let cases: [(&str, Arc<dyn Source>, usize); 4] = [
        ("well", well(), 64 * MIB),
        ("full", well(), PAGE),
        ("fails", fails, 64 * MIB),
        ("hangs", hangs.clone(), 64 * MIB),
    ];
    for (name, swap, bytes) in cases {
        let have = files_have(swap, bytes);
        println!("the swap {name}: {} MiB resident", have / MIB);
        assert!(have >= 52 * MIB, "the swap {name}: {have}");
        hangs.go_on();
    }
}

/// The swap is full, and far more dirty memory than one sweep looks at comes before the pages of a
/// file: these leave, for own memory and for other files.
#[test]
fn much_dirty_memory_that_a_full_swap_does_not_take_lets_clean_pages_leave() {
    const OWN: usize = 448 * MIB;
    const FILE: usize = 48 * MIB;
    let swap = Arc::new(Memory::new(Vec::new()));
    let options = Options {
        swap_source: Some(swap),
        swap_bytes: PAGE as u64,
        ..Options::new(512 * MIB as u64)
    };
    let cache = Cache::new(options).unwrap();
    let space = Space::new(&cache, 0).unwrap();
    let own = space.map_anon(OWN).unwrap();
    let attach = |name| cache.attach(name, Arc::new(Memory::new(vec![7; FILE]))).unwrap();
    let files = ["used", "new", "newer"].map(attach);
    let read = |file: &File| {
        let mut bytes = vec![0; MIB];
        for at in (0..FILE).step_by(MIB) {
            assert_eq!(file.read_at(&mut bytes, at as u64).unwrap(), MIB);
        }
    };
    (0..3).for_each(|_| read(&files[0]));
    for page in 0..OWN / PAGE {
        word(&own, page).store(1, Ordering::Relaxed);
    }
    files.iter().for_each(read);
    for page in 0..OWN / PAGE {
        assert_eq!(word(&own, page).load(Ordering::Relaxed), 1, "page {page}");
    }
}
