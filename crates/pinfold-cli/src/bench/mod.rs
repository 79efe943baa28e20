//! `pinfold bench NAME`: what is common to all benchmarks. Each has a file of its own here.
//!
//! A benchmark says which engines, cases and worker counts there are and how one sample is taken;
//! [`Common`] has the options of all and takes the samples interleaved (every engine once, then
//! every engine again), [`workers`] does the work on the memory in [`shared`], and [`report`] has
//! the rows for the table and the JSON. [`engines`] are the ways to read a file that the
//! benchmarks of reads compare, [`place`] is where their files live, [`cgroup`] limits the
//! kernel's share of memory. What `try` measures with is in every build, the rest in those with the
//! feature `bench`.

#[cfg(feature = "bench")]
mod by_engine;
#[cfg(feature = "bench")]
mod cgroup;
pub mod engines;
#[cfg(feature = "bench")]
mod evict;
#[cfg(feature = "bench")]
mod get;
#[cfg(feature = "bench")]
mod get_engines;
#[cfg(feature = "bench")]
mod miss;
#[cfg(feature = "bench")]
mod miss_child;
#[cfg(feature = "bench")]
mod pin;
pub mod place;
#[cfg(feature = "bench")]
mod processes;
#[cfg(feature = "bench")]
mod ranks;
#[cfg(feature = "bench")]
mod read;
#[cfg(feature = "bench")]
mod read_tables;
#[cfg(feature = "bench")]
mod refs;
pub mod report;
pub mod shared;
pub mod workers;

use std::path::Path;
#[cfg(feature = "bench")]
use std::path::PathBuf;
#[cfg(feature = "bench")]
use std::time::Duration;

use anyhow::{Context, Result};
#[cfg(feature = "bench")]
use anyhow::{bail, ensure};
#[cfg(feature = "bench")]
use clap::{Args, Subcommand};
#[cfg(feature = "bench")]
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

pub use workers::Crew;

/// `pinfold bench ...`
#[cfg(feature = "bench")]
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[cfg(feature = "bench")]
#[derive(Debug, Subcommand)]
enum Bench {
    /// Get and put a reference on one shared word: the counts, old and new
    #[command(after_help = refs::HELP)]
    Ref(refs::RefArgs),
    /// Read what is in memory: a cache beside pread, mmap and a bare copy
    #[command(after_help = read::HELP)]
    Read(read::ReadArgs),
    /// Get a page in place: a cache's guards beside other caches and a bare copy
    #[command(after_help = get::HELP)]
    Get(get::GetArgs),
    /// Read a file that is larger than the memory it may use
    #[command(after_help = miss::HELP)]
    Miss(miss::MissArgs),
    /// Evict beside somebody who reads in place
    #[command(after_help = evict::HELP)]
    Evict(evict::EvictArgs),
    /// Pin what is in memory for long, and unpin it
    #[command(after_help = pin::HELP)]
    Pin(pin::PinArgs),
    /// One process of a benchmark with --processes; started by the benchmark itself
    #[command(hide = true)]
    Worker(processes::WorkerArgs),
    /// One sample of `miss`; started by it
    #[command(hide = true)]
    MissChild(miss_child::ChildArgs),
}

/// Runs a benchmark and reports it.
#[cfg(feature = "bench")]
pub fn run(args: BenchArgs) -> Result<()> {
    match args.bench {
        Bench::Ref(args) => refs::run(&args),
        Bench::Read(args) => read::run(&args),
        Bench::Get(args) => get::run(&args),
        Bench::Miss(args) => miss::run(&args),
        Bench::Evict(args) => evict::run(&args),
        Bench::Pin(args) => pin::run(&args),
        Bench::Worker(args) => processes::run_worker(&args),
        Bench::MissChild(args) => miss_child::run(&args),
    }
}

/// The options that all benchmarks have.
#[cfg(feature = "bench")]
#[derive(Debug, Args)]
pub struct Common {
    /// How many threads, one measurement each; each benchmark has its own default
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub threads: Vec<usize>,

    /// How many processes instead, on memory that they share
    #[arg(long, value_name = "N,N", value_delimiter = ',', conflicts_with = "threads")]
    pub processes: Vec<usize>,

    /// Length of one sample
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,

    /// Samples of each engine, taken in turns
    #[arg(long, value_name = "R", default_value_t = 5)]
    pub runs: usize,

    /// Measure these engines alone
    #[arg(long, value_name = "ENGINE,..", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Write the result as one JSON object to FILE, or to standard output for -
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[cfg(feature = "bench")]
impl Common {
    /// The crews to measure with, in order; so many threads if nothing else is said.
    pub fn crews(&self, threads: &[usize]) -> Result<Vec<Crew>> {
        let threads = if self.threads.is_empty() { threads } else { &self.threads };
        let crews: Vec<Crew> = if self.processes.is_empty() {
            threads.iter().map(|&n| Crew::Threads(n)).collect()
        } else {
            self.processes.iter().map(|&n| Crew::Processes(n)).collect()
        };
        for crew in &crews {
            ensure!(
                (1..=shared::MAX_WORKERS).contains(&crew.workers()),
                "{crew}: the number of workers must be from 1 to {}",
                shared::MAX_WORKERS
            );
        }
        ensure!(self.runs > 0, "--runs 0: at least one sample is needed");
        Ok(crews)
    }

    /// Refuses `--processes`.
    pub fn threads_only(&self) -> Result<()> {
        ensure!(self.processes.is_empty(), "--processes: this benchmark has threads only");
        Ok(())
    }

    /// The length of one sample.
    pub fn sample(&self) -> Result<Duration> {
        ensure!(
            self.seconds > 0.0 && self.seconds <= 3600.0,
            "--seconds {}: must be above 0 and at most 3600",
            self.seconds
        );
        Ok(Duration::from_secs_f64(self.seconds))
    }

    /// The engines of `all` that `--only` leaves.
    pub fn engines<'a>(&self, all: &[&'a str]) -> Result<Vec<&'a str>> {
        chosen("--only", "engine", &self.only, all)
    }

    /// Takes `runs` samples of each of `cells`, all of them once before any of them again.
    pub fn interleave<C, S>(
        &self,
        cells: &[C],
        mut sample: impl FnMut(&C) -> Result<S>,
    ) -> Result<Vec<Vec<S>>> {
        let bar = progress(cells.len() * self.runs);
        let mut samples: Vec<Vec<S>> =
            cells.iter().map(|_| Vec::with_capacity(self.runs)).collect();
        for _ in 0..self.runs {
            for (cell, into) in cells.iter().zip(&mut samples) {
                into.push(sample(cell)?);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(samples)
    }

    /// Prints the table for people and writes the JSON, if one is asked for.
    pub fn publish(&self, table: &str, json: &report::Object) -> Result<()> {
        publish(self.json.as_deref(), table, json)
    }
}

/// Those of `all` that are in `names`; all if there are none.
#[cfg(feature = "bench")]
pub fn chosen<'a>(
    option: &str,
    what: &str,
    names: &[String],
    all: &[&'a str],
) -> Result<Vec<&'a str>> {
    for name in names {
        if !all.contains(&name.as_str()) {
            bail!("{option} {name}: no such {what}; there are {}", all.join(", "));
        }
    }
    let kept = |one: &&str| names.is_empty() || names.iter().any(|name| name == one);
    Ok(all.iter().copied().filter(kept).collect())
}

/// Prints the table, and writes the JSON to `path`, if there is one; the table makes way for it
/// on standard output.
pub fn publish(path: Option<&Path>, table: &str, json: &impl Serialize) -> Result<()> {
    let Some(path) = path else {
        println!("{table}");
        return Ok(());
    };
    let text = serde_json::to_string_pretty(json)?;
    if path.as_os_str() == "-" {
        eprintln!("{table}");
        println!("{text}");
    } else {
        println!("{table}");
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// A bar on a terminal, nothing in a pipe.
#[cfg(feature = "bench")]
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} samples, {eta} left")
        .expect("the template is well formed");
    ProgressBar::new(steps as u64).with_style(style)
}
