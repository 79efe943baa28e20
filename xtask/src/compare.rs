//! `cargo xtask compare`: a benchmark of an earlier commit beside the same one of this tree, in
//! turns, so that what else the machine does falls on both.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Map, Value};
use xshell::{Shell, cmd};

/// Run a benchmark of an earlier commit and of this tree in turns, and print both and their ratio
#[derive(Debug, Args)]
#[command(after_help = "Example: cargo xtask compare HEAD~5 -- get --threads 1 --cases zipf")]
pub(crate) struct CompareArgs {
    /// The earlier commit; it is built in target/compare
    commit: String,
    /// How often each program runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// What follows `pinfold bench`: its name and options
    #[arg(last = true, required = true, value_name = "BENCH")]
    bench: Vec<String>,
}

/// The medians of one row of a benchmark, run by run.
type Medians = BTreeMap<String, Vec<f64>>;

/// Builds both, runs them in turns, and prints a table.
///
/// # Errors
/// If one cannot be built or run, or if they have no row in common.
pub(crate) fn run(sh: &Shell, args: &CompareArgs) -> Result<()> {
    let programs = [build_earlier(sh, &args.commit)?, build_this(sh, "bench", "target/compare")?];
    let mut medians = [Medians::new(), Medians::new()];
    for round in 0..args.rounds {
        // Whoever goes first finds another machine than whoever goes second.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            eprintln!("round {} of {}: {}", round + 1, args.rounds, ["before", "after"][which]);
            let (program, bench) = (&programs[which], &args.bench);
            let printed = cmd!(sh, "{program} bench {bench...} --json -").quiet().ignore_stderr();
            let printed = printed.read().with_context(|| format!("`pinfold bench {bench:?}`"))?;
            add_rows(&mut medians[which], &printed)?;
        }
    }
    let [before, after] = medians;
    let lines = lines(&before, &after);
    ensure!(!lines.is_empty(), "the two programs have no row in common");
    println!("| row | before | after | gain | least to most |\n|---|---|---|---|---|");
    for line in &lines {
        println!("{line}");
    }
    println!(
        "\nBefore is {}. Medians of {} runs each, in turns. The gain is how much faster: the median \
         of the\nratios of neighbouring runs. {} rows are of one program only, and left out.",
        args.commit,
        args.rounds,
        before.len() + after.len() - 2 * lines.len()
    );
    Ok(())
}

/// This tree's program with a feature, copied to a folder where no later build replaces it.
pub(crate) fn build_this(sh: &Shell, feature: &str, folder: &str) -> Result<PathBuf> {
    cmd!(sh, "cargo build --quiet --release -p pinfold-cli --features {feature}").run()?;
    let kept = sh.current_dir().join(folder).join("pinfold");
    sh.create_dir(folder)?;
    sh.copy_file("target/release/pinfold", &kept)?;
    Ok(kept)
}

/// The program of an earlier commit, built in a folder of its own from what git has of it.
fn build_earlier(sh: &Shell, commit: &str) -> Result<PathBuf> {
    let named = format!("{commit}^{{commit}}");
    let id = cmd!(sh, "git rev-parse --verify --quiet {named}").quiet().read();
    let id = id.with_context(|| format!("there is no commit {commit}"))?;
    let folder = sh.current_dir().join("target/compare").join(&id);
    if !folder.join("Cargo.toml").exists() {
        sh.create_dir(&folder)?;
        let (archive, there) = (folder.join("source.tar"), &folder);
        cmd!(sh, "git archive --output {archive} {id}").quiet().run()?;
        cmd!(sh, "tar -x -f {archive} -C {there}").quiet().run()?;
        sh.remove_path(&archive)?;
    }
    let _there = sh.push_dir(&folder);
    let features = if has_feature(&folder)? { &["--features", "bench"][..] } else { &[] };
    cmd!(sh, "cargo build --quiet --release -p pinfold-cli {features...}").run()?;
    Ok(folder.join("target/release/pinfold"))
}

/// Whether the benchmarks are a feature there; they were part of every build once.
fn has_feature(folder: &Path) -> Result<bool> {
    let manifest = fs::read_to_string(folder.join("crates/pinfold-cli/Cargo.toml"))
        .context("that commit has no crates/pinfold-cli")?;
    Ok(manifest.lines().any(|line| line.starts_with("bench = [")))
}

/// Adds each row's median to what earlier runs had.
fn add_rows(medians: &mut Medians, printed: &str) -> Result<()> {
    let object: Value =
        serde_json::from_str(printed).context("that is no result of a benchmark")?;
    let rows = object["rows"].as_array().context("the result has no rows")?;
    for row in rows {
        let row = row.as_object().context("a row is no object")?;
        let median = row.get("median").and_then(Value::as_f64).context("a row has no median")?;
        medians.entry(name(row)).or_default().push(median);
    }
    Ok(())
}

/// A row's name: all that says what was measured, the engine first and the metric last.
fn name(row: &Map<String, Value>) -> String {
    let figures = ["samples", "median", "mean", "stddev"];
    let rank = |key: &str| match key {
        "case" => 0,
        "engine" => 1,
        "metric" => 3,
        _ => 2,
    };
    let mut parts: Vec<_> =
        row.iter().filter(|(key, _)| !figures.contains(&key.as_str())).collect();
    parts.sort_by_key(|(key, _)| rank(key));
    let parts = parts.iter().map(|(key, value)| match value {
        Value::String(text) => text.clone(),
        other => format!("{key} {other}"),
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// The table's lines: what both have, with the gain.
fn lines(before: &Medians, after: &Medians) -> Vec<String> {
    let both = before.iter().filter_map(|(name, before)| Some((name, before, after.get(name)?)));
    both.map(|(name, before, after)| {
        let time = name.ends_with("_ns") || name.ends_with("_us");
        let gain = |(b, a): (&f64, &f64)| if time { b / a } else { a / b };
        let mut gains: Vec<f64> = before.iter().zip(after).map(gain).collect();
        gains.sort_by(f64::total_cmp);
        let (least, most) = (gains[0], gains[gains.len() - 1]);
        let (before, after) = (short(median(before)), short(median(after)));
        format!("| {name} | {before} | {after} | {:.2} | {least:.2} to {most:.2} |", median(&gains))
    })
    .collect()
}

pub(crate) fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// Three digits and a prefix.
pub(crate) fn short(value: f64) -> String {
    let (scale, prefix) = match value.abs() {
        v if v >= 1e9 => (1e9, " G"),
        v if v >= 1e6 => (1e6, " M"),
        v if v >= 1e3 => (1e3, " k"),
        _ => (1.0, ""),
    };
    let value = value / scale;
    let digits = if value >= 100.0 { 0 } else { usize::from(value < 10.0) + 1 };
    format!("{value:.digits$}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(engine: &str, metric: &str, median: f64) -> String {
        format!(
            r#"{{"rows": [{{"engine": "{engine}", "case": "zipf", "threads": 2, "metric": "{metric}",
            "samples": [1.0], "median": {median}, "mean": 1.0, "stddev": 0.0}}]}}"#
        )
    }

    fn of(results: &[String]) -> Medians {
        let mut medians = Medians::new();
        for result in results {
            add_rows(&mut medians, result).unwrap();
        }
        medians
    }

    #[test]
    fn a_gain_is_the_median_of_neighbours_and_more_than_one_if_it_is_faster() {
        let before = of(&[1e6, 2e6, 4e6].map(|rate| printed("get", "ops_per_s", rate)));
        let after = of(&[3e6, 3e6, 3e6].map(|rate| printed("get", "ops_per_s", rate)));
        assert_eq!(
            lines(&before, &after),
            ["| zipf, get, threads 2, ops_per_s | 2.00 M | 3.00 M | 1.50 | 0.75 to 3.00 |"]
        );
        let (before, after) =
            (of(&[printed("get", "p99_ns", 30.0)]), of(&[printed("get", "p99_ns", 10.0)]));
        assert!(lines(&before, &after)[0].contains("| 3.00 |"));
    }

    #[test]
    fn rows_of_one_program_only_are_left_out() {
        let (before, after) =
            (of(&[printed("get", "ops_per_s", 1.0)]), of(&[printed("new", "ops_per_s", 1.0)]));
        assert!(lines(&before, &after).is_empty());
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for text in ["", "{}", r#"{"rows": [1]}"#, r#"{"rows": [{"engine": "a"}]}"#] {
            add_rows(&mut Medians::new(), text).unwrap_err();
        }
    }
}
