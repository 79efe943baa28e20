//! A source that hangs, and as many threads as like to that read it: what others get.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::{For, prepare};
use crate::base::mutant::{self, Mutant};
use crate::error::Cause;
use crate::frames::PAGE_BYTES;
use crate::source::Source;
use crate::{Cache, File, Options, ReadAt, Result};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 8 * MIB;

/// Sevens, once it is open.
#[derive(Debug)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
    /// Calls so far.
    calls: AtomicUsize,
}

impl Gate {
    fn new(open: bool) -> Arc<Self> {
        let (open, changed) = (Mutex::new(open), Condvar::new());
        Arc::new(Gate { open, changed, calls: AtomicUsize::new(0) })
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Source for Gate {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        drop(self.changed.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(1 << 40)
    }
    fn kind(&self) -> Cow<'static, str> {
        "gate".into()
    }
}

/// A cache in which nobody waits for memory, and a file of a source that hangs or does not.
fn cache() -> Cache {
    let mut options = Options::new(BUDGET);
    options.patience = Duration::ZERO;
    Cache::new(options).unwrap()
}

fn file(cache: &Cache, name: &str, open: bool) -> (File, Arc<Gate>) {
    let gate = Gate::new(open);
    (cache.attach(name, gate.clone()).unwrap(), gate)
}

type Way = fn(&Cache, &File, u64) -> Result<()>;

/// All that threads read 128 KiB by, or a page, at an offset.
const WAYS: [(&str, Way); 7] = [
    ("read_at", |_, file, at| file.read_at(&mut vec![0; 128 << 10], at).map(drop)),
    ("get", |_, file, at| file.get(at >> 12).map(drop)),
    ("borrow", |cache, file, at| file.borrow(at >> 12, &cache.reader()?).map(drop)),
    ("pin", |_, file, at| file.pin(at..at + (128 << 10)).map(drop)),
    ("bytes", |_, file, at| file.bytes(at..at + (128 << 10)).map(drop)),
    ("get_many", |_, file, at| {
        let pages: Vec<_> = (at >> 12..(at >> 12) + 32).collect();
        file.get_many(&pages[..16]).map(drop)
    }),
    ("read_many", |_, file, at| {
        let mut bufs = vec![[0; 4096]; 32];
        let reads = (at..).step_by(8192).zip(&mut bufs);
        let mut reads: Vec<_> = reads.map(|(at, buf)| ReadAt::new(at, buf)).collect();
        file.read_many(&mut reads)
    }),
];

/// What a source that hangs has on its way when `threads` threads read it, each in its own place,
/// by a way; and how many of the ways in get something of another source at once then.
fn beside_one_that_hangs(way: Way, threads: u64, mutant: Option<Mutant>) -> (u64, usize) {
    let cache = cache();
    let ((hung, gate), (other, _)) = (file(&cache, "hung", false), file(&cache, "other", true));
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for n in 0..threads {
            let (cache, hung, refused) = (&cache, &hung, &refused);
            scope.spawn(move || {
                let read = mutant::with(mutant, || way(cache, hung, n << 22));
                if let Err(error) = read {
                    assert!(matches!(error.cause(), Cause::NoMemory { .. }), "{error:?}");
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // Ends: each thread waits in the source, or is refused.
        while (gate.calls.load(Ordering::SeqCst) + refused.load(Ordering::SeqCst))
            < threads as usize
        {
            std::thread::yield_now();
        }
        let bytes = u64::from(hung.handle().mapping.on_its_way.frames()) << 12;
        let got = WAYS.iter().enumerate().filter(|(n, (_, way))| {
            let at = (*n as u64 + 1) << 30;
            (0..20).all(|k| way(&cache, &other, at + (k << 20)).is_ok())
        });
        let got = got.count();
        gate.open();
        (bytes, got)
    })
}

#[test]
fn a_source_that_hangs_has_a_quarter_of_the_cache_however_it_is_read() {
    for (name, way) in WAYS {
        for threads in [70, 600] {
            let (bytes, got) = beside_one_that_hangs(way, threads, None);
            assert!(bytes <= BUDGET / 4, "{name}, {threads} threads: {bytes}");
            assert_eq!(got, WAYS.len(), "{name}, {threads} threads: others");
        }
    }
    let caught = beside_one_that_hangs(WAYS[0].1, 70, Some(Mutant::FirstUnbounded));
    assert!(caught.0 > BUDGET / 4 && caught.1 < WAYS.len(), "the mutant does nothing: {caught:?}");
}

/// How many of the ways in get something of a source that answers, and has answered before, while
/// many others hang: each is read by a thread, by a way. `first`: the first page of each is there.
fn beside_many_that_hang(
    (name, way): (&str, Way),
    sources: usize,
    first: bool,
    mutant: Option<Mutant>,
) -> usize {
    let cache = cache();
    let (other, _) = file(&cache, "other", true);
    other.get(0).map(drop).unwrap();
    let hung: Vec<_> = (0..sources).map(|n| file(&cache, &format!("{n}"), first)).collect();
    for (file, gate) in hung.iter().filter(|_| first) {
        file.get(0).map(drop).unwrap();
        *gate.open.lock().unwrap() = false;
        gate.calls.store(0, Ordering::SeqCst);
    }
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (file, _) in &hung {
            let (cache, refused) = (&cache, &refused);
            scope.spawn(move || {
                if let Err(error) = mutant::with(mutant, || way(cache, file, 0)) {
                    assert!(matches!(error.cause(), Cause::NoMemory { .. }), "{error:?}");
                    refused.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let waits = |(_, gate): &&(File, Arc<Gate>)| gate.calls.load(Ordering::SeqCst) > 0;
        // Ends: each thread waits in its source, or is refused.
        while hung.iter().filter(waits).count() + refused.load(Ordering::SeqCst) < sources {
            std::thread::yield_now();
        }
        let got = WAYS.iter().enumerate().filter(|(n, (other_name, way))| {
            let at = (*n as u64 + 1) << 30;
            // Copies have a part of the memory of their own.
            (first && *other_name == name)
                || (0..20).all(|k| way(&cache, &other, at + (k << 20)).is_ok())
        });
        let got = got.count();
        for (_, gate) in &hung {
            gate.open();
        }
        got
    })
}

#[test]
fn many_sources_that_hang_leave_something_to_one_that_answers() {
    for way in WAYS {
        assert_eq!(beside_many_that_hang(way, 200, false, None), WAYS.len(), "{}", way.0);
    }
    assert_eq!(beside_many_that_hang(WAYS[0], 1000, false, None), WAYS.len());
    let caught = beside_many_that_hang(WAYS[0], 200, false, Some(Mutant::HungUnbounded));
    assert!(caught < WAYS.len(), "the mutant does nothing: {caught}");
}

#[test]
fn copies_that_are_being_read_leave_something_to_a_source_that_answers() {
    let bytes = *WAYS.iter().find(|(name, _)| *name == "bytes").unwrap();
    assert_eq!(beside_many_that_hang(bytes, 200, true, None), WAYS.len());
    let caught = beside_many_that_hang(bytes, 200, true, Some(Mutant::HungUnbounded));
    assert!(caught < WAYS.len(), "the mutant does nothing: {caught}");
}

/// A thread that finds enough on its way waits for that, and for nothing else.
#[test]
fn who_waits_for_its_own_file_goes_on_when_a_read_of_it_ends() {
    let cache = Cache::new(Options::new(BUDGET)).unwrap();
    let (file, _) = file(&cache, "file", true);
    let handle = file.handle();
    let mut batches = Vec::new();
    // Ends: a quarter of the cache.
    while !cache_is_full(&file) {
        let page = batches.len() as u64 * 1024;
        batches.push(prepare(handle, page, u64::MAX >> 12, For::Future).unwrap());
    }
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| file.get(1 << 27).map(drop));
        // Ends: it finds that its file has enough on its way, and sleeps.
        while handle.core.pressure.sleepers() == 0 {
            std::thread::yield_now();
        }
        assert!(!reads.is_finished());
        batches.pop().unwrap().read(false);
        reads.join().unwrap().unwrap();
    });
    for batch in batches {
        batch.read(false);
    }
    assert_eq!(handle.mapping.on_its_way.frames(), 0);
}

/// Of a folio of more than the page that somebody waits for, nobody waits for the most part.
#[test]
fn first_folios_of_many_pages_leave_room_to_single_ones() {
    let large_ones = |mutant| {
        let cache = Cache::new(Options::new(BUDGET)).unwrap();
        let (file, _) = file(&cache, "file", true);
        let batches: Vec<_> = (0..200)
            .map(|n| {
                let page = n * 1024;
                let first = || prepare(file.handle(), page, page + 16, For::Future);
                mutant::with(mutant, first).unwrap()
            })
            .take_while(|batch| batch.end().is_some_and(|end| end % 1024 == 16))
            .collect();
        let frames = u64::from(file.handle().mapping.on_its_way.frames());
        for batch in batches {
            batch.read(false);
        }
        frames
    };
    let all = BUDGET / PAGE_BYTES as u64;
    assert!((all / 8..all / 5).contains(&large_ones(None)));
    assert!(large_ones(Some(Mutant::UnwaitedTakesAll)) > all / 5, "the mutant does nothing");
}

fn cache_is_full(file: &File) -> bool {
    let handle = file.handle();
    handle.core.pressure.shares.is_enough(&handle.mapping.on_its_way)
}

/// What is not read after all counts no more: where another thread was faster, and where there is
/// no memory.
#[test]
fn what_does_not_begin_is_not_on_its_way() {
    let cache = cache();
    let (file, _) = file(&cache, "file", true);
    let frames = || file.handle().mapping.on_its_way.frames();
    file.read_at(&mut [0], 8192).unwrap();
    assert_eq!(frames(), 0);
    // Its folio would have page 2, too.
    file.read_at(&mut vec![0; 16_384], 0).unwrap();
    let pins: Vec<_> = (0..).map_while(|n| file.pin(n << 16..(n + 1) << 16).ok()).collect();
    // Whether they find memory does not matter here.
    let _ = file.read_at(&mut vec![0; 64 << 10], 1 << 30);
    let _ = file.get_many(&[1 << 20, 1 << 21]);
    assert_eq!(frames(), 0);
    drop(pins);
}
