//! `lab reads` shows that short reads without a reference return what ordinary reads may
//! return, while somebody truncates, punches holes, or writes (`kernel/guest/read_races.c`).
//!
//! The program has a table of what an ordinary read may return in each race, and the lab looks
//! that neither ordinary reads nor short ones have returned anything else, that each race has
//! happened, and that there were short reads in it.

mod boot;
mod mutants;
mod results;

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::{build, prepare};
use anyhow::{Context, Result, bail};
use boot::{HUGE, run};
use results::Results;
use std::fmt::Write as _;

/// In how many ways the program can be told to be wrong.
const WRONG: [&str; 3] = ["byte", "size", "early"];
const RIGHT: &str = "right";

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// How many seconds each race takes, with ordinary reads and with short ones.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..600))]
    seconds: u32,
    /// Run some races on kernels that are wrong (`kernel/mutants/reads`), which must be noticed.
    #[arg(long, conflicts_with = "seconds")]
    mutants: bool,
}

/// The races, after each kind of wrong steps was noticed.
fn script(seconds: u32) -> String {
    let mut text = format!("{HUGE}\n");
    for kind in WRONG {
        let _ = writeln!(text, "echo 'phase: {kind}'\nread_races -w {kind} 2 /mnt /dev/shm");
        let _ = writeln!(text, "read_races -w {kind} 2 /tmp/huge -- split");
    }
    let _ = writeln!(text, "echo 'phase: {RIGHT}'");
    let _ = writeln!(text, "read_races {seconds} /mnt /dev/shm; status=$?");
    let _ = write!(text, "read_races {seconds} /tmp/huge -- split && exit $status");
    text
}

/// Splits what the script printed: the kinds of wrong steps, and at last the right ones.
///
/// # Errors
/// If one of them is missing, or a line is not as it should be.
fn phases(output: &str) -> Result<Vec<(&str, Results)>> {
    let mut phases = Vec::new();
    for phase in output.split("phase: ").skip(1) {
        let (name, text) = phase.split_once('\n').context("a phase without results")?;
        let results = Results::parse(text).with_context(|| format!("phase {name}"))?;
        phases.push((name, results));
    }
    let names: Vec<_> = phases.iter().map(|(name, _)| *name).collect();
    if names != [&WRONG[..], &[RIGHT]].concat() {
        bail!("the phases are {names:?}");
    }
    Ok(phases)
}

/// Runs all races on the fast patched kernel, as it is built.
///
/// # Errors
/// If a read has returned what no ordinary read returns, or something was not tried.
fn races(paths: &Paths, seconds: u32) -> Result<()> {
    let image = build::image(paths, Tree::Series, Config::Fast);
    let limit = 300 + 60 * u64::from(seconds);
    let (output, status) = run(paths, "reads", &image, &script(seconds), limit)?;
    let mut phases = phases(&output)?;
    let right = phases.pop().map(|(_, results)| results).context("nothing was run")?;
    print!("{}", right.table());
    right.check()?;
    if status != 0 {
        bail!("read_races: failed with status {status}");
    }
    for (kind, results) in &phases {
        results.all_noticed(&right).with_context(|| format!("with -w {kind}"))?;
    }
    println!(
        "reads: {}; none returned what is not in the tables; {} kinds of wrong steps are noticed \
         in each race",
        right.summary(),
        WRONG.len()
    );
    Ok(())
}

/// `lab reads`.
///
/// # Errors
/// If a kernel does not build or boot, or a read has returned what no ordinary read returns.
/// With mutants, if one of them is not noticed.
pub(crate) fn reads(paths: &Paths, plan: &Plan) -> Result<()> {
    prepare::prepare(paths)?;
    build::build(paths, Tree::Series, Config::Fast)?;
    if plan.mutants { mutants::mutants(paths) } else { races(paths, plan.seconds) }
}

/// The step of `lab test`: both.
///
/// # Errors
/// The same.
pub(crate) fn all(paths: &Paths) -> Result<()> {
    races(paths, 1)?;
    mutants::mutants(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_wrong_steps_comes_before_the_right_ones() {
        let mut said = String::from("mkdir\n");
        for phase in script(7).lines().filter_map(|l| l.strip_prefix("echo '")) {
            said += phase.trim_end_matches('\'');
            said += "\nrun ext4 append short rounds 1\n";
        }
        let found = phases(&said).unwrap();
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|(_, results)| results.races() == 1));
        assert_eq!(found[3].0, RIGHT);
        phases(&said.replace("phase: size", "")).unwrap_err();
        phases(&said.replace("phase: right", "")).unwrap_err();
        phases(&said.replace("rounds 1", "rounds x")).unwrap_err();
        phases("phase: byte").unwrap_err();
        assert!(script(7).contains("read_races 7 /mnt"));
    }
}
