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
    /// What 99 of 100 batches took at most.
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
    println!("{}", serde_json::to_string(&outcome(&job)?)?);
    Ok(())
}

fn outcome(job: &Job) -> Result<Outcome> {
    let engine = Engine::open(&job.engine, &job.path, job.budget_bytes)?;
    let shared = SharedBoard::new()?;
    let sample = |looks: Looks, workers: usize, seconds: f64| -> Result<_> {
        let walk = Walk { job, engine: &engine, looks, times: Mutex::new(Times::new()) };
        let length = Duration::from_secs_f64(seconds);
        let taken = workers::sample_threads(workers, &walk, shared.board(), length)?;
        Ok((taken, walk.times.into_inner().unwrap_or_else(PoisonError::into_inner)))
    };
    let warm_up_workers = match engine {
        Engine::Ring => job.threads,
        _ => WARM_UP_WORKERS,
    };
    sample(Looks::Everywhere, warm_up_workers, job.warm_up_seconds)?;
    let before = engine.storage_bytes()?;
    let (taken, times) = sample(Looks::AtOneCell, job.threads, job.seconds)?;
    let after = engine.storage_bytes()?;
    let asked = taken.operations as f64 * PAGE_BYTES as f64;
    let missed = before.zip(after).map(|(before, after)| after - before);
    Ok(Outcome {
        ops_per_s: taken.ops_per_s,
        p99_ns: times.at_most_ns(0.99).context("no batch was read")?,
        hit_ratio: missed.map(|missed| (1.0 - missed as f64 / asked).clamp(0.0, 1.0)),
        cache: engine.cache_figures(),
    })
}

/// Which bytes of a page are compared with what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// All. The warm-up's.
    Everywhere,
    /// A cell, drawn with the page. The measured part's.
    AtOneCell,
}

/// What the workers do.
struct Walk<'a> {
    job: &'a Job,
    engine: &'a Engine,
    looks: Looks,
    times: Mutex<Times>,
}

impl Work for Walk<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        let visit = OfWorker { walk: self, board, worker };
        self.engine.with_nodes(&self.job.path, self.job.batch, &visit)
    }
}

/// One worker of a [`Walk`].
struct OfWorker<'a> {
    walk: &'a Walk<'a>,
    board: &'a Board,
    worker: usize,
}

impl Visit for OfWorker<'_> {
    fn visit(&self, nodes: &mut impl Nodes) -> Result<()> {
        let Walk { job, looks, times: all, .. } = self.walk;
        let phase = u64::from(*looks == Looks::AtOneCell);
        let mut steps = Steps::new(job, numbers(phase, self.worker));
        let mut times = Times::new();
        workers::work(self.board, self.worker, job.batch as u64, || {
            let begun = Instant::now();
            steps.step(nodes, *looks)?;
            times.add(begun.elapsed());
            Ok(())
        })?;
        all.lock().unwrap_or_else(PoisonError::into_inner).merge(&times);
        Ok(())
    }
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
            let drawn = u128::from(self.draws.next_u64()) * u128::from(self.cells_end);
            *cell = (drawn >> u64::BITS) as u64;
            *page = *cell / PAGE_CELLS;
        }
        let (mut seen, mut nearest) = (0, u64::MAX);
        let Steps { cells, pages, query, .. } = self;
        nodes.read(pages, |n, bytes| {
            let (cell, page) = (cells[n], pages[n]);
            ensure!(bytes.len() == PAGE_BYTES, "page {page} has {} bytes", bytes.len());
            let at = (cell % PAGE_CELLS) as usize * CELL_BYTES;
            let bytes_of_cell = &bytes[at..][..CELL_BYTES];
            let checked = match looks {
                Looks::Everywhere => CONTENTS.check(page * PAGE_BYTES as u64, bytes),
                Looks::AtOneCell => CONTENTS.check(cell * CELL_BYTES as u64, bytes_of_cell),
            };
            checked.map_err(|wrong| anyhow!("{wrong}"))?;
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
        let file_bytes = PAGES * PAGE_BYTES as u64;
        let job = Job {
            engine: String::new(),
            order,
            threads: 1,
            path: PathBuf::new(),
            file_bytes,
            batch: 8,
            budget_bytes: 0,
            seconds: 0.0,
            warm_up_seconds: 0.0,
            group: None,
        };
        let bytes = CONTENTS.to_vec(file_bytes as usize);
        (Steps::new(&job, numbers(0, 0)), Pages { bytes, fault, read: Vec::new() })
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
