//! Futures: they get what threads get, whatever else waits, and are dropped at any time.

#![cfg(not(loom))] // the model checker builds without the public types

use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pinfold::futures::{Get, GetMany, Read};
use pinfold::source::{Memory, Request, Source, Start};
use pinfold::{Cache, Error, File, Hint, Options};
use pinfold_testing::pattern::Pattern;

const PAGE: u64 = 4096;

/// A runtime may poll each future on another thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Get<'static>>();
    is_send::<GetMany<'static>>();
    is_send::<Read<'static, 'static>>();
};

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

#[derive(Default)]
struct Counted(AtomicU64);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Counted {
    fn waker() -> (Arc<Self>, Waker) {
        let counted = Arc::new(Counted::default());
        (counted.clone(), counted.into())
    }

    fn wait_for(&self, times: u64) {
        // Ends: what the test waits for happens.
        while self.0.load(Ordering::SeqCst) < times {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
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
        let read = pin!(file.read_at_async(&mut buf[..bytes], offset));
        assert!(matches!(poll(read, Waker::noop()), Poll::Ready(Ok(n)) if n == bytes));
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
        assert_eq!((one.0.load(Ordering::SeqCst), last.0.load(Ordering::SeqCst)), (0, 1));
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
    assert!(matches!(error, Error::BeyondEnd { page: 64, .. }), "{error:?}");
    let error = runtime.block_on(file.get_many_async(&[1, 2, 1 << 60])).unwrap_err();
    assert!(matches!(error, Error::BeyondEnd { .. }), "{error:?}");
    let mut buf = [0; 10];
    let error = runtime.block_on(file.read_at_async(&mut buf, u64::MAX - 3)).unwrap_err();
    assert!(matches!(error, Error::Range { .. }), "{error:?}");
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
    assert_eq!(woken.0.load(Ordering::SeqCst), 0, "it was gone");
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
    assert!(matches!(error, Error::NoMemory { .. }), "{error:?}");
    let (woken, waker) = Counted::waker();
    let mut futures: Vec<_> = (0..20).map(|page| Box::pin(file.get_async(page))).collect();
    for future in &mut futures {
        assert!(poll(future.as_mut(), &waker).is_pending());
    }
    drop(held);
    // Ends: each is woken in its turn.
    while !futures.is_empty() {
        woken.wait_for(1);
        woken.0.store(0, Ordering::SeqCst);
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
    let Error::NoMemory { held_bytes, .. } = error else { panic!("{error:?}") };
    assert!(held_bytes >= held.len() as u64 * PAGE, "{held_bytes}");
    // A batch that is larger than the budget, too.
    drop(held);
    let pages: Vec<_> = (0..256).collect();
    let error = runtime.block_on(other.get_many_async(&pages)).unwrap_err();
    assert!(matches!(error, Error::NoMemory { .. }), "{error:?}");
    // And nothing stays held.
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

/// A source that keeps what is submitted to it until it is let go.
#[derive(Debug)]
struct Queue {
    bytes: Memory,
    /// Offset and length of each request of each call.
    starts: Mutex<Vec<Vec<(u64, usize)>>>,
    kept: Mutex<Vec<Request>>,
}

impl Queue {
    fn let_go(&self) {
        for request in std::mem::take(&mut *self.kept.lock().unwrap()) {
            let read = self.bytes.read_extents_at(request.offset(), request.extents());
            request.finish(read);
        }
    }

    /// What was submitted, each submission in the order of the file.
    fn started(&self) -> Vec<Vec<(u64, usize)>> {
        let mut starts = std::mem::take(&mut *self.starts.lock().unwrap());
        starts.iter_mut().for_each(|start| start.sort_unstable());
        starts
    }
}

#[derive(Debug)]
struct Queued(Arc<Queue>);

impl Source for Queued {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.bytes.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.bytes.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "queued".into()
    }
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        let asked = batch.iter().map(|request| (request.offset(), request.bytes())).collect();
        self.0.starts.lock().unwrap().push(asked);
        self.0.kept.lock().unwrap().append(batch);
        Start::Started
    }
}

/// 512 pages in a queue.
fn queued(budget_bytes: u64) -> (Cache, File, Arc<Queue>, Pattern) {
    let pattern = Pattern::new(6, 0);
    let cache = Cache::new(Options::new(budget_bytes)).unwrap();
    let bytes = Memory::new(pattern.to_vec((512 * PAGE) as usize));
    let queue = Queue { bytes, starts: Mutex::default(), kept: Mutex::default() };
    let queue = Arc::new(queue);
    let file = cache.attach("queued", Arc::new(Queued(queue.clone()))).unwrap();
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
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "not for each page");
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

/// A batch that waits for a page that never comes is woken all the same when there is memory for its
/// next: others queue behind it.
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
    woken.wait_for(1);
    assert!(poll(many.as_mut(), &waker).is_pending(), "page 7 is still missing");
    assert_eq!(cache.stats().fills_in_flight, 2, "and page 8 is on its way");
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
        let seen = woken.0.load(Ordering::SeqCst);
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
