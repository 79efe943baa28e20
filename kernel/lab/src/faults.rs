//! `lab faults` runs the workloads of `kernel/guest/faults.sh` on kernels that differ in what a
//! page fault does with its lock while it waits, and compares what they counted: *plain* retries
//! under `mmap_lock`, *drop* under the VMA's lock, and *hold* keeps the VMA's lock.
//!
//! Each workload does a given amount of work. The guest's clock counts instructions, and the disks
//! are slow by that clock, so that there is something to wait for, and so that it does not matter
//! how busy the host is.

mod boot;
mod counts;
mod mutants;
mod table;
mod workloads;

use crate::chosen::chosen;
use crate::kernels::{Config, Tree};
use crate::overlap::Building;
use crate::paths::Paths;
use crate::{build, kept, prepare, smoke};
use anyhow::{Context, Result, bail};
use boot::run;
pub(crate) use boot::selftest_source;
pub(crate) use counts::CASES;
use counts::Counts;
pub(crate) use mutants::mutants;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;
use workloads::{SELFTEST, WORKLOADS};

/// How often each kernel runs the workloads.
const RUNS: u32 = 3;

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// How often each kernel runs the workloads. The kernels take turns.
    #[arg(long, default_value_t = RUNS, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Only these workloads; with `--mutants`, only these mutants.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    only: Vec<String>,
    /// Write the figures to this file: `rows` of `tree`, `case`, `metric`, `samples` and more.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail if a limit is missed.
    #[arg(long)]
    strict: bool,
    /// Run them once on the patched kernel with KASAN, lockdep and `DEBUG_VM`. Nothing is compared.
    #[arg(long, conflicts_with_all = ["json", "strict"])]
    debug: bool,
    /// Run the selftest and a workload on each mutant of *drop* in `kernel/mutants/faults`. One
    /// of them must notice it.
    #[arg(long, conflicts_with_all = ["json", "strict", "debug"])]
    mutants: bool,
}

impl Plan {
    fn workloads(&self) -> Result<Vec<&'static str>> {
        chosen("workload", WORKLOADS.to_vec(), |name| *name, &self.only)
    }

    /// Whether the figures are all that there are.
    fn is_whole(&self) -> bool {
        self.only.is_empty() && self.runs >= RUNS
    }
}

/// The kernels that are compared, as they are called in the tables.
const KERNELS: [(&str, Tree); 3] =
    [("plain", Tree::Counted), ("drop", Tree::Drop), ("hold", Tree::Hold)];

/// The name under which the figures are kept, and the kernels that they are of.
pub(crate) const FIGURES: &str = "faults";
pub(crate) const KEPT_OF: &[(Tree, Config)] =
    &[(Tree::Counted, Config::Faults), (Tree::Drop, Config::Faults), (Tree::Hold, Config::Faults)];

/// What is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) runs: u32,
    pub(crate) workloads: usize,
    /// In Markdown.
    pub(crate) table: String,
    /// Each limit, and whether it is met.
    pub(crate) verdicts: Vec<(String, bool)>,
}

/// Runs workloads once on one kernel.
fn alone(paths: &Paths, tree: Tree, config: Config, workloads: &[&str]) -> Result<Counts> {
    prepare::prepare_tree(paths, tree)?;
    let image = build::build(paths, tree, config)?;
    let counts = run(paths, tree.name(), &image, &boot::files(paths, tree)?, workloads, config)?;
    if workloads.contains(&SELFTEST) {
        all_pass(tree, &counts)?;
    }
    Ok(counts)
}

/// Begins to build the kernel that [`test()`] needs.
///
/// # Errors
/// If the source cannot be prepared.
pub(crate) fn begin_build(paths: &Paths) -> Result<Building> {
    prepare::prepare_tree(paths, Tree::Drop)?;
    let paths = paths.clone();
    Ok(Building::begin(move || build::build(&paths, Tree::Drop, Config::Faults).map(drop)))
}

/// What `lab test` has of it: the `KUnit` tests and the selftest on *drop*.
///
/// # Errors
/// If the kernel does not build or boot, there is a splat, or a case fails.
pub(crate) fn test(paths: &Paths) -> Result<()> {
    prepare::prepare_tree(paths, Tree::Drop)?;
    if build::tests(paths, Tree::Drop).is_empty() {
        bail!("drop: the patched source lacks KUnit tests");
    }
    build::build(paths, Tree::Drop, Config::Faults)?;
    smoke::smoke(paths, Tree::Drop, Config::Faults)?;
    alone(paths, Tree::Drop, Config::Faults, &[SELFTEST]).map(drop)
}

/// # Errors
/// If a case of the selftest did not pass.
fn all_pass(tree: Tree, counts: &Counts) -> Result<()> {
    let failed = counts.failed_cases();
    if !failed.is_empty() {
        bail!("{}: fault_retry: these cases did not pass: {}", tree.name(), failed.join(", "));
    }
    println!("{}: fault_retry: {} cases pass", tree.name(), CASES.len());
    Ok(())
}

/// Runs all workloads on the patched debug kernel.
///
/// # Errors
/// If it does not build or boot, there is a splat, a workload fails, or a case of the selftest did
/// not pass.
pub(crate) fn debug(paths: &Paths) -> Result<()> {
    alone(paths, Tree::Series, Config::Debug, &WORKLOADS).map(drop)
}

/// `lab faults`.
///
/// # Errors
/// If a kernel does not build or boot, there is a splat in its log, or a workload reads wrong
/// data. If the plan is strict, also if a figure is missed.
pub(crate) fn faults(paths: &Paths, plan: &Plan) -> Result<()> {
    if plan.mutants {
        return mutants(paths, &plan.only);
    }
    let workloads = plan.workloads()?;
    if plan.debug {
        let counts = alone(paths, Tree::Series, Config::Debug, &workloads)?;
        println!("{}", table::table(&[("patched", &[counts])]));
        return Ok(());
    }
    let mut images = Vec::new();
    for (_, tree) in KERNELS {
        prepare::prepare_tree(paths, tree)?;
        images.push(build::build(paths, tree, Config::Faults)?);
    }
    let files = boot::files(paths, Tree::Drop)?;
    let mut taken: [Vec<Counts>; 3] = Default::default();
    for _ in 0..plan.runs {
        for ((name, _), (image, taken)) in KERNELS.iter().zip(images.iter().zip(&mut taken)) {
            taken.push(run(paths, name, image, &files, &workloads, Config::Faults)?);
        }
    }
    let [plain, drop, hold] = &taken;
    let named = [("plain", plain.as_slice()), ("drop", drop), ("hold", hold)];
    println!("{}", table::table(&named));
    if let Some(file) = &plan.json {
        let named: Vec<_> = KERNELS.iter().map(|(name, _)| *name).zip(&taken).collect();
        fs::write(file, serde_json::to_string_pretty(&table::json(&named, plan.runs))? + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let verdicts = counts::verdicts([plain, drop, hold]);
    if plan.is_whole() {
        let figures = Figures {
            runs: plan.runs,
            workloads: workloads.len(),
            table: table::markdown(&named),
            verdicts: verdicts.clone(),
        };
        kept::keep_of(paths, KEPT_OF, FIGURES, figures)?;
    }
    let mut missed = 0;
    for (what, met) in &verdicts {
        println!("{what}: {}", if *met { "met" } else { "MISSED" });
        missed += usize::from(!met);
    }
    if plan.strict && missed > 0 {
        bail!("{missed} of {} limits are not met", verdicts.len());
    }
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
    fn a_part_of_the_figures_is_not_kept_for_the_report() {
        let plan = |args: &[&str]| Line::try_parse_from([&["faults"], args].concat()).unwrap().plan;
        assert!(plan(&[]).is_whole() && plan(&["--runs", "5"]).is_whole());
        assert!(!plan(&["--runs", "2"]).is_whole());
        assert!(!plan(&["--only", "swap"]).is_whole());
    }

    #[test]
    fn a_debug_kernel_on_which_a_case_fails_is_found() {
        let counts = |text: &str| Counts::parse(text, &WORKLOADS).unwrap();
        all_pass(Tree::Series, &counts(&counts::tests::drop())).unwrap();
        let failed = counts::tests::drop().replace("passed-6 1", "passed-6 0");
        let error = all_pass(Tree::Series, &counts(&failed)).unwrap_err().to_string();
        assert!(error.contains("series") && error.contains("passed-6"));
    }

    #[test]
    fn workloads_are_chosen_by_name() {
        let plan = |args: &[&str]| Line::try_parse_from([&["faults"], args].concat()).unwrap().plan;
        assert_eq!(plan(&[]).workloads().unwrap(), WORKLOADS);
        assert_eq!(
            plan(&["--only", "swap,giant-fork"]).workloads().unwrap(),
            ["giant-fork", "swap"]
        );
        let error = plan(&["--only", "swop"]).workloads().unwrap_err().to_string();
        assert!(error.contains("`swop`") && error.contains("thrash-data"), "{error}");
    }
}
