//! Whole caches in random schedules by shuttle: real memory, real fills, the daemon, requests that
//! complete on another thread, batches, compaction, waiting for memory.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p pinfold --lib models::`. Each model runs as shipped,
//! and once with each mutant that it must catch. A schedule is drawn from a seed, which a failure
//! prints: `PINFOLD_SHUTTLE_SEED=<seed>` runs it again. `PINFOLD_SHUTTLE_RUNS=<n>` runs n schedules
//! of each model as shipped, instead of the number for ordinary tests.
//!
//! A model's cache, its files, and the checks at the end of all. The memory model is x86's store
//! buffers at most (`sync::scheduled`); loom has the language's memory model, and smaller models.

#[path = "../behind.rs"]
mod behind;
mod borrowed;
mod faults;
mod filling;
mod futures;
mod granted;
mod many;
mod memory;
mod mirrors;
mod moving;
#[path = "../park.rs"]
mod park;
mod words;

use std::borrow::Cow;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{FailurePersistence, Runner};

use crate::base::barrier::Barrier;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{Condvar, Mutex, scheduled, thread};
use crate::error::Result;
use crate::frames::{FrameStats, Frames, Order, PAGE_BYTES};
use crate::index::{NodePool, PAGES_END};
use crate::options::Options;
use crate::pages::core::Core;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::pressure::Pressure;
use crate::pages::reclaim;
use crate::source::{Backing, EngineOptions, Extent, Request, Source, Start};

const PAGE: u64 = PAGE_BYTES as u64;

/// Schedules drawn from one seed.
const RUNS_OF_A_SEED: usize = 100;

/// Seeds of each model as shipped, and the most seeds until a mutant must be caught.
const SEEDS: usize = 10;
const SEEDS_FOR_A_MUTANT: usize = 1000;

/// A run of this many steps counts as one that does not end.
const STEPS_MAX: usize = 200_000;

/// The memory model of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stores {
    /// All threads see a store at once.
    AtOnce,
    /// Stores are delayed in store buffers, as on x86.
    Buffered,
}

/// Checks that the model holds, and that each mutant breaks it with the given part of a panic
/// message.
fn holds_and_catches(stores: Stores, model: fn(), mutants: &[(Mutant, &str)]) {
    if holds(stores, model) {
        catches(stores, model, mutants);
    }
}

/// Checks that the model holds. False if only one seed was wanted.
fn holds(stores: Stores, model: fn()) -> bool {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<usize>().ok());
    if let Some(seed) = number("PINFOLD_SHUTTLE_SEED") {
        let result = explore(stores, model, None, seed as u64, RUNS_OF_A_SEED);
        result.unwrap_or_else(|why| panic!("as shipped it fails: {why}"));
        return false;
    }
    let seeds = number("PINFOLD_SHUTTLE_RUNS").map_or(SEEDS, |runs| runs.div_ceil(RUNS_OF_A_SEED));
    let since = std::time::Instant::now();
    for seed in 0..seeds {
        if let Err(why) = explore(stores, model, None, seed as u64, RUNS_OF_A_SEED) {
            panic!("as shipped it fails (PINFOLD_SHUTTLE_SEED={seed} shows it again): {why}");
        }
    }
    println!("as shipped: {} runs, {:?}", seeds * RUNS_OF_A_SEED, since.elapsed());
    true
}

/// Checks that each mutant breaks the model with the given part of a panic message.
fn catches(stores: Stores, model: fn(), mutants: &[(Mutant, &str)]) {
    let mut wrong = Vec::new();
    for &(mutant, reason) in mutants {
        let since = std::time::Instant::now();
        let caught = (0..SEEDS_FOR_A_MUTANT).find_map(|seed| {
            let caught = explore(stores, model, Some(mutant), seed as u64, RUNS_OF_A_SEED).err();
            caught.map(|why| (seed, why))
        });
        match caught {
            None => wrong.push(format!("{mutant:?} was not caught")),
            Some((seed, why)) => {
                println!("{mutant:?}: seed {seed}, {:?}: {why}", since.elapsed());
                if !why.contains(reason) {
                    wrong.push(format!("{mutant:?} was caught for another reason: {why}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}

/// Runs the model in schedules drawn from `seed`: odd seeds have few thread switches (PCT), even
/// ones many.
fn explore(
    stores: Stores,
    model: fn(),
    mutant: Option<Mutant>,
    seed: u64,
    runs: usize,
) -> std::result::Result<(), String> {
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = shuttle::MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    let body = move || {
        scheduled::begin_run(stores == Stores::Buffered);
        model();
        scheduled::empty_own_buffer();
    };
    let mut result = Ok(());
    mutant::with(mutant, || {
        result = catch_unwind(AssertUnwindSafe(|| {
            if seed % 2 == 0 {
                Runner::new(RandomScheduler::new_from_seed(seed, runs), config).run(body);
            } else {
                Runner::new(PctScheduler::new_from_seed(seed, 4, runs), config).run(body);
            }
        }));
    });
    result.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

fn spawn(body: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().spawn(body).expect("a thread of a model")
}

/// The parameters of a model's cache.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// All frames, including those of the table and of index nodes.
    frames: u32,
    order_max: u8,
    /// The numbers of free frames at which the daemon starts and stops. Zeros: no daemon.
    watermarks: (u32, u32),
    barrier: Barrier,
    files: u64,
    pages: u64,
    readahead_pages: u64,
    /// Requests complete on a thread of the source.
    device: bool,
}

const SMALL: Plan = Plan {
    frames: 7,
    order_max: 0,
    watermarks: (0, 0),
    barrier: Barrier::Membarrier,
    files: 2,
    pages: 4,
    readahead_pages: 0,
    device: false,
};

/// A source whose page `n` is filled with one word, `number << 32 | generation << 16 | n`.
struct Pages {
    number: u64,
    pages: u64,
    /// From `crate::base::sync`: threads that read the source race with one that changes it.
    generation: crate::base::sync::AtomicU64,
    /// One read in this many fails; 0: none.
    failing_one_in: u64,
    queue: Option<(Mutex<Queue>, Condvar)>,
}

#[derive(Default)]
struct Queue {
    requests: Vec<Request>,
    ended: bool,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("number", &self.number).finish_non_exhaustive()
    }
}

fn draw(below: u64) -> u64 {
    shuttle::rand::RngCore::next_u64(&mut shuttle::rand::thread_rng()) % below
}

impl Pages {
    fn word(&self, page: u64, generation: u64) -> u64 {
        self.number << 32 | generation << 16 | page
    }

    /// The source's own thread: executes requests in any order.
    fn device(&self) {
        let (queue, wake) = self.queue.as_ref().expect("a source with a queue");
        loop {
            let request = {
                let mut queue = queue.lock();
                while queue.requests.is_empty() && !queue.ended {
                    queue = wake.wait(queue);
                }
                if queue.requests.is_empty() {
                    return;
                }
                let nth = draw(queue.requests.len() as u64) as usize;
                queue.requests.swap_remove(nth)
            };
            let result = self.read_extents_at(request.offset(), request.extents());
            request.finish(result);
        }
    }

    fn end(&self) {
        if let Some((queue, wake)) = &self.queue {
            queue.lock().ended = true;
            wake.notify_all();
        }
    }
}

impl Source for Pages {
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        unreachable!("the cache reads into extents")
    }

    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        if self.failing_one_in > 0 && draw(self.failing_one_in) == 0 {
            return Err(io::Error::other("as the model wants it"));
        }
        let generation = self.generation.load(crate::base::sync::Ordering::SeqCst);
        let mut page = offset / PAGE;
        let mut got = 0;
        for extent in extents {
            for at in (0..extent.bytes()).step_by(PAGE_BYTES) {
                if page < self.pages {
                    let bytes = self.word(page, generation).to_ne_bytes().repeat(PAGE_BYTES / 8);
                    // In two parts: a thread that reads in between gets half of a page.
                    scheduled::point();
                    extent.store(at, &bytes[..PAGE_BYTES / 2]);
                    scheduled::point();
                    extent.store(at + PAGE_BYTES / 2, &bytes[PAGE_BYTES / 2..]);
                    got += PAGE_BYTES;
                }
                page += 1;
            }
        }
        Ok(got)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.pages * PAGE)
    }

    fn kind(&self) -> Cow<'static, str> {
        "model".into()
    }

    fn start(&self, batch: &mut Vec<Request>) -> Start {
        // Not "unsupported": the cache's own workers are threads of the system.
        let Some((queue, wake)) = &self.queue else { return Start::Full };
        let mut queue = queue.lock();
        // Those that nobody waits for at most one at a time: the cache must end the rest.
        let mut room = 1_usize.saturating_sub(queue.requests.len());
        let mut fits = |request: &Request| {
            let fits = request.is_awaited() || room > 0;
            room = room.saturating_sub(1);
            fits
        };
        let taken = batch.iter().take_while(|request| fits(request)).count();
        queue.requests.extend(batch.drain(..taken));
        wake.notify_all();
        if batch.is_empty() { Start::Started } else { Start::Full }
    }
}

/// A cache and its files.
struct Fixture {
    core: Arc<Core>,
    files: Vec<Handle>,
    sources: Vec<Arc<Pages>>,
    devices: Mutex<Vec<thread::JoinHandle<()>>>,
    fresh: FrameStats,
}

impl Fixture {
    fn new(plan: Plan) -> Arc<Self> {
        Self::failing(plan, 0)
    }

    /// With a source that fails one read in `failing_one_in`.
    fn failing(plan: Plan, failing_one_in: u64) -> Arc<Self> {
        let frames = Frames::open(u64::from(plan.frames) * PAGE).expect("memory for a model");
        let fresh = frames.stats();
        let base = frames.base();
        let bytes = frames.frames() as usize * PAGE_BYTES;
        // SAFETY: the core drops the nodes before the frames.
        let nodes = unsafe { NodePool::new(base, bytes, PAGE_BYTES) };
        let order_max = Order::new(plan.order_max).expect("a legal order");
        let engine = EngineOptions { ring_depth: 0, ring_ahead: 0, workers_max: 1, lane_max: 1 };
        let options = Options {
            membarrier: plan.barrier == Barrier::Membarrier,
            ..Options::new(frames.frames().into())
        };
        let pressure = Pressure::model(frames.frames(), order_max, plan.watermarks, 1);
        let core = Core::new(options, frames, nodes, pressure, engine);
        let core = Arc::new(core.expect("memory for a model"));
        if plan.watermarks != (0, 0) {
            reclaim::daemon::start(&core).expect("a thread of a model");
        }
        // Otherwise threads with a frame each might all wait for the last one, for index nodes.
        assert!(reclaim::refill_nodes(&core, 8, true).expect("memory for a model"));
        let queue = || plan.device.then(|| (Mutex::new(Queue::default()), Condvar::new()));
        let source = |number| {
            Arc::new(Pages {
                number,
                pages: plan.pages,
                generation: crate::base::sync::AtomicU64::new(0),
                failing_one_in,
                queue: queue(),
            })
        };
        let sources: Vec<_> = (1..=plan.files).map(source).collect();
        let files = sources.iter().map(|source| {
            let backing = Backing::new(source.clone(), core.engine.clone());
            let (path, len_bytes) = (PathBuf::from("model"), plan.pages * PAGE);
            let opened = core.mappings.open(&core.nodes, None, path, backing, len_bytes);
            let (mapping, _) = opened.expect("a free number");
            Handle::new(core.clone(), mapping, (plan.readahead_pages * PAGE) as usize)
        });
        let files = files.collect();
        let devices = sources.iter().filter(|_| plan.device).map(|source| {
            let source = source.clone();
            spawn(move || source.device())
        });
        let devices = Mutex::new(devices.collect());
        Arc::new(Fixture { core, files, sources, devices, fresh })
    }

    /// Reads a number of bytes of a page, and checks that they are the page's, of one generation.
    fn read(&self, file: usize, page: u64, bytes: usize) -> Result<()> {
        let mut buf = vec![0xEE; bytes];
        let got = self.files[file].read_at(&mut buf, page * PAGE)?;
        self.check_bytes(file, page, &buf[..got]);
        assert_eq!(got, bytes, "less than there is");
        Ok(())
    }

    /// Whether these are the bytes from `page` on, with one generation per page.
    fn check_bytes(&self, file: usize, page: u64, bytes: &[u8]) {
        let source = &self.sources[file];
        let now = source.generation.load(crate::base::sync::Ordering::SeqCst);
        for (n, part) in bytes.chunks(PAGE_BYTES).enumerate() {
            let words = part.chunks_exact(8).map(|word| word.try_into().expect("eight bytes"));
            let mut words = words.map(u64::from_ne_bytes);
            let first = words.next().expect("a word");
            let right = |generation| source.word(page + n as u64, generation) == first;
            assert!((0..=now).any(right), "wrong bytes: {first:x} at page {page} of file {file}");
            assert!(words.all(|word| word == first), "wrong bytes: halves of two");
        }
    }

    /// Any page of any file: a part of it, or all of it and the next one.
    fn read_any(&self) -> Result<()> {
        let file = draw(self.files.len() as u64) as usize;
        let pages = self.sources[file].pages;
        match draw(3) {
            0 => self.read(file, draw(pages), 64),
            1 => self.read(file, draw(pages), PAGE_BYTES),
            _ => self.read(file, draw(pages - 1), 2 * PAGE_BYTES),
        }
    }

    /// Drops any page of any file, or starts the next generation of all pages.
    fn invalidate_any(&self) {
        let file = draw(self.files.len() as u64) as usize;
        let page = draw(self.sources[file].pages);
        freeze::drop_clean(&self.core, &self.files[file].mapping, page..page + 1);
    }

    fn evict(&self) {
        reclaim::evict(&self.core, 1);
    }

    /// All threads have ended: everything can be dropped, and then all is free except the index's
    /// slabs, and nothing waits. The directory and the tree agree.
    fn ends(self: &Arc<Self>) {
        self.core.pressure.bell.end();
        for source in &self.sources {
            source.end();
        }
        for device in std::mem::take(&mut *self.devices.lock()) {
            device.join().expect("a source's thread");
        }
        assert!(self.core.waiters.is_empty(), "a waker is left with a folio");
        assert!(!self.core.pressure.has_keeper(), "a batch that is gone keeps its guards");
        assert!(self.core.pressure.is_idle(), "a claim or a turn is left");
        for file in &self.files {
            for page in 0..self.sources[0].pages {
                let (exact, hint) =
                    (file.mapping.index.lookup(page), file.mapping.index.lookup_hint(page));
                // The hint for an absent page may be any number.
                let same = exact.is_none_or(|head| head == hint);
                assert!(same, "the directory says {hint:?} and the tree {exact:?}");
            }
            freeze::discard(&self.core, &file.mapping, 0..PAGES_END);
            assert_eq!(file.mapping.change().folios(), 0, "folios are left");
        }
        freeze::collect(&self.core);
        assert_eq!(
            self.core.deferred.outstanding(&self.core.frames).0,
            0,
            "folios wait for nobody"
        );
        let slabs = (self.core.nodes.bytes() / PAGE) as u32;
        // A hollow run that is not wanted for a mirror stays hollow until the arena wants it.
        let frames = &self.core.frames;
        let free = frames.free_frames() + frames.free_hollow() + slabs;
        assert_eq!(free, self.fresh.free_frames, "frames are lost");
    }
}

/// Runs all sides at once on the cache, which no thread holds afterwards.
fn race(fixture: &Arc<Fixture>, sides: &[fn(&Fixture)]) {
    run(fixture, sides);
    fixture.ends();
}

/// Runs all sides at once.
fn run(fixture: &Arc<Fixture>, sides: &[fn(&Fixture)]) {
    let threads: Vec<_> = sides
        .iter()
        .map(|&side| {
            let fixture = fixture.clone();
            spawn(move || side(&fixture))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread of the model");
    }
}
