//! `pinfold bench ref`: get and put of one shared word.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Result, bail};
use clap::Args;
use pinfold_refcount::RefCount;
use pinfold_refcount::rivals::{AssumeOne, CasLoop, Counter, Frozen32};
use serde::{Deserialize, Serialize};

use super::by_engine::ByEngine;
use super::common::Common;
use super::processes;
use super::report::{self, Object, Row};
use super::shared::{Board, SharedBoard};
use super::workers::{self, BATCH, Crew, Work};

/// The engines, the limit first.
const ENGINES: [&str; 5] = ["add", "cas", "assume-one", "frozen32", "frozen"];

/// What the engines are.
pub const HELP: &str = "\
Engines:
  add         an atomic add and an atomic subtract: the limit of any count
  cas         zero is dead; a get is a load and a compare-and-swap loop (Linux today)
  assume-one  the same, but the first swap assumes that the count is 1
  frozen32    the frozen bit in 32 bits, as proposed for Linux
  frozen      Pinfold's word: frozen bit, generation, pins and references in 64 bits

Workers are bound to one CPU each; more workers than CPUs share them. The boost is how much faster
frozen is than cas: the median over neighbouring samples.";

/// Options of `pinfold bench ref`.
#[derive(Debug, Args)]
pub struct RefArgs {
    #[command(flatten)]
    common: Common,

    /// Steps of work (turns of a loop over nothing shared) between a get and its put, and as many
    /// before the next get, as a reader has something to do with what it holds
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    work: u32,
}

/// What a worker does: get and put with one engine.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    engine: String,
    work: u32,
}

/// Work on nothing that is shared.
#[inline(always)]
fn work(steps: u32) {
    for step in 0..steps {
        black_box(step);
    }
}

impl Work for Job {
    fn run(&self, board: &Board, worker: usize) -> Result<()> {
        match self.engine.as_str() {
            "add" => {
                let word: &AtomicU64 = &board.word.0[0];
                workers::work(board, worker, BATCH, || {
                    for _ in 0..BATCH {
                        // Acquire and release as a real count would; they pair with nothing here.
                        word.fetch_add(1, Ordering::Acquire);
                        work(self.work);
                        word.fetch_sub(1, Ordering::Release);
                        work(self.work);
                    }
                    Ok(())
                })
            }
            "cas" => self.get_and_put(shared::<CasLoop, AtomicU32>(board), board, worker),
            "assume-one" => self.get_and_put(shared::<AssumeOne, AtomicU32>(board), board, worker),
            "frozen32" => self.get_and_put(shared::<Frozen32, AtomicU32>(board), board, worker),
            "frozen" => self.get_and_put(shared::<RefCount, AtomicU64>(board), board, worker),
            other => bail!("no engine {other}"),
        }
    }
}

/// A count of type `C`, which is a `Word` and nothing else, on the shared word.
fn shared<C, Word>(board: &Board) -> &C {
    const { assert!(size_of::<C>() == size_of::<Word>() && align_of::<C>() == align_of::<Word>()) }
    const { assert!(size_of::<C>() <= 8 && align_of::<C>() <= 8) }
    // SAFETY: `C` is one atomic integer (no other count has its size and no fields but it), so
    // any bits are valid; it is as small and as aligned as the AtomicU64 that it stands on, and
    // shared in the same way.
    unsafe { &*(&raw const board.word.0[0]).cast::<C>() }
}

impl Job {
    fn get_and_put<C: Counter>(&self, count: &C, board: &Board, worker: usize) -> Result<()> {
        workers::work(board, worker, BATCH, || {
            for _ in 0..BATCH {
                assert!(count.try_get(), "the word has a reference of its own");
                work(self.work);
                assert!(!count.put(), "the word keeps a reference of its own");
                work(self.work);
            }
            Ok(())
        })
    }
}

/// Leaves the shared word with one reference, as a folio that sits in the page cache.
fn prepare(engine: &str, board: &Board) {
    // Relaxed: the workers are started after this.
    board.word.0[0].store(0, Ordering::Relaxed);
    match engine {
        "cas" => shared::<CasLoop, AtomicU32>(board).thaw(1),
        "assume-one" => shared::<AssumeOne, AtomicU32>(board).thaw(1),
        "frozen32" => shared::<Frozen32, AtomicU32>(board).thaw(1),
        "frozen" => {
            let frozen = RefCount::frozen();
            frozen.hand_out(1);
            board.word.0[0].store(frozen.word().raw(), Ordering::Relaxed);
        }
        _ => {}
    }
}

/// Runs the benchmark.
pub fn run(args: &RefArgs) -> Result<()> {
    let common = &args.common;
    let (crews, length) = (common.crews(&[1, 2])?, common.sample()?);
    let engines = common.engines(&ENGINES)?;
    let board = SharedBoard::new()?;
    let cells: Vec<(Crew, &str)> =
        crews.iter().flat_map(|&crew| engines.iter().map(move |&engine| (crew, engine))).collect();
    let samples = common.interleave(&cells, |&(crew, engine)| {
        prepare(engine, board.board());
        let job = Job { engine: engine.to_owned(), work: args.work };
        Ok(match crew {
            Crew::Threads(n) => workers::sample_threads(n, &job, board.board(), length),
            Crew::Processes(n) => processes::sample_processes(n, "ref", &job, &board, length),
        }?
        .ops_per_s)
    })?;
    let rows: Vec<Row> = cells
        .iter()
        .zip(samples)
        .map(|(&(crew, engine), samples)| Row::new(engine, "get-put", crew, "ops_per_s", samples))
        .collect();
    let table = table(&crews, &rows);
    let params = serde_json::json!({
        "seconds": common.seconds, "runs": common.runs, "work_steps": args.work,
    });
    common.publish(&table, &Object::new("ref", params, rows))
}

fn table(crews: &[Crew], rows: &[Row]) -> String {
    let table = ByEngine::new(rows)
        .pair("boost %", ("frozen", "cas"), |ratio| format!("{:+.1}", 100.0 * (ratio - 1.0)))
        .pair("of the limit", ("frozen", "add"), |ratio| format!("{ratio:.3}"))
        .draw("Get and put of one shared reference count, operations per second");
    table + &report::footnote(crews)
}
