//! One sample of `pinfold bench miss`, taken by a process of its own: it enters the memory control
//! group, opens its engine, warms up and measures. `limited.rs` starts it, and says why a process.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use memmap2::{Advice, Mmap};
use pinfold::{Cache, File, Hint, Options};
use rand::{Rng, RngExt};
use rustix::fs::Advice as FileAdvice;
use serde::{Deserialize, Serialize};

use super::engines::{Bytes, Reader, mapping_of};
use super::limited::{self, CacheFigures, WARM_UP_WORKERS, numbers, storage_read_bytes};
use super::ranks::Ranks;
use super::scratch::{Aligned, open_direct, open_plain};
use super::shared::{Board, SharedBoard};
use super::workers::{self, Work};

/// Reads on their way for each thread of `direct-deep`, and for all of them together: more would
/// only need more memory.
const DEEP: usize = 4;
const DEEP_ALL: usize = 16;

/// `pinfold bench miss-child`: its arguments.
#[derive(Debug, Args)]
pub struct ChildArgs {
    /// A [`Job`] as JSON.
    job: String,
}

/// In which order blocks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Every block as likely as any other.
    Random,
    /// Some far likelier than others.
    Zipf,
    /// Front to back, and again; every worker in its own part of the file.
    Scan,
}

/// One sample.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// With what.
    pub engine: String,
    /// In which order.
    pub order: Order,
    /// By this many threads.
    pub threads: usize,
    /// Of which file.
    pub path: PathBuf,
    /// How long it is.
    pub file_bytes: u64,
    /// How long a read is.
    pub block_bytes: u64,
    /// For the cache.
    pub budget_bytes: u64,
    /// How long to measure.
    pub seconds: f64,
    /// How long to warm up.
    pub warm_up_seconds: f64,
    /// Whether engines get a hint of the order.
    pub hints: bool,
    /// Of the zipf order.
    pub skew: f64,
    /// The control group to enter.
    pub group: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// Reads a second, of all workers.
    pub ops_per_s: f64,
    /// How many reads found their bytes in memory, where that is known.
    pub hit_ratio: Option<f64>,
    /// Of the cache: the part of the budget that is no file's bytes, and where bytes came from.
    pub cache: Option<CacheFigures>,
}

/// An engine. Every worker opens the file for itself, so that none disturbs another's run of
/// sequential reads; but a mapping is for all, as each would need page tables of its own.
#[derive(Debug)]
enum Engine {
    Direct,
    Pread,
    Mmap(Mmap),
    /// The file is open from the beginning to the end: of one that has no name, nothing is kept
    /// once its last handle has gone.
    Pinfold(Cache, File),
}

/// Takes the sample and writes what came of it to standard output.
pub fn run(args: &ChildArgs) -> Result<()> {
    let job: Job = serde_json::from_str(&args.job).context("not a job for a child of miss")?;
    limited::begin(job.group.as_deref())?;
    let engine = Engine::new(&job)?;
    let shared = SharedBoard::new()?;
    let sample = |phase: u64, threads: usize, seconds: f64| {
        let lanes = match job.engine.as_str() {
            // Its memory is charged to the group, too.
            "direct-deep" => {
                let fit = (job.budget_bytes / job.block_bytes) as usize;
                (fit.min(DEEP_ALL) / threads).clamp(1, DEEP)
            }
            _ => 1,
        };
        let work = Walk { job: &job, engine: &engine, threads, lanes, phase };
        let length = Duration::from_secs_f64(seconds);
        workers::sample_threads(threads * lanes, &work, shared.board(), length)
    };
    if job.warm_up_seconds > 0.0 {
        let all = if job.order == Order::Scan { job.threads } else { WARM_UP_WORKERS };
        sample(0, all, job.warm_up_seconds)?;
    }
    let before = engine.missed_bytes(&job)?;
    let taken = sample(1, job.threads, job.seconds)?;
    let after = engine.missed_bytes(&job)?;
    let asked = taken.operations as f64 * job.block_bytes as f64;
    let missed = before.zip(after).map(|(before, after)| after - before);
    let outcome = Outcome {
        ops_per_s: taken.ops_per_s,
        hit_ratio: missed.map(|missed| (1.0 - missed as f64 / asked).clamp(0.0, 1.0)),
        cache: engine.cache_figures(),
    };
    crate::say::print(serde_json::to_string(&outcome)?)?;
    Ok(())
}

impl Engine {
    fn new(job: &Job) -> Result<Self> {
        Ok(match job.engine.as_str() {
            "pread-direct" | "direct-deep" => Engine::Direct,
            "pread" => Engine::Pread,
            "mmap" => Engine::Mmap(mapping_of(&job.path)?),
            "pinfold" => {
                let cache = Cache::new(Options::new(job.budget_bytes))?;
                let file = cache.open(&job.path)?;
                Engine::Pinfold(cache, file)
            }
            other => bail!("no engine {other}"),
        })
    }

    /// Bytes so far that were asked for and not in memory, where that is known.
    fn missed_bytes(&self, job: &Job) -> Result<Option<u64>> {
        Ok(match self {
            Engine::Direct => None,
            _ if job.order == Order::Scan => None,
            // Reading ahead is no miss, and would count as one.
            Engine::Pread | Engine::Mmap(_) if !job.hints => None,
            Engine::Pread | Engine::Mmap(_) => storage_read_bytes()?,
            // A read within one page misses once.
            Engine::Pinfold(cache, _) => Some(cache.stats().misses * job.block_bytes),
        })
    }

    fn cache_figures(&self) -> Option<CacheFigures> {
        let Engine::Pinfold(cache, _) = self else { return None };
        Some(CacheFigures::of(cache))
    }
}

/// What the workers do.
struct Walk<'a> {
    job: &'a Job,
    engine: &'a Engine,
    threads: usize,
    /// This many workers read one part of a scan together: of n workers, each reads every n-th
    /// block.
    lanes: usize,
    /// Random numbers differ by it.
    phase: u64,
}

impl Work for Walk<'_> {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        let (file_advice, map_advice, hint) = match self.job.order {
            Order::Random | Order::Zipf => (FileAdvice::Random, Advice::Random, Hint::Random),
            Order::Scan => (FileAdvice::Sequential, Advice::Sequential, Hint::Sequential),
        };
        let path = &self.job.path;
        match self.engine {
            Engine::Direct => self.read(&open_direct(path)?, board, worker),
            Engine::Pread => {
                let file = open_plain(path)?;
                if self.job.hints {
                    rustix::fs::fadvise(&file, 0, None, file_advice)?;
                }
                self.read(&file, board, worker)
            }
            Engine::Mmap(map) => {
                if self.job.hints {
                    map.advise(map_advice)?;
                }
                self.read(&Bytes(map), board, worker)
            }
            Engine::Pinfold(_, file) => {
                let file = file.clone();
                if self.job.hints {
                    file.advise(0..self.job.file_bytes, hint)?;
                }
                self.read(&file, board, worker)
            }
        }
    }
}

impl Walk<'_> {
    fn read<R: Reader>(&self, reader: &R, board: &Board, worker: usize) -> Result<()> {
        let (job, block_bytes) = (self.job, self.job.block_bytes);
        let blocks = job.file_bytes / block_bytes;
        let mut random = numbers(self.phase, worker);
        match job.order {
            Order::Random => self.turn(reader, board, worker, || {
                ((u128::from(random.next_u64()) * u128::from(blocks)) >> 64) as u64
            }),
            Order::Zipf => {
                let ranks = Ranks::new(blocks, job.skew)?;
                self.turn(reader, board, worker, || ranks.draw(&mut random))
            }
            Order::Scan => {
                let (thread, lane) = (worker / self.lanes, worker % self.lanes);
                let part = (blocks / self.threads as u64).max(1);
                let first = thread as u64 * part % blocks;
                // All lanes of a thread begin at the same offset.
                let begin = numbers(self.phase, thread).random_range(0..part);
                let mut next = begin + lane as u64;
                self.turn(reader, board, worker, || {
                    let block = first + next % part;
                    next += self.lanes as u64;
                    block
                })
            }
        }
    }

    fn turn<R: Reader>(
        &self,
        reader: &R,
        board: &Board,
        worker: usize,
        mut block: impl FnMut() -> u64,
    ) -> Result<()> {
        let block_bytes = self.job.block_bytes;
        let mut memory = Aligned::zeroed(block_bytes as usize);
        let buf = memory.bytes_mut();
        workers::work(board, worker, 1, || {
            let got = reader.read(buf, block() * block_bytes)?;
            black_box(buf.as_mut_ptr());
            ensure!(got as u64 == block_bytes, "a read of {block_bytes} bytes gave {got}");
            Ok(())
        })
    }
}
