//! `lab cores` measures the count on this machine's own cores, without booting: a built
//! kernel's own objects run in a program, plain and patched in turn (`kernel/cores`).

mod code;
mod cpus;
mod list;
mod per_cpu;
mod program;
mod runs;
mod table;

use crate::chosen::chosen;
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::{build, kept, prepare, proc};
use anyhow::{Context, Result, bail};
use cpus::Cpus;
use list::{Case, List};
use program::Program;
use runs::{BRIEF_MS, How, KINDS};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
pub(crate) use table::{Figures, verdicts};
use table::{Machine, Row, Stub, Unit};

/// The name under which the figures are kept.
pub(crate) const CORES: &str = "cores";
/// Each layout in both orders of the trees, twice.
const SAMPLES: u16 = 16;
const SAMPLE_MS: u32 = 100;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Write the figures to this file: `rows` of `tree`, `case`, `threads`, `median` and more.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The numbers of threads (default: powers of two up to the number of CPUs, and that).
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    threads: Vec<usize>,
    /// Only these cases, with commas between them, or in several options.
    #[arg(long = "case", value_delimiter = ',', value_name = "NAME,...")]
    cases: Vec<String>,
    /// How many samples of each figure. Plain and patched take turns, and so do four places of
    /// the code in memory.
    #[arg(long, default_value_t = SAMPLES, value_parser = clap::value_parser!(u16).range(1..))]
    samples: u16,
    /// How long a sample takes.
    #[arg(long, default_value_t = SAMPLE_MS, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    ms: u32,
    /// Fail if a limit is missed, or its figure was not measured.
    #[arg(long)]
    strict: bool,
}

impl Plan {
    /// Whether the samples are as many and as long as a figure needs that others rely on.
    fn is_thorough(&self) -> bool {
        self.samples >= SAMPLES && self.ms >= SAMPLE_MS
    }

    /// Whether the figures are all that there are.
    fn is_whole(&self) -> bool {
        self.cases.is_empty() && self.threads.is_empty() && self.is_thorough()
    }
}

/// The programs of both trees, checked: their code is the kernels', what is stubbed is named,
/// and their checks notice mutants.
fn programs(paths: &Paths, cpus: &Cpus) -> Result<([Program; 2], List)> {
    let programs = [program::make(paths, Tree::Plain)?, program::make(paths, Tree::Series)?];
    let mut lists = Vec::new();
    for program in &programs {
        let list = list::parse(&proc::output(Command::new(program.binary()).arg("list"))?)?;
        list::all_are_named(&program.stubs, &list.stubs)?;
        println!("{}", code::check(program, &list.features)?);
        let seen = runs::prove(program, &list.cases, &cpus.order)?;
        println!("{}: all {seen} mutants are noticed", program.tree.name());
        lists.push(list);
    }
    // The two are of one source.
    Ok((programs, lists.swap_remove(0)))
}

/// The numbers of threads: powers of two, and one for each CPU.
fn default_threads(cpus: usize) -> Vec<usize> {
    let mut all: Vec<_> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < cpus).collect();
    all.push(cpus);
    all
}

/// The name of a case with processes in the rows.
fn row_name(case: &str, kind: &str) -> String {
    if kind == "processes" { format!("{case}-processes") } else { case.to_string() }
}

/// Measures a case, plain and patched in turn.
fn measure(programs: &[Program; 2], case: &Case, how: How, samples: u16) -> Result<Vec<Row>> {
    let mut taken = [Vec::new(), Vec::new()];
    for turn in 0..usize::from(samples) {
        // Neither tree is always the first.
        for which in [turn % 2, 1 - turn % 2] {
            let program = &programs[which];
            let binary = &program.binaries[table::layout(turn)];
            let once = || runs::sample(&runs::run(binary, how, None)?);
            taken[which].push(runs::undisturbed(once).with_context(|| {
                let tree = program.tree.name();
                format!("{} with {} {}, {tree}", how.case, how.workers, how.kind)
            })?);
        }
    }
    let mut rows = Vec::new();
    for (program, samples) in programs.iter().zip(&taken) {
        let tree = program.tree.name();
        let name = row_name(&case.name, how.kind);
        rows.push(Row::new(tree, &name, how.workers, case.unit, samples, |s| s.figure));
        if let Some(second) = &case.second {
            let name = row_name(second, how.kind);
            let row = Row::new(tree, &name, how.workers, Unit::OpsPerS, samples, |s| s.sections);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn machine(cpus: &Cpus) -> Machine {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = info
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown CPU", |(_, name)| name.trim());
    Machine { cpu: cpu.to_string(), cpus: cpus.order.len(), cores: cpus.cores }
}

/// Builds both kernels, makes the programs of their objects, measures, prints the tables, and
/// keeps the figures.
///
/// # Errors
/// If a kernel or a program does not build; the code that is measured is not the kernel's; a
/// mutant is not noticed; or a count or a lookup is wrong. If the plan is strict, also if a
/// figure is missed, or was not measured.
pub(crate) fn cores(paths: &Paths, plan: &Plan) -> Result<()> {
    if plan.strict && !plan.is_thorough() {
        bail!("--strict needs {SAMPLES} samples of {SAMPLE_MS} ms, or more");
    }
    prepare::prepare(paths)?;
    for tree in [Tree::Plain, Tree::Series] {
        build::build(paths, tree, Config::Fast)?;
    }
    let cpus = cpus::cpus()?;
    let (programs, list) = programs(paths, &cpus)?;
    // Fewer than the CPUs if a control group has a share of them only.
    let parallel = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads =
        if plan.threads.is_empty() { default_threads(parallel) } else { plan.threads.clone() };
    let mut rows = Vec::new();
    for case in chosen("case", list.cases, |case| &case.name, &plan.cases)? {
        for kind in KINDS {
            for &workers in threads.iter().filter(|n| **n >= case.least_workers) {
                let how = How { case: &case.name, workers, ms: plan.ms, kind, cpus: &cpus.order };
                rows.extend(measure(&programs, &case, how, plan.samples)?);
            }
        }
    }
    let mut stubs = list.stubs;
    stubs.extend(
        programs[1]
            .library
            .iter()
            .map(|name| Stub { name: name.clone(), what: "the C library's".into() }),
    );
    let traps = programs[1].traps.clone();
    let features = list.features.into_iter().map(|f| f.what).collect();
    let figures = Figures { machine: machine(&cpus), rows, own: list.own, stubs, features, traps };
    show(&programs, &figures);
    if let Some(file) = &plan.json {
        fs::write(file, serde_json::to_string_pretty(&figures)? + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if plan.is_whole() {
        kept::keep(paths, CORES, &figures)?;
    }
    judge(&table::verdicts(&figures), plan.strict)
}

fn show(programs: &[Program; 2], figures: &Figures) {
    println!("\n{}; of the kernel's own objects:", figures.machine.shown());
    for program in programs {
        println!("  {}: {}", program.tree.name(), program.objects.join(", "));
    }
    println!("\n{}\n{}", figures.not_the_kernels(), figures.tables());
}

/// Prints the verdicts.
fn judge(verdicts: &[(String, bool)], strict: bool) -> Result<()> {
    for (text, _) in verdicts {
        println!("{text}");
    }
    let missed = verdicts.iter().filter(|v| !v.1).count();
    if strict && missed > 0 {
        bail!("{missed} of {} limits are not met", verdicts.len());
    }
    Ok(())
}

/// Runs everything once, briefly, on kernels that are built: the code, the mutants, and each case.
/// The figures of so short runs mean nothing.
///
/// # Errors
/// As `cores`.
pub(crate) fn smoke(paths: &Paths) -> Result<()> {
    let cpus = cpus::cpus()?;
    let (programs, list) = programs(paths, &cpus)?;
    let mut short = 0;
    for program in &programs {
        for case in &list.cases {
            for kind in KINDS {
                let how =
                    How { case: &case.name, workers: 2, ms: BRIEF_MS, kind, cpus: &cpus.order };
                runs::sample(&runs::run(program.binary(), how, None)?).with_context(|| {
                    format!("{}, {} with 2 {kind}", program.tree.name(), case.name)
                })?;
                short += 1;
            }
        }
    }
    println!("cores: {short} short runs, and no count was wrong");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        plan: Plan,
    }

    #[test]
    fn all_cpus_are_used() {
        assert_eq!(default_threads(1), [1]);
        assert_eq!(default_threads(2), [1, 2]);
        assert_eq!(default_threads(12), [1, 2, 4, 8, 12]);
    }

    #[test]
    fn a_missed_figure_fails_only_if_it_is_asked_for() {
        let missed = [("a: MISSED".to_string(), false), ("b: met".to_string(), true)];
        judge(&missed, false).unwrap();
        let error = judge(&missed, true).unwrap_err().to_string();
        assert_eq!(error, "1 of 2 limits are not met");
        judge(&missed[1..], true).unwrap();
    }

    #[test]
    fn a_part_of_the_figures_or_brief_ones_are_not_kept_for_the_report() {
        let plan = |args: &[&str]| Line::try_parse_from([&["cores"], args].concat()).unwrap().plan;
        assert!(plan(&[]).is_whole());
        assert!(plan(&["--samples", "32", "--strict"]).is_whole());
        for part in [["--case", "a"], ["--threads", "2"], ["--samples", "8"], ["--ms", "20"]] {
            assert!(!plan(&part).is_whole(), "{part:?}");
        }
        assert!(plan(&["--threads", "2"]).is_thorough());
        assert!(!plan(&["--samples", "15"]).is_thorough());
        assert!(!plan(&["--ms", "99"]).is_thorough());
    }
}
