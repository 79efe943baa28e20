//! `cargo xtask`: tests, checks and set-up of the project itself.

mod aarch64;
mod compare;
mod fresh;
mod limits;
mod modules;
mod mutants;
mod packages;
mod pin_counts;
mod probes;
mod programs;
mod test;

use anyhow::Result;
use clap::{Parser, Subcommand};
use packages::Need;
use xshell::Shell;

/// Tests, checks and set-up of the project.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Test(test::TestArgs),
    Modules(modules::ModulesArgs),
    Mutants(mutants::MutantsArgs),
    /// Run README's commands in a new, bare Debian 12; needs root
    Fresh(fresh::FreshArgs),
    Compare(compare::CompareArgs),
    Limits(limits::LimitsArgs),
    Programs(programs::ProgramsArgs),
    /// Count instructions and cache lines of a pin, by folio and page by page; needs valgrind
    PinCounts,
}

fn main() -> Result<()> {
    let command = Cli::parse().command;
    let sh = Shell::new()?;
    sh.change_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    packages::bring(&sh, &command.needs())?;
    match command {
        Command::Test(args) => test::run(&sh, &args),
        Command::Modules(args) => modules::run(&sh.current_dir(), &args),
        Command::Mutants(args) => mutants::run(&sh.current_dir(), &args),
        Command::Fresh(args) => fresh::run(&sh, &args),
        Command::Compare(args) => compare::run(&sh, &args),
        Command::Limits(args) => limits::run(&sh, &args),
        Command::Programs(args) => programs::run(&sh, &args),
        Command::PinCounts => pin_counts::run(&sh),
    }
}

impl Command {
    /// The packages that are installed before the command begins.
    fn needs(&self) -> Vec<Need> {
        match self {
            Command::Test(args) => args.needs(),
            Command::Limits(args) => args.needs(),
            // `fresh` brings its own, once it knows that it may; `programs` runs what is there.
            Command::Compare(_)
            | Command::Fresh(_)
            | Command::Modules(_)
            | Command::Mutants(_)
            | Command::Programs(_) => vec![],
            Command::PinCounts => vec![Need::Valgrind],
        }
    }
}
