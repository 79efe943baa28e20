//! A test for each objection of reviewers to short reads without a reference.
//!
//! What needs the inside of the crate (the order of steps under loom, addresses made from garbage)
//! is tested there. Here: what a program can see. Each test names its objection; `docs/cache.md`
//! says which have been seen to fail without the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pinfold::source::{Memory, Source};
use pinfold::{Cache, File, Hint, Options, Stats};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::times::settle;

use crate::again::again;

const BUDGET_MIN_BYTES: u64 = *pinfold::Options::BUDGET_BYTES.start();

const MIB: usize = 1 << 20;

/// Longer reads than usual without a reference: the copy takes longer, and so the race is met.
const SHORT_MAX_BYTES: usize = 64 << 10;

struct Subject {
    cache: Cache,
    file: File,
    memory: Arc<Memory>,
    pattern: Pattern,
    bytes: usize,
}

/// What is waited for comes within seconds, or, on a machine that does other things, within this.
const LONG: Duration = Duration::from_secs(120);

fn subject(budget_bytes: u64, bytes: usize) -> Subject {
    let options = Options { short_read_max_bytes: SHORT_MAX_BYTES, ..Options::new(budget_bytes) };
    let cache = Cache::new(options).unwrap();
    let pattern = Pattern::new(21, 0);
    let memory = Arc::new(Memory::new(pattern.to_vec(bytes)));
    let file = cache.attach("file", memory.clone()).unwrap();
    Subject { cache, file, memory, pattern, bytes }
}

/// How often a short read had to be discarded because the version had changed.
fn thrown_away(stats: &Stats) -> u64 {
    stats.fallbacks_changed
}

impl Subject {
    /// Reads all over the first `region` bytes, and checks, until `disturb` has been called often
    /// enough that some reads were thrown away. Fails after a while without.
    fn read_against(&self, region: usize, disturb: impl Fn(&Self) + Sync) -> Stats {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = scope.spawn(|| self.read_until(region, &over));
            let since = Instant::now();
            // Ends: at the latest after a long time.
            while since.elapsed() < LONG && !reader.is_finished() {
                (0..10).for_each(|_| disturb(self));
                if thrown_away(&self.cache.stats()) >= 10 {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        let stats = self.cache.stats();
        assert!(thrown_away(&stats) > 0, "the race was never met: {stats:?}");
        stats
    }

    fn read_until(&self, region: usize, over: &AtomicBool) {
        let file = self.file.clone();
        file.advise(0..0, Hint::Random).unwrap();
        let (mut buf, mut rng) = (vec![0; 4096], fastrand::Rng::with_seed(3));
        while !over.load(Ordering::Relaxed) {
            let bytes = rng.usize(1..buf.len());
            let offset = rng.usize(0..region - bytes) as u64;
            let got = file.read_at(&mut buf[..bytes], offset).unwrap();
            assert_eq!(got, bytes);
            self.pattern.check(offset, &buf[..got]).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }

    /// Reads everything once, so that it is cached as far as it fits.
    fn warm(&self) {
        let mut buf = vec![0; 256 << 10];
        for offset in (0..self.bytes).step_by(buf.len()) {
            self.file.read_at(&mut buf, offset as u64).unwrap();
        }
    }
}

// ---- "the folio may be split, freed, reallocated, or change size while it is being read" ----

#[test]
fn a_frame_reused_for_another_page_while_it_is_read_is_noticed() {
    let subject = subject(BUDGET_MIN_BYTES, 8 * MIB);
    let other = subject.file.clone();
    let stats = subject.read_against(256 << 10, |subject| {
        // All frames pass through the hands of other pages again and again.
        let mut buf = vec![0; 128 << 10];
        let offset = fastrand::usize(MIB..subject.bytes - buf.len()) as u64;
        other.read_at(&mut buf, offset).unwrap();
        subject.pattern.check(offset, &buf).unwrap_or_else(|wrong| panic!("{wrong}"));
        other.invalidate(0..256 << 10).unwrap();
    });
    assert!(stats.evictions > 10, "{stats:?}");
}

/// The same page of another file may lie in the frame by then: only the identity tells.
#[test]
fn a_frame_reused_for_the_same_page_of_another_file_is_noticed() {
    const FILES: usize = 8;
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).unwrap();
    let pattern = |n: usize| Pattern::new(27, n as u16);
    let attach = |n| cache.attach("page", Arc::new(Memory::new(pattern(n).to_vec(4096)))).unwrap();
    let files: Vec<File> = (0..FILES).map(attach).collect();
    let until = Instant::now() + LONG;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // More threads than cores: one that sleeps between the look-up and the check of the frame
        // finds it changed when it wakes.
        let read = |seed| {
            let (files, over) = (&files, &over);
            scope.spawn(move || {
                let (mut buf, mut rng) = ([0; 64], fastrand::Rng::with_seed(seed));
                while !over.load(Ordering::Relaxed) {
                    let n = rng.usize(0..FILES);
                    if rng.u32(0..32) == 0 {
                        // What was freed last is handed out first.
                        files[n].invalidate(0..1).unwrap();
                    }
                    files[n].read_at(&mut buf, 640).unwrap();
                    pattern(n).check(640, &buf).unwrap_or_else(|wrong| panic!("{wrong}"));
                }
            })
        };
        let readers: Vec<_> = (0..8).map(read).collect();
        // Ends: at the latest after a long time.
        while cache.stats().fallbacks_identity < 20
            && Instant::now() < until
            && !readers.iter().any(thread::ScopedJoinHandle::is_finished)
        {
            thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(cache.stats().fallbacks_identity > 0, "{:?}", cache.stats());
}

#[test]
fn a_folio_split_while_it_is_read_is_noticed() {
    let subject = subject(64 << 20, MIB);
    let stats = subject.read_against(MIB, |subject| {
        subject.warm();
        subject.file.split(0..MIB as u64);
        // Whole again: it changes its size in both directions.
        subject.file.invalidate(0..MIB as u64).unwrap();
    });
    assert!(stats.splits > 0, "{stats:?}");
    assert_eq!(stats.evictions, 0);
}

// ---- "never derive an address from a folio that nothing holds"; "memory that may be read" ----

/// The memory stays as long as it can be read, in whatever order handles are dropped.
#[test]
fn a_file_keeps_the_memory_of_a_cache_that_was_dropped() {
    let Subject { cache, file, pattern, .. } = subject(BUDGET_MIN_BYTES, 100_000);
    let mut buf = vec![0; 100_000];
    file.read_at(&mut buf, 0).unwrap();
    drop(cache);
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), buf.len());
    pattern.check(0, &buf).unwrap();
    let clone = file.clone();
    drop(file);
    assert_eq!(clone.read_at(&mut buf, 0).unwrap(), buf.len());
    pattern.check(0, &buf).unwrap();
}

// ---- "migration replaces a folio without passing through deletion" ----

#[test]
fn a_folio_moved_while_it_is_read_is_noticed() {
    let subject = subject(64 << 20, MIB);
    subject.warm();
    let stats = subject.read_against(MIB, |subject| {
        subject.file.migrate(0..MIB as u64);
        // Its old frames get other bytes at once.
        let other = Pattern::new(22, 1).to_vec(MIB);
        let file = subject.cache.attach("other", Arc::new(Memory::new(other))).unwrap();
        file.read_at(&mut vec![0; MIB], 0).unwrap();
    });
    assert!(stats.migrations > 0, "{stats:?}");
    assert_eq!(stats.evictions, 0, "nothing passed through deletion: {stats:?}");
}

// ---- "a partial truncate inside one folio, and a hole punched by zeroing" ----

#[test]
fn a_truncate_inside_a_folio_is_seen() {
    let subject = subject(64 << 20, 100_000);
    let Subject { file, memory, .. } = &subject;
    subject.warm();
    memory.set_len(5000).unwrap();
    file.invalidate(0..0).unwrap();
    let mut buf = vec![0xcc; 10_000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 5000, "not what was past the new end");
    subject.pattern.check(0, &buf[..5000]).unwrap();
    assert_eq!(file.read_at(&mut buf, 5000).unwrap(), 0);
    // The file grows again, with other bytes: neither the zeros past the end nor the old bytes.
    let newer = subject.pattern.at_epoch(1).to_vec(100_000);
    memory.write_at(5000, &newer[5000..]).unwrap();
    file.invalidate(0..0).unwrap();
    let mut buf = vec![0; 95_000];
    for _ in 0..2 {
        assert_eq!(file.read_at(&mut buf, 5000).unwrap(), 95_000);
        subject.pattern.at_epoch(1).check(5000, &buf).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}

#[test]
fn a_hole_punched_inside_a_folio_is_seen() {
    let subject = subject(64 << 20, 100_000);
    subject.warm();
    subject.memory.write_at(9000, &[0; 200]).unwrap();
    subject.file.invalidate(9000..9200).unwrap();
    let mut buf = [1; 200];
    for _ in 0..2 {
        subject.file.read_at(&mut buf, 9000).unwrap();
        assert_eq!(buf, [0; 200]);
    }
    subject.file.read_at(&mut buf, 9200).unwrap();
    subject.pattern.check(9200, &buf).unwrap();
}

// ---- "the end-of-file check must come after the up-to-date check" ----

/// A file grows and shrinks. Whatever is read has the file's bytes: never the zeros past an end
/// that has moved since, nor bytes that are not there yet.
#[test]
fn the_end_of_the_file_belongs_to_the_bytes_read() {
    const LENGTHS: [u64; 4] = [5000, 12_000, 8192, 20_000];
    let subject = subject(64 << 20, 20_000);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for bytes in [64, 8192, 20_000] {
            let (subject, over) = (&subject, &over);
            scope.spawn(move || {
                let (mut buf, file) = (vec![0; bytes], subject.file.clone());
                let mut rng = fastrand::Rng::with_seed(bytes as u64);
                while !over.load(Ordering::Relaxed) {
                    let offset = rng.u64(0..20_000);
                    // A file that was just truncated may be reported as such.
                    let Ok(got) = file.read_at(&mut buf, offset) else { continue };
                    let checked = subject.pattern.check(offset, &buf[..got]);
                    checked.unwrap_or_else(|wrong| panic!("{wrong}"));
                }
            });
        }
        let all = subject.pattern.to_vec(20_000);
        let since = Instant::now();
        for &length in LENGTHS.iter().cycle() {
            if since.elapsed() > Duration::from_secs(2) {
                break;
            }
            subject.memory.set_len(length.min(subject.memory.len_bytes().unwrap())).unwrap();
            let now = subject.memory.len_bytes().unwrap();
            subject.memory.write_at(now, &all[now as usize..length as usize]).unwrap();
            subject.file.invalidate(0..0).unwrap();
            assert_eq!(subject.file.len(), length);
        }
        over.store(true, Ordering::Relaxed);
    });
}

// ---- "not up to date" ----

/// A reader of a page that is being filled waits for its bytes, and never gets older ones.
#[test]
fn a_page_on_its_way_is_waited_for() {
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).unwrap();
    let pattern = Pattern::new(23, 0);
    let slow = Arc::new(Faulty::new(Arc::new(Memory::new(pattern.to_vec(8 * MIB)))));
    let delay = Fault::Delay(Duration::from_millis(2));
    slow.add(Rule { operation: Operation::Read, when: When::Always, fault: delay });
    let file = cache.attach("slow", slow).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut buf = [0; 64];
                for page in 0..400u64 {
                    file.read_at(&mut buf, page * 16_384).unwrap();
                    let checked = pattern.check(page * 16_384, &buf);
                    checked.unwrap_or_else(|wrong| panic!("{wrong}"));
                }
            });
        }
    });
    assert!(cache.stats().waits > 100, "{:?}", cache.stats());
}

// ---- "stack use" ----

/// Reads without a reference copy straight into the caller's buffer: a stack of 32 KiB is enough
/// for reads of 64 KiB. With a buffer on the stack this test dies.
#[test]
fn reads_without_a_reference_need_no_buffer_on_the_stack() {
    let subject = subject(64 << 20, MIB);
    subject.warm();
    subject.warm();
    let before = subject.cache.stats().short_reads;
    let mut buf = vec![0; SHORT_MAX_BYTES];
    thread::scope(|scope| {
        let file = &subject.file;
        let read = || {
            (0..16).for_each(|n| {
                file.read_at(&mut buf, n * SHORT_MAX_BYTES as u64).unwrap();
            });
        };
        let small = thread::Builder::new().stack_size(32 << 10);
        small.spawn_scoped(scope, read).unwrap();
    });
    let stats = subject.cache.stats();
    assert!(stats.short_reads > before, "none was without a reference: {stats:?}");
    // The histogram that justifies the limit has them.
    assert!(stats.reads[17] >= 16, "64 KiB are in bucket 17: {:?}", stats.reads);
}

// ---- "for a short read the two atomic operations cost more than the copy" ----

const WRITE_PROTECTED: &str = "PINFOLD_TEST_WRITE_PROTECTED";

/// Body of the two tests below, in a process of its own: hits of 64 bytes while all of the cache's
/// memory is write-protected. Does nothing when run with all others.
#[test]
fn hits_in_write_protected_memory() {
    let Ok(how) = std::env::var(WRITE_PROTECTED) else { return };
    // An odd size, to know it by.
    let budget_bytes = 37 * MIB;
    let mut options = Options::new(budget_bytes as u64);
    if how == "counted" {
        options = Options { short_read_max_bytes: 0, ..options };
    }
    let cache = Cache::new(options).unwrap();
    let pattern = Pattern::new(24, 0);
    let file = cache.attach("file", Arc::new(Memory::new(pattern.to_vec(MIB)))).unwrap();
    // Nothing is read ahead: by another thread, which may store a moment later.
    file.advise(0..0, Hint::Random).unwrap();
    let mut buf = [0; 64];
    // Until every page's use count is at its maximum, and no readahead mark is left.
    for _ in 0..8 {
        for page in 0..256 {
            file.read_at(&mut buf, page * 4096).unwrap();
        }
    }
    let before = cache.stats();
    let (address, bytes) = arena(budget_bytes);
    // SAFETY: the range is mapped; nothing but this thread and the sleeping daemon uses it.
    unsafe { rustix::mm::mprotect(address, bytes, rustix::mm::MprotectFlags::READ) }.unwrap();
    for n in 0..10_000u64 {
        let offset = n * 37 % 256 * 4096 + 128;
        assert_eq!(file.read_at(&mut buf, offset).unwrap(), 64);
        pattern.check(offset, &buf).unwrap();
    }
    let all = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
    // SAFETY: as above.
    unsafe { rustix::mm::mprotect(address, bytes, all) }.unwrap();
    let after = cache.stats();
    assert_eq!(after.short_reads - before.short_reads, 10_000, "{after:?}");
    assert_eq!(all_fallbacks(&after), all_fallbacks(&before));
}

/// The one mapping of this process that is as large as the budget, or a little larger.
fn arena(budget_bytes: usize) -> (*mut std::ffi::c_void, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let from = usize::from_str_radix(from, 16).ok()?;
        let bytes = usize::from_str_radix(to, 16).ok()? - from;
        let fits = (budget_bytes..budget_bytes + 4 * MIB).contains(&bytes);
        (fits && rest.starts_with("rw")).then_some((from, bytes))
    });
    let (from, bytes) = found.next().unwrap_or_else(|| panic!("no arena in {maps}"));
    assert!(found.next().is_none(), "two candidates in {maps}");
    (std::ptr::with_exposed_provenance_mut(from), bytes)
}

fn in_a_process_of_its_own(how: &str) -> std::process::Output {
    again(module_path!(), "hits_in_write_protected_memory")
        .env(WRITE_PROTECTED, how)
        .output()
        .unwrap()
}

#[test]
fn a_hit_stores_nothing_in_shared_memory() {
    let output = in_a_process_of_its_own("short");
    assert!(output.status.success(), "{output:?}");
}

/// The same with a counted reference, which has to store: the test above can fail.
#[test]
fn a_counted_hit_does_store() {
    use std::os::unix::process::ExitStatusExt;
    let output = in_a_process_of_its_own("counted");
    assert_eq!(output.status.signal(), Some(11), "{output:?}");
}

// ---- "a file-wide sequence count makes every short read fall back while anything is evicted" ----

#[test]
fn reads_without_a_reference_go_on_while_the_rest_of_the_file_is_evicted() {
    let subject = subject(8 << 20, 64 * MIB);
    let over = AtomicBool::new(false);
    let (mut short, mut retried) = (0, 0);
    thread::scope(|scope| {
        let scan = scope.spawn(|| {
            let (mut buf, file) = (vec![0; 256 << 10], subject.file.clone());
            while !over.load(Ordering::Relaxed) {
                for offset in (MIB..subject.bytes).step_by(buf.len()) {
                    file.read_at(&mut buf, offset as u64).unwrap();
                }
            }
        });
        let file = subject.file.clone();
        let mut buf = [0; 64];
        let before = subject.cache.stats();
        let since = Instant::now();
        let enough = |after: &Stats| {
            after.evictions - before.evictions > 100
                && after.short_reads - before.short_reads > 100_000
        };
        // Ends: they were many of both, or a long time is over.
        let after = loop {
            for n in 0..1000 {
                file.read_at(&mut buf, n * 64 % 4096).unwrap();
            }
            let after = subject.cache.stats();
            if enough(&after) || since.elapsed() > LONG {
                break after;
            }
        };
        over.store(true, Ordering::Relaxed);
        scan.join().unwrap();
        assert!(after.evictions - before.evictions > 100, "{after:?}");
        short = after.short_reads - before.short_reads;
        retried = fallen_back(&after) - fallen_back(&before);
    });
    assert!(short > 100_000, "{short}");
    assert!(retried < short / 10_000, "{retried} of {short} fell back");
}

fn fallen_back(stats: &Stats) -> u64 {
    all_fallbacks(stats) - stats.fallbacks_crosses - stats.fallbacks_end_of_file
}

fn all_fallbacks(stats: &Stats) -> u64 {
    stats.fallbacks_absent
        + stats.fallbacks_changing
        + stats.fallbacks_identity
        + stats.fallbacks_readahead
        + stats.fallbacks_crosses
        + stats.fallbacks_end_of_file
        + stats.fallbacks_changed
}

// ---- "readahead mark set" ----

/// A mark sends one reader the long way, once; then the page is read like any other.
#[test]
fn a_readahead_mark_costs_one_read() {
    let subject = subject(64 << 20, 4 * MIB);
    let mut buf = [0; 512];
    let mut pass = || {
        for offset in (0..subject.bytes).step_by(buf.len()) {
            subject.file.read_at(&mut buf, offset as u64).unwrap();
            subject.pattern.check(offset as u64, &buf).unwrap();
        }
        subject.cache.stats()
    };
    let first = pass();
    assert!(first.readahead > 0, "{first:?}");
    let second = pass();
    assert_eq!(
        all_fallbacks(&second),
        all_fallbacks(&first),
        "all marks were used up in the first pass"
    );
    assert_eq!(second.short_reads - first.short_reads, 4 * MIB as u64 / 512);
}

// ---- "tmpfs does not go through the generic read function" ----

#[test]
fn files_on_tmpfs_are_read_without_a_reference_too() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (path, pattern) = (dir.path().join("file"), Pattern::new(25, 0));
    std::fs::write(&path, pattern.to_vec(4096)).unwrap();
    let cache = Cache::new(Options::new(BUDGET_MIN_BYTES)).unwrap();
    let file = cache.open(&path).unwrap();
    let mut buf = [0; 64];
    for _ in 0..1000 {
        file.read_at(&mut buf, 0).unwrap();
        pattern.check(0, &buf).unwrap();
    }
    assert!(cache.stats().short_reads >= 990, "{:?}", cache.stats());
}

// ---- each of them with its answer taken away ----

/// Tests that fail with a mutant of `mutant.rs` on. Where an answer is no step that a mutant could
/// leave out, it was taken away by hand: see `docs/cache.md`.
#[cfg(feature = "mutants")]
const MUTANTS: &[(&str, &str)] = &[
    ("a_frame_reused_for_another_page_while_it_is_read_is_noticed", "NoLastLook"),
    ("a_frame_reused_for_the_same_page_of_another_file_is_noticed", "AnyIdentity"),
    ("a_folio_split_while_it_is_read_is_noticed", "NoLastLook"),
    ("a_folio_moved_while_it_is_read_is_noticed", "NoLastLook"),
    ("a_truncate_inside_a_folio_is_seen", "KeepOldEnd"),
    ("a_hole_punched_inside_a_folio_is_seen", "InvalidateNothing"),
    ("the_end_of_the_file_belongs_to_the_bytes_read", "LandUnclipped"),
    ("a_page_on_its_way_is_waited_for", "EvenBeforeRead"),
];

#[cfg(feature = "mutants")]
#[test]
fn each_fails_with_its_answer_taken_away() {
    crate::caught::each_is_caught(module_path!(), MUTANTS, 10);
}

// ---- one file, one mapping ----

#[test]
fn one_file_by_many_names_is_cached_once() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, pattern) = (dir.path().join("file"), Pattern::new(26, 0));
    std::fs::write(&path, pattern.to_vec(100_000)).unwrap();
    let (link, hard) = (dir.path().join("symbolic"), dir.path().join("hard"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    std::fs::hard_link(&path, &hard).unwrap();
    settle(&std::fs::metadata(&path).unwrap());
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let mut buf = vec![0; 100_000];
    let mut misses = None;
    for name in [&path, &path, &link, &hard, &dir.path().join("../").join(&path)] {
        // The handle is dropped each time: the pages stay.
        let file = cache.open(name).unwrap();
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 100_000);
        pattern.check(0, &buf).unwrap();
        let stats = cache.stats();
        assert_eq!(stats.files, 1);
        assert_eq!(*misses.get_or_insert(stats.misses), stats.misses, "{}", name.display());
    }
}

// ---- "or change size", met by a thread that moves it ----

/// Compaction finds a folio by the frame it lies in, and may come late: the folio may have been
/// split by then, so that the same page lies in the same frame, but the frames after it are
/// others'.
#[test]
fn compaction_beside_splits() {
    let subject = subject(8 << 20, 32 * MIB);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (subject, over) = (&subject, &over);
            scope.spawn(move || {
                let (mut buf, mut rng) = (vec![0; MIB], fastrand::Rng::with_seed(seed));
                let file = subject.file.clone();
                while !over.load(Ordering::Relaxed) {
                    let hint = if rng.bool() { Hint::Random } else { Hint::Sequential };
                    file.advise(0..0, hint).unwrap();
                    let (offset, bytes) = (rng.usize(0..31 * MIB) as u64, rng.usize(1..256 << 10));
                    let got = file.read_at(&mut buf[..bytes], offset).unwrap();
                    let checked = subject.pattern.check(offset, &buf[..got]);
                    checked.unwrap_or_else(|wrong| panic!("{wrong}"));
                    let other = rng.usize(0..31 * MIB) as u64;
                    let dropped = if rng.bool() { offset } else { other };
                    file.invalidate(dropped..dropped + 2 * MIB as u64).unwrap();
                }
            });
        }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                subject.file.split(0..32 * MIB as u64);
                thread::sleep(Duration::from_micros(20));
            }
        });
        let since = Instant::now();
        // Ends: it had its time and has moved something, or a long time is over.
        while since.elapsed() < Duration::from_secs(3)
            || subject.cache.stats().migrations == 0 && since.elapsed() < LONG
        {
            subject.cache.compact();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(subject.cache.stats().migrations > 0, "{:?}", subject.cache.stats());
}
