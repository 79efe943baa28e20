//! What owned bytes keep.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::OwnedBytes;
use crate::base::mutant::{self, Mutant};
use crate::error::Cause;
use crate::pages::core::Core;
use crate::pages::pressure::{Claim, Refused};
use crate::source::Memory;
use crate::{Cache, File, Hint, Options, Result};

const MIB: u64 = 1 << 20;

/// How many of 40 are in place that have a page each, of a file that was read in order.
fn in_place() -> usize {
    let cache = Cache::new(Options::new(16 * MIB)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 10 << 20]))).unwrap();
    let mut buf = vec![0; 64 << 10];
    for at in (0..10 * MIB).step_by(buf.len()) {
        file.read_at(&mut buf, at).unwrap();
    }
    let folios = file.handle().mapping.change().folios();
    assert!(folios < 100, "{folios}: they are too small for the test");
    let kept: Vec<OwnedBytes> =
        (0..40).map(|n| file.bytes(n * MIB / 4 + 10..n * MIB / 4 + 4000).unwrap()).collect();
    assert!(kept.iter().all(|bytes| bytes.iter().all(|&byte| byte == 7)));
    kept.iter().filter(|bytes| format!("{bytes:?}").contains("in place")).count()
}

#[test]
fn a_few_bytes_do_not_keep_a_large_folio() {
    // A 20th of the cache is three folios of 256 KiB.
    let kept = in_place();
    assert!((1..=10).contains(&kept), "{kept}");
    assert_eq!(mutant::with(Some(Mutant::KeepBlindly), in_place), 40, "the mutant does nothing");
}

/// What the error says is held, once copies have all memory; and what they have at least.
fn held() -> (u64, u64) {
    let mut options = Options::new(MIB);
    options.patience = std::time::Duration::from_millis(10);
    let cache = Cache::new(options).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 10 << 20]))).unwrap();
    let mut kept = Vec::new();
    // Ends: there is no memory at last.
    let error = loop {
        let at = kept.len() as u64 * 10_000 + 100;
        match file.bytes(at..at + 50_000) {
            Ok(bytes) => kept.push(bytes),
            Err(error) => break error,
        }
    };
    let Cause::NoMemory { held_bytes, .. } = *error.cause() else { panic!("{error}") };
    (held_bytes, kept.len() as u64 * 50_000)
}

#[test]
fn copies_count_as_held() {
    let (said, least) = held();
    assert!(said >= least && least > 400_000, "{said}, {least}");
    let (said, least) = mutant::with(Some(Mutant::CopyUncounted), held);
    assert!(said < least, "the mutant does nothing: {said}, {least}");
}

/// Notes how much copies have whenever a thread wakes it.
struct Levels {
    core: Arc<Core>,
    thread: ThreadId,
    seen: Mutex<Vec<u32>>,
}

impl Wake for Levels {
    fn wake(self: Arc<Self>) {
        if std::thread::current().id() == self.thread {
            self.seen.lock().unwrap().push(self.core.pressure.copied.now());
        }
    }
}

#[test]
fn who_is_woken_by_the_drop_of_a_copy_finds_its_share_free() {
    let cache = Cache::new(Options::new(16 * MIB)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 64 << 20]))).unwrap();
    let core = cache.core().clone();
    let thread = std::thread::current().id();
    // Ends: unless the daemon is the first to wake it, each time.
    loop {
        let kept = file.bytes(1..5 * MIB).unwrap();
        assert!(core.pressure.copied.now() > 0);
        let levels = Arc::new(Levels { core: core.clone(), thread, seen: Mutex::default() });
        let waker = Waker::from(levels.clone());
        let why = (Refused::OwnFile, core.pressure.progress_seen());
        let Some(turn) = core.pressure.queue((7, None), why, Claim::default(), &waker) else {
            continue;
        };
        drop(kept);
        core.pressure.leave(7, turn);
        if let Some(first) = levels.seen.lock().unwrap().first() {
            assert_eq!(*first, 0, "it was woken too early");
            break;
        }
    }
}

/// Longer than a test lasts.
const LONG: Duration = Duration::from_secs(60);

/// A cache of 16 MiB, of which copies may have 15.5; copies have 9 of them.
fn full_of_copies(patience: Duration) -> (Cache, File, Vec<OwnedBytes>) {
    let mut options = Options::new(16 * MIB);
    options.patience = patience;
    let cache = Cache::new(options).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 64 << 20]))).unwrap();
    let kept = [1, 4 * MIB + 1, 8 * MIB + 1].map(|at| file.bytes(at..at + 3 * MIB).unwrap());
    (cache, file, kept.into())
}

type Bytes<'a> = Pin<&'a mut dyn Future<Output = Result<OwnedBytes>>>;

fn poll(bytes: &mut Bytes<'_>) -> Poll<Result<OwnedBytes>> {
    bytes.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls a future for the first time, whose first page is there: it queues at once.
fn poll_until_it_queues(cache: &Cache, bytes: &mut Bytes<'_>) {
    assert!(poll(bytes).is_pending() && cache.core().pressure.is_queued_for());
}

/// Polls until it is ready.
fn end(bytes: &mut Bytes<'_>, mut meanwhile: impl FnMut()) -> Result<OwnedBytes> {
    let since = Instant::now();
    // Ends: when it is ready, or too late.
    loop {
        if let Poll::Ready(ended) = poll(bytes) {
            return ended;
        }
        assert!(since.elapsed() < LONG, "it waits for ever");
        meanwhile();
        std::thread::yield_now();
    }
}

/// Whether a new future may begin, while another one waits for copies to be dropped, or for guards.
fn others_go_on(of_same_file: bool, guards: bool) -> bool {
    let (cache, file, mut kept) = full_of_copies(LONG);
    let other = cache.attach("other", Arc::new(Memory::new(vec![7; 16 << 20]))).unwrap();
    let mut held = Vec::new();
    if guards {
        kept.clear();
        other.advise(.., Hint::Random).unwrap();
        held = (0..2500).map(|page| other.get(page).unwrap()).collect();
    }
    let _first = file.get(20 * MIB / 4096).unwrap();
    let mut copy: Bytes<'_> = pin!(file.bytes_async(20 * MIB + 1..28 * MIB));
    poll_until_it_queues(&cache, &mut copy);
    let mapping = &(if of_same_file { file.handle() } else { other.handle() }).mapping;
    let line = (mapping.id, &mapping.on_its_way);
    let (claimed, _) = cache.core().pressure.claim(line, 1, false);
    drop(held);
    claimed.map(|claim| cache.core().pressure.unclaim(mapping.id, claim)).is_ok()
}

#[test]
fn nobody_waits_behind_a_copy() {
    for case in [(true, false), (false, false), (true, true), (false, true)] {
        let go_on = || others_go_on(case.0, case.1);
        assert!(go_on(), "{case:?}");
        let mutated = mutant::with(Some(Mutant::CopyBeforeAll), go_on);
        assert!(!mutated, "the mutant does nothing: {case:?}");
    }
}

#[test]
fn reads_do_not_lengthen_the_wait_for_other_copies() {
    let (cache, file, _kept) = full_of_copies(Duration::from_millis(100));
    let mut copy: Bytes<'_> = pin!(file.bytes_async(20 * MIB + 1..28 * MIB));
    let mut at = 0;
    let ended = end(&mut copy, || {
        at = (at + 4096) % MIB;
        file.invalidate(40 * MIB..41 * MIB).unwrap();
        file.read_at(&mut [0], 40 * MIB + at).unwrap();
    });
    let error = ended.unwrap_err();
    let Cause::NoMemory { held_bytes, .. } = *error.cause() else { panic!("{error}") };
    assert!(held_bytes >= 9 * MIB, "{error}");
    assert!(cache.core().pressure.is_idle(), "it has left the queue");
}

/// Whether a copy for which there is room waits for its turn behind one that came before. That one
/// goes on once there is room for it, or is not polled any more.
fn copies_have_turns(polled: bool) -> bool {
    let (cache, file, kept) = full_of_copies(LONG);
    let _first = file.get(20 * MIB / 4096).unwrap();
    let mut large: Bytes<'_> = pin!(file.bytes_async(20 * MIB + 1..28 * MIB));
    let mut small: Bytes<'_> = pin!(file.bytes_async(40 * MIB + 1..40 * MIB + 400_000));
    poll_until_it_queues(&cache, &mut large);
    file.invalidate(..).unwrap(); // there is memory enough
    let _second = file.get(40 * MIB / 4096).unwrap();
    let copied = || cache.core().pressure.copied.now();
    let before = copied();
    // It may be over at once: what it wants may have been read ahead by now.
    let small_now = poll(&mut small);
    let waits = copied() == before;
    drop(kept);
    if polled {
        assert_eq!(end(&mut large, || ()).unwrap().len() as u64, 8 * MIB - 1);
    }
    let small_then = match small_now {
        Poll::Ready(bytes) => bytes,
        Poll::Pending => end(&mut small, || ()),
    };
    assert_eq!(small_then.unwrap().len(), 399_999);
    waits
}

#[test]
fn copies_wait_for_memory_in_turn() {
    assert!(copies_have_turns(true));
    assert!(copies_have_turns(false));
    let mutated = mutant::with(Some(Mutant::NewcomerFirst), || copies_have_turns(true));
    assert!(!mutated, "the mutant does nothing");
}
