//! Requests that are stopped, by the clock or a test in its place: each ends once, and only when
//! its memory is no longer in use.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::base::sync::locks::{Condvar, Mutex};

use super::*;
use crate::source::descriptor::Descriptor;
use crate::source::{Memory, Start};

/// Only there to end a test that hangs.
const WAIT: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(20);

fn ended(told: &Receiver<Ended>) -> Ended {
    told.recv_timeout(WAIT).expect("a stopped request ends")
}

/// A request that was stopped ended so.
#[track_caller]
fn assert_stopped(result: io::Result<usize>) {
    let cause = result.unwrap_err();
    assert_eq!(cause.kind(), io::ErrorKind::TimedOut, "{cause}");
}

#[test]
fn what_the_kernel_waits_for_is_cancelled() {
    let engine = ring_engine();
    let Ok(ring) = engine.ring.clone() else { return };
    let (empty, writer) = io::pipe().unwrap();
    let file = Descriptor::of(empty.into(), 1);
    let file = Arc::new(file);
    let (tell, told) = channel();
    let mut cancelled = request(1, PAGE, 1, &tell);
    let canceller = cancelled.control();
    let late = request(2, PAGE, 1, &tell).with_deadline(Instant::now() + SOON);
    engine.clock.watch([&late].into_iter());
    assert_eq!(ring.start(&file, &mut vec![late, cancelled]), Start::Started);
    let (offset, result, _) = ended(&told);
    assert_eq!(offset, 2);
    assert_stopped(result);
    canceller.time_out();
    let (offset, result, _) = ended(&told);
    assert_eq!(offset, 1);
    assert_stopped(result);
    canceller.time_out(); // of one that has ended: nothing
    // The pipe is not read any more, and the ring still works.
    let mut whole = request(3, PAGE, 1, &tell);
    let _canceller = whole.control();
    assert_eq!(ring.start(&file, &mut vec![whole]), Start::Started);
    io::Write::write_all(&mut { writer }, &pattern(PAGE)).unwrap();
    let (offset, result, lent) = ended(&told);
    assert_eq!((offset, result.unwrap()), (3, PAGE));
    assert_eq!(lent.bytes(), pattern(PAGE));
}

/// A pattern that is read when it is let to; `looks`: unless the request is to be stopped.
#[derive(Debug, Default)]
struct Gated {
    looks: bool,
    open: Mutex<bool>,
    changed: Condvar,
    calls: AtomicUsize,
}

impl Source for Gated {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        (offset..).zip(&mut *buf).for_each(|(n, byte)| *byte = byte_at(n));
        Ok(buf.len())
    }
    fn carry_out(&self, request: &Request) -> io::Result<usize> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock();
        while !*open {
            if self.looks && request.is_stopped() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            open = self.changed.wait_timeout(open, Duration::from_millis(1));
        }
        self.read_extents_at(request.offset(), request.extents())
    }
    fn deadline(&self) -> Option<Duration> {
        Some(SOON)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }
    fn kind(&self) -> Cow<'static, str> {
        "gated".into()
    }
}

#[test]
fn what_waits_for_a_worker_ends_at_its_deadline_and_what_the_source_has_when_that_is_done() {
    let source = Arc::new(Gated::default());
    let options = EngineOptions { workers_max: 2, ..EngineOptions::default() };
    let backing = Backing::new(source.clone(), Arc::new(Engine::new(options)));
    let (tell, told) = channel();
    let mut batch: Vec<_> = (0..5).map(|n| request(n * PAGE as u64, PAGE, 1, &tell)).collect();
    backing.submit(&mut batch);
    assert!(batch.is_empty());
    // The lane has one worker, and the source has what that took.
    let mut offsets: Vec<_> = (0..4)
        .map(|_| {
            let (offset, result, _) = ended(&told);
            assert_stopped(result);
            offset / PAGE as u64
        })
        .collect();
    offsets.sort_unstable();
    assert_eq!(offsets, [1, 2, 3, 4]);
    assert_eq!(source.calls.load(Ordering::SeqCst), 1);
    // Its deadline has passed as well, but the source may still write to the memory.
    assert!(matches!(told.recv_timeout(5 * SOON), Err(RecvTimeoutError::Timeout)));
    *source.open.lock() = true;
    source.changed.notify_all();
    let (offset, result, lent) = ended(&told);
    check(offset, result.unwrap(), lent.bytes(), 1 << 20);
    assert_eq!(backing.stats().read_ahead.errors, 4);
}

#[test]
fn a_source_that_looks_ends_at_the_deadline() {
    let source = Arc::new(Gated { looks: true, ..Gated::default() });
    let backing = Backing::new(source, pool_engine());
    let (tell, told) = channel();
    backing.submit(&mut (0..20).map(|n| request(n * PAGE as u64, PAGE, 1, &tell)).collect());
    for _ in 0..20 {
        assert_stopped(ended(&told).1);
    }
}

#[test]
fn what_was_cancelled_before_is_not_carried_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), 100_000);
    let (ring, pool) = (ring_engine(), pool_engine());
    let mut all = vec![
        backing(&path, Some(false), &pool),
        Backing::new(Arc::new(Memory::new(pattern(100_000))), pool.clone()),
    ];
    all.extend(direct(&path, &ring));
    for backing in all {
        let (tell, told) = channel();
        let mut dead = request(0, PAGE, 1, &tell);
        dead.control().time_out();
        backing.submit(&mut vec![dead]);
        let (_, result, lent) = ended(&told);
        assert_stopped(result);
        assert!(lent.bytes().iter().all(|&byte| byte == 0xaa), "it was carried out");
    }
}

/// Keeps requests, and finishes those that are to be stopped.
#[derive(Debug, Default)]
struct Client(Arc<Mutex<Vec<Request>>>);

impl Source for Client {
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        unreachable!("it has a queue of its own")
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }
    fn kind(&self) -> Cow<'static, str> {
        "client".into()
    }
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        for request in batch.drain(..) {
            let (queue, offset) = (Arc::clone(&self.0), request.offset());
            let (go, stopped) = channel();
            request.on_stop(move || go.send(()).unwrap());
            self.0.lock().push(request);
            std::thread::spawn(move || {
                if stopped.recv().is_ok() {
                    let mut queue = queue.lock();
                    let n = queue.iter().position(|request| request.offset() == offset);
                    queue.remove(n.unwrap()).finish(Err(io::Error::other("aborted")));
                }
            });
        }
        Start::Started
    }
}

#[test]
fn a_source_with_a_queue_is_told() {
    let client = Arc::new(Client::default());
    let backing = Backing::new(client, pool_engine());
    let (tell, told) = channel();
    let mut first = request(0, PAGE, 1, &tell);
    let canceller = first.control();
    let second = request(PAGE as u64, PAGE, 1, &tell).with_deadline(Instant::now() + SOON);
    backing.submit(&mut vec![first, second]);
    let (offset, result, _) = ended(&told);
    assert_eq!(offset, PAGE as u64);
    assert_stopped(result);
    canceller.time_out();
    let (offset, result, _) = ended(&told);
    assert_eq!(offset, 0);
    assert_stopped(result);
}

/// Asks to be told when a request is to stop, and leaves it to the workers.
#[derive(Debug)]
struct Watching {
    inner: Arc<Gated>,
    say: Sender<u64>,
}

impl Source for Watching {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buf)
    }
    fn carry_out(&self, request: &Request) -> io::Result<usize> {
        self.inner.carry_out(request)
    }
    fn deadline(&self) -> Option<Duration> {
        self.inner.deadline()
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.inner.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "watching".into()
    }
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        for request in &*batch {
            let (say, offset) = (self.say.clone(), request.offset());
            request.on_stop(move || say.send(offset).unwrap());
        }
        Start::Unsupported
    }
}

/// The workers ask for the same, for requests in their queues.
#[test]
fn a_source_that_leaves_its_requests_to_the_workers_is_told() {
    let (say, said) = channel();
    let inner = Arc::new(Gated::default());
    let options = EngineOptions { workers_max: 2, ..EngineOptions::default() };
    let source = Watching { inner: inner.clone(), say };
    let backing = Backing::new(Arc::new(source), Arc::new(Engine::new(options)));
    let (tell, told) = channel();
    backing.submit(&mut (0..5).map(|n| request(n * PAGE as u64, PAGE, 1, &tell)).collect());
    let next = || said.recv_timeout(WAIT).map(|offset| offset / PAGE as u64);
    let mut asked: Vec<_> = (0..5).map(|_| next().expect("all are told of")).collect();
    asked.sort_unstable();
    assert_eq!(asked, [0, 1, 2, 3, 4]);
    // And the queue is still cleared: all but the one that the source has.
    for _ in 0..4 {
        assert_stopped(ended(&told).1);
    }
    *inner.open.lock() = true;
    inner.changed.notify_all();
    assert_eq!(ended(&told).1.unwrap(), PAGE);
}

/// The same for the ring, and the order: each layer that passed a request on is told of the stop
/// before the request ends.
#[test]
fn all_who_ask_are_told_in_their_order() {
    let engine = ring_engine();
    let Ok(ring) = engine.ring.clone() else { return };
    let (empty, _writer) = io::pipe().unwrap();
    let file = Descriptor::of(empty.into(), 1);
    let (tell, told) = channel();
    let (say, said) = channel();
    let mut passed_on = request(1, PAGE, 1, &tell);
    let canceller = passed_on.control();
    for n in 0..3 {
        let say = say.clone();
        passed_on.on_stop(move || say.send(n).unwrap());
    }
    drop(say);
    assert_eq!(ring.start(&Arc::new(file), &mut vec![passed_on]), Start::Started);
    canceller.time_out();
    assert!(said.iter().eq(0..3));
    assert_stopped(ended(&told).1);
}

#[test]
fn who_asks_too_late_is_told_at_once_and_who_asked_for_one_that_ended_never() {
    let (tell, told) = channel();
    let (say, said) = channel();
    let mut stopped = request(1, PAGE, 1, &tell);
    let mut whole = request(2, PAGE, 1, &tell);
    let cancellers = [stopped.control(), whole.control()];
    let of_whole = say.clone();
    whole.on_stop(move || of_whole.send(2).unwrap());
    whole.finish(Ok(PAGE));
    assert_eq!(ended(&told).1.unwrap(), PAGE);
    for canceller in &cancellers {
        canceller.time_out();
    }
    stopped.on_stop(move || say.send(1).unwrap());
    assert!(said.iter().eq([1]), "the one that ended said something");
    stopped.finish(Err(io::Error::other("aborted")));
    assert_stopped(ended(&told).1);
}

#[test]
fn a_panic_of_who_is_told_harms_nobody_else() {
    let (tell, told) = channel();
    let client = Arc::new(Client::default());
    let backing = Backing::new(client, pool_engine());
    let panics = |request: &Request| request.on_stop(|| panic!("as the test wants it"));
    let mut first = request(0, PAGE, 1, &tell).with_deadline(Instant::now() + SOON);
    panics(&first);
    let canceller = first.control();
    let second = request(PAGE as u64, PAGE, 1, &tell).with_deadline(Instant::now() + 2 * SOON);
    backing.submit(&mut vec![first, second]);
    // The client's function, after the one that panics, ends the first; the clock goes on.
    for offset in [0, PAGE as u64] {
        let (of, result, _) = ended(&told);
        assert_eq!(of, offset);
        assert_stopped(result);
    }
    canceller.time_out();
    // On the thread that cancels, and on the one that asks too late.
    let mut third = request(0, PAGE, 1, &tell);
    panics(&third);
    let canceller = third.control();
    panics(&third);
    canceller.time_out();
    panics(&third);
    third.finish(Err(io::Error::other("aborted")));
    assert_stopped(ended(&told).1);
}

/// What a closure has may panic when it is dropped: a worker, the ring and the clock go on.
#[test]
fn a_panic_of_what_is_dropped_harms_nobody_else() {
    struct Heavy;
    impl Drop for Heavy {
        fn drop(&mut self) {
            panic!("as the test wants it");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), 100_000);
    let (ring, pool) = (ring_engine(), pool_engine());
    let memory: Arc<dyn Source> = Arc::new(Memory::new(pattern(100_000)));
    let mut all = vec![Backing::new(memory, pool.clone())];
    all.extend(direct(&path, &ring));
    for backing in all {
        let (tell, told) = channel();
        for n in 0..40 {
            let mut odd = request(0, PAGE, 1, &tell);
            let _canceller = odd.control();
            let heavy = Heavy;
            odd.on_stop(move || drop(heavy));
            let next = request(PAGE as u64, PAGE, 1, &tell);
            let mut batch = vec![odd, next];
            // Ends: requests are taken when earlier ones have ended.
            while !batch.is_empty() {
                backing.submit(&mut batch);
                std::thread::yield_now();
            }
            for _ in 0..2 {
                assert_eq!(ended(&told).1.unwrap(), PAGE, "round {n}");
            }
        }
    }
}

/// Each ends once, with all of its bytes or with the reason, and its memory is not touched then.
#[test]
fn cancelling_races_with_completing() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), 4 << 20);
    let mut all = vec![backing(&path, Some(false), &pool_engine())];
    all.extend(direct(&path, &ring_engine()));
    all.extend(direct(&path, &pool_engine()));
    for backing in all {
        let (tell, told) = channel();
        let mut numbers = Numbers(7);
        let mut given = 0;
        for _ in 0..200 {
            let mut batch = Vec::new();
            let mut cancellers = Vec::new();
            for n in 0..8 {
                let offset = numbers.below(1000) * PAGE as u64;
                let mut request = request(offset, 2 * PAGE, 2, &tell);
                match n % 4 {
                    0 => cancellers.push(request.control()),
                    1 => {
                        let soon = Duration::from_micros(numbers.below(300));
                        request = request.with_deadline(Instant::now() + soon);
                    }
                    _ => {}
                }
                batch.push(request);
            }
            given += batch.len();
            while !batch.is_empty() {
                backing.submit(&mut batch);
                std::thread::yield_now();
            }
            (0..numbers.below(2000)).for_each(|_| std::hint::spin_loop());
            for canceller in &cancellers {
                canceller.time_out();
            }
        }
        drop(tell);
        let (mut whole, mut stopped) = (0, 0);
        for (offset, result, lent) in told {
            match result {
                Ok(got) => {
                    check(offset, got, lent.bytes(), 4 << 20);
                    whole += 1;
                }
                Err(cause) => {
                    assert_stopped(Err(cause));
                    stopped += 1;
                }
            }
        }
        assert_eq!(whole + stopped, given);
        assert!(whole >= given / 2, "none of these was to be stopped");
        println!("{}: {whole} whole, {stopped} stopped", backing.source().kind());
    }
}
