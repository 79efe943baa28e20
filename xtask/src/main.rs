//! `cargo xtask`: tests, checks and set-up of the project itself.

mod aarch64;
mod compare;
mod fresh;
mod modules;
mod packages;
mod pin_counts;
mod probes;

use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use packages::Need;
use xshell::{Shell, cmd};

/// Tests, checks and set-up of the project.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run everything that has to pass: format, modules, lints, documentation, tests, models,
    /// tracepoints
    Test,
    Modules(modules::ModulesArgs),
    /// Run README's commands in a new, bare Debian 12; needs root
    Fresh(fresh::FreshArgs),
    /// Lint and test the other caches that `bench get` compares with, one of them RocksDB's
    Peers,
    /// Build for aarch64 and run the cache's and the count's tests under qemu; not part of `test`
    Aarch64,
    /// Build the reference count with tracepoints, and check in a debugger that each one fires
    Probes,
    Compare(compare::CompareArgs),
    /// Count instructions and cache lines of a pin, by folio and page by page; needs valgrind
    PinCounts,
}

fn main() -> Result<()> {
    let command = Cli::parse().command;
    let sh = Shell::new()?;
    sh.change_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    packages::bring(&sh, &command.needs())?;
    match command {
        Command::Test => test(&sh),
        Command::Modules(args) => modules::run(&sh.current_dir(), &args),
        Command::Fresh(args) => fresh::run(&sh, &args),
        Command::Peers => peers(&sh),
        Command::Aarch64 => aarch64::run(&sh),
        Command::Probes => probes::run(&sh),
        Command::Compare(args) => compare::run(&sh, &args),
        Command::PinCounts => pin_counts::run(&sh),
    }
}

impl Command {
    /// The packages that are installed before the command begins.
    fn needs(&self) -> Vec<Need> {
        match self {
            Command::Test => PARTS.iter().flat_map(|part| part.needs).copied().collect(),
            // `fresh` brings its own, once it knows that it may.
            Command::Compare(_) | Command::Fresh(_) | Command::Modules(_) => vec![],
            Command::Peers => vec![Need::Peers],
            Command::Aarch64 => vec![Need::Aarch64],
            Command::Probes => vec![Need::Probes],
            Command::PinCounts => vec![Need::Valgrind],
        }
    }
}

/// The cache's protocols under loom, and whole caches under shuttle: builds of their own, in
/// folders of their own. docs/models.md says what is in which, and how to go deeper.
fn models(sh: &Shell) -> Result<()> {
    {
        let _loom = sh.push_env("RUSTFLAGS", "--cfg loom");
        cmd!(sh, "cargo test -p pinfold --profile models --lib --target-dir target/loom").run()?;
    }
    let _shuttle = sh.push_env("RUSTFLAGS", "--cfg shuttle");
    // What the caught mutants print is long, and means nothing.
    let _short = sh.push_env("RUST_BACKTRACE", "0");
    cmd!(sh, "cargo test -p pinfold --lib --target-dir target/shuttle models::").run()?;
    Ok(())
}

/// Arguments that build the other caches, and the benchmark with them.
const WITH_PEERS: [&str; 6] =
    ["-p", "pinfold-peers", "-p", "pinfold-cli", "--features", "pinfold-cli/peers"];

/// Checks that the code for the other caches compiles: no other build has it.
fn lint_peers(sh: &Shell) -> Result<()> {
    Ok(cmd!(sh, "cargo clippy {WITH_PEERS...} --all-targets -- -D warnings").run()?)
}

/// Tests the other caches, and the benchmark with them. Not part of `test`: they take long to
/// build, and nothing else depends on them.
fn peers(sh: &Shell) -> Result<()> {
    lint_peers(sh)?;
    let tests = ["keeps_everything", "bench_get"];
    Ok(cmd!(sh, "cargo test {WITH_PEERS...} --lib --test cli -- {tests...}").run()?)
}

/// A part of `cargo xtask test`.
struct Part {
    name: &'static str,
    needs: &'static [Need],
    run: fn(&Shell) -> Result<()>,
}

/// Quick and strict parts first. No part begins before the packages of all parts are installed.
const PARTS: [Part; 5] = [
    Part { name: "format and lints", needs: &[Need::Peers], run: lints },
    Part { name: "documentation", needs: &[], run: documentation },
    Part { name: "tests", needs: &[], run: tests },
    Part { name: "models", needs: &[], run: models },
    Part { name: "tracepoints", needs: &[Need::Probes], run: probes::run },
];

fn test(sh: &Shell) -> Result<()> {
    let mut took = Vec::new();
    for part in PARTS {
        let began = Instant::now();
        (part.run)(sh).with_context(|| format!("{} failed", part.name))?;
        took.push(format!("{} {} s", part.name, began.elapsed().as_secs()));
    }
    println!("cargo xtask test: all passed ({})", took.join(", "));
    Ok(())
}

fn lints(sh: &Shell) -> Result<()> {
    cmd!(sh, "cargo fmt --all --check").run()?;
    modules::run(&sh.current_dir(), &modules::ModulesArgs::default())?;
    cmd!(sh, "cargo clippy --workspace --all-targets -- -D warnings").run()?;
    // Tests have the feature `bench`; what people run first has not.
    cmd!(sh, "cargo clippy -p pinfold-cli -- -D warnings").run()?;
    cmd!(sh, "cargo clippy -p pinfold-refcount --features usdt -- -D warnings").run()?;
    // Code that only these features have: the mutants, and the other caches.
    let features = "pinfold/mutants,pinfold-cli/mutants,pinfold-cli/peers";
    Ok(cmd!(sh, "cargo clippy --workspace --features {features} --all-targets -- -D warnings")
        .run()?)
}

fn documentation(sh: &Shell) -> Result<()> {
    let _warnings_are_errors = sh.push_env("RUSTDOCFLAGS", "-D warnings");
    Ok(cmd!(sh, "cargo doc --workspace --no-deps").run()?)
}

fn tests(sh: &Shell) -> Result<()> {
    cmd!(sh, "cargo test --workspace").run()?;
    // Of the whole workspace, so that what these depend on has the features that it was built with.
    // What misuse does without debug assertions: all but the count is as it was built.
    let count = "profile.dev.package.pinfold-refcount";
    let bare =
        [format!("{count}.debug-assertions=false"), format!("{count}.overflow-checks=false")];
    let [assertions, overflows] = &bare;
    cmd!(sh, "cargo test --workspace --test reference --config {assertions} --config {overflows}")
        .run()?;
    // A build of its own: pauses in it, and mutants that can be switched on.
    cmd!(sh, "cargo test --workspace --features pinfold/mutants --test mutants --test objections")
        .run()?;
    Ok(())
}
