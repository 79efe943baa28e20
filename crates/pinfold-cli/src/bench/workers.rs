//! Workers: pinned threads, or pinned processes, that do one thing as often as they can for the
//! length of a sample.

use std::fmt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::refs;
use super::shared::{Board, SharedBoard};

const WAIT: u32 = 0;
const WORK: u32 = 1;
const STOP: u32 = 2;

/// Operations between two looks at the clock's hand.
pub const BATCH: u64 = 256;

/// Who works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crew {
    /// So many threads of this process.
    Threads(usize),
    /// So many processes.
    Processes(usize),
}

impl Crew {
    /// How many.
    pub fn workers(self) -> usize {
        let (Crew::Threads(n) | Crew::Processes(n)) = self;
        n
    }

    /// The key under which the number stands in the JSON.
    pub fn kind(self) -> &'static str {
        match self {
            Crew::Threads(_) => "threads",
            Crew::Processes(_) => "processes",
        }
    }
}

impl fmt::Display for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.workers(), self.kind())
    }
}

/// The CPUs that this process may use.
pub fn cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("a process may ask for its own CPUs");
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Binds the calling thread to one CPU, round the ones there are.
pub fn pin_to_cpu(worker: usize, cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    let cpu = cpus[worker % cpus.len()];
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot bind a worker to CPU {cpu}"))
}

/// Works until the phase says stop: `batch` does [`BATCH`] operations.
pub fn work(board: &Board, worker: usize, mut batch: impl FnMut()) {
    // Release, pairs with the acquire in `sample`; acquire, pairs with its release.
    board.ready.0.fetch_add(1, Release);
    while board.phase.0.load(Acquire) == WAIT {
        std::hint::spin_loop();
    }
    let begun = Instant::now();
    let mut operations = 0;
    // Relaxed: only to stop.
    while board.phase.0.load(Relaxed) == WORK {
        batch();
        operations += BATCH;
    }
    // Relaxed: read after the worker was joined.
    board.worked_ns[worker].0.store(begun.elapsed().as_nanos() as u64, Relaxed);
    board.operations[worker].0.store(operations, Relaxed);
}

/// What a sample is taken of: found again by its names in a worker process.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The benchmark.
    pub bench: &'a str,
    /// The engine.
    pub engine: &'a str,
}

impl Job<'_> {
    fn run(self, board: &Board, worker: usize) -> Result<()> {
        match self.bench {
            "ref" => refs::work(self.engine, board, worker),
            other => anyhow::bail!("no worker of a benchmark {other}"),
        }
    }
}

/// Takes one sample: operations per second, summed over the workers.
pub fn sample(crew: Crew, job: Job<'_>, shared: &SharedBoard, length: Duration) -> Result<f64> {
    let board = shared.board();
    // Relaxed: the workers are started after this.
    board.ready.0.store(0, Relaxed);
    board.phase.0.store(WAIT, Relaxed);
    let cpus = cpus();
    match crew {
        Crew::Threads(n) => std::thread::scope(|scope| {
            let cpus = &cpus;
            let threads: Vec<_> = (0..n)
                .map(|worker| {
                    scope.spawn(move || {
                        pin_to_cpu(worker, cpus).and_then(|()| job.run(board, worker))
                    })
                })
                .collect();
            direct(board, n, length, || {
                threads.iter().any(std::thread::ScopedJoinHandle::is_finished)
            });
            threads.into_iter().try_for_each(|thread| thread.join().expect("a worker panicked"))
        })?,
        Crew::Processes(n) => {
            let mut children =
                (0..n).map(|worker| spawn(job, worker, shared)).collect::<Result<Vec<Child>>>()?;
            direct(board, n, length, || {
                children.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)))
            });
            for child in &mut children {
                let status = child.wait().context("cannot wait for a worker process")?;
                ensure!(status.success(), "a worker process failed: {status}");
            }
        }
    }
    let rate = |worker: usize| {
        let operations = board.operations[worker].0.load(Relaxed) as f64;
        operations * 1e9 / board.worked_ns[worker].0.load(Relaxed) as f64
    };
    Ok((0..crew.workers()).map(rate).sum())
}

/// Lets the workers go once all are there, and stops them; at once if one has given up.
fn direct(board: &Board, workers: usize, length: Duration, mut gave_up: impl FnMut() -> bool) {
    // Acquire, pairs with the release of a worker that reports ready.
    while (board.ready.0.load(Acquire) as usize) < workers && !gave_up() {
        std::thread::sleep(Duration::from_micros(100));
    }
    // Release, pairs with the acquire of a waiting worker.
    board.phase.0.store(WORK, Release);
    if !gave_up() {
        std::thread::sleep(length);
    }
    board.phase.0.store(STOP, Release);
}

/// `pinfold bench worker`: what a worker process is told.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    bench: String,
    engine: String,
    worker: usize,
    descriptor: i32,
}

fn spawn(job: Job<'_>, worker: usize, shared: &SharedBoard) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Command::new(program)
        .args(["bench", "worker", job.bench, job.engine])
        .args([worker.to_string(), shared.descriptor().to_string()])
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start a worker process")
}

/// The life of a worker process.
pub fn run_worker(args: &WorkerArgs) -> Result<()> {
    ensure!(args.worker < super::shared::MAX_WORKERS, "there is no worker {}", args.worker);
    let shared = SharedBoard::inherited(args.descriptor)?;
    pin_to_cpu(args.worker, &cpus())?;
    Job { bench: &args.bench, engine: &args.engine }.run(shared.board(), args.worker)
}
