//! `pinfold bench fault`: page faults on mapped files, the cache's beside the kernel's.
//!
//! Here: the options, the cells, their samples. Not here: the cases without a cache
//! (`fault_install.rs`); a sample of the others, which a process of its own takes
//! (`fault_child.rs`), and their files and limits (`fault_ground.rs`); the tables
//! (`fault_tables.rs`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::by_engine::distinct;
use super::common::{Common, chosen};
use super::engines::resident_budget_bytes;
use super::fault_ground::{Contents, Files, Ground, allow_descriptors};
use super::fault_install::{self, Evict, Fill, INSTALL_COPIES, Install};
use super::fault_job::{Engine, IMAGE_MAP_BYTES, Job, Outcome, Task};
use super::fault_maps::{self, IOS, LOCKS};
use super::fault_restore::{self, Restore};
use super::fault_swap::KernelSwap;
use super::fault_tables::{self, Cell};
use super::fault_touch::{Order, PAGE_BYTES};
use super::limited::{ALLOWANCE_BYTES, summed_up};
use super::report::{self, Object, Row};
use super::workers::Crew;
use crate::size::Size;

const CASES: [&str; 10] = [
    "install",
    "fill",
    "evict",
    "warm",
    "random",
    "zipf",
    "thrash",
    "thrash-holes",
    "startup",
    "swap",
];

/// Engines of the cases with a cache. The first two are limits.
const MAPPED: &str = "mapped";
const DIRECT: &str = "pread-direct";
const KERNEL: &str = "kernel-mmap";
const PINFOLD: &str = "pinfold";

/// Measured by itself.
const RESTORE: &str = "restore";

/// Pages that are filled or taken away at once.
const RUNS: [usize; 3] = [1, 8, 64];

/// Memory is this part of what is read, where it is too small.
const SHARE: u64 = 8;

/// What is measured, for people.
pub const HELP: &str = "\
Cases without a cache, and what their engines do; they are why the cache maps files as it does
  install  touch all of a new mapping whose pages are in memory (--memory-bytes), in order and at
           random
             mapped          the mapping is not new: no fault at all, the limit
             native          the kernel's own fault on a memory file
             native-missing  the same, registered with userfaultfd for absent pages: what the cache
                             uses
             continue-N, copy-N, move-N
                             a SIGBUS handler in the thread that faulted installs the aligned run of
                             N pages, by UFFDIO_CONTINUE, UFFDIO_COPY or UFFDIO_MOVE
  fill     read pages from storage (O_DIRECT) into a new memory file, in requests of 1, 8 and 64
             read            into memory that is not new, and no further: the limit
             alias           into a shared mapping of the memory file
             write           as `read`, then pwrite to the memory file
             copy            as `read`, then UFFDIO_COPY into a mapping of the memory file: what the
                             cache does
  evict    take mapped pages away, in runs of 1, 8 and 64; all threads but one only run
             zap             out of the mapping alone (MADV_DONTNEED)
             punch           out of the memory file and its mapping: what the cache does
             punch-unmapped  out of a memory file that is not mapped

Cases with one
  warm     map a cached file (--memory-bytes) anew and touch all of it, in order and at random
  random   read 64 bytes at random of a file (--file-bytes) that is 8 times the memory for it
           (--ratio)
  zipf     the same, where the page of rank n is read with a probability proportional to 1/n^0.99, and
           the ranks are scattered: what is read often should stay
  thrash   each thread maps a file of its own (--thread-bytes), touches every page, unmaps it, and
           again; the memory is an eighth of all files
  thrash-holes
           the same with files that have no data
  swap     --threads threads go through anonymous memory (--swap-bytes, twice the memory for it), and
           store to every fourth page; as many others page out a part each, again and again,
           --page-out-bytes a second in all; one more maps and unmaps 1 MiB
  startup  an image of --maps mappings of 1 MiB, none of it cached, is touched by all threads, each
           page once and at random, while another thread maps and unmaps 1 MiB of it; there is
           memory for all

With several processes; only by `--cases restore`
  restore  --clients processes have a snapshot (--snapshot-bytes) as their memory, and touch all of
           it in order, or a quarter of its pages at random, the same in each (`set`)
             kernel-mmap     a private mapping of the file in each
             uffd-copy       private memory and a userfaultfd in each, and a thread that copies pages
                             from a mapping of the file, one by one: Firecracker's way
             pinfold         `pinfold serve`, and `pinfold restore` in each
             pinfold-replay  the same; the quarter is installed ahead, from a working set in the order
                             of the touches: the best case

Engines of the others
  pread-direct  O_DIRECT reads, nothing mapped or cached: of a page in `random` and `zipf`, else of
                1 MiB; the device's limit
  mapped        pages that are mapped already: the limit of `warm`
  kernel-mmap   mmap(2), with MADV_RANDOM in `random` and `zipf`; in `swap` MADV_PAGEOUT, to a swap
                file in --dir that swapon(2) switches on meanwhile
  pinfold       a map of a space of the cache. --lock: a fault takes the lock of its VMA, or that of
                the whole space; --io: it drops that lock while it reads, or holds it; --handlers:
                who serves it. `warm`, `random` and `zipf` are measured with the first lock and io

Metrics
  ns_per_page        time of the thread that took longest, divided by its pages
  cpu_ns_per_page    the same of its processor time
  ops_per_s, p99_us  reads of all threads, and what 99 of 100 take at most
  rounds_per_s       passes through a file (`thrash`) or the memory (`swap`); parts count as parts.
                     Of `startup`: 1 divided by the seconds that the start took
  pageout_rounds_per_s
                     of `swap`: the same of the threads that page out
  slowest_over_mean  pages of the thread that touched the fewest, divided by the mean
  writer_longest_us  of `startup` and `swap`: the longest time for mapping and unmapping 1 MiB once
  faults, retries    faults that the space served; how often one looked again after a read
  retry_io_miss      percent of the retries that found the page evicted again
  retry_space_lock   retries under the lock of the whole space
  lock_acquired, lock_waits, lock_wait_us, lock_waits_of_length
                     how often locks were taken, how often and how long a thread waited for one, and
                     the number of waits by length; for each lock, of readers (faults) and of
                     writers (mapping and unmapping)

  first_ms, complete_ms
                     of `restore`: until the last client had its first page, and all of them
  read_over_file, memory_over_file
                     bytes read from storage, and memory that all processes have together (Pss),
                     divided by the length of the snapshot

A ratio is the median of the ratios of neighbouring samples. A process of its own takes every sample
of a case with a cache. All but `warm` run in a memory control group whose limit is the budget,
16 MiB for the process and 128 KiB for each thread; page cache counts. Where no group can be made
(that takes root, or a group that was delegated) kernel-mmap is not limited, and the rows say so. `install` and `pinfold` need
userfaultfd(2); without it they are left out, and the last line says why. What is read is checked
(64 bytes of every page, or the number that it holds), except in `restore`. By default `install`,
`evict` and `warm` have 1 and 2 threads, `random` and `zipf` 1, 8 and 32, `thrash` 16, `startup` 8,
`swap` 5, and `fill` always 1. All cases but `restore` take about five minutes. Only the threads of
`install`, `fill`, `evict`, `warm`, `random` and `zipf` are bound to processors.";

/// Options of `pinfold bench fault`.
#[derive(Debug, Args)]
pub struct FaultArgs {
    #[command(flatten)]
    common: Common,

    /// Which cases [default: all but restore]
    #[arg(long, value_name = "CASE,..", value_delimiter = ',')]
    cases: Vec<String>,

    /// Which lock a fault of pinfold takes: vma, space [default: both]
    #[arg(long, value_name = "LOCK,..", value_delimiter = ',')]
    lock: Vec<String>,

    /// What becomes of the lock while a page is read: drop, hold [default: both]
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',')]
    io: Vec<String>,

    /// Handler threads of pinfold, up to 64, which serve the faults of others; 0: each thread
    /// serves its own, by a signal
    #[arg(long, value_name = "N", default_value_t = 0)]
    handlers: usize,

    /// Length of what `install`, `fill`, `evict` and `warm` map; a multiple of 256 KiB
    #[arg(long, value_name = "SIZE", default_value = "128M")]
    memory_bytes: Size,

    /// Length of the file of `random` and `zipf`
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    file_bytes: Size,

    /// How many times as long as the memory for it that file is
    #[arg(long, value_name = "N", default_value_t = SHARE)]
    ratio: u64,

    /// Length of each thread's file in `thrash`; a multiple of 4 KiB. All files together have at
    /// least 64 MiB: pinfold needs 8 MiB of memory to map
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    thread_bytes: Size,

    /// Mappings of the image of `startup`, 1 MiB each
    #[arg(long, value_name = "N", default_value_t = 64)]
    maps: usize,

    /// Length of the anonymous memory of `swap`, twice the memory for it; a multiple of 1 MiB
    #[arg(long, value_name = "SIZE", default_value = "100M")]
    swap_bytes: Size,

    /// How much of it is paged out each second, by all threads that do; 0: as much as they can,
    /// which is more the less a fault locks
    #[arg(long, value_name = "SIZE", default_value = "200M")]
    page_out_bytes: Size,

    /// How long 32 threads read, unmeasured, before each sample of `random` and `zipf`
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    warm_up: f64,

    /// Length of the snapshot of `restore`
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    snapshot_bytes: Size,

    /// How many processes restore it
    #[arg(long, value_name = "N", default_value_t = 8)]
    clients: usize,

    /// Where the test files live; direct I/O must work there [default: ./target if there is one,
    /// else the directory for temporary files, or /var/tmp if that is in memory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// The engines of a case, in the order of its table.
fn engines_of(case: &str) -> &'static [&'static str] {
    match case {
        "install" => &fault_install::INSTALL,
        "fill" => &fault_install::FILL,
        "evict" => &fault_install::EVICT,
        "warm" => &[MAPPED, KERNEL, PINFOLD],
        "thrash-holes" | "swap" => &[KERNEL, PINFOLD],
        _ => &[DIRECT, KERNEL, PINFOLD],
    }
}

/// How many threads it has by default.
fn threads_of(case: &str) -> &'static [usize] {
    match case {
        "fill" => &[1],
        "random" | "zipf" => &[1, 8, 32],
        "thrash" | "thrash-holes" => &[16],
        "startup" => &[8],
        "swap" => &[5],
        _ => &[1, 2],
    }
}

/// Whether its memory is limited.
fn is_limited(case: &str) -> bool {
    matches!(case, "random" | "zipf" | "thrash" | "thrash-holes" | "startup" | "swap")
}

impl FaultArgs {
    fn check(&self) -> Result<()> {
        let whole = |option: &str, size: Size, of: u64| {
            ensure!(
                size.0.is_multiple_of(of),
                "{option} {size}: must be a multiple of {}",
                Size(of)
            );
            Ok(())
        };
        let page = PAGE_BYTES as u64;
        let longest_run = *RUNS.last().expect("there are runs") as u64 * page;
        whole("--memory-bytes", self.memory_bytes, longest_run)?;
        ensure!((1..=4096).contains(&self.ratio), "--ratio {}: must be from 1 to 4096", self.ratio);
        whole("--file-bytes", self.file_bytes, page * self.ratio)?;
        whole("--thread-bytes", self.thread_bytes, page)?;
        whole("--swap-bytes", self.swap_bytes, 1 << 20)?;
        ensure!(self.handlers <= 64, "--handlers {}: must be from 0 to 64", self.handlers);
        ensure!((1..=16384).contains(&self.maps), "--maps {}: must be from 1 to 16384", self.maps);
        let lasts = |seconds: f64| (0.0..=3600.0).contains(&seconds);
        ensure!(lasts(self.warm_up), "--warm-up {}: must be from 0 to 3600", self.warm_up);
        self.common.threads_only()
    }

    fn cells(&self) -> Result<Vec<Cell>> {
        let all = distinct(CASES.iter().flat_map(|case| engines_of(case).iter().copied()));
        let engines = self.common.engines(&all)?;
        let locks = chosen("--lock", "lock", &self.lock, &LOCKS)?;
        let ios = chosen("--io", "policy", &self.io, &IOS)?;
        let policies: Vec<_> =
            locks.iter().flat_map(|&lock| ios.iter().map(move |&io| (lock, io))).collect();
        let mut cells = Vec::new();
        for case in chosen("--cases", "case", &self.cases, &CASES)? {
            let crews = self.common.crews(threads_of(case))?;
            let mut threads: Vec<usize> = crews.iter().map(|crew| crew.workers()).collect();
            if case == "fill" {
                threads = vec![1];
            }
            let orders: &[Option<Order>] = match case {
                "install" | "warm" => &[Some(Order::Sequential), Some(Order::Random)],
                _ => &[None],
            };
            let runs: Vec<Option<usize>> = match case {
                "fill" | "evict" => RUNS.into_iter().map(Some).collect(),
                _ => vec![None],
            };
            let here = || engines_of(case).iter().filter(|engine| engines.contains(engine));
            for &order in orders {
                for &threads in &threads {
                    for &run_pages in &runs {
                        for &engine in here() {
                            let cell =
                                Cell { case, engine, threads, order, run_pages, policy: None };
                            let all =
                                matches!(case, "thrash" | "thrash-holes" | "startup" | "swap");
                            let some = if all { policies.len() } else { 1 };
                            match engine {
                                PINFOLD => cells.extend(
                                    policies[..some]
                                        .iter()
                                        .map(|&policy| Cell { policy: Some(policy), ..cell }),
                                ),
                                _ => cells.push(cell),
                            }
                        }
                    }
                }
            }
        }
        ensure!(!cells.is_empty(), "nothing to measure: no such engine in these cases");
        Ok(cells)
    }

    /// Bytes of all files that a cell reads, and memory for them.
    fn sizes(&self, cell: &Cell) -> (u64, u64) {
        match cell.case {
            "random" | "zipf" => (self.file_bytes.0, self.file_bytes.0 / self.ratio),
            "thrash" | "thrash-holes" => {
                let all = self.thread_bytes.0 * cell.threads as u64;
                (all, all / SHARE)
            }
            "startup" => {
                let all = self.maps as u64 * IMAGE_MAP_BYTES;
                (all, resident_budget_bytes(all))
            }
            "swap" => (self.swap_bytes.0, self.swap_bytes.0 / 2),
            _ => (self.memory_bytes.0, resident_budget_bytes(self.memory_bytes.0)),
        }
    }

    fn job(&self, cell: &Cell, files: &Files, dir: &Path) -> Job {
        let (task, count) = match (cell.case, cell.order) {
            ("random", _) => (Task::Random, 1),
            ("zipf", _) => (Task::Zipf, 1),
            ("thrash", _) => (Task::Thrash { data: true }, cell.threads),
            ("thrash-holes", _) => (Task::Thrash { data: false }, cell.threads),
            ("startup", _) => (Task::Startup, 1),
            ("swap", _) => (Task::Swap, 0),
            (_, order) => (Task::Warm(order.unwrap_or(Order::Sequential)), 1),
        };
        Job {
            task,
            engine: match (cell.engine, cell.policy) {
                (DIRECT, _) => Engine::Direct,
                (MAPPED, _) => Engine::Mapped,
                (_, None) => Engine::Kernel,
                (_, Some((lock, io))) => {
                    let handlers = self.handlers;
                    Engine::Pinfold { lock: lock.to_owned(), io: io.to_owned(), handlers }
                }
            },
            threads: cell.threads,
            paths: files.paths(count),
            file_bytes: files.file_bytes,
            dir: dir.to_owned(),
            budget_bytes: self.sizes(cell).1,
            seconds: self.common.seconds,
            warm_up_seconds: self.warm_up,
            page_out_bytes: self.page_out_bytes.0,
            group: None,
        }
    }
}

/// What was measured of some cells.
type Measured = Vec<(Cell, Vec<Row>)>;

/// Runs the benchmark.
pub fn run(args: &FaultArgs) -> Result<()> {
    let common = &args.common;
    if args.cases.iter().any(|case| case == RESTORE) {
        ensure!(args.cases.len() == 1, "--cases {RESTORE}: goes with no other case");
        common.threads_only()?;
        return fault_restore::run(&Restore {
            common,
            dir: args.dir.as_deref(),
            snapshot_bytes: args.snapshot_bytes,
            clients: args.clients,
        });
    }
    args.check()?;
    common.sample()?;
    let mut cells = args.cells()?;
    let mut left_out = leave_out(common, &mut cells)?;
    allow_descriptors()?;
    let cached = cells.iter().any(|cell| !without_cache(cell.case) || cell.case == "fill");
    let ground = cached.then(|| Ground::new(args.dir.as_deref())).transpose()?;
    let kernel_swap = match &ground {
        Some(ground) => kernel_swap(args, &mut cells, ground, &mut left_out)?,
        None => None,
    };
    let mut measured = Measured::new();
    let mut outcomes: Vec<Outcome> = Vec::new();
    for case in distinct(cells.iter().map(|cell| cell.case)) {
        let here: Vec<Cell> = cells.iter().filter(|cell| cell.case == case).copied().collect();
        measured.extend(match (case, &ground) {
            ("install", _) => install(args, &here)?,
            ("evict", _) => evict(args, &here)?,
            ("fill", Some(ground)) => fill(args, &here, ground)?,
            (_, Some(ground)) => with_cache(args, &here, ground, &mut outcomes)?,
            (case, None) => anyhow::bail!("{case} has no files"),
        });
    }
    drop(kernel_swap);
    let figures = summed_up(outcomes.iter().filter_map(|outcome| outcome.cache.as_ref()));
    let crews: Vec<Crew> = cells.iter().map(|cell| Crew::Threads(cell.threads)).collect();
    let tables = fault_tables::tables(&measured, &|cell| args.sizes(cell));
    let mut lines = vec![tables + &report::footnote(&crews)];
    if let Some(ground) = ground.as_ref().filter(|_| cells.iter().any(|c| is_limited(c.case))) {
        let (dir, system) = (ground.dir().display(), ground.file_system());
        lines.push(format!("Files in {dir} ({system}). {}", ground.limited()));
    }
    if let Some(figures) = &figures {
        let (percent, source) = (figures.metadata_percent, &figures.source);
        let most = format!("metadata {percent:.2} % of the budget at most");
        lines.push(format!("pinfold: {most}; source: {source}."));
    }
    let params = serde_json::json!({
        "seconds": common.seconds,
        "runs": common.runs,
        "warm_up_seconds": args.warm_up,
        "memory_bytes": args.memory_bytes.0,
        "file_bytes": args.file_bytes.0,
        "ratio": args.ratio,
        "thread_bytes": args.thread_bytes.0,
        "handlers": args.handlers,
        "maps": args.maps,
        "swap_bytes": args.swap_bytes.0,
        "page_out_bytes": args.page_out_bytes.0,
        "allowance_bytes": ALLOWANCE_BYTES,
        "dir": ground.as_ref().map(Ground::dir),
        "file_system": ground.as_ref().map(Ground::file_system),
        "limit": ground.as_ref().map(Ground::kind),
        "limited": ground.as_ref().map(Ground::limited),
        "left_out": left_out,
        "metadata_percent": figures.as_ref().map(|figures| figures.metadata_percent),
        "source": figures.map(|figures| figures.source),
    });
    lines.extend(left_out);
    let rows = measured.into_iter().flat_map(|(_, rows)| rows).collect();
    common.publish(&lines.join("\n"), &Object::new("fault", params, rows))
}

/// The kernel's swap, as long as it is measured. If it cannot be had, that is said.
fn kernel_swap(
    args: &FaultArgs,
    cells: &mut Vec<Cell>,
    ground: &Ground,
    left_out: &mut Vec<String>,
) -> Result<Option<KernelSwap>> {
    let is_its = |cell: &Cell| cell.case == "swap" && cell.engine == KERNEL;
    if !cells.iter().any(is_its) {
        return Ok(None);
    }
    match KernelSwap::on(ground.dir(), 2 * args.swap_bytes.0) {
        Ok(swap) => Ok(Some(swap)),
        Err(why) => {
            cells.retain(|cell| !is_its(cell));
            ensure!(!cells.is_empty(), "nothing to measure: {why:#}");
            left_out.push(format!("Left out of swap: {KERNEL}: {why:#}"));
            Ok(None)
        }
    }
}

fn without_cache(case: &str) -> bool {
    matches!(case, "install" | "fill" | "evict")
}

/// Takes the engines off the list that this system does not let run, unless they were asked for by
/// name; returns lines that say so.
fn leave_out(common: &Common, cells: &mut Vec<Cell>) -> Result<Vec<String>> {
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for engine in distinct(cells.iter().map(|cell| cell.engine)) {
        let case = cells.iter().find(|cell| cell.engine == engine).map(|cell| cell.case);
        let checked = match (engine, case) {
            (PINFOLD, _) => fault_maps::check(),
            (engine, Some("install")) => fault_install::check(engine),
            _ => Ok(()),
        };
        let Err(why) = checked else { continue };
        ensure!(common.only.is_empty(), "{engine}: {why:#}");
        let why = format!("{why:#}");
        match lines.iter_mut().find(|(other, _)| *other == why) {
            Some((_, engines)) => engines.push(engine),
            None => lines.push((why, vec![engine])),
        }
        cells.retain(|cell| cell.engine != engine);
    }
    ensure!(
        !cells.is_empty(),
        "nothing to measure: {}",
        lines.iter().map(|(why, _)| why.as_str()).collect::<Vec<_>>().join("; ")
    );
    let line =
        |(why, engines): (String, Vec<&str>)| format!("Left out: {}: {why}", engines.join(", "));
    Ok(lines.into_iter().map(line).collect())
}

fn install(args: &FaultArgs, cells: &[Cell]) -> Result<Measured> {
    let bytes = args.memory_bytes.0;
    report::ensure_memory(bytes * INSTALL_COPIES, "--memory-bytes")?;
    let install = Install::new(bytes)?;
    let samples = args.common.interleave(cells, |cell| {
        let order = cell.order.context("install has an order")?;
        install.sample(cell.engine, order, cell.threads).with_context(|| cell.to_string())
    })?;
    let row = |(cell, samples): (&Cell, Vec<f64>)| {
        (*cell, vec![cell.row("ns_per_page", samples).with("memory_bytes", bytes)])
    };
    Ok(cells.iter().zip(samples).map(row).collect())
}

fn evict(args: &FaultArgs, cells: &[Cell]) -> Result<Measured> {
    let bytes = args.memory_bytes.0;
    report::ensure_memory(bytes, "--memory-bytes")?;
    let evict = Evict::new(bytes)?;
    let samples = args.common.interleave(cells, |cell| {
        let run_pages = cell.run_pages.context("evict has runs")?;
        evict.sample(cell.engine, run_pages, cell.threads).with_context(|| cell.to_string())
    })?;
    let row = |(cell, samples): (&Cell, Vec<f64>)| {
        (*cell, vec![cell.row("ns_per_page", samples).with("memory_bytes", bytes)])
    };
    Ok(cells.iter().zip(samples).map(row).collect())
}

fn fill(args: &FaultArgs, cells: &[Cell], ground: &Ground) -> Result<Measured> {
    let (bytes, length) = (args.memory_bytes.0, args.common.sample()?);
    report::ensure_memory(bytes, "--memory-bytes")?;
    let files = Files::make(ground.dir(), 1, bytes, Contents::Numbers)?;
    let fill = Fill::new(&files.paths(1)[0], bytes)?;
    let samples = args.common.interleave(cells, |cell| {
        let run_pages = cell.run_pages.context("fill has requests")?;
        fill.sample(cell.engine, run_pages, length).with_context(|| cell.to_string())
    })?;
    let rows = |(cell, costs): (&Cell, Vec<fault_install::Cost>)| {
        let cpu = costs.iter().map(|cost| cost.cpu_ns).collect();
        let all = costs.iter().map(|cost| cost.ns).collect();
        let rows = [cell.row("cpu_ns_per_page", cpu), cell.row("ns_per_page", all)];
        (*cell, rows.map(|row| row.with("file_bytes", bytes)).to_vec())
    };
    Ok(cells.iter().zip(samples).map(rows).collect())
}

/// The cases whose samples are processes.
fn with_cache(
    args: &FaultArgs,
    cells: &[Cell],
    ground: &Ground,
    all: &mut Vec<Outcome>,
) -> Result<Measured> {
    let case = cells[0].case;
    let most = cells.iter().map(|cell| cell.threads).max().unwrap_or(1);
    let (count, contents) = match case {
        "thrash" => (most, Contents::Pattern),
        "thrash-holes" => (most, Contents::Hole),
        "warm" => (1, Contents::Numbers),
        "swap" => (0, Contents::Hole),
        _ => (1, Contents::Pattern),
    };
    let file_bytes = match case {
        "thrash" | "thrash-holes" => args.thread_bytes.0,
        _ => args.sizes(&cells[0]).0,
    };
    let files = Files::make(ground.dir(), count, file_bytes, contents)?;
    let outcomes = args.common.interleave(cells, |cell| {
        ground
            .sample(&files, args.job(cell, &files, ground.dir()), is_limited(case))
            .with_context(|| cell.to_string())
    })?;
    let rows = |(cell, outcomes): (&Cell, &Vec<Outcome>)| -> Result<(Cell, Vec<Row>)> {
        let add = |row: Row| {
            let row = row.with("file_bytes", file_bytes);
            if !is_limited(case) {
                return row;
            }
            row.with("budget_bytes", args.sizes(cell).1).with("limit", ground.kind())
        };
        Ok((*cell, cell.rows(outcomes)?.into_iter().map(add).collect()))
    };
    let rows = cells.iter().zip(&outcomes).map(rows).collect();
    all.extend(outcomes.into_iter().flatten());
    rows
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: FaultArgs,
    }

    fn args(text: &str) -> FaultArgs {
        Command::parse_from(["fault"].into_iter().chain(text.split_whitespace())).args
    }

    #[test]
    fn a_lock_and_a_policy_are_dimensions_of_the_cache_alone() {
        let cells = args("--cases thrash --threads 3,500").cells().unwrap();
        assert_eq!(cells.len(), 2 * (2 + 4));
        for threads in [3, 500] {
            let of = |engine| {
                let cells = cells.iter().filter(move |cell| cell.engine == engine);
                cells.filter(move |cell| cell.threads == threads).map(|cell| cell.policy)
            };
            assert!(of(KERNEL).eq([None]) && of(DIRECT).eq([None]));
            let all = LOCKS.iter().flat_map(|&lock| IOS.map(|io| Some((lock, io))));
            assert!(of(PINFOLD).eq(all));
        }
        let cells = args("--cases startup --lock space --io hold,drop --only pinfold").cells();
        let policies: Vec<_> = cells.unwrap().iter().map(|cell| cell.policy).collect();
        assert_eq!(policies, [Some(("space", "drop")), Some(("space", "hold"))]);
        let cells = args("--cases warm --lock space --threads 1").cells().unwrap();
        let policies: Vec<_> = cells.iter().filter_map(|cell| cell.policy).collect();
        assert_eq!(policies, [("space", "drop"); 2]);
    }

    #[test]
    fn memory_is_an_eighth_where_it_is_to_be_too_small() {
        let args = args("--file-bytes 64M --thread-bytes 4M --maps 16");
        let cell = |case, threads| Cell {
            case,
            engine: PINFOLD,
            threads,
            order: None,
            run_pages: None,
            policy: None,
        };
        assert_eq!(args.sizes(&cell("random", 3)), (64 << 20, 8 << 20));
        assert_eq!(args.sizes(&cell("thrash", 500)), (2000 << 20, 250 << 20));
        let (all, memory) = args.sizes(&cell("startup", 3));
        assert!(all == 16 << 20 && memory > all);
    }
}
