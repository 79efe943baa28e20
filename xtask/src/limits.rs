//! `cargo xtask limits`: how far the cache is from what memory, the kernel and other caches do on
//! this machine, beside what is asked of it.
//!
//! Here: the figures, how they are judged, the table. Not here: what is measured, and how. `pinfold
//! bench` takes the samples of both sides of a ratio in turns.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};
use xshell::{Shell, cmd};

use crate::compare::{build_this, median, short};
use crate::packages::Need;

/// Print how far the cache is from what this machine allows, beside what is asked
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct LimitsArgs {
    /// Only these figures
    #[arg(long, value_name = "FIGURE,..", value_delimiter = ',', hide_possible_values = true,
        value_parser = PossibleValuesParser::new(FIGURES.iter().map(|figure| figure.name)))]
    only: Vec<String>,
    /// Also `borrow-peer`, for which root installs Debian packages
    #[arg(long)]
    peers: bool,
    /// Length of one sample
    #[arg(long, value_name = "S", default_value_t = 0.5, allow_negative_numbers = true)]
    seconds: f64,
    /// Samples of each side
    #[arg(long, value_name = "R", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Where files that are mapped live, as `bench fault` has it
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the result as one JSON object to FILE, or to standard output for -
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail if a figure is not reached, or could not be measured
    #[arg(long)]
    strict: bool,
}

/// What is asked of a ratio.
#[derive(Debug, Clone, Copy)]
enum Asked {
    AtMost(f64),
    AtLeast(f64),
}
use Asked::{AtLeast, AtMost};

/// What a benchmark measures, what follows `pinfold bench`, and the metric.
#[derive(Debug)]
struct Bench {
    what: &'static str,
    run: &'static str,
    metric: &'static str,
}

const fn bench(what: &'static str, run: &'static str, metric: &'static str) -> Bench {
    Bench { what, run, metric }
}

const OPS: &str = "ops_per_s";
const READ_ONE: Bench = bench("64 bytes of one page", "read --cases same-file --threads 1", OPS);
const READ_RANDOM: Bench = bench("64 bytes at random", "read --cases random --threads 1", OPS);
const GET_ONE: Bench = bench("one page", "get --cases same-page --threads 1", OPS);
const GET_ZIPF: Bench = bench("pages by zipf", "get --cases zipf --threads 1", OPS);
const GET_ZIPF_2: Bench = bench("pages by zipf, 2 threads", "get --cases zipf --threads 2", OPS);
const BATCH: Bench =
    bench("64 at random at once", "batch --cases memory --batches 64 --threads 1", OPS);
const WARM: Bench =
    bench("a page touched in order", "fault --cases warm --threads 1", "ns_per_page");
const RANDOM: Bench = bench("mapped, 8 threads", "fault --cases random --threads 8", "p99_us");
const SWAP: Bench = bench("rounds through memory", "fault --cases swap --io drop", "rounds_per_s");

#[derive(Debug)]
struct Figure {
    name: &'static str,
    bench: &'static Bench,
    /// The rows of the limit and of ours: words that each has, its engine first.
    sides: [&'static str; 2],
    asked: Asked,
}

const fn figure(
    name: &'static str,
    bench: &'static Bench,
    sides: [&'static str; 2],
    asked: Asked,
) -> Figure {
    Figure { name, bench, sides, asked }
}

const FIGURES: [Figure; 14] = [
    figure("read-one", &READ_ONE, ["memcpy", "pinfold"], AtMost(3.2)),
    figure("read-random", &READ_RANDOM, ["memcpy", "pinfold"], AtMost(2.2)),
    figure("borrow-one", &GET_ONE, ["memcpy", "pinfold-borrow"], AtMost(2.2)),
    figure("borrow-zipf", &GET_ZIPF, ["memcpy", "pinfold-borrow"], AtMost(5.0)),
    figure("borrow-peer", &GET_ZIPF, [PEER, "pinfold-borrow"], AtLeast(5.0)),
    figure("read-many", &BATCH, ["memcpy-prefetch", "pinfold-read-many"], AtLeast(0.7)),
    figure("read-many-mmap", &BATCH, ["mmap", "pinfold-read-many"], AtLeast(1.3)),
    figure("get-many", &BATCH, ["pinfold-get", "pinfold-get-many"], AtLeast(3.0)),
    figure("borrow-many", &BATCH, ["pinfold-borrow", "pinfold-borrow-many"], AtLeast(3.0)),
    figure("get-cas", &GET_ZIPF_2, ["pinfold-cas", "pinfold-get"], AtLeast(1.0)),
    figure("warm", &WARM, ["kernel-mmap sequential", "pinfold sequential"], AtLeast(0.67)),
    figure("p99", &RANDOM, ["kernel-mmap", "pinfold"], AtMost(1.0)),
    figure("swap-area", &SWAP, ["pinfold space", "pinfold vma"], AtLeast(1.16)),
    figure("swap-kernel", &SWAP, ["kernel-mmap", "pinfold vma"], AtLeast(1.0)),
];

/// The engine that is not in every build.
const PEER: &str = "quick_cache";

impl Figure {
    /// What is to be small is a ratio that grows as we get slower, what is to be large one that
    /// shrinks.
    fn is_limit_over_ours(&self) -> bool {
        matches!(self.asked, AtMost(_)) == self.bench.metric.ends_with("_per_s")
    }

    fn ratio(&self) -> &'static str {
        if self.is_limit_over_ours() { "limit/ours" } else { "ours/limit" }
    }

    fn asked(&self) -> String {
        match self.asked {
            AtMost(ratio) => format!("at most {ratio}"),
            AtLeast(ratio) => format!("at least {ratio}"),
        }
    }
}

/// What was measured of a figure.
#[derive(Debug)]
struct Judged {
    /// Samples of the limit, and ours.
    sides: [Vec<f64>; 2],
    /// Of neighbouring samples, the smallest first.
    ratios: Vec<f64>,
    reached: bool,
}

/// Compares what a benchmark has found with what is asked.
fn judge(figure: &Figure, result: &Value) -> Result<Judged> {
    let [limit, ours] = figure.sides.map(|words| samples(figure.bench.metric, words, result));
    let sides = [limit?, ours?];
    ensure!(sides[0].len() == sides[1].len(), "the two sides have different numbers of samples");
    let over =
        |(limit, ours)| if figure.is_limit_over_ours() { limit / ours } else { ours / limit };
    let mut ratios: Vec<f64> = sides[0].iter().zip(&sides[1]).map(over).collect();
    ratios.sort_by(f64::total_cmp);
    let reached = match figure.asked {
        AtMost(most) => median(&ratios) <= most,
        AtLeast(least) => median(&ratios) >= least,
    };
    Ok(Judged { sides, ratios, reached })
}

/// The samples of the one row of this metric that has all these words.
fn samples(metric: &str, words: &str, result: &Value) -> Result<Vec<f64>> {
    let rows = result["rows"].as_array().context("the result has no rows")?;
    let is_it = |row: &&Value| {
        let has = |word| row.as_object().is_some_and(|row| row.values().any(|value| value == word));
        row["metric"] == metric && words.split(' ').all(has)
    };
    let found: Vec<&Value> = rows.iter().filter(is_it).collect();
    let [row] = found.as_slice() else {
        bail!("{} rows are of `{words}`; left out: {}", found.len(), result["params"]["left_out"])
    };
    let samples = row["samples"].as_array().context("a row has no samples")?;
    let samples: Vec<f64> = samples.iter().filter_map(Value::as_f64).collect();
    let sound = samples.iter().all(|sample| sample.is_normal() && *sample > 0.0);
    ensure!(sound && !samples.is_empty(), "the samples of `{words}` are {samples:?}");
    Ok(samples)
}

impl LimitsArgs {
    pub(crate) fn needs(&self) -> Vec<Need> {
        let peers = self.chosen().any(|figure| figure.sides[0] == PEER);
        if peers { vec![Need::Peers] } else { vec![] }
    }

    fn chosen(&self) -> impl Iterator<Item = &'static Figure> {
        FIGURES.iter().filter(|figure| match self.only.as_slice() {
            [] => self.peers || figure.sides[0] != PEER,
            only => only.iter().any(|name| name == figure.name),
        })
    }
}

/// Builds, measures, and prints the table.
///
/// # Errors
/// If it cannot be built, or a benchmark fails; with `--strict` also if a figure is not reached.
pub(crate) fn run(sh: &Shell, args: &LimitsArgs) -> Result<()> {
    let seconds = args.seconds;
    ensure!(seconds > 0.0 && seconds <= 3600.0, "--seconds {seconds}: above 0, at most 3600");
    let file = args.json.as_deref().filter(|path| *path != Path::new("-"));
    if let Some(path) = file {
        let opened = File::options().append(true).create(true).open(path);
        opened.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let feature = if args.needs().is_empty() { "bench" } else { "peers" };
    let program = build_this(sh, feature, "target/limits")?;
    let benches: BTreeSet<&str> = args.chosen().map(|figure| figure.bench.run).collect();
    let (mut results, mut loads) = (BTreeMap::new(), Vec::new());
    for &bench in &benches {
        loads.push(load());
        if stderr().is_terminal() {
            eprintln!("{} of {}: pinfold bench {bench}", loads.len(), benches.len());
        }
        results.insert(bench, measure(sh, args, &program, bench));
    }
    let judged = args.chosen().map(|figure| match &results[figure.bench.run] {
        Ok(result) => (figure, judge(figure, result)),
        Err(why) => (figure, Err(anyhow!("{why:#}"))),
    });
    let judged: Vec<(&Figure, Result<Judged>)> = judged.collect();
    let machine = results.values().flatten().next().map_or(&Value::Null, |one| &one["machine"]);
    let text = text(args, machine, &loads, &judged);
    let figures: Vec<Value> = judged.iter().map(as_json).collect();
    let object = json!({ "machine": machine, "loads": loads, "seconds": seconds,
        "runs": args.runs, "figures": figures });
    if args.json.is_some() && file.is_none() {
        eprint!("{text}");
        println!("{object:#}");
    } else {
        print!("{text}");
        file.map_or(Ok(()), |path| fs::write(path, format!("{object:#}\n")))?;
    }
    let failed = results.values().filter(|result| result.is_err()).count();
    ensure!(failed == 0, "{failed} of {} benchmarks failed", results.len());
    let reached = judged.iter().filter(|(_, judged)| judged.as_ref().is_ok_and(|one| one.reached));
    let (reached, all) = (reached.count(), judged.len());
    ensure!(!args.strict || reached == all, "{reached} of {all} figures are reached");
    Ok(())
}

/// Runs a benchmark with the engines of the chosen figures. Its bar goes to standard error.
fn measure(sh: &Shell, args: &LimitsArgs, program: &Path, bench: &str) -> Result<Value> {
    let here = args.chosen().filter(|figure| figure.bench.run == bench);
    let engines = here.flat_map(|figure| figure.sides).filter_map(|words| words.split(' ').next());
    let engines = engines.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",");
    let folder = sh.create_temp_dir()?;
    let (out, words) = (folder.path().join("result"), bench.split(' '));
    let [seconds, runs] = [args.seconds.to_string(), args.runs.to_string()];
    let dir = args.dir.iter().filter(|_| bench.starts_with("fault"));
    let dir = dir.flat_map(|dir| [Path::new("--dir"), dir]);
    cmd!(sh, "{program} bench {words...} --only {engines} --json {out} --seconds {seconds}")
        .args(["--runs", &runs])
        .args(dir)
        .quiet()
        .ignore_stdout()
        .run()?;
    Ok(serde_json::from_str(&sh.read_file(&out)?)?)
}

/// The load average, and how many other threads ran whenever we looked; warns of them.
fn load() -> (String, usize) {
    let look = |_| {
        std::thread::sleep(Duration::from_millis(10));
        fs::read_to_string("/proc/loadavg").unwrap_or_default()
    };
    let looks: Vec<String> = (0..20).map(look).collect();
    // The fourth number counts the thread that looks, too.
    let running = looks.iter().filter_map(|text| text.split([' ', '/']).nth(3)?.parse().ok());
    let others = running.min().unwrap_or(1_usize).saturating_sub(1);
    let load = looks[0].split(' ').take(3).collect::<Vec<_>>().join(" ");
    if others > 0 {
        eprintln!("warning: {others} other threads run, load {load}: a quiet machine is wanted");
    }
    (load, others)
}

fn as_json((figure, judged): &(&Figure, Result<Judged>)) -> Value {
    let mut object = json!({ "name": figure.name, "bench": figure.bench.run, "limit": figure.sides[0],
        "ours": figure.sides[1], "metric": figure.bench.metric, "ratio": figure.ratio(),
        "asked": figure.asked() });
    match judged {
        Ok(judged) => {
            object["samples"] = json!(judged.sides);
            object["median"] = json!(median(&judged.ratios));
            object["reached"] = json!(judged.reached);
        }
        Err(why) => object["not_measured"] = format!("{why:#}").into(),
    }
    object
}

/// The machine, the table, and what could not be measured.
fn text(
    args: &LimitsArgs,
    machine: &Value,
    loads: &[(String, usize)],
    judged: &[(&Figure, Result<Judged>)],
) -> String {
    let of = |key: &str| machine[key].to_string().replace('"', "");
    let mut text = format!(
        "{}, {} CPUs, Linux {}; load {}\n{} samples of {} s of each side, in turns: medians\n\n",
        of("cpu"),
        of("cores"),
        of("kernel"),
        loads[0].0,
        args.runs,
        args.seconds
    );
    let header = ["figure", "", "limit", "ours", "ratio", "least to most", "asked", "reached"];
    let mut lines = vec![header.map(str::to_owned)];
    lines.extend(judged.iter().map(|(figure, judged)| line(figure, judged.as_ref().ok())));
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    lines.insert(1, widths.map(|width| "-".repeat(width)));
    for line in lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("| {cell:width$} "));
        text.extend(cells.chain(["|\n".to_owned()]));
    }
    for (figure, judged) in judged {
        text.extend(judged.as_ref().err().map(|why| format!("\n{}: {why:#}", figure.name)));
    }
    let busy = loads.iter().filter(|(_, others)| *others > 0).count();
    let busy = (busy > 0).then(|| format!("\nNot quiet: others ran before {busy} benchmarks"));
    text + &busy.unwrap_or_default() + "\n"
}

fn line(figure: &Figure, judged: Option<&Judged>) -> [String; 8] {
    let unit = match figure.bench.metric {
        "ns_per_page" => " ns",
        "p99_us" => " us",
        _ => "/s",
    };
    let side = |side: usize| {
        let measured = judged.map(|judged| short(median(&judged.sides[side])) + unit);
        format!("{} {}", figure.sides[side], measured.unwrap_or_default())
    };
    let (ratio, spread, reached) = match judged {
        Some(Judged { ratios, reached, .. }) => (
            format!("{} {:.2}", figure.ratio(), median(ratios)),
            format!("{:.2} to {:.2}", ratios[0], ratios[ratios.len() - 1]),
            if *reached { "yes" } else { "NO" },
        ),
        None => (figure.ratio().to_owned(), String::new(), "?"),
    };
    let (name, what) = (figure.name.to_owned(), figure.bench.what.to_owned());
    [name, what, side(0), side(1), ratio, spread, figure.asked(), reached.to_owned()]
}

/// The figures, for `--help`.
fn after_help() -> String {
    let mut text = String::from(
        "A limit is a bare copy of the same bytes, what the kernel or another cache does, or \
         another way\nin this cache. A figure that is not reached is told; it is no error without \
         --strict. Let nothing\nelse run. All takes some minutes and 6 GiB of memory; swap-kernel \
         takes root. What the engines do\nis in `cargo pinfold bench NAME --help`.\n\nFigures, what \
         is asked, and the benchmark that measures both sides:\n",
    );
    for figure in &FIGURES {
        let Figure { name, sides: [limit, ours], bench: Bench { what, run, .. }, .. } = figure;
        let (ratio, asked) = (figure.ratio(), figure.asked());
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<15} {what}: {limit} and {ours}");
        let _ = writeln!(text, "{:18}{ratio} {asked}; {run}", "");
    }
    text + "\nExample: cargo xtask limits --only read-random,borrow-zipf --runs 9"
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// What the benchmark of a figure finds: these samples of its limit, and of ours.
    fn result(figure: &Figure, samples: [&[f64]; 2]) -> Value {
        let row = |words: &str, samples: &[f64]| {
            let words: Vec<&str> = words.split(' ').collect();
            json!({ "engine": words[0], "lock": words.get(1), "metric": figure.bench.metric,
                "threads": 1, "samples": samples })
        };
        let [limit, ours] = figure.sides;
        json!({ "rows": [row("empty", &[9.0]), row(limit, samples[0]), row(ours, samples[1])] })
    }

    /// Our side is better or worse by a hundredth than what is asked, be it a rate or a time.
    #[test]
    fn what_is_worse_than_asked_is_not_reached() {
        for figure in &FIGURES {
            let (AtMost(asked) | AtLeast(asked)) = figure.asked;
            let even = if figure.is_limit_over_ours() { 1.0 / asked } else { asked };
            let better = if figure.bench.metric.ends_with("_per_s") { 1.01 } else { 1.0 / 1.01 };
            for (ours, mark) in [(even * better, "| yes "), (even / better, "| NO ")] {
                let judged = judge(figure, &result(figure, [&[1.0], &[ours]]));
                let text = text_of(figure, judged);
                assert!(text.contains(mark), "{ours}:\n{text}");
            }
        }
    }

    #[test]
    fn a_ratio_is_the_median_of_neighbours() {
        let figure = &FIGURES[0];
        let judged = judge(figure, &result(figure, [&[2.0, 8.0, 3.0], &[1.0, 2.0, 1.0]])).unwrap();
        assert_eq!(judged.ratios, [2.0, 3.0, 4.0]);
        assert!(judged.reached);
    }

    #[test]
    fn what_cannot_be_judged_is_not_measured() {
        let figure = FIGURES.iter().find(|figure| figure.name == "swap-area").unwrap();
        let told = |result: &Value| judge(figure, result).unwrap_err().to_string();
        assert!(told(&json!({})).contains("no rows"));
        let rows = &result(figure, [&[1.0], &[2.0]])["rows"];
        assert!(told(&json!({ "rows": [rows[1]] })).contains("0 rows are of `pinfold vma`"));
        assert!(
            told(&json!({ "rows": [rows[1], rows[1]] })).contains("2 rows are of `pinfold space`")
        );
        for samples in [[&[0.0][..], &[1.0][..]], [&[1.0], &[]], [&[1.0], &[1.0, 2.0]]] {
            told(&result(figure, samples));
        }
        let text = text_of(figure, Err(anyhow!("no swap")));
        assert!(text.contains("| ? ") && text.contains("swap-area: no swap"), "{text}");
        assert_eq!(as_json(&(figure, Err(anyhow!("no swap"))))["not_measured"], "no swap");
    }

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        limits: LimitsArgs,
    }

    fn args(args: &[&str]) -> LimitsArgs {
        Cli::parse_from(["limits"].iter().chain(args)).limits
    }

    fn text_of(figure: &Figure, judged: Result<Judged>) -> String {
        text(&args(&[]), &Value::Null, &[("0.1".to_owned(), 0)], &[(figure, judged)])
    }

    #[test]
    fn another_cache_is_measured_only_if_it_is_asked_for() {
        let chosen = |given: &[&str]| (args(given).chosen().count(), args(given).needs());
        assert_eq!(chosen(&[]), (13, vec![]));
        assert_eq!(chosen(&["--peers"]), (14, vec![Need::Peers]));
        assert_eq!(chosen(&["--peers", "--only", "p99"]), (1, vec![]));
        assert_eq!(chosen(&["--only", "p99,borrow-peer"]), (2, vec![Need::Peers]));
    }
}
