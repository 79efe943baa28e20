//! `cargo xtask`: tests, checks and set-up of the project itself.

mod kernel;
mod packages;
mod probes;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use xshell::{Shell, cmd};

/// What the project does to itself.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything that has to pass: format, lints, tests, models, documentation, tracepoints, a patched kernel
    Test,
    /// The kernel lab: prepare, check, build, run, test, bench, report (`kernel --help` for all)
    #[command(disable_help_flag = true)]
    Kernel(LabArgs),
    /// Put the kernel's races before the kernel's memory model; needs herd7 for the verdicts
    #[command(disable_help_flag = true)]
    Litmus(LabArgs),
    /// Build the counted reference with tracepoints and see each of them fire in a debugger
    Probes,
}

/// What is passed on to the lab as it is.
#[derive(Debug, Args)]
struct LabArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

fn main() -> Result<()> {
    let command = Cli::parse().command;
    let sh = Shell::new()?;
    sh.change_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    match command {
        Command::Test => test(&sh),
        Command::Kernel(args) => kernel::lab(&sh, "kernel", &args.rest),
        Command::Litmus(args) => kernel::lab(&sh, "litmus", &args.rest),
        Command::Probes => probes::run(&sh),
    }
}

/// The cache's protocols under loom: a build of its own, in a folder of its own.
fn models(sh: &Shell) -> Result<()> {
    let _loom = sh.push_env("RUSTFLAGS", "--cfg loom");
    cmd!(sh, "cargo test -p pinfold --release --lib --target-dir target/loom").run()?;
    Ok(())
}

/// Quick and strict things first.
fn test(sh: &Shell) -> Result<()> {
    cmd!(sh, "cargo fmt --all --check").run()?;
    cmd!(sh, "cargo clippy --workspace --all-targets -- -D warnings").run()?;
    cmd!(sh, "cargo clippy -p pinfold-refcount --features usdt -- -D warnings").run()?;
    cmd!(sh, "cargo test --workspace").run()?;
    // What misuse does without debug assertions.
    cmd!(sh, "cargo test --release -p pinfold-refcount --test reference").run()?;
    models(sh)?;
    {
        let _warnings_are_errors = sh.push_env("RUSTDOCFLAGS", "-D warnings");
        cmd!(sh, "cargo doc --workspace --no-deps").run()?;
    }
    kernel::lab(sh, "litmus", &[])?;
    probes::run(sh)?;
    kernel::check(sh)
}
