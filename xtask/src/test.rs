//! `cargo xtask test`: the parts that it has, each of which can be run alone.
//!
//! What runs for long by design is in the parts that only `--full` runs. Dependencies are built
//! once for all parts that build them with the same features: so the steps name the whole workspace
//! where one crate would do.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::packages::Need;
use crate::{aarch64, modules, mutants, probes, programs};

/// Run everything that has to pass: format, modules, lints, documentation, tests, models,
/// tracepoints
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct TestArgs {
    /// Also run what takes hours
    #[arg(long)]
    full: bool,
    /// Run only this part, one of those below; may be given more than once
    #[arg(long = "part", value_name = "NAME", conflicts_with = "full", hide_possible_values = true,
        value_parser = PossibleValuesParser::new(PARTS.iter().map(|part| part.name)))]
    parts: Vec<String>,
}

/// A part of `cargo xtask test`.
struct Part {
    name: &'static str,
    /// What it runs.
    what: &'static str,
    /// Whether only `--full` runs it.
    long: bool,
    needs: &'static [Need],
    run: fn(&Shell) -> Result<()>,
}

/// Quick and strict parts first.
const PARTS: [Part; 14] = [
    Part {
        name: "lints",
        what: "format, floors of the modules, that each mutant is caught, clippy with all features and with none",
        long: false,
        needs: &[Need::Peers],
        run: lints,
    },
    Part {
        name: "documentation",
        what: "the reference, with warnings as errors",
        long: false,
        needs: &[],
        run: documentation,
    },
    Part {
        name: "tests",
        what: "all unit, integration and documentation tests, and one mutant a protocol",
        long: false,
        needs: &[],
        run: tests,
    },
    Part {
        name: "models",
        what: "all models at their small size, by loom and by shuttle",
        long: false,
        needs: &[],
        run: |sh| models(sh, &[]),
    },
    Part {
        name: "tracepoints",
        what: "each tracepoint of the count, in a debugger",
        long: false,
        needs: &[Need::Probes],
        run: probes::run,
    },
    Part {
        name: "mutants",
        what: "every mutant that the stress, the simulation or the server's fuzzer can see",
        long: true,
        needs: &[],
        run: every_mutant,
    },
    Part {
        name: "without-maps",
        what: "the cache's tests in a build without the feature `map`",
        long: true,
        needs: &[],
        run: without_maps,
    },
    Part {
        name: "deep-models",
        what: "the count's search at its large size, shuttle with ten times as many schedules, loom \
               with three preemptions",
        long: true,
        needs: &[],
        run: deep_models,
    },
    Part {
        name: "stress",
        what: "the stress, ten minutes of each schedule; in one of them another process rewrites \
               the files; crashes, and ten thousand kills",
        long: true,
        needs: &[],
        run: stress,
    },
    Part {
        name: "programs",
        what: "fsx, fio, stress-ng, sqlite3 and git on a file system whose data goes through the \
               cache",
        long: true,
        needs: &[Need::Programs],
        run: |sh| programs::run(sh, &programs::ProgramsArgs::default()),
    },
    Part {
        name: "server-fuzz",
        what: "hostile clients of `pinfold serve`: 20 minutes of the worst kind, five of commands \
               and of locks",
        long: true,
        needs: &[],
        run: server_fuzz,
    },
    Part {
        name: "peers",
        what: "the other caches that `bench get` compares with",
        long: true,
        needs: &[Need::Peers],
        run: peers,
    },
    Part {
        name: "aarch64",
        what: "the cache's and the count's tests under an emulator",
        long: true,
        needs: &[Need::Aarch64],
        run: aarch64::run,
    },
    Part {
        name: "figures",
        what: "what prints figures that documents have, and compares nothing",
        long: true,
        needs: &[],
        run: figures,
    },
];

/// The parts, for `--help`.
fn after_help() -> String {
    let mut text = String::new();
    for (title, long) in [("Parts:", false), ("\nParts of --full alone:", true)] {
        text.push_str(title);
        text.push('\n');
        for part in PARTS.iter().filter(|part| part.long == long) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {:<14} {}", part.name, part.what);
        }
    }
    text
}

impl TestArgs {
    fn parts(&self) -> impl Iterator<Item = &'static Part> {
        let named = |part: &&Part| self.parts.iter().any(|name| name == part.name);
        let all = |part: &&Part| self.parts.is_empty() && (self.full || !part.long);
        PARTS.iter().filter(move |part| named(part) || all(part))
    }

    /// The packages of all its parts: they are installed before the first one begins.
    pub(crate) fn needs(&self) -> Vec<Need> {
        self.parts().flat_map(|part| part.needs).copied().collect()
    }
}

/// Runs the parts, and prints at its end what each of them ran and took.
///
/// # Errors
/// The first part that fails; the later ones are not run.
pub(crate) fn run(sh: &Shell, args: &TestArgs) -> Result<()> {
    let mut report = String::new();
    let mut ended = Ok(());
    for part in args.parts() {
        println!("cargo xtask test: {}: {}", part.name, part.what);
        let began = Instant::now();
        ended = (part.run)(sh).with_context(|| format!("{} failed", part.name));
        let how = if ended.is_ok() { "" } else { ", and failed" };
        let seconds = began.elapsed().as_secs();
        // Writing to a string does not fail.
        let _ = writeln!(report, "{:<14} {seconds:>6} s{how}: {}", part.name, part.what);
        if ended.is_err() {
            break;
        }
    }
    print!("{report}");
    if ended.is_ok() {
        println!("cargo xtask test: all passed");
    }
    ended
}

fn lints(sh: &Shell) -> Result<()> {
    cmd!(sh, "cargo fmt --all --check").run()?;
    modules::run(&sh.current_dir(), &modules::ModulesArgs::default())?;
    mutants::run(&sh.current_dir(), &mutants::MutantsArgs::default())?;
    // All code: what only features have, too, such as the mutants and the other caches.
    let features = "pinfold/mutants,pinfold-cli/mutants,pinfold-cli/peers,pinfold-refcount/usdt";
    cmd!(sh, "cargo clippy --workspace --features {features} --all-targets -- -D warnings")
        .run()?;
    // What programs link and what people run first have none of them. No test is linted without
    // the features: their code depends on none that is not there then.
    cmd!(sh, "cargo clippy -p pinfold-cli -p pinfold -p pinfold-refcount -- -D warnings").run()?;
    // A program with maps that serves nobody; the tests without maps are linted, too.
    let no = "--no-default-features";
    cmd!(sh, "cargo clippy -p pinfold {no} --features map -- -D warnings").run()?;
    Ok(cmd!(sh, "cargo clippy -p pinfold {no} --tests -- -D warnings").run()?)
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
    stress_mutants(sh, &[])
}

/// A build of its own: a cache of which nothing can be mapped.
fn without_maps(sh: &Shell) -> Result<()> {
    Ok(cmd!(sh, "cargo test -p pinfold --no-default-features --lib --test it").run()?)
}

/// Arguments that build the other caches, and the benchmark with them.
const WITH_PEERS: [&str; 6] =
    ["-p", "pinfold-peers", "-p", "pinfold-cli", "--features", "pinfold-cli/peers"];

/// Tests the other caches, and the benchmark with them. They take long to build, and nothing else
/// depends on them; `lints` compiles them.
fn peers(sh: &Shell) -> Result<()> {
    let tests = ["keeps_everything", "bench_get"];
    Ok(cmd!(sh, "cargo test {WITH_PEERS...} --lib --test cli -- {tests...}").run()?)
}

/// A build of its own: pauses in it, and mutants that can be switched on.
fn stress_mutants(sh: &Shell, arguments: &[&str]) -> Result<()> {
    cmd!(sh, "cargo test --workspace --features pinfold/mutants --test mutants -- {arguments...}")
        .run()?;
    Ok(())
}

fn every_mutant(sh: &Shell) -> Result<()> {
    stress_mutants(sh, &["--ignored", "--nocapture", "every_mutant"])?;
    // Those of what is evicted, which a simulation sees, and of the page server.
    for run in [["--lib", "the_mutants_are_caught"], ["--test", "serve_fuzz"]] {
        cmd!(sh, "cargo test -p pinfold-cli --features mutants {run...}").run()?;
    }
    Ok(())
}

/// The cache's protocols under loom, and whole caches under shuttle: builds of their own, in
/// folders of their own, with these variables. docs/models.md says what is in which.
fn models(sh: &Shell, deeper: &[(&str, &str)]) -> Result<()> {
    let _deeper: Vec<_> = deeper.iter().map(|(name, value)| sh.push_env(name, value)).collect();
    // What the caught mutants print is long, and means nothing.
    let _short = sh.push_env("RUST_BACKTRACE", "0");
    for (checker, profile, only) in
        [("loom", "models", &[][..]), ("shuttle", "test", &["models::"])]
    {
        let _checker = sh.push_env("RUSTFLAGS", format!("--cfg {checker}"));
        let folder = format!("target/{checker}");
        let what = ["-p", "pinfold", "--profile", profile, "--lib", "--target-dir", &folder];
        let format = "--message-format=json-render-diagnostics";
        let built = cmd!(sh, "cargo test {what...} --no-run {format}").read()?;
        // What a checker does is settled by its program and the variables. So the same program
        // finds the same, and is not run again once it has passed.
        let given = std::env::vars().filter(|(name, _)| name.starts_with("PINFOLD_"));
        let program = format!("{deeper:?} {:?} {}", given.collect::<Vec<_>>(), program(&built)?);
        let passed = format!("{folder}/passed");
        if sh.read_file(&passed).is_ok_and(|before| before == program) {
            println!("{checker}: this program has passed already; `rm {passed}` runs it again");
            continue;
        }
        cmd!(sh, "cargo test {what...} -- {only...}").run()?;
        sh.write_file(&passed, program)?;
    }
    Ok(())
}

/// What tells the program that cargo has built from others: where it is, its length, and when it was
/// written.
fn program(messages: &str) -> Result<String> {
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let path =
        built.filter_map(|message| Some(message["executable"].as_str()?.to_owned())).next_back();
    let path = path.context("cargo has built no program")?;
    let file = std::fs::metadata(&path).with_context(|| format!("cannot look at {path}"))?;
    Ok(format!("{path} {} {:?}", file.len(), file.modified()?))
}

fn deep_models(sh: &Shell) -> Result<()> {
    {
        let _deep = sh.push_env("PINFOLD_EXPLORE_DEEP", "1");
        cmd!(sh, "cargo test --workspace --test explore").run()?;
    }
    models(sh, &[("PINFOLD_LOOM_PREEMPTIONS", "3"), ("PINFOLD_SHUTTLE_RUNS", "10000")])
}

fn stress(sh: &Shell) -> Result<()> {
    // On a disk, so that files are read directly.
    sh.create_dir("target/tmp")?;
    for schedule in ["mixed", "moving", "resizing", "reopening", "mapping", "foreign"] {
        let run = ["stress", "--schedule", schedule, "--seconds", "600", "--dir", "target/tmp"];
        let budget: &[&str] = if schedule == "mapping" { &["--budget", "16M"] } else { &[] };
        cmd!(sh, "cargo run --release --features bench -- {run...} {budget...}").run()?;
    }
    cmd!(sh, "cargo run --release --features bench -- crash --seconds 600").run()?;
    let kill = ["crash", "--kill", "10000", "--dir", "target/tmp"];
    cmd!(sh, "cargo run --release --features bench -- {kill...}").run()?;
    Ok(())
}

fn server_fuzz(sh: &Shell) -> Result<()> {
    for (kind, seconds) in [("commands", "300"), ("locks", "300"), ("worst", "1200")] {
        let _kind = sh.push_env("PINFOLD_FUZZ_KIND", kind);
        let _seconds = sh.push_env("PINFOLD_FUZZ_SECONDS", seconds);
        cmd!(sh, "cargo test --release -p pinfold-cli --test serve_fuzz -- --nocapture").run()?;
    }
    Ok(())
}

fn figures(sh: &Shell) -> Result<()> {
    let figures = ["--ignored", "--nocapture", "--test-threads=1"];
    cmd!(sh, "cargo test --release -p pinfold --lib --test processes -- {figures...}").run()?;
    Ok(cmd!(sh, "cargo test --release -p pinfold-cli --lib -- {figures...}").run()?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        test: TestArgs,
    }

    fn names(arguments: &[&str]) -> Vec<&'static str> {
        let arguments = ["test"].iter().chain(arguments);
        Cli::try_parse_from(arguments).unwrap().test.parts().map(|part| part.name).collect()
    }

    #[test]
    fn parts_are_those_named_or_the_short_ones_or_all() {
        assert_eq!(names(&["--part", "aarch64", "--part", "lints"]), ["lints", "aarch64"]);
        assert_eq!(names(&["--full"]).len(), PARTS.len());
        assert_eq!(names(&[]), ["lints", "documentation", "tests", "models", "tracepoints"]);
    }

    #[test]
    fn a_program_is_the_last_that_cargo_names_and_another_once_it_was_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        let messages = format!(
            "{{\"executable\": null}}\n{{\"executable\": \"{path}\"}}\n{{\"success\": true}}\n"
        );
        let before = program(&messages).unwrap();
        assert_eq!(program(&messages).unwrap(), before);
        std::fs::write(file.path(), "longer").unwrap();
        assert_ne!(program(&messages).unwrap(), before);
        program("{}\n").unwrap_err();
    }

    #[test]
    fn a_part_that_is_not_there_is_refused_with_those_that_are() {
        let error = Cli::try_parse_from(["test", "--part", "tset"]).err().unwrap().to_string();
        assert!(error.contains("tset") && error.contains("server-fuzz"), "{error}");
    }
}
