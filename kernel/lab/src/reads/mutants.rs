//! The races on kernels that are wrong, or slow: each must be noticed, and the slow one must not.

use super::boot::{HUGE, run};
use super::results::Results;
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::variant::{self, Variant};
use anyhow::{Context, Result, bail};

/// How a mutant is noticed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Noticed {
    /// It is not wrong, only slow, so that more happens during a read.
    Not,
    /// A read returns what no ordinary read does.
    Wrong,
    /// It returns zeros where a file was cut. An ordinary read may; a short one, as a rule, not.
    Zeros,
}

/// The patches in `kernel/mutants/reads`.
const MUTANTS: [(&str, Noticed, &str); 4] = [
    ("wait-before-the-copy", Noticed::Not, REMOVALS_AND_CUTS),
    ("no-second-look-at-the-count", Noticed::Wrong, REMOVALS),
    ("no-second-look-at-the-size", Noticed::Zeros, REMOVALS_AND_CUTS),
    ("one-count-in-a-split", Noticed::Wrong, SPLITS),
];

const REMOVALS: &str = "/mnt /dev/shm -- truncate-write punch-page";
const REMOVALS_AND_CUTS: &str = "/mnt /dev/shm -- truncate-write cut-write punch-page";
const SPLITS: &str = "/tmp/huge -- split";
/// For each race. With 2, one mutant gave 219 wrong results in one run, and 10 in another.
const SECONDS: u32 = 3;

/// Fewer of what a mutant is noticed by may be chance.
const LEAST: u64 = 10;
const CUT: [&str; 2] = ["full zero", "full one+zero"];

/// Runs the races on each mutant.
///
/// # Errors
/// If a mutant does not build or boot, or is not noticed.
pub(super) fn mutants(paths: &Paths) -> Result<()> {
    for (name, noticed, races) in MUTANTS {
        let patch = format!("mutants/reads/{name}.patch");
        let variant = Variant { tree: Tree::Series, config: Config::Fast, patch: &patch };
        let image = variant::build(paths, variant)?.image;
        let command = format!("{HUGE}\nread_races {SECONDS} {races}");
        let (output, _) = run(paths, &format!("reads-{name}"), &image, &command, 300)?;
        let results = Results::parse(&output).with_context(|| name.to_string())?;
        let why = verdict(&results, noticed).with_context(|| name.to_string())?;
        println!("{name}: {why}");
    }
    Ok(())
}

/// What was noticed, in words.
///
/// # Errors
/// If it is not what should be.
fn verdict(results: &Results, noticed: Noticed) -> Result<String> {
    let races = ["truncate-write", "cut-write", "punch-page", "split"];
    let done = results.short("short_read_done", &races);
    let removed = results.short("short_read_removed", &races);
    let resized = results.short("short_read_resized", &races);
    let zeros = results.short_seen("cut-write", &CUT);
    let (wrong, of_short) = (results.wrong(), results.short_wrong());
    if done < LEAST {
        bail!("only {done} short reads");
    }
    match noticed {
        // A mutant is of short reads. If ordinary ones are wrong, something else is.
        _ if wrong > of_short => {
            bail!("{} wrong results of ordinary reads: {}", wrong - of_short, results.first_wrong())
        }
        Noticed::Wrong if wrong > 0 => {
            Ok(format!("noticed, {wrong} wrong results, the first: {}", results.first_wrong()))
        }
        Noticed::Wrong => bail!("not noticed"),
        _ if wrong > 0 => bail!("{wrong} wrong results, the first: {}", results.first_wrong()),
        Noticed::Zeros if zeros >= LEAST => {
            Ok(format!("noticed, {zeros} reads of zeros where the file was cut"))
        }
        Noticed::Zeros => bail!("only {zeros} reads of zeros where the file was cut"),
        Noticed::Not if removed < LEAST || resized < LEAST => {
            bail!("only {removed} reads met a removal, and {resized} a change of the size")
        }
        Noticed::Not if zeros * 10 > resized => {
            bail!("{zeros} reads of zeros where the file was cut, beside {resized} resized")
        }
        Noticed::Not => Ok(format!(
            "not noticed, as it should be; {removed} reads met a removal, {resized} a change of \
             the size; {zeros} reads of zeros where the file was cut"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn of(wrong: u64, removed: u64, resized: u64, zeros: u64) -> Results {
        Results::parse(&format!(
            "run ext4 punch-page short wrong {wrong} short_read_done 900 \
             short_read_removed {removed}\n\
             run ext4 cut-write short wrong 0 short_read_resized {resized}\n\
             seen ext4 cut-write ordinary full zero - 50\n\
             seen ext4 cut-write short full zero - {zeros}\n"
        ))
        .unwrap()
    }

    #[test]
    fn a_mutant_is_noticed_by_what_it_breaks() {
        let is = |results, noticed| verdict(&results, noticed).is_ok();
        assert!(is(of(1, 0, 0, 0), Noticed::Wrong));
        assert!(!is(of(0, 500, 500, 0), Noticed::Wrong));
        assert!(is(of(0, 0, 0, 10), Noticed::Zeros));
        assert!(!is(of(0, 0, 0, 9), Noticed::Zeros));
        assert!(!is(of(1, 0, 0, 10), Noticed::Zeros));
        assert!(is(of(0, 10, 10, 1), Noticed::Not));
        assert!(!is(of(0, 10, 10, 2), Noticed::Not));
        assert!(!is(of(0, 9, 10, 0), Noticed::Not));
        assert!(!is(of(0, 10, 9, 0), Noticed::Not));
        assert!(!is(of(1, 10, 10, 0), Noticed::Not));
        let ordinary = "run ext4 cut-write ordinary wrong 1\n\
                        run ext4 cut-write short wrong 1 short_read_done 900\n";
        assert!(!is(Results::parse(ordinary).unwrap(), Noticed::Wrong));
        let idle = Results::parse("run ext4 punch-page short wrong 1 short_read_done 9\n").unwrap();
        assert!(!is(idle, Noticed::Wrong));
    }

    #[test]
    fn each_mutant_of_the_reads_is_tried() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("mutants/reads");
        let mut found: Vec<_> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().display().to_string())
            .collect();
        found.sort();
        let mut tried = MUTANTS.map(|(name, ..)| name.to_string());
        tried.sort();
        assert_eq!(found, tried);
    }
}
