//! The parts that all benchmarks share: options, taking samples in turns, and publishing.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::workers::Crew;
use super::{report, shared};
use crate::publish::{self, publish};

/// The options of all benchmarks.
#[derive(Debug, Args)]
pub struct Common {
    /// Numbers of threads to measure with; the default depends on the benchmark
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub threads: Vec<usize>,

    /// Numbers of processes to measure with instead of threads
    #[arg(long, value_name = "N,N", value_delimiter = ',', conflicts_with = "threads")]
    pub processes: Vec<usize>,

    /// Length of one sample
    #[arg(long, value_name = "S", default_value_t = 0.5, allow_negative_numbers = true)]
    pub seconds: f64,

    /// Samples of each engine, interleaved with the other engines'
    #[arg(long, value_name = "R", default_value_t = 5)]
    pub runs: usize,

    /// Measure only these engines
    #[arg(long, value_name = "ENGINE,..", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Write the result as one JSON object to FILE, or to standard output for -
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Common {
    /// The crews to measure with, in order; by default this many threads. Every benchmark calls it
    /// first, so it also checks the other common options.
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
        publish::check(self.json.as_deref())?;
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

    /// Prints the table, and writes the JSON if it was asked for.
    pub fn publish(&self, table: &str, json: &report::Object) -> Result<()> {
        publish(self.json.as_deref(), table, json)
    }
}

/// Those of `all` that are in `names`; all if there are none.
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

/// A bar on a terminal, nothing in a pipe.
fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} samples, {eta} left")
        .expect("the template is well formed");
    ProgressBar::new(steps as u64).with_style(style)
}
