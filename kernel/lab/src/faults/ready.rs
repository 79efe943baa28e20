//! What a fault pays that does not wait, and who forks or unmaps: instructions, counted on plain
//! and on *drop*, both without the counters of faults that wait.

use crate::bench::ALLOWED_PERCENT;
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot};
use crate::{build, guest, prepare};
use anyhow::{Context, Result, bail};
use std::fmt::Write as _;
use std::time::Duration;

/// The file systems, and where the guest has them.
const SYSTEMS: [(&str, &str); 2] = [("tmpfs", "/tmp"), ("ext4", "/mnt")];

/// The cases of `mm_count`, in its order.
const CASES: [&str; 7] = [
    "fault-anon",
    "unmap-anon",
    "fault-file",
    "fault-file-cow",
    "fork-2048-pages",
    "fork-call-2048-pages",
    "fault-fork-cow",
];

/// Counts on both kernels, and prints a line for each case.
///
/// # Errors
/// If a kernel does not build or boot, or a count grew by more than is allowed.
pub(super) fn ready(paths: &Paths) -> Result<()> {
    prepare::prepare_tree(paths, Tree::Drop)?;
    let mut counts = Vec::new();
    for tree in [Tree::Plain, Tree::Drop] {
        build::build(paths, tree, Config::Fast)?;
        counts.push(count(paths, tree)?);
    }
    let mut grown = Vec::new();
    println!("instructions (TCG with -icount; counts, not times), plain and drop:");
    for ((case, plain), (_, drop)) in counts[0].iter().zip(&counts[1]) {
        let percent = (drop - plain) / plain * 100.0;
        println!("  {case:<28} {plain:>12.2} {drop:>12.2} {percent:>+7.2} %");
        if percent > ALLOWED_PERCENT {
            grown.push(format!("{case} ({percent:+.2} %)"));
        }
    }
    if !grown.is_empty() {
        bail!("over {ALLOWED_PERCENT} % more instructions than on plain: {}", grown.join(", "));
    }
    Ok(())
}

fn count(paths: &Paths, tree: Tree) -> Result<Vec<(String, f64)>> {
    let name = format!("ready-{}", tree.name());
    let mut command = String::from("set -e\necho 4096 > /sys/kernel/debug/fault_around_bytes\n");
    for (system, dir) in SYSTEMS {
        let _ = writeln!(command, "mm_count {dir}/y > log\nsed 's/ /-{system} /' log");
    }
    let outcome = qemu::boot(
        paths,
        &Boot {
            name: &name,
            image: &build::image(paths, tree, Config::Fast),
            root: &guest::root(paths, &[guest::compile(paths, "mm_count")?])?,
            command: &command,
            // As `kernel bench` boots.
            append: "kunit.enable=0 norandmaps",
            accel: Accel::Icount,
            limit: Duration::from_secs(600),
            mem_mib: 1024,
            args: &[],
        },
    )?;
    if outcome.status != 0 {
        bail!("{name}: failed with status {}:\n{}", outcome.status, outcome.output);
    }
    parse(&outcome.output).with_context(|| name)
}

/// The counts of all cases, in order.
///
/// # Errors
/// If one is missing, or a line is none.
fn parse(output: &str) -> Result<Vec<(String, f64)>> {
    let mut counts = Vec::new();
    for line in output.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [case, "ns", value] = words[..] else {
            bail!("`{line}` is not CASE ns VALUE");
        };
        let value: f64 = value.parse().with_context(|| format!("`{line}`: no number"))?;
        if !value.is_normal() || value < 0.0 {
            bail!("`{line}`: no count");
        }
        counts.push((case.to_string(), value));
    }
    let wanted = SYSTEMS.iter().flat_map(|(s, _)| CASES.iter().map(move |c| format!("{c}-{s}")));
    if !wanted.eq(counts.iter().map(|(case, _)| case.clone())) {
        bail!("not all cases, in order:\n{output}");
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> String {
        let mut output = String::new();
        for (system, _) in SYSTEMS {
            for case in CASES {
                let number = output.lines().count() + 1;
                let _ = writeln!(output, "{case}-{system} ns {number}.50");
            }
        }
        output
    }

    #[test]
    fn each_case_is_counted_once() {
        let counts = parse(&output()).unwrap();
        assert_eq!(counts.len(), SYSTEMS.len() * CASES.len());
        assert_eq!(counts[7], ("fault-anon-ext4".to_string(), 8.5));
        let error = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(error("").contains("not all cases"));
        assert!(error(&(output() + "fault-anon-ext4 ns 8.50\n")).contains("not all cases"));
        assert!(error(&output().replace("ns 2.50", "us 2.50")).contains("not CASE ns VALUE"));
        assert!(error(&output().replace("ns 2.50", "ns 0.00")).contains("no count"));
        assert!(error(&output().replace("ns 2.50", "ns x")).contains("no number"));
    }
}
