//! `pinfold bench get`: getting a cached page in place, by its number.
//!
//! Here: the options, the cells, the draws, the tables. Not here: the engines and the loop that is
//! timed (`get_engines.rs`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::by_engine::{ByEngine, distinct};
use super::common::{Common, chosen};
use super::engines;
use super::get_engines::{self, BLOCK_BYTES, Opened, Origin, PAGE_BYTES, PEERS, Spot, Walk};
use super::ranks::{Ranks, check_skew};
use super::report::{self, Object, Row};
use super::scratch::{self, Scratch};
use super::shared::{Board, SharedBoard};
use super::workers::{self, Crew, Work};
use crate::size::Size;

const CASES: [&str; 2] = ["same-page", "zipf"];
/// Blocks that each worker of the zipf case draws beforehand and then reads again and again: 4 MiB,
/// read in order.
const DRAWS: usize = 1 << 20;
const RATIOS: [(&str, &str); 4] = [
    ("memcpy", "pinfold-borrow"),
    ("memcpy-add", "pinfold-get"),
    ("pinfold-borrow", "pinfold-get"),
    ("pinfold-get", "pinfold-cas"),
];
/// How to build with the engines that are not in every build.
const WITH_PEERS: &str = "cargo run --release --features peers -- bench get";

/// What is measured, for people.
pub const HELP: &str = "\
One operation: get a page of 4 KiB by its number, copy 64 bytes out of it, release it.

Cases:
  same-page  every worker gets the same page
  zipf       pages of one file, some far likelier than others (--skew), drawn before the
             measured part

Engines:
  empty           no page at all: the cost of the loop, which all others include
  memcpy          a bare copy of the same 64 bytes out of private memory: the limit
  memcpy-add      the same beside one atomic addition and one subtraction, to a cache line of the
                  page's own: the limit of a counted reference
  pinfold-borrow  the cache; the page is announced in the worker's own slot, and nothing shared is
                  written
  pinfold-borrow-2M
                  the same from folios of up to 2 MiB, which is what the cache makes of a file that
                  is read front to back; the others' folios are of one page, like the peers' values
  pinfold-get     the cache; a counted reference for each get
  pinfold-cas     the same, the count by a compare-and-swap loop
  moka, quick_cache, foyer, hyperclock
                  other caches (the last is RocksDB's), with the same pages as values; only in a
                  program built with --features peers, which on Debian 12 needs librocksdb-dev

Every engine holds the whole file, and every page of it is compared with the file before anything is
measured. A page that is missing later makes the benchmark fail. Before each sample, the engine runs
unmeasured for a quarter of the sample's length. Workers are bound to one CPU each; more workers
than CPUs share them. A ratio is the median of the ratios of neighbouring samples; the best of the
peers is the one with the highest median in that column. The benchmark needs memory of the file's
length once, and once more for each engine.";

/// Options of `pinfold bench get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    common: Common,

    /// Which cases [default: all]
    #[arg(long, value_name = "CASE,..", value_delimiter = ',')]
    cases: Vec<String>,

    /// Length of the file; a multiple of 4 KiB
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    file_bytes: Size,

    /// Exponent of the Zipf distribution
    #[arg(long, value_name = "S", default_value_t = 0.9)]
    skew: f64,

    /// Where the test file lives [default: /dev/shm if that is a tmpfs, else the directory for
    /// temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// One thing that is measured.
#[derive(Debug, Clone, Copy)]
struct Cell {
    case: &'static str,
    crew: Crew,
    engine: &'static str,
}

impl GetArgs {
    fn check(&self) -> Result<()> {
        let bytes = self.file_bytes;
        ensure!(
            bytes.0.is_multiple_of(PAGE_BYTES as u64),
            "--file-bytes {bytes}: must be a multiple of {}",
            Size(PAGE_BYTES as u64)
        );
        let most = Size(Spot::PAGES_MAX * PAGE_BYTES as u64);
        ensure!(bytes <= most, "--file-bytes {bytes}: at most {most}");
        check_skew(self.skew)?;
        self.common.threads_only()
    }

    fn engines(&self) -> Result<Vec<&'static str>> {
        let there = get_engines::names();
        for name in &self.common.only {
            if PEERS.contains(&name.as_str()) && !there.contains(&name.as_str()) {
                bail!("--only {name}: not in this build; try `{WITH_PEERS}`");
            }
        }
        self.common.engines(&there)
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        let (engines, crews) = (self.engines()?, self.common.crews(&[1, 2])?);
        let mut cells = Vec::new();
        for case in chosen("--cases", "case", &self.cases, &CASES)? {
            for &crew in &crews {
                cells.extend(engines.iter().map(|&engine| Cell { case, crew, engine }));
            }
        }
        Ok(cells)
    }

    fn pages(&self) -> u64 {
        self.file_bytes.0 / PAGE_BYTES as u64
    }
}

/// What each worker reads in the zipf case; empty if there is none.
fn draws(args: &GetArgs, cells: &[Cell]) -> Result<Vec<Vec<Spot>>> {
    let of_zipf = cells.iter().filter(|cell| cell.case == "zipf");
    let workers = of_zipf.map(|cell| cell.crew.workers()).max().unwrap_or(0);
    let ranks = Ranks::new(args.pages(), args.skew)?;
    let of_worker = |worker: usize| {
        let mut random = Pcg64Mcg::seed_from_u64(worker as u64);
        (0..DRAWS).map(|_| Spot::in_page(ranks.draw(&mut random))).collect()
    };
    Ok((0..workers).map(of_worker).collect())
}

/// What the workers of a sample do.
struct Getting<'a> {
    case: &'static str,
    opened: &'a Opened,
    draws: &'a [Vec<Spot>],
    warm_up: Duration,
}

impl Work for Getting<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        let walk = match self.case {
            "same-page" => Walk::Same(Spot::in_page(0)),
            _ => Walk::Drawn(&self.draws[worker]),
        };
        self.opened.get_pages(walk, self.warm_up, board, worker)
    }
}

/// Runs the benchmark.
pub fn run(args: &GetArgs) -> Result<()> {
    let common = &args.common;
    args.check()?;
    let (cells, length) = (args.cells()?, common.sample()?);
    let names = distinct(cells.iter().map(|cell| cell.engine));
    report::ensure_memory(args.file_bytes.0 * (1 + names.len() as u64), "--file-bytes")?;
    let dir = args.dir.clone().unwrap_or_else(scratch::memory_dir);
    let file_system = scratch::file_system(&dir)?;
    let opened = open(args, &dir, &names)?;
    let draws = draws(args, &cells)?;
    let before = misses(&opened);
    let board = SharedBoard::new()?;
    let samples = common.interleave(&cells, |cell| {
        let opened = &opened[cell.engine];
        let work = Getting { case: cell.case, opened, draws: &draws, warm_up: length / 4 };
        Ok(workers::sample_threads(cell.crew.workers(), &work, board.board(), length)?.ops_per_s)
    })?;
    let after = misses(&opened);
    ensure!(
        before == after,
        "pages that were in memory missed: {before:?} before, {after:?} after"
    );
    let rows: Vec<Row> = cells
        .iter()
        .zip(samples)
        .map(|(cell, samples)| {
            Row::new(cell.engine, cell.case, cell.crew, "ops_per_s", samples)
                .with("block_bytes", BLOCK_BYTES)
                .with("file_bytes", args.file_bytes.0)
        })
        .collect();
    let left_out: Vec<&str> =
        PEERS.into_iter().filter(|peer| !get_engines::names().contains(peer)).collect();
    let params = serde_json::json!({
        "seconds": common.seconds,
        "runs": common.runs,
        "skew": args.skew,
        "dir": dir,
        "file_system": file_system,
        "not_in_this_build": left_out,
    });
    common.publish(&text(args, &cells, &rows, &left_out), &Object::new("get", params, rows))
}

/// The engines, filled and checked.
fn open(
    args: &GetArgs,
    dir: &std::path::Path,
    names: &[&'static str],
) -> Result<BTreeMap<&'static str, Opened>> {
    let scratch = Scratch::write(dir, args.file_bytes.0, 1, |_| {})?;
    let path = scratch.path();
    let bytes = engines::mapping_of(&path)?;
    let origin = Origin { path: &path, bytes: &bytes };
    let open = |&engine: &&'static str| {
        let opened = Opened::filled(engine, &origin).with_context(|| engine.to_owned())?;
        opened.check(&bytes).with_context(|| engine.to_owned())?;
        Ok((engine, opened))
    };
    names.iter().map(open).collect()
}

fn misses(opened: &BTreeMap<&'static str, Opened>) -> Vec<(&'static str, u64)> {
    opened.iter().filter_map(|(&engine, opened)| Some((engine, opened.misses()?))).collect()
}

/// A table for each case: engines down, threads across.
fn text(args: &GetArgs, cells: &[Cell], rows: &[Row], left_out: &[&str]) -> String {
    let tables = distinct(rows.iter().map(|row| row.case)).into_iter().map(|case| {
        let title = match case {
            "zipf" => format!("zipf: a page of {}, skew {}", args.file_bytes, args.skew),
            _ => "same-page: the same page".to_owned(),
        };
        ByEngine::new(rows.iter().filter(|row| row.case == case))
            .ratios(&RATIOS)
            .over_best("pinfold-borrow", &PEERS, "best peer")
            .over_best("pinfold-borrow-2M", &PEERS, "best peer")
            .over_best("pinfold-get", &PEERS, "best peer")
            .scaling("pinfold-borrow")
            .scaling("pinfold-get")
            .draw(&format!("{title}, gets per second"))
    });
    let crews: Vec<Crew> = cells.iter().map(|cell| cell.crew).collect();
    let missing = match left_out {
        [] => String::new(),
        _ => format!("\nNot in this build: {}; try `{WITH_PEERS}`", left_out.join(", ")),
    };
    [tables.collect::<Vec<_>>().join("\n\n"), report::footnote(&crews), missing].concat()
}
