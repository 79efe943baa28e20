//! The cache against its simulation: the same requests, by one thread, to both.
//!
//! The cache reads from a source that costs nothing, and what it reads is compared with what the
//! simulated policy misses. The simulation is of pages: it knows of no folios, no readahead, no
//! index and no reclaiming thread, so what these do to the hit ratio shows here.
//!
//! `cargo test -p pinfold-cli --lib against_cache -- --nocapture` prints the figures.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinfold::source::{Extent, Source};
use pinfold::{Cache, File, Hint, Options};
use pinfold_policy::S3Fifo;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::Zipf;
use rand_pcg::Pcg64;

use super::engine::Engine;
use super::pinfold::Driver;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// A file of zeros that counts the pages read.
#[derive(Debug)]
struct Zeros {
    bytes: u64,
    pages_read: Arc<AtomicU64>,
}

impl Source for Zeros {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.read_extents_at(offset, &[Extent::of(buf)])
    }

    /// Leaves the memory as it is: nobody looks at it.
    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        let asked = extents.iter().map(Extent::bytes).sum::<usize>() as u64;
        let got = asked.min(self.bytes.saturating_sub(offset));
        self.pages_read.fetch_add(got.div_ceil(PAGE), Ordering::Relaxed);
        Ok(got as usize)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn kind(&self) -> Cow<'static, str> {
        "zeros".into()
    }
}

/// A page of a file.
type Page = (u32, u64);

/// Both sides.
struct Sides {
    cache: Cache,
    files: Vec<File>,
    pages_read: Arc<AtomicU64>,
    simulated: Driver,
    numbers: HashMap<Page, u32>,
    /// What metadata may take, in bytes.
    metadata_max: u64,
    requests: u64,
}

/// What part of the requests of a phase was not a hit.
#[derive(Clone, Copy, Debug)]
struct Missed {
    cache: f64,
    simulated: f64,
}

/// The largest number of pages that a case has.
const DISTINCT_MAX: u32 = 5 << 19;

impl Sides {
    fn new(budget: u64, files: u32, file_bytes: u64, folio_max: u64) -> Self {
        let options = Options {
            folio_max_bytes: folio_max as usize,
            io_uring: false,
            ..Options::new(budget)
        };
        let cache = Cache::new(options).expect("a cache");
        let pages_read = Arc::new(AtomicU64::new(0));
        let attach = |n| {
            let source = Zeros { bytes: file_bytes, pages_read: pages_read.clone() };
            cache.attach(&format!("zeros {n}"), Arc::new(source)).expect("attached")
        };
        let files = (0..files).map(attach).collect();
        // Reclaim keeps between a 128th and a 64th free.
        let capacity = ((cache.stats().free_bytes - budget / 64) / PAGE) as u32;
        Self {
            files,
            pages_read,
            simulated: Driver::new(S3Fifo::new(capacity.into()), DISTINCT_MAX, capacity),
            numbers: HashMap::new(),
            metadata_max: budget / 40 + budget * 288 / 4096,
            requests: 0,
            cache,
        }
    }

    /// Waits for what is being read ahead.
    fn settle(&self) {
        while self.cache.stats().fills_in_flight > 0 {
            std::thread::yield_now();
        }
    }

    fn run(&mut self, requests: impl IntoIterator<Item = Page>) -> Missed {
        self.run_and(requests, |_| ())
    }

    /// [`run`](Self::run), which calls `then` after each request.
    fn run_and(
        &mut self,
        requests: impl IntoIterator<Item = Page>,
        then: impl Fn(&Self),
    ) -> Missed {
        let (mut misses, mut count) = (0, 0_u32);
        let before = self.pages_read.load(Ordering::Relaxed);
        let mut buf = [0; 64];
        for page in requests {
            let next = self.numbers.len() as u32;
            let number = *self.numbers.entry(page).or_insert(next);
            misses += u64::from(!self.simulated.access(number));
            let (file, at) = (&self.files[page.0 as usize], page.1 * PAGE);
            assert_eq!(file.read_at(&mut buf, at).expect("read"), buf.len());
            count += 1;
            self.requests += 1;
            if self.requests.is_multiple_of(1000) {
                self.check_metadata();
            }
            then(self);
        }
        self.settle();
        let read = self.pages_read.load(Ordering::Relaxed) - before;
        let of_all = |part: u64| part as f64 / f64::from(count);
        Missed { cache: of_all(read), simulated: of_all(misses) }
    }

    fn check_metadata(&self) {
        let stats = self.cache.stats();
        let (has, most) = (stats.metadata_bytes, self.metadata_max);
        assert!(has <= most, "metadata takes {has} bytes, and may take {most}");
    }
}

/// Page numbers in random order.
fn some(random: &mut Pcg64, of: u64, count: usize) -> Vec<u64> {
    let mut pages = std::collections::BTreeSet::new();
    while pages.len() < count {
        pages.insert(random.random_range(0..of));
    }
    let mut pages: Vec<u64> = pages.into_iter().collect();
    pages.shuffle(random);
    pages
}

fn of_first(pages: impl IntoIterator<Item = u64>) -> impl Iterator<Item = Page> {
    pages.into_iter().map(|page| (0, page))
}

/// Loops over `set`: from the fourth round on, the cache misses as little as the simulation.
fn recovers(what: &str, sides: &mut Sides, set: &[u64]) {
    for round in 1..=5 {
        let missed = sides.run(of_first(set.iter().copied()));
        println!("{what}, round {round}: {missed:.3?}");
        if round > 3 {
            assert_near(what, missed, 0.02);
        }
    }
}

fn assert_near(what: &str, missed: Missed, most: f64) {
    let apart = (missed.cache - missed.simulated).abs();
    assert!(apart <= most, "{what}: {missed:?}");
}

/// A file is read in order, and then a random set of half the budget again and again.
fn loops_after_a_scan(file: u64, budget: u64, folio_max: u64) {
    let (gib, mib, kib) = (file / GIB, budget / MIB, folio_max >> 10);
    let what = format!("{gib} GiB by {mib} MiB, folios of {kib} KiB");
    let mut sides = Sides::new(budget, 1, file, folio_max);
    let pages = file / PAGE;
    let missed = sides.run(of_first(0..pages));
    println!("{what}, scan: {missed:.3?}");
    let set = some(&mut Pcg64::seed_from_u64(1), pages, (budget / PAGE / 2) as usize);
    recovers(&what, &mut sides, &set);
}

#[test]
fn a_loop_after_a_scan() {
    for folio_max in [4 << 10, 64 << 10, 2 * MIB] {
        loops_after_a_scan(2 * GIB, 16 * MIB, folio_max);
    }
    loops_after_a_scan(2 * GIB, 64 * MIB, 2 * MIB);
}

#[test]
#[ignore = "takes a minute"]
fn a_loop_after_a_long_scan() {
    for folio_max in [4 << 10, 64 << 10, 2 * MIB] {
        loops_after_a_scan(8 * GIB, 256 * MIB, folio_max);
    }
}

/// Half of the reads are of hot pages, a quarter of the budget, and half are anywhere.
#[test]
fn a_hot_set_in_a_sparse_file() {
    for (file, scattered) in [(16 * TIB, false), (16 * TIB, true), (4 * TIB, true)] {
        let budget = 64 * MIB;
        let what = format!("{} TiB, hot pages scattered: {scattered}", file / TIB);
        let mut sides = Sides::new(budget, 1, file, 2 * MIB);
        sides.metadata_max = sparse_max(budget);
        let mut random = Pcg64::seed_from_u64(1);
        let (pages, count) = (file / PAGE, budget / PAGE / 4);
        let hot =
            if scattered { some(&mut random, pages, count as usize) } else { (0..count).collect() };
        for round in 1..=8 {
            let mut sum = Missed { cache: 0.0, simulated: 0.0 };
            for _ in 0..count {
                let page = hot[random.random_range(0..hot.len())];
                let missed = sides.run([(0, page)]);
                sum.cache += missed.cache;
                sum.simulated += missed.simulated;
                sides.run([(0, random.random_range(0..pages))]);
            }
            let n = count as f64;
            let missed = Missed { cache: sum.cache / n, simulated: sum.simulated / n };
            let metadata = sides.cache.stats().metadata_bytes as f64 / budget as f64;
            println!("{what}, round {round}, of the hot: {missed:.3?}, metadata {metadata:.3}");
            if round > 3 {
                // Index nodes take the place of some pages.
                assert_near(&what, missed, 0.03);
            }
        }
    }
}

/// What metadata may take where each cached page has three nodes of its own: they take the place of
/// pages.
fn sparse_max(budget: u64) -> u64 {
    budget / 40 + budget * (3 * 288) / (4096 + 3 * 288)
}

#[test]
fn an_ordered_pass_over_a_sparse_file() {
    for stride in [1 << 6, 1 << 8, 1 << 12, 1 << 16] {
        let budget = 64 * MIB;
        let what = format!("a pass, one of {stride} pages");
        let mut sides = Sides::new(budget, 1, 16 * TIB, 2 * MIB);
        sides.metadata_max = sparse_max(budget);
        sides.run(of_first((0..40_000).map(|n| n * stride)));
        let stats = sides.cache.stats();
        let [resident, metadata] = [stats.resident_bytes, stats.metadata_bytes].map(|it| it >> 10);
        println!("{what}: {resident} KiB of pages, {metadata} of metadata");
        assert!(stats.resident_bytes > budget * 4 / 5, "{what}: {resident} KiB of pages");
        let set = some(&mut Pcg64::seed_from_u64(1), GIB / PAGE, (budget / PAGE / 2) as usize);
        recovers(&what, &mut sides, &set);
    }
}

#[test]
fn popular_pages_of_many_files() {
    for (files, folio_max, skew) in [
        (1, 4 << 10, 0.7),
        (1, 2 * MIB, 0.7),
        (10, 2 * MIB, 0.9),
        (100, 64 << 10, 0.7),
        (100, 2 * MIB, 1.1),
    ] {
        let what = format!("{files} files, folios of {} KiB, skew {skew}", folio_max >> 10);
        let budget = 16 * MIB;
        let per_file = 64 * 1024 / u64::from(files);
        let mut sides = Sides::new(budget, files, per_file * PAGE, folio_max);
        let mut random = Pcg64::seed_from_u64(1);
        let of_file = |file| (0..per_file).map(move |page| (file, page));
        let mut pages: Vec<Page> = (0..files).flat_map(of_file).collect();
        sides.run(pages.iter().copied());
        for file in &sides.files {
            file.advise(0..per_file * PAGE, Hint::Random).expect("a hint"); // what is read ahead is no matter here
        }
        pages.shuffle(&mut random);
        let ranks = Zipf::new(pages.len() as f64, skew).expect("a law");
        for round in 1..=3 {
            let draw = |_| {
                #[allow(clippy::cast_sign_loss, reason = "ranks begin at 1")]
                let rank = random.sample(ranks) as usize;
                pages[rank - 1]
            };
            let requests: Vec<Page> = (0..100_000).map(draw).collect();
            let missed = sides.run(requests);
            println!("{what}, round {round}: {missed:.3?}");
            if round > 1 {
                assert_near(&what, missed, 0.01);
            }
        }
    }
}

#[test]
fn loops_about_as_long_as_the_cache() {
    for (folio_max, shuffled) in [(4 << 10, false), (2 * MIB, false), (2 * MIB, true)] {
        for percent in [90, 110, 150, 200] {
            let kib = folio_max >> 10;
            let what = format!("a loop of {percent} %, folios of {kib} KiB, shuffled: {shuffled}");
            let budget = 16 * MIB;
            let pages = budget / PAGE * percent / 100;
            let mut sides = Sides::new(budget, 1, pages * PAGE, folio_max);
            let mut set: Vec<u64> = (0..pages).collect();
            if shuffled {
                set.shuffle(&mut Pcg64::seed_from_u64(1));
            }
            for round in 1..=6 {
                let missed = sides.run(of_first(set.iter().copied()));
                println!("{what}, round {round}: {missed:.3?}");
                // Large folios that are read in order may do better than their pages.
                let worse = missed.cache - missed.simulated;
                assert!(round < 4 || worse <= 0.02, "{what}, round {round}: {missed:?}");
            }
        }
    }
}

/// Loops that nearly fill the cache, in a file that goes on behind them: what is read ahead there
/// must not push them out for long. Beyond 97 % not even the simulation has room for all of the
/// loop. What is read ahead is waited for: otherwise it would depend on the worker's timing which
/// pages it meets.
#[test]
fn loops_in_a_longer_file() {
    let budget = 16 * MIB;
    let mut wrong = Vec::new();
    for folio_max in [4 << 10, 64 << 10, 2 * MIB] {
        for percent in [80, 84, 86, 87, 88, 89, 90, 91, 92, 93, 94, 95, 96, 97] {
            let what = format!("{percent} % by folios of {} KiB", folio_max >> 10);
            let mut sides = Sides::new(budget, 1, 8 * budget, folio_max);
            let pages = budget / PAGE * percent / 100;
            let mut round = || sides.run_and(of_first(0..pages), Sides::settle);
            let rounds: Vec<Missed> = (0..8).map(|_| round()).collect();
            let [cache, simulated] = [|it: &Missed| it.cache, |it: &Missed| it.simulated]
                .map(|part| rounds.iter().map(part).collect::<Vec<_>>());
            println!("{what}: {cache:.3?}, simulated {simulated:.3?}");
            // Large folios that are read in order may do better than their pages.
            let worse = |it: &Missed| it.cache > it.simulated + 0.02;
            if rounds[3..].iter().any(worse) {
                wrong.push(what);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
#[cfg(feature = "mutants")]
fn the_mutants_are_caught() {
    for (mutant, name) in [
        ("GhostsForgotten", "a_loop_after_a_scan"),
        ("PartsUnsplit", "a_loop_after_a_scan"),
        ("FirstReadUses", "popular_pages_of_many_files"),
        ("OverStays", "loops_in_a_longer_file"),
    ] {
        let mut test = std::process::Command::new(std::env::current_exe().expect("the test"));
        test.args(["--exact", &format!("sim::against_cache::{name}")]);
        let run = test.env("PINFOLD_MUTANT", mutant).env("RUST_BACKTRACE", "0").output();
        let run = run.expect("started");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(said.contains("1 failed"), "{mutant} was not caught: {said}");
    }
}
