//! `pinfold bench read`: reads of cached bytes.
//!
//! Here: the options, the cells that are measured, and their files. Not here: the engines and the
//! loop (`engines.rs`), the tables (`read_tables.rs`).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::common::{Common, chosen};
use super::engines::{self, Blocks, Opened};
use super::processes;
use super::read_tables::{self, Cell};
use super::report::{self, Object, Row};
use super::scratch::{self, Scratch};
use super::shared::{Board, SharedBoard};
use super::workers::{self, Crew, Work};
use crate::size::Size;

const CASES: [&str; 3] = ["same-file", "diff-files", "random"];
const SEED_BLOCKS: [u64; 6] = [1, 32, 256, 1024, 4096, 32768];
const SEED_FILES: [u64; 2] = [4 << 10, 1 << 20];

/// What is measured, for people.
pub const HELP: &str = "\
Cases:
  same-file   every worker reads the block at the start of the same file
  diff-files  every worker has a file of its own
  random      blocks at random multiples of their length, in one large file (--random-file-bytes)

Engines:
  empty            no read at all: the cost of the loop, which all others include
  memcpy           a bare copy of the same bytes out of private memory: the limit
  pread, mmap      the kernel's page cache
  pinfold          the cache: short reads write to no shared memory
  pinfold-counted  every read takes a counted reference
  pinfold-cas      the same, by a compare-and-swap loop

By default: 64 bytes of the same file of 4 KiB, and at random, with 1 and 2 threads. Everything is
read once before it is measured; a read that had to go to the file makes the benchmark fail. With
--processes every worker opens a cache of its own, as processes do not share a cache.
Workers are bound to one CPU each; more workers than CPUs share them. A ratio is the median of the
ratios of neighbouring samples. The random case needs memory of the size of its file for memcpy, for
every engine of the cache, and for the file itself if that is in memory.";

/// Options of `pinfold bench read`.
#[derive(Debug, Args)]
pub struct ReadArgs {
    #[command(flatten)]
    common: Common,

    /// Which cases [default: same-file,random]
    #[arg(long, value_name = "CASE,..", value_delimiter = ',')]
    cases: Vec<String>,

    /// Lengths of the reads [default: 64]
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    blocks: Vec<Size>,

    /// Lengths of the files of same-file and diff-files; blocks longer than a file are left out
    /// [default: 4K]
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    file_bytes: Vec<Size>,

    /// Length of the file of the random case
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    random_file_bytes: Size,

    /// Where the test files live [default: /dev/shm if that is a tmpfs, else the directory for
    /// temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Two tables: files of 4 KiB and 1 MiB, reads of 1 B to 32 KiB, same file and different
    /// files, pread beside pinfold
    #[arg(long, conflicts_with_all = ["cases", "blocks", "file_bytes"])]
    seed_tables: bool,
}

impl Cell {
    fn blocks(&self) -> Blocks {
        blocks(self.case, self.file_bytes, self.block_bytes)
    }

    fn group(&self) -> Group {
        Group { random: self.case == "random", file_bytes: self.file_bytes }
    }
}

fn blocks(case: &str, file_bytes: u64, block_bytes: u64) -> Blocks {
    let random_below = (case == "random").then_some(file_bytes);
    Blocks { block_bytes: block_bytes as usize, random_below }
}

/// Files that are opened together: those of a length, but the random case's apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    random: bool,
    file_bytes: u64,
}

/// The arguments of a worker process: its cell, in words.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    engine: String,
    case: String,
    file_bytes: u64,
    block_bytes: u64,
    /// One for each worker, or one for all.
    paths: Vec<PathBuf>,
}

/// The work of a process that has its engine to itself.
impl Work for Job {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        let own = if self.case == "diff-files" { worker } else { 0 };
        let path = self.paths.get(own).context("a worker without a file")?.clone();
        let opened = Opened::resident(&self.engine, &[path])?;
        let blocks = blocks(&self.case, self.file_bytes, self.block_bytes);
        opened.read_blocks(0, blocks, board, worker)
    }
}

/// The work of the threads that share an engine.
struct Shared<'a> {
    cell: &'a Cell,
    opened: &'a Opened,
}

impl Work for Shared<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        let file = if self.cell.case == "diff-files" { worker } else { 0 };
        self.opened.read_blocks(file, self.cell.blocks(), board, worker)
    }
}

impl ReadArgs {
    fn engines(&self) -> Result<Vec<&'static str>> {
        if self.seed_tables && self.common.only.is_empty() {
            return Ok(vec!["pread", "pinfold"]);
        }
        self.common.engines(&engines::NAMES)
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        let or = |sizes: &[Size], default: &[u64]| match sizes {
            [] => default.to_vec(),
            sizes => sizes.iter().map(|size| size.0).collect(),
        };
        let (cases, blocks, files) = if self.seed_tables {
            (vec!["same-file", "diff-files"], SEED_BLOCKS.to_vec(), SEED_FILES.to_vec())
        } else if self.cases.is_empty() {
            (vec!["same-file", "random"], or(&self.blocks, &[64]), or(&self.file_bytes, &[4096]))
        } else {
            let cases = chosen("--cases", "case", &self.cases, &CASES)?;
            (cases, or(&self.blocks, &[64]), or(&self.file_bytes, &[4096]))
        };
        let (crews, engines) = (self.common.crews(&[1, 2])?, self.engines()?);
        let mut cells = Vec::new();
        for case in cases {
            let files =
                if case == "random" { vec![self.random_file_bytes.0] } else { files.clone() };
            let fits =
                files.iter().flat_map(|&file| blocks.iter().map(move |&block| (file, block)));
            for (file_bytes, block_bytes) in fits.filter(|(file, block)| block <= file) {
                for &crew in &crews {
                    cells.extend(engines.iter().map(|&engine| Cell {
                        crew,
                        case,
                        file_bytes,
                        block_bytes,
                        engine,
                    }));
                }
            }
        }
        ensure!(!cells.is_empty(), "nothing to measure: every block is longer than its file");
        Ok(cells)
    }
}

/// The files of all cells.
fn write_files(cells: &[Cell], dir: &Path) -> Result<BTreeMap<Group, Vec<Scratch>>> {
    let mut groups: BTreeMap<Group, usize> = BTreeMap::new();
    for cell in cells {
        let files = if cell.case == "diff-files" { cell.crew.workers() } else { 1 };
        let most = groups.entry(cell.group()).or_default();
        *most = files.max(*most);
    }
    ensure_memory(&groups, cells)?;
    let write = |(group, files): (Group, usize)| {
        let write = |seed: usize| Scratch::write(dir, group.file_bytes, seed as u64, |_| {});
        Ok((group, (0..files).map(write).collect::<Result<_>>()?))
    };
    groups.into_iter().map(write).collect()
}

/// Refuses what would not fit in the machine's memory: it would measure swapping, or be killed.
fn ensure_memory(groups: &BTreeMap<Group, usize>, cells: &[Cell]) -> Result<()> {
    let copies = |group: &Group| -> u64 {
        let of_group = || cells.iter().filter(|cell| cell.group() == *group);
        let processes = of_group().map(|cell| match cell.crew {
            Crew::Threads(_) => 0,
            Crew::Processes(n) => n as u64,
        });
        let mut copying: Vec<_> = of_group()
            .filter(|cell| matches!(cell.crew, Crew::Threads(_)))
            .map(|cell| cell.engine)
            .filter(|engine| !["empty", "pread", "mmap"].contains(engine))
            .collect();
        copying.sort_unstable();
        copying.dedup();
        1 + processes.max().unwrap_or(0).max(copying.len() as u64)
    };
    let needed: u64 =
        groups.iter().map(|(group, files)| group.file_bytes * *files as u64 * copies(group)).sum();
    report::ensure_memory(needed, "--random-file-bytes")
}

/// Engines with their files, and the misses it took to bring those in.
type Engines = BTreeMap<(Group, &'static str), (Opened, Option<u64>)>;

/// The engines of all cells that are read by threads.
fn open(cells: &[Cell], files: &BTreeMap<Group, Vec<Scratch>>) -> Result<Engines> {
    let mut engines = Engines::new();
    for cell in cells.iter().filter(|cell| matches!(cell.crew, Crew::Threads(_))) {
        if let Entry::Vacant(place) = engines.entry((cell.group(), cell.engine)) {
            let opened = Opened::resident(cell.engine, &paths(&files[&cell.group()]))?;
            let misses = opened.misses();
            place.insert((opened, misses));
        }
    }
    Ok(engines)
}

fn paths(files: &[Scratch]) -> Vec<PathBuf> {
    files.iter().map(Scratch::path).collect()
}

/// Runs the benchmark.
pub fn run(args: &ReadArgs) -> Result<()> {
    let common = &args.common;
    let (cells, length) = (args.cells()?, common.sample()?);
    let dir = args.dir.clone().unwrap_or_else(scratch::memory_dir);
    let file_system = scratch::file_system(&dir)?;
    let files = write_files(&cells, &dir)?;
    let engines = open(&cells, &files)?;
    let board = SharedBoard::new()?;
    let samples = common.interleave(&cells, |cell| match cell.crew {
        Crew::Threads(n) => {
            let opened = &engines[&(cell.group(), cell.engine)].0;
            workers::sample_threads(n, &Shared { cell, opened }, board.board(), length)
        }
        Crew::Processes(n) => {
            let job = Job {
                engine: cell.engine.to_owned(),
                case: cell.case.to_owned(),
                file_bytes: cell.file_bytes,
                block_bytes: cell.block_bytes,
                paths: paths(&files[&cell.group()]),
            };
            processes::sample_processes(n, "read", &job, &board, length)
        }
    })?;
    for ((_, engine), (opened, before)) in &engines {
        let after = opened.misses();
        ensure!(
            *before == after,
            "{engine}: reads of what was in memory missed: {before:?} misses before, {after:?} after"
        );
    }
    let rows = rows(&cells, &samples);
    let table = if args.seed_tables { read_tables::seed } else { read_tables::all };
    let text = format!("{}\nFiles in {} ({file_system}).", table(&cells, &rows), dir.display());
    let params = serde_json::json!({
        "seconds": common.seconds,
        "runs": common.runs,
        "dir": dir,
        "file_system": file_system,
    });
    common.publish(&text, &Object::new("read", params, rows.concat()))
}

/// Two rows for each cell: operations, and MiB, per second.
fn rows(cells: &[Cell], samples: &[Vec<workers::Sample>]) -> Vec<Vec<Row>> {
    let of_cell = |(cell, samples): (&Cell, &Vec<workers::Sample>)| {
        let row = |metric, scale: f64| {
            let samples = samples.iter().map(|sample| sample.ops_per_s * scale).collect();
            Row::new(cell.engine, cell.case, cell.crew, metric, samples)
                .with("block_bytes", cell.block_bytes)
                .with("file_bytes", cell.file_bytes)
        };
        let mib = cell.block_bytes as f64 / f64::from(1 << 20);
        vec![row("ops_per_s", 1.0), row("mib_per_s", mib)]
    };
    cells.iter().zip(samples).map(of_cell).collect()
}
