//! `pinfold bench NAME`: which benchmarks there are. Each has a file of its own here.
//!
//! A benchmark says which engines, cases and worker counts there are and how one sample is taken;
//! [`common::Common`] has the options of all and takes the samples interleaved (every engine once,
//! then every engine again), [`workers`] does the work on the memory in [`shared`], and [`report`]
//! has the rows for the table and the JSON. [`engines`] are the ways to read a file that the
//! benchmarks of reads compare, [`scratch`] makes their files, [`limited`] has them read by
//! processes whose memory [`cgroup`] limits. The parts that `try` uses are in every build, the rest
//! in builds with the feature `bench`.

#[cfg(feature = "bench")]
mod batch;
#[cfg(feature = "bench")]
mod batch_child;
#[cfg(feature = "bench")]
mod batch_flow;
#[cfg(feature = "bench")]
mod batch_memory;
#[cfg(feature = "bench")]
mod batch_nodes;
#[cfg(feature = "bench")]
mod batch_ring;
#[cfg(feature = "bench")]
mod batch_tables;
#[cfg(feature = "bench")]
mod by_engine;
#[cfg(feature = "bench")]
mod cgroup;
#[cfg(feature = "bench")]
mod common;
pub mod engines;
#[cfg(feature = "bench")]
mod evict;
#[cfg(feature = "bench")]
mod fault;
#[cfg(feature = "bench")]
mod fault_child;
#[cfg(feature = "bench")]
mod fault_ground;
#[cfg(feature = "bench")]
mod fault_install;
#[cfg(feature = "bench")]
mod fault_job;
#[cfg(feature = "bench")]
mod fault_maps;
#[cfg(feature = "bench")]
mod fault_race;
#[cfg(feature = "bench")]
mod fault_restore;
#[cfg(feature = "bench")]
mod fault_swap;
#[cfg(feature = "bench")]
mod fault_tables;
#[cfg(feature = "bench")]
mod fault_touch;
#[cfg(feature = "bench")]
mod fault_uffd;
#[cfg(feature = "bench")]
mod get;
#[cfg(feature = "bench")]
mod get_engines;
#[cfg(feature = "bench")]
mod limited;
#[cfg(feature = "bench")]
mod miss;
#[cfg(feature = "bench")]
mod miss_child;
mod opaque;
#[cfg(feature = "bench")]
mod pin;
#[cfg(feature = "bench")]
mod processes;
#[cfg(feature = "bench")]
mod ranks;
#[cfg(feature = "bench")]
mod read;
#[cfg(feature = "bench")]
mod read_tables;
#[cfg(feature = "bench")]
mod refs;
pub mod report;
pub mod scratch;
pub mod shared;
#[cfg(feature = "bench")]
mod times;
#[cfg(feature = "bench")]
mod worker_process;
pub mod workers;
#[cfg(feature = "bench")]
mod write;
#[cfg(feature = "bench")]
mod write_cases;
#[cfg(feature = "bench")]
mod write_child;
#[cfg(feature = "bench")]
mod write_engines;

#[cfg(feature = "bench")]
use anyhow::Result;
#[cfg(feature = "bench")]
use clap::{Arg, Args, Subcommand};

/// `pinfold bench ...`
#[cfg(feature = "bench")]
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    bench: Bench,
}

#[cfg(feature = "bench")]
#[derive(Debug, Subcommand)]
enum Bench {
    /// Get and put a reference on one shared word: Pinfold's count beside older ones
    #[command(after_help = refs::HELP)]
    Ref(refs::RefArgs),
    /// Read cached bytes: the cache beside pread, mmap and a bare copy
    #[command(after_help = read::HELP)]
    Read(read::ReadArgs),
    /// Get a cached page in place: the cache beside other caches and a bare copy
    #[command(after_help = get::HELP, mut_arg("processes", hidden))]
    Get(get::GetArgs),
    /// Read a file that is larger than the memory it may use
    #[command(after_help = miss::HELP, mut_arg("processes", hidden))]
    Miss(miss::MissArgs),
    /// Read pages in batches: batched calls beside single ones, in memory and under a limit
    #[command(after_help = batch::HELP, mut_arg("processes", hidden))]
    Batch(batch::BatchArgs),
    /// Evict while another thread reads pages in place
    #[command(
        after_help = evict::HELP,
        mut_arg("processes", hidden),
        mut_arg("threads", hidden)
    )]
    Evict(evict::EvictArgs),
    /// Pin cached pages and unpin them: by folio, page by page, and as a ring's buffers
    #[command(after_help = pin::HELP, mut_arg("processes", hidden), mut_arg("threads", hidden))]
    Pin(pin::PinArgs),
    /// Fault pages of mapped files in: the cache beside the kernel's mmap
    #[command(after_help = fault::HELP, mut_arg("processes", hidden))]
    Fault(fault::FaultArgs),
    /// Write to files: the cache beside pwrite, mmap and direct I/O
    #[command(after_help = write::HELP, mut_arg("processes", hidden))]
    Write(write::WriteArgs),
    /// One process of a benchmark with --processes; started by the benchmark itself
    #[command(hide = true)]
    Worker(worker_process::WorkerArgs),
    /// One sample of `miss`; started by it
    #[command(hide = true)]
    MissChild(miss_child::ChildArgs),
    /// One sample of `batch` under a limit; started by it
    #[command(hide = true)]
    BatchChild(batch_child::ChildArgs),
    /// One sample of `fault` with a cache; started by it
    #[command(hide = true)]
    FaultChild(fault_child::ChildArgs),
    /// One sample of `write` under a limit; started by it
    #[command(hide = true)]
    WriteChild(write_child::ChildArgs),
}

/// An option of all benchmarks that this one refuses: its help does not show it.
#[cfg(feature = "bench")]
fn hidden(option: Arg) -> Arg {
    option.hide(true)
}

/// Runs a benchmark and reports it.
#[cfg(feature = "bench")]
pub fn run(args: BenchArgs) -> Result<()> {
    match args.bench {
        Bench::Ref(args) => refs::run(&args),
        Bench::Read(args) => read::run(&args),
        Bench::Get(args) => get::run(&args),
        Bench::Miss(args) => miss::run(&args),
        Bench::Batch(args) => batch::run(&args),
        Bench::Evict(args) => evict::run(&args),
        Bench::Pin(args) => pin::run(&args),
        Bench::Worker(args) => worker_process::run(&args),
        Bench::MissChild(args) => miss_child::run(&args),
        Bench::BatchChild(args) => batch_child::run(&args),
        Bench::Fault(args) => fault::run(&args),
        Bench::FaultChild(args) => fault_child::run(&args),
        Bench::Write(args) => write::run(&args),
        Bench::WriteChild(args) => write_child::run(&args),
    }
}
