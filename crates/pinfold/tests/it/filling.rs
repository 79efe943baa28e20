//! Fills that fail or are disturbed, seen through the public interface.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use pinfold::source::{Memory, Request, Source, SourceIdentity, Start};
use pinfold::{Cache, Hint, Options};

const PAGE: u64 = 4096;

fn cache() -> Cache {
    Cache::new(Options::new(4 << 20)).unwrap()
}

/// Runs `body`, which must not take for ever.
fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        body();
        done.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(120)).expect("it ends, without a panic");
}

/// Sevens without end, but for the first read, which panics as soon as `go` says.
#[derive(Debug)]
struct Panics {
    first: AtomicBool,
    go: Barrier,
}

impl Source for Panics {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        if self.first.swap(false, Ordering::Relaxed) {
            self.go.wait();
            std::thread::sleep(Duration::from_millis(50)); // the other reader goes to sleep
            panic!("as the test wants it");
        }
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(64 * PAGE)
    }
    fn kind(&self) -> Cow<'static, str> {
        "panics".into()
    }
}

#[test]
fn a_source_that_panics_leaves_nobody_waiting() {
    in_time(|| {
        let source = Arc::new(Panics { first: AtomicBool::new(true), go: Barrier::new(2) });
        let file = cache().attach("panics", source.clone()).unwrap();
        let (other, mut buf) = (file.clone(), [0; 8]);
        let panicking = std::thread::spawn(move || {
            let error = other.read_at(&mut [0; 8], 0).unwrap_err();
            assert!(error.to_string().contains("panicked in a read: as the test wants it"));
        });
        source.go.wait();
        let waited = file.read_at(&mut buf, 0);
        panicking.join().unwrap();
        // An error, if it waited for that very fill; and not kept.
        assert!(waited.is_ok() || waited.unwrap_err().to_string().contains("panicked"));
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 8);
        assert_eq!(buf, [7; 8]);
    });
}

/// Sevens; whatever is named panics.
#[derive(Debug)]
struct PanicsIn {
    what: &'static str,
    len_bytes: u64,
    alignment: usize,
    /// Panics only once this is set.
    now: AtomicBool,
}

impl PanicsIn {
    fn new(what: &'static str, now: bool) -> Arc<Self> {
        Arc::new(PanicsIn { what, len_bytes: 1 << 20, alignment: 1, now: now.into() })
    }

    fn may_panic(&self, what: &str) {
        let now = self.what == what && self.now.load(Ordering::Relaxed);
        assert!(!now, "as the test wants it");
    }
}

impl Source for PanicsIn {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.may_panic("read_at");
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.may_panic("len_bytes");
        Ok(self.len_bytes)
    }
    fn alignment(&self) -> usize {
        self.may_panic("alignment");
        self.alignment
    }
    fn kind(&self) -> Cow<'static, str> {
        self.may_panic("kind");
        "panics".into()
    }
    fn advise(&self, _: Range<u64>, _: Hint) -> io::Result<()> {
        self.may_panic("advise");
        Ok(())
    }
    fn start(&self, _: &mut Vec<Request>) -> Start {
        self.may_panic("start");
        Start::Unsupported
    }
    fn identity(&self) -> Option<SourceIdentity> {
        let object = |key: &str| SourceIdentity { key: key.into(), version: String::new() };
        (self.what == "drop").then(|| object("panics"))
    }
}

impl Drop for PanicsIn {
    fn drop(&mut self) {
        self.may_panic("drop");
    }
}

/// Whoever drops the last reference to it: a thread that closes, opens or evicts, or the cache.
#[test]
fn a_source_that_panics_when_it_is_dropped_harms_nobody() {
    let mut buf = [0; 8];
    let other = {
        let cache = cache();
        for _ in 0..3 {
            let file = cache.attach("panics", PanicsIn::new("drop", true)).unwrap();
            assert_eq!(file.read_at(&mut buf, 4096).unwrap(), 8);
        }
        let open = cache.attach("panics", PanicsIn::new("drop", true)).unwrap();
        let again = cache.attach("panics", PanicsIn::new("drop", true)).unwrap();
        let too_long =
            PanicsIn { what: "drop", len_bytes: u64::MAX, alignment: 1, now: true.into() };
        cache.attach("too long", Arc::new(too_long)).unwrap_err();
        drop((open, again));
        // Its pages are evicted.
        let other = cache.attach("other", Arc::new(Memory::new(vec![3; 16 << 20]))).unwrap();
        for page in 0..4096 {
            assert_eq!(other.read_at(&mut buf, page * PAGE).unwrap(), 8);
        }
        let _one = cache.attach("panics", PanicsIn::new("drop", true)).unwrap();
        assert_eq!(cache.stats().files, 2, "its pages are cached still");
        other
    };
    assert_eq!(other.read_at(&mut buf, 0).unwrap(), 8);
}

/// The reader that starts reading ahead gets its own bytes; a reader of pages that were not read
/// ahead reads them itself.
#[test]
fn a_source_that_panics_when_it_starts_reads_leaves_nobody_waiting() {
    in_time(|| {
        let cache = cache();
        let file = cache.attach("panics", PanicsIn::new("start", true)).unwrap();
        file.advise(0..1 << 20, Hint::Sequential).unwrap();
        let mut buf = [0; 4096];
        for offset in (0..1 << 20).step_by(4096) {
            assert_eq!(file.read_at(&mut buf, offset).unwrap(), 4096);
            assert_eq!(buf, [7; 4096]);
        }
        file.advise(0..1 << 20, Hint::DontNeed).unwrap();
        file.advise(0..1 << 20, Hint::WillNeed).unwrap();
        assert_eq!(cache.stats().fills_in_flight, 0);
        assert_eq!(file.read_at(&mut buf, 8192).unwrap(), 4096);
    });
}

#[test]
fn a_panic_of_a_source_is_an_error_that_names_it() {
    let cache = cache();
    let told = |what: &str| format!("the source panicked in {what}: as the test wants it");
    for (what, text) in [
        ("len_bytes", "cannot tell the length of panics: "),
        ("alignment", "cannot use the source of panics: "),
    ] {
        let error = cache.attach("panics", PanicsIn::new(what, true)).unwrap_err();
        assert_eq!(error.to_string(), text.to_owned() + &told(what));
    }
    for (what, text) in [
        ("read_at", "cannot read panics at 4096 (4096 bytes wanted): "),
        ("len_bytes", "cannot tell the length of panics: "),
    ] {
        let source = PanicsIn::new(what, false);
        let file = cache.attach("panics", source.clone()).unwrap();
        source.now.store(true, Ordering::Relaxed);
        let result = match what {
            "read_at" => file.read_at(&mut [0; 8], 4096).map(drop),
            _ => file.invalidate(0..1).map(drop),
        };
        let what = if what == "read_at" { "a read" } else { what };
        assert_eq!(result.unwrap_err().to_string(), text.to_owned() + &told(what));
        source.now.store(false, Ordering::Relaxed);
        assert_eq!(file.read_at(&mut [0; 8], 4096).unwrap(), 8, "it is not kept");
    }
    let file = cache.attach("panics", PanicsIn::new("advise", true)).unwrap();
    file.advise(0..4096, Hint::WillNeed).unwrap();
    let file = cache.attach("panics", PanicsIn::new("kind", true)).unwrap();
    assert_eq!(file.read_at(&mut [0; 8], 0).unwrap(), 8);
    let kinds = cache.sources().into_iter().map(|(_, source)| source.kind);
    assert!(kinds.into_iter().any(|kind| kind == "unknown (it panicked when it was asked)"));
}

#[test]
fn an_alignment_that_the_cache_cannot_keep_is_an_error_that_names_the_source() {
    for alignment in [0, 3, 8192, usize::MAX] {
        let source = PanicsIn { what: "", len_bytes: 5000, alignment, now: false.into() };
        assert_eq!(
            cache().attach("odd", Arc::new(source)).unwrap_err().to_string(),
            format!(
                "cannot use the source of odd: a source of kind panics has an alignment of \
                 {alignment} bytes, which must be a power of two up to 4096"
            )
        );
    }
}

#[test]
fn more_than_the_cache_holds_is_asked_for_in_advance() {
    in_time(|| {
        let file = cache().attach("memory", Arc::new(Memory::new(vec![3; 16 << 20]))).unwrap();
        let everything: Range<u64> = 0..i64::MAX as u64;
        file.advise(everything, Hint::WillNeed).unwrap();
        let mut buf = [0; 8];
        for page in (0..4096).rev() {
            assert_eq!(file.read_at(&mut buf, page * PAGE).unwrap(), 8);
            assert_eq!(buf, [3; 8]);
        }
    });
}

#[test]
fn what_a_file_has_grown_by_is_read() {
    let memory = Arc::new(Memory::new(vec![1; 5 * 4096 + 100]));
    let file = cache().attach("memory", memory.clone()).unwrap();
    let mut buf = [0; 200];
    assert_eq!(file.read_at(&mut buf, 5 * PAGE).unwrap(), 100);
    memory.write_at(5 * PAGE + 100, &[2; 100]).unwrap();
    // Not the page that the file ended in.
    file.invalidate(0..1).unwrap();
    assert_eq!(file.read_at(&mut buf, 5 * PAGE).unwrap(), 200);
    assert_eq!(buf[100..], [2; 100], "bytes from before the file grew");
}

/// Reads nothing but its first page.
#[derive(Debug)]
struct Broken(AtomicU64);

impl Source for Broken {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if offset > 0 {
            std::thread::sleep(Duration::from_millis(50));
            return Err(io::Error::other("as the test wants it"));
        }
        buf.fill(self.0.load(Ordering::Relaxed) as u8);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(64 * PAGE)
    }
    fn kind(&self) -> Cow<'static, str> {
        "broken".into()
    }
}

#[test]
fn a_file_goes_while_it_is_read_ahead_and_that_fails() {
    in_time(|| {
        let cache = cache();
        let file = cache.attach("broken", Arc::new(Broken(AtomicU64::new(1)))).unwrap();
        file.advise(PAGE..64 * PAGE, Hint::WillNeed).unwrap();
        drop(file);
        assert_eq!(cache.stats().files, 0);
        // Ends: the reads in flight take 50 ms each.
        while cache.stats().fills_in_flight > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(cache.stats().resident_bytes, 0, "frames are lost");
    });
}

/// The same file again, after another program changed it: each open sees its length at that time.
#[test]
fn a_file_opened_again_has_the_length_it_has_now() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("changes");
    let (cache, mut buf) = (cache(), vec![0; 4 * PAGE as usize]);
    std::fs::write(&path, [1; 5000]).unwrap();
    let first = cache.open(&path).unwrap();
    assert_eq!(first.read_at(&mut buf, 0).unwrap(), 5000);

    let outside = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    outside.write_all_at(&[2; 7000], 5000).unwrap();
    let second = cache.open(&path).unwrap();
    assert_eq!((second.len(), first.len()), (12_000, 12_000), "they are one file");
    assert_eq!(second.read_at(&mut buf, 4096).unwrap(), 12_000 - 4096);
    assert_eq!(buf[5000 - 4096..12_000 - 4096], [2; 7000], "zeros from past the old end");

    outside.set_len(100).unwrap();
    let third = cache.open(&path).unwrap();
    assert_eq!((third.len(), first.len()), (100, 100));
    assert_eq!(first.read_at(&mut buf, 0).unwrap(), 100);
    outside.set_len(9000).unwrap();
    drop((first, second, third));
    // Cached still, with no handle: it counts no less.
    let fourth = cache.open(&path).unwrap();
    assert_eq!(fourth.read_at(&mut buf, 0).unwrap(), 9000);
    assert_eq!(buf[..100], [1; 100]);
    assert_eq!(buf[100..9000], [0; 8900], "bytes from before it was cut");
}

/// A read that begins in one page and ends in the next is one read, and no run of two.
#[test]
fn a_random_read_across_pages_reads_nothing_ahead() {
    let cache = cache();
    let file = cache.attach("memory", Arc::new(Memory::new(vec![3; 16 << 20]))).unwrap();
    let mut buf = [0; 300];
    for n in 1..200 {
        // Far apart, and each across the end of a page.
        assert_eq!(file.read_at(&mut buf, n * 7919 % 4096 * PAGE - 100).unwrap(), 300);
    }
    let stats = cache.stats();
    assert_eq!(stats.readahead, 0, "{stats:?}");
    assert!(cache.sources()[0].1.read.bytes <= 2 * 199 * PAGE, "{stats:?}");
}

/// A file many times the budget, front to back, again and again: its folios stay large. Taken from
/// whatever is free, each round's pieces would be smaller than those of the one before.
#[test]
fn folios_of_a_scan_stay_large() {
    let cache = Cache::new(Options::new(64 << 20)).unwrap();
    let file = cache.attach("long", Arc::new(Memory::new(vec![7; 256 << 20]))).unwrap();
    file.advise(0..file.len(), Hint::Sequential).unwrap();
    let mut buf = vec![0; 64 << 10];
    let mut last = cache.stats();
    for round in 0..4 {
        for offset in (0..file.len()).step_by(buf.len()) {
            file.read_at(&mut buf, offset).unwrap();
        }
        let stats = cache.stats();
        let folios = stats.evictions - last.evictions;
        let bytes = (stats.evicted_bytes - last.evicted_bytes) / folios;
        println!("round {round}: {folios} folios of {bytes} bytes");
        assert!(bytes >= 100 << 10, "round {round}: {bytes} bytes a folio");
        last = stats;
    }
}

/// Sevens; reads stop until it is opened.
#[derive(Debug, Default)]
struct Shut {
    open: std::sync::Mutex<bool>,
    opened: std::sync::Condvar,
}

impl Source for Shut {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(4096 * PAGE)
    }
    fn kind(&self) -> Cow<'static, str> {
        "shut".into()
    }
}

#[test]
fn what_is_not_read_ahead_for_want_of_room_is_no_failed_fill() {
    in_time(|| {
        // Single pages, so that there are more requests than a source may have.
        let cache =
            Cache::new(Options { readahead_max_bytes: 4096, ..Options::new(16 << 20) }).unwrap();
        let source = Arc::new(Shut::default());
        let file = cache.attach("shut", source.clone()).unwrap();
        file.advise(0..1000 * PAGE, Hint::WillNeed).unwrap();
        let stats = cache.stats();
        *source.open.lock().unwrap() = true;
        source.opened.notify_all();
        // Ends: the source answers now.
        while cache.stats().fills_in_flight > 0 {
            std::thread::yield_now();
        }
        assert!(stats.readahead_dropped > 0, "there was room for all: {stats:?}");
        assert_eq!(cache.stats().fill_errors, 0);
        let (_, counted) = cache.sources().pop().unwrap();
        assert_eq!(counted.read_ahead.errors, 0);
        assert_eq!(counted.read_ahead.calls, stats.readahead, "a page each");
        assert_eq!(cache.stats().readahead_dropped, stats.readahead_dropped);
        // A reader that wants what was dropped reads it.
        let mut buf = [0; 8];
        for page in 0..200 {
            assert_eq!(file.read_at(&mut buf, page * PAGE).unwrap(), 8);
            assert_eq!(buf, [7; 8]);
        }
    });
}
