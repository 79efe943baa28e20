//! The kernel lab: builds, boots, tests and measures kernels with and without
//! the series, and puts the litmus tests before the kernel's memory model.
//!
//! This file is the command line and nothing else. `cargo xtask kernel` and
//! `cargo xtask litmus` call it with the arguments they were given.

mod bench;
mod build;
mod cc;
mod coverage;
mod git;
mod guest;
mod kept;
mod kernels;
mod litmus;
mod lock;
mod paths;
mod prepare;
mod proc;
mod qemu;
mod race;
mod race_proof;
mod report;
mod selftests;
mod series;
mod smoke;
mod splat;
mod stress;
mod suite;
mod threads;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use kernels::{Config, Tree};
use paths::Paths;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "pinfold-lab", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Kernels: prepare, build, run, test, stress, bench, report.
    #[command(subcommand)]
    Kernel(Kernel),
    /// The litmus tests, expected against observed.
    Litmus {
        /// The memory model's folder (default: that of the prepared kernel).
        #[arg(long)]
        model: Option<PathBuf>,
        /// Write the table of verdicts into kernel/litmus/README.md.
        #[arg(long)]
        write: bool,
    },
}

#[derive(Subcommand)]
enum Kernel {
    /// Unpack Debian's kernel source into the cache, and apply the series.
    Prepare,
    /// What every change has to pass: the series applies, its style is clean, a tiny
    /// kernel with it and the fast ones, plain and patched, build, boot, and pass their
    /// `KUnit` tests, and the counts are no dearer.
    Check,
    /// Build a kernel; a second build reuses the first.
    Build(Which),
    /// Boot a kernel and run a command in it.
    Run {
        #[command(flatten)]
        which: Which,
        /// Seconds after which a guest that has not finished has failed.
        #[arg(long, default_value_t = 120)]
        limit_s: u64,
        /// What to run in the guest's shell.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// The same, and the kernel's own selftests on plain and patched.
    Test {
        /// Also the debug kernels (KASAN, lockdep, KCSAN) and the stress.
        #[arg(long)]
        full: bool,
        /// Also build a tiny kernel after each patch of the series, and boot it.
        #[arg(long)]
        each: bool,
    },
    /// The stress alone, on one of the debug kernels (or, quicker, the fast one).
    /// What the patched kernel complains of is put to the plain one, too.
    Stress {
        /// See what the plain kernel complains of; that fails nothing.
        #[arg(long)]
        plain: bool,
        #[arg(long, value_enum, default_value_t = Config::Debug)]
        config: Config,
        /// How long the guest works.
        #[arg(long, default_value_t = stress::SECONDS)]
        seconds: u32,
        /// Only compaction, splitting, and memory being taken out and put back, without rest
        /// and without anybody who uses the memory.
        #[arg(long)]
        idle: bool,
    },
    /// Count instructions in plain and patched kernels.
    Bench,
    /// Write one page with plain beside patched.
    Report {
        /// Where to (default: the cache folder).
        #[arg(long)]
        out: Option<PathBuf>,
        /// What `pinfold bench ref --only cas,frozen32 --json FILE` has written: the two
        /// sequences on this machine's cores.
        #[arg(long = "ref", value_name = "FILE")]
        cores: Option<PathBuf>,
    },
}

#[derive(Args)]
struct Which {
    /// The kernel without the series.
    #[arg(long, conflicts_with = "series")]
    plain: bool,
    /// The kernel with the series (the default).
    #[arg(long)]
    series: bool,
    #[arg(long, value_enum, default_value_t = Config::Fast)]
    config: Config,
}

impl Which {
    fn tree(&self) -> Tree {
        if self.plain { Tree::Plain } else { Tree::Series }
    }
}

fn run(cli: Cli) -> Result<()> {
    let paths = Paths::find()?;
    match cli.command {
        Command::Litmus { model, write } => litmus::run(&paths, model, write),
        Command::Kernel(kernel) => {
            let _lock = lock::take(&paths)?;
            run_kernel(&paths, kernel)
        }
    }
}

fn run_kernel(paths: &Paths, kernel: Kernel) -> Result<()> {
    match kernel {
        Kernel::Prepare => prepare::prepare(paths),
        Kernel::Check => suite::check(paths),
        Kernel::Build(which) => {
            prepare::prepare(paths)?;
            let image = build::build(paths, which.tree(), which.config)?;
            println!("{}", image.display());
            Ok(())
        }
        Kernel::Run { which, limit_s, command } => {
            prepare::prepare(paths)?;
            let image = build::build(paths, which.tree(), which.config)?;
            suite::run_command(paths, &image, &command.join(" "), limit_s)
        }
        Kernel::Test { full, each } => suite::test(paths, full, each),
        Kernel::Stress { plain, config, seconds, idle } => {
            prepare::prepare(paths)?;
            let load = stress::Load { seconds, idle };
            if plain {
                stress::plain(paths, config, load)
            } else {
                stress::series(paths, config, load)
            }
        }
        Kernel::Bench => bench::bench(paths),
        Kernel::Report { out, cores } => report::report(paths, out, cores.as_deref()),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pinfold-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
