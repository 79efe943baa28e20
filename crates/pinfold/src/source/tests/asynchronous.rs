//! Asynchronous reads: each ends exactly once, whatever carries it out and whatever goes wrong.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::base::mutant::{self, Mutant};
use crate::source::descriptor::Descriptor;
use crate::source::lanes::Lanes;
use crate::source::{Memory, Start};

const LEN: usize = 3_000_001;
const WAIT: Duration = Duration::from_secs(60);

/// A direct file by ring and by workers, a buffered one, memory, and a slow source.
fn all(directory: &Path) -> Vec<Backing> {
    let path = file_of(directory, LEN);
    let engine = ring_engine();
    let slow = Spoiled::new(Arc::new(Memory::new(pattern(LEN))), |call, _, got| {
        if call.is_multiple_of(7) {
            std::thread::sleep(Duration::from_millis(2));
        }
        got
    });
    let mut all = vec![
        backing(&path, Some(false), &engine),
        Backing::new(Arc::new(Memory::new(pattern(LEN))), Arc::clone(&engine)),
        Backing::new(Arc::new(slow), Arc::clone(&engine)),
    ];
    all.extend(direct(&path, &engine));
    all.extend(direct(&path, &pool_engine()));
    all
}

/// Submits all of `batch`, waiting while as much as allowed is in flight. Bounded by the
/// completions of others.
fn submit_all(backing: &Backing, mut batch: Vec<Request>) {
    loop {
        backing.submit(&mut batch);
        if batch.is_empty() {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn hundreds_in_flight_from_many_threads_each_end_once() {
    let directory = tempfile::tempdir().unwrap();
    for backing in all(directory.path()) {
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (backing, tell) = (&backing, tell.clone());
                scope.spawn(move || {
                    for batch in 0..25 {
                        let requests = (0..8_u64).map(|n| {
                            // Each offset once over all threads; the last lie beyond the end.
                            let page = (thread * 25 + batch) * 8 + n;
                            let shape = [(1, 1), (4, 4), (12, 12), (2, 1)][n as usize % 4];
                            request(page * PAGE as u64, shape.0 * PAGE, shape.1, &tell)
                        });
                        submit_all(backing, requests.collect());
                    }
                    // The thread ends here, with requests in flight.
                });
            }
        });
        drop(tell);
        let mut seen = HashMap::new();
        for (offset, result, lent) in told {
            check(offset, result.unwrap(), lent.bytes(), LEN as u64);
            *seen.entry(offset).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 800);
        assert!(seen.values().all(|times| *times == 1), "some ended twice: {seen:?}");
        let stats = backing.stats().read_ahead;
        assert_eq!((stats.calls, stats.errors), (800, 0), "{}", backing.source().kind());
        assert!(stats.short > 0 && stats.total_ns >= stats.max_ns);
    }
}

#[test]
fn more_extents_than_the_kernel_takes_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), 1500 * PAGE - 5);
    for engine in [ring_engine(), pool_engine()] {
        let Some(backing) = direct(&path, &engine) else { return };
        let (tell, told) = channel();
        submit_all(&backing, vec![request(0, 1500 * PAGE, 1500, &tell)]);
        let (_, result, lent) = told.recv_timeout(WAIT).unwrap();
        check(0, result.unwrap(), lent.bytes(), 1500 * PAGE as u64 - 5);
    }
}

#[test]
fn dropping_the_engine_waits_for_what_is_in_flight() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), 16 << 20);
    // Each with an engine of its own: waiting for the slow one must not cover up for the other.
    for (ring_depth, slow) in [(64, false), (64, true), (0, false), (0, true)] {
        let options = EngineOptions { ring_depth, ..EngineOptions::default() };
        let engine = Arc::new(Engine::new(options));
        let mut source = open(&path, Access::Read, None, &engine).unwrap().source;
        if slow {
            source = Arc::new(Spoiled::new(source, |_, _, got| {
                std::thread::sleep(Duration::from_millis(10));
                got
            }));
        }
        let ended = Arc::new(AtomicUsize::new(0));
        let backing = Backing::new(source, Arc::clone(&engine));
        let mut batch: Vec<_> =
            (0..40).map(|n| counting_request(n % 8 * (2 << 20), 2 << 20, &ended)).collect();
        backing.submit(&mut batch);
        assert!(batch.is_empty());
        drop((backing, engine));
        assert_eq!(ended.load(Ordering::SeqCst), 40);
    }
}

/// A request that adds one to `ended` a little after it has ended well.
fn counting_request(offset: u64, bytes: usize, ended: &Arc<AtomicUsize>) -> Request {
    let (lent, ended) = (Lent::filled(bytes, 0xaa), Arc::clone(ended));
    let extent = lent.extent();
    let tell = move |result: io::Result<usize>| {
        assert_eq!(result.unwrap(), lent.bytes().len());
        ended.fetch_add(1, Ordering::SeqCst);
    };
    // SAFETY: the completion owns the memory.
    unsafe { Request::read(offset, vec![extent], Box::new(tell)) }
}

#[test]
fn what_finds_no_room_comes_back_untouched_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), LEN);
    for ring_depth in [4, 0] {
        // Without a ring: a worker at work or about to be, and three that wait.
        let options =
            EngineOptions { ring_depth, workers_max: 2, lane_max: 4, ..EngineOptions::default() };
        let engine = Arc::new(Engine::new(options));
        let Some(backing) = direct(&path, &engine) else { return };
        let (tell, told) = channel();
        let mut batch: Vec<_> = (0..10).map(|n| request(n * PAGE as u64, PAGE, 1, &tell)).collect();
        backing.submit(&mut batch);
        let left: Vec<_> = batch.iter().map(|request| request.offset() / PAGE as u64).collect();
        assert_eq!(left, [4, 5, 6, 7, 8, 9]);
        for _ in 0..4 {
            let (offset, result, lent) = told.recv_timeout(WAIT).unwrap();
            assert!(offset < 4 * PAGE as u64);
            check(offset, result.unwrap(), lent.bytes(), LEN as u64);
        }
        assert_eq!(backing.stats().read_ahead.calls, 4, "what came back is not counted");
        // Dropped by the caller that got it back: the completion is called once, with an error.
        drop(batch);
        drop(tell);
        let dropped: Vec<_> = told.iter().collect();
        assert_eq!(dropped.len(), 6);
        assert!(dropped.iter().all(|(_, result, _)| result.is_err()));
    }
}

#[test]
fn after_the_engine_nothing_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), LEN);
    for engine in [ring_engine(), pool_engine()] {
        let source = open(&path, Access::Read, None, &engine).unwrap().source;
        let ring = engine.ring.clone();
        drop(engine);
        let (tell, _told) = channel();
        let mut batch = vec![request(0, PAGE, 1, &tell)];
        let start = source.start(&mut batch);
        if ring.is_ok() && source.alignment() > 1 {
            assert_eq!(start, crate::source::Start::Full);
        }
        assert_eq!(batch.len(), 1);
    }
}

/// Reads page `n` and, when that has ended, the next, from inside the completion.
fn chain(backing: &Arc<Backing>, n: u64, tell: Sender<u64>) {
    let (lent, of_next) = (Lent::filled(PAGE, 0xaa), Arc::clone(backing));
    let extent = lent.extent();
    let next = move |result: io::Result<usize>| {
        check(n * PAGE as u64, result.unwrap(), lent.bytes(), LEN as u64);
        tell.send(n).unwrap();
        if n < 500 {
            chain(&of_next, n + 1, tell);
        }
    };
    // SAFETY: the completion owns the memory.
    let request = unsafe { Request::read(n * PAGE as u64, vec![extent], Box::new(next)) };
    let mut batch = vec![request];
    backing.submit(&mut batch);
    assert!(batch.is_empty());
}

#[test]
fn a_completion_may_start_the_next_read() {
    let directory = tempfile::tempdir().unwrap();
    for backing in all(directory.path()) {
        let (tell, told) = channel();
        chain(&Arc::new(backing), 0, tell);
        // The last handle of the engine may go in a completion, too: that must not deadlock.
        let seen: Vec<_> = (0..=500).map(|_| told.recv_timeout(WAIT).unwrap()).collect();
        assert!(seen.into_iter().eq(0..=500));
    }
}

#[test]
fn a_panic_harms_its_own_request_alone() {
    #[derive(Debug)]
    struct Panics;
    impl Source for Panics {
        fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> io::Result<usize> {
            panic!("the source's own, on purpose")
        }
        fn len_bytes(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }
        fn kind(&self) -> std::borrow::Cow<'static, str> {
            "panicky".into()
        }
    }

    let directory = tempfile::tempdir().unwrap();
    let engine =
        Arc::new(Engine::new(EngineOptions { workers_max: 1, ..EngineOptions::default() }));
    let (tell, told) = channel();
    let panics = Backing::new(Arc::new(Panics), Arc::clone(&engine));
    submit_all(&panics, vec![request(0, PAGE, 1, &tell)]);
    let cause = told.recv_timeout(WAIT).unwrap().1.unwrap_err();
    assert!(cause.to_string().contains("kind panicky panicked"), "{cause}");

    let path = file_of(directory.path(), LEN);
    for direct in [None, Some(false)] {
        let backing = backing(&path, direct, &engine);
        let lent = Lent::filled(PAGE, 0);
        let extent = lent.extent();
        let completion = move |_| {
            let _keep = lent;
            panic!("the completion's own, on purpose");
        };
        // SAFETY: the completion owns the memory.
        let bad = unsafe { Request::read(0, vec![extent], Box::new(completion)) };
        submit_all(&backing, vec![bad, request(PAGE as u64, PAGE, 1, &tell)]);
        let (offset, result, lent) = told.recv_timeout(WAIT).unwrap();
        check(offset, result.unwrap(), lent.bytes(), LEN as u64);
    }
}

/// A pattern; whatever is named panics.
#[derive(Debug)]
struct PanicsIn(&'static [&'static str]);

impl PanicsIn {
    fn may_panic(&self, what: &str) {
        assert!(!self.0.contains(&what), "as the test wants it");
    }
}

impl Source for PanicsIn {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.may_panic("read_at");
        (offset..).zip(&mut *buf).for_each(|(n, byte)| *byte = byte_at(n));
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }
    fn kind(&self) -> std::borrow::Cow<'static, str> {
        self.may_panic("kind");
        "panics".into()
    }
    fn deadline(&self) -> Option<Duration> {
        self.may_panic("deadline");
        None
    }
}

impl Drop for PanicsIn {
    fn drop(&mut self) {
        self.may_panic("drop");
    }
}

/// Submits a read of another source, which the engine has to serve as before.
fn is_served(engine: &Arc<Engine>) {
    let memory = Backing::new(Arc::new(Memory::new(pattern(PAGE))), Arc::clone(engine));
    let (tell, told) = channel();
    let mut batch = vec![request(0, PAGE, 1, &tell)];
    let since = std::time::Instant::now();
    // A worker that has finished a request is free a moment later.
    while !batch.is_empty() {
        assert!(since.elapsed() < WAIT, "the workers are lost");
        memory.submit(&mut batch);
        std::thread::yield_now();
    }
    let (_, result, lent) = told.recv_timeout(WAIT).expect("a worker is left");
    check(0, result.unwrap(), lent.bytes(), PAGE as u64);
}

fn one_worker() -> Arc<Engine> {
    Arc::new(Engine::new(EngineOptions {
        ring_depth: 0,
        workers_max: 1,
        ..EngineOptions::default()
    }))
}

#[test]
fn a_source_that_panics_when_a_worker_asks_for_its_kind_keeps_no_worker() {
    let (engine, (tell, told)) = (one_worker(), channel());
    let panics = Backing::new(Arc::new(PanicsIn(&["read_at", "kind"])), Arc::clone(&engine));
    submit_all(&panics, (0..3).map(|n| request(n * PAGE as u64, PAGE, 1, &tell)).collect());
    for _ in 0..3 {
        let cause = told.recv_timeout(WAIT).expect("it ends").1.unwrap_err();
        assert_eq!(
            cause.to_string(),
            "the source of kind unknown (it panicked when it was asked) panicked in a read"
        );
    }
    is_served(&engine);
}

#[test]
fn a_source_that_panics_when_it_is_asked_for_its_deadline_has_none() {
    let (engine, (tell, told)) = (one_worker(), channel());
    let panics = Backing::new(Arc::new(PanicsIn(&["deadline"])), Arc::clone(&engine));
    submit_all(&panics, (0..3).map(|n| request(n * PAGE as u64, PAGE, 1, &tell)).collect());
    for _ in 0..3 {
        let (offset, result, lent) = told.recv_timeout(WAIT).expect("it ends");
        check(offset, result.unwrap(), lent.bytes(), 1 << 20);
    }
    is_served(&engine);
}

/// The worker has the last reference to it.
#[test]
fn a_source_that_panics_when_a_worker_drops_it_keeps_no_worker() {
    let (engine, (tell, told)) = (one_worker(), channel());
    let gate = Arc::new(std::sync::Barrier::new(2));
    let at_gate = Arc::clone(&gate);
    let spoiled = Spoiled::new(Arc::new(PanicsIn(&["drop"])), move |call, _, got| {
        if call == 1 {
            at_gate.wait();
        }
        got
    });
    let panics = Backing::new(Arc::new(spoiled), Arc::clone(&engine));
    submit_all(&panics, (0..3).map(|n| request(n * PAGE as u64, PAGE, 1, &tell)).collect());
    drop(panics);
    gate.wait();
    for _ in 0..3 {
        let (offset, result, lent) = told.recv_timeout(WAIT).expect("it ends");
        check(offset, result.unwrap(), lent.bytes(), 1 << 20);
    }
    is_served(&engine);
}

#[test]
fn requests_that_are_not_aligned_end_in_an_error_and_do_not_hang_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), LEN);
    for round in 0..50 {
        let engine = ring_engine();
        let Some(backing) = direct(&path, &engine) else { return };
        let (tell, told) = channel();
        let mut batch = vec![request(1, PAGE, 1, &tell)];
        if round % 2 == 0 {
            batch.push(request(0, PAGE, 1, &tell));
        }
        backing.submit(&mut batch);
        drop((backing, engine, tell));
        for (offset, result, _) in told {
            let kind = result.map_err(|cause| cause.kind());
            let expected = if offset == 1 { Err(io::ErrorKind::InvalidInput) } else { Ok(PAGE) };
            assert_eq!(kind, expected);
        }
    }
}

#[test]
fn a_file_cut_short_by_another_reads_short() {
    let directory = tempfile::tempdir().unwrap();
    for direct in [None, Some(false)] {
        let path = file_of(directory.path(), LEN);
        let backing = backing(&path, direct, &ring_engine());
        std::fs::File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        let (tell, told) = channel();
        for offset in [0, 2 * PAGE as u64, 16 * PAGE as u64] {
            submit_all(&backing, vec![request(offset, 8 * PAGE, 2, &tell)]);
            let (offset, result, lent) = told.recv_timeout(WAIT).unwrap();
            check(offset, result.unwrap(), lent.bytes(), 10_000);
        }
    }
}

#[test]
fn faults_reach_asynchronous_reads() {
    let memory = Arc::new(Memory::new(pattern(LEN)));
    let spoiled = Spoiled::new(memory, |_, offset, got| match offset {
        0 => Err(io::Error::from_raw_os_error(libc::EIO)),
        8192 => Ok(9),
        _ => got,
    });
    let backing = Backing::new(Arc::new(spoiled), ring_engine());
    let (tell, told) = channel();
    submit_all(&backing, (0..3).map(|n| request(n * 4096, PAGE, 1, &tell)).collect());
    drop(tell);
    let mut ended: Vec<_> = told.iter().map(|(offset, result, _)| (offset, result)).collect();
    ended.sort_by_key(|(offset, _)| *offset);
    assert_eq!(ended[0].1.as_ref().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(*ended[1].1.as_ref().unwrap(), PAGE);
    assert_eq!(*ended[2].1.as_ref().unwrap(), 9);
    let stats = backing.stats().read_ahead;
    assert_eq!((stats.calls, stats.errors, stats.short), (3, 1, 1));
}

/// It says, in the order in which they ended, the offsets of requests that waited for the first.
fn order(engine: &Arc<Engine>, ahead: u64, awaited: std::ops::Range<u64>) -> Vec<u64> {
    let (open, opened) = channel();
    let opened = std::sync::Mutex::new(opened);
    let source = Spoiled::new(Arc::new(Memory::new(pattern(LEN))), move |call, _, got| {
        if call == 1 {
            opened.lock().unwrap().recv().unwrap();
        }
        got
    });
    let backing = Backing::new(Arc::new(source), Arc::clone(engine));
    let (tell, told) = channel();
    let page = |n: u64| request(n * PAGE as u64, PAGE, 1, &tell);
    for batch in [vec![page(0).awaited()], vec![page(ahead)]] {
        let mut batch = batch;
        backing.submit(&mut batch);
        assert!(batch.is_empty());
    }
    let mut batch: Vec<_> = awaited.map(|n| page(n).awaited()).collect();
    let all = batch.len() + 2;
    backing.submit(&mut batch);
    assert!(batch.is_empty());
    open.send(()).unwrap();
    (0..all).map(|_| told.recv_timeout(WAIT).unwrap().0 / PAGE as u64).collect()
}

#[test]
fn a_read_ahead_is_not_overtaken_for_ever() {
    // One worker for each file.
    let options =
        EngineOptions { ring_depth: 0, workers_max: 2, lane_max: 8, ..EngineOptions::default() };
    let order = order(&Arc::new(Engine::new(options)), 1, 2..100);
    let at = order.iter().position(|&page| page == 1).unwrap();
    assert!(at <= 8, "{at} others went before it");
    assert!(order[1..at].is_sorted(), "{order:?}");
    assert!(at > 1, "those that somebody waits for go first");
}

/// Reads of a device that hangs: of the two ends of a pipe, the test has the other.
fn hanging() -> (Arc<Descriptor>, io::PipeWriter) {
    let (empty, writer) = io::pipe().unwrap();
    let file = Descriptor::of(empty.into(), 1);
    (Arc::new(file), writer)
}

#[test]
fn a_file_that_hangs_does_not_take_all_slots_of_the_ring() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), LEN);
    let engine = ring_engine();
    let Some(backing) = direct(&path, &engine) else { return };
    let Ok(ring) = engine.ring.clone() else { return };
    let (tell, told) = channel();
    let hanging: Vec<_> = (0..3).map(|_| hanging()).collect();
    for (file, _) in &hanging {
        let mut batch: Vec<_> = (0..300).map(|n| request(n, PAGE, 1, &tell).awaited()).collect();
        assert_eq!(ring.start(file, &mut batch), Start::Started);
    }
    let (tell_quick, told_quick) = channel();
    let page = |n: u64| request(n * PAGE as u64, PAGE, 1, &tell_quick).awaited();
    let mut batch: Vec<_> = (0..50).map(page).collect();
    backing.submit(&mut batch);
    assert!(batch.is_empty());
    let quick: Vec<_> = (0..50).map_while(|_| told_quick.recv_timeout(WAIT).ok()).collect();
    drop(hanging); // they end: each reads the end of its pipe
    for _ in 0..900 {
        drop(told.recv_timeout(WAIT).unwrap());
    }
    assert_eq!(quick.len(), 50, "it waits for files that hang");
    for (offset, result, lent) in quick {
        check(offset, result.unwrap(), lent.bytes(), LEN as u64);
    }
}

/// It takes no request then that somebody waits for: a thread reads by itself, and for a future a
/// worker does.
#[test]
fn a_ring_without_a_free_slot_takes_nothing_of_another_file() {
    let options = EngineOptions { ring_depth: 2, ..EngineOptions::default() };
    let engine = Arc::new(Engine::new(options));
    let Ok(ring) = engine.ring.clone() else { return };
    let (tell, told) = channel();
    let hanging: Vec<_> = (0..3).map(|_| hanging()).collect();
    let start = |n: usize| {
        let mut batch = vec![request(0, PAGE, 1, &tell).awaited()];
        ring.start(&hanging[n].0, &mut batch)
    };
    let starts = [0, 1, 2, 0].map(start);
    drop(hanging);
    assert_eq!(starts, [Start::Started, Start::Started, Start::Full, Start::Started]);
    for _ in 0..4 {
        drop(told.recv_timeout(WAIT).unwrap());
    }
}

#[test]
fn one_of_eight_is_a_read_ahead_if_any_waits() {
    let (tell, _told) = channel();
    let order = || {
        let mut lanes = Lanes::new(1);
        lanes.take(1, ((), request(99, 1, 1, &tell).awaited()), true);
        for n in 0..20 {
            let request = request(n, 1, 1, &tell);
            assert!(!lanes.may_begin(1));
            lanes.take(1, ((), if n < 2 { request } else { request.awaited() }), false);
        }
        assert_eq!(lanes.begun.pop_front().expect("it began").1.offset(), 99);
        let next = |_| {
            lanes.end(1, true);
            lanes.begun.pop_front().expect("one waits").1.offset()
        };
        (0..20).map(next).collect()
    };
    let ordered: Vec<u64> = order();
    let ahead: Vec<_> = (0..20).filter(|&at| ordered[at] < 2).collect();
    assert_eq!(ahead, [7, 15], "{ordered:?}");
    let caught = mutant::with(Some(Mutant::AheadWaits), order);
    assert_eq!(caught[18..], [0, 1], "the mutant does nothing");
}

#[test]
fn who_found_no_worker_is_told_when_one_is_free() {
    let options =
        EngineOptions { ring_depth: 0, workers_max: 1, lane_max: 8, ..EngineOptions::default() };
    let (hook, hooked) = channel();
    let engine = Arc::new(Engine::with_hook(options, move || hook.send(()).unwrap()));
    let (open, opened) = channel();
    let opened = std::sync::Mutex::new(opened);
    let source = Spoiled::new(Arc::new(Memory::new(pattern(LEN))), move |_, _, got| {
        opened.lock().unwrap().recv().unwrap();
        got
    });
    let slow = Backing::new(Arc::new(source), Arc::clone(&engine));
    let quick = Backing::new(Arc::new(Memory::new(pattern(LEN))), Arc::clone(&engine));
    let (tell, told) = channel();
    let mut batch = vec![request(0, PAGE, 1, &tell).awaited()];
    slow.submit(&mut batch);
    assert!(batch.is_empty());
    let mut batch = vec![request(0, PAGE, 1, &tell).awaited()];
    quick.submit(&mut batch);
    assert_eq!(batch.len(), 1, "there is no other worker");
    assert!(hooked.try_recv().is_err());
    open.send(()).unwrap();
    drop(told.recv_timeout(WAIT).unwrap());
    hooked.recv_timeout(WAIT).expect("nobody was told");
    quick.submit(&mut batch);
    assert!(batch.is_empty(), "it was told too early");
    drop(told.recv_timeout(WAIT).unwrap());
}
