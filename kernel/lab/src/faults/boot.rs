//! Boots one kernel, runs workloads in it, and reads what it counted.

use super::counts::Counts;
use crate::kernels::{Config, Tree};
use crate::paths::Paths;
use crate::qemu::{self, Accel, Boot};
use crate::{cc, guest, prepare};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The guest's script, the program that sums its traces, and the workloads.
const FILES: [&str; 2] = ["faults.sh", "fault_waits.awk"];
const PROGRAMS: [&str; 3] = ["fault_startup", "fault_swap", "fault_thrash"];

/// What each of the slow disks can do, in operations per second.
pub(super) const DISK_OPS: u32 = 400;
const SWAP_MIB: u64 = 256;

/// Compiles the kernel's selftest of such faults. Only *drop* has it.
fn selftest(paths: &Paths) -> Result<PathBuf> {
    prepare::prepare_tree(paths, Tree::Drop)?;
    let source = paths.source(Tree::Drop).join("tools/testing/selftests/mm/fault_retry.c");
    let target = paths.guest("fault_retry");
    let text =
        fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-static", "-o"]).arg(&target).arg(&source).arg("-lpthread");
    let log = paths.log("compile-fault_retry");
    cc::compile("fault_retry", &text, &mut gcc, &target, &log)?;
    Ok(target)
}

/// Runs the workloads on one kernel.
///
/// # Errors
/// If the kernel does not boot, there is a splat, or a workload fails: with wrong data, above all.
pub(super) fn run(
    paths: &Paths,
    name: &str,
    image: &Path,
    workloads: &[&str],
    config: Config,
) -> Result<Counts> {
    with_boot(paths, name, image, workloads, config, |boot| {
        let outcome = qemu::boot(paths, boot)?;
        Ok((outcome.output, outcome.status))
    })
}

/// Runs the workloads on a kernel that is known to be wrong: splats are no errors.
///
/// # Errors
/// If the kernel does not boot, or a workload fails.
pub(super) fn run_broken(
    paths: &Paths,
    name: &str,
    image: &Path,
    workloads: &[&str],
) -> Result<Counts> {
    with_boot(paths, name, image, workloads, Config::Faults, |boot| {
        let ran = qemu::run(paths, boot)?;
        Ok((ran.output, ran.end?))
    })
}

fn with_boot(
    paths: &Paths,
    name: &str,
    image: &Path,
    workloads: &[&str],
    config: Config,
    boot: impl FnOnce(&Boot) -> Result<(String, i32)>,
) -> Result<Counts> {
    let mut files: Vec<_> =
        FILES.iter().map(|file| paths.kernel.join("guest").join(file)).collect();
    for program in PROGRAMS {
        files.push(guest::compile(paths, program)?);
    }
    files.push(selftest(paths)?);
    let root = guest::root(paths, &files)?;
    // The lab's own disk comes after these two, so that they are vda, on /mnt, and vdb.
    let (slow, swap) = (paths.guest("slow.img"), paths.guest("swap.img"));
    fs::rename(guest::disk(paths)?, &slow)?;
    prepare::remove_file(&swap)?;
    fs::File::create(&swap)?.set_len(SWAP_MIB << 20)?;
    let drives = [&slow, &swap].map(|image| {
        format!("file={},if=virtio,format=raw,throttling.iops-total={DISK_OPS}", image.display())
    });
    // A debug kernel is some ten times slower, and needs memory to remember.
    let (slower, mem_mib) = if config == Config::FaultsDebug { (8, 1536) } else { (1, 512) };
    let (output, status) = boot(&Boot {
        name: &format!("faults-{name}"),
        image,
        root: &root,
        command: &format!("sh /lab/faults.sh {DISK_OPS} {}", workloads.join(" ")),
        append: "kunit.enable=0",
        accel: Accel::Tcg,
        limit: Duration::from_secs(slower * (60 + 90 * workloads.len() as u64)),
        mem_mib,
        args: &["-drive", &drives[0], "-drive", &drives[1]],
    })?;
    if status != 0 {
        bail!("{name}: failed with status {status}:\n{output}");
    }
    Counts::parse(&output, workloads).with_context(|| name.to_string())
}
