//! `pinfold bench worker`: the life of a worker process. `processes.rs` starts it; here it finds
//! the benchmark whose job it is given.

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use super::processes::end_with_parent;
use super::shared::{MAX_WORKERS, SharedBoard};
use super::workers::{Work, cpus, pin_to_cpu};
use super::{read, refs};

/// The arguments of a worker process.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    bench: Bench,
    /// The benchmark's job as JSON.
    job: String,
    worker: usize,
    descriptor: i32,
}

/// The benchmarks that have worker processes.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Bench {
    Ref,
    Read,
}

/// Does the job until the sample is over.
pub fn run(args: &WorkerArgs) -> Result<()> {
    ensure!(args.worker < MAX_WORKERS, "there is no worker {}", args.worker);
    end_with_parent()?;
    let not_a_job = "not a job for a worker";
    let job: Box<dyn Work> = match args.bench {
        Bench::Ref => Box::new(serde_json::from_str::<refs::Job>(&args.job).context(not_a_job)?),
        Bench::Read => Box::new(serde_json::from_str::<read::Job>(&args.job).context(not_a_job)?),
    };
    let shared = SharedBoard::inherited(args.descriptor)?;
    pin_to_cpu(args.worker, &cpus())?;
    job.run(shared.board(), args.worker)
}
