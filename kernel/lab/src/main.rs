//! The kernel lab builds, boots, tests and measures kernels with and without the series, and
//! runs the litmus tests under the kernel's memory model.
//!
//! This file is the command line and nothing else.

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
mod own;
mod packages;
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
#[command(name = "pinfold-lab", bin_name = "cargo lab", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Unpack Debian's kernel source into the cache, and apply the series.
    Prepare,
    /// Check what every change has to pass.
    ///
    /// The lab's own code passes its tests; the series applies and passes checkpatch.pl; a tiny
    /// kernel with all patches builds, boots, and passes its `KUnit` tests; and what `litmus` checks.
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
    /// Do what `check` does, and what takes longer.
    ///
    /// Build and boot the fast kernels, plain and patched, whose code runs on this machine's cores
    /// without a wrong count; count instructions; race short reads, count pins, test page faults
    /// that wait, break the kernel by each mutant, and run the kernel's own selftests on plain and
    /// patched.
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
    /// Build the patched kernel for other machines.
    ///
    /// They are arm64 and i386, whose `KUnit` tests run in QEMU, and m68k without an MMU, which is
    /// big-endian. Run the selftest of page faults that wait on arm64. Compile the fault handlers
    /// of arm, powerpc, riscv and s390, a driver of arm64, and what the patches of each kernel
    /// change in allmodconfig.
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
    },
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

impl Command {
    /// The lists of packages that are installed before the command begins.
    fn needs(&self) -> &'static [&'static [&'static str]] {
        match self {
            Command::Litmus { .. } => &[],
            Command::ReadSizes { .. } => &[packages::TRACES],
            Command::Machines => &[packages::KERNELS, packages::MACHINES],
            _ => &[packages::KERNELS],
        }
    }

    /// Whether it needs nothing of the cache that another run may be changing.
    fn is_apart(&self) -> bool {
        matches!(self, Command::Litmus { .. } | Command::ReadSizes { .. })
    }
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

fn run(command: Command) -> Result<()> {
    let paths = &Paths::find()?;
    let _lock = (!command.is_apart()).then(|| lock::take(paths)).transpose()?;
    packages::bring(paths, command.needs())?;
    match command {
        Command::Prepare => prepare::prepare(paths),
        Command::Check => suite::check(paths),
        Command::Build(which) => {
            prepare::prepare(paths)?;
            let image = build::build(paths, which.tree(), which.config)?;
            println!("{}", image.display());
            Ok(())
        }
        Command::Run { which, limit_s, append, command } => {
            prepare::prepare(paths)?;
            let image = build::build(paths, which.tree(), which.config)?;
            suite::run_command(paths, &image, &command.join(" "), &append, limit_s)
        }
        Command::Each => suite::each(paths),
        Command::Selftests => suite::selftests(paths),
        Command::Mutants { only } => suite::mutants(paths, &only),
        Command::Machines => {
            prepare::prepare(paths)?;
            machines::machines(paths)
        }
        Command::Test { full, each } => suite::test(paths, full, each),
        Command::Stress { plain, config, seconds, idle } => {
            prepare::prepare(paths)?;
            let load = stress::Load { seconds, idle };
            if plain {
                stress::plain(paths, config, load)
            } else {
                stress::series(paths, config, load)
            }
        }
        Command::Bench { json } => bench::bench(paths, json.as_deref()),
        Command::Writes => writes::writes(paths),
        Command::Pins { json } => pins::pins(paths, json.as_deref()),
        Command::Cores(plan) => cores::cores(paths, &plan),
        Command::Faults(plan) => faults::faults(paths, &plan),
        Command::Reads(plan) => reads::reads(paths, &plan),
        Command::ReadSizes { name, command } => {
            read_sizes::read_sizes(paths, name.as_deref(), &command)
        }
        Command::Report { out } => report::report(paths, out),
        Command::Litmus { model, write } => litmus::run(paths, model, write),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pinfold-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    fn commands() -> BTreeSet<String> {
        Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
    }

    #[test]
    fn the_readme_has_a_row_for_each_command() {
        let rows = include_str!("../README.md").lines();
        let rows = rows.filter_map(|line| line.strip_prefix("| `cargo lab "));
        let named = rows.filter_map(|row| row.split([' ', '`']).next()).map(str::to_owned);
        assert_eq!(named.collect::<BTreeSet<_>>(), commands());
    }

    /// The first word after each `cargo lab`, also across lines.
    fn named(text: &str) -> BTreeSet<String> {
        let words: Vec<_> = text.split_whitespace().filter(|word| *word != "//!").collect();
        let after = words.windows(3).filter(|w| w[0].ends_with("cargo") && w[1] == "lab");
        let is_of_word = |c: char| c.is_ascii_lowercase() || c == '-';
        after.filter_map(|w| w[2].split(|c| !is_of_word(c)).next().map(str::to_owned)).collect()
    }

    #[test]
    fn each_command_that_a_document_or_a_mail_names_is_there() {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()];
        let (mut all, mut files) = (BTreeSet::new(), 0);
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() && !path.ends_with("target") {
                    folders.push(path);
                } else if path.is_file() {
                    let found = named(&fs::read_to_string(&path).unwrap());
                    files += usize::from(!found.is_empty());
                    all.extend(found);
                }
            }
        }
        // Prose has it without a command.
        all.remove("");
        all.retain(|command| !commands().contains(command));
        assert_eq!(all, BTreeSet::new(), "no such commands");
        assert!(files > 20, "{files}");
    }

    #[test]
    fn no_package_is_installed_for_what_needs_none() {
        let needs = |line: &str| {
            let args = ["lab"].into_iter().chain(line.split(' '));
            Cli::try_parse_from(args).unwrap().command.needs()
        };
        assert!(needs("litmus").is_empty());
        assert_eq!(needs("check"), [packages::KERNELS]);
        assert_eq!(needs("run -- pread_bench --help"), [packages::KERNELS]);
        assert_eq!(needs("read-sizes -- git status"), [packages::TRACES]);
        assert_eq!(needs("machines"), [packages::KERNELS, packages::MACHINES]);
    }
}
