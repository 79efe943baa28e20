//! `pinfold bench NAME`: what is common to all benchmarks. Each has a file of its own here.
//!
//! A benchmark says which engines, cases and worker counts there are and how one sample is taken;
//! [`Common`] has the options of all and takes the samples interleaved (every engine once, then
//! every engine again), [`workers`] does the work on the memory in [`shared`], and [`report`] has
//! the rows for the table and the JSON.

mod refs;
mod report;
mod shared;
mod workers;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

pub use workers::{Crew, WorkerArgs};

/// `pinfold bench ...`
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Get and put a reference on one shared word: the counts, old and new
    #[command(after_help = refs::HELP)]
    Ref(refs::RefArgs),
    /// One process of a benchmark with --processes; started by the benchmark itself
    #[command(hide = true)]
    Worker(WorkerArgs),
}

/// Runs a benchmark and reports it.
pub fn run(args: BenchArgs) -> Result<()> {
    match args.bench {
        Bench::Ref(args) => refs::run(&args),
        Bench::Worker(args) => workers::run_worker(&args),
    }
}

/// The options that all benchmarks have.
#[derive(Debug, Args)]
pub struct Common {
    /// How many threads, one measurement each
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 2])]
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

impl Common {
    /// The crews to measure with, in order.
    pub fn crews(&self) -> Result<Vec<Crew>> {
        let crews: Vec<Crew> = if self.processes.is_empty() {
            self.threads.iter().map(|&n| Crew::Threads(n)).collect()
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
        for name in &self.only {
            if !all.contains(&name.as_str()) {
                bail!("--only {name}: no such engine; there are {}", all.join(", "));
            }
        }
        let kept = |engine: &&str| self.only.is_empty() || self.only.iter().any(|o| o == engine);
        Ok(all.iter().copied().filter(kept).collect())
    }

    /// Takes `runs` samples of each of `cells`, all of them once before any of them again.
    pub fn interleave<C>(
        &self,
        cells: &[C],
        mut sample: impl FnMut(&C) -> Result<f64>,
    ) -> Result<Vec<Vec<f64>>> {
        let bar = progress(cells.len() * self.runs);
        let mut samples = vec![Vec::with_capacity(self.runs); cells.len()];
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
        let Some(path) = &self.json else {
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
}

/// A bar on a terminal, nothing in a pipe.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} samples, {eta} left")
        .expect("the template is well formed");
    ProgressBar::new(steps as u64).with_style(style)
}
