//! The `pinfold` command.

#![allow(unreachable_pub, reason = "a program has no public interface")]

mod bench;
mod sim;
mod size;
mod stress;
mod try_cache;

use clap::{Parser, Subcommand};

/// A page cache that a program links, and what it is made of.
#[derive(Debug, Parser)]
#[command(name = "pinfold", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read a file through a cache, check every byte, and set the cache beside pread and mmap
    #[command(after_help = try_cache::HELP)]
    Try(try_cache::TryArgs),
    /// Measure one thing against its alternatives and its physical limit, side by side
    Bench(bench::BenchArgs),
    /// Replay traces of page numbers against replacement policies and print their hit ratios
    Sim(sim::SimArgs),
    /// Read files under stress and check every byte
    #[command(after_help = stress::HELP)]
    Stress(stress::StressArgs),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Try(args) => try_cache::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Sim(args) => Ok(sim::run(&args)?),
        Command::Stress(args) => stress::run(&args),
    }
}
