//! Writing through the cache: against a plain vector, against failures, against those who read.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use pinfold::source::{Memory, Source, SourceIdentity};
use pinfold::{Cache, ErrorKind, File, FileOptions, Options};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

const TO_WRITE: FileOptions = FileOptions { direct: None, write: true, create: true };

/// Another source, for a part of what that can do.
#[derive(Debug)]
struct Over {
    inner: Arc<dyn Source>,
    /// Whole blocks of so many bytes only, as of a device.
    block_bytes: usize,
    /// It can be attached again by this name.
    key: Option<&'static str>,
    writable: bool,
}

impl Source for Over {
    fn identity(&self) -> Option<SourceIdentity> {
        self.key.map(|key| SourceIdentity { key: key.into(), version: String::new() })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buf)
    }
    fn is_writable(&self) -> bool {
        self.writable
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        assert!(self.writable, "it is for reading");
        let whole = |bytes: u64| bytes.is_multiple_of(self.block_bytes as u64);
        assert!(whole(offset) && whole(buf.len() as u64));
        self.inner.write_at(offset, buf)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.inner.set_len(bytes)
    }
    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.inner.sync(data_only)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }
    fn alignment(&self) -> usize {
        self.block_bytes
    }
    fn kind(&self) -> Cow<'static, str> {
        "over another".into()
    }
}

fn all_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize + 10];
    let got = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(got);
    assert_eq!(bytes.len() as u64, file.len());
    bytes
}

#[track_caller]
fn assert_same(got: &[u8], expected: &[u8], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differs = got.iter().zip(expected).position(|(got, expected)| got != expected);
    assert_eq!(differs, None, "{what}: the first byte that differs");
}

/// Random operations; `now` gives what the source has, after a sync.
fn random_operations(file: &File, seed: u64, now: impl Fn() -> Vec<u8>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = now();
    let mut guards = Vec::new();
    for round in 0..1500 {
        let what = format!("seed {seed}, round {round}");
        let most = [100, 5000, 40_000, 300_000][random.usize(..4)];
        let mut bytes = vec![0; random.usize(1..most)];
        random.fill(&mut bytes);
        match random.u32(..100) {
            0..45 => {
                let far = if random.u32(..8) == 0 { 200_000 } else { 1 };
                let offset = random.usize(..model.len() + far);
                let offset = if random.bool() { offset / 4096 * 4096 } else { offset };
                file.write_at(&bytes, offset as u64).unwrap();
                let end = offset + bytes.len();
                model.resize(model.len().max(end), 0);
                model[offset..end].copy_from_slice(&bytes);
            }
            45..50 => {
                let begin = random.usize(..=model.len());
                let end = begin + bytes.len();
                file.punch_hole(begin as u64..end as u64).unwrap();
                let end = model.len().min(end);
                model[begin..end].fill(0);
            }
            50..60 => {
                assert_eq!(file.append(&bytes).unwrap(), model.len() as u64, "{what}");
                model.extend(&bytes);
            }
            60..64 => {
                let len = random.usize(..=model.len() + 10_000);
                file.set_len(len as u64).unwrap();
                model.resize(len, 0);
            }
            64..84 => {
                let offset = random.usize(..=model.len());
                let got = file.read_at(&mut bytes, offset as u64).unwrap();
                let end = model.len().min(offset + bytes.len());
                assert_same(&bytes[..got], &model[offset..end], &what);
            }
            84..92 if !model.is_empty() => {
                let page = random.usize(..model.len().div_ceil(4096));
                let guard = file.get(page as u64).unwrap();
                let expected = &model[page * 4096..model.len().min(page * 4096 + 4096)];
                assert_same(&guard, expected, &what);
                guards.push((guard, expected.to_vec()));
                if guards.len() > 8 {
                    guards.remove(random.usize(..8));
                }
            }
            92..94 => {
                file.sync_data().unwrap();
                assert_same(&now(), &model, &what);
            }
            94..96 => drop(file.invalidate(..)),
            96..98 => drop(file.refresh()),
            _ => assert_same(&all_of(file), &model, &what),
        }
        assert_eq!(file.len(), model.len() as u64, "{what}");
        for (guard, expected) in &guards {
            assert_same(guard, expected, &format!("{what}: a guard"));
        }
        if model.len() > 6 << 20 {
            file.set_len(1 << 20).unwrap();
            model.truncate(1 << 20);
        }
    }
    file.sync_all().unwrap();
    assert_same(&now(), &model, "at the end");
}

#[test]
fn files_are_what_was_written() {
    let dir = on_disk();
    for (n, direct) in [None, Some(false)].into_iter().enumerate() {
        let path = dir.path().join(format!("{n}"));
        let cache = Cache::new(Options::new(4 << 20)).unwrap();
        let file = cache.open_with(&path, FileOptions { direct, ..TO_WRITE }).unwrap();
        random_operations(&file, n as u64, || std::fs::read(&path).unwrap());
        drop(file);
        assert_eq!(cache.stats().dirty_bytes, 0);
    }
}

#[test]
fn sources_are_what_was_written() {
    for seed in 0..2 {
        let cache = Cache::new(Options::new(4 << 20)).unwrap();
        let memory = Arc::new(Memory::default());
        let file = cache.attach("memory", memory.clone()).unwrap();
        random_operations(&file, seed, || memory.to_vec());
        let memory = Arc::new(Memory::default());
        let inner = memory.clone();
        let blocks = Over { inner, block_bytes: 512, key: None, writable: true };
        let file = cache.attach("blocks", Arc::new(blocks)).unwrap();
        random_operations(&file, seed, || memory.to_vec());
    }
}

fn fails(operation: Operation, when: When, errno: i32) -> Rule {
    Rule { operation, when, fault: Fault::Error(errno) }
}

/// An empty source that does so, and the source below.
fn faulty(rule: Rule) -> (Arc<Faulty>, Arc<Memory>) {
    let memory = Arc::new(Memory::default());
    let source = Arc::new(Faulty::new(memory.clone()));
    source.add(rule);
    (source, memory)
}

/// What a disk does that loses what it was given: each sync that fails takes back all writes since
/// the last one that did not.
#[derive(Debug, Default)]
struct Forgetful {
    now: Memory,
    durable: Memory,
    fails: AtomicBool,
}

impl Source for Forgetful {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.now.read_at(offset, buf)
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.now.write_at(offset, buf)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.now.set_len(bytes)
    }
    fn sync(&self, _: bool) -> io::Result<()> {
        let fails = self.fails.load(Ordering::Relaxed);
        let (from, to) =
            if fails { (&self.durable, &self.now) } else { (&self.now, &self.durable) };
        let bytes = from.to_vec();
        to.set_len(0)?;
        to.write_at(0, &bytes)?;
        if fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.now.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "forgetful".into()
    }
}

#[test]
fn after_syncs_that_failed_one_that_succeeds_loses_nothing() {
    let disk = Arc::new(Forgetful::default());
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("disk", disk.clone()).unwrap();
    let mut model = vec![0; 300_000];
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..60_u8 {
        for _ in 0..20 {
            let at = random.usize(..model.len() - 5000);
            let bytes = vec![round; random.usize(1..5000)];
            file.write_at(&bytes, at as u64).unwrap();
            model[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        disk.fails.store(round % 5 != 4, Ordering::Relaxed);
        let synced = file.sync_data();
        if round % 5 == 4 {
            synced.unwrap();
            assert_eq!(cache.stats().dirty_bytes, 0);
            let durable = disk.durable.to_vec();
            assert_same(&durable, &model[..durable.len()], "durable");
        } else {
            assert_eq!(synced.unwrap_err().kind(), ErrorKind::Write);
            assert!(cache.stats().dirty_bytes > 0);
            // Memory is short, and what is dirty stays.
            drop(file.invalidate(..));
        }
        assert_same(&all_of(&file), &model[..file.len() as usize], "cached");
    }
}

#[test]
fn what_the_source_does_not_take_stays() {
    // A full disk, for a while.
    let (source, memory) = faulty(fails(Operation::Write, When::Always, 28));
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("full", source.clone()).unwrap();
    let other = cache.attach("other", Arc::new(Memory::new(vec![3; 4 << 20]))).unwrap();
    let bytes: Vec<u8> = (0..3 * MIB).map(|n| (n / PAGE) as u8).collect();
    // The writer is stopped, and told why.
    let mut written = 0;
    let error = loop {
        match file.write_at(&bytes[written..written + 65_536], written as u64) {
            Ok(()) => written += 65_536,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.io_kind()), (ErrorKind::Write, io::ErrorKind::StorageFull));
    assert!(error.to_string().contains("full"), "{error}");
    assert!(written as u64 <= MIB + 65_536, "{written}: more than its share of the budget");
    // Others read all that they want.
    for _ in 0..2 {
        assert_same(&all_of(&other), &vec![3; 4 << 20], "another file");
    }
    assert_eq!(file.sync_data().unwrap_err().kind(), ErrorKind::Write);
    assert_same(&all_of(&file), &bytes[..written], "cached");
    source.heal();
    file.write_at(&bytes[written..], written as u64).unwrap();
    file.sync_data().unwrap();
    assert_same(&memory.to_vec(), &bytes, "written at last");
}

#[test]
fn guards_and_borrows() {
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("memory", Arc::new(Memory::default())).unwrap();
    file.write_at(&[1; 3 * PAGE as usize], 0).unwrap();
    file.sync_data().unwrap();
    let reader = cache.reader().unwrap();
    let guard = file.get(0).unwrap();
    let borrowed = file.borrow(1, &reader).unwrap();
    assert_eq!(cache.stats().borrows_counted, 0, "what is clean is borrowed by a slot");
    for n in 0..2 {
        file.write_at(&[2; 100], n * PAGE).unwrap();
    }
    assert!(guard.iter().chain(&*borrowed).all(|&byte| byte == 1), "they keep their bytes");
    let (after, again) = (file.get(0).unwrap(), file.borrow(1, &reader).unwrap());
    for page in [&*after, &*again] {
        assert!(page[..100].iter().all(|&byte| byte == 2) && page[100] == 1);
    }
    drop((guard, borrowed, after, again));
    // A page that is written to has no borrow by a slot, which no write would look for.
    let borrowed = file.borrow(1, &reader).unwrap();
    file.write_at(&[3; 100], PAGE).unwrap();
    assert!(borrowed[..100].iter().all(|&byte| byte == 2));
    drop(borrowed);
    // Nor after a sync, until it is borrowed by a slot again.
    file.sync_data().unwrap();
    let borrowed = file.borrow(1, &reader).unwrap();
    file.write_at(&[4; 100], PAGE).unwrap();
    assert!(borrowed[..100].iter().all(|&byte| byte == 3));
    drop(borrowed);
}

#[test]
fn pins_see_what_is_written() {
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let source = Arc::new(Memory::default());
    let file = cache.attach("memory", source.clone()).unwrap();
    file.write_at(&[1; 3 * PAGE as usize], 0).unwrap();
    file.sync_data().unwrap();
    let pinned = file.pin(0..2 * PAGE).unwrap();
    let at = pinned.extents().next().unwrap().cast::<u8>();
    let in_pin = |offset| {
        let mut byte = [0];
        pinned.copy_to(&mut byte, offset).unwrap();
        byte[0]
    };
    for byte in 2..5 {
        file.write_at(&[byte], 0).unwrap();
        assert_eq!((in_pin(0), file.get(0).unwrap()[0]), (byte, byte), "one page for both");
        file.sync_data().unwrap();
    }
    // What a guard or a borrow shows does not change, and the pinned page stays in its place.
    let reader = cache.reader().unwrap();
    let (guard, borrowed) = (file.get(0).unwrap(), file.borrow(0, &reader).unwrap());
    let error = file.write_at(&[9], 0).unwrap_err();
    assert_eq!((error.kind(), guard[0], borrowed[0]), (ErrorKind::Busy, 4, 4), "{error}");
    drop(guard);
    assert_eq!(file.write_at(&[9], 0).unwrap_err().kind(), ErrorKind::Busy);
    drop(borrowed);
    file.write_at(&[9], 0).unwrap();
    file.set_len(1).unwrap();
    assert_eq!((in_pin(0), in_pin(1)), (9, 0));
    file.sync_data().unwrap();
    assert_eq!(source.to_vec(), [9]);
    assert_eq!(pinned.extents().next().unwrap().cast::<u8>(), at);
}

/// A source that was changed since it was read shows what was written to it.
#[test]
fn of_a_large_folio_the_changed_pages_are_written() {
    const PAGES: usize = 16;
    let of = |byte: u8| vec![byte; PAGES * PAGE as usize];
    let (source, memory) = faulty(fails(Operation::Sync, When::Nth(1), 5));
    memory.write_at(0, &of(1)).unwrap();
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("memory", source).unwrap();
    assert_eq!(all_of(&file), of(1));
    assert_eq!(file.pin(0..PAGES as u64 * PAGE).unwrap().folios(), 1);
    let written = |pages: &[u64]| {
        let now = memory.to_vec();
        let is_ours = |page: &u64| now[(page * PAGE) as usize] != 2;
        let ours: Vec<_> = (0..PAGES as u64).filter(is_ours).collect();
        assert_eq!(ours, pages);
        memory.write_at(0, &of(2)).unwrap();
    };
    memory.write_at(0, &of(2)).unwrap();
    file.write_at(&[3], 5 * PAGE + 7).unwrap();
    file.write_at(&[3; 2], 8 * PAGE - 1).unwrap();
    file.sync_data().unwrap_err();
    written(&[5, 7, 8]);
    // What the failed sync may have lost is written again, and what was changed since.
    let guard = file.get(3).unwrap();
    file.write_at(&[3], 3 * PAGE).unwrap();
    drop(guard);
    file.sync_data().unwrap();
    written(&[3, 5, 7, 8]);
    // From here on it was clean.
    file.write_at(&[3], 15 * PAGE).unwrap();
    file.sync_data().unwrap();
    written(&[15]);
}

#[test]
fn threads_that_sync_together_share_syncs() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 40;
    let delay = Fault::Delay(std::time::Duration::from_millis(2));
    let rule = Rule { operation: Operation::Sync, when: When::Always, fault: delay };
    let (source, memory) = faulty(rule);
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("slow", source.clone()).unwrap();
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (file, memory, start) = (&file, &memory, &start);
            scope.spawn(move || {
                start.wait();
                for round in 0..ROUNDS {
                    file.write_at(&round.to_ne_bytes(), thread * PAGE).unwrap();
                    file.sync_data().unwrap();
                    let mut now = [0; 8];
                    memory.read_at(thread * PAGE, &mut now).unwrap();
                    assert!(u64::from_ne_bytes(now) >= round, "it was synced before");
                }
            });
        }
    });
    let syncs = source.counts().syncs;
    assert!(syncs < THREADS * ROUNDS / 2, "{syncs} syncs");
}

#[test]
fn the_last_handle_writes_all() {
    let dir = on_disk();
    let path = dir.path().join("file");
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let bytes: Vec<u8> = (0..100_001_u32).map(|n| n as u8).collect();
    let file = cache.open_with(&path, TO_WRITE).unwrap();
    file.write_at(&bytes, 0).unwrap();
    assert_eq!(cache.stats().dirty_bytes, 25 * PAGE);
    drop(file.clone());
    assert_eq!(cache.stats().dirty_bytes, 25 * PAGE);
    drop(file);
    assert_eq!(cache.stats().dirty_bytes, 0);
    assert_same(&std::fs::read(&path).unwrap(), &bytes, "on disk");
    assert_same(&all_of(&cache.open(&path).unwrap()), &bytes, "opened again");
    // A deleted file needs no writing.
    let file = cache.open_with(&path, TO_WRITE).unwrap();
    file.write_at(&[9; 100], 0).unwrap();
    std::fs::remove_file(&path).unwrap();
    drop(file);
    assert_eq!((cache.stats().dirty_bytes, cache.stats().files), (0, 0));
}

#[test]
fn a_file_that_is_open_for_reading_is_opened_for_writing_too() {
    let dir = on_disk();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7; 10_000]).unwrap();
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let reads = cache.open(&path).unwrap();
    assert_same(&all_of(&reads), &[7; 10_000], "before");
    let error = reads.write_at(&[1], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let writes = cache.open_with(&path, TO_WRITE).unwrap();
    writes.write_at(&[8; 10], 9_995).unwrap();
    assert_eq!(
        (reads.len(), &all_of(&reads)[9_990..]),
        (10_005, &[7, 7, 7, 7, 7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8][..])
    );
    assert_eq!(reads.append(&[1]).unwrap_err().kind(), ErrorKind::Invalid);
    drop(writes);
    reads.sync_data().unwrap();
    assert_eq!(std::fs::read(&path).unwrap().len(), 10_005);
    // What is not written yet is not taken for what another program has done.
    let writes = cache.open_with(&path, TO_WRITE).unwrap();
    writes.append(&[1; 20]).unwrap();
    assert_eq!(reads.refresh().unwrap(), pinfold::Changed::No);
    assert_eq!(cache.open(&path).unwrap().len(), 10_025);
    writes.sync_data().unwrap();
    assert_eq!(reads.refresh().unwrap(), pinfold::Changed::No);
    assert_eq!(reads.len(), 10_025);
    let missing = dir.path().join("missing");
    let error = cache.open_with(&missing, FileOptions { create: false, ..TO_WRITE }).unwrap_err();
    assert_eq!(error.io_kind(), io::ErrorKind::NotFound);
}

#[cfg(feature = "map")]
#[test]
fn a_file_is_mapped_or_written_to() {
    let dir = on_disk();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7; 10_000]).unwrap();
    let cache = Cache::new(Options::new(16 << 20)).unwrap();
    let space = pinfold::Space::new(&cache, 0).unwrap();
    let file = cache.open(&path).unwrap();
    let map = space.map_file(&file, 0..10_000).unwrap();
    let error = cache.open_with(&path, TO_WRITE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    drop(map);
    drop(file);
    let file = cache.open_with(&path, TO_WRITE).unwrap();
    file.write_at(&[1], 0).unwrap();
    let error = space.map_file(&file, 0..10_000).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
}

/// More than the whole budget at once, by threads whose pieces stay in one.
#[test]
fn appends_are_in_one_piece() {
    let dir = on_disk();
    let path = dir.path().join("log");
    let cache = Cache::new(Options::new(2 << 20)).unwrap();
    let file = cache.open_with(&path, TO_WRITE).unwrap();
    let bytes = |thread: u8| vec![thread + 1; (3 * MIB) as usize + usize::from(thread)];
    let places: Vec<_> = std::thread::scope(|scope| {
        let append = |thread| (file.append(&bytes(thread)).unwrap(), thread);
        let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || append(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    file.sync_data().unwrap();
    let all = std::fs::read(&path).unwrap();
    assert_eq!(all.len() as u64, 9 * MIB + 3);
    for (offset, thread) in places {
        let bytes = bytes(thread);
        assert_same(&all[offset as usize..][..bytes.len()], &bytes, "a piece");
    }
}

/// Each page has one number in all of its words, whoever reads it, however.
#[test]
fn readers_see_whole_writes() {
    const PAGES: u64 = 64;
    let dir = on_disk();
    let cache = Cache::new(Options::new(2 << 20)).unwrap();
    let file = cache.open_with(dir.path().join("file"), TO_WRITE).unwrap();
    let page_of = |number: u64| number.to_ne_bytes().repeat(512);
    for page in 0..PAGES {
        file.write_at(&page_of(0), page * PAGE).unwrap();
    }
    let other = cache.attach("other", Arc::new(Memory::new(vec![3; 4 << 20]))).unwrap();
    let ends = AtomicBool::new(false);
    let check = |bytes: &[u8]| {
        let words = bytes.as_chunks::<8>().0;
        assert!(words.iter().all(|word| *word == words[0]), "half of a write");
    };
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (file, ends) = (&file, &ends);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for number in 1..8000 {
                    file.write_at(&page_of(number), random.u64(..PAGES) * PAGE).unwrap();
                    if number % 500 == 0 {
                        file.sync_data().unwrap();
                    }
                }
                ends.store(true, Ordering::Relaxed);
            });
        }
        for seed in 2..4 {
            let (file, other, cache, ends, check) = (&file, &other, &cache, &ends, &check);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let reader = cache.reader().unwrap();
                let mut buf = vec![0; PAGE as usize];
                while !ends.load(Ordering::Relaxed) {
                    let page = random.u64(..PAGES);
                    file.read_at(&mut buf, page * PAGE).unwrap();
                    check(&buf);
                    check(&file.get(page).unwrap());
                    let borrowed = file.borrow(page, &reader).unwrap();
                    check(&borrowed);
                    // So that they leave memory.
                    other.read_at(&mut buf, random.u64(..1000) * PAGE).unwrap();
                    check(&borrowed);
                }
            });
        }
    });
}

#[test]
fn what_is_durable_stays_when_another_write_fails() {
    let far = 100 * PAGE..u64::MAX;
    let (source, memory) = faulty(fails(Operation::Write, When::Range(far), 28));
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("half full", source).unwrap();
    file.write_at(&[1; PAGE as usize], 0).unwrap();
    file.write_at(&[2; PAGE as usize], 200 * PAGE).unwrap();
    assert_eq!(file.sync_data().unwrap_err().kind(), ErrorKind::Write);
    assert_eq!((cache.stats().dirty_bytes, memory.to_vec()), (PAGE, vec![1; PAGE as usize]));
    assert!(file.invalidate(..).unwrap() > 0, "what is clean goes, beside what is not");
    file.write_at(&[3], 5).unwrap();
    let page = file.get(0).unwrap();
    assert_eq!((&page[..7], &page[4095..]), (&[1, 1, 1, 1, 1, 3, 1][..], &[1][..]));
}

#[test]
fn a_cut_that_fails_changes_nothing() {
    let memory = Arc::new(Memory::default());
    let source = Arc::new(Faulty::new(memory.clone()));
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("memory", source.clone()).unwrap();
    let bytes: Vec<u8> = (0..10 * PAGE).map(|n| (n / PAGE) as u8 + 1).collect();
    file.write_at(&bytes, 0).unwrap();
    let held = (file.pin(0..PAGE).unwrap(), file.get(0).unwrap());
    assert_eq!(file.set_len(100).unwrap_err().kind(), ErrorKind::Busy);
    assert_same(&all_of(&file), &bytes, "cached");
    drop(held);
    file.sync_data().unwrap();
    assert_same(&memory.to_vec(), &bytes, "written");
    // The source fails: the file is cut, and so is the source by the next call that can do it.
    source.add(fails(Operation::SetLen, When::Nth(1), 5));
    assert_eq!(file.set_len(100).unwrap_err().kind(), ErrorKind::Write);
    assert_same(&all_of(&file), &bytes[..100], "cut");
    file.write_at(&[9], 3 * PAGE).unwrap();
    let mut model = bytes[..100].to_vec();
    model.resize(3 * PAGE as usize, 0);
    model.push(9);
    assert_same(&all_of(&file), &model, "what was cut off does not come back");
    file.sync_data().unwrap();
    assert_same(&memory.to_vec(), &model, "in the source");
    file.set_len(50).unwrap();
    drop(file);
    assert_eq!(memory.to_vec().len(), 50);
}

#[test]
fn two_last_handles_that_go_at_once_write_all() {
    for _ in 0..100 {
        let memory = Arc::new(Memory::default());
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let file = cache.attach("memory", memory.clone()).unwrap();
        file.write_at(&[7; 5000], 0).unwrap();
        let (other, start) = (file.clone(), Barrier::new(2));
        std::thread::scope(|scope| {
            for handle in [file, other] {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    drop(handle);
                });
            }
        });
        assert_eq!(memory.to_vec(), [7; 5000]);
    }
}

#[test]
fn the_source_becomes_as_long_as_the_file() {
    let memory = Arc::new(Memory::default());
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("memory", memory.clone()).unwrap();
    let others = cache.attach("others", Arc::new(Memory::new(vec![3; 1 << 20]))).unwrap();
    let guards: Vec<_> = (0..256).map_while(|page| others.get(page).ok()).collect();
    let error = file.write_at(&[2], 50_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error}");
    assert_eq!(file.len(), 50_000, "nothing was written there");
    drop(guards);
    file.sync_data().unwrap();
    assert_same(&memory.to_vec(), &all_of(&file), "what the file has, zeros included");
}

#[test]
fn what_the_last_handle_could_not_write_is_written_later() {
    for how in 0..3 {
        let (source, memory) = faulty(fails(Operation::Write, When::Always, 28));
        let cache = Cache::new(Options::new(4 << 20)).unwrap();
        let attach = |writable| {
            let (inner, key) = (source.clone(), Some("object"));
            let object = Over { inner, block_bytes: 1, key, writable };
            cache.attach("object", Arc::new(object)).unwrap()
        };
        let file = attach(true);
        file.write_at(&[7; 5000], 0).unwrap();
        drop(file);
        assert_eq!(cache.stats().dirty_bytes, 2 * PAGE, "it stays");
        assert_eq!(cache.sync().unwrap_err().kind(), ErrorKind::Write);
        let again = attach(how == 1);
        assert_same(&all_of(&again), &[7; 5000], "opened again");
        source.heal();
        match how {
            0 => drop(again),
            1 => again.sync_data().unwrap(),
            _ => cache.sync().unwrap(),
        }
        assert_eq!((cache.stats().dirty_bytes, memory.to_vec()), (0, vec![7; 5000]));
    }
}

#[test]
fn a_sync_hides_no_change_by_others() {
    let dir = on_disk();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![1; 300_000]).unwrap();
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.open_with(&path, TO_WRITE).unwrap();
    assert_same(&all_of(&file), &vec![1; 300_000], "before");
    pinfold_testing::times::settle(&std::fs::metadata(&path).unwrap());
    std::fs::write(&path, vec![2; 300_000]).unwrap();
    file.write_at(&[3], 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(file.refresh().unwrap(), pinfold::Changed::Rewritten);
    assert_eq!(all_of(&file)[200_000], 2);
}

#[test]
fn what_is_synced_beside_a_write_that_fails_is_the_sources() {
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let source = Arc::new(Faulty::new(Arc::new(Memory::default())));
    let file = cache.attach("partly", source.clone()).unwrap();
    for bytes in [PAGE as usize; 3].into_iter().chain([10]) {
        file.append(&vec![7; bytes]).unwrap(); // a folio each
    }
    let when = When::Range(3 * PAGE..4 * PAGE);
    source.add(Rule { operation: Operation::Write, when, fault: Fault::Error(5) });
    file.sync_data().unwrap_err();
    // The first page is clean, and leaves; then a part of it is written.
    assert_eq!(file.invalidate(..PAGE).unwrap(), PAGE);
    file.write_at(b"x", 10).unwrap();
    let mut got = [0; 12];
    file.read_at(&mut got, 0).unwrap();
    assert_eq!(&got, b"\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07x\x07");
}

/// A file of one folio of two pages that is cut to `bytes` and then split: the second piece lies
/// behind the end.
fn split_behind_its_end(bytes: u64) -> (File, Arc<Memory>) {
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let memory = Arc::new(Memory::default());
    let file = cache.attach("split", memory.clone()).unwrap();
    file.append(&[7; 2 * PAGE as usize]).unwrap();
    file.sync_data().unwrap();
    file.set_len(bytes).unwrap();
    assert!(file.split(0..2 * PAGE) > 0, "it is one folio");
    (file, memory)
}

#[test]
fn the_end_is_written_before_pieces_behind_it() {
    let (file, memory) = split_behind_its_end(100);
    file.write_at(b"end", 97).unwrap();
    file.sync_data().unwrap();
    assert_eq!(&memory.to_vec()[95..], b"\x07\x07end");
}

#[test]
fn a_file_grows_over_pieces_behind_its_end() {
    let (file, memory) = split_behind_its_end(100);
    file.set_len(PAGE + 1000).unwrap();
    file.write_at(b"x", PAGE + 100).unwrap();
    assert_eq!(all_of(&file).len() as u64, PAGE + 1000);
    file.sync_data().unwrap();
    assert_same(&memory.to_vec(), &all_of(&file), "the source");
}

#[test]
fn a_page_changes_at_once_wherever_a_write_begins() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("pages", Arc::new(Memory::new(vec![0; 100_000]))).unwrap();
    let (pages, ended) = (1..24, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in (1..=255).cycle().take(5_000) {
                file.write_at(&vec![n; 99_000], 500).unwrap();
            }
            ended.store(true, Ordering::Relaxed);
        });
        let mut page_bytes = [0; PAGE as usize];
        while !ended.load(Ordering::Relaxed) {
            for page in pages.clone() {
                file.read_at(&mut page_bytes, page * PAGE).unwrap();
                let first = page_bytes[0];
                assert!(page_bytes.iter().all(|it| *it == first), "page {page}");
            }
        }
    });
}

#[test]
fn a_length_that_was_set_is_synced() {
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let source = Arc::new(Faulty::new(Arc::new(Memory::new(vec![7; 10_000]))));
    let file = cache.attach("cut", source.clone()).unwrap();
    file.set_len(100).unwrap();
    cache.sync().unwrap();
    assert_eq!(source.counts().syncs, 1);
    cache.sync().unwrap();
    assert_eq!(source.counts().syncs, 1, "nothing has changed");
    file.set_len(20_000).unwrap();
    drop(file);
    assert_eq!(source.counts().syncs, 2, "the last handle syncs");
}

#[test]
fn a_file_that_nobody_writes_to_needs_no_source_that_syncs() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let inner = Arc::new(Faulty::new(Arc::new(Memory::default())));
    inner.add(fails(Operation::Sync, When::Always, 5));
    let reads = Over { inner, block_bytes: 1, key: None, writable: false };
    let file = cache.attach("for reading", Arc::new(reads)).unwrap();
    file.sync_data().unwrap();
    assert_eq!(file.set_len(1).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_closed_file_whose_length_was_set_at_last_is_forgotten() {
    let source = Arc::new(Faulty::new(Arc::new(Memory::new(vec![7; 5000]))));
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let (inner, key) = (source.clone(), Some("object"));
    let object = Over { inner, block_bytes: 1, key, writable: true };
    let file = cache.attach("object", Arc::new(object)).unwrap();
    source.add(fails(Operation::SetLen, When::Always, 5));
    let error = file.set_len(0).unwrap_err();
    assert!(error.to_string().contains("to 0 bytes"), "{error}");
    drop(file);
    assert_eq!(cache.stats().files, 1, "its length is to be set");
    source.heal();
    cache.sync().unwrap();
    assert_eq!((cache.stats().files, source.len_bytes().unwrap()), (0, 0));
}

#[test]
fn a_hole_gives_space_back() {
    use std::os::unix::fs::MetadataExt;
    let dir = on_disk();
    let path = dir.path().join("file");
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let file = cache.open_with(&path, TO_WRITE).unwrap();
    let mut model = vec![7; MIB as usize + 100];
    file.write_at(&model, 0).unwrap();
    let guard = file.get(10).unwrap();
    let reader = cache.reader().unwrap();
    let borrowed = file.borrow(11, &reader).unwrap();
    file.sync_all().unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let before = blocks();
    file.punch_hole(PAGE + 50..100 * PAGE + 50).unwrap();
    model[PAGE as usize + 50..100 * PAGE as usize + 50].fill(0);
    assert_same(&all_of(&file), &model, "cached");
    assert!(guard.iter().chain(&*borrowed).all(|&byte| byte == 7), "they keep their bytes");
    file.sync_all().unwrap();
    assert_same(&std::fs::read(&path).unwrap(), &model, "on disk");
    assert!(blocks() + 90 * 8 <= before, "{} of {before} blocks are left", blocks());
    // Behind the end nothing is made.
    file.punch_hole(MIB..).unwrap();
    model[MIB as usize..].fill(0);
    file.punch_hole(10 * MIB..20 * MIB).unwrap();
    assert_same(&all_of(&file), &model, "as long as before");
    drop((guard, borrowed));
    let error = file.punch_hole(Range { start: 5, end: 2 }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    drop(file);
    let error = cache.open(&path).unwrap().punch_hole(..).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn a_hole_that_the_source_does_not_punch_is_zeros() {
    let (source, memory) = faulty(fails(Operation::PunchHole, When::Nth(1), 95));
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("memory", source.clone()).unwrap();
    file.write_at(&vec![7; 20 * PAGE as usize], 0).unwrap();
    file.sync_data().unwrap();
    let mut model = vec![7; 20 * PAGE as usize];
    for (hole, dirty) in [(2 * PAGE..5 * PAGE, true), (10 * PAGE..15 * PAGE, false)] {
        file.punch_hole(hole.clone()).unwrap();
        model[hole.start as usize..hole.end as usize].fill(0);
        assert_eq!(cache.stats().dirty_bytes > 0, dirty);
        assert_same(&all_of(&file), &model, "cached");
        cache.sync().unwrap();
        assert_same(&memory.to_vec(), &model, "in the source");
    }
    assert_eq!((source.counts().holes, source.counts().syncs), (2, 3), "each hole is synced");
}

/// Bytes in memory; a hole or a write waits there, if it is told to, when it is about to return or
/// begins.
#[derive(Debug)]
struct Waits {
    inner: Arc<Memory>,
    hole: AtomicBool,
    write: AtomicBool,
    entered: Barrier,
    leaves: Barrier,
}

impl Waits {
    fn new(bytes: usize) -> Arc<Self> {
        let inner = Arc::new(Memory::new(vec![7; bytes]));
        let (hole, write) = Default::default();
        let (entered, leaves) = (Barrier::new(2), Barrier::new(2));
        Arc::new(Waits { inner, hole, write, entered, leaves })
    }

    fn wait(&self, is_told: &AtomicBool) {
        if is_told.swap(false, Ordering::Relaxed) {
            self.entered.wait();
            self.leaves.wait();
        }
    }
}

impl Source for Waits {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buf)
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.wait(&self.write);
        self.inner.write_at(offset, buf)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.inner.set_len(bytes)
    }
    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.punch_hole(range)?;
        self.wait(&self.hole);
        Ok(())
    }
    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.inner.sync(data_only)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "waits".into()
    }
}

#[test]
fn a_write_after_zeros_were_seen_is_not_lost_to_the_hole() {
    let source = Waits::new(4 * PAGE as usize);
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("waits", source.clone()).unwrap();
    source.hole.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| file.punch_hole(..).unwrap());
        source.entered.wait();
        let mut seen = [9; 8];
        file.read_at(&mut seen, 0).unwrap();
        assert_eq!(seen, [0; 8]);
        scope.spawn(|| file.write_at(&[5; 8], 0).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        source.leaves.wait();
    });
    let mut model = vec![0; 4 * PAGE as usize];
    model[..8].fill(5);
    assert_same(&all_of(&file), &model, "cached");
    file.sync_data().unwrap();
    assert_same(&source.inner.to_vec(), &model, "in the source");
}

#[test]
fn a_hole_is_punched_after_what_is_on_its_way() {
    let source = Waits::new(4 * PAGE as usize);
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("waits", source.clone()).unwrap();
    file.write_at(&[5; 2 * PAGE as usize], PAGE).unwrap();
    source.write.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| file.sync_data().unwrap());
        source.entered.wait();
        scope.spawn(|| file.punch_hole(..3 * PAGE).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        source.leaves.wait();
    });
    let mut model = vec![0; 4 * PAGE as usize];
    model[3 * PAGE as usize..].fill(7);
    assert_same(&all_of(&file), &model, "cached");
    file.sync_data().unwrap();
    assert_same(&source.inner.to_vec(), &model, "in the source");
}

#[test]
fn a_sync_of_a_range_writes_nothing_else() {
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let source = Arc::new(Faulty::new(Arc::new(Memory::new(vec![7; 64 * PAGE as usize]))));
    let file = cache.attach("ranges", source.clone()).unwrap();
    let in_source = |page: u64| {
        let mut byte = [0];
        source.read_at(page * PAGE, &mut byte).unwrap();
        byte[0]
    };
    for page in (0..64).step_by(2) {
        file.write_at(&[1], page * PAGE).unwrap();
    }
    let dirty = cache.stats().dirty_bytes;
    file.sync_range(10 * PAGE + 5..=12 * PAGE).unwrap();
    let pages: Vec<u64> = (0..64).filter(|&page| in_source(page) == 1).collect();
    assert_eq!(pages, [10, 12]);
    assert_eq!((cache.stats().dirty_bytes, source.counts().syncs), (dirty - 2 * PAGE, 1));
    // What fails is dirty again, and what is outside stays as it is.
    source.add(fails(Operation::Sync, When::Nth(1), 5));
    assert_eq!(file.sync_range(..2 * PAGE).unwrap_err().kind(), ErrorKind::Write);
    assert_eq!(cache.stats().dirty_bytes, dirty - 2 * PAGE);
    // The length is durable, at least as far as the range reaches.
    file.set_len(80 * PAGE).unwrap();
    file.write_at(&[1], 99 * PAGE).unwrap();
    file.sync_range(81 * PAGE..90 * PAGE).unwrap();
    assert_eq!(source.len_bytes().unwrap(), 99 * PAGE + 1);
    let (start, end) = (3, 1);
    assert_eq!(file.sync_range(start..end).unwrap_err().kind(), ErrorKind::Invalid);
    file.sync_data().unwrap();
    assert_eq!((cache.stats().dirty_bytes, source.len_bytes().unwrap()), (0, 99 * PAGE + 1));
    assert!((0..64).all(|page| in_source(page) == if page % 2 == 0 { 1 } else { 7 }));
}

#[test]
fn a_sync_of_a_range_brings_its_length_whoever_writes_meanwhile() {
    let source = Waits::new(0);
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("waits", source.clone()).unwrap();
    file.write_at(&[1], 25 * PAGE).unwrap();
    file.write_at(&[1], 0).unwrap();
    source.write.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| file.sync_range(..16 * PAGE).unwrap());
        source.entered.wait();
        file.write_at(&[2], 10 * PAGE).unwrap();
        source.leaves.wait();
    });
    assert!(source.len_bytes().unwrap() >= 16 * PAGE);
}

#[test]
fn a_sync_of_a_range_is_none_of_all() {
    let delay = Fault::Delay(std::time::Duration::from_millis(20));
    let rule = Rule { operation: Operation::Sync, when: When::Always, fault: delay };
    let (source, memory) = faulty(rule);
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let file = cache.attach("slow", source).unwrap();
    file.write_at(&[0; 20 * 512], 0).unwrap();
    for round in 1..=20 {
        std::thread::scope(|scope| {
            scope.spawn(|| file.sync_data().unwrap());
            std::thread::sleep(std::time::Duration::from_millis(5));
            file.write_at(&[round], 2 * PAGE).unwrap();
            scope.spawn(|| file.sync_range(..PAGE).unwrap());
            // Both wait for the first; mostly the one that came first goes on first.
            std::thread::sleep(std::time::Duration::from_millis(5));
            file.sync_data().unwrap();
        });
        assert_eq!(memory.to_vec()[2 * PAGE as usize], round, "round {round}");
    }
}

#[test]
fn a_sync_of_the_cache_says_what_is_not_durable() {
    let cache = Cache::new(Options::new(4 << 20)).unwrap();
    let attach = |name: &str, rule: Option<Rule>| {
        let source = Arc::new(Faulty::new(Arc::new(Memory::default())));
        if let Some(rule) = rule {
            source.add(rule);
        }
        let file = cache.attach(name, source.clone()).unwrap();
        file.write_at(&[1; 5000], 0).unwrap();
        (file, source)
    };
    let full = fails(Operation::Write, When::Always, 28);
    let (_first, source) = attach("the first", Some(full.clone()));
    let _good = attach("the good one", None);
    let error = cache.sync().unwrap_err().to_string();
    assert!(error.starts_with("cannot write 4096 bytes at 0 of the first: No space"), "{error}");
    assert!(!error.contains("more"), "{error}");
    let others = [attach("second", Some(full.clone())), attach("third", Some(full))];
    let error = cache.sync().unwrap_err();
    assert_eq!((error.kind(), error.io_kind()), (ErrorKind::Write, io::ErrorKind::StorageFull));
    assert!(
        error.to_string().ends_with("nor can 2 more of the cache's files be synced"),
        "{error}"
    );
    assert_eq!(cache.stats().dirty_bytes, 3 * 2 * PAGE);
    for source in [&source, &others[0].1, &others[1].1] {
        source.heal();
    }
    cache.sync().unwrap();
    assert_eq!(cache.stats().dirty_bytes, 0);
}

/// Tests that fail with a mutant of `mutant.rs` on.
#[cfg(feature = "mutants")]
const MUTANTS: &[(&str, &str)] = &[
    ("after_syncs_that_failed_one_that_succeeds_loses_nothing", "SyncFailedIsClean"),
    ("what_the_source_does_not_take_stays", "FailedStaysWritten"),
    ("threads_that_sync_together_share_syncs", "SyncOfOthers"),
    ("files_are_what_was_written", "DirtUnmarked"),
    ("guards_and_borrows", "BorrowByCount"),
    ("guards_and_borrows", "WriteUnderBorrow"),
    ("pins_see_what_is_written", "ChangePinnedAnyCount"),
    ("a_sync_of_a_range_is_none_of_all", "RangeIsAll"),
    ("a_write_after_zeros_were_seen_is_not_lost_to_the_hole", "HoleUnguarded"),
    ("a_hole_is_punched_after_what_is_on_its_way", "HoleTakesNoTurn"),
    ("of_a_large_folio_the_changed_pages_are_written", "ChangeUnnoted"),
];

#[cfg(feature = "mutants")]
#[test]
fn each_fails_with_its_mutant() {
    crate::caught::each_is_caught(module_path!(), MUTANTS, 1);
}
