//! `pinfold bench write`: writing to files.
//!
//! Here: the options, the cells, the tables. Not here: the engines (`write_engines.rs`), samples of
//! appending and of reading beside a writer (`write_cases.rs`), and those of files that are larger
//! than memory (`write_child.rs`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use pinfold::{Cache, Options};

use super::by_engine::{ByEngine, distinct};
use super::common::{Common, chosen};
use super::limited::Limited;
use super::report::{self, Object, Row, rate};
use super::scratch::{self, Scratch};
use super::shared::{Board, SharedBoard};
use super::workers::{self, Crew};
use super::write_cases::{self, Append, BURST_PAGES, LONG_PIECE_BYTES};
use super::write_child::{self, Job, Outcome};
use super::write_engines::{Ground, Overwriting, PAGE_BYTES, Places, Walk};
use crate::size::Size;

const ENGINES: [&str; 6] = ["empty", "memcpy-store", "pwrite-direct", "pwrite", "mmap", "pinfold"];
const CASES: [&str; 5] = ["overwrite", "append", "sync-each", "random", "mixed"];
const RATIOS: [(&str, &str); 4] = [
    ("pinfold", "pwrite"),
    ("pinfold", "mmap"),
    ("memcpy-store", "pinfold"),
    ("pwrite-direct", "pinfold"),
];

const BLOCK_BYTES: u64 = 64;
const SHORT_PIECE_BYTES: u64 = 100;
/// What is overwritten in memory takes this part of the budget: the cache syncs by itself from a
/// quarter on.
const CACHED_PART: u64 = 8;
/// The file of `random` has so many times the budget.
const RANDOM_BUDGETS: u64 = 4;

/// What is measured, for people.
pub const HELP: &str = "\
Cases:
  overwrite  64 bytes of cached pages that are dirty already: of one page, and of random pages of an
             eighth of --memory-bytes. Each thread writes to a line of its own in the page. The file
             is in memory (/dev/shm), so pwrite is at its best
  append     --bytes to a new file, in pieces of 64 KiB and of 100 bytes, and one sync
  sync-each  4 KiB at random of cached pages, each followed by a sync of the data; the threads write
             to one file, each to pages of its own
  random     --bytes in random pages of 4 KiB of a file of four times --memory-bytes, no page twice,
             and one sync. By a process whose memory is limited; nothing is cached when it begins
  mixed      reads of 64 bytes of random cached pages, alone and beside one more thread that writes
             64 other pages of the file and syncs, again and again. One in 32 reads is timed

Engines:
  empty          no write at all: the cost of the loop (overwrite)
  memcpy-store   a bare copy, and a store to a cache line of the page's own: the limit of overwrite
  pwrite-direct  O_DIRECT. append: a ring, 1 MiB each, over bytes that the file has; random: a ring,
                 4 KiB each; sync-each: pwrite, one for each thread. What the device gives
  pwrite         the kernel's page cache; sync is fdatasync
  mmap           stores to a shared mapping; sync is msync. append: to a file of full length
  pinfold        the cache, with --memory-bytes. It syncs by itself when a quarter waits for it

--threads is for overwrite [default: 1,2], sync-each [1,8] and mixed, whose readers they are [1];
append and random have one. After each sample all files are compared with what they should hold. A
ratio is the median of the ratios of neighbouring samples.";

/// Options of `pinfold bench write`.
#[derive(Debug, Args)]
pub struct WriteArgs {
    #[command(flatten)]
    common: Common,

    /// Which cases [default: all]
    #[arg(long, value_name = "CASE,..", value_delimiter = ',')]
    cases: Vec<String>,

    /// The cache's budget, and the limit of random
    #[arg(long, value_name = "SIZE", default_value = "128M")]
    memory_bytes: Size,

    /// What a sample of append or random writes
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    bytes: Size,

    /// Where the test files live, but for overwrite; direct I/O must work there [default: ./target
    /// if there is one, else the directory for temporary files, or /var/tmp if that is in memory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cell {
    case: &'static str,
    /// `overwrite`: of which pages. `mixed`: whether somebody writes.
    variant: Option<(&'static str, &'static str)>,
    /// The length of a write, or of a read beside them.
    block_bytes: u64,
    threads: usize,
    engine: &'static str,
}

/// What a sample came to: metrics and their values.
type Values = Vec<(&'static str, f64)>;

impl WriteArgs {
    fn check(&self) -> Result<()> {
        let memory = self.memory_bytes;
        ensure!(
            memory.0 >= 16 << 20 && memory.0.is_multiple_of(1 << 20),
            "--memory-bytes {memory}: must be a multiple of 1 MiB, from 16 MiB up"
        );
        let bytes = self.bytes;
        ensure!(
            bytes.0 > 0 && bytes.0.is_multiple_of(1 << 20),
            "--bytes {bytes}: must be a multiple of 1 MiB"
        );
        ensure!(
            bytes.0 <= self.random_bytes() || !self.cases()?.contains(&"random"),
            "--bytes {bytes}: longer than the file of random, {}",
            Size(self.random_bytes())
        );
        self.common.threads_only()
    }

    fn cases(&self) -> Result<Vec<&'static str>> {
        chosen("--cases", "case", &self.cases, &CASES)
    }

    fn cached_bytes(&self) -> u64 {
        self.memory_bytes.0 / CACHED_PART
    }

    fn random_bytes(&self) -> u64 {
        self.memory_bytes.0 * RANDOM_BUDGETS
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        let engines = self.common.engines(&ENGINES)?;
        let mut cells = Vec::new();
        for case in self.cases()? {
            let (threads, variants): (&[usize], &[_]) = match case {
                "overwrite" => (&[1, 2], &[Some(("pages", "same")), Some(("pages", "random"))]),
                "sync-each" => (&[1, 8], &[None]),
                "mixed" => (&[1], &[Some(("writer", "no")), Some(("writer", "yes"))]),
                _ => (&[1], &[None]),
            };
            let blocks: &[u64] = match case {
                "overwrite" | "mixed" => &[BLOCK_BYTES],
                "append" => &[LONG_PIECE_BYTES, SHORT_PIECE_BYTES],
                _ => &[PAGE_BYTES],
            };
            // Also where their number is fixed: it checks the other options.
            let asked = self.common.crews(threads)?;
            let one = vec![Crew::Threads(1)];
            let crews = if matches!(case, "append" | "random") { one } else { asked };
            for (&variant, &block_bytes) in
                variants.iter().flat_map(|it| blocks.iter().map(move |block| (it, block)))
            {
                for threads in crews.iter().map(|crew| crew.workers()) {
                    let most = self.most_threads(case);
                    ensure!(threads <= most, "--threads {threads}: {case} has {most} at most");
                    let fits = |engine: &&str| match *engine {
                        "empty" | "memcpy-store" => case == "overwrite",
                        "pwrite-direct" => {
                            !matches!(case, "overwrite" | "mixed")
                                && block_bytes != SHORT_PIECE_BYTES
                        }
                        _ => true,
                    };
                    let engines = engines.iter().copied().filter(fits);
                    let cell = |engine| Cell { case, variant, block_bytes, threads, engine };
                    cells.extend(engines.map(cell));
                }
            }
        }
        ensure!(!cells.is_empty(), "nothing to measure: no case has these engines");
        Ok(cells)
    }

    /// Each has places of its own.
    fn most_threads(&self, case: &str) -> usize {
        match case {
            "overwrite" => (PAGE_BYTES / BLOCK_BYTES) as usize,
            _ => (self.cached_bytes() / PAGE_BYTES) as usize,
        }
    }

    fn file_bytes(&self, cell: Cell) -> u64 {
        match cell.case {
            "append" => self.bytes.0,
            "random" => self.random_bytes(),
            _ => self.cached_bytes(),
        }
    }
}

/// A file that is cached, and its name.
type Cached = (Ground, Scratch);

/// What the cells are measured on.
struct Bed<'a> {
    args: &'a WriteArgs,
    dir: PathBuf,
    length: Duration,
    board: &'a Board,
    /// By case and engine.
    cached: BTreeMap<(&'static str, &'static str), Cached>,
    /// For append: of its limit, and of the cache.
    full: Option<Scratch>,
    appended: Option<Cache>,
    limited: Option<Limited>,
    /// The sample of `random` that wrote each page last.
    samples: Vec<u64>,
    /// Samples so far.
    taken: u64,
}

impl<'a> Bed<'a> {
    fn new(args: &'a WriteArgs, cells: &[Cell], board: &'a Board) -> Result<Self> {
        let has = |case| cells.iter().any(|cell| cell.case == case);
        let dir = args.dir.clone().unwrap_or_else(scratch::disk_dir);
        if cells.iter().any(|cell| cell.engine == "pwrite-direct") {
            scratch::ensure_direct(&dir)?;
        }
        let mut cached = BTreeMap::new();
        for cell in cells.iter().filter(|cell| !matches!(cell.case, "append" | "random")) {
            let key = (cell.case, cell.engine);
            if cached.contains_key(&key) {
                continue;
            }
            let in_memory = scratch::memory_dir();
            let dir = if cell.case == "overwrite" { &in_memory } else { &dir };
            let file = Scratch::write(dir, args.cached_bytes(), 1, |_| {})?;
            let ground = Ground::new(cell.engine, &file.path(), args.memory_bytes.0)?;
            cached.insert(key, (ground, file));
        }
        let is_full = cells.iter().any(|it| (it.case, it.engine) == ("append", "pwrite-direct"));
        let full = is_full.then(|| Scratch::write(&dir, args.bytes.0, 2, |_| {})).transpose()?;
        let appended = has("append").then(|| Cache::new(Options::new(args.memory_bytes.0)));
        let appended = appended.transpose()?;
        let pages = args.random_bytes() / PAGE_BYTES;
        let limited = has("random").then(|| {
            let make = |dir: &Path| write_child::make(dir, pages);
            Limited::new(Some(&dir), Size(args.random_bytes()), args.memory_bytes, make)
        });
        let limited = limited.transpose()?;
        let samples = vec![0; if limited.is_some() { pages as usize } else { 0 }];
        let length = args.common.sample()?;
        let taken = 0;
        let bed = Bed { args, dir, length, board, cached, full, appended, limited, samples, taken };
        let first = cells.iter().find(|it| (it.case, it.engine) == ("append", "pinfold"));
        first.map_or(Ok(Vec::new()), |&cell| bed.append(cell))?; // its memory is used once
        Ok(bed)
    }

    fn sample(&mut self, cell: Cell) -> Result<Values> {
        self.taken += 1;
        match cell.case {
            "append" => self.append(cell),
            "random" => self.random(cell),
            case => {
                let (board, length) = (self.board, self.length);
                let ground = self.cached.get_mut(&(case, cell.engine));
                let (ground, _) = ground.expect("each has one");
                let before = ground.engine.misses();
                let values = if case == "mixed" {
                    let has_writer = cell.variant == Some(("writer", "yes"));
                    let came = write_cases::mixed(ground, cell.threads, has_writer, board, length)?;
                    let mut values = vec![("ops_per_s", came.reads_per_s), ("p99_ns", came.p99_ns)];
                    values.extend(came.written_mib_per_s.map(|rate| ("written_mib_per_s", rate)));
                    values
                } else {
                    overwrite(cell, ground, board, length)?
                };
                let after = ground.engine.misses();
                ensure!(before == after, "what was cached was missed: {before:?}, {after:?}");
                Ok(values)
            }
        }
    }

    fn append(&self, cell: Cell) -> Result<Values> {
        let append = Append {
            full: self.full.as_ref(),
            dir: &self.dir,
            cache: self.appended.as_ref().expect("it was made"),
            total_bytes: self.args.bytes.0,
            piece_bytes: cell.block_bytes,
            round: self.taken,
        };
        Ok(vec![("mib_per_s", append.sample(cell.engine)?)])
    }

    fn random(&mut self, cell: Cell) -> Result<Values> {
        let limited = self.limited.as_ref().expect("it was made");
        let job = Job {
            engine: cell.engine.to_owned(),
            path: limited.path(),
            file_pages: self.samples.len() as u64,
            pages: self.args.bytes.0 / PAGE_BYTES,
            budget_bytes: self.args.memory_bytes.0,
            sample: self.taken,
            group: limited.group_dir(),
        };
        let came: Outcome = limited.sample("write-child", &job)?;
        write_child::check(&job, &mut self.samples)?;
        Ok(vec![("mib_per_s", came.mib_per_s)])
    }
}

/// Of cached pages, by threads with places of their own.
fn overwrite(cell: Cell, ground: &mut Ground, board: &Board, length: Duration) -> Result<Values> {
    let (pages, block_bytes) = (ground.pages(), cell.block_bytes as usize);
    let is_synced = cell.case == "sync-each";
    let places = match cell.variant {
        _ if is_synced => {
            let threads = cell.threads as u64;
            Places { begin: 0, stride: threads * PAGE_BYTES, count: pages / threads }
        }
        Some((_, "same")) => Places { begin: 0, stride: PAGE_BYTES, count: 1 },
        _ => Places { begin: 0, stride: PAGE_BYTES, count: pages },
    };
    if !is_synced {
        ground.dirty()?;
    }
    let work = Overwriting { ground, places, block_bytes, is_synced };
    let sample = workers::sample_threads(cell.threads, &work, board, length)?;
    for worker in 0..cell.threads {
        let walk = Walk::new(places, worker, block_bytes);
        ground.wrote(worker, walk, board.operations_of(worker), block_bytes);
    }
    ground.check()?;
    Ok(vec![("ops_per_s", sample.ops_per_s)])
}

/// Runs the benchmark.
pub fn run(args: &WriteArgs) -> Result<()> {
    let common = &args.common;
    args.check()?;
    common.sample()?;
    let cells = args.cells()?;
    let board = SharedBoard::new()?;
    let mut bed = Bed::new(args, &cells, board.board())?;
    let samples = common.interleave(&cells, |&cell| {
        bed.sample(cell)
            .with_context(|| format!("{}, {}, {} threads", cell.engine, cell.case, cell.threads))
    })?;
    let limit = bed.limited.as_ref().map(Limited::kind);
    let rows = rows(args, &cells, &samples, limit);
    let file_system = scratch::file_system(&bed.dir)?;
    let on_disk = cells.iter().any(|cell| cell.case != "overwrite");
    let place = on_disk.then(|| format!("\nFiles in {} ({file_system}).", bed.dir.display()));
    let limited = bed.limited.as_ref().map(|it| format!(" random: {}.", it.limited()));
    let told = [Some(tables(args, &cells, &rows)), place, limited];
    let text: String = told.into_iter().flatten().collect();
    let params = serde_json::json!({
        "seconds": common.seconds,
        "runs": common.runs,
        "memory_bytes": args.memory_bytes.0,
        "bytes": args.bytes.0,
        "dir": bed.dir,
        "file_system": file_system,
        "limited": bed.limited.as_ref().map(Limited::limited),
    });
    let rows = rows.into_iter().flatten().collect();
    common.publish(&text, &Object::new("write", params, rows))
}

/// A row for each metric of each cell.
fn rows(
    args: &WriteArgs,
    cells: &[Cell],
    samples: &[Vec<Values>],
    limit: Option<&str>,
) -> Vec<Vec<Row>> {
    let of_cell = |(&cell, samples): (&Cell, &Vec<Values>)| -> Vec<Row> {
        let of_metric = |(n, &(metric, _)): (usize, &(&'static str, f64))| {
            let values = samples.iter().map(|values| values[n].1).collect();
            let row = Row::new(cell.engine, cell.case, Crew::Threads(cell.threads), metric, values)
                .with("block_bytes", cell.block_bytes)
                .with("file_bytes", args.file_bytes(cell));
            let row = cell.variant.into_iter().fold(row, |row, (key, value)| row.with(key, value));
            let limit = limit.filter(|_| cell.case == "random");
            limit.into_iter().fold(row, |row, limit| row.with("limit", limit))
        };
        samples[0].iter().enumerate().map(of_metric).collect()
    };
    cells.iter().zip(samples).map(of_cell).collect()
}

/// A table for each case, variant and length of a write; one for all of `mixed`.
fn tables(args: &WriteArgs, cells: &[Cell], rows: &[Vec<Row>]) -> String {
    let what = |cell: &Cell| {
        let variant = cell.variant.filter(|_| cell.case != "mixed");
        (cell.case, variant, cell.block_bytes)
    };
    let tables = distinct(cells.iter().map(what)).into_iter().map(|of| {
        let here: Vec<_> = cells.iter().zip(rows).filter(|(cell, _)| what(cell) == of).collect();
        let (case, variant, block_bytes) = of;
        if case == "mixed" {
            return mixed_table(args, &here);
        }
        let (block, file) = (Size(block_bytes), Size(args.file_bytes(*here[0].0)));
        let title = match (case, variant) {
            ("overwrite", Some((_, "same"))) => {
                format!("overwrite, {block} of one page, writes per second")
            }
            ("overwrite", _) => {
                format!("overwrite, {block} of random pages of {file}, writes per second")
            }
            ("append", _) => format!("append, {file} by {block} and one sync, MiB/s"),
            ("sync-each", _) => {
                format!("sync-each, {block} of {file} and a sync each, writes per second")
            }
            _ => {
                let bytes = args.bytes;
                format!("random, {bytes} by {block} of {file} and one sync, MiB/s")
            }
        };
        ByEngine::new(here.iter().map(|(_, rows)| &rows[0])).ratios(&RATIOS).draw(&title)
    });
    let crews: Vec<Crew> = cells.iter().map(|cell| Crew::Threads(cell.threads)).collect();
    tables.collect::<Vec<_>>().join("\n\n") + &report::footnote(&crews)
}

/// Readers alone, and beside a writer.
fn mixed_table(args: &WriteArgs, cells: &[(&Cell, &Vec<Row>)]) -> String {
    let header = ["readers", "alone", "beside", "ratio", "p99 ns", "beside", "MiB/s written"];
    let (alone, beside): (Vec<_>, Vec<_>) =
        cells.iter().partition(|(cell, _)| cell.variant == Some(("writer", "no")));
    let lines = alone.iter().filter_map(|(cell, alone): &&(&Cell, &Vec<Row>)| {
        let same =
            |it: &&&(&Cell, &Vec<Row>)| (it.0.engine, it.0.threads) == (cell.engine, cell.threads);
        let (_, beside) = beside.iter().find(same)?;
        let label = format!("{} {}", Crew::Threads(cell.threads).label(), cell.engine);
        let ratio = format!("{:.2}", beside[0].ratio(&alone[0]));
        let p99 = |rows: &[Row]| format!("{:.0}", rows[1].median);
        let written = rate(&beside[2]);
        Some(vec![
            label,
            rate(&alone[0]),
            rate(&beside[0]),
            ratio,
            p99(alone),
            p99(beside),
            written,
        ])
    });
    let title = format!(
        "mixed, reads per second of {BLOCK_BYTES} B of {}, alone and beside a writer that syncs \
         each {}",
        Size(args.cached_bytes() / 2),
        Size(BURST_PAGES * PAGE_BYTES),
    );
    format!("{title}\n{}", report::table(header.map(String::from).into(), lines.collect()))
}
