//! Sources that hang, are slow, or are layered over other files: which readers they block.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use pinfold::source::{Memory, Source, SourceIdentity};
use pinfold::{Cache, ErrorKind, File, Hint, Options};
use pinfold_testing::pattern::Pattern;

const PAGE: u64 = 4096;
const PAGES: u64 = 64;

/// Runs `body`, which must not take for ever. The time is only there to end a test that hangs.
fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        body();
        done.send(()).unwrap();
    });
    wait.recv_timeout(Duration::from_secs(60)).expect("it ends, without a panic");
}

/// A gate that reads stop at until it is opened.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.0).unwrap());
    }

    fn open(&self) {
        self.state.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    /// Returns when this many stand at it, or have passed.
    fn wait_for(&self, arrived: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| state.1 < arrived).unwrap());
    }
}

/// Opens the gate when a test ends, however it ends.
struct OpenAtLast(Arc<Gate>);

impl Drop for OpenAtLast {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Sevens, which are read when a gate is opened.
#[derive(Debug)]
struct Gated(Arc<Gate>);

impl Source for Gated {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.pass();
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(PAGES * PAGE)
    }
    fn kind(&self) -> Cow<'static, str> {
        "gated".into()
    }
}

/// Each page by itself, as a request of its own.
fn ask_page_by_page(file: &File) {
    for page in 0..PAGES {
        file.advise(page * PAGE..(page + 1) * PAGE, Hint::WillNeed).unwrap();
    }
}

/// Reading ahead by the worker threads alone.
fn cache() -> Cache {
    Cache::new(Options { io_uring: false, ..Options::new(32 << 20) }).unwrap()
}

#[test]
fn a_source_that_hangs_keeps_nobody_else() {
    in_time(|| {
        let (cache, gate, pattern) = (cache(), Arc::new(Gate::default()), Pattern::new(5, 0));
        let _open = OpenAtLast(gate.clone());
        let hung = cache.attach("hung", Arc::new(Gated(gate.clone()))).unwrap();
        ask_page_by_page(&hung);
        gate.wait_for(1);

        let bytes = pattern.to_vec((PAGES * PAGE) as usize);
        let healthy = cache.attach("healthy", Arc::new(Memory::new(bytes))).unwrap();
        ask_page_by_page(&healthy);
        let mut buf = vec![0; PAGE as usize];
        for page in 0..PAGES {
            assert_eq!(healthy.read_at(&mut buf, page * PAGE).unwrap(), buf.len());
            pattern.check(page * PAGE, &buf).unwrap();
        }
        let sources = cache.sources();
        let (_, source) = sources.iter().find(|(name, _)| name == "healthy").unwrap();
        assert!(source.read_ahead.calls > 0, "nothing was read ahead: {source:?}");
        assert_eq!(source.read_ahead.errors, 0, "{source:?}");
    });
}

/// Nor does it keep others from reading ahead: what it has on its way is no limit of theirs.
#[test]
fn sources_that_hang_leave_others_their_reading_ahead() {
    in_time(|| {
        let cache = Cache::new(Options { io_uring: false, ..Options::new(1 << 20) }).unwrap();
        let gate = Arc::new(Gate::default());
        let _open = OpenAtLast(gate.clone());
        let on_its_way = || cache.stats().fills_in_flight;
        let mut hung = Vec::new();
        let mut of_the_last = u64::MAX;
        for n in 1..=4 {
            let before = on_its_way();
            let file = cache.attach("hung", Arc::new(Gated(gate.clone()))).unwrap();
            // As much as it gets.
            ask_page_by_page(&file);
            ask_page_by_page(&file);
            let own = on_its_way() - before;
            assert!(own > 0, "file {n} reads nothing ahead");
            assert!(own <= of_the_last, "file {n} has {own} pages, the last had {of_the_last}");
            of_the_last = own;
            hung.push(file);
        }
        let budget_pages = (1 << 20) / PAGE;
        assert!(on_its_way() <= budget_pages / 2 + 1, "{} pages are on their way", on_its_way());
        // One that does not hang reads ahead all the same.
        let healthy = cache.attach("healthy", Arc::new(Memory::new(vec![7; 1 << 18]))).unwrap();
        ask_page_by_page(&healthy);
        let ahead = || {
            let sources = cache.sources();
            let (_, source) = sources.iter().find(|(name, _)| name == "healthy").unwrap();
            (source.read_ahead.calls, source.read_ahead.errors)
        };
        // Ends: what was asked of a source that answers is answered.
        while ahead().0 < 8 {
            assert!(on_its_way() > 0);
            ask_page_by_page(&healthy);
            std::thread::yield_now();
        }
        assert_eq!(ahead().1, 0);
    });
}

/// What another file of the same cache has.
#[derive(Debug)]
struct Layered {
    lower: File,
    gate: Arc<Gate>,
}

impl Source for Layered {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.gate.pass();
        self.lower.read_at(buf, offset).map_err(io::Error::other)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.lower.len())
    }
    fn kind(&self) -> Cow<'static, str> {
        "layered".into()
    }
}

#[test]
fn a_source_may_read_from_another_file_of_its_cache() {
    in_time(|| {
        let (cache, gate, pattern) = (cache(), Arc::new(Gate::default()), Pattern::new(6, 0));
        let _open = OpenAtLast(gate.clone());
        let bytes = pattern.to_vec((PAGES * PAGE) as usize);
        let lower = cache.attach("lower", Arc::new(Memory::new(bytes))).unwrap();
        let layered = Layered { lower: lower.clone(), gate: gate.clone() };
        let upper = cache.attach("upper", Arc::new(layered)).unwrap();
        // The upper file's reads have all workers that they can get, and more of them wait.
        ask_page_by_page(&upper);
        gate.wait_for(8);
        // Then the lower file's pages are being read, for any reader.
        ask_page_by_page(&lower);
        gate.open();
        let mut buf = vec![0; PAGE as usize];
        for page in 0..PAGES {
            assert_eq!(upper.read_at(&mut buf, page * PAGE).unwrap(), buf.len());
            pattern.check(page * PAGE, &buf).unwrap();
        }
    });
}

/// An object of a store: which version, and what its pages are filled with; counts reads.
#[derive(Debug)]
struct Object {
    version: &'static str,
    byte: u8,
    reads: AtomicUsize,
}

impl Object {
    fn new(version: &'static str, byte: u8) -> Arc<Self> {
        Arc::new(Object { version, byte, reads: AtomicUsize::new(0) })
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Source for Object {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        buf.fill(self.byte);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(PAGES * PAGE)
    }
    fn kind(&self) -> Cow<'static, str> {
        "object".into()
    }
    fn identity(&self) -> Option<SourceIdentity> {
        Some(SourceIdentity { key: "store/object".into(), version: self.version.into() })
    }
}

#[track_caller]
fn reads(file: &File, page: u64, byte: u8) {
    let mut buf = [0; 64];
    assert_eq!(file.read_at(&mut buf, page * PAGE).unwrap(), buf.len());
    assert_eq!(buf, [byte; 64]);
}

/// An object whose store does not answer.
#[derive(Debug)]
struct Unreachable(Object, Arc<Gate>);

impl Source for Unreachable {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.1.pass();
        self.0.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        self.0.kind()
    }
    fn identity(&self) -> Option<SourceIdentity> {
        self.0.identity()
    }
}

/// Neither for a page that the source before was asked for, nor for one after its queue.
#[test]
fn whoever_attaches_again_does_not_wait_for_the_source_before() {
    in_time(|| {
        let (cache, gate) = (cache(), Arc::new(Gate::default()));
        let _open = OpenAtLast(gate.clone());
        let object = Object { version: "1", byte: 1, reads: AtomicUsize::new(0) };
        let old = cache.attach("old", Arc::new(Unreachable(object, gate.clone()))).unwrap();
        ask_page_by_page(&old);
        gate.wait_for(1);
        drop(old);
        let new = cache.attach("new", Object::new("1", 1)).unwrap();
        new.advise(40 * PAGE..41 * PAGE, Hint::WillNeed).unwrap();
        for page in [0, 1, 40, 41] {
            reads(&new, page, 1);
        }
    });
}

#[test]
fn two_attaches_of_one_object_share_its_pages() {
    let (cache, first, second) = (cache(), Object::new("1", 1), Object::new("1", 1));
    let one = cache.attach("one", first.clone()).unwrap();
    one.advise(0..1, Hint::Random).unwrap();
    reads(&one, 3, 1);
    let two = cache.attach("two", second.clone()).unwrap();
    two.advise(0..1, Hint::Random).unwrap();
    reads(&two, 3, 1);
    reads(&two, 4, 1);
    assert_eq!((first.reads(), second.reads()), (2, 0), "it has a source, and no page twice");
    assert_eq!(cache.stats().files, 1);
    // With no handle its pages stay, and the next attach goes on with its own source.
    drop((one, two));
    let third = Object::new("1", 1);
    let file = cache.attach("three", third.clone()).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    reads(&file, 3, 1);
    assert_eq!(third.reads(), 0, "it was cached");
    reads(&file, 30, 1);
    assert_eq!((first.reads(), second.reads(), third.reads()), (2, 0, 1));
    assert_eq!(Arc::strong_count(&first), 1, "the old source is kept");
}

#[test]
fn another_version_is_an_error_while_the_old_is_open_and_drops_its_pages_after() {
    let (cache, old, new) = (cache(), Object::new("old", 1), Object::new("new", 2));
    let file = cache.attach("file", old).unwrap();
    reads(&file, 3, 1);
    let error = cache.attach("again", new.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    let text = "cannot attach again: store/object is open in version \"old\", and this source has \
                version \"new\"";
    assert_eq!(error.to_string(), text);
    reads(&file, 3, 1);
    reads(&file, 40, 1);

    let kept = file.get(3).unwrap().into_owned();
    drop(file);
    let file = cache.attach("again", new).unwrap();
    assert_eq!(kept[..64], [1; 64], "a guard shows what it showed");
    assert!(!kept.is_current());
    for page in 0..PAGES {
        reads(&file, page, 2);
    }
    drop(kept);
    assert_eq!(cache.stats().files, 1, "the old version is still listed");
    assert_eq!(cache.stats().resident_bytes, PAGES * PAGE, "pages of the old version are left");
    // And it is found again by its key.
    let again = Object::new("new", 2);
    reads(&cache.attach("more", again.clone()).unwrap(), 5, 2);
    assert_eq!((again.reads(), cache.stats().files), (0, 1));
}

/// Versions come and go on many threads: no read brings bytes of another than its handle's.
#[test]
fn versions_do_not_mix() {
    let cache = cache();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let cache = &cache;
            scope.spawn(move || {
                let mut attached = 0;
                for round in 0..400 {
                    let (version, byte) = [("a", 1), ("b", 2)][(thread as usize + round / 3) % 2];
                    match cache.attach("object", Object::new(version, byte)) {
                        Ok(file) => {
                            attached += 1;
                            file.advise(0..20 * PAGE, Hint::WillNeed).unwrap();
                            reads(&file, 3, byte);
                            reads(&file, round as u64 % PAGES, byte);
                        }
                        Err(error) if error.kind() == ErrorKind::Changed => {
                            std::thread::yield_now();
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                attached
            });
        }
    });
    // Ends: what was read ahead arrives.
    while cache.stats().fills_in_flight > 0 {
        std::thread::yield_now();
    }
    assert_eq!(cache.stats().files, 1, "an outdated version is left");
}

/// What another file of the same cache has, as an object of its own.
#[cfg(feature = "map")]
#[derive(Debug)]
struct View(File);

#[cfg(feature = "map")]
impl Source for View {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buf, offset).map_err(io::Error::other)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }
    fn kind(&self) -> Cow<'static, str> {
        "view".into()
    }
    fn identity(&self) -> Option<SourceIdentity> {
        Some(SourceIdentity { key: "view".into(), version: String::new() })
    }
}

/// The cache has the file, the file its source, and the source a handle of the cache: all of them
/// go all the same, and until then what was read stays cached.
#[cfg(feature = "map")]
#[test]
fn a_cache_goes_with_the_last_handle_that_is_not_a_sources() {
    in_time(|| {
        // Shows when the cache goes, which has a share of it.
        let swap = Arc::new(Memory::new(vec![0; 2 * PAGE as usize]));
        let options = Options {
            io_uring: false,
            swap_source: Some(swap.clone()),
            swap_bytes: 2 * PAGE,
            ..Options::new(32 << 20)
        };
        let (cache, pattern) = (Cache::new(options).unwrap(), Pattern::new(8, 0));
        let memory = Arc::new(Memory::new(pattern.to_vec((PAGES * PAGE) as usize)));
        let lower = cache.attach("lower", memory.clone()).unwrap();
        let mut buf = vec![0; (PAGES * PAGE) as usize];
        for _ in 0..2 {
            let upper = cache.attach("upper", Arc::new(View(lower.clone()))).unwrap();
            assert_eq!(upper.read_at(&mut buf, 0).unwrap(), buf.len());
            pattern.check(0, &buf).unwrap();
        }
        let sources = cache.sources();
        let upper = sources.iter().find(|(name, _)| name == "upper").unwrap();
        assert!(upper.1.read.bytes <= PAGES * PAGE, "it was read again: {upper:?}");
        assert_eq!(upper.1.kind, "none: the file is closed");
        drop(lower);
        assert_eq!(Arc::strong_count(&memory), 1, "the lower file has no handle, but a source");
        drop(cache);
        // Ends: the daemon may be at work, and then is the last to have the cache.
        while Arc::strong_count(&swap) > 1 {
            std::thread::yield_now();
        }
    });
}
