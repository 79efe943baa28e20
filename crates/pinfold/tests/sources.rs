//! Sources that hang, are layered over other files, or are slow: whom that concerns, and whom not.

#![cfg(not(loom))] // the model checker has no front door

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use pinfold::source::{Memory, Source};
use pinfold::testing::pattern::Pattern;
use pinfold::{Cache, File, Hint, Options};

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

    /// Returns when so many stand at it, or have passed.
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

/// Sevens, behind a gate.
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
    Cache::new(Options::new(32 << 20).io_uring(false)).unwrap()
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
        let stats = cache.stats();
        let (_, source) = stats.sources.iter().find(|(name, _)| name == "healthy").unwrap();
        assert!(source.read_ahead.calls > 0, "nothing was read ahead: {source:?}");
        assert_eq!(source.read_ahead.errors, 0, "{source:?}");
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
        // Then the lower file's pages are on their way, for whoever asks.
        ask_page_by_page(&lower);
        gate.open();
        let mut buf = vec![0; PAGE as usize];
        for page in 0..PAGES {
            assert_eq!(upper.read_at(&mut buf, page * PAGE).unwrap(), buf.len());
            pattern.check(page * PAGE, &buf).unwrap();
        }
    });
}
