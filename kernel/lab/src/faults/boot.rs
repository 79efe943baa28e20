//! Boots one kernel, runs workloads in it, and reads what it counted.

use super::counts::Counts;
use super::workloads::{SELFTEST, WRITTEN};
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot, Ran};
use crate::{cc, guest, prepare};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The guest's script, the programs that sum its traces and read the selftest's output, and the
/// workloads.
const FILES: [&str; 3] = ["faults.sh", "fault_waits.awk", "fault_cases.awk"];
const PROGRAMS: [&str; 3] = ["fault_startup", "fault_swap", "fault_thrash"];

/// What each of the slow disks can do, in operations per second of the guest's clock. They are in
/// the guest's memory (`null_blk`), so that neither the host nor its disk has a part in it.
pub(super) const DISK_OPS: u32 = 400;

/// The memory of thrash, for 96 threads and what they read. In a debug kernel, the stack of a thread
/// has 32 KiB, and its lockdep state some 10, which are charged, too: together 4 MiB more.
const fn thrash_memory(config: Config) -> &'static str {
    match config {
        Config::Debug => "12M",
        _ => "6M",
    }
}

/// The source of the kernel's selftest of such faults, in a tree that has it: *drop*, or the patched
/// one.
///
/// # Errors
/// If the source cannot be prepared.
pub(crate) fn selftest_source(paths: &Paths, tree: Tree) -> Result<PathBuf> {
    prepare::prepare_tree(paths, tree)?;
    Ok(paths.source(tree).join("tools/testing/selftests/mm/fault_retry.c"))
}

/// All files for the guest, with the selftest from this tree.
///
/// # Errors
/// If the source cannot be prepared, or a program does not compile.
pub(super) fn files(paths: &Paths, tree: Tree) -> Result<Vec<PathBuf>> {
    let mut files: Vec<_> =
        FILES.iter().map(|file| paths.kernel.join("guest").join(file)).collect();
    for program in PROGRAMS {
        files.push(guest::compile(paths, program)?);
    }
    files.push(selftest(paths, tree)?);
    Ok(files)
}

/// Compiles it.
fn selftest(paths: &Paths, tree: Tree) -> Result<PathBuf> {
    let source = selftest_source(paths, tree)?;
    let target = paths.guest("fault_retry");
    let text =
        fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-static", "-o"]).arg(&target).arg(&source).arg("-lpthread");
    let log = paths.log("compile-fault_retry");
    cc::compile("fault_retry", &text, &mut gcc, &target, &log)?;
    Ok(target)
}

/// Runs the workloads on one kernel. The selftest has a boot of its own: its threads wait for each
/// other by looking again and again, so they need CPUs that run at the same time.
///
/// # Errors
/// If the kernel does not boot, there is a splat, or a workload fails: with wrong data, above all.
pub(super) fn run(
    paths: &Paths,
    name: &str,
    image: &Path,
    files: &[PathBuf],
    workloads: &[&str],
    config: Config,
) -> Result<Counts> {
    let counted = if config == Config::Debug { Accel::Tcg } else { Accel::Icount };
    let mut counts = Counts::default();
    let (alone, others): (Vec<_>, Vec<_>) = workloads.iter().partition(|w| **w == SELFTEST);
    for (accel, workloads) in [(counted, others), (Accel::Tcg, alone)] {
        if !workloads.is_empty() {
            counts.add(with_boot(
                paths,
                name,
                image,
                files,
                &workloads,
                (config, accel),
                |boot| {
                    let outcome = qemu::boot(paths, boot)?;
                    Ok((outcome.output, outcome.status))
                },
            )?);
        }
    }
    Ok(counts)
}

/// Runs a workload on a kernel that is known to be wrong: splats are no errors. What a workload
/// counts must not depend on how busy the host is. But with one CPU, no fault finds a folio locked
/// that has its data; so the workload in which such waits are counted has two.
///
/// # Errors
/// If the kernel does not boot, or the workload fails.
pub(super) fn run_broken(
    paths: &Paths,
    name: &str,
    image: &Path,
    files: &[PathBuf],
    workload: &str,
) -> Result<Counts> {
    let accel = if [SELFTEST, WRITTEN].contains(&workload) { Accel::Tcg } else { Accel::Icount };
    with_boot(paths, name, image, files, &[workload], (Config::Faults, accel), |boot| {
        let ran = qemu::run(paths, boot)?;
        Ok((ran.output, ran.end?))
    })
}

/// Boots such a kernel with its `KUnit` tests.
///
/// # Errors
/// If it cannot be booted.
pub(super) fn run_kunit(paths: &Paths, name: &str, image: &Path) -> Result<Ran> {
    let boot = Boot {
        name: &format!("faults-{name}"),
        image,
        root: &guest::root(paths, &[])?,
        command: "true",
        append: "",
        accel: Accel::Tcg,
        limit: Duration::from_secs(120),
        mem_mib: 2048,
        args: &[],
    };
    qemu::run(paths, &boot)
}

fn with_boot(
    paths: &Paths,
    name: &str,
    image: &Path,
    files: &[PathBuf],
    workloads: &[&str],
    (config, accel): (Config, Accel),
    boot: impl FnOnce(&Boot) -> Result<(String, i32)>,
) -> Result<Counts> {
    let root = guest::root(paths, files)?;
    // A debug kernel is some ten times slower.
    let slower = if config == Config::Debug { 8 } else { 1 };
    let (output, status) = boot(&Boot {
        name: &format!("faults-{name}"),
        image,
        root: &root,
        command: &format!(
            "sh /lab/faults.sh {DISK_OPS} {} {}",
            thrash_memory(config),
            workloads.join(" ")
        ),
        append: &format!(
            "kunit.enable=0 null_blk.nr_devices=2 null_blk.gb=1 null_blk.memory_backed=1 \
             null_blk.irqmode=2 null_blk.hw_queue_depth=1 null_blk.completion_nsec={}",
            1_000_000_000 / DISK_OPS
        ),
        accel,
        // The selftest takes half a minute, and on a busy host two; a case that hangs gives up
        // after another one.
        limit: Duration::from_secs(slower * (180 + 90 * workloads.len() as u64)),
        mem_mib: 2048,
        args: &[],
    })?;
    if status != 0 {
        bail!("{name}: failed with status {status}:\n{output}");
    }
    Counts::parse(&output, workloads).with_context(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;

    /// What the guest's awk makes of the selftest's output.
    fn cases(output: &str) -> Counts {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, output).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest/fault_cases.awk");
        let mut awk = Command::new("busybox");
        let printed = proc::output(awk.args(["awk", "-f", script]).arg(file.path())).unwrap();
        let lines: Vec<_> = printed.lines().map(|line| format!("{SELFTEST} {line}")).collect();
        Counts::parse(&lines.join("\n"), &[SELFTEST]).unwrap()
    }

    #[test]
    fn a_case_that_is_skipped_did_not_pass() {
        let output = "TAP version 13\n1..8\n# 12 major faults, 0 retries under mmap_lock\n\
                      ok 1 a fault\nok 2 # SKIP a fault: not counted here\nok 3 a wait\n\
                      not ok 4 no fault\nok 5 no fault\nok 6 a fault\nok 7 a fault\nok 8 a kill\n\
                      # Totals: pass:6 fail:1 xfail:0 xpass:0 skip:1 error:0\n";
        let counts = cases(output);
        assert_eq!(counts.failed_cases(), ["passed-2", "passed-4"]);
        assert!(counts.was_skipped("passed-2") && !counts.was_skipped("passed-4"));
        let all = output.replace("# SKIP ", "").replace("not ok", "ok");
        assert_eq!(cases(&all).failed_cases(), Vec::<&str>::new());
    }

    #[test]
    fn the_script_asks_for_each_of_its_files() {
        let script = include_str!("../../../guest/faults.sh");
        for file in &FILES[1..] {
            assert!(script.contains(&format!("/lab/{file}")), "{file}");
        }
    }
}
