//! `pinfold bench evict`: what reading in place costs eviction.
//!
//! Here: a thread that misses, and so evicts, all the time, beside another that reads cached pages
//! in one of several ways. Not here: how fast the readers are (`read`, `get`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use pinfold::source::{Extent, Source};
use pinfold::{Cache, File, Hint, Options};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::common::Common;
use super::report::{self, Object, Row, rate};
use super::workers::Crew;
use crate::size::Size;

/// The engines; the first is the one that the others are compared with.
const ENGINES: [&str; 4] = ["read", "borrow", "borrow-fenced", "get"];

/// The cached pages that are read take up this part of the budget.
const HOT_SHARE: u64 = 32;
/// The file that is read at random is this many times the budget.
const COLD_BUDGETS: u64 = 4;

/// What the engines are.
pub const HELP: &str = "\
One thread reads a file of four times the budget (--budget) at random, from a source that costs
almost nothing: nearly every read evicts a page. Another reads 64 bytes of pages that stay cached:
  read           copied out
  borrow         in place, announced; eviction issues a membarrier for each batch
  borrow-fenced  the same with a fence in each borrow, and no membarrier
  get            in place, under a counted reference

The ratio is that of the evictions beside the engine to those beside `read`: the median of the
ratios of neighbouring samples.";

/// Options of `pinfold bench evict`.
#[derive(Debug, Args)]
pub struct EvictArgs {
    #[command(flatten)]
    common: Common,

    /// The cache's budget. A small budget evicts in small batches, with a membarrier for each
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    budget: Size,
}

/// A source that costs nothing: it leaves the bytes that were in the frame.
#[derive(Debug)]
struct Nothing(u64);

impl Source for Nothing {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        Ok(buf.len().min(self.0.saturating_sub(offset) as usize))
    }

    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> std::io::Result<usize> {
        let bytes: usize = extents.iter().map(Extent::bytes).sum();
        Ok(bytes.min(self.0.saturating_sub(offset) as usize))
    }

    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.0)
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "nothing".into()
    }
}

/// The result of one sample.
struct Sample {
    evictions_per_s: f64,
    reads_per_s: f64,
}

/// One cache with both files.
struct Ground {
    cache: Cache,
    hot: File,
    hot_pages: u64,
    cold: File,
    cold_pages: u64,
}

impl Ground {
    fn new(engine: &str, budget_bytes: u64) -> Result<Self> {
        let fenced = engine == "borrow-fenced";
        let cache = Cache::new(Options { membarrier: !fenced, ..Options::new(budget_bytes) })?;
        let told = cache.stats().membarrier;
        ensure!(told != fenced, "{engine}: the system has no membarrier");
        let attach = |name, pages: u64| -> Result<File> {
            let file = cache.attach(name, Arc::new(Nothing(pages * 4096)))?;
            file.advise(0..0, Hint::Random)?;
            Ok(file)
        };
        let pages = budget_bytes / 4096;
        let (hot_pages, cold_pages) = (pages / HOT_SHARE, pages * COLD_BUDGETS);
        let (hot, cold) = (attach("hot", hot_pages)?, attach("cold", cold_pages)?);
        let ground = Ground { cache, hot, hot_pages, cold, cold_pages };
        for page in 0..hot_pages {
            drop(ground.hot.get(page)?);
        }
        ground.miss(|| ground.cache.stats().evictions > cold_pages)?;
        Ok(ground)
    }

    /// Reads the large file at random until the sample's time is over.
    fn miss(&self, enough: impl Fn() -> bool) -> Result<()> {
        let mut rng = Pcg64Mcg::seed_from_u64(7);
        let mut buf = [0; 64];
        while !enough() {
            for _ in 0..64 {
                self.cold.read_at(&mut buf, below(&mut rng, self.cold_pages) * 4096)?;
            }
        }
        Ok(())
    }

    /// Reads cached pages until `over`; returns the number of reads.
    fn read(&self, engine: &str, over: &AtomicBool) -> Result<u64> {
        let mut rng = Pcg64Mcg::seed_from_u64(11);
        let mut out = [0; 64];
        let reader = engine.starts_with("borrow").then(|| self.cache.reader()).transpose()?;
        let mut reads = 0;
        // Relaxed: it only has to be seen at some time.
        while !over.load(Ordering::Relaxed) {
            for _ in 0..64 {
                let page = below(&mut rng, self.hot_pages);
                match (&reader, engine) {
                    (Some(reader), _) => {
                        out.copy_from_slice(&self.hot.borrow(page, reader)?[..64]);
                    }
                    (None, "get") => out.copy_from_slice(&self.hot.get(page)?[..64]),
                    _ => {
                        self.hot.read_at(&mut out, page * 4096)?;
                    }
                }
                std::hint::black_box(&mut out);
            }
            reads += 64;
        }
        Ok(reads)
    }

    fn sample(&self, engine: &str, length: Duration) -> Result<Sample> {
        let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let before = self.cache.stats().evictions;
        let since = Instant::now();
        std::thread::scope(|scope| -> Result<()> {
            let reader = scope.spawn(|| -> Result<()> {
                reads.store(self.read(engine, &over)?, Ordering::Relaxed);
                Ok(())
            });
            let missed = self.miss(|| since.elapsed() >= length);
            over.store(true, Ordering::Relaxed);
            reader.join().ok().context("the reader panicked")??;
            missed
        })?;
        let seconds = since.elapsed().as_secs_f64();
        let evictions = self.cache.stats().evictions - before;
        Ok(Sample {
            evictions_per_s: evictions as f64 / seconds,
            reads_per_s: reads.into_inner() as f64 / seconds,
        })
    }
}

/// A page below `end`.
fn below(rng: &mut Pcg64Mcg, end: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(end)) >> 64) as u64
}

/// Runs the benchmark.
pub fn run(args: &EvictArgs) -> Result<()> {
    let common = &args.common;
    ensure!(common.processes.is_empty(), "--processes: this benchmark has threads only");
    ensure!(
        common.threads.is_empty() || common.threads == [2],
        "--threads: this benchmark has two, one that misses and one that does not"
    );
    common.crews(&[2])?;
    let (engines, length) = (common.engines(&ENGINES)?, common.sample()?);
    let grounds: Vec<(&str, Ground)> = engines
        .iter()
        .map(|&engine| Ok((engine, Ground::new(engine, args.budget.0)?)))
        .collect::<Result<_>>()?;
    let samples = common.interleave(&grounds, |(engine, ground)| ground.sample(engine, length))?;
    let rows = |metric, of: fn(&Sample) -> f64| -> Vec<Row> {
        let row = |(engine, samples): (&&str, &Vec<Sample>)| {
            let samples = samples.iter().map(of).collect();
            Row::new(engine, "beside-reader", Crew::Threads(2), metric, samples)
        };
        engines.iter().zip(&samples).map(row).collect()
    };
    let evictions = rows("evictions_per_s", |sample| sample.evictions_per_s);
    let reads = rows("ops_per_s", |sample| sample.reads_per_s);
    let table = table(&evictions, &reads);
    let params = serde_json::json!({
        "seconds": common.seconds, "runs": common.runs, "budget_bytes": args.budget.0,
    });
    common.publish(&table, &Object::new("evict", params, [evictions, reads].concat()))
}

fn table(evictions: &[Row], reads: &[Row]) -> String {
    let base = evictions.iter().find(|row| row.engine == ENGINES[0]);
    let header = ["beside", "evictions/s", "of those beside read", "reads/s"].map(String::from);
    let lines = evictions.iter().zip(reads).map(|(row, reads)| {
        let ratio = base.map_or(String::new(), |base| format!("{:.3}", row.ratio(base)));
        vec![row.engine.clone(), rate(row), ratio, rate(reads)]
    });
    report::table(header.into(), lines.collect())
}
