//! The kernel lab builds, boots, tests and measures kernels with and without the series, and
//! runs the litmus tests under the kernel's memory model.
//!
//! This file is the command line and nothing else. `cargo xtask kernel` and
//! `cargo xtask litmus` pass their arguments on to it.

mod bench;
mod build;
mod cc;
mod chosen;
mod cores;
mod cover;
mod coverage;
mod failures;
mod faults;
mod fixes;
mod fsx;
mod git;
mod guest;
mod kept;
mod kernels;
mod litmus;
mod lock;
mod machines;
mod mutants;
mod overlap;
mod paths;
mod pins;
mod prepare;
mod proc;
mod qemu;
mod race;
mod race_proof;
mod read_sizes;
mod reads;
mod report;
mod selftests;
mod series;
mod smoke;
mod splat;
mod steps;
mod stress;
mod suite;
mod threads;
mod variant;
mod writes;

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
    /// Build, boot, test and measure kernels with and without the series.
    #[command(subcommand)]
    Kernel(Kernel),
    /// Check the litmus tests, and run them if herd7 is there.
    Litmus {
        /// The folder of the memory model (default: the prepared kernel's tools/memory-model).
        #[arg(long)]
        model: Option<PathBuf>,
        /// Write the table of verdicts to kernel/litmus/README.md.
        #[arg(long)]
        write: bool,
    },
}

#[derive(Subcommand)]
enum Kernel {
    /// Unpack Debian's kernel source into the cache, and apply the series.
    Prepare,
    /// Check what every change has to pass: the series applies and passes checkpatch.pl; a
    /// tiny patched kernel and the fast kernels, plain and patched, build, boot, and pass their
    /// `KUnit` tests; their code runs on this machine's cores without a wrong count; and no
    /// number of instructions grows by more than 1 %.
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
        /// Boot parameters, besides those that a guest needs.
        #[arg(long, default_value = "")]
        append: String,
        /// The command for the guest's shell.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Do what `check` does, race short reads, count pins, test page faults that wait, break the
    /// kernel by each mutant, and run the kernel's own selftests on plain and patched.
    Test {
        /// Also run the stress on the debug kernels (KASAN with lockdep, and KCSAN), the workloads
        /// of page faults that wait on one, and their mutants.
        #[arg(long)]
        full: bool,
        /// Also build and boot a tiny kernel after each patch of the series.
        #[arg(long)]
        each: bool,
    },
    /// Build and boot a tiny kernel after each patch, alone.
    Each,
    /// Run the kernel's own selftests alone, on plain and patched.
    Selftests,
    /// Break the patched kernel by each patch of `kernel/mutants`: a test must notice.
    Mutants {
        /// Only these: the names of the patches, without `.patch`.
        #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
        only: Vec<String>,
    },
    /// Build the patched kernel for other machines: arm64 and i386, whose `KUnit` tests run in
    /// QEMU, and m68k without an MMU, which is big-endian. Run the selftest of page faults that
    /// wait on arm64. Compile the fault handlers of arm, powerpc, riscv and s390, a driver of arm64,
    /// and what the patches of each kernel change in allmodconfig.
    Machines,
    /// Run the stress alone, on a debug kernel (or on the fast one, which is quicker).
    /// If the patched kernel reports a problem, the plain one runs the same stress, and only
    /// a problem that it does not report is an error.
    Stress {
        /// Stress the plain kernel, and print what it reports. Nothing it reports is an error.
        #[arg(long)]
        plain: bool,
        #[arg(long, value_enum, default_value_t = Config::Debug)]
        config: Config,
        /// How many seconds the guest works.
        #[arg(long, default_value_t = stress::SECONDS)]
        seconds: u32,
        /// Only compaction, splitting, and memory going offline and online again, without
        /// pauses, and without workers that use the memory.
        #[arg(long)]
        idle: bool,
    },
    /// Count instructions in plain and patched kernels.
    Bench {
        /// Also write the counts to this file: rows of `tree`, `case` and `instructions`.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Count the writes to a file's struct page for each read, in plain and patched kernels.
    Writes,
    /// Count instructions and cache lines for each page that is pinned and unpinned, in plain
    /// kernels, in patched ones, and in one that pins page by page as it once was.
    Pins {
        /// Write the counts to this file, or to the output if it is `-`.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Measure gets, puts, failed gets, splits, unpins and short reads on this machine's own
    /// cores, without booting: the kernels' own objects run in a program, plain and patched in
    /// turn.
    Cores(cores::Plan),
    /// Run the workloads of page faults that wait for I/O on three kernels: one that retries
    /// them under `mmap_lock`, one that retries them under their VMA's lock, and one that holds
    /// that lock. Compare what they counted.
    Faults(faults::Plan),
    /// Race short reads and ordinary ones with truncation, punched holes and writes, on ext4 and
    /// tmpfs: a short read must return what an ordinary one may.
    Reads(reads::Plan),
    /// Run a program on this machine, and print how many bytes its reads of cached files return.
    /// Needs bpftrace, and root.
    ReadSizes {
        /// What to call the program in the table.
        #[arg(long)]
        name: Option<String>,
        /// The program, and its arguments, without spaces in them.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Write a page that compares plain and patched, from what the other commands have kept.
    Report {
        /// The file to write (default: report.md in the cache folder).
        #[arg(long)]
        out: Option<PathBuf>,
        /// The output of `pinfold bench ref --only cas,frozen32 --json FILE`: both instruction
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
        // It needs nothing of the cache that another run may be changing.
        Command::Kernel(kernel @ Kernel::ReadSizes { .. }) => run_kernel(&paths, kernel),
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
        Kernel::Run { which, limit_s, append, command } => {
            prepare::prepare(paths)?;
            let image = build::build(paths, which.tree(), which.config)?;
            suite::run_command(paths, &image, &command.join(" "), &append, limit_s)
        }
        Kernel::Each => suite::each(paths),
        Kernel::Selftests => suite::selftests(paths),
        Kernel::Mutants { only } => suite::mutants(paths, &only),
        Kernel::Machines => {
            prepare::prepare(paths)?;
            machines::machines(paths)
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
        Kernel::Bench { json } => bench::bench(paths, json.as_deref()),
        Kernel::Writes => writes::writes(paths),
        Kernel::Pins { json } => pins::pins(paths, json.as_deref()),
        Kernel::Cores(plan) => cores::cores(paths, &plan),
        Kernel::Faults(plan) => faults::faults(paths, &plan),
        Kernel::Reads(plan) => reads::reads(paths, &plan),
        Kernel::ReadSizes { name, command } => {
            read_sizes::read_sizes(paths, name.as_deref(), &command)
        }
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
