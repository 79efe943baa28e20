//! `pinfold bench batch`: reads in batches, by batched calls and by single ones.
//!
//! Here: the options, the cells, the two measurements. Not here: the engines and the loop in memory
//! (`batch_memory.rs`); a sample under a limit, which a process of its own takes
//! (`batch_child.rs`), with the engines of `batch_nodes.rs` and `batch_flow.rs`; the tables
//! (`batch_tables.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::batch_child::{CONTENTS, Job, Order, Outcome};
use super::batch_flow;
use super::batch_memory::{self, Folios, Held, Plan};
use super::batch_nodes::{self, PAGE_BYTES, RING};
use super::batch_ring;
use super::batch_tables::{self, Cell};
use super::by_engine::distinct;
use super::common::{Common, chosen};
use super::engines::Opened;
use super::limited::{ALLOWANCE_BYTES, Limited, summed_up};
use super::report::{self, Object, Row};
use super::scratch::{self, Scratch};
use super::shared::SharedBoard;
use super::workers::{self, Crew};
use crate::size::Size;

const CASES: [&str; 4] = ["memory", "memory-4K", "graph", "random"];
/// What is measured by default in memory, and under a limit.
const BATCHES: [usize; 4] = [1, 8, 16, 64];
const BATCHES_LIMITED: [usize; 1] = [8];
const THREADS: [usize; 1] = [1];
const THREADS_LIMITED: [usize; 4] = [1, 2, 8, 32];
/// Of single pages in flight.
const THREADS_IN_FLIGHT: [usize; 1] = [1];
/// Much longer ones would not fit beside the budget.
const BATCH_MAX: usize = 256;
const IN_FLIGHT_MAX: usize = 1024;

/// What is measured, for people.
pub const HELP: &str = "\
Cases in memory: 64 bytes at random of a file, in batches of --batches (1, 8, 16, 64)
  memory     the cache has folios of up to 2 MiB, as for a file that is read front to back
  memory-4K  the cache has folios of one page, as for a file that is read at random

Engines in memory:
  empty            no read at all: the cost of the loop, which all others include
  memcpy           a bare copy of the same bytes out of private memory, one by one: the limit of
                   single reads
  memcpy-prefetch  the same in two passes, the first of which begins to fetch each: the limit of
                   batches
  mmap             a copy out of a mapping that is warm
  pinfold-read, pinfold-get, pinfold-borrow
                   read_at, get, borrow: one by one
  pinfold-read-many, pinfold-get-many, pinfold-borrow-many
                   read_many, get_many, borrow_many: one call for the batch
  pinfold-read-async, pinfold-get-async
                   read_at_async, get_async: one by one, each polled once

Cases under a limit: pages of 4 KiB of a file that is larger than the memory it may use, in batches
of --batches (8)
  graph   the bytes of a batch say which pages the next one has, as in the walk of a vector index
          through its graph; a walk has 64 steps
  random  the pages of a batch are drawn; also single pages, of which each thread has --in-flight
          (256) on their way: as one comes, the next is asked for

Engines under a limit:
  ring-direct       O_DIRECT by a bare io_uring, all reads of a batch at once, nothing cached: what
                    the device allows at that depth
  mmap              a mapping with MADV_RANDOM
  pread             page by page
  pread-fadvise     the same, after posix_fadvise(WILLNEED) of each page of the batch
  pinfold-get       get, page by page
  pinfold-prefetch  the same, after prefetch of the batch
  pinfold-many      get_many
  pinfold-async     get_many_async; of single pages in flight get_async, each a future
Of single pages in flight there are ring-direct and pinfold-async, the others block.

Rates are reads (in memory) or pages (under a limit) a second, of all threads. A ratio is the median
of the ratios of neighbouring samples; its label leaves out `pinfold-`. `/limit` compares an engine
of the cache with what the device allows at the hit ratio that this engine had: the rate of
ring-direct, divided by the part of the pages that were not in memory. For p99, a ratio below 1 is
the better one. What is read is compared with what the file holds: in memory some batches of each
engine before it is measured; under a limit every page, all of it while an engine warms up, and a
part of 64 bytes while it is measured.

Samples under a limit are taken as by `bench miss`: by a process each, in a memory control group
whose limit is the budget and 16 MiB for the process itself; 32 threads warm up first. By default
the benchmark measures 1 thread in memory, and 1, 2, 8 and 32 under the limit, which takes about 15
minutes. The cases in memory need memory of the file's length up to five times.";

/// Options of `pinfold bench batch`.
#[derive(Debug, Args)]
pub struct BatchArgs {
    #[command(flatten)]
    common: Common,

    /// Which cases [default: all]
    #[arg(long, value_name = "CASE,..", value_delimiter = ',')]
    cases: Vec<String>,

    /// Reads of a batch [default: 1,8,16,64 in memory, 8 under a limit]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    batches: Vec<usize>,

    /// Single pages that a thread has on their way in the case `random`
    #[arg(long, value_name = "N", default_value_t = 256)]
    in_flight: usize,

    /// Length of the files; a multiple of 4 KiB
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    file_bytes: Size,

    /// Memory that the file's pages may use under the limit
    #[arg(long, value_name = "SIZE", default_value = "128M")]
    budget: Size,

    /// How long 32 threads read, unmeasured, before each sample under the limit
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    warm_up: f64,

    /// Where the test file of the limited cases lives; direct I/O must work there [default:
    /// ./target if there is one, else the directory for temporary files, or /var/tmp if that is in
    /// memory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Where the test file of the cases in memory lives [default: /dev/shm if that is a tmpfs, else
    /// the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    memory_dir: Option<PathBuf>,
}

/// Whether the case is one of those in memory.
fn in_memory(case: &str) -> bool {
    case.starts_with("memory")
}

fn folios(case: &str) -> Folios {
    if case == "memory" { Folios::Large } else { Folios::Pages }
}

impl BatchArgs {
    fn check(&self) -> Result<()> {
        let (file, page) = (self.file_bytes, Size(PAGE_BYTES as u64));
        ensure!(file.0.is_multiple_of(page.0), "--file-bytes {file}: must be a multiple of {page}");
        for batch in &self.batches {
            ensure!(
                (1..=BATCH_MAX).contains(batch),
                "--batches {batch}: must be from 1 to {BATCH_MAX}"
            );
        }
        ensure!(
            (1..=IN_FLIGHT_MAX).contains(&self.in_flight),
            "--in-flight {}: must be from 1 to {IN_FLIGHT_MAX}",
            self.in_flight
        );
        let lasts = |seconds: f64| (0.0..=3600.0).contains(&seconds);
        ensure!(lasts(self.warm_up), "--warm-up {}: must be from 0 to 3600", self.warm_up);
        self.common.threads_only()
    }

    /// The cells in memory, and those under a limit.
    fn cells(&self) -> Result<(Vec<Cell>, Vec<Cell>)> {
        let all = distinct(batch_memory::NAMES.into_iter().chain(batch_nodes::NAMES));
        let engines = self.common.engines(&all)?;
        let mut cells = Vec::new();
        for case in chosen("--cases", "case", &self.cases, &CASES)? {
            let (names, batches, threads): (&[&'static str], &[usize], &[usize]) =
                if in_memory(case) {
                    (&batch_memory::NAMES, &BATCHES, &THREADS)
                } else {
                    (&batch_nodes::NAMES, &BATCHES_LIMITED, &THREADS_LIMITED)
                };
            let batches = if self.batches.is_empty() { batches } else { &self.batches };
            for crew in self.common.crews(threads)? {
                for &batch in batches {
                    let here = names.iter().filter(|engine| engines.contains(engine));
                    let threads = crew.workers();
                    let cell = |&engine| Cell { case, batch, in_flight: None, threads, engine };
                    cells.extend(here.map(cell));
                }
            }
            if case == "random" {
                for crew in self.common.crews(&THREADS_IN_FLIGHT)? {
                    let here = batch_flow::NAMES.iter().filter(|name| engines.contains(name));
                    let (in_flight, threads) = (Some(self.in_flight), crew.workers());
                    cells.extend(here.map(|&engine| Cell {
                        case,
                        batch: 1,
                        in_flight,
                        threads,
                        engine,
                    }));
                }
            }
        }
        ensure!(!cells.is_empty(), "nothing to measure: no such engine in these cases");
        Ok(cells.into_iter().partition(|cell| in_memory(cell.case)))
    }

    fn job(&self, cell: Cell, path: PathBuf, group: Option<PathBuf>) -> Job {
        Job {
            engine: cell.engine.to_owned(),
            order: if cell.case == "graph" { Order::Graph } else { Order::Random },
            threads: cell.threads,
            path,
            file_bytes: self.file_bytes.0,
            batch: cell.batch,
            in_flight: cell.in_flight,
            budget_bytes: self.budget.0,
            seconds: self.common.seconds,
            // Nothing to warm where nothing is kept.
            warm_up_seconds: if cell.engine == RING { 0.0 } else { self.warm_up },
            group,
        }
    }
}

/// What is printed of some cells.
#[derive(Default)]
struct Part {
    text: String,
    rows: Vec<Row>,
    params: serde_json::Value,
}

/// Runs the benchmark.
pub fn run(args: &BatchArgs) -> Result<()> {
    let common = &args.common;
    args.check()?;
    common.sample()?;
    let (in_memory, mut limited) = args.cells()?;
    let left_out = leave_out(common, &mut limited)?;
    let crews: Vec<Crew> =
        in_memory.iter().chain(&limited).map(|cell| Crew::Threads(cell.threads)).collect();
    let disk = (!limited.is_empty()).then(|| on_disk(args)).transpose()?;
    let in_memory = measure_in_memory(args, &in_memory)?;
    let limited = disk.map(|disk| measure_limited(args, &limited, &disk)).transpose()?;
    let parts = [in_memory, limited.unwrap_or_default()];
    let texts: Vec<&str> =
        parts.iter().map(|part| part.text.as_str()).filter(|text| !text.is_empty()).collect();
    let text = texts.join("\n\n") + &report::footnote(&crews) + &left_out;
    let params = serde_json::json!({
        "seconds": common.seconds,
        "runs": common.runs,
        "file_bytes": args.file_bytes.0,
        "in_memory": parts[0].params,
        "limited": parts[1].params,
    });
    let rows = parts.into_iter().flat_map(|part| part.rows).collect();
    common.publish(&text, &Object::new("batch", params, rows))
}

/// Takes the ring off the list if this system does not let it run, unless it was asked for by name;
/// returns a line that says so.
fn leave_out(common: &Common, cells: &mut Vec<Cell>) -> Result<String> {
    if !cells.iter().any(|cell| cell.engine == RING) {
        return Ok(String::new());
    }
    let Err(why) = batch_ring::open(1) else { return Ok(String::new()) };
    ensure!(common.only.is_empty(), "{RING}: {why:#}");
    cells.retain(|cell| cell.engine != RING);
    Ok(format!("\n{RING} is left out: {why:#}"))
}

fn measure_in_memory(args: &BatchArgs, cells: &[Cell]) -> Result<Part> {
    if cells.is_empty() {
        return Ok(Part::default());
    }
    let (common, file_bytes) = (&args.common, args.file_bytes);
    let held = |cell: &Cell| Held::by(cell.engine, folios(cell.case));
    let all = distinct(cells.iter().map(held));
    let copies: u64 = 1 + all.iter().map(|held| held.copies()).sum::<u64>();
    report::ensure_memory(file_bytes.0 * copies, "--file-bytes")?;
    let dir = args.memory_dir.clone().unwrap_or_else(scratch::memory_dir);
    let file_system = scratch::file_system(&dir)?;
    let file = file_in(&dir, args)?;
    let opened: BTreeMap<Held, Opened> = all
        .into_iter()
        .map(|held| Ok((held, held.open(&file.path(), file_bytes.0)?)))
        .collect::<Result<_>>()?;
    let length = common.sample()?;
    let plan = |cell: &Cell| Plan {
        engine: cell.engine,
        opened: &opened[&held(cell)],
        batch: cell.batch,
        file_bytes: file_bytes.0,
        warm_up: length / 4,
    };
    cells.iter().try_for_each(|cell| plan(cell).check())?;
    let misses = || opened.values().map(Opened::misses).collect::<Vec<_>>();
    let splits = || opened.get(&Held::Cache(Folios::Large)).map_or(0, Opened::splits);
    let (before, large) = (misses(), splits());
    let board = SharedBoard::new()?;
    let samples = common.interleave(cells, |cell| {
        let taken = workers::sample_threads(cell.threads, &plan(cell), board.board(), length)?;
        Ok(taken.ops_per_s)
    })?;
    let after = misses();
    ensure!(
        before == after,
        "reads of what was in memory missed: {before:?} misses before, {after:?} after"
    );
    ensure!(splits() == large, "{} large folios were split", splits() - large);
    let rows: Vec<(Cell, Row)> = cells
        .iter()
        .zip(samples)
        .map(|(cell, samples)| (*cell, cell.row_in_memory(file_bytes, samples)))
        .collect();
    let table = batch_tables::in_memory(&rows, file_bytes);
    Ok(Part {
        text: format!("{table}\nThe file in memory: in {} ({file_system}).", dir.display()),
        rows: rows.into_iter().map(|(_, row)| row).collect(),
        params: serde_json::json!({ "dir": dir, "file_system": file_system }),
    })
}

/// The file of the cases under a limit. Made before anything is measured: it may be refused.
fn on_disk(args: &BatchArgs) -> Result<Limited> {
    ensure!(
        args.file_bytes > args.budget,
        "--file-bytes {}: nothing is missed unless it is larger than --budget {}",
        args.file_bytes,
        args.budget
    );
    Limited::new(args.dir.as_deref(), args.file_bytes, args.budget, |dir| file_in(dir, args))
}

fn file_in(dir: &Path, args: &BatchArgs) -> Result<Scratch> {
    Scratch::filled(dir, args.file_bytes.0, |at, part| CONTENTS.fill(at, part))
}

fn measure_limited(args: &BatchArgs, cells: &[Cell], limited: &Limited) -> Result<Part> {
    let file_bytes = args.file_bytes;
    let outcomes: Vec<Vec<Outcome>> = args.common.interleave(cells, |&cell| {
        limited
            .sample("batch-child", &args.job(cell, limited.path(), limited.group_dir()))
            .with_context(|| format!("{}, {}, {} threads", cell.engine, cell.case, cell.threads))
    })?;
    let rows = batch_tables::rows_under_a_limit(cells, &outcomes, file_bytes);
    let figures = outcomes.iter().flatten().filter_map(|outcome| outcome.cache.as_ref());
    let figures = summed_up(figures);
    let table = batch_tables::under_a_limit(cells, &rows);
    Ok(Part {
        text: format!("{table}\n{}", limited.told()),
        rows: rows.into_iter().flatten().collect(),
        params: serde_json::json!({
            "warm_up_seconds": args.warm_up,
            "budget_bytes": args.budget.0,
            "allowance_bytes": ALLOWANCE_BYTES,
            "dir": limited.dir(),
            "file_system": limited.file_system(),
            "limit": limited.kind(),
            "limited": limited.limited(),
            "metadata_percent": figures.as_ref().map(|figures| figures.metadata_percent),
            "source": figures.map(|figures| figures.source),
        }),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: BatchArgs,
    }

    fn args(text: &str) -> BatchArgs {
        Command::parse_from(["batch"].into_iter().chain(text.split_whitespace())).args
    }

    #[test]
    fn each_sample_is_of_its_own_cell() {
        let args = args("--runs 3 --cases graph,random --batches 4,8 --threads 1,2 --in-flight 40");
        let (in_memory, limited) = args.cells().unwrap();
        assert!(in_memory.is_empty());
        let engines = batch_nodes::NAMES.len();
        assert_eq!(limited.len(), 2 * 2 * 2 * engines + 2 * batch_flow::NAMES.len());
        let jobs = args.common.interleave(&limited, |&cell| Ok(args.job(cell, "f".into(), None)));
        for (cell, jobs) in limited.iter().zip(jobs.unwrap()) {
            assert_eq!(jobs.len(), 3);
            for job in jobs {
                assert_eq!((job.engine.as_str(), job.threads), (cell.engine, cell.threads));
                assert_eq!((job.batch, job.in_flight), (cell.batch, cell.in_flight));
                let order = if cell.case == "graph" { Order::Graph } else { Order::Random };
                assert_eq!(job.order, order);
                assert_eq!((job.file_bytes, job.budget_bytes), (1 << 30, 128 << 20));
            }
        }
    }
}
