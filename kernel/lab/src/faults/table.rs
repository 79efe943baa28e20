//! The counts of several runs of several kernels side by side, and as JSON.

use super::boot::DISK_OPS;
use super::counts::Counts;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The values of one count in all runs.
fn samples(runs: &[Counts], workload: &str, key: &str) -> Vec<u64> {
    runs.iter().map(|run| run.of(workload, key)).collect()
}

/// The median of some values; of an even number, the lower one in the middle.
fn median(samples: &[u64]) -> u64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// A median with its range, if there is one.
fn cell(samples: &[u64]) -> String {
    let range = samples.iter().min().zip(samples.iter().max());
    match range {
        Some((least, most)) if least != most => {
            format!("{} ({least}..{most})", median(samples))
        }
        _ => median(samples).to_string(),
    }
}

/// Lengths of waits, in microseconds of the guest's clock. Under emulation they mean little.
const LENGTHS: [&str; 2] = ["longest-", "waited-"];

/// The rows of the tables: a workload, a count, and its values on each kernel. Those that are 0
/// everywhere are left out.
fn shown<'a>(kernels: &[(&str, &'a [Counts])]) -> Vec<(&'a str, &'a str, Vec<Vec<u64>>)> {
    let mut rows = Vec::new();
    for (workload, key) in Counts::keys(kernels.iter().flat_map(|(_, runs)| *runs)) {
        let values: Vec<_> = kernels.iter().map(|(_, runs)| samples(runs, workload, key)).collect();
        let is_length = LENGTHS.iter().any(|start| key.starts_with(start));
        if !is_length && values.iter().flatten().any(|value| *value != 0) {
            rows.push((workload, key, values));
        }
    }
    rows
}

/// All counts side by side: the median of the runs, and the range.
pub(super) fn table(kernels: &[(&str, &[Counts])]) -> String {
    let mut text = format!("{:<13} {:<26}", "workload", "count");
    for (name, _) in kernels {
        let _ = write!(text, " {name:>26}");
    }
    for (workload, key, values) in shown(kernels) {
        let _ = write!(text, "\n{workload:<13} {key:<26}");
        for value in values {
            let _ = write!(text, " {:>26}", cell(&value));
        }
    }
    text + "\n"
}

/// The same in Markdown.
pub(super) fn markdown(kernels: &[(&str, &[Counts])]) -> String {
    let mut text = String::from("| workload | count |");
    for (name, _) in kernels {
        let _ = write!(text, " {name} |");
    }
    text += "\n|---|---|";
    text += &"---:|".repeat(kernels.len());
    text.push('\n');
    for (workload, key, values) in shown(kernels) {
        let _ = write!(text, "| {workload} | {key} |");
        for value in values {
            let _ = write!(text, " {} |", cell(&value));
        }
        text.push('\n');
    }
    text
}

/// A count's name among those that the other fault benchmarks have.
fn metric(key: &str) -> &str {
    match key {
        "retry_mmap_drop" => "retry_space_lock",
        "long-waits-write-mmap" => "lock_waits",
        other => other,
    }
}

/// What each kernel does with its locks.
fn engine(kernel: &str) -> (&'static str, &'static str) {
    match kernel {
        "drop" => ("vma", "drop"),
        "hold" => ("vma", "hold"),
        _ => ("space", "drop"),
    }
}

/// The figures of all runs.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
pub(super) fn json(kernels: &[(&str, &Vec<Counts>)], runs: u32) -> Value {
    let mut rows = Vec::new();
    for (workload, key) in Counts::keys(kernels.iter().flat_map(|(_, runs)| *runs)) {
        for (kernel, runs) in kernels {
            let samples = samples(runs, workload, key);
            let count = samples.len().max(1) as f64;
            let mean = samples.iter().sum::<u64>() as f64 / count;
            let square = |value: &u64| (*value as f64 - mean).powi(2);
            let stddev = (samples.iter().map(square).sum::<f64>() / count).sqrt();
            let (lock, io) = engine(kernel);
            rows.push(json!({
                "engine": "kernel-mmap", "tree": kernel, "lock": lock, "io": io,
                "case": workload, "metric": metric(key), "samples": samples,
                "median": median(&samples), "mean": mean, "stddev": stddev,
            }));
        }
    }
    json!({
        "bench": "fault",
        "version": env!("CARGO_PKG_VERSION"),
        "machine": {"emulated": true, "cores": 2},
        "params": {"runs": runs, "disk_ops_per_s": DISK_OPS},
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::super::counts::tests::{drop, plain};
    use super::super::workloads::WORKLOADS;
    use super::*;

    fn counts(text: &str) -> Counts {
        Counts::parse(text, &WORKLOADS).unwrap()
    }

    #[test]
    fn the_table_has_what_one_kernel_alone_counted() {
        let (plain, drop) = ([counts(&plain())], [counts(&(drop() + "swap waited-x 7\n"))]);
        let text = table(&[("plain", &plain), ("drop", &drop)]);
        let row = |start: &str| {
            let line = text.lines().find(|l| l.starts_with(start)).unwrap();
            line.split_whitespace().skip(1).map(str::to_string).collect::<Vec<_>>()
        };
        assert_eq!(row("swap          retry_vma_drop"), ["retry_vma_drop", "0", "980"]);
        assert_eq!(row("workload"), ["count", "plain", "drop"]);
        assert!(!text.contains("waited"));
        let page = markdown(&[("plain", &plain), ("drop", &drop)]);
        assert!(page.contains("\n| swap | retry_vma_drop | 0 | 980 |\n"), "{page}");
        assert!(page.starts_with("| workload | count | plain | drop |\n|---|---|---:|---:|\n"));
        assert!(!page.contains("waited"));
        assert!(text.find("startup-none").unwrap() < text.find("swap").unwrap());
    }

    #[test]
    fn a_cell_has_the_median_and_the_range() {
        assert_eq!(cell(&[7, 7, 7]), "7");
        assert_eq!(cell(&[9, 1, 4]), "4 (1..9)");
        assert_eq!(cell(&[]), "0");
    }

    #[test]
    fn rows_say_what_is_locked_and_have_all_samples() {
        let drops = vec![counts(&drop()), counts(&drop().replace("io_miss 20", "io_miss 10"))];
        let all = json(&[("drop", &drops)], 2);
        let rows = all["rows"].as_array().unwrap();
        let row = |metric: &str| {
            rows.iter().find(|r| r["case"] == "swap" && r["metric"] == metric).unwrap()
        };
        assert_eq!(row("retry_io_miss")["samples"], json!([20, 10]));
        assert_eq!(row("retry_io_miss")["mean"], json!(15.0));
        assert_eq!(row("retry_io_miss")["stddev"], json!(5.0));
        assert_eq!(row("retry_space_lock")["lock"], "vma");
        assert_eq!(all["bench"], "fault");
    }
}
