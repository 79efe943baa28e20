//! One sample of `pinfold bench batch` under a limit, taken by a process of its own: it enters the
//! memory control group, opens its engine, warms up and measures. `limited.rs` starts it.
//!
//! The file has contents that know where they belong (`pinfold_testing::pattern`). While it warms
//! up, a worker checks every byte of every page that it reads; while it is measured, a cell of 64
//! bytes of each page, because that takes 10 ns and the whole page 640.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use pinfold_testing::pattern::{CELL_BYTES, Pattern};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use super::batch_flow::{self, Flow};
use super::batch_nodes::{Engine, Nodes, PAGE_BYTES, Visit};
use super::limited::{self, CacheFigures, WARM_UP_WORKERS, numbers};
use super::shared::{Board, SharedBoard};
use super::times::Times;
use super::workers::{self, Work};

/// What the file holds.
pub const CONTENTS: Pattern = Pattern::new(11, 0);

/// Steps of one walk through the graph.
const QUERY_STEPS: usize = 64;
const PAGE_CELLS: u64 = (PAGE_BYTES / CELL_BYTES) as u64;

/// `pinfold bench batch-child`: its arguments.
#[derive(Debug, Args)]
pub struct ChildArgs {
    /// A [`Job`] as JSON.
    job: String,
}

/// Which pages a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// What the bytes of the batch before say.
    Graph,
    /// Any: drawn at random, whatever the bytes say.
    Random,
}

/// One sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// With what.
    pub engine: String,
    /// In which order.
    pub order: Order,
    /// By this many threads.
    pub threads: usize,
    /// Of which file.
    pub path: PathBuf,
    /// How long it is.
    pub file_bytes: u64,
    /// Pages of a batch.
    pub batch: usize,
    /// Or so many single pages on their way: as one comes, the next is asked for.
    pub in_flight: Option<usize>,
    /// For the cache.
    pub budget_bytes: u64,
    /// How long to measure.
    pub seconds: f64,
    /// How long to warm up: one batch of each worker at least.
    pub warm_up_seconds: f64,
    /// The control group to enter.
    pub group: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Pages a second, of all workers.
    pub ops_per_s: f64,
    /// What 99 of 100 batches took at most, or 99 of 100 single pages.
    pub p99_ns: u64,
    /// How many pages were in memory, where that is known.
    pub hit_ratio: Option<f64>,
    /// Of the cache.
    pub cache: Option<CacheFigures>,
}

/// Takes the sample and writes what came of it to standard output.
pub fn run(args: &ChildArgs) -> Result<()> {
    let job: Job = serde_json::from_str(&args.job).context("not a job for a child of batch")?;
    limited::begin(job.group.as_deref())?;
    crate::say::print(serde_json::to_string(&outcome(&job)?)?)?;
    Ok(())
}

fn outcome(job: &Job) -> Result<Outcome> {
    let engine = Engine::open(&job.engine, &job.path, job.budget_bytes)?;
    let shared = SharedBoard::new()?;
    let sample = |looks: Looks, workers: usize, seconds: f64| -> Result<_> {
        let walk = Walk { job, engine: &engine, looks, all: Mutex::new(Tally::new()) };
        let length = Duration::from_secs_f64(seconds);
        let taken = workers::sample_threads(workers, &walk, shared.board(), length)?;
        Ok((taken, walk.all.into_inner().unwrap_or_else(PoisonError::into_inner)))
    };
    let warm_up_workers = match engine {
        // Enough are on their way already.
        _ if job.in_flight.is_some() => job.threads,
        Engine::Ring => job.threads,
        _ => WARM_UP_WORKERS,
    };
    sample(Looks::Everywhere, warm_up_workers, job.warm_up_seconds)?;
    let before = engine.storage_bytes()?;
    let (taken, tally) = sample(Looks::AtOneCell, job.threads, job.seconds)?;
    let after = engine.storage_bytes()?;
    let missed_bytes = before.zip(after).map(|(before, after)| after - before);
    Ok(Outcome {
        ops_per_s: taken.ops_per_s,
        p99_ns: tally.times.at_most_ns(0.99).context("no batch was read")?,
        hit_ratio: missed_bytes.map(|bytes| hit_ratio(bytes, tally.pages)),
        cache: engine.cache_figures(),
    })
}

/// The part of so many pages that was not read from storage, where so many bytes were.
fn hit_ratio(missed_bytes: u64, pages: u64) -> f64 {
    (1.0 - missed_bytes as f64 / (pages as f64 * PAGE_BYTES as f64)).clamp(0.0, 1.0)
}

/// Which bytes of a page are compared with what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// All. The warm-up's.
    Everywhere,
    /// A cell, drawn with the page. The measured part's.
    AtOneCell,
}

/// What came of one worker's reads, or of all.
struct Tally {
    /// Of batches, or of single pages.
    times: Times,
    /// All that came, those that were waited for after the sample's end among them.
    pages: u64,
}

impl Tally {
    fn new() -> Self {
        Tally { times: Times::new(), pages: 0 }
    }

    fn merge(&mut self, other: &Tally) {
        self.times.merge(&other.times);
        self.pages += other.pages;
    }
}

/// What the workers do.
struct Walk<'a> {
    job: &'a Job,
    engine: &'a Engine,
    looks: Looks,
    all: Mutex<Tally>,
}

impl Work for Walk<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        let visit = OfWorker { walk: self, board, worker };
        match self.job.in_flight {
            None => self.engine.with_nodes(&self.job.path, self.job.batch, &visit),
            Some(in_flight) => self.engine.with_flow(&self.job.path, in_flight, &visit),
        }
    }
}

/// One worker of a [`Walk`].
struct OfWorker<'a> {
    walk: &'a Walk<'a>,
    board: &'a Board,
    worker: usize,
}

impl OfWorker<'_> {
    fn numbers(&self) -> Pcg64Mcg {
        numbers(u64::from(self.walk.looks == Looks::AtOneCell), self.worker)
    }

    fn add(&self, tally: &Tally) {
        self.walk.all.lock().unwrap_or_else(PoisonError::into_inner).merge(tally);
    }
}

impl Visit for OfWorker<'_> {
    fn visit(&self, nodes: &mut impl Nodes) -> Result<()> {
        let Walk { job, looks, .. } = self.walk;
        let mut steps = Steps::new(job, self.numbers());
        let mut tally = Tally::new();
        workers::work(self.board, self.worker, job.batch as u64, || {
            let begun = Instant::now();
            steps.step(nodes, *looks)?;
            tally.times.add(begun.elapsed());
            tally.pages += job.batch as u64;
            Ok(())
        })?;
        self.add(&tally);
        Ok(())
    }
}

impl batch_flow::Visit for OfWorker<'_> {
    fn visit(&self, flow: &mut impl Flow) -> Result<()> {
        let Walk { job, looks, .. } = self.walk;
        let in_flight = job.in_flight.context("a job of batches")?;
        let mut asked = Asked::new(job, in_flight, self.numbers());
        let mut tally = Tally::new();
        workers::work(self.board, self.worker, 1, || {
            asked.fill_up(flow)?;
            tally.times.add(asked.come(flow, *looks)?);
            tally.pages += 1;
            Ok(())
        })?;
        // What is on its way will have been read from storage, so it counts among the pages.
        while asked.on_their_way() > 0 {
            asked.come(flow, *looks)?;
            tally.pages += 1;
        }
        self.add(&tally);
        Ok(())
    }
}

/// Single pages, many of them on their way.
struct Asked {
    cells_end: u64,
    random: Pcg64Mcg,
    /// The cell of each page that is on its way, and since when.
    cells: Vec<Option<(u64, Instant)>>,
    /// Numbers of those that are not.
    free: Vec<usize>,
}

impl Asked {
    fn new(job: &Job, in_flight: usize, random: Pcg64Mcg) -> Self {
        let cells_end = job.file_bytes / CELL_BYTES as u64;
        Asked { cells_end, random, cells: vec![None; in_flight], free: (0..in_flight).collect() }
    }

    fn on_their_way(&self) -> usize {
        self.cells.len() - self.free.len()
    }

    /// Asks for pages until as many as may be are on their way.
    fn fill_up(&mut self, flow: &mut impl Flow) -> Result<()> {
        while let Some(n) = self.free.pop() {
            let cell = drawn(&mut self.random, self.cells_end);
            self.cells[n] = Some((cell, Instant::now()));
            flow.ask(n, cell / PAGE_CELLS)?;
        }
        Ok(())
    }

    /// Waits for a page, and returns for how long it was on its way.
    fn come(&mut self, flow: &mut impl Flow, looks: Looks) -> Result<Duration> {
        let mut took = None;
        flow.come(|n, bytes| {
            let asked = self.cells.get_mut(n).and_then(Option::take);
            let (cell, since) = asked.with_context(|| format!("nobody asked for number {n}"))?;
            took = Some(since.elapsed());
            self.free.push(n);
            check(looks, cell, bytes).map(drop)
        })?;
        took.context("no page came")
    }
}

/// One of so many cells.
fn drawn(random: &mut Pcg64Mcg, cells_end: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(cells_end)) >> u64::BITS) as u64
}

/// Compares the page of a cell with what the file holds; returns the cell's bytes.
fn check(looks: Looks, cell: u64, bytes: &[u8]) -> Result<&[u8]> {
    let page = cell / PAGE_CELLS;
    ensure!(bytes.len() == PAGE_BYTES, "page {page} has {} bytes", bytes.len());
    let at = (cell % PAGE_CELLS) as usize * CELL_BYTES;
    let bytes_of_cell = &bytes[at..][..CELL_BYTES];
    let checked = match looks {
        Looks::Everywhere => CONTENTS.check(page * PAGE_BYTES as u64, bytes),
        Looks::AtOneCell => CONTENTS.check(cell * CELL_BYTES as u64, bytes_of_cell),
    };
    checked.map_err(|wrong| anyhow!("{wrong}"))?;
    Ok(bytes_of_cell)
}

/// One batch after the other.
struct Steps {
    order: Order,
    cells_end: u64,
    /// The worker's own numbers.
    random: Pcg64Mcg,
    /// Those that the next batch is drawn from.
    draws: Pcg64Mcg,
    query: u64,
    /// Steps of the walk that are left.
    left: usize,
    /// The cells of a batch, and the pages that they are in.
    cells: Vec<u64>,
    pages: Vec<u64>,
}

impl Steps {
    fn new(job: &Job, mut random: Pcg64Mcg) -> Self {
        let draws = Pcg64Mcg::seed_from_u64(random.next_u64());
        Steps {
            order: job.order,
            cells_end: job.file_bytes / CELL_BYTES as u64,
            random,
            draws,
            query: 0,
            left: 0,
            cells: vec![0; job.batch],
            pages: vec![0; job.batch],
        }
    }

    /// Reads a batch. In a graph, the node whose bytes are nearest to the query says which nodes
    /// are next, so nobody can know them before.
    fn step(&mut self, nodes: &mut impl Nodes, looks: Looks) -> Result<()> {
        if self.order == Order::Graph && self.left == 0 {
            self.query = self.random.next_u64();
            self.draws = Pcg64Mcg::seed_from_u64(self.query);
            self.left = QUERY_STEPS;
        }
        for (cell, page) in self.cells.iter_mut().zip(&mut self.pages) {
            *cell = drawn(&mut self.draws, self.cells_end);
            *page = *cell / PAGE_CELLS;
        }
        let (mut seen, mut nearest) = (0, u64::MAX);
        let Steps { cells, pages, query, .. } = self;
        nodes.read(pages, |n, bytes| {
            let bytes_of_cell = check(looks, cells[n], bytes)?;
            seen += 1;
            nearest = nearest.min(number_in(bytes_of_cell) ^ *query);
            Ok(())
        })?;
        ensure!(seen == pages.len(), "{seen} pages came of a batch of {}", pages.len());
        if self.order == Order::Graph {
            self.draws = Pcg64Mcg::seed_from_u64(nearest);
            self.left -= 1;
        }
        Ok(())
    }
}

/// A number that the bytes of a cell give: each cell another.
fn number_in(cell: &[u8]) -> u64 {
    u64::from_le_bytes(cell[16..24].try_into().expect("a cell has 64 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 64;

    /// All pages in memory, with one thing wrong.
    struct Pages {
        bytes: Vec<u8>,
        fault: Fault,
        read: Vec<Vec<u64>>,
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Fault {
        None,
        /// The first two pages of a batch change places.
        Swapped,
        /// The last page of a batch is left out.
        Short,
        /// The last byte of every page is another.
        Byte,
    }

    impl Nodes for Pages {
        fn read(
            &mut self,
            pages: &[u64],
            mut see: impl FnMut(usize, &[u8]) -> Result<()>,
        ) -> Result<()> {
            let mut order = pages.to_vec();
            match self.fault {
                Fault::Swapped => order.swap(0, 1),
                Fault::Short => drop(order.pop()),
                _ => {}
            }
            self.read.push(pages.to_vec());
            for (n, page) in order.into_iter().enumerate() {
                let mut bytes = self.bytes[page as usize * PAGE_BYTES..][..PAGE_BYTES].to_vec();
                bytes[PAGE_BYTES - 1] ^= u8::from(self.fault == Fault::Byte);
                see(n, &bytes)?;
            }
            Ok(())
        }
    }

    /// A walk in batches of eight, and its pages.
    fn begun(order: Order, fault: Fault) -> (Steps, Pages) {
        let job = job(order);
        let bytes = CONTENTS.to_vec(job.file_bytes as usize);
        (Steps::new(&job, numbers(0, 0)), Pages { bytes, fault, read: Vec::new() })
    }

    fn job(order: Order) -> Job {
        Job {
            engine: String::new(),
            order,
            threads: 1,
            path: PathBuf::new(),
            file_bytes: PAGES * PAGE_BYTES as u64,
            batch: 8,
            in_flight: None,
            budget_bytes: 0,
            seconds: 0.0,
            warm_up_seconds: 0.0,
            group: None,
        }
    }

    /// The pages that were read in this many steps.
    fn walked(order: Order, fault: Fault, looks: Looks, steps: usize) -> Result<Vec<Vec<u64>>> {
        let (mut walk, mut pages) = begun(order, fault);
        (0..steps).try_for_each(|_| walk.step(&mut pages, looks))?;
        Ok(pages.read)
    }

    #[test]
    fn wrong_bytes_in_a_batch_are_seen() {
        for order in [Order::Graph, Order::Random] {
            let fails = |fault, looks| {
                walked(order, fault, looks, 200)
                    .map_or_else(|error| error.to_string(), |_| String::new())
            };
            for looks in [Looks::Everywhere, Looks::AtOneCell] {
                assert_eq!(fails(Fault::None, looks), "");
                assert!(fails(Fault::Swapped, looks).contains("whole cells"), "{looks:?}");
                assert_eq!(fails(Fault::Short, looks), "7 pages came of a batch of 8");
                assert!(fails(Fault::Byte, looks).contains("wrong byte at"), "{looks:?}");
            }
        }
        // A whole page is looked at at once, a cell of it sooner or later.
        assert!(walked(Order::Random, Fault::Byte, Looks::Everywhere, 1).is_err());
    }

    #[test]
    fn every_query_is_another_and_reads_all_over_the_file() {
        let read = walked(Order::Graph, Fault::None, Looks::AtOneCell, 3 * QUERY_STEPS).unwrap();
        let queries: Vec<&[Vec<u64>]> = read.chunks(QUERY_STEPS).collect();
        assert_ne!(queries[0], queries[1]);
        assert_ne!(queries[1], queries[2]);
        let mut pages: Vec<u64> = read.concat();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages, (0..PAGES).collect::<Vec<_>>());
        let random = walked(Order::Random, Fault::None, Looks::AtOneCell, 2).unwrap();
        assert_ne!(random[0], random[1]);
    }

    /// A flow that answers at once, last asked first, with one thing wrong.
    #[derive(Default)]
    struct Answers {
        fault: Option<Wrong>,
        asked: Vec<(usize, u64)>,
        most: usize,
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Wrong {
        /// The bytes are of the page after.
        Page,
        /// The number is of another page.
        Number,
        /// Nobody asked for the number.
        Nobody,
        /// A part of the page is missing.
        Part,
        /// No page at all.
        Nothing,
    }

    impl Flow for Answers {
        fn ask(&mut self, n: usize, page: u64) -> Result<()> {
            self.asked.push((n, page));
            self.most = self.most.max(self.asked.len());
            Ok(())
        }

        fn come(&mut self, see: impl FnOnce(usize, &[u8]) -> Result<()>) -> Result<()> {
            let (mut n, mut page) = self.asked.pop().expect("a page was asked for");
            let mut bytes = vec![0; PAGE_BYTES];
            match self.fault {
                Some(Wrong::Page) => page = (page + 1) % PAGES,
                Some(Wrong::Number) => std::mem::swap(&mut n, &mut self.asked[0].0),
                Some(Wrong::Nobody) => n += 1000,
                Some(Wrong::Part) => bytes.truncate(100),
                Some(Wrong::Nothing) => return Ok(()),
                None => {}
            }
            CONTENTS.fill(page * PAGE_BYTES as u64, &mut bytes);
            see(n, &bytes)
        }
    }

    #[test]
    fn what_is_wrong_with_a_page_in_flight_is_seen() {
        let come = |fault, looks| {
            let mut answers = Answers { fault, ..Answers::default() };
            let mut asked = Asked::new(&job(Order::Random), 16, numbers(0, 0));
            for _ in 0..100 {
                asked.fill_up(&mut answers)?;
                asked.come(&mut answers, looks)?;
            }
            assert_eq!((answers.most, asked.on_their_way()), (16, 15));
            Ok::<_, anyhow::Error>(())
        };
        for looks in [Looks::Everywhere, Looks::AtOneCell] {
            come(None, looks).unwrap();
            let fails = |fault| come(Some(fault), looks).unwrap_err().to_string();
            assert!(fails(Wrong::Page).contains("whole cells"));
            assert!(fails(Wrong::Number).contains("whole cells"));
            assert!(fails(Wrong::Nobody).contains("nobody asked for number"));
            assert!(fails(Wrong::Part).contains("has 100 bytes"));
            assert_eq!(fails(Wrong::Nothing), "no page came");
        }
    }

    /// Every page that came counts once among those that may have missed.
    #[test]
    fn every_page_that_came_is_counted_once() {
        let (shared, engine) = (SharedBoard::new().unwrap(), Engine::Ring);
        let tally = |job: &Job, work: &dyn Fn(&OfWorker<'_>) -> Result<()>| {
            let all = Mutex::new(Tally::new());
            let walk = Walk { job, engine: &engine, looks: Looks::AtOneCell, all };
            work(&OfWorker { walk: &walk, board: shared.board(), worker: 0 }).unwrap();
            walk.all.into_inner().unwrap().pages
        };
        // The board says stop, so each does one step.
        shared.board().phase.0.store(2, std::sync::atomic::Ordering::Relaxed);
        let counted = tally(&job(Order::Graph), &|worker| {
            let (_, mut pages) = begun(Order::Graph, Fault::None);
            Visit::visit(worker, &mut pages)?;
            assert_eq!(pages.read.len(), 1);
            Ok(())
        });
        assert_eq!(counted, 8);
        let flow = Job { in_flight: Some(40), ..job(Order::Random) };
        let counted = tally(&flow, &|worker| {
            let mut answers = Answers::default();
            batch_flow::Visit::visit(worker, &mut answers)?;
            assert_eq!((answers.most, answers.asked.len()), (40, 0), "all are waited for");
            Ok(())
        });
        assert_eq!(counted, 40);
        assert!((hit_ratio(10 * PAGE_BYTES as u64, 40) - 0.75).abs() < 1e-9);
        assert!(hit_ratio(41 * PAGE_BYTES as u64, 40).abs() < 1e-9);
    }

    /// What the next step reads follows from the bytes of this one, and from nothing else.
    #[test]
    fn in_a_graph_the_bytes_say_what_is_next() {
        for order in [Order::Graph, Order::Random] {
            let (mut walk, mut pages) = begun(order, Fault::None);
            walk.step(&mut pages, Looks::AtOneCell).unwrap();
            let of_cell = |cell: &u64| {
                let bytes = &pages.bytes[*cell as usize * CELL_BYTES..][..CELL_BYTES];
                u64::from_le_bytes(bytes[16..24].try_into().unwrap()) ^ walk.query
            };
            let nearest = walk.cells.iter().map(of_cell).min().unwrap();
            let mut draws = Pcg64Mcg::seed_from_u64(nearest);
            let next = |_| ((u128::from(draws.next_u64()) * u128::from(PAGES)) >> u64::BITS) as u64;
            let expected: Vec<u64> = (0..8).map(next).collect();
            walk.step(&mut pages, Looks::AtOneCell).unwrap();
            assert_eq!(pages.read[1] == expected, order == Order::Graph, "{order:?}");
        }
    }
}
