//! `pinfold crash`: what a crash may leave of files that are written through the cache.
//!
//! Belongs here: the options, the bar, the table. The runs are `pinfold_testing::crash`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};
#[cfg(feature = "mutants")]
use pinfold::mutants::Named;
use pinfold_testing::crash::{
    CrashFailure, CrashOptions, DiskFault, KillOptions, child, run as run_crashes, run_kills,
};
use serde_json::json;

use crate::publish;

pub const HELP: &str = "\
For each seed, a small cache writes one or two files, by one thread or up to three: writes, appends,
cuts, syncs, reads, guards, invalidations, evictions; some writes and syncs fail. The files are in
memory, and record what is done to them. For each first part of that record, the disk may have any
of many states: what was not synced is there, or not, or in part, in any order, by sectors of 512
bytes. Each state must have all that a sync had made durable, and nothing that was never written.
docs/durability.md says what is covered, and what is not.

The exit code is 0 if every state was one that may be, and 1 otherwise. Then the program prints the
seed, the state and the sector, and the command that shows it again.

  pinfold crash                            # a few minutes at most
  pinfold crash --seconds 60               # for a minute
  pinfold crash --seed 17 --seeds 1        # one seed again
  pinfold crash --fault sync-lies          # a disk that lies is found out: exit code 1

--kill starts so many processes instead, one after the other on each CPU, that write to real files
in the same ways. Each is killed at a moment of its own: by SIGKILL, often in the middle of a call.
What the kernel was given stays, so its files are checked as after a crash.

  pinfold crash --kill 10000               # some minutes
  pinfold crash --kill 1 --seed 17         # one seed again";

/// `pinfold crash ...`
#[derive(Debug, Args)]
pub struct CrashArgs {
    /// How many seeds; 3000 by default, or as many as --seconds has time for
    #[arg(long, value_name = "N", conflicts_with = "kill")]
    seeds: Option<u64>,

    /// The first seed; the others follow it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// End after so long
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    seconds: Option<f64>,

    /// Kill so many processes that write to real files
    #[arg(long, value_name = "N", conflicts_with = "fault")]
    kill: Option<u64>,

    /// Where --kill makes a folder for its files, on a disk; the current folder by default
    #[arg(long, value_name = "DIR", requires = "kill", default_value = ".")]
    dir: PathBuf,

    /// Be a process that is killed, with its files in this folder
    #[arg(long, value_name = "DIR", hide = true)]
    child: Option<PathBuf>,

    /// Let the disk do this, to see that it is noticed
    #[arg(long, value_enum)]
    fault: Option<FaultName>,

    /// Turn this mutant on, to see that it is noticed
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "NAME", value_parser = crate::stress::mutant)]
    mutant: Option<Named>,

    /// Write the figures as JSON to FILE; to standard output if FILE is - (the table then goes to
    /// standard error)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const SEEDS: u64 = 3000;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FaultName {
    /// One sync of sixteen does nothing, and says that it has succeeded
    SyncLies,
    /// One write of sixteen does nothing, and says that it has succeeded
    WriteLost,
    /// One write of sixteen writes a first part, and says that it has succeeded
    WriteTorn,
    /// One write of sixteen goes to the sector after
    WriteMisplaced,
}

impl From<FaultName> for DiskFault {
    fn from(name: FaultName) -> DiskFault {
        match name {
            FaultName::SyncLies => DiskFault::SyncLies,
            FaultName::WriteLost => DiskFault::WriteLost,
            FaultName::WriteTorn => DiskFault::WriteTorn,
            FaultName::WriteMisplaced => DiskFault::WriteMisplaced,
        }
    }
}

/// Runs the seeds, or the kills; an error is the first state that may not be.
pub fn run(args: &CrashArgs) -> Result<()> {
    publish::check(args.json.as_deref())?;
    let options = args.options()?;
    #[cfg(feature = "mutants")]
    if args.mutant.is_some() && args.kill.is_none() {
        Named::switch_on(args.mutant);
    }
    if let Some(dir) = &args.child {
        child(args.seed, dir);
        bail!("a process that was to be killed has ended");
    }
    if args.kill.is_some() { run_kill(args, &options) } else { run_seeds(args, &options) }
}

fn run_seeds(args: &CrashArgs, options: &CrashOptions) -> Result<()> {
    let (bar, since) = (bar(args, options, "seeds"), Instant::now());
    let result = run_crashes(options, |report| {
        let rate = per_second(report.states, since.elapsed()) / 1e3;
        bar.set_message(format!("{} states, {rate:.0} thousand/s", report.states));
        bar.set_position(args.position(report.seeds, since));
    });
    bar.finish_and_clear();
    let report = result.map_err(|failure| args.failed(&failure))?;
    let rate = per_second(report.states, since.elapsed());
    let rows = [
        ("seeds", report.seeds),
        ("operations", report.operations),
        ("writes, syncs and changes of the length", report.steps),
        ("states after a crash, all right", report.states),
        #[expect(clippy::cast_sign_loss, reason = "a rate is not negative")]
        ("states a second", rate as u64),
    ];
    let json = json!({
        "bench": "crash",
        "version": env!("CARGO_PKG_VERSION"),
        "params": { "seed": args.seed },
        "seeds": report.seeds,
        "operations": report.operations,
        "steps": report.steps,
        "states": report.states,
        "seconds": since.elapsed().as_secs_f64(),
        "states_per_second": rate,
    });
    publish::publish(args.json.as_deref(), &table(rows), &json)
}

fn run_kill(args: &CrashArgs, options: &CrashOptions) -> Result<()> {
    let dir = tempfile::Builder::new().prefix("pinfold-kill-").tempdir_in(&args.dir);
    let dir = dir.with_context(|| format!("cannot make a folder in {}", args.dir.display()))?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let kills = KillOptions {
        seed: options.seed,
        kills: options.seeds,
        time: options.time,
        dir: dir.path().to_owned(),
        jobs: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let start = |seed: u64, dir: &Path| {
        let mut command = Command::new(&program);
        command.args(["crash", "--seed", &seed.to_string(), "--child"]).arg(dir);
        #[cfg(feature = "mutants")]
        if let Some(mutant) = args.mutant {
            command.args(["--mutant", &mutant.name()]);
        }
        command
    };
    let (bar, since) = (bar(args, options, "kills"), Instant::now());
    let result = run_kills(&kills, start, |report| {
        let rate = per_second(report.kills, since.elapsed());
        bar.set_message(format!("{} syncs, {rate:.0} kills/s", report.syncs));
        bar.set_position(args.position(report.kills, since));
    });
    bar.finish_and_clear();
    let report = result.map_err(|failure| args.failed(&failure))?;
    let rows = [
        ("processes killed, whose files were all right", report.kills),
        ("calls that had returned", report.calls),
        ("syncs among them", report.syncs),
        ("seconds", since.elapsed().as_secs()),
    ];
    let json = json!({
        "bench": "crash-kill",
        "version": env!("CARGO_PKG_VERSION"),
        "params": { "seed": args.seed, "dir": args.dir },
        "kills": report.kills,
        "calls": report.calls,
        "syncs": report.syncs,
        "seconds": since.elapsed().as_secs_f64(),
    });
    publish::publish(args.json.as_deref(), &table(rows), &json)
}

impl CrashArgs {
    fn options(&self) -> Result<CrashOptions> {
        let time = match self.seconds {
            None => None,
            Some(seconds) => {
                ensure!(
                    seconds > 0.0 && seconds <= 1e6,
                    "--seconds {seconds}: must be above 0 and at most 1000000"
                );
                Some(Duration::from_secs_f64(seconds))
            }
        };
        let most = if time.is_some() { u64::MAX } else { SEEDS };
        let seeds = self.kill.or(self.seeds).unwrap_or(most);
        let name = if self.kill.is_some() { "kill" } else { "seeds" };
        ensure!(seeds > 0, "--{name} 0: must be at least 1");
        self.seed.checked_add(seeds.min(1 << 40)).context("--seed: too large a number")?;
        Ok(CrashOptions { seed: self.seed, seeds, time, fault: self.fault.map(Into::into) })
    }

    /// Of the bar: over the time, if there is nothing else to end the run.
    fn position(&self, done: u64, since: Instant) -> u64 {
        if self.is_by_time() { since.elapsed().as_millis() as u64 } else { done }
    }

    fn is_by_time(&self) -> bool {
        self.seeds.or(self.kill).is_none() && self.seconds.is_some()
    }

    /// With the command that runs a seed alone.
    fn failed(&self, failure: &CrashFailure) -> anyhow::Error {
        let count = if self.kill.is_some() { "--kill" } else { "--seeds" };
        let mut command = format!("pinfold crash --seed {} {count} 1", failure.seed);
        if let Some(fault) = self.fault.and_then(|fault| fault.to_possible_value()) {
            command = format!("{command} --fault {}", fault.get_name());
        }
        #[cfg(feature = "mutants")]
        if let Some(mutant) = self.mutant {
            command = format!("{command} --mutant {}", mutant.name());
        }
        anyhow!("{failure}\nTo see it again: {command}")
    }
}

/// On a terminal, nothing in a pipe.
fn bar(args: &CrashArgs, options: &CrashOptions, unit: &str) -> ProgressBar {
    let (length, unit) = match options.time {
        Some(time) if args.is_by_time() => (time.as_millis() as u64, "ms"),
        _ => (options.seeds, unit),
    };
    let template = format!("{{bar:40}} {{human_pos}}/{{human_len}} {unit}, {{msg}}");
    let style = ProgressStyle::with_template(&template).expect("the template is well formed");
    ProgressBar::new(length).with_style(style)
}

fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64().max(0.001)
}

fn table<const ROWS: usize>(rows: [(&str, u64); ROWS]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    for (name, number) in rows {
        let number = Cell::new(number).set_alignment(CellAlignment::Right);
        table.add_row([Cell::new(name), number]);
    }
    table.to_string()
}
