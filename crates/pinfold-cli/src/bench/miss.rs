//! `pinfold bench miss`: reads of a file that is larger than the memory it may use.
//!
//! Here: the options, the cells, the tables. Not here: the sample itself, which a process of its
//! own takes (`miss_child.rs`), and the file and the limit that all engines get (`limited.rs`).

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::by_engine::{ByEngine, distinct};
use super::common::{Common, chosen};
use super::limited::{ALLOWANCE_BYTES, Limited, summed_up};
use super::miss_child::{Job, Order, Outcome};
use super::ranks::check_skew;
use super::report::{self, Object, Row};
use super::scratch::Scratch;
use super::workers::Crew;
use crate::size::Size;

const ENGINES: [&str; 5] = ["direct-deep", "pread-direct", "pread", "mmap", "pinfold"];
const CASES: [&str; 3] = ["random", "zipf", "scan"];
const RATIOS: [(&str, &str); 4] = [
    ("pinfold", "direct-deep"),
    ("pinfold", "pread-direct"),
    ("pinfold", "pread"),
    ("pinfold", "mmap"),
];
const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// How long a read of the random and zipf cases is.
const PAGE_BYTES: u64 = 4096;

/// What is measured, for people.
pub const HELP: &str = "\
Cases:
  random  4 KiB at random multiples of 4 KiB
  zipf    the same, some pages far likelier than others (--skew)
  scan    front to back and again, --scan-block at once; every thread in its own part of the file

Engines:
  direct-deep   scan only: O_DIRECT reads of --direct-scan-block, four in flight for each thread
                (16 for all, and no more than the budget holds), so that the device is never idle:
                its limit
  pread-direct  O_DIRECT reads of the same blocks, nothing cached, one in flight for each thread:
                what a program without a cache gets. For scan --direct-scan-block at once
  pread, mmap   the kernel's page cache
  pinfold       the cache, with the budget

Every sample is taken by a process of its own, which begins with nothing of the file in memory and
warms up first. All of them run in one memory control group (version 2 or 1), whose limit is the
budget and 16 MiB for the process itself; page cache counts. Where no group can be made (that takes
root, or a group that was delegated) pread and mmap are not limited, and the rows say so. A hit
ratio is the part of the bytes asked for that was not read from storage; pread and mmap have one
where the kernel counts that, but not for scans. All engines get a hint of the order in which the
file will be read, unless --no-hints is given. By default, the benchmark measures 1, 2, 4, 8, 16 and
32 threads, which takes about ten minutes.";

/// Options of `pinfold bench miss`.
#[derive(Debug, Args)]
pub struct MissArgs {
    #[command(flatten)]
    common: Common,

    /// Which cases [default: all]
    #[arg(long, value_name = "CASE,..", value_delimiter = ',')]
    cases: Vec<String>,

    /// Length of the file
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    file_bytes: Size,

    /// Memory that the file's pages may use
    #[arg(long, value_name = "SIZE", default_value = "128M")]
    budget: Size,

    /// Length of the direct reads of a scan
    #[arg(long, value_name = "SIZE", default_value = "2M")]
    direct_scan_block: Size,

    /// Length of the reads of a scan
    #[arg(long, value_name = "SIZE", default_value = "64K")]
    scan_block: Size,

    /// How long 32 threads read, unmeasured, before each sample
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    warm_up: f64,

    /// Exponent of the Zipf distribution
    #[arg(long, value_name = "S", default_value_t = 0.9)]
    skew: f64,

    /// Do not give the engines a hint of the order in which the file will be read
    #[arg(long)]
    no_hints: bool,

    /// Where the test file lives; direct I/O must work there [default: ./target if there is one,
    /// else the directory for temporary files, or /var/tmp if that is in memory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// One thing that is measured.
#[derive(Debug, Clone, Copy)]
struct Cell {
    case: &'static str,
    threads: usize,
    engine: &'static str,
}

impl MissArgs {
    fn check(&self) -> Result<()> {
        let (file, budget) = (self.file_bytes, self.budget);
        ensure!(
            file > budget,
            "--file-bytes {file}: nothing is missed unless it is larger than --budget {budget}"
        );
        ensure!(
            file.0.is_multiple_of(PAGE_BYTES),
            "--file-bytes {file}: must be a multiple of {}",
            Size(PAGE_BYTES)
        );
        let direct = self.direct_scan_block;
        ensure!(
            direct.0.is_multiple_of(PAGE_BYTES) && direct <= file,
            "--direct-scan-block {direct}: must be a multiple of {}, and no longer than the file",
            Size(PAGE_BYTES)
        );
        let block = self.scan_block;
        ensure!(block.0 <= file.0, "--scan-block {block}: longer than the file");
        let lasts = |seconds: f64| (0.0..=3600.0).contains(&seconds);
        ensure!(lasts(self.warm_up), "--warm-up {}: must be from 0 to 3600", self.warm_up);
        check_skew(self.skew)?;
        self.common.threads_only()?;
        Ok(())
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        let engines = self.common.engines(&ENGINES)?;
        let crews = self.common.crews(&THREADS)?;
        let mut cells = Vec::new();
        for case in chosen("--cases", "case", &self.cases, &CASES)? {
            for crew in &crews {
                let threads = crew.workers();
                // For other cases it would be `pread-direct` with more threads.
                let fits = |engine: &&str| case == "scan" || *engine != "direct-deep";
                let engines = engines.iter().copied().filter(fits);
                cells.extend(engines.map(|engine| Cell { case, threads, engine }));
            }
        }
        ensure!(!cells.is_empty(), "direct-deep: measured for the case scan only");
        Ok(cells)
    }

    fn block_bytes(&self, cell: Cell) -> u64 {
        match (cell.case, cell.engine) {
            ("scan", "pread-direct" | "direct-deep") => self.direct_scan_block.0,
            ("scan", _) => self.scan_block.0,
            _ => PAGE_BYTES,
        }
    }

    fn job(&self, cell: Cell, limited: &Limited) -> Job {
        Job {
            engine: cell.engine.to_owned(),
            order: match cell.case {
                "random" => Order::Random,
                "zipf" => Order::Zipf,
                _ => Order::Scan,
            },
            threads: cell.threads,
            path: limited.path(),
            file_bytes: self.file_bytes.0,
            block_bytes: self.block_bytes(cell),
            budget_bytes: self.budget.0,
            seconds: self.common.seconds,
            // Nothing to warm where nothing is kept.
            warm_up_seconds: if cell.engine.contains("direct") { 0.0 } else { self.warm_up },
            hints: !self.no_hints,
            skew: self.skew,
            group: limited.group_dir(),
        }
    }
}

/// Runs the benchmark.
pub fn run(args: &MissArgs) -> Result<()> {
    let common = &args.common;
    args.check()?;
    common.sample()?;
    let cells = args.cells()?;
    let (file, budget) = (args.file_bytes, args.budget);
    let limited = Limited::new(args.dir.as_deref(), file, budget, |dir| {
        Scratch::write(dir, file.0, 1, |_| {})
    })?;
    let outcomes: Vec<Vec<Outcome>> = common.interleave(&cells, |&cell| {
        limited
            .sample("miss-child", &args.job(cell, &limited))
            .with_context(|| format!("{}, {}, {} threads", cell.engine, cell.case, cell.threads))
    })?;
    let rows = rows(args, &cells, &outcomes, limited.kind());
    let figures = outcomes.iter().flatten().filter_map(|outcome| outcome.cache.as_ref());
    let figures = summed_up(figures);
    let told = figures.as_ref().map_or_else(String::new, |figures| {
        let (percent, source) = (figures.metadata_percent, &figures.source);
        format!("\npinfold: metadata {percent:.2} % of the budget at most; source: {source}.")
    });
    let text = format!("{}\n{}{told}", table(args, &cells, &rows), limited.told());
    let params = serde_json::json!({
        "seconds": common.seconds,
        "runs": common.runs,
        "warm_up_seconds": args.warm_up,
        "file_bytes": args.file_bytes.0,
        "budget_bytes": args.budget.0,
        "allowance_bytes": ALLOWANCE_BYTES,
        "skew": args.skew,
        "hints": !args.no_hints,
        "dir": limited.dir(),
        "file_system": limited.file_system(),
        "limit": limited.kind(),
        "limited": limited.limited(),
        "metadata_percent": figures.as_ref().map(|figures| figures.metadata_percent),
        "source": figures.map(|figures| figures.source),
    });
    let rows = rows.into_iter().flatten().collect();
    common.publish(&text, &Object::new("miss", params, rows))
}

/// The rows of each cell: operations first, MiB if it is a scan, hits where they are known.
fn rows(args: &MissArgs, cells: &[Cell], outcomes: &[Vec<Outcome>], limit: &str) -> Vec<Vec<Row>> {
    let of_cell = |(&cell, outcomes): (&Cell, &Vec<Outcome>)| {
        let block_bytes = args.block_bytes(cell);
        let row = |metric, samples: Vec<f64>| {
            Row::new(cell.engine, cell.case, Crew::Threads(cell.threads), metric, samples)
                .with("block_bytes", block_bytes)
                .with("file_bytes", args.file_bytes.0)
                .with("limit", limit)
        };
        let rates: Vec<f64> = outcomes.iter().map(|outcome| outcome.ops_per_s).collect();
        let mut rows = Vec::new();
        if cell.case == "scan" {
            let mib = block_bytes as f64 / f64::from(1 << 20);
            rows.push(row("mib_per_s", rates.iter().map(|rate| rate * mib).collect()));
        }
        rows.insert(0, row("ops_per_s", rates));
        let hits: Option<Vec<f64>> = outcomes.iter().map(|outcome| outcome.hit_ratio).collect();
        rows.extend(hits.map(|hits| row("hit_ratio", hits)));
        rows
    };
    cells.iter().zip(outcomes).map(of_cell).collect()
}

/// A table for each case: engines down, threads across.
fn table(args: &MissArgs, cells: &[Cell], rows: &[Vec<Row>]) -> String {
    let tables = distinct(cells.iter().map(|cell| cell.case)).into_iter().map(|case| {
        let here: Vec<&Row> = cells
            .iter()
            .zip(rows)
            .filter(|(cell, _)| cell.case == case)
            .flat_map(|(_, rows)| rows)
            .collect();
        let of = |metric| here.iter().copied().filter(move |row| row.metric == metric);
        let (metric, unit) =
            if case == "scan" { ("mib_per_s", "MiB/s") } else { ("ops_per_s", "reads per second") };
        let block = args.block_bytes(Cell { case, threads: 1, engine: "pinfold" });
        let title = format!("{case}, {} at once, {unit}", Size(block));
        let table = ByEngine::new(of(metric)).ratios(&RATIOS);
        let engines = distinct(of("hit_ratio").map(|row| row.engine.as_str()));
        let hits = engines.into_iter().fold(table, |table, engine| {
            table.line(&format!("hits {engine}"), |_, crew| {
                let mut hits = of("hit_ratio").filter(|row| row.engine == engine);
                let hits = hits.find(|row| row.crew == crew).expect("it was measured");
                format!("{:.1}%", 100.0 * hits.median)
            })
        });
        hits.draw(&title)
    });
    let crews: Vec<Crew> = cells.iter().map(|cell| Crew::Threads(cell.threads)).collect();
    tables.collect::<Vec<_>>().join("\n\n") + &report::footnote(&crews)
}
