//! Workers: pinned threads that do one thing as often as they can for the length of a sample.
//!
//! Here: starting, timing and stopping them. Not here: what they do, which each benchmark says as
//! [`Work`], and workers that are processes (`processes.rs`).

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::shared::Board;

const WAIT: u32 = 0;
const WORK: u32 = 1;
const STOP: u32 = 2;

/// Operations between two loads of the clock's hand, where one takes nanoseconds.
pub const BATCH: u64 = 1024;

/// Turns of a worker that waits for the others before it lets them have its CPU.
const SPINS_MAX: u32 = 1000;

/// The kind and number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crew {
    /// This many threads of this process.
    Threads(usize),
    /// This many processes.
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

    /// How many, with a star where they are more than the CPUs.
    pub fn label(self) -> String {
        let star = if self.workers() > cpus().len() { "*" } else { "" };
        format!("{}{star}", self.workers())
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

/// Works until the phase says stop, or until `batch` fails: one batch at least, of `operations`
/// operations each.
pub fn work(
    board: &Board,
    worker: usize,
    operations: u64,
    mut batch: impl FnMut() -> Result<()>,
) -> Result<()> {
    // Release, pairs with the acquire in `direct`; acquire, pairs with its release.
    board.ready.0.fetch_add(1, Release);
    let mut spins = 0;
    while board.phase.0.load(Acquire) == WAIT {
        spins += 1;
        if spins < SPINS_MAX { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    let begun = Instant::now();
    let mut done = 0;
    // Once at least: a worker that was not let run before the end of the sample is slow, not at
    // rest.
    loop {
        batch()?;
        done += operations;
        // Relaxed: only to stop.
        if board.phase.0.load(Relaxed) != WORK {
            break;
        }
    }
    // Relaxed: read after the worker was joined.
    board.worked_ns[worker].0.store(begun.elapsed().as_nanos() as u64, Relaxed);
    board.operations[worker].0.store(done, Relaxed);
    Ok(())
}

/// What the workers of a sample do.
pub trait Work: Sync {
    /// One worker's life: gets ready, then calls [`work`].
    fn run(&self, board: &Board, worker: usize) -> Result<()>;
}

/// What a sample came to.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Operations a second, summed over the workers.
    pub ops_per_s: f64,
    /// Operations of all workers.
    pub operations: u64,
}

/// Takes a sample with `n` threads.
pub fn sample_threads(
    n: usize,
    work: &dyn Work,
    board: &Board,
    length: Duration,
) -> Result<Sample> {
    begin(board);
    let cpus = &cpus();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|worker| {
                scope.spawn(move || pin_to_cpu(worker, cpus).and_then(|()| work.run(board, worker)))
            })
            .collect();
        direct(board, n, length, || threads.iter().any(std::thread::ScopedJoinHandle::is_finished));
        threads.into_iter().try_for_each(|thread| thread.join().expect("a worker panicked"))
    })?;
    collect(board, n)
}

pub(super) fn begin(board: &Board) {
    // Relaxed: the workers are started after this.
    board.ready.0.store(0, Relaxed);
    board.phase.0.store(WAIT, Relaxed);
    // What they did in the last sample.
    board.operations.iter().chain(&board.worked_ns).for_each(|word| word.0.store(0, Relaxed));
}

pub(super) fn collect(board: &Board, workers: usize) -> Result<Sample> {
    // Relaxed: the workers were joined.
    let (mut ops_per_s, mut all) = (0.0, 0);
    for worker in 0..workers {
        let operations = board.operations[worker].0.load(Relaxed);
        let worked_ns = board.worked_ns[worker].0.load(Relaxed);
        ensure!(operations > 0 && worked_ns > 0, "worker {worker} of {workers} did nothing");
        ops_per_s += operations as f64 * 1e9 / worked_ns as f64;
        all += operations;
    }
    Ok(Sample { ops_per_s, operations: all })
}

/// Lets the workers go once all are there, and stops them; at once if one has given up.
pub(super) fn direct(
    board: &Board,
    workers: usize,
    length: Duration,
    mut gave_up: impl FnMut() -> bool,
) {
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

#[cfg(test)]
mod tests {
    use super::super::shared::SharedBoard;
    use super::*;

    /// Each worker does so much, the one with 0 nothing at all.
    struct Does(Vec<u64>);

    impl Work for Does {
        fn run(&self, board: &Board, worker: usize) -> Result<()> {
            match self.0[worker] {
                0 => Ok(()),
                operations => work(board, worker, operations, || {
                    std::thread::sleep(Duration::from_millis(1));
                    Ok(())
                }),
            }
        }
    }

    #[test]
    fn a_worker_that_does_nothing_is_seen_though_it_did_something_before() {
        let shared = SharedBoard::new().unwrap();
        let sample = |operations: Vec<u64>| {
            let length = Duration::from_millis(20);
            sample_threads(operations.len(), &Does(operations), shared.board(), length)
        };
        let all = sample(vec![100, 100]).unwrap();
        assert!(all.operations.is_multiple_of(100) && all.operations >= 200, "{all:?}");
        // At most 1000 turns a second, of 100 operations, by each.
        assert!((1.0..200_000.0).contains(&all.ops_per_s), "{all:?}");
        let error = sample(vec![100, 0]).unwrap_err();
        assert_eq!(error.to_string(), "worker 1 of 2 did nothing");
    }
}
