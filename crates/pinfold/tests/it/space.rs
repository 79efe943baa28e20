//! Files mapped into memory: the bytes, the ranges, maps that change while others are read.

use std::ops::{Range, RangeInclusive};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};

use pinfold::source::{Memory, Source};
use pinfold::{
    Cache, ErrorKind, FaultIo, FaultLock, File, Hint, Map, Options, Space, SpaceOptions,
};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};
use pinfold_testing::pattern::Pattern;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A file of 16 MiB in a cache of 2 MiB.
struct Subject {
    cache: Cache,
    source: Arc<Faulty>,
    file: File,
    pattern: Pattern,
}

const BYTES: u64 = 64 * MIB;

impl Subject {
    fn new() -> Self {
        Subject::with_budget(8 * MIB)
    }

    fn with_budget(budget: u64) -> Self {
        let pattern = Pattern::new(12, 0);
        let cache = Cache::new(Options::new(budget)).unwrap();
        let source = Arc::new(Faulty::new(Arc::new(Memory::new(pattern.to_vec(BYTES as usize)))));
        let file = cache.attach("file", source.clone()).unwrap();
        Subject { cache, source, file, pattern }
    }

    fn space(&self, options: SpaceOptions) -> Space {
        Space::with(&self.cache, options).unwrap()
    }

    fn fail(&self, range: Range<u64>) {
        let (operation, when) = (Operation::Read, When::Range(range));
        self.source.add(Rule { operation, when, fault: Fault::Error(libc::EIO) });
    }

    /// All bytes of a page of the map are those of the file.
    fn check(&self, map: &Map, page: u64) {
        let at = (page * PAGE) as usize;
        // SAFETY: nobody changes the file.
        let bytes = unsafe { map.as_slice() };
        let bytes = &bytes[at..bytes.len().min(at + PAGE as usize)];
        self.pattern.check(map.range().start + page * PAGE, bytes).unwrap();
    }

    /// `reads` pages of the map, at random.
    fn check_some(&self, map: &Map, seed: u64, reads: u32) {
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..reads {
            self.check(map, random.u64(0..(map.len() as u64).div_ceil(PAGE)));
        }
    }
}

/// All ways to serve a fault.
fn ways() -> impl Iterator<Item = SpaceOptions> {
    let locks = [FaultLock::Vma, FaultLock::Space];
    let ios = [FaultIo::Drop, FaultIo::Hold];
    let all = locks.into_iter().flat_map(move |lock| ios.map(|io| (lock, io)));
    all.flat_map(|(lock, io)| [0, 2].map(|handlers| SpaceOptions { lock, io, handlers }))
}

#[test]
fn an_optimistic_page_that_a_map_shows_is_copied_and_validated() {
    let subject = Subject::new();
    let map = subject.space(SpaceOptions::default()).map_file(&subject.file, 0..MIB).unwrap();
    subject.check(&map, 3);
    assert!(subject.file.mirrored_bytes() >= PAGE);
    let page = subject.file.optimistic(3).unwrap();
    let mut buf = [0; PAGE as usize];
    page.read(0, &mut buf);
    assert!(page.validate());
    subject.pattern.check(3 * PAGE, &buf).unwrap();
    page.read(64, &mut buf[..64]);
    subject.pattern.check(3 * PAGE + 64, &buf[..64]).unwrap();
    subject.file.invalidate(..).unwrap();
    page.read(0, &mut buf); // no fault, though it is gone
    assert!(!page.validate());
    // What a map shows is evicted now and then.
    let scanned = subject.file.clone();
    for n in 0..2000 {
        let at = n * 37 % (MIB / PAGE);
        subject.check(&map, at);
        scanned.read_at(&mut buf, n * PAGE).unwrap();
        // As a program does: the page may be evicted before it is copied.
        let is_copied = (0..1000).any(|_| {
            let page = subject.file.optimistic(at).unwrap();
            page.read(0, &mut buf);
            page.validate()
        });
        assert!(is_copied, "page {at} is never valid");
        subject.pattern.check(at * PAGE, &buf).unwrap();
    }
}

#[test]
fn an_optimistic_page_that_a_map_shows_ends_with_the_file() {
    let pattern = Pattern::new(3, 0);
    let cache = Cache::new(Options::new(8 * MIB)).unwrap();
    let file = cache.attach("short", Arc::new(Memory::new(pattern.to_vec(5000)))).unwrap();
    let map = Space::new(&cache, 0).unwrap().map_file(&file, 0..5000).unwrap();
    // SAFETY: nobody changes the file.
    pattern.check(0, unsafe { map.as_slice() }).unwrap();
    let page = file.optimistic(1).unwrap();
    assert_eq!(page.len(), 5000 - PAGE as usize);
    let mut buf = vec![0; page.len()];
    page.read(0, &mut buf);
    assert!(page.validate());
    pattern.check(PAGE, &buf).unwrap();
    assert_eq!(file.optimistic(2).unwrap_err().kind(), ErrorKind::BeyondEnd);
}

#[test]
fn a_map_has_the_bytes_of_a_file_eight_times_the_budget() {
    for way in ways() {
        let subject = Subject::new();
        let space = subject.space(way);
        let map = space.map_file(&subject.file, 0..BYTES).unwrap();
        assert_eq!((map.len() as u64, map.range()), (BYTES, 0..BYTES));
        assert_eq!(map.as_ptr().addr() % (2 << 20), 0);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (subject, map) = (&subject, &map);
                scope.spawn(move || subject.check_some(map, seed, 3000));
            }
        });
        let stats = space.stats();
        assert!(stats.faults >= 4096 && stats.absent > 0 && stats.failed == 0, "{stats:?}");
        assert_eq!(stats.there + stats.absent, stats.faults, "{stats:?}");
        let (drops, by_space) = (stats.retries > 0, stats.locks.retries > 0);
        let options = format!("{way:?}");
        assert_eq!(by_space, options.contains("lock: Space"), "{way:?} {stats:?}");
        assert_eq!(drops, by_space || options.contains("io: Drop"), "{way:?} {stats:?}");
        assert!(subject.cache.stats().free_bytes <= 8 * MIB);
    }
}

#[test]
fn a_page_that_is_there_is_no_fault() {
    let subject = Subject::new();
    let space = subject.space(SpaceOptions::default());
    let map = space.map_file(&subject.file, 0..8 * PAGE).unwrap();
    (0..8).for_each(|page| subject.check(&map, page));
    let before = space.stats();
    (0..8).for_each(|page| subject.check(&map, page));
    let other = space.map_file(&subject.file, 0..8 * PAGE).unwrap();
    (0..8).for_each(|page| subject.check(&other, page));
    assert_eq!(space.stats().faults, before.faults);
    assert_eq!(before.faults, before.locks.map_readers.acquired - before.retries);
    assert_eq!(space.stats().locks.space_writers.acquired, 2);
}

#[test]
fn any_number_of_maps_and_spaces_have_the_same_file() {
    let subject = Subject::new();
    let spaces = [
        subject.space(SpaceOptions::default()),
        subject.space(SpaceOptions { handlers: 1, ..SpaceOptions::default() }),
    ];
    let ranges = [0..BYTES, 3 * PAGE..5 * MIB + 17, BYTES - PAGE..BYTES, BYTES / 2..BYTES / 2 + 1];
    let map = |range: &Range<u64>| {
        spaces.each_ref().map(|space| space.map_file(&subject.file, range.clone()).unwrap())
    };
    let maps: Vec<_> = ranges.iter().flat_map(map).collect();
    std::thread::scope(|scope| {
        for (seed, map) in maps.iter().enumerate() {
            let subject = &subject;
            scope.spawn(move || subject.check_some(map, seed as u64, 500));
        }
    });
}

#[test]
fn maps_come_and_go_while_others_are_read() {
    for way in ways() {
        let subject = Subject::new();
        let space = subject.space(way);
        let stays = space.map_file(&subject.file, 0..BYTES).unwrap();
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (subject, stays) = (&subject, &stays);
                scope.spawn(move || subject.check_some(stays, seed, 2000));
            }
            for seed in 0..2 {
                let (subject, space) = (&subject, &space);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    for _ in 0..100 {
                        let start = random.u64(0..BYTES / PAGE) * PAGE;
                        let end = random.u64(start + 1..=BYTES);
                        let map = space.map_file(&subject.file, start..end).unwrap();
                        subject.check_some(&map, random.u64(..), 10);
                        drop(map);
                    }
                });
            }
        });
        let stats = space.stats();
        assert!(stats.locks.map_writers.acquired >= 400, "{stats:?}");
    }
}

#[test]
fn a_map_outlives_its_space_its_file_and_its_cache() {
    let Subject { cache, file, pattern, .. } = Subject::new();
    for handlers in [0, 1] {
        let space = Space::new(&cache, handlers).unwrap();
        let map = space.map_file(&file.clone(), 0..BYTES).unwrap();
        drop(space);
        // SAFETY: nobody changes the file.
        let bytes = unsafe { map.as_slice() };
        pattern.check(0, &bytes[..PAGE as usize]).unwrap();
        pattern.check(BYTES / 2, &bytes[BYTES as usize / 2..]).unwrap();
    }
    let space = Space::new(&cache, 0).unwrap();
    let map = space.map_file(&file, 0..BYTES).unwrap();
    drop((space, file, cache));
    // SAFETY: as above.
    let bytes = unsafe { map.as_slice() };
    std::thread::scope(|scope| {
        scope.spawn(|| pattern.check(0, bytes).unwrap());
    });
}

#[track_caller]
fn is_wrong_range<T>(result: pinfold::Result<T>, expected: ErrorKind, text: &str) {
    let error = result.err().expect("the range is wrong");
    assert_eq!(error.kind(), expected, "{error}");
    assert!(error.to_string().starts_with(text), "{error}");
}

#[test]
#[allow(clippy::reversed_empty_ranges, reason = "that is what is tested")]
fn a_range_that_cannot_be_mapped_is_named() {
    let subject = Subject::new();
    let space = subject.space(SpaceOptions::default());
    let cases = [
        (4096..4096, ErrorKind::Invalid, "cannot map bytes 4096..4096 of file: the range is empty"),
        (8192..4096, ErrorKind::Invalid, "cannot map bytes 8192..4096 of file: the range ends"),
        (1..4096, ErrorKind::Invalid, "cannot map bytes 1..4096 of file: the range must begin"),
        (
            0..BYTES + 1,
            ErrorKind::BeyondEnd,
            "cannot map bytes 0..67108865 of file: the file ends at 67108864",
        ),
        (
            u64::MAX - 4095..u64::MAX,
            ErrorKind::BeyondEnd,
            "cannot map bytes 18446744073709547520..18446744073709551615 of file: the file ends",
        ),
    ];
    let map = space.map_file(&subject.file, 0..PAGE + 1).unwrap();
    for (range, cause, text) in cases {
        is_wrong_range(space.map_file(&subject.file, range), cause, text);
    }
    let beyond = ErrorKind::Invalid;
    for hint in [Hint::WillNeed, Hint::DontNeed, Hint::Random, Hint::Sequential] {
        let text = "cannot advise on bytes 1..4098 of file: the map has 4097 bytes";
        is_wrong_range(map.advise(1..4098, hint), beyond, text);
        let text = "cannot advise on bytes 2..1 of file: the range ends before it begins";
        is_wrong_range(map.advise(2..1, hint), ErrorKind::Invalid, text);
        map.advise(1..1, hint).unwrap();
    }
    let other = Cache::new(Options::new(8 * MIB)).unwrap();
    let foreign = other.attach("foreign", Arc::new(Memory::new(vec![1; 10]))).unwrap();
    let error = space.map_file(&foreign, 0..10).unwrap_err();
    assert_eq!(error.to_string(), "cannot map foreign: the space belongs to another cache");
    subject.check(&map, 0);
}

#[test]
fn copying_out_of_a_map_ends_with_the_map_and_gives_errors() {
    let subject = Subject::new();
    let space = subject.space(SpaceOptions::default());
    let map = space.map_file(&subject.file, PAGE..3 * PAGE + 5).unwrap();
    let mut buf = [0; 100];
    assert_eq!(map.read_at(&mut buf, 17).unwrap(), 100);
    subject.pattern.check(PAGE + 17, &buf).unwrap();
    assert_eq!(map.read_at(&mut buf, 2 * PAGE).unwrap(), 5);
    for beyond in [2 * PAGE + 5, u64::MAX] {
        assert_eq!(map.read_at(&mut buf, beyond).unwrap(), 0);
    }
    subject.fail(2 * PAGE..3 * PAGE);
    let error = map.read_at(&mut buf, PAGE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
    let error = map.advise(0..2 * PAGE as usize, Hint::WillNeed).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
    subject.source.heal();
    assert_eq!(map.read_at(&mut buf, PAGE).unwrap(), 100);
}

#[test]
fn advice_brings_pages_and_takes_them_out_of_the_map() {
    let subject = Subject::new();
    let space = subject.space(SpaceOptions::default());
    let map = space.map_file(&subject.file, 0..BYTES).unwrap();
    map.advise(5000..10 * PAGE as usize, Hint::WillNeed).unwrap();
    (1..10).for_each(|page| subject.check(&map, page));
    assert_eq!(space.stats().faults, 0, "they were brought");
    map.advise(0..2 * PAGE as usize, Hint::DontNeed).unwrap();
    (1..10).for_each(|page| subject.check(&map, page));
    assert_eq!(space.stats().faults, 0, "they stay cached");
    for hint in [Hint::Random, Hint::Sequential] {
        map.advise(0..0, hint).unwrap();
        subject.check_some(&map, 3, 100);
    }
}

#[test]
fn errno_stays_as_it_was() {
    let subject = Subject::new();
    let space = subject.space(SpaceOptions::default());
    let map = space.map_file(&subject.file, 0..BYTES).unwrap();
    // SAFETY: always there.
    let errno = unsafe { libc::__errno_location() };
    for page in 0..20 {
        // SAFETY: this thread's own.
        unsafe { *errno = 77 };
        // SAFETY: within the map.
        let byte = unsafe { map.as_ptr().wrapping_add(page * PAGE as usize).read_volatile() };
        // SAFETY: as above.
        assert_eq!(unsafe { *errno }, 77, "page {page}, {byte}");
    }
    assert!(space.stats().faults > 0);
}

#[test]
fn what_was_invalidated_is_read_again_at_the_next_access() {
    for handlers in [0, 1] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 64 << 10]).unwrap();
        let cache = Cache::new(Options::new(8 * MIB)).unwrap();
        let file = cache.open(&path).unwrap();
        let space = Space::new(&cache, handlers).unwrap();
        let map = space.map_file(&file, 0..64 << 10).unwrap();
        let byte = |page: usize| {
            let at = map.as_ptr().wrapping_add(page * PAGE as usize);
            // SAFETY: within the map.
            unsafe { at.read_volatile() }
        };
        for generation in 2..6 {
            (0..16).for_each(|page| assert_eq!(byte(page), generation - 1));
            std::fs::write(&path, vec![generation; 64 << 10]).unwrap();
            file.invalidate(0..64 << 10).unwrap();
        }
    }
}

/// A source that does not answer for one page until it is told to.
#[derive(Debug)]
struct Stuck {
    bytes: Memory,
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Stuck {
    const PAGE: u64 = 100;

    fn wait_for_a_read(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |(waiting, _)| *waiting == 0).unwrap());
    }

    fn answer(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl Source for Stuck {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        if offset / PAGE == Stuck::PAGE {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |(_, answers)| !*answers).unwrap());
        }
        self.bytes.read_at(offset, buf)
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        self.bytes.len_bytes()
    }
    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "stuck".into()
    }
}

/// Lets it answer, also if the test fails before it does.
struct Answers<'a>(&'a Stuck);

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        self.0.answer();
    }
}

#[test]
fn whoever_changes_a_map_waits_for_a_read_only_if_faults_keep_their_lock() {
    for way in ways() {
        let pattern = Pattern::new(12, 0);
        let cache = Cache::new(Options::new(8 * MIB)).unwrap();
        let bytes = Memory::new(pattern.to_vec(MIB as usize));
        let stuck = Arc::new(Stuck { bytes, state: Mutex::default(), changed: Condvar::default() });
        let file = cache.attach("stuck", stuck.clone()).unwrap();
        file.advise(0..0, Hint::Random).unwrap();
        let space = Space::with(&cache, way).unwrap();
        let map = space.map_file(&file, 0..MIB).unwrap();
        map.advise(0..0, Hint::Random).unwrap();
        let holds = format!("{way:?}").contains("io: Hold");
        let at = (Stuck::PAGE * PAGE) as usize;
        std::thread::scope(|scope| {
            // SAFETY: nobody changes the file.
            let read = scope.spawn(|| unsafe { map.as_slice() }[at]);
            let _answers = Answers(&stuck);
            stuck.wait_for_a_read();
            let changed = AtomicBool::new(false);
            let change = || {
                map.protect(true).unwrap();
                drop(space.map_file(&file, 0..PAGE).unwrap());
                changed.store(true, Ordering::Relaxed);
            };
            if holds {
                std::thread::scope(|scope| {
                    scope.spawn(change);
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    assert!(!changed.load(Ordering::Relaxed), "{way:?}");
                    stuck.answer();
                });
            } else {
                change();
                // Other pages of the map are read meanwhile.
                // SAFETY: as above.
                pattern.check(PAGE, &unsafe { map.as_slice() }[PAGE as usize..at]).unwrap();
                stuck.answer();
            }
            assert!(changed.load(Ordering::Relaxed));
            pattern.check(at as u64, &[read.join().unwrap()]).unwrap();
        });
        let stats = space.stats();
        assert_eq!(stats.changed > 0, !holds, "{way:?}: {stats:?}");
    }
}

/// Writes from the map into a memfd; returns what write(2) says.
fn write_from(map: &Map, page: u64) -> rustix::io::Result<usize> {
    let into = rustix::fs::memfd_create("into", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let at = map.as_ptr().wrapping_add((page * PAGE) as usize);
    // SAFETY: within the map, whose bytes nobody changes; nobody reads them here but the kernel.
    let bytes = unsafe { std::slice::from_raw_parts(at, PAGE as usize) };
    rustix::io::write(into.as_fd(), bytes)
}

#[test]
fn a_system_call_waits_for_its_pages_if_handler_threads_serve() {
    let subject = Subject::new();
    let space = subject.space(SpaceOptions { handlers: 2, ..SpaceOptions::default() });
    let map = space.map_file(&subject.file, 0..BYTES).unwrap();
    if !space.stats().serves_system_calls {
        return; // this process may not have it
    }
    map.advise(0..0, Hint::Random).unwrap();
    assert_eq!(write_from(&map, 7), Ok(PAGE as usize));
    subject.fail(9 * PAGE..10 * PAGE);
    for _ in 0..2 {
        assert_eq!(write_from(&map, 9), Err(rustix::io::Errno::FAULT));
        let why = map.last_failure().unwrap();
        assert!(why.to_string().contains("cannot read file at 36864"), "{why}");
    }
    assert_eq!(space.stats().failed, 1, "the page is poisoned");
    subject.source.heal();
    assert_eq!(write_from(&map, 10), Ok(PAGE as usize), "others go on");
    map.advise(9 * PAGE as usize..10 * PAGE as usize, Hint::DontNeed).unwrap();
    subject.check(&map, 9);
    let own = subject.space(SpaceOptions::default());
    let own = own.map_file(&subject.file, 100 * PAGE..BYTES).unwrap();
    own.advise(0..0, Hint::Random).unwrap();
    assert_eq!(write_from(&own, 7), Err(rustix::io::Errno::FAULT), "it has no handler threads");
    subject.check(&own, 7);
}

#[test]
fn a_map_goes_from_thread_to_thread() {
    fn is_shared<T: Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    is_shared::<Map>();
    is_shared::<Space>();
    let subject = Subject::new();
    let space = subject.space(SpaceOptions::default());
    let map = space.map_file(&subject.file, 0..BYTES).unwrap();
    let line = format!("{map:?} {space:?}");
    assert!(line.starts_with("Map { path: \"file\", range: 0..67108864, at: 0x"), "{line}");
    assert!(line.ends_with("Space { by: Signal, .. }"), "{line}");
    std::thread::spawn(move || drop(map)).join().unwrap();
}

#[test]
fn many_threads_get_on_with_hardly_any_memory() {
    const THREADS: u64 = 64;
    for way in ways() {
        let pattern = Pattern::new(12, 0);
        let cache = Cache::new(Options::new(8 * MIB)).unwrap();
        let memory = Memory::new(pattern.to_vec(BYTES as usize));
        let file = cache.attach("file", Arc::new(memory)).unwrap();
        file.advise(0..0, Hint::Random).unwrap();
        let space = Space::with(&cache, way).unwrap();
        // Each thread has pages of its own: none gets on by what another brings.
        let share = BYTES / THREADS;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (space, file, pattern) = (&space, &file, &pattern);
                scope.spawn(move || {
                    let start = thread * share;
                    let map = space.map_file(file, start..start + share).unwrap();
                    for at in (0..share).step_by(PAGE as usize) {
                        // SAFETY: nobody changes the file.
                        let bytes = unsafe { map.as_slice() };
                        let bytes = &bytes[at as usize..(at + PAGE) as usize];
                        pattern.check(start + at, bytes).unwrap();
                    }
                });
            }
        });
        let stats = space.stats();
        assert!(stats.faults >= THREADS && stats.failed == 0, "{way:?} {stats:?}");
    }
}

/// A file as long as a test wants, which takes no memory.
#[derive(Debug)]
struct Endless(Pattern);

impl Source for Endless {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.fill(offset, buf);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(1 << 30)
    }
    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "endless".into()
    }
}

/// Threads that all want memory at once.
const CROWD: usize = 500;

/// Pages of each thread of a crowd, on average, after which all must have had their share. On a
/// machine with other things to do that may take more of them; a thread that starves never has it.
const SHARES: RangeInclusive<usize> = 16..=4096;

/// A thread has its share if it has read the mean of all divided by this. Of 500 threads that wait
/// for memory in turn and for a processor by chance, the slowest was seen with a 14th of the mean.
const SHARE_OF_MEAN: usize = 20;

/// Each thread maps a piece of its own file, reads a cell of each page and unmaps it, again and
/// again, until all together have read so many pages that the slowest has its share. No piece is
/// read twice, and none is read ahead. Returns the pages of all.
fn crowd(options: SpaceOptions) -> Vec<usize> {
    const PIECE: u64 = 8 * PAGE;
    let cache = Cache::new(Options::new(8 * MIB)).unwrap();
    let space = Space::with(&cache, options).unwrap();
    let pages: Vec<_> = (0..CROWD).map(|_| AtomicUsize::new(0)).collect();
    let (all, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let has_begun = Barrier::new(CROWD);
    let counts = || pages.iter().map(|pages| pages.load(Ordering::Relaxed));
    std::thread::scope(|scope| {
        for (n, pages) in pages.iter().enumerate() {
            let pattern = Pattern::new(14, n as u16);
            let file = cache.attach(&format!("file {n}"), Arc::new(Endless(pattern))).unwrap();
            let (space, all, over, has_begun, counts) = (&space, &all, &over, &has_begun, &counts);
            scope.spawn(move || {
                has_begun.wait();
                // Ends: after so many pages of all.
                for piece in (0..file.len() / PIECE).map(|piece| piece * PIECE) {
                    let map = space.map_file(&file, piece..piece + PIECE).unwrap();
                    map.advise(0..0, Hint::Random).unwrap();
                    for at in (0..PIECE).step_by(PAGE as usize) {
                        // SAFETY: nobody changes the file.
                        let cell = unsafe { &map.as_slice()[at as usize..at as usize + 64] };
                        pattern.check(piece + at, cell).unwrap();
                        pages.fetch_add(1, Ordering::Relaxed);
                        let done = all.fetch_add(1, Ordering::Relaxed) + 1;
                        let (share, is_last) = (done / CROWD, done == CROWD * SHARES.end());
                        let is_asked = done.is_multiple_of(CROWD) && share.is_power_of_two();
                        if is_asked && SHARES.contains(&share) {
                            let is_fair =
                                counts().min().is_some_and(|least| least * SHARE_OF_MEAN >= share);
                            over.fetch_or(is_fair || is_last, Ordering::Relaxed);
                        }
                    }
                    drop(map);
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
    });
    counts().collect()
}

fn nobody_starves(options: SpaceOptions) {
    let pages = crowd(options);
    let (slowest, all) = (*pages.iter().min().unwrap(), pages.iter().sum::<usize>());
    let mean = all / CROWD;
    println!("{all} pages, the slowest thread {slowest}, mean {mean}");
    assert!(slowest * SHARE_OF_MEAN >= mean, "{slowest} of {mean}: {pages:?}");
}

#[test]
fn of_500_threads_that_serve_themselves_none_starves() {
    nobody_starves(SpaceOptions::default());
}

#[test]
fn of_500_threads_that_are_served_none_starves() {
    nobody_starves(SpaceOptions { handlers: 4, ..SpaceOptions::default() });
}

/// Which pages of the map are in this process's page table.
fn are_mapped(map: &Map) -> Vec<bool> {
    use std::os::unix::fs::FileExt;
    let table = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0; map.len() / PAGE as usize * 8];
    table.read_exact_at(&mut entries, map.as_ptr().addr() as u64 / PAGE * 8).unwrap();
    let is_present = |entry: &[u8]| entry[7] & 0x80 != 0;
    entries.chunks(8).map(is_present).collect()
}

#[test]
fn an_access_maps_what_is_cached_after_it_at_once() {
    let subject = Subject::new();
    let space = subject.space(SpaceOptions::default());
    let map = space.map_file(&subject.file, 0..MIB).unwrap();
    subject.file.read_at(&mut vec![0; MIB as usize / 2], 0).unwrap();
    assert!(!are_mapped(&map).contains(&true));
    subject.check(&map, 3);
    // The kernel's own fault would map 16 pages. One of each 16 may be left out, to show later
    // whether it was accessed.
    let mapped = are_mapped(&map)[3..60].iter().filter(|&&is_mapped| is_mapped).count();
    assert!(mapped >= 57 - 4, "{mapped}");
    assert_eq!(space.stats().faults, 1);
}

#[test]
fn an_absent_page_of_a_file_that_fits_is_read_with_those_around_it_while_memory_is_unused() {
    let subject = Subject::with_budget(BYTES);
    let space = subject.space(SpaceOptions::default());
    let map = space.map_file(&subject.file, 0..BYTES).unwrap();
    let ahead = || subject.cache.stats().readahead;
    let cached = || subject.cache.stats().resident_bytes;
    subject.check(&map, 1000);
    assert_eq!(cached(), 32 * PAGE);
    subject.check(&map, 992);
    subject.check(&map, 1023);
    assert_eq!(cached(), 32 * PAGE, "they were read with it");
    // Not one after another. Then an eighth of the memory is left.
    let blocks = BYTES / PAGE / 32;
    for block in (0..blocks).step_by(2).chain((1..blocks).step_by(2)) {
        subject.check(&map, block * 32);
    }
    assert!((BYTES * 3 / 4..BYTES).contains(&cached()), "{}", cached());
    let before = cached();
    for page in (BYTES / PAGE * 31 / 32..BYTES / PAGE).step_by(64) {
        subject.check(&map, page + 33);
    }
    assert!(cached() < before + 32 * PAGE, "from here on pages are read alone");
    // So they are for one who reads at random.
    let map = space.map_file(&subject.file, 0..BYTES).unwrap();
    map.advise(0..0, Hint::Random).unwrap();
    subject.file.invalidate(0..BYTES).unwrap();
    let before = ahead();
    subject.check(&map, 500);
    assert_eq!(ahead(), before);
}

#[test]
fn of_a_file_that_does_not_fit_the_rest_of_a_block_is_read_when_most_of_it_was_wanted() {
    let subject = Subject::new();
    let space = subject.space(SpaceOptions::default());
    let map = space.map_file(&subject.file, 0..BYTES).unwrap();
    let cached = || subject.cache.stats().resident_bytes;
    for n in 0..24 {
        subject.check(&map, 1023 - n);
        assert_eq!(cached(), (n + 1) * PAGE);
    }
    subject.check(&map, 995);
    assert_eq!(cached(), 32 * PAGE);
}

#[test]
fn what_maps_read_is_counted() {
    let cache = Cache::new(Options::new(32 << 20)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 16 << 20]))).unwrap();
    let space = Space::new(&cache, 0).unwrap();
    let map = space.map_file(&file, 0..16 << 20).unwrap();
    // SAFETY: nobody changes the file.
    let bytes = unsafe { map.as_slice() };
    let mut rng = fastrand::Rng::with_seed(9);
    assert!((0..2000).all(|_| bytes[rng.usize(0..16 << 20)] == 7));
    let stats = cache.stats();
    let reads = &cache.sources()[0].1.read;
    assert!(reads.calls > 50, "{reads:?}");
    assert_eq!(stats.misses, reads.calls, "each read that an access waited for is a miss");
}

/// What maps have brought in large folios is not kept for a few pages of each that are read in
/// other ways once the maps are gone: pages that fit into the cache are all cached at last.
#[test]
fn a_file_that_is_no_longer_mapped_is_cached_by_pages() {
    let subject = Subject::with_budget(16 * MIB);
    let space = subject.space(SpaceOptions::default());
    let map = space.map_file(&subject.file, 0..BYTES).unwrap();
    for page in (0..BYTES / PAGE).chain(0..BYTES / PAGE) {
        subject.check(&map, page);
    }
    drop((map, space));
    let file = &subject.file;
    file.advise(.., Hint::Random).unwrap();
    let mut pages: Vec<_> = (0..BYTES / PAGE).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut pages);
    pages.truncate((11 * MIB / PAGE) as usize);
    let misses = || subject.cache.stats().misses;
    let mut missed = 0;
    for _ in 0..8 {
        let before = misses();
        for page in &pages {
            let mut buf = [0; 64];
            file.read_at(&mut buf, page * PAGE).unwrap();
            subject.pattern.check(page * PAGE, &buf).unwrap();
        }
        missed = misses() - before;
    }
    assert!(missed < pages.len() as u64 / 50, "{missed} of {} in the last round", pages.len());
}
