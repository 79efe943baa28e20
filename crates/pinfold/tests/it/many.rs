//! Many pages at once, and calls that never wait: what they give, in which order, and what comes of
//! errors, of pages that are wanted twice, and of too little memory.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use fastrand::Rng;
use pinfold::source::{Extent, Memory, Request, Source, Start};
use pinfold::{Cache, Error, ErrorKind, File, Hint, Options, ReadAt};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::told::{number_after, number_before};

const BUDGET_MIN_BYTES: u64 = *pinfold::Options::BUDGET_BYTES.start();

/// Where a request begins, and how many bytes it wants.
fn asked(request: &Request) -> (u64, usize) {
    (request.offset(), request.extents().iter().map(Extent::bytes).sum())
}

const PAGE: usize = 4096;

/// Of the last page, a part.
const BYTES: usize = 1_000_000;
const PAGES: u64 = BYTES.div_ceil(PAGE) as u64;

fn pattern() -> Pattern {
    Pattern::new(71, 0)
}

/// A cache with a file.
struct Subject {
    cache: Cache,
    file: File,
}

impl Subject {
    fn new(budget_bytes: u64) -> Self {
        let cache = Cache::new(Options::new(budget_bytes)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(pattern().to_vec(BYTES)))).unwrap();
        Subject { cache, file }
    }
}

/// A file of which pages come alone.
fn scattered(budget_bytes: u64) -> Subject {
    let subject = Subject::new(budget_bytes);
    subject.file.advise(0..1, Hint::Random).unwrap();
    subject
}

fn file_of(source: Arc<dyn Source>, options: Options) -> (Cache, File) {
    let cache = Cache::new(options).unwrap();
    let file = cache.attach("file", source).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    (cache, file)
}

/// The bytes that a page has of the file.
fn page_bytes(page: u64) -> usize {
    BYTES.saturating_sub(page as usize * PAGE).min(PAGE)
}

/// A source that keeps what is asked of it, with a queue of its own.
#[derive(Debug, Default)]
struct Device {
    bytes: Vec<u8>,
    state: Mutex<Asked>,
    changed: Condvar,
    /// Takes no request.
    full: AtomicBool,
    /// Carries out no request.
    stuck: AtomicBool,
}

#[derive(Debug, Default)]
struct Asked {
    /// Offset and bytes of each read that a thread of the cache's made.
    calls: Vec<(u64, usize)>,
    /// The same of requests, for each call of `start`.
    starts: Vec<Vec<(u64, usize)>>,
    kept: Vec<Request>,
}

impl Device {
    fn new() -> Arc<Self> {
        Arc::new(Device { bytes: pattern().to_vec(BYTES), ..Device::default() })
    }

    fn read(&self, offset: u64, extents: &[Extent<'_>]) -> usize {
        let (mut from, mut done) = (self.bytes.len().min(offset as usize), 0);
        for extent in extents {
            let bytes = extent.bytes().min(self.bytes.len() - from);
            extent.store(0, &self.bytes[from..from + bytes]);
            from += bytes;
            done += bytes;
        }
        done
    }

    /// Carries out what was kept, and from now on everything.
    fn go_on(&self) {
        self.stuck.store(false, Ordering::SeqCst);
        let kept = std::mem::take(&mut self.state.lock().unwrap().kept);
        for request in kept {
            self.finish(request);
        }
    }

    fn finish(&self, request: Request) {
        let got = self.read(request.offset(), request.extents());
        request.finish(Ok(got));
    }

    fn asked(&self) -> Asked {
        let mut asked = std::mem::take(&mut *self.state.lock().unwrap());
        asked.starts.iter_mut().for_each(|start| start.sort_unstable());
        asked
    }
}

/// A device with threads that carry out its requests.
#[derive(Debug)]
struct Running(Arc<Device>);

impl Source for Running {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read_extents_at(offset, &[Extent::of(buf)])
    }
    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        let bytes = extents.iter().map(Extent::bytes).sum();
        self.0.state.lock().unwrap().calls.push((offset, bytes));
        Ok(self.0.read(offset, extents))
    }
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        let mut state = self.0.state.lock().unwrap();
        state.starts.push(batch.iter().map(asked).collect());
        if self.0.full.load(Ordering::SeqCst) {
            return Start::Full;
        }
        if self.0.stuck.load(Ordering::SeqCst) {
            state.kept.append(batch);
            self.0.changed.notify_all();
            return Start::Started;
        }
        let (device, taken) = (self.0.clone(), std::mem::take(batch));
        std::thread::spawn(move || taken.into_iter().rev().for_each(|it| device.finish(it)));
        Start::Started
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.bytes.len() as u64)
    }
    fn kind(&self) -> Cow<'static, str> {
        "device".into()
    }
}

fn device() -> (Arc<Device>, Cache, File) {
    let device = Device::new();
    let (cache, file) = file_of(Arc::new(Running(device.clone())), Options::new(8 << 20));
    (device, cache, file)
}

fn at(page: u64) -> u64 {
    page * PAGE as u64
}

#[test]
fn reads_in_a_batch_are_what_single_reads_are() {
    for (budget_bytes, seed) in [(8 << 20, 1), (BUDGET_MIN_BYTES, 2), (BUDGET_MIN_BYTES, 3)] {
        let subject = Subject::new(budget_bytes);
        let mut rng = Rng::with_seed(seed);
        for _ in 0..200 {
            let number = rng.usize(0..80);
            let longest = [100, 5000, 70_000][rng.usize(0..3)];
            let reads = (0..number)
                .map(|_| (rng.u64(0..BYTES as u64 + 9000), vec![0xee; rng.usize(0..longest)]));
            let mut reads: Vec<_> = reads.collect();
            let mut batch: Vec<_> =
                reads.iter_mut().map(|(offset, buf)| ReadAt::new(*offset, buf)).collect();
            subject.file.read_many(&mut batch).unwrap();
            let results: Vec<_> = batch.into_iter().map(|read| read.result.unwrap()).collect();
            for ((offset, buf), got) in reads.iter().zip(results) {
                let left = BYTES.saturating_sub(*offset as usize);
                assert_eq!(got, buf.len().min(left), "{} at {offset}", buf.len());
                pattern().check(*offset, &buf[..got]).unwrap_or_else(|wrong| panic!("{wrong}"));
            }
        }
    }
}

#[test]
fn guards_come_in_the_order_of_the_pages() {
    for budget_bytes in [8 << 20, BUDGET_MIN_BYTES] {
        let subject = scattered(budget_bytes);
        let reader = subject.cache.reader().unwrap();
        let mut rng = Rng::with_seed(4);
        for _ in 0..300 {
            // Pages that are wanted twice among them.
            let pages: Vec<_> = (0..rng.u64(0..50)).map(|_| rng.u64(0..PAGES)).collect();
            let got = subject.file.get_many(&pages).unwrap();
            let borrowed = subject.file.borrow_many(&pages, &reader).unwrap();
            assert_eq!((got.len(), borrowed.len()), (pages.len(), pages.len()));
            for ((&page, got), borrowed) in pages.iter().zip(&got).zip(&borrowed) {
                assert_eq!((got.len(), borrowed.len()), (page_bytes(page), page_bytes(page)));
                pattern().check(at(page), got).unwrap();
                pattern().check(at(page), borrowed).unwrap();
            }
        }
    }
}

#[test]
fn nothing_comes_of_an_empty_batch() {
    let (device, cache, file) = device();
    let reader = cache.reader().unwrap();
    file.read_many(&mut []).unwrap();
    assert!(file.get_many(&[]).unwrap().is_empty());
    assert!(file.borrow_many(&[], &reader).unwrap().is_empty());
    file.prefetch(&[]).unwrap();
    let Asked { calls, starts, .. } = device.asked();
    assert!(calls.is_empty() && starts.iter().all(Vec::is_empty), "{calls:?} {starts:?}");
}

#[test]
fn what_is_absent_is_one_submission_and_a_read_of_the_callers() {
    let (device, cache, file) = device();
    // Twice the same page, two neighbours, and one that is there.
    file.read_at(&mut [0; 8], at(30)).unwrap();
    device.asked();
    let pages = [40, 9, 30, 8, 20, 40, 60];
    let got = file.get_many(&pages).unwrap();
    for (&page, got) in pages.iter().zip(&got) {
        pattern().check(at(page), got).unwrap();
    }
    let Asked { calls, starts, .. } = device.asked();
    assert_eq!(calls, [(at(8), 2 * PAGE)], "the first group, by this thread");
    assert_eq!(starts, [[(at(20), PAGE), (at(40), PAGE), (at(60), PAGE)]]);
    // One folio of two pages, three of one, and the one before.
    assert_eq!(cache.stats().misses, 5);
    drop(got);

    let mut bufs = [[0; 10]; 4];
    let offsets = [at(103) - 5, at(70), at(99) + 7, at(30)];
    let mut reads: Vec<_> =
        bufs.iter_mut().zip(offsets).map(|(buf, offset)| ReadAt::new(offset, buf)).collect();
    file.read_many(&mut reads).unwrap();
    assert!(reads.iter().all(|read| matches!(read.result, Ok(10))));
    for (buf, offset) in bufs.iter().zip(offsets) {
        pattern().check(offset, buf).unwrap();
    }
    let Asked { calls, starts, .. } = device.asked();
    assert_eq!(calls, [(at(70), PAGE)]);
    assert_eq!(starts, [[(at(99), PAGE), (at(102), 2 * PAGE)]]);
    assert_eq!(cache.stats().misses, 5 + 3);
}

#[test]
fn what_the_source_does_not_take_is_read_by_the_caller() {
    let (device, cache, file) = device();
    device.full.store(true, Ordering::SeqCst);
    let reader = cache.reader().unwrap();
    let pages = [3, 50, 7, 90];
    for (&page, got) in pages.iter().zip(&file.borrow_many(&pages, &reader).unwrap()) {
        pattern().check(at(page), got).unwrap();
    }
    // By this thread, and by the cache's own.
    let mut calls = device.asked().calls;
    calls.sort_unstable();
    assert_eq!(calls, [3, 7, 50, 90].map(|page| (at(page), PAGE)), "each once");
    assert_eq!(cache.stats().misses, 4);
    // A prefetch does without.
    file.prefetch(&[100, 101]).unwrap();
    assert!(file.try_get(100).unwrap().is_none());
    assert!(device.asked().calls.is_empty());
    assert_eq!(cache.stats().fills_in_flight, 0);
}

#[test]
fn a_prefetch_waits_for_nothing_and_is_no_miss() {
    let (device, cache, file) = device();
    device.stuck.store(true, Ordering::SeqCst);
    file.prefetch(&[5, 80, 6, 5, 1 << 40, u64::MAX, PAGES - 1]).unwrap();
    file.prefetch(&[6, 80]).unwrap(); // they are on their way
    let asked = device.state.lock().unwrap().starts.concat();
    // Pages 5 and 6 are two folios, as 5 is odd.
    assert_eq!(asked, [(at(5), 2 * PAGE), (at(80), PAGE), (at(PAGES - 1), PAGE)]);
    let mut buf = [0; 8];
    assert_eq!(file.try_read_at(&mut buf, at(5)).unwrap(), None);
    assert!(file.try_get(80).unwrap().is_none());
    let stats = cache.stats();
    assert_eq!((stats.readahead, stats.fills_in_flight, stats.misses), (4, 4, 0));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pattern().check(at(80), &file.get(80).unwrap()).unwrap());
        // Ends: the other thread has nothing else to do.
        while cache.stats().waits == 0 {
            std::thread::yield_now();
        }
        device.go_on();
        waits.join().unwrap();
    });
    assert_eq!(file.try_read_at(&mut buf, at(5)).unwrap(), Some(8));
    pattern().check(at(5), &buf).unwrap();
    assert_eq!(file.try_get(PAGES - 1).unwrap().unwrap().len(), page_bytes(PAGES - 1));
    let stats = cache.stats();
    assert_eq!((stats.readahead, stats.fills_in_flight, stats.misses), (4, 0, 0));
    assert!(device.asked().calls.is_empty(), "no thread read for itself");
}

#[test]
fn advice_is_followed_in_pieces_even_if_nothing_is_read_ahead() {
    let device = Device::new();
    let options = Options { readahead_max_bytes: 0, ..Options::new(32 << 20) };
    let (cache, file) = file_of(Arc::new(Running(device.clone())), options);
    file.read_at(&mut [0; 8], at(20)).unwrap();
    device.asked();
    file.advise(at(3)..at(50), Hint::WillNeed).unwrap();
    // Up to multiples of 64 KiB, around the page that is there.
    let pieces = [(3, 13), (16, 4), (21, 11), (32, 16), (48, 2)];
    let pieces = pieces.map(|(page, pages)| (at(page), pages * PAGE));
    assert_eq!(device.asked().starts, [pieces]);
    while cache.stats().fills_in_flight > 0 {
        std::thread::yield_now();
    }
    for page in 3..50 {
        pattern().check(at(page), &file.try_get(page).unwrap().unwrap()).unwrap();
    }
    file.advise(0..at(60), Hint::WillNeed).unwrap();
    let asked = device.asked().starts.concat();
    assert_eq!(asked, [(0, 3), (50, 10)].map(|(page, pages)| (at(page), pages * PAGE)));
    file.advise(at(PAGES)..at(PAGES + 9), Hint::WillNeed).unwrap();
    assert_eq!(device.asked().starts.concat(), []);
}

#[test]
fn an_error_in_one_of_many_is_that_ones() {
    let faulty = Arc::new(Faulty::new(Arc::new(Memory::new(pattern().to_vec(BYTES)))));
    let (cache, file) = file_of(faulty.clone(), Options::new(8 << 20));
    let reader = cache.reader().unwrap();
    let bad = at(50)..at(51);
    let rule = Rule { operation: Operation::Read, when: When::Range(bad), fault: Fault::Error(5) };
    faulty.add(rule);
    for pages in [[50, 1, 2], [3, 50, 4], [5, 6, 50], [50, 50, 1]] {
        let mut bufs = [[0; 8]; 3];
        let mut reads: Vec<_> =
            bufs.iter_mut().zip(pages).map(|(buf, page)| ReadAt::new(at(page), buf)).collect();
        let error = file.read_many(&mut reads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
        assert_eq!(number_after(&error, " at "), at(50), "{error}");
        for (read, page) in reads.iter().zip(pages) {
            match read.result.as_ref().map_err(Error::kind) {
                Ok(8) => pattern().check(at(page), read.buf).unwrap(),
                Err(ErrorKind::Read) if page == 50 => {}
                other => panic!("page {page}: {other:?}"),
            }
        }
        file.invalidate(0..at(8)).unwrap();
        let error = file.get_many(&pages).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
        assert_eq!(number_after(&error, " at "), at(50), "{error}");
        file.invalidate(0..at(8)).unwrap();
        let error = file.borrow_many(&pages, &reader).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
        assert_eq!(number_after(&error, " at "), at(50), "{error}");
        assert!(format!("{reader:?}").contains("borrowed: 0"), "none stays borrowed");
        file.invalidate(0..at(8)).unwrap();
        // What the batch had begun beside the page that failed comes, for nobody, and the thread
        // that brought it lets go of it.
        let since = Instant::now();
        while cache.stats().resident_bytes > 0 && since.elapsed().as_secs() < 30 {
            std::thread::yield_now();
        }
        assert_eq!(cache.stats().resident_bytes, 0, "none stays held");
    }
    // Nothing is kept of it.
    faulty.heal();
    assert_eq!(file.get_many(&[50, 1]).unwrap().len(), 2);
}

#[test]
fn a_read_of_no_bytes_reads_no_page() {
    let subject = scattered(8 << 20);
    assert_eq!(subject.file.read_at(&mut [], 5000).unwrap(), 0);
    let mut reads = [ReadAt::new(5000, &mut []), ReadAt::new(at(9), &mut [])];
    subject.file.read_many(&mut reads).unwrap();
    assert!(reads.iter().all(|read| matches!(read.result, Ok(0))), "{reads:?}");
    assert_eq!(subject.cache.stats().misses, 0);
}

#[test]
fn pages_behind_the_end_are_the_single_calls_error() {
    let subject = scattered(8 << 20);
    let reader = subject.cache.reader().unwrap();
    for page in [PAGES, 1 << 40, 1 << 52, u64::MAX] {
        let beyond = |error: &Error| {
            error.kind() == ErrorKind::BeyondEnd && number_after(error, "no page ") == page
        };
        for pages in [vec![page], vec![0, page], vec![page, u64::MAX, 7]] {
            assert!(beyond(&subject.file.get_many(&pages).unwrap_err()));
            assert!(beyond(&subject.file.borrow_many(&pages, &reader).unwrap_err()));
        }
        assert!(beyond(&subject.file.try_get(page).unwrap_err()));
        assert!(beyond(&subject.file.try_borrow(page, &reader).unwrap_err()));
    }
    let (mut far, mut near, mut too_far) = ([0; 8], [0; 8], [0; 8]);
    let mut reads = [
        ReadAt::new(1 << 60, &mut far),
        ReadAt::new(0, &mut near),
        ReadAt::new(i64::MAX as u64, &mut too_far),
    ];
    let error = subject.file.read_many(&mut reads).unwrap_err();
    assert_eq!((error.kind(), number_before(&error, " bytes at ")), (ErrorKind::Invalid, 8));
    let [far, near, too_far] = reads.map(|read| read.result);
    assert!(matches!((far, near), (Ok(0), Ok(8))));
    assert!(matches!(&too_far, Err(error) if error.kind() == ErrorKind::Invalid));
    let mut buf = [0; 8];
    assert_eq!(subject.file.try_read_at(&mut buf, 1 << 60).unwrap(), Some(0));
    let error = subject.file.try_read_at(&mut buf, u64::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
}

#[test]
fn the_reader_of_another_cache_is_refused() {
    let (subject, other) = (scattered(8 << 20), scattered(8 << 20));
    let reader = other.cache.reader().unwrap();
    drop(subject.file.get(1).unwrap());
    for pages in [&[1][..], &[1, 2], &[]] {
        let error = subject.file.borrow_many(pages, &reader).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    }
    for page in [1, 2] {
        let error = subject.file.try_borrow(page, &reader).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    }
}

#[test]
fn guards_that_cannot_all_be_had_are_none_and_an_error() {
    let pages = 2 * BUDGET_MIN_BYTES as usize / PAGE;
    let memory = Memory::new(pattern().to_vec(pages * PAGE));
    let (cache, file) = file_of(Arc::new(memory), Options::new(BUDGET_MIN_BYTES));
    let reader = cache.reader().unwrap();
    // They would fit, if others held nothing.
    let all: Vec<_> = (0..BUDGET_MIN_BYTES / PAGE as u64 - 10).collect();
    let others: Vec<_> = (0..20).map(|n| file.get(pages as u64 - 1 - n).unwrap()).collect();
    let error = file.get_many(&all).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    let error = file.borrow_many(&all, &reader).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    assert!(format!("{reader:?}").contains("borrowed: 0"));
    drop(others);
    file.invalidate(0..at(pages as u64)).unwrap();
    assert_eq!(cache.stats().resident_bytes, 0, "nothing is held");

    // Copies need no more than a block.
    let mut bufs = vec![[0; 64]; 3 * all.len()];
    let pages = (0..3).flat_map(|_| all.iter().rev());
    let mut reads: Vec<_> =
        bufs.iter_mut().zip(pages.clone()).map(|(buf, &page)| ReadAt::new(at(page), buf)).collect();
    file.read_many(&mut reads).unwrap();
    assert!(reads.iter().all(|read| matches!(read.result, Ok(64))));
    for (buf, &page) in bufs.iter().zip(pages) {
        pattern().check(at(page), buf).unwrap();
    }
}

/// However long it waited, there would be no memory for it.
#[test]
fn guards_of_more_pages_than_the_budget_has_fail_before_anything_is_read() {
    let pages = BUDGET_MIN_BYTES / PAGE as u64;
    let memory = Memory::new(pattern().to_vec(at(2 * pages) as usize));
    let (cache, file) = file_of(Arc::new(memory), Options::new(BUDGET_MIN_BYTES));
    let reader = cache.reader().unwrap();
    let at_once = |pages: &[u64]| match pin!(file.get_many_async(pages))
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(got) => got.map(drop),
        Poll::Pending => panic!("it waits"),
    };
    let all: Vec<_> = (0..pages).map(|n| 2 * n).rev().collect();
    let tried = || {
        let borrowed = file.borrow_many(&all, &reader).map(drop);
        [file.get_many(&all).map(drop), borrowed, at_once(&all)]
    };
    for tried in tried() {
        let error = tried.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
        assert_eq!(number_after(&error, "no memory for "), BUDGET_MIN_BYTES);
        assert_eq!(number_after(&error, "in a budget of "), BUDGET_MIN_BYTES);
    }
    assert_eq!((cache.stats().misses, cache.stats().resident_bytes), (0, 0), "nothing was read");
    // A page counts once, however often it is wanted.
    let few: Vec<_> = (0..2 * pages).map(|n| n % 8).collect();
    assert_eq!(file.get_many(&few).unwrap().len(), few.len());
    assert_eq!(file.borrow_many(&few, &reader).unwrap().len(), few.len());
    at_once(&few).unwrap();
    // A page that the file does not have is the error.
    let with_none = [&all[..], &[2 * pages]].concat();
    for tried in [file.get_many(&with_none).map(drop), at_once(&with_none)] {
        let error = tried.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error:?}");
    }
}

/// While others hold all memory, a batch of copies fails once, and not once for each of its reads.
#[test]
fn a_batch_waits_for_memory_once() {
    let pages = 2 * BUDGET_MIN_BYTES / PAGE as u64;
    let memory = Memory::new(pattern().to_vec(at(pages) as usize));
    let (_cache, file) = file_of(Arc::new(memory), Options::new(BUDGET_MIN_BYTES));
    let mut held = Vec::new();
    // Ends: the budget does.
    let full = loop {
        match file.get(held.len() as u64) {
            Ok(page) => held.push(page),
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoMemory, "{full:?}");
    let mut bufs = vec![[0; 64]; 100];
    let mut reads: Vec<_> = bufs.iter_mut().map(|buf| ReadAt::new(0, buf)).collect();
    for (n, read) in reads.iter_mut().enumerate() {
        read.offset = if n % 2 == 0 { at(n as u64) } else { at(pages - 1 - n as u64) };
    }
    let since = std::time::Instant::now();
    let error = file.read_many(&mut reads).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    assert!(since.elapsed().as_secs() < 60, "50 waits of two seconds and more");
    for (n, read) in reads.iter().enumerate() {
        let as_expected = match &read.result {
            Ok(64) => n % 2 == 0,
            // Each says where its own read was.
            Err(error) if error.kind() == ErrorKind::NoMemory => {
                n % 2 == 1 && number_after(error, " at ") == read.offset
            }
            _ => false,
        };
        assert!(as_expected, "read {n} at {}: {:?}", read.offset, read.result);
    }
}

/// Batches of guards, each of half of the cache, in opposite orders; and batches of copies.
#[test]
fn batches_that_want_the_same_pages_all_end() {
    let pages = BUDGET_MIN_BYTES / PAGE as u64;
    let memory = Memory::new(pattern().to_vec(at(pages) as usize));
    let (_cache, file) = file_of(Arc::new(memory), Options::new(BUDGET_MIN_BYTES));
    let (file, begin) = (&file, &Barrier::new(4));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                let mut rng = Rng::with_seed(thread);
                begin.wait();
                for _ in 0..20 {
                    let from = rng.u64(0..pages / 2);
                    let mut some: Vec<_> = (from..from + pages * 2 / 5).step_by(1).collect();
                    if thread == 0 {
                        some.reverse();
                    }
                    match file.get_many(&some) {
                        Ok(got) => {
                            for (got, &page) in got.iter().zip(&some) {
                                pattern().check(at(page), got).unwrap();
                            }
                        }
                        Err(error) if error.kind() == ErrorKind::NoMemory => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            scope.spawn(move || {
                let mut rng = Rng::with_seed(10 + thread);
                let mut bufs = vec![[0; 100]; 64];
                begin.wait();
                for _ in 0..100 {
                    let reads =
                        bufs.iter_mut().map(|buf| ReadAt::new(rng.u64(0..at(pages) - 100), buf));
                    let mut reads: Vec<_> = reads.collect();
                    match file.read_many(&mut reads) {
                        Err(error) if error.kind() != ErrorKind::NoMemory => {
                            panic!("{error}")
                        }
                        _ => {}
                    }
                    for read in reads.iter().filter(|read| read.result.is_ok()) {
                        pattern().check(read.offset, read.buf).unwrap();
                    }
                }
            });
        }
    });
}

/// Whatever a single call gets without the source.
#[test]
fn what_takes_the_slow_path_is_a_hit_all_the_same() {
    let subject = scattered(8 << 20);
    let file = &subject.file;
    let (mut buf, mut two) = ([0; 8], [0; 8]);
    assert_eq!(file.try_read_at(&mut buf, at(10) - 4).unwrap(), None, "nothing is cached");
    drop(file.get(9).unwrap());
    assert_eq!(file.try_read_at(&mut buf, at(10) - 4).unwrap(), None, "half of it is");
    drop(file.get(10).unwrap());
    assert_eq!(file.try_read_at(&mut buf, at(10) - 4).unwrap(), Some(8), "two folios");
    pattern().check(at(10) - 4, &buf).unwrap();

    // The end of the file.
    let last = PAGES - 1;
    assert!(file.try_get(last).unwrap().is_none());
    file.read_at(&mut buf, at(last)).unwrap();
    assert_eq!(file.try_read_at(&mut two, BYTES as u64 - 3).unwrap(), Some(3));
    pattern().check(BYTES as u64 - 3, &two[..3]).unwrap();
    assert_eq!(file.try_get(last).unwrap().unwrap().len(), BYTES % PAGE);

    // All slots in use.
    let reader = subject.cache.reader().unwrap();
    assert!(file.try_borrow(11, &reader).unwrap().is_none());
    let mut guards: Vec<_> = Vec::new();
    while guards.last().is_none_or(|guard: &pinfold::Borrowed<'_, '_>| !guard.is_counted()) {
        guards.push(file.try_borrow(10, &reader).unwrap().unwrap());
    }
    assert_eq!(guards.len(), 17);
    assert!(guards.iter().all(|guard| pattern().check(at(10), guard).is_ok()));
    let many = file.borrow_many(&[9, last], &reader).unwrap();
    assert!(!many.iter().any(pinfold::Borrowed::is_counted), "a batch makes further slots");
    assert_eq!(many[1].len(), BYTES % PAGE);

    // Longer than a short read.
    let whole = Subject::new(8 << 20);
    let mut all = vec![0; BYTES + 1];
    assert_eq!(whole.file.try_read_at(&mut all, 0).unwrap(), None);
    whole.file.read_at(&mut all, 0).unwrap();
    all.fill(0);
    assert_eq!(whole.file.try_read_at(&mut all, 0).unwrap(), Some(BYTES));
    pattern().check(0, &all[..BYTES]).unwrap();
}

/// A scan by `try_read_at` alone goes on as long as it is behind what was read ahead for it.
#[test]
fn meeting_the_mark_reads_on() {
    let device = Device::new();
    let cache = Cache::new(Options::new(32 << 20)).unwrap();
    let file = cache.attach("file", Arc::new(Running(device.clone()))).unwrap();
    file.advise(0..1, Hint::Sequential).unwrap();
    file.read_at(&mut [0; 8], 0).unwrap();
    let (mut page, mut buf) = (0, [0; 8]);
    // Ends: each page comes, as nothing else is waited for.
    while page < PAGES {
        match file.try_read_at(&mut buf, at(page)).unwrap() {
            Some(8) => {
                pattern().check(at(page), &buf).unwrap();
                page += 1;
            }
            _ => std::thread::yield_now(),
        }
    }
    assert_eq!(cache.stats().misses, 1);
    assert_eq!(device.asked().calls.len(), 1, "all but the first was read ahead");
}

/// Sevens, but for the page 50: a read that has it waits until the gate is opened, and then fails.
#[derive(Debug, Default)]
struct FailsLate {
    /// Whether the gate is open, and how many reads had the page.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl FailsLate {
    fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    /// How many reads had the page, after at least one had.
    fn reads(&self) -> usize {
        self.changed.wait_while(self.state.lock().unwrap(), |state| state.1 == 0).unwrap().1
    }
}

impl Source for FailsLate {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if (offset..offset + buf.len() as u64).contains(&at(50)) {
            let mut state = self.state.lock().unwrap();
            state.1 += 1;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| !state.0).unwrap());
            return Err(io::Error::from_raw_os_error(5));
        }
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(BYTES as u64)
    }
    fn kind(&self) -> Cow<'static, str> {
        "fails late".into()
    }
}

/// A batch, and another call that waits for the page of it that fails: how many reads had the page.
fn reads_until_both_fail(batch: &[u64], other: impl Fn(&File) -> Option<Error> + Sync) -> usize {
    let source = Arc::new(FailsLate::default());
    let (cache, file) = file_of(source.clone(), Options::new(8 << 20));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| file.get_many(batch).map(drop).unwrap_err());
        source.reads(); // it is being read
        let second = scope.spawn(|| other(&file).expect("its page cannot be read"));
        // The batch waits, too: it reads its lowest page by itself, which is not this one.
        // Ends: both wait, or the other does not, and has read the page.
        while cache.stats().waits < 2 && source.reads() == 1 {
            std::thread::yield_now();
        }
        source.open();
        for error in [first.join().unwrap(), second.join().unwrap()] {
            assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
        }
    });
    // Not kept.
    let before = source.reads();
    assert!(file.get(50).is_err());
    assert_eq!(source.reads(), before + 1);
    before
}

/// Batches with the page, and how many reads have it until two that want it have failed. Read with
/// others, it is then read alone, by each of the two or by one for both.
const BATCHES: [(&[u64], RangeInclusive<usize>); 4] =
    [(&[50, 1], 1..=1), (&[1, 50], 1..=1), (&[1, 50, 90], 1..=1), (&[1, 49, 50, 51], 2..=3)];

#[test]
fn the_error_of_a_batchs_read_is_for_all_who_wait() {
    for (batch, expected) in BATCHES {
        let check = |reads| assert!(expected.contains(&reads), "{batch:?}: {reads} reads");
        check(reads_until_both_fail(batch, |file| file.get(50).err()));
        check(reads_until_both_fail(batch, |file| file.get_many(&[3, 50]).err()));
        let read = |file: &File| {
            let mut bufs = [[0; 8]; 2];
            let [first, second] = &mut bufs;
            file.read_many(&mut [ReadAt::new(at(3), first), ReadAt::new(at(50), second)]).err()
        };
        check(reads_until_both_fail(batch, read));
        let future = |file: &File| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(file.get_many_async(&[50])).err()
        };
        check(reads_until_both_fail(batch, future));
    }
}

/// The same where the batch is of futures.
#[test]
fn the_error_of_a_read_of_futures_is_for_all_who_wait() {
    for (batch, expected) in BATCHES {
        let source = Arc::new(FailsLate::default());
        let (cache, file) = file_of(source.clone(), Options::new(8 << 20));
        let mut many = std::pin::pin!(file.get_many_async(batch));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(many.as_mut().poll(&mut context).is_pending());
        source.reads();
        let waits = cache.stats().waits;
        std::thread::scope(|scope| {
            let other = scope.spawn(|| file.get(50).map(drop).unwrap_err());
            // Ends: it waits, or has read the page.
            while cache.stats().waits == waits && source.reads() == 1 {
                std::thread::yield_now();
            }
            source.open();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let error = runtime.block_on(many.as_mut()).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
            let error = other.join().unwrap();
            assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
        });
        assert!(expected.contains(&source.reads()), "{batch:?}: {} reads", source.reads());
    }
}

/// Adjacent pages are one read, which then fails for all of them.
#[test]
fn an_error_in_one_read_for_several_is_that_ones() {
    let source = Arc::new(FailsLate::default());
    source.open();
    let (_cache, file) = file_of(source.clone(), Options::new(8 << 20));
    let mut bufs = [[0; 8]; 5];
    let pages = [48, 49, 50, 51, 90];
    let mut reads: Vec<_> =
        bufs.iter_mut().zip(pages).map(|(buf, page)| ReadAt::new(at(page), buf)).collect();
    assert!(file.read_many(&mut reads).is_err());
    for (read, page) in reads.iter().zip(pages) {
        assert_eq!(read.result.is_ok(), page != 50, "page {page}: {:?}", read.result);
    }
    assert_eq!(source.reads(), 2, "with the others, and alone");
}

/// One whose pages are read by nobody else is read once.
#[test]
fn what_fails_in_a_batch_is_not_read_again() {
    let source = Arc::new(FailsLate::default());
    source.open();
    let (_cache, file) = file_of(source.clone(), Options::new(8 << 20));
    let (mut first, mut second) = ([0; 8], [0; 8]);
    let mut reads = [ReadAt::new(at(50), &mut first), ReadAt::new(at(70), &mut second)];
    assert!(file.read_many(&mut reads).is_err());
    assert!(reads[0].result.is_err() && reads[1].result.is_ok());
    assert_eq!(source.reads(), 1);
}
