//! Batches that are given up, and reads of several pages of which one cannot be read.

use std::borrow::Cow;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pinfold_testing::waker::Woken;

use super::{For, prepare};
use crate::base::mutant::{self, Mutant};
use crate::error::Cause;
use crate::source::{Memory, Source};
use crate::{Cache, Error, File, Hint, Options, ReadAt, Result};

fn file() -> (Cache, File) {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 64 << 10]))).unwrap();
    (cache, file)
}

#[test]
fn a_batch_that_is_dropped_lands_with_an_error_for_all_who_wait() {
    let (cache, file) = file();
    let batch = prepare(file.handle(), 1, 7, For::Thread).unwrap();
    let folios = batch.folios() as u64;
    assert!(folios > 1, "pages 1 to 6 are no folio");
    assert_eq!(cache.stats().fills_in_flight, folios);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| file.read_at(&mut vec![0; 6 * 4096], 4096));
        // Ends: the other thread has nothing else to do.
        while cache.stats().waits == 0 {
            std::thread::yield_now();
        }
        drop(batch);
        let error = waits.join().unwrap().unwrap_err();
        let Cause::Read { offset: 4096, asked_bytes: 24_576, cause, .. } = error.cause() else {
            panic!("{error:?}")
        };
        assert_eq!(cause.to_string(), "the read was given up");
    });
    assert_eq!((cache.stats().fills_in_flight, cache.stats().resident_bytes), (0, 0));
    let mut buf = vec![0; 64 << 10];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), buf.len());
    assert!(buf.iter().all(|&byte| byte == 7));
}

#[test]
fn a_batch_that_is_forgotten_stays_on_its_way() {
    mutant::with(Some(Mutant::BatchForgotten), || {
        let (cache, file) = file();
        drop(prepare(file.handle(), 1, 7, For::Thread).unwrap());
        assert_ne!(cache.stats().fills_in_flight, 0, "the mutant does nothing");
    });
}

/// Sevens, but for page 5: a read that has it waits until the gate is open, and then fails.
#[derive(Debug)]
struct Fails {
    kind: io::ErrorKind,
    open: Mutex<bool>,
    changed: Condvar,
    reads: AtomicUsize,
}

impl Fails {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Source for Fails {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if (offset..offset + buf.len() as u64).contains(&(5 * 4096)) {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.changed.notify_all();
            drop(self.changed.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
            return Err(self.kind.into());
        }
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(64 << 10)
    }
    fn kind(&self) -> Cow<'static, str> {
        "fails".into()
    }
}

/// A file that is read in windows, or not.
fn fails(kind: io::ErrorKind, patience: Duration, hint: Hint) -> (Cache, File, Arc<Fails>) {
    let mut options = Options::new(1 << 20);
    options.patience = patience;
    let cache = Cache::new(options).unwrap();
    let (open, changed) = (Mutex::new(false), Condvar::new());
    let source = Arc::new(Fails { kind, open, changed, reads: AtomicUsize::new(0) });
    let file = cache.attach("fails", source.clone()).unwrap();
    file.advise(0..1, hint).unwrap();
    (cache, file, source)
}

/// So long that no test takes as long.
const LONG: Duration = Duration::from_secs(1000);

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let woken = Woken::new();
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    // Ends: with the future.
    loop {
        if let Poll::Ready(it) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return it;
        }
        while !woken.take() {
            std::thread::park();
        }
    }
}

type Way = fn(&Cache, &File) -> Result<()>;

/// All that read page 3, or others, but not page 5.
const WAYS: [(&str, Way); 13] = [
    ("read_at past the end", |_, file| {
        assert_eq!(file.read_at(&mut [0; 64 << 10], 6 * 4096)?, 10 * 4096);
        Ok(())
    }),
    ("read_at", |_, file| file.read_at(&mut [0; 8], 3 * 4096).map(drop)),
    ("a longer read_at", |_, file| file.read_at(&mut [0; 8], 4 * 4096 - 4).map(drop)),
    ("get", |_, file| file.get(3).map(drop)),
    ("borrow", |cache, file| file.borrow(3, &cache.reader()?).map(drop)),
    ("pin", |_, file| file.pin(3 * 4096..4 * 4096).map(drop)),
    ("read_at_async", |_, file| wait_for(file.read_at_async(&mut [0; 8], 3 * 4096)).map(drop)),
    ("get_async", |_, file| wait_for(file.get_async(3)).map(drop)),
    ("get_many_async", |_, file| wait_for(file.get_many_async(&[9, 3, 4])).map(drop)),
    ("get_many", |_, file| file.get_many(&[3, 9]).map(drop)),
    ("a longer get_many", |_, file| file.get_many(&[4, 9, 3, 8]).map(drop)),
    ("borrow_many", |cache, file| file.borrow_many(&[3, 9, 4], &cache.reader()?).map(drop)),
    ("read_many", |_, file| {
        let (mut first, mut second) = ([0; 8], [0; 8]);
        file.read_many(&mut [ReadAt::new(3 << 12, &mut first), ReadAt::new(9 << 12, &mut second)])
    }),
];

/// Those of them that read nothing more.
const EXACT: [&str; 2] = ["read_at past the end", "pin"];

/// Those of `WAYS` that fail because page 5 is read with what they want.
fn fail_by_their_own_read() -> Vec<&'static str> {
    let fails_of = |(name, way): &&(_, Way)| {
        let (cache, file, source) = fails(io::ErrorKind::Other, LONG, Hint::Sequential);
        source.open();
        let error = way(&cache, &file).err();
        let alone = source.reads.load(Ordering::SeqCst) == 0;
        assert_eq!(alone, EXACT.contains(name), "{name} reads page 5 or not");
        assert!(
            cache.stats().resident_bytes <= 64 << 10,
            "{name} reads what the file does not have"
        );
        error.is_some()
    };
    WAYS.iter().filter(fails_of).map(|(name, _)| *name).collect()
}

#[test]
fn a_page_that_is_read_with_a_bad_one_is_read_alone() {
    assert_eq!(fail_by_their_own_read(), [""; 0]);
    let caught = mutant::with(Some(Mutant::NeverAlone), fail_by_their_own_read);
    assert_eq!(caught.len(), WAYS.len() - EXACT.len(), "only {caught:?}");
}

/// The same for who waits for another thread's read.
fn fail_by_a_read_of_others() -> Vec<&'static str> {
    let fails_of = |(name, way): &&(_, Way)| {
        let (cache, file, source) = fails(io::ErrorKind::Other, LONG, Hint::Random);
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| file.get_many(&[3, 4, 5, 6]).map(drop).unwrap_err());
            // Both end: it is read, and then waited for.
            while source.reads.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let (waits, cache, source) = (cache.stats().waits, &cache, &source);
            scope.spawn(move || {
                while cache.stats().waits == waits {
                    std::thread::yield_now();
                }
                source.open();
            });
            let error = way(cache, &file).err();
            let own = reads.join().unwrap();
            let of_page = |error: &Error| {
                matches!(error.cause(), Cause::Read { offset: 20_480, asked_bytes: 4096, .. })
            };
            assert!(of_page(&own), "{own:?}");
            let resident = cache.stats().resident_bytes;
            assert!(resident <= 64 << 10, "{name} reads what the file does not have: {resident}");
            error.is_some()
        })
    };
    WAYS.iter().filter(fails_of).map(|(name, _)| *name).collect()
}

#[test]
fn who_waits_for_a_read_with_a_bad_page_reads_its_own_alone() {
    assert_eq!(fail_by_a_read_of_others(), [""; 0]);
    let caught = mutant::with(Some(Mutant::NeverAlone), fail_by_a_read_of_others);
    assert_eq!(caught.len(), WAYS.len(), "only {caught:?}");
}

/// How many reads had the bad page, and how many of `WAYS` got another one, where all are one read
/// that fails as if the source hung.
fn read_though_it_hangs(kind: io::ErrorKind, patience: Duration) -> (usize, usize) {
    let (mut reads, mut got) = (0, 0);
    for (name, way) in WAYS.iter().filter(|(name, _)| !EXACT.contains(name)) {
        let (cache, file, source) = fails(kind, patience, Hint::Sequential);
        let done = std::thread::scope(|scope| {
            // A future must wait when its read ends: one that has begun nothing yet would begin it.
            if name.ends_with("_async") {
                let (file, source) = (&file, &source);
                scope.spawn(move || {
                    while file.handle().core.waiters.is_empty() {
                        std::thread::yield_now();
                    }
                    source.open();
                });
            } else {
                source.open();
            }
            way(&cache, &file)
        });
        match done {
            Ok(()) => got += 1,
            Err(error) => {
                assert!(matches!(error.cause(), Cause::Read { .. }), "{name}: {error:?}");
            }
        }
        reads += source.reads.load(Ordering::SeqCst);
    }
    (reads, got)
}

#[test]
fn a_source_that_hangs_is_waited_for_once() {
    let all = WAYS.len() - EXACT.len();
    for hangs in [(io::ErrorKind::TimedOut, LONG), (io::ErrorKind::Other, Duration::ZERO)] {
        assert_eq!(read_though_it_hangs(hangs.0, hangs.1), (all, 0), "{hangs:?}");
        let caught = mutant::with(Some(Mutant::AloneThoughItHangs), || {
            read_though_it_hangs(hangs.0, hangs.1)
        });
        assert_eq!(caught.1, all, "the mutant does nothing: {hangs:?}");
    }
}

/// A batch of copies returns each entry's own error.
#[test]
fn what_all_entries_of_a_batch_want_is_read_once_if_the_source_hangs() {
    let reads = |kind| {
        let (_cache, file, source) = fails(kind, LONG, Hint::Random);
        source.open();
        let mut bufs = [[0; 8]; 4];
        let mut reads: Vec<_> =
            (3..).zip(&mut bufs).map(|(page, buf)| ReadAt::new(page << 12, buf)).collect();
        file.read_many(&mut reads).unwrap_err();
        let failed = reads.iter().filter(|read| read.result.is_err()).count();
        (source.reads.load(Ordering::SeqCst), failed)
    };
    assert_eq!(reads(io::ErrorKind::Other), (2, 1), "together, and alone");
    assert_eq!(reads(io::ErrorKind::TimedOut), (1, 4));
}

/// How often a bad page is read that a batch reads and another thread waits for.
fn reads_of_a_batch_and_who_waits(mutant: Option<Mutant>) -> usize {
    let (cache, file, source) = fails(io::ErrorKind::TimedOut, LONG, Hint::Random);
    source.open();
    let batch = prepare(file.handle(), 5, 6, For::Batch).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| file.get(5).map(drop).unwrap_err());
        // Ends: the other thread has nothing else to do.
        while cache.stats().waits == 0 {
            std::thread::yield_now();
        }
        mutant::with(mutant, || batch.read(false));
        let error = waits.join().unwrap();
        assert!(matches!(error.cause(), Cause::Read { offset: 20_480, .. }), "{error:?}");
    });
    source.reads.load(Ordering::SeqCst)
}

#[test]
fn who_waits_for_a_batch_gets_its_error() {
    assert_eq!(reads_of_a_batch_and_who_waits(None), 1);
    assert_eq!(reads_of_a_batch_and_who_waits(Some(Mutant::BatchErrorUnshared)), 2);
}

/// Sevens; said to have 16 pages, while it has 6.
#[derive(Debug)]
struct Shrunk;

impl Source for Shrunk {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = buf.len().min((6 * 4096_u64).saturating_sub(offset) as usize);
        buf[..bytes].fill(7);
        Ok(bytes)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(64 << 10)
    }
    fn kind(&self) -> Cow<'static, str> {
        "shrunk".into()
    }
}

/// How the pages 4 to 6 fail, of which the last is not there any more, each where all are one
/// folio.
fn fail_where_a_source_has_shrunk() -> [Option<Error>; 3] {
    [4, 5, 6].map(|page| {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let file = cache.attach("shrunk", Arc::new(Shrunk)).unwrap();
        let folio = prepare(file.handle(), 4, 8, For::Thread).unwrap();
        assert_eq!(folio.folios(), 1, "pages 4 to 7 are no folio");
        let (cache, file) = (&cache, &file);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Ends: the other thread waits for the folio.
                while cache.stats().waits == 0 {
                    std::thread::yield_now();
                }
                folio.read(false);
            });
            file.get(page).err()
        })
    })
}

#[test]
fn a_page_is_there_if_the_source_has_shrunk_after_it() {
    let ends_at_6 = |error: &Error| match error.cause() {
        Cause::Truncated { cause, .. } => cause.offset == 6 << 12,
        _ => false,
    };
    let failed = fail_where_a_source_has_shrunk();
    assert!(matches!(&failed, [None, None, Some(error)] if ends_at_6(error)), "{failed:?}");
    let caught = mutant::with(Some(Mutant::NeverAlone), fail_where_a_source_has_shrunk);
    assert!(caught.iter().all(Option::is_some), "the mutant does nothing: {caught:?}");
}
