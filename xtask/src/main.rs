//! `cargo xtask`: tests, checks and set-up of the project itself.

mod packages;
mod probes;

use anyhow::Result;
use clap::{Parser, Subcommand};
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
    /// Everything that has to pass: format, lints, tests, models, documentation, tracepoints
    Test,
    /// Build the counted reference with tracepoints and see each of them fire in a debugger
    Probes,
}

fn main() -> Result<()> {
    let command = Cli::parse().command;
    let sh = Shell::new()?;
    sh.change_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    match command {
        Command::Test => test(&sh),
        Command::Probes => probes::run(&sh),
    }
}

/// Quick and strict things first.
fn test(sh: &Shell) -> Result<()> {
    cmd!(sh, "cargo fmt --all --check").run()?;
    cmd!(sh, "cargo clippy --workspace --all-targets -- -D warnings").run()?;
    cmd!(sh, "cargo clippy -p pinfold-refcount --features usdt -- -D warnings").run()?;
    cmd!(sh, "cargo test --workspace").run()?;
    // What misuse does without debug assertions.
    cmd!(sh, "cargo test --release -p pinfold-refcount --test reference").run()?;
    {
        let _warnings_are_errors = sh.push_env("RUSTDOCFLAGS", "-D warnings");
        cmd!(sh, "cargo doc --workspace --no-deps").run()?;
    }
    probes::run(sh)
}
