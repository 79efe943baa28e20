//! Workers that are processes, on a board that they share: each is this program again.
//!
//! What they do a benchmark says as a [`Job`], which another process can find again.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::shared::{Board, SharedBoard};
use super::workers::{Sample, Work, begin, collect, cpus, direct, pin_to_cpu};
use super::{read, refs};

/// What a worker process is told: a benchmark's name for its [`Work`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Job {
    /// Of `bench ref`.
    Ref(refs::Job),
    /// Of `bench read`.
    Read(read::Job),
}

impl Job {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        match self {
            Job::Ref(job) => job.run(board, worker),
            Job::Read(job) => job.run_alone(board, worker),
        }
    }
}

/// Takes a sample with so many processes.
pub fn sample_processes(
    n: usize,
    job: &Job,
    shared: &SharedBoard,
    length: Duration,
) -> Result<Sample> {
    let board = shared.board();
    begin(board);
    let mut children =
        (0..n).map(|worker| spawn(job, worker, shared)).collect::<Result<Vec<Child>>>()?;
    direct(board, n, length, || {
        children.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)))
    });
    for child in &mut children {
        let status = child.wait().context("cannot wait for a worker process")?;
        ensure!(status.success(), "a worker process failed: {status}");
    }
    Ok(collect(board, n))
}

/// `pinfold bench worker`: what a worker process is told.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// A [`Job`] as JSON.
    job: String,
    worker: usize,
    descriptor: i32,
}

fn spawn(job: &Job, worker: usize, shared: &SharedBoard) -> Result<Child> {
    this_program()?
        .args(["bench", "worker", &serde_json::to_string(job)?])
        .args([worker.to_string(), shared.descriptor().to_string()])
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start a worker process")
}

/// This program, to be started again.
pub fn this_program() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program's own file")?))
}

/// Ends this process when the one that started it ends, however that ends.
pub fn end_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask to be ended with the parent process")
}

/// The life of a worker process.
pub fn run_worker(args: &WorkerArgs) -> Result<()> {
    ensure!(args.worker < super::shared::MAX_WORKERS, "there is no worker {}", args.worker);
    end_with_parent()?;
    let job: Job = serde_json::from_str(&args.job).context("not a job for a worker")?;
    let shared = SharedBoard::inherited(args.descriptor)?;
    pin_to_cpu(args.worker, &cpus())?;
    job.run(shared.board(), args.worker)
}
