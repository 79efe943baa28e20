//! Measures readers of one file on real cores, on the plain and on the patched kernel, where KVM
//! boots them. The host may be busy: so the kernels take turns, and the medians are compared.

use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot};
use crate::{build, guest};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

/// How many boots of each kernel.
const RUNS: usize = 5;
/// `CONFIG_NR_CPUS`.
const MOST_CPUS: usize = 64;

/// Operations per second of a number of threads or processes.
#[derive(Debug, PartialEq)]
struct Row {
    readers: String,
    ops: f64,
}

/// The table in Markdown; `None` where KVM does not work.
///
/// # Errors
/// If a boot or a reader fails.
pub(crate) fn table(paths: &Paths) -> Result<Option<String>> {
    let images = [Tree::Plain, Tree::Series].map(|tree| build::image(paths, tree, Config::Fast));
    let root = guest::root(paths, &[])?;
    if !qemu::kvm_works(paths, &images[1], &root)? {
        println!(
            "no table of threads: KVM does not boot these kernels here, and emulated time means \
             nothing; `cargo lab cores` runs the kernels' own code on this machine's cores"
        );
        return Ok(None);
    }
    let cpus = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST_CPUS);
    let smp = cpus.to_string();
    let mut runs = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for (image, runs) in images.iter().zip(&mut runs) {
            let boot = Boot {
                name: "threads",
                image,
                root: &root,
                command: &command(cpus),
                append: "kunit.enable=0",
                accel: Accel::Kvm,
                limit: Duration::from_secs(120),
                mem_mib: 1024,
                args: &["-smp", &smp],
            };
            let outcome = qemu::boot(paths, &boot)?;
            if outcome.status != 0 {
                bail!(
                    "threads: the reads failed with status {}:\n{}",
                    outcome.status,
                    outcome.output
                );
            }
            runs.push(outcome.output.lines().filter_map(parse).collect());
        }
    }
    let table = compare(cpus, &runs)?;
    print!("{table}");
    Ok(Some(table))
}

/// The numbers of readers: powers of two, up to one for each CPU.
fn readers(cpus: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1), |n| Some(n * 2)).take_while(move |n| *n <= cpus)
}

fn command(cpus: usize) -> String {
    let mut text = String::from("set -e\n");
    for n in readers(cpus) {
        let _ = writeln!(text, "pread_bench -t {n} -s 1 /tmp/x\npread_bench -p {n} -s 1 /tmp/x");
    }
    text
}

/// Reads a line of `pread_bench`'s output.
fn parse(line: &str) -> Option<Row> {
    let [kind, count, "block_bytes", _, "ops_per_s", ops] =
        line.split_whitespace().collect::<Vec<_>>()[..]
    else {
        return None;
    };
    Some(Row { readers: format!("{count} {kind}"), ops: ops.parse().ok()? })
}

/// The median, the least, and the most of an odd number of values.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// The table, from the runs on plain and on patched.
fn compare(cpus: usize, runs: &[Vec<Vec<Row>>; 2]) -> Result<String> {
    let mut table = String::from("| readers | plain | patched | ratio |\n|---|---:|---:|---:|\n");
    for n in readers(cpus) {
        for kind in ["threads", "processes"] {
            let name = format!("{n} {kind}");
            let of = |runs: &Vec<Vec<Row>>| -> Result<(f64, f64, f64)> {
                let found = runs.iter().map(|run| {
                    let row = run.iter().find(|row| row.readers == name);
                    row.map(|row| row.ops)
                        .with_context(|| format!("a boot printed no figure for {name}"))
                });
                Ok(spread(found.collect::<Result<_>>()?))
            };
            let [plain, series] = [of(&runs[0])?, of(&runs[1])?];
            let cell = |(median, least, most): (f64, f64, f64)| {
                format!("{:.2} M ({:.2} to {:.2})", median / 1e6, least / 1e6, most / 1e6)
            };
            let (left, right, ratio) = (cell(plain), cell(series), series.0 / plain.0);
            let _ = writeln!(table, "| {name} | {left} | {right} | {ratio:.2} |");
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a guest with two CPUs prints, with other figures.
    fn run(scale: f64) -> Vec<Row> {
        let line = |kind, n, ops| format!("{kind} {n} block_bytes 64 ops_per_s {:.0}", ops * scale);
        [
            line("threads", 1, 1e6),
            line("processes", 1, 1.1e6),
            line("threads", 2, 5e5),
            line("processes", 2, 4e5),
        ]
        .iter()
        .filter_map(|line| parse(line))
        .collect()
    }

    #[test]
    fn medians_are_compared() {
        let plain = [9.0, 1.0, 2.0, 0.5, 1.0].map(run).into();
        let series = [1.5, 1.5, 1.5, 0.1, 3.0].map(run).into();
        let table = compare(3, &[plain, series]).unwrap();
        assert_eq!(table.lines().count(), 6);
        assert!(
            table.ends_with(
                "| 2 processes | 0.40 M (0.20 to 3.60) | 0.60 M (0.04 to 1.20) | 1.50 |\n"
            ),
            "{table}"
        );
    }

    #[test]
    fn a_missing_figure_is_named() {
        let mut cut = run(1.0);
        cut.remove(2);
        let error = compare(2, &[vec![run(1.0)], vec![cut]]).unwrap_err().to_string();
        assert_eq!(error, "a boot printed no figure for 2 threads");
        assert!(compare(4, &[vec![run(1.0)], vec![run(1.0)]]).is_err());
    }

    #[test]
    fn there_is_a_reader_for_each_cpu_at_most() {
        assert_eq!(readers(1).collect::<Vec<_>>(), [1]);
        assert_eq!(readers(12).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(command(2).lines().count(), 5);
    }
}
