//! `pinfold crash`: what a crash may leave of files that are written through the cache.
//!
//! Belongs here: the options, the bar, the table. The runs are `pinfold_testing::crash`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};
#[cfg(feature = "mutants")]
use pinfold::mutants::Named;
use pinfold_testing::crash::{
    CrashFailure, CrashOptions, CrashReport, DiskFault, run as run_crashes,
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
  pinfold crash --fault sync-lies          # a disk that lies is found out: exit code 1";

/// `pinfold crash ...`
#[derive(Debug, Args)]
pub struct CrashArgs {
    /// How many seeds; 3000 by default, or as many as --seconds has time for
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,

    /// The first seed; the others follow it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// End after so long
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    seconds: Option<f64>,

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

/// Runs the seeds; an error is the first state that may not be.
pub fn run(args: &CrashArgs) -> Result<()> {
    publish::check(args.json.as_deref())?;
    let options = args.options()?;
    #[cfg(feature = "mutants")]
    if args.mutant.is_some() {
        Named::switch_on(args.mutant);
    }
    let (bar, since) = (bar(args, &options), Instant::now());
    let result = run_crashes(&options, |report| {
        let rate = report.states as f64 / since.elapsed().as_secs_f64().max(0.001) / 1e3;
        bar.set_message(format!("{} states, {rate:.0} thousand/s", report.states));
        let by_time = args.seeds.is_none() && options.time.is_some();
        bar.set_position(if by_time { since.elapsed().as_millis() as u64 } else { report.seeds });
    });
    bar.finish_and_clear();
    match result {
        Ok(report) => {
            let json = figures(args, report, since.elapsed());
            publish::publish(args.json.as_deref(), &table(report, since.elapsed()), &json)
        }
        Err(failure) => bail!("{failure}\nTo see it again: {}", args.again(&failure)),
    }
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
        let seeds = self.seeds.unwrap_or(if time.is_some() { u64::MAX } else { SEEDS });
        ensure!(seeds > 0, "--seeds 0: must be at least 1");
        self.seed.checked_add(seeds.min(1 << 40)).context("--seed: too large a number")?;
        Ok(CrashOptions { seed: self.seed, seeds, time, fault: self.fault.map(Into::into) })
    }

    /// The command that runs a seed alone.
    fn again(&self, failure: &CrashFailure) -> String {
        let mut command = format!("pinfold crash --seed {} --seeds 1", failure.seed);
        if let Some(fault) = self.fault.and_then(|fault| fault.to_possible_value()) {
            command = format!("{command} --fault {}", fault.get_name());
        }
        #[cfg(feature = "mutants")]
        if let Some(mutant) = self.mutant {
            command = format!("{command} --mutant {}", mutant.name());
        }
        command
    }
}

/// On a terminal, nothing in a pipe: over the seeds, or over the time.
fn bar(args: &CrashArgs, options: &CrashOptions) -> ProgressBar {
    let (length, unit) = match (args.seeds, options.time) {
        (None, Some(time)) => (time.as_millis() as u64, "ms"),
        _ => (options.seeds, "seeds"),
    };
    let template = format!("{{bar:40}} {{human_pos}}/{{human_len}} {unit}, {{msg}}");
    let style = ProgressStyle::with_template(&template).expect("the template is well formed");
    ProgressBar::new(length).with_style(style)
}

fn rate(report: CrashReport, elapsed: Duration) -> f64 {
    report.states as f64 / elapsed.as_secs_f64().max(0.001)
}

fn table(report: CrashReport, elapsed: Duration) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    let rows = [
        ("seeds", report.seeds),
        ("operations", report.operations),
        ("writes, syncs and changes of the length", report.steps),
        ("states after a crash, all right", report.states),
        #[expect(clippy::cast_sign_loss, reason = "a rate is not negative")]
        ("states a second", rate(report, elapsed) as u64),
    ];
    for (name, number) in rows {
        let number = Cell::new(number).set_alignment(CellAlignment::Right);
        table.add_row([Cell::new(name), number]);
    }
    table.to_string()
}

fn figures(args: &CrashArgs, report: CrashReport, elapsed: Duration) -> serde_json::Value {
    json!({
        "bench": "crash",
        "version": env!("CARGO_PKG_VERSION"),
        "params": { "seed": args.seed },
        "seeds": report.seeds,
        "operations": report.operations,
        "steps": report.steps,
        "states": report.states,
        "seconds": elapsed.as_secs_f64(),
        "states_per_second": rate(report, elapsed),
    })
}
