//! Workers that are processes of their own, on memory that they share.
//!
//! Here: starting them, taking a sample of them, and ending them. Not here: the life of one
//! (`worker_process.rs`).

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;

use super::shared::SharedBoard;
use super::workers::{Sample, begin, collect, direct};

/// Takes a sample with `n` processes, each of which does `job` of the benchmark `bench`.
pub fn sample_processes(
    n: usize,
    bench: &str,
    job: &impl Serialize,
    shared: &SharedBoard,
    length: Duration,
) -> Result<Sample> {
    let board = shared.board();
    begin(board);
    let mut children =
        (0..n).map(|worker| spawn(bench, job, worker, shared)).collect::<Result<Vec<Child>>>()?;
    direct(board, n, length, || {
        children.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)))
    });
    for child in &mut children {
        let status = child.wait().context("cannot wait for a worker process")?;
        ensure!(status.success(), "a worker process failed: {status}");
    }
    collect(board, n)
}

fn spawn(bench: &str, job: &impl Serialize, worker: usize, shared: &SharedBoard) -> Result<Child> {
    this_program()?
        .args(["bench", "worker", bench, &serde_json::to_string(job)?])
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
