//! What owned bytes keep.

use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread::ThreadId;

use super::OwnedBytes;
use crate::core::Core;
use crate::mutant::{self, Mutant};
use crate::pressure::{Claim, Refused};
use crate::source::Memory;
use crate::{Cache, ErrorKind, Options};

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
    let ErrorKind::NoMemory { held_bytes, .. } = *error.kind() else { panic!("{error}") };
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
            self.seen.lock().unwrap().push(self.core.pressure.copied.pages());
        }
    }
}

#[test]
fn who_is_woken_by_the_drop_of_a_copy_finds_its_share_free() {
    let cache = Cache::new(Options::new(16 * MIB)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 64 << 20]))).unwrap();
    let core = cache.core().clone();
    let thread = std::thread::current().id();
    // Ends: unless the reclaiming thread is the first to wake it, each time.
    loop {
        let kept = file.bytes(1..5 * MIB).unwrap();
        assert!(core.pressure.copied.pages() > 0);
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
