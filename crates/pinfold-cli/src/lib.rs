//! The `pinfold` command, as a library of which its program calls [`run`]. By default it can
//! `try`, `serve` and `restore`, which compiles in half the time; the feature `bench` adds the
//! others.

#![allow(
    unreachable_pub,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "a program has no public interface"
)]

pub mod bench;
#[cfg(feature = "bench")]
mod crash;
mod publish;
pub mod say;
pub mod serve;
#[cfg(feature = "bench")]
mod sim;
mod size;
#[cfg(feature = "bench")]
mod stress;
mod try_cache;

#[cfg(any(test, not(feature = "bench")))]
use std::ffi::OsString;

use clap::{Parser, Subcommand};

/// What a build without the feature `bench` says of the other commands.
#[cfg(not(feature = "bench"))]
const MORE: &str = "This build has only try, serve and restore. `cargo pinfold` builds and runs the whole program, \
                    which also has bench, sim, stress and crash.";

/// Tests and measures Pinfold, a user-space page cache.
#[derive(Debug, Parser)]
#[command(name = "pinfold", version, max_term_width = 100, arg_required_else_help = true)]
#[cfg_attr(not(feature = "bench"), command(after_help = MORE))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read a file through the cache, check every byte, and compare its speed with pread and mmap
    #[command(after_help = try_cache::HELP)]
    Try(try_cache::TryArgs),
    /// Serve a snapshot as the memory of other processes
    #[command(after_help = serve::HELP)]
    Serve(serve::ServeArgs),
    /// Have a snapshot as memory, from a server, and touch it
    #[command(after_help = serve::restore::HELP)]
    Restore(serve::restore::RestoreArgs),
    /// Measure one operation beside its alternatives and its physical limit
    #[cfg(feature = "bench")]
    Bench(bench::BenchArgs),
    /// Replay traces of page numbers against replacement policies and print their hit ratios
    #[cfg(feature = "bench")]
    Sim(sim::SimArgs),
    /// Read files under stress and check every byte
    #[cfg(feature = "bench")]
    #[command(after_help = stress::HELP)]
    Stress(stress::StressArgs),
    /// Crash files that are written through the cache in every way, and check what is left
    #[cfg(feature = "bench")]
    #[command(after_help = crash::HELP)]
    Crash(crash::CrashArgs),
    /// bench, sim, stress, crash: in a build with the feature `bench`
    #[cfg(not(feature = "bench"))]
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// Runs the command on this process's command line.
///
/// # Errors
/// The command's.
pub fn run() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Try(args) => try_cache::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Restore(args) => serve::restore::run(&args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(args),
        #[cfg(feature = "bench")]
        Command::Sim(args) => sim::run(&args),
        #[cfg(feature = "bench")]
        Command::Stress(args) => stress::run(&args),
        #[cfg(feature = "bench")]
        Command::Crash(args) => crash::run(&args),
        #[cfg(not(feature = "bench"))]
        Command::Other(words) => Err(not_here(&words)),
    }
}

/// The error for a command that this build does not have.
#[cfg(any(test, not(feature = "bench")))]
fn not_here(words: &[OsString]) -> anyhow::Error {
    let word = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    match &*word {
        "bench" | "sim" | "stress" | "crash" => {
            anyhow::anyhow!(
                "this build has only try, serve and restore: `cargo pinfold {word}` makes one that has `{word}`"
            )
        }
        _ => anyhow::anyhow!(
            "no such command: {word}; there are try, serve, restore, bench, sim, stress and crash"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_can_only_try_says_what_makes_another() {
        let said = |word: &str| not_here(&[word.into(), "--help".into()]).to_string();
        assert!(said("sim").contains("`cargo pinfold sim`"), "{}", said("sim"));
        assert!(said("bnech").contains("no such command: bnech"), "{}", said("bnech"));
    }
}
