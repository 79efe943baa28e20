//! Futures: they get what threads get, whatever else waits, and are dropped at any time.

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pinfold::source::{Memory, Request, Source, Start};
use pinfold::{Cache, Error, ErrorKind, File, FolioRef, Hint, Options};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::queue::Queue;
use pinfold_testing::told::{number_after, number_before};
use pinfold_testing::waker::Counted;

const PAGE: u64 = 4096;

/// How long what hangs is waited for.
const HANGS: Duration = Duration::from_secs(60);

/// A runtime may poll each future on another thread.
#[expect(dead_code, reason = "that it compiles is the test")]
fn futures_are_send(file: &File, buf: &mut [u8]) {
    fn is_send<T: Send>(_: T) {}
    is_send(file.get_async(0));
    is_send(file.get_many_async(&[0]));
    is_send(file.read_at_async(buf, 0));
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_time()
        .build()
        .unwrap()
}

/// Memory whose reads of the upper half wait until it is opened, or fail.
#[derive(Debug)]
struct Gated {
    bytes: Memory,
    state: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Gate {
    #[default]
    Closed,
    Open,
    Broken,
}

impl Gated {
    fn new(pattern: Pattern, pages: u64) -> Arc<Self> {
        let bytes = Memory::new(pattern.to_vec((pages * PAGE) as usize));
        Arc::new(Gated { bytes, state: Mutex::default(), changed: Condvar::new() })
    }

    fn set(&self, gate: Gate) {
        *self.state.lock().unwrap() = gate;
        self.changed.notify_all();
    }
}

impl Source for Gated {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if offset >= self.bytes.len_bytes()? / 2 {
            let state = self.state.lock().unwrap();
            let state = self.changed.wait_while(state, |gate| *gate == Gate::Closed).unwrap();
            if *state == Gate::Broken {
                return Err(io::Error::other("the gate is broken"));
            }
        }
        self.bytes.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.bytes.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "gated".into()
    }
}

/// 64 pages, of which the upper 32 wait.
fn gated(options: Options) -> (Cache, File, Arc<Gated>, Pattern) {
    let pattern = Pattern::new(5, 0);
    let cache = Cache::new(options).unwrap();
    let source = Gated::new(pattern, 64);
    let file = cache.attach("gated", source.clone()).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    (cache, file, source, pattern)
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

#[test]
fn what_is_cached_is_ready_at_once() {
    let (_cache, file, _, pattern) = gated(Options::new(1 << 20));
    file.read_at(&mut vec![0; 32 * PAGE as usize], 0).unwrap();
    let mut buf = vec![0; 3 * PAGE as usize];
    for (offset, bytes) in [(0, 10), (100, 0), (4090, 12), (5000, 12_000), (0, 12_288)] {
        {
            let read = pin!(file.read_at_async(&mut buf[..bytes], offset));
            assert!(matches!(poll(read, Waker::noop()), Poll::Ready(Ok(n)) if n == bytes));
        }
        pattern.check(offset, &buf[..bytes]).unwrap();
    }
    let Poll::Ready(Ok(folio)) = poll(pin!(file.get_async(7)), Waker::noop()) else { panic!() };
    pattern.check(7 * PAGE, &folio).unwrap();
    let pages = [9, 3, 9, 0];
    let many = poll(pin!(file.get_many_async(&pages)), Waker::noop());
    let Poll::Ready(Ok(folios)) = many else { panic!("{many:?}") };
    assert_eq!(folios.len(), 4);
    for (page, folio) in pages.iter().zip(&folios) {
        pattern.check(page * PAGE, folio).unwrap();
    }
    let many = poll(pin!(file.get_many_async(&[])), Waker::noop());
    assert!(matches!(many, Poll::Ready(Ok(none)) if none.is_empty()));
}

#[test]
fn what_is_not_is_read_and_whoever_waits_is_woken_once() {
    let (cache, file, source, pattern) = gated(Options::new(1 << 20));
    let ((one, first), (other, second)) = (Counted::waker(), Counted::waker());
    let mut buf = vec![0; 100];
    {
        let (mut get, mut read) =
            (pin!(file.get_async(40)), pin!(file.read_at_async(&mut buf, 40 * PAGE)));
        assert!(
            poll(get.as_mut(), &first).is_pending() && poll(read.as_mut(), &second).is_pending()
        );
        // Polled again while it waits, it leaves its newer waker in place of the old one.
        let (last, third) = Counted::waker();
        assert!(poll(get.as_mut(), &third).is_pending());
        assert_eq!(cache.stats().fills_in_flight, 1);
        source.set(Gate::Open);
        last.wait_for(1);
        other.wait_for(1);
        let Poll::Ready(Ok(folio)) = poll(get.as_mut(), &first) else { panic!() };
        pattern.check(40 * PAGE, &folio).unwrap();
        assert!(matches!(poll(read.as_mut(), &second), Poll::Ready(Ok(100))));
        assert_eq!((one.times(), last.times()), (0, 1));
    }
    pattern.check(40 * PAGE, &buf).unwrap();
    assert_eq!((cache.stats().misses, cache.stats().waits), (1, 2));
}

#[test]
fn an_error_is_told_to_all_who_wait_and_the_next_tries_again() {
    let (_cache, file, source, pattern) = gated(Options::new(1 << 20));
    let (woken, waker) = Counted::waker();
    let mut futures = [(); 3].map(|()| Box::pin(file.get_async(50)));
    for future in &mut futures {
        assert!(poll(future.as_mut(), &waker).is_pending());
    }
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| file.get(50).map(drop));
        source.set(Gate::Broken);
        let told =
            |error: Error| assert!(error.to_string().contains("the gate is broken"), "{error}");
        told(thread.join().unwrap().unwrap_err());
        woken.wait_for(3);
        for future in &mut futures {
            let Poll::Ready(result) = poll(future.as_mut(), &waker) else {
                panic!("woken for nothing")
            };
            told(result.unwrap_err());
        }
    });
    source.set(Gate::Open);
    let folio = runtime(1).block_on(file.get_async(50)).unwrap();
    pattern.check(50 * PAGE, &folio).unwrap();
}

#[test]
fn bad_arguments_are_the_errors_that_threads_get() {
    let (_cache, file, source, _) = gated(Options::new(1 << 20));
    source.set(Gate::Open);
    let runtime = runtime(1);
    let error = runtime.block_on(file.get_async(64)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error:?}");
    assert_eq!(number_after(&error, "no page "), 64);
    let error = runtime.block_on(file.get_many_async(&[1, 2, 1 << 60])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error:?}");
    let mut buf = [0; 10];
    let error = runtime.block_on(file.read_at_async(&mut buf, u64::MAX - 3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert_eq!(runtime.block_on(file.read_at_async(&mut buf, 64 * PAGE - 4)).unwrap(), 4);
    assert_eq!(runtime.block_on(file.read_at_async(&mut buf, 64 * PAGE)).unwrap(), 0);
}

#[test]
fn a_future_that_is_dropped_leaves_nothing_behind() {
    let (cache, file, source, pattern) = gated(Options::new(1 << 20));
    let (woken, waker) = Counted::waker();
    let (stays, stays_waker) = Counted::waker();
    let mut stayed = pin!(file.get_async(33));
    for _ in 0..5 {
        for page in 32..40 {
            assert!(poll(pin!(file.get_async(page)), &waker).is_pending());
        }
        let all: Vec<_> = (32..40).collect();
        assert!(poll(pin!(file.get_many_async(&all)), &waker).is_pending());
        assert!(poll(stayed.as_mut(), &stays_waker).is_pending());
    }
    assert_eq!(cache.stats().fills_in_flight, 8, "the reads that were begun go on");
    source.set(Gate::Open);
    stays.wait_for(1);
    // Ends: the source is open.
    while cache.stats().fills_in_flight > 0 {
        std::thread::yield_now();
    }
    let Poll::Ready(Ok(folio)) = poll(stayed.as_mut(), &stays_waker) else { panic!() };
    pattern.check(33 * PAGE, &folio).unwrap();
    drop(folio);
    assert_eq!(woken.times(), 0, "it was gone");
    // Nothing is held: all of it can go.
    let resident = cache.stats().resident_bytes;
    assert_eq!(file.invalidate(0..i64::MAX as u64).unwrap(), resident);
    assert_eq!(cache.stats().resident_bytes, 0);
}

/// A waker of the program's that panics concerns nobody else.
#[test]
fn a_waker_that_panics_keeps_nothing_from_others() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as the test wants it");
        }
    }
    let (_cache, file, source, pattern) = gated(Options::new(1 << 20));
    let bad = Waker::from(Arc::new(Panics));
    let (woken, waker) = Counted::waker();
    let (mut one, mut other) = (pin!(file.get_async(60)), pin!(file.get_async(60)));
    assert!(poll(one.as_mut(), &bad).is_pending() && poll(other.as_mut(), &waker).is_pending());
    source.set(Gate::Open);
    woken.wait_for(1);
    let Poll::Ready(Ok(folio)) = poll(other.as_mut(), &waker) else { panic!() };
    pattern.check(60 * PAGE, &folio).unwrap();
    assert!(matches!(poll(one.as_mut(), &waker), Poll::Ready(Ok(_))));
}

#[test]
fn futures_queue_for_memory_and_get_it_when_guards_are_dropped() {
    let (cache, file, source, pattern) = gated(Options::new(1 << 20));
    source.set(Gate::Open);
    let other = Arc::new(Memory::new(vec![9; 1 << 20]));
    let other = cache.attach("other", other).unwrap();
    other.advise(0..1, Hint::Random).unwrap();
    // All memory is held.
    let mut held = Vec::new();
    let error = loop {
        match other.get(held.len() as u64) {
            Ok(folio) => held.push(folio),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    let (woken, waker) = Counted::waker();
    let mut futures: Vec<_> = (0..20).map(|page| Box::pin(file.get_async(page))).collect();
    for future in &mut futures {
        assert!(poll(future.as_mut(), &waker).is_pending());
    }
    drop(held);
    // Ends: each is woken in its turn.
    while !futures.is_empty() {
        woken.wait_for(1);
        woken.take();
        futures.retain_mut(|future| match poll(future.as_mut(), &waker) {
            Poll::Ready(Ok(folio)) => {
                pattern.check(folio.folio_offset(), folio.folio()).unwrap();
                false
            }
            Poll::Ready(Err(error)) => panic!("{error}"),
            Poll::Pending => true,
        });
    }
}

#[test]
fn futures_that_queue_in_vain_say_what_the_memory_is_full_of() {
    let (cache, file, source, _) = gated(Options::new(1 << 20));
    source.set(Gate::Open);
    let other = Arc::new(Memory::new(vec![9; 1 << 20]));
    let other = cache.attach("other", other).unwrap();
    other.advise(0..1, Hint::Random).unwrap();
    let mut held = Vec::new();
    let runtime = runtime(2);
    let error = loop {
        match runtime.block_on(other.get_async(held.len() as u64)) {
            Ok(folio) => held.push(folio),
            Err(error) => break error,
        }
    };
    // It slept meanwhile, and was woken from time to time.
    let tries = cache.stats().direct_reclaims;
    assert!((1..1000).contains(&tries), "{tries}");
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    let held_bytes = number_before(&error, " held by readers");
    assert!(held_bytes >= held.len() as u64 * PAGE, "{held_bytes}");
    // A batch that would fit if others held nothing, too.
    held.truncate(20);
    let pages: Vec<_> = (20..256).collect();
    let error = runtime.block_on(other.get_many_async(&pages)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    // And nothing stays held.
    drop(held);
    runtime.block_on(file.get_async(0)).unwrap();
}

/// A source with a queue of its own that is always full.
#[derive(Debug)]
struct Full(Memory);

impl Source for Full {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "full".into()
    }
    fn start(&self, _: &mut Vec<Request>) -> Start {
        Start::Full
    }
}

#[test]
fn what_a_source_does_not_take_the_caches_own_threads_read() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("full", Arc::new(Full(Memory::new(vec![3; 1 << 20])))).unwrap();
    let runtime = runtime(2);
    runtime.block_on(async {
        for page in [0, 100, 7] {
            assert!(file.get_async(page).await.unwrap().iter().all(|&byte| byte == 3));
        }
    });
}

/// 512 pages in a queue.
fn queued(budget_bytes: u64) -> (Cache, File, Arc<Queue>, Pattern) {
    let pattern = Pattern::new(6, 0);
    let cache = Cache::new(Options::new(budget_bytes)).unwrap();
    let queue = Queue::new(pattern.to_vec((512 * PAGE) as usize));
    let file = cache.attach("queued", queue.clone()).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    (cache, file, queue, pattern)
}

#[test]
fn what_is_absent_of_many_is_one_submission() {
    let (cache, file, queue, pattern) = queued(8 << 20);
    file.get(30).unwrap();
    // Twice the same page, two neighbours, one that is there, and one that is on its way.
    assert!(poll(pin!(file.get_async(50)), Waker::noop()).is_pending());
    assert_eq!(queue.started(), [[(50 * PAGE, 4096)]]);
    let before = cache.stats();
    let pages = [40, 9, 30, 8, 20, 40, 50, 60];
    let (woken, waker) = Counted::waker();
    let mut many = pin!(file.get_many_async(&pages));
    assert!(poll(many.as_mut(), &waker).is_pending());
    let expected = [(8, 2), (20, 1), (40, 1), (60, 1)];
    let expected = expected.map(|(page, pages)| (page * PAGE, pages * PAGE as usize));
    assert_eq!(queue.started(), [expected]);
    queue.let_go();
    woken.wait_for(1);
    let Poll::Ready(Ok(folios)) = poll(many.as_mut(), &waker) else { panic!() };
    assert_eq!(woken.times(), 1, "not for each page");
    for (&page, folio) in pages.iter().zip(&folios) {
        pattern.check(page * PAGE, folio).unwrap();
    }
    assert!(queue.started().is_empty());
    // Each folio that was read is a miss, and none of what was read a hit.
    let after = cache.stats();
    let misses = after.misses - before.misses;
    assert!((4..=5).contains(&misses), "the two neighbours may be one folio: {misses}");
    let hits = |stats: &pinfold::Stats| stats.counted_hits;
    assert_eq!(hits(&after) - hits(&before), 1, "of the page that was there");
}

#[test]
fn a_source_is_not_asked_to_start_nothing() {
    let (_cache, file, queue, _) = queued(8 << 20);
    // One page that is absent, which this thread reads by itself; and one that is there by then.
    assert_eq!(file.get_many(&[40, 40]).unwrap().len(), 2);
    file.prefetch(&[40]).unwrap();
    assert!(poll(pin!(file.get_many_async(&[40])), Waker::noop()).is_ready());
    // To the end: there is nothing to read ahead.
    let sequential = file.clone();
    sequential.advise(0..1, Hint::Sequential).unwrap();
    for page in 500..512 {
        let _ = poll(pin!(sequential.get_async(page)), Waker::noop());
        queue.let_go();
        sequential.get(page).unwrap();
    }
    let started = queue.started();
    assert!(started.iter().all(|batch| !batch.is_empty()), "{started:?}");
}

/// A batch that waits for a page that never comes is woken all the same when there is memory for
/// its next: others queue behind it.
#[test]
fn a_batch_takes_its_turn_for_memory_whatever_else_it_waits_for() {
    let (cache, file, queue, _) = queued(1 << 20);
    let other = cache.attach("other", Arc::new(Memory::new(vec![9; 1 << 20]))).unwrap();
    other.advise(0..1, Hint::Random).unwrap();
    // All memory is held, but for a page of what is about to come.
    let mut held = Vec::new();
    // Ends: there is no memory at last.
    while let Ok(folio) = other.get(held.len() as u64) {
        held.push(folio);
    }
    held.pop();
    assert!(poll(pin!(file.get_async(7)), Waker::noop()).is_pending());
    assert_eq!(cache.stats().fills_in_flight, 1);
    let (woken, waker) = Counted::waker();
    let mut many = pin!(file.get_many_async(&[7, 8]));
    assert!(poll(many.as_mut(), &waker).is_pending());
    drop(held);
    // Ends: it is woken until page 8 is on its way, as it may be too early for that.
    while cache.stats().fills_in_flight < 2 {
        woken.wait_for(1);
        woken.take();
        assert!(poll(many.as_mut(), &waker).is_pending(), "page 7 is still missing");
    }
    queue.let_go();
}

#[test]
fn more_of_many_than_may_be_on_their_way_come_in_turns() {
    let (_cache, file, queue, pattern) = queued(1 << 20);
    let pages: Vec<u64> = (0..120).map(|n| n * 4).collect();
    let (woken, waker) = Counted::waker();
    let mut many = pin!(file.get_many_async(&pages));
    let mut turns = 0;
    // Ends: what was submitted comes, and makes room for more.
    let folios = loop {
        let seen = woken.times();
        if let Poll::Ready(folios) = poll(many.as_mut(), &waker) {
            break folios.unwrap();
        }
        turns += 1;
        queue.let_go();
        woken.wait_for(seen + 1);
    };
    for (&page, folio) in pages.iter().zip(&folios) {
        pattern.check(page * PAGE, folio).unwrap();
    }
    let first = queue.started()[0].len();
    assert!(turns > 1 && (8..=65).contains(&first), "{turns} turns, {first} in the first");
}

/// Thousands at once, from two threads, of a file eight times as large as the budget.
#[test]
fn ten_thousand_at_once_get_the_right_bytes() {
    let pattern = Pattern::new(11, 0);
    let dir = tempfile::tempdir_in(".").unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, pattern.to_vec(16 << 20)).unwrap();
    let cache = Cache::new(Options::new(2 << 20)).unwrap();
    let file = Arc::new(cache.open(&path).unwrap());
    file.advise(0..1, Hint::Random).unwrap();
    runtime(2).block_on(async {
        let tasks: Vec<_> = (0..10_000_u64)
            .map(|n| {
                let file = file.clone();
                tokio::spawn(async move {
                    let offset = n * 0x9E37_79B9 % (16 << 20);
                    let mut buf = [0; 6000];
                    let got = file.read_at_async(&mut buf, offset).await.unwrap();
                    assert_eq!(got as u64, 6000.min((16 << 20) - offset));
                    pattern.check(offset, &buf[..got]).unwrap();
                    let page = offset / PAGE;
                    pattern.check(page * PAGE, &file.get_async(page).await.unwrap()).unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    // A future that waits for memory sleeps, and does not search for it all the time.
    let stats = cache.stats();
    assert!(stats.direct_reclaims < 10_000, "{stats:?}");
    assert_eq!(cache.stats().fills_in_flight, 0);
}

fn random(cache: &Cache, source: Arc<dyn Source>) -> File {
    let file = cache.attach("file", source).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    file
}

fn memory(pages: u64) -> Arc<Memory> {
    Arc::new(Memory::new(Pattern::new(5, 0).to_vec((pages * PAGE) as usize)))
}

/// Holds pages of `file` until there is no memory.
fn hold_all(file: &File) -> Vec<FolioRef<'_>> {
    let mut held = Vec::new();
    while let Ok(folio) = file.get(held.len() as u64) {
        held.push(folio);
    }
    held
}

/// Polls when it is woken, until it is ready. `None`: it was not for a long time.
fn drive<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    let (woken, waker) = Counted::waker();
    let since = Instant::now();
    loop {
        if let Poll::Ready(output) = poll(future.as_mut(), &waker) {
            return Some(output);
        }
        while woken.take() == 0 {
            if since.elapsed() > HANGS {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Runs `body` in a thread that is left behind if it hangs.
fn ends(body: impl FnOnce() + Send + 'static) {
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        let _tell = tell; // also when it panics
        body();
    });
    match told.recv_timeout(HANGS) {
        Err(RecvTimeoutError::Timeout) => panic!("it hung"),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => thread.join().unwrap(),
    }
}

/// All workers read for sources that do not answer.
#[test]
fn a_poll_that_finds_no_worker_returns_and_the_future_gets_the_next_one() {
    let cache = Cache::new(Options::new(8 << 20)).unwrap();
    let sources: Vec<_> = (0..16).map(|_| Gated::new(Pattern::new(5, 0), 2)).collect();
    let files: Vec<_> = sources.iter().map(|source| random(&cache, source.clone())).collect();
    let mut slow: Vec<_> = files.iter().map(|file| Box::pin(file.get_async(1))).collect();
    for future in &mut slow {
        assert!(poll(future.as_mut(), Waker::noop()).is_pending());
    }
    let file = random(&cache, memory(40));
    let before = cache.stats();
    let mut many = Box::pin(file.get_many_async(&[10, 11, 20, 30]));
    assert!(poll(many.as_mut(), Waker::noop()).is_pending());
    drop(many);
    let mut get = Box::pin(file.get_async(0));
    let returned = std::thread::scope(|scope| {
        let (tell, told) = channel();
        let get = get.as_mut();
        scope.spawn(move || tell.send(poll(get, Waker::noop()).is_pending()));
        // Less than the patience of a future while reads are under way.
        let returned = told.recv_timeout(Duration::from_secs(20));
        for source in &sources {
            source.set(Gate::Open);
        }
        returned
    });
    assert_eq!(returned, Ok(true), "the poll did not return");
    drop(drive(get.as_mut()).expect("no worker came free").unwrap());
    let stats = cache.stats();
    assert_eq!(stats.misses - before.misses, 1, "attempts in vain are no misses");
    assert_eq!(stats.readahead_dropped, before.readahead_dropped, "nothing was read ahead");
}

/// A source that panics when it is asked to start, or says that it has taken what it has not.
#[derive(Debug)]
struct Starts(Memory, Option<Start>);

impl Source for Starts {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "starts".into()
    }
    fn start(&self, _: &mut Vec<Request>) -> Start {
        self.1.expect("as the test wants it")
    }
}

#[test]
fn a_source_that_panics_in_start_is_the_error_of_that_read() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let starts = |how| Arc::new(Starts(Memory::new(vec![1; 40 << 10]), how));
    let file = random(&cache, starts(None));
    let error = drive(pin!(file.get_async(0))).expect("it hung").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
    assert!(error.to_string().contains("as the test wants it"), "{error}");
    assert_eq!(cache.stats().misses, 1);
    assert_eq!(file.get(0).unwrap()[0], 1, "a thread reads by itself");
    // The cache's own threads read what it has not taken.
    let file = random(&cache, starts(Some(Start::Started)));
    assert_eq!(drive(pin!(file.get_async(3))).expect("it hung").unwrap()[0], 1);
}

/// Zeros without end.
#[derive(Debug)]
struct Sparse;

impl Source for Sparse {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(1 << 50)
    }
    fn kind(&self) -> Cow<'static, str> {
        "sparse".into()
    }
}

/// A frame is free, but none for the index.
#[test]
fn a_poll_that_finds_no_index_node_tries_once() {
    for spare in 0..10 {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let (sparse, other) = (random(&cache, Arc::new(Sparse)), random(&cache, memory(300)));
        let far = |n: u64| (n + 1) << 24;
        let _spare: Vec<_> = (0..spare).map(|n| sparse.get(far(n)).unwrap()).collect();
        let mut held = hold_all(&other);
        held.pop();
        let before = cache.stats().direct_reclaims;
        let _ = poll(pin!(sparse.get_async(far(40) + (7 << 12))), Waker::noop());
        let tries = cache.stats().direct_reclaims - before;
        assert!(tries < 50, "{tries} searches for memory in one poll");
    }
}

#[test]
fn a_source_that_hangs_keeps_nothing_from_the_futures_of_others() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let hangs = Gated::new(Pattern::new(5, 0), 400);
    let (slow, file) = (random(&cache, hangs.clone()), random(&cache, memory(200)));
    let mut many: Vec<_> = (200..300).map(|page| Box::pin(slow.get_async(page))).collect();
    for future in &mut many {
        assert!(poll(future.as_mut(), Waker::noop()).is_pending());
    }
    for page in 0..20 {
        let got = drive(pin!(file.get_async(page)));
        let got = got.map(|folio| folio.map(drop));
        if !matches!(got, Some(Ok(()))) {
            hangs.set(Gate::Open);
            panic!("page {page}: {got:?}");
        }
    }
    hangs.set(Gate::Open);
}

/// It queues, as its file has enough on its way. When that has come, and before the future is
/// polled again, a thread reads the page.
#[test]
fn a_future_that_queues_gets_what_others_have_read() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let hangs = Gated::new(Pattern::new(5, 0), 400);
    let file = random(&cache, hangs.clone());
    let mut many: Vec<_> = (200..300).map(|page| Box::pin(file.get_async(page))).collect();
    for future in &mut many {
        assert!(poll(future.as_mut(), Waker::noop()).is_pending());
    }
    many.truncate(64);
    let mut get = pin!(file.get_async(7));
    assert!(poll(get.as_mut(), Waker::noop()).is_pending());
    hangs.set(Gate::Open);
    for mut future in many {
        let got = drive(future.as_mut()).map(|folio| folio.map(drop));
        assert!(matches!(got, Some(Ok(()))), "{got:?}");
    }
    drop(file.get(7).unwrap());
    let misses = cache.stats().misses;
    let got = drive(get).map(|folio| folio.map(drop));
    assert!(matches!(got, Some(Ok(()))), "{got:?}");
    assert_eq!(cache.stats().misses, misses);
}

/// A waker that owns something.
struct Owns<T>(Mutex<T>);

impl<T: Send + 'static> Wake for Owns<T> {
    fn wake(self: Arc<Self>) {}
}

/// The task that polled a future first goes away, but for its waker; what that owns is dropped when
/// another task takes over the future.
#[test]
fn a_waker_that_is_replaced_may_own_the_last_reference_to_a_page() {
    ends(|| {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let (file, other) = (random(&cache, memory(300)), random(&cache, memory(300)));
        let guard = file.get(1).unwrap().into_owned();
        file.invalidate(PAGE..=PAGE).unwrap();
        let _held = hold_all(&other);
        let mut get = pin!(file.get_async(2));
        let first = Waker::from(Arc::new(Owns(Mutex::new(guard))));
        assert!(poll(get.as_mut(), &first).is_pending());
        drop(first);
        let _ = poll(get, &Counted::waker().1);
    });
}

#[test]
fn a_waker_that_is_replaced_may_own_a_future_of_the_same_page() {
    ends(|| {
        let (_cache, file, source, _) = gated(Options::new(1 << 20));
        let file = Arc::new(file);
        let of_inner = file.clone();
        let mut inner = Box::pin(async move { drop(of_inner.get_async(40).await) });
        assert!(poll(inner.as_mut(), Waker::noop()).is_pending());
        let mut get = pin!(file.get_async(40));
        let first = Waker::from(Arc::new(Owns(Mutex::new(inner))));
        assert!(poll(get.as_mut(), &first).is_pending());
        drop(first);
        let _ = poll(get, &Counted::waker().1);
        source.set(Gate::Open);
    });
}

/// When it is woken, it drops a page that is of no more use.
struct Enters(Arc<File>, Arc<AtomicU64>);

impl Wake for Enters {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.invalidate(8 * PAGE..9 * PAGE).unwrap();
    }
}

/// Moving a page wakes futures that met it meanwhile.
#[test]
fn a_waker_may_call_the_cache_while_a_page_moves() {
    ends(|| {
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let file = Arc::new(random(&cache, memory(64)));
        drop(file.get(0).unwrap());
        let (over, woken) = (AtomicBool::new(false), Arc::new(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let since = Instant::now();
                // Enough: before it was mended, the first wake-up hung.
                while woken.load(Ordering::SeqCst) < 5 && since.elapsed() < HANGS / 4 {
                    file.migrate(0..PAGE);
                }
                over.store(true, Ordering::Relaxed);
            });
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let waker = Waker::from(Arc::new(Enters(file.clone(), woken.clone())));
                        let mut get = pin!(file.get_async(0));
                        while poll(get.as_mut(), &waker).is_pending() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
    });
}

/// So does a change of a file's length.
#[test]
fn a_waker_may_call_the_cache_while_a_length_changes() {
    ends(|| {
        let (_cache, file, source, _) = gated(Options::new(1 << 20));
        let file = Arc::new(file);
        let woken = Arc::new(AtomicU64::new(0));
        let waker = Waker::from(Arc::new(Enters(file.clone(), woken.clone())));
        let mut get = pin!(file.get_async(50));
        assert!(poll(get.as_mut(), &waker).is_pending());
        source.bytes.set_len(40 * PAGE).unwrap();
        file.invalidate(0..0).unwrap();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        let polled = poll(get, &waker);
        let Poll::Ready(Err(error)) = &polled else { panic!("{polled:?}") };
        assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{polled:?}");
        source.set(Gate::Open);
    });
}

/// Calls what waits for no read, on the thread that completes reads.
struct Looks(File, AtomicU64);

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.0.prefetch(&[50]).unwrap();
        assert!(self.0.try_get(3).unwrap().is_some(), "that page has arrived");
        let _ = self.0.try_get(50).unwrap();
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_waker_may_try_and_prefetch_on_the_thread_of_the_ring() {
    ends(|| {
        let disk = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(disk.path(), vec![7; 1 << 20]).unwrap();
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let file = cache.open(disk.path()).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        let looks = Arc::new(Looks(file.clone(), AtomicU64::new(0)));
        let waker = Waker::from(looks.clone());
        let mut woken = 0;
        // Ends: a read is seldom faster than the poll that begins it.
        while woken == 0 {
            let mut get = pin!(file.get_async(3));
            if poll(get.as_mut(), &waker).is_pending() {
                // Ends: the read does.
                while looks.1.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                assert!(poll(get, &waker).is_ready());
            }
            woken = looks.1.load(Ordering::SeqCst);
            file.invalidate(0..1 << 20).unwrap();
        }
        assert_eq!(file.get(50).unwrap()[0], 7);
    });
}

/// Gets a page that the thread which wakes it lands, too.
struct Gets(File, AtomicBool);

impl Wake for Gets {
    fn wake(self: Arc<Self>) {
        assert!(self.0.try_get(41).unwrap().is_some(), "it has not landed yet");
        self.1.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_waker_finds_all_that_one_read_brings() {
    ends(|| {
        let (cache, file, source, _) =
            gated(Options { folio_max_bytes: 4096, ..Options::new(1 << 20) });
        let gets = Arc::new(Gets(file.clone(), AtomicBool::new(false)));
        let waker = Waker::from(gets.clone());
        let mut get = pin!(file.get_async(40));
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| file.read_at(&mut vec![0; 8 * PAGE as usize], 40 * PAGE));
            // Ends: the other thread has nothing else to do.
            while cache.stats().fills_in_flight < 8 {
                std::thread::yield_now();
            }
            assert!(poll(get.as_mut(), &waker).is_pending());
            source.set(Gate::Open);
            assert_eq!(reads.join().unwrap().unwrap(), 8 * PAGE as usize);
        });
        assert!(gets.1.load(Ordering::SeqCst), "it was not woken, or did not get the page");
        assert!(poll(get, &waker).is_ready());
    });
}

#[test]
fn a_turn_of_a_batch_is_used_or_given_on() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let source = Gated::new(Pattern::new(5, 0), 300);
    let slow = random(&cache, source.clone());
    let (file, other) = (random(&cache, memory(300)), random(&cache, memory(300)));
    let mut held = hold_all(&other);
    // For the first, and for the index.
    held.truncate(held.len() - 4);
    let mut first = Box::pin(slow.get_async(150));
    assert!(poll(first.as_mut(), Waker::noop()).is_pending());
    let pages: Vec<u64> = (150..200).collect();
    let (woken_many, waker_many) = Counted::waker();
    let mut many = Box::pin(slow.get_many_async(&pages));
    assert!(poll(many.as_mut(), &waker_many).is_pending());
    let (woken, waker) = Counted::waker();
    let mut get = Box::pin(file.get_async(0));
    assert!(poll(get.as_mut(), &waker).is_pending());
    drop(held);
    // Each wakes the next. Before it was mended, the turns of the batch were lost, and each took a
    // look of the daemon.
    let mut polls = 0;
    let since = Instant::now();
    let got = loop {
        if woken_many.take() > 0 {
            polls += 1;
            assert!(poll(many.as_mut(), &waker_many).is_pending());
        }
        if woken.take() > 0
            && let Poll::Ready(got) = poll(get.as_mut(), &waker)
        {
            break got.map(drop);
        }
        if since.elapsed() > HANGS {
            source.set(Gate::Open);
            panic!("it got no turn");
        }
        std::thread::yield_now();
    };
    source.set(Gate::Open);
    got.unwrap();
    assert!(polls < 10, "{polls} turns of the batch until the next future had one");
}

/// Reads take a while.
#[derive(Debug)]
struct Slow(Memory);

impl Source for Slow {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        std::thread::sleep(Duration::from_millis(2));
        self.0.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "slow".into()
    }
}

/// A quarter of the cache at once, among many small reads.
#[test]
fn a_large_read_gets_its_turn_among_small_ones() {
    const SMALL: u64 = 30;
    let cache = Cache::new(Options::new(2 << 20)).unwrap();
    let file = Arc::new(random(&cache, Arc::new(Slow(Memory::new(vec![1; 64 << 20])))));
    let (over, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let others = runtime(1).block_on(async {
        let small = |n| {
            let (file, over, reads) = (file.clone(), over.clone(), reads.clone());
            tokio::spawn(async move {
                let mut page = n * 517;
                while !over.load(Ordering::Relaxed) {
                    page = (page * 5 + 12_345) % 16_000;
                    drop(file.get_async(page).await.unwrap());
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let tasks: Vec<_> = (0..SMALL).map(small).collect();
        while reads.load(Ordering::Relaxed) < 10 * SMALL {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = reads.load(Ordering::Relaxed);
        let mut buf = vec![0; 512 << 10];
        let large = {
            let mut read = pin!(file.read_at_async(&mut buf, 1 << 20));
            // In small reads, not in time: they are what goes before it.
            loop {
                let wait = tokio::time::timeout(Duration::from_millis(5), read.as_mut());
                if let Ok(read) = wait.await {
                    break Some(read);
                }
                if reads.load(Ordering::Relaxed) - before > 20_000 {
                    break None;
                }
            }
        };
        let others = reads.load(Ordering::Relaxed) - before;
        over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.unwrap();
        }
        assert!(matches!(large, Some(Ok(got)) if got == buf.len()), "{large:?}, {others}");
        others
    });
    println!("{others} small reads meanwhile");
}

/// It is kept, and what it held is not.
#[test]
fn a_future_that_has_returned_keeps_nothing() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let source = Gated::new(Pattern::new(5, 0), 200);
    let slow = random(&cache, source.clone());
    // With the page of `get` it is less than what one file may have on its way.
    let mut buf = vec![0; 60 * PAGE as usize];
    let mut read = Box::pin(slow.read_at_async(&mut buf, 120 * PAGE));
    let mut get = Box::pin(slow.get_async(110));
    assert!(poll(read.as_mut(), Waker::noop()).is_pending());
    let (_, waker) = Counted::waker();
    assert!(poll(get.as_mut(), &waker).is_pending());
    source.bytes.set_len(100 * PAGE).unwrap();
    slow.invalidate(0..0).unwrap();
    assert!(matches!(poll(read.as_mut(), Waker::noop()), Poll::Ready(Ok(0))));
    let polled = poll(get.as_mut(), Waker::noop());
    let Poll::Ready(Err(error)) = &polled else { panic!("{polled:?}") };
    assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{polled:?}");
    // The claims are another's now.
    let mut buf = vec![0; 40 * PAGE as usize];
    let other = drive(pin!(slow.read_at_async(&mut buf, 0))).map(Result::ok);
    source.set(Gate::Open);
    assert_eq!(other, Some(Some(40 * PAGE as usize)));
}
