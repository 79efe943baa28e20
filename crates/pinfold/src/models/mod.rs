//! The cache's protocols in every interleaving that loom distinguishes, on the shipped functions: a
//! whole cache except for its daemon, its I/O engine and the public types.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p pinfold --lib models`. Each model runs as
//! shipped, and then with each mutant that it must catch. A run has at most two preemptions;
//! `PINFOLD_LOOM_PREEMPTIONS=N` sets another bound.
//!
//! A model's cache, its files, steps that several models share, and the checks at the end of all.
//! The bytes of a page are one word that says which page of which file it is, see `frames::bytes`.

mod behind;
mod borrowed;
mod counted;
mod faults;
mod fillers;
mod granted;
mod kernel;
mod length;
mod many;
mod moved;
mod park;
mod pinned;
mod reopened;
mod short;
mod swapped;
mod synced;
mod woken;
mod writer;

use std::borrow::Cow;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::access::pin::PinnedRange;
use crate::base::barrier::Barrier;
use crate::base::fork::OwnerProcess;
use crate::base::mutant::{self, Mutant};
use crate::error::Result;
use crate::frames::{FrameStats, Frames, Order, PAGE_BYTES, bytes};
use crate::index::{NodePool, PAGES_END};
use crate::options::Options;
use crate::pages::core::Core;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::pressure::Pressure;
use crate::pages::reclaim;
use crate::source::{Backing, EngineOptions, Extent, Source};

const PAGE: u64 = PAGE_BYTES as u64;

/// What fresh index nodes hold: a folio that no file has.
const GARBAGE: u32 = 0x3FFF_FFFF;

/// The checker's message for bytes that change while they are read.
const RACE: &str = "Causality violation: Concurrent";

std::thread_local! {
    /// Whether loom runs the second side of a race first.
    static SWAPPED: Cell<bool> = const { Cell::new(false) };
}

/// Checks that the model holds, and that each mutant breaks it with the given part of a panic
/// message.
///
/// Each is explored twice, starting with either side. loom remembers only the last access of a
/// word, so a thread's own load hides another thread's load from its next store; starting with the
/// other side (the storing thread first) shows the two in either order.
fn holds_and_catches(model: fn(), mutants: &[(Mutant, &str)]) {
    holds_and_catches_within(2, model, mutants);
}

/// As [`holds_and_catches`] with another bound on preemptions, where two do not show every mutant
/// or take too long.
fn holds_and_catches_within(preemptions: usize, model: fn(), mutants: &[(Mutant, &str)]) {
    let explore = |mutant, swapped| {
        SWAPPED.set(swapped);
        let mut builder = loom::model::Builder::new();
        let bound = std::env::var("PINFOLD_LOOM_PREEMPTIONS").ok();
        builder.preemption_bound = Some(bound.and_then(|n| n.parse().ok()).unwrap_or(preemptions));
        builder.max_branches = 20_000;
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let result = catch_unwind(AssertUnwindSafe(|| {
            builder.check(move || {
                counted.fetch_add(1, Ordering::Relaxed);
                mutant::with(mutant, model);
            });
        }));
        println!("{mutant:?}, swapped {swapped}: {} runs", runs.load(Ordering::Relaxed));
        result.map_err(|panic| message(&*panic))
    };
    for swapped in [false, true] {
        if let Err(why) = explore(None, swapped) {
            panic!("as shipped it fails: {why}");
        }
    }
    for &(mutant, reason) in mutants {
        let caught = explore(Some(mutant), false).and_then(|()| explore(Some(mutant), true));
        let Err(why) = caught else { panic!("{mutant:?} was not caught") };
        assert!(why.contains(reason), "{mutant:?} was caught for another reason: {why}");
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// A source whose page `n` reads as `number * 1000 + generation * 100 + n`, in both halves of the
/// word, and that fails its first `failures` reads.
#[derive(Debug)]
struct Pages {
    number: u64,
    len_bytes: AtomicU64,
    generation: AtomicU64,
    failures: AtomicU64,
    /// The word of its first page that a sync has made durable.
    durable: AtomicU64,
}

impl Source for Pages {
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        unreachable!("the cache reads into extents")
    }

    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        let left = self.failures.load(Ordering::Relaxed);
        if left > 0 {
            self.failures.store(left - 1, Ordering::Relaxed);
            return Err(io::Error::other("as the model wants it"));
        }
        let mut page = offset / PAGE;
        for extent in extents {
            for at in (0..extent.bytes()).step_by(PAGE_BYTES) {
                bytes::fill(extent.part(at, PAGE_BYTES).address(), self.word(page));
                page += 1;
            }
        }
        Ok(extents.iter().map(Extent::bytes).sum())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len_bytes.load(Ordering::Relaxed))
    }

    fn kind(&self) -> Cow<'static, str> {
        "model".into()
    }
}

impl Pages {
    fn word(&self, page: u64) -> u64 {
        let value = self.number * 1000 + self.generation.load(Ordering::Relaxed) * 100 + page;
        value << 32 | value
    }
}

/// A cache and its files, numbered from 0.
struct Model {
    core: Arc<Core>,
    files: Vec<Handle>,
    sources: Vec<Arc<Pages>>,
    /// What each side of a race gives back. Not loom's mutexes: each is one side's only.
    pins: [std::sync::Mutex<Option<PinnedRange>>; 2],
    fresh: FrameStats,
}

impl Model {
    /// A model with `frames` frames, folios of up to `order`, and two files of four pages.
    fn new(frames: u64, order: u8) -> Arc<Self> {
        Self::with_barrier(frames, order, Barrier::FullFence)
    }

    /// A model as of [`Self::new`], with readers that have a fence of their own or not. loom has no
    /// membarrier: see `readers::barrier`.
    fn with_barrier(frames: u64, order: u8, barrier: Barrier) -> Arc<Self> {
        let nodes = NodePool::model(6, GARBAGE);
        let frames = Frames::open((frames + 1) * PAGE).expect("memory for a model");
        let order_max = Order::new(order).expect("a legal order");
        let fresh = frames.stats();
        let engine = EngineOptions { ring_depth: 0, ring_ahead: 0, workers_max: 1, lane_max: 1 };
        let options = Options {
            membarrier: barrier == Barrier::Membarrier,
            ..Options::new(frames.frames().into())
        };
        let pressure = Pressure::model(frames.frames(), order_max, (0, 0), 32);
        let core = Core::new(options, frames, nodes, pressure, engine);
        let core = Arc::new(core.expect("memory for a model"));
        let sources: Vec<_> = (1..=2).map(|n| Arc::new(Pages::new(n))).collect();
        let files = sources.iter().map(|source| open(&core, source.clone())).collect();
        Arc::new(Model { core, files, sources, pins: Default::default(), fresh })
    }

    /// A model with the first file's first page, in the only frame.
    fn only() -> Arc<Self> {
        let model = Self::new(1, 0);
        model.check(0, 0, 1);
        model
    }

    /// Reads the words of `pages` pages from `page` on, in one read.
    fn read(&self, file: usize, page: u64, pages: usize) -> Result<Vec<u64>> {
        let bytes = (pages - 1) * PAGE_BYTES + 8;
        let mut buf = vec![0; bytes];
        let got = self.files[file].read_at(&mut buf, page * PAGE)?;
        let words = buf[..got].chunks(PAGE_BYTES).map(|at| word(&at[..8]));
        Ok(words.collect())
    }

    /// Whether a short read filled `buf`.
    fn short(&self, file: usize, buf: &mut [u8], offset: u64) -> bool {
        let file = &self.files[file];
        file.short(buf, offset, file.counters().shard())
    }

    /// Reads, and checks every word. Fewer pages are correct only at the end of the file.
    fn check(&self, file: usize, page: u64, pages: usize) {
        let wanted: Vec<_> =
            (page..page + pages as u64).map(|page| self.sources[file].word(page)).collect();
        let got = self.read(file, page, pages).expect("the source does not fail");
        assert_eq!(got, wanted, "wrong bytes");
    }

    /// A short read of a page of the first file; it may fail.
    fn check_shortly(&self, page: u64) {
        let mut buf = [0; 8];
        if self.short(0, &mut buf, page * PAGE) {
            assert_eq!(word(&buf), self.sources[0].word(page), "wrong bytes");
        }
    }

    /// A look-up under a reference of a page of the first file; it may fail.
    fn check_counted(&self, page: u64) {
        let file = &self.files[0];
        let Some(held) = self.core.hold(&file.mapping, page) else { return };
        if held.frame().is_changing() {
            return;
        }
        let mut buf = [0; 8];
        let copied = file.copy_held(&held, &mut buf, page * PAGE);
        assert_eq!(copied, 8, "the page is not in the folio");
        assert_eq!(word(&buf), self.sources[0].word(page), "wrong bytes");
    }

    /// Evicts until a page is evicted or none can be.
    fn evict(&self) {
        reclaim::evict(&self.core, 1);
    }

    /// Fills a freed frame, if there is one, with a page of the second file.
    fn refill(&self) {
        if self.core.frames.free_frames() > 0 {
            self.check(1, 0, 1);
        }
    }

    fn evict_and_refill(&self) {
        self.evict();
        self.refill();
    }

    /// All threads have ended: everything can be dropped, and then everything is free. Nothing
    /// leaked.
    fn ends(&self) {
        freeze::collect(&self.core);
        for file in &self.files {
            freeze::discard(&self.core, &file.mapping, 0..PAGES_END);
            assert_eq!(file.mapping.change().folios(), 0, "folios are left");
        }
        assert_eq!(self.core.frames.stats(), self.fresh, "frames are lost");
    }
}

impl Pages {
    fn new(number: u64) -> Self {
        Pages {
            number,
            len_bytes: AtomicU64::new(4 * PAGE),
            generation: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            durable: AtomicU64::new(0),
        }
    }
}

fn open(core: &Arc<Core>, source: Arc<Pages>) -> Handle {
    let len_bytes = source.len_bytes().expect("it has a length");
    let backing = Backing::new(source, core.engine.clone());
    let opened = core.mappings.open(&core.nodes, None, PathBuf::from("model"), backing, len_bytes);
    let (mapping, _) = opened.expect("a free number");
    Handle::new(core.clone(), mapping, 0)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}

/// Runs three sides at once on the model, which no thread holds afterwards.
fn race_of_three(model: &Arc<Model>, one: fn(&Model), two: fn(&Model), three: fn(&Model)) {
    let (first, last) = if SWAPPED.get() { (three, one) } else { (one, three) };
    let spawn = |side: fn(&Model)| {
        let shared = model.clone();
        loom::thread::spawn(move || side(&shared))
    };
    let threads = [spawn(two), spawn(last)];
    first(model);
    for thread in threads {
        thread.join().expect("the other thread");
    }
    model.ends();
}

/// Runs both sides at once on the model, which no thread holds afterwards.
fn race(model: &Arc<Model>, one: fn(&Model), other: fn(&Model)) {
    race_to(model, one, other);
    model.ends();
}

fn race_to(model: &Arc<Model>, one: fn(&Model), other: fn(&Model)) {
    let (first, second) = if SWAPPED.get() { (other, one) } else { (one, other) };
    let shared = model.clone();
    let thread = loom::thread::spawn(move || second(&shared));
    first(model);
    thread.join().expect("the other thread");
}
