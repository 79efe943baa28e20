//! The selftest of page faults that wait, on arm64, which has a fault handler of its own. The
//! guest has that one program, and a disk that is slow enough to wait for.

use super::machine::{ARM64, Machine, boot, build, emulator, parameters};
use crate::kernels::Tree;
use crate::paths::Paths;
use crate::{cc, faults, guest, prepare, proc};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the disk can do, in operations per second.
const DISK_OPS: u32 = 400;

const DROP: Machine = Machine { fragments: &["arm64", "arm64-faults"], tree: Tree::Drop, ..ARM64 };

/// Compiles a program for arm64, statically.
fn compile(paths: &Paths, name: &str, source: &Path) -> Result<PathBuf> {
    let target = paths.guest(&format!("arm64-{name}"));
    let text =
        fs::read_to_string(source).with_context(|| format!("cannot read {}", source.display()))?;
    let mut gcc = Command::new("aarch64-linux-gnu-gcc");
    gcc.args(["-O2", "-Wall", "-static", "-o"]).arg(&target).arg(source).arg("-lpthread");
    cc::compile(name, &text, &mut gcc, &target, &paths.log(&format!("compile-arm64-{name}")))?;
    Ok(target)
}

/// Packs the program, and the `/init` that runs it.
fn initramfs(paths: &Paths) -> Result<PathBuf> {
    let root = paths.guest("arm64-root");
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root)?;
    let init = paths.kernel.join("guest/lone_init.c");
    fs::copy(compile(paths, "lone_init", &init)?, root.join("init"))?;
    let selftest = faults::selftest_source(paths, Tree::Drop)?;
    fs::copy(compile(paths, "fault_retry", &selftest)?, root.join("program"))?;
    let target = paths.guest("arm64.cpio");
    guest::pack(paths, &root, &target)?;
    Ok(target)
}

/// Runs the selftest on the kernel that retries faults under their VMA's lock.
///
/// # Errors
/// If a program or the kernel does not build, the boot fails, or a case does.
pub(super) fn arm64(paths: &Paths) -> Result<()> {
    prepare::prepare_tree(paths, DROP.tree)?;
    let objects = build(paths, &DROP)?;
    let (image, qemu, console) = DROP.boot.context("arm64 cannot be booted")?;
    let disk = guest::disk(paths)?;
    let mut qemu = emulator(qemu, &objects.join(image));
    qemu.arg("-append")
        .arg(format!("{} kunit.enable=0", parameters(console)))
        .arg("-initrd")
        .arg(initramfs(paths)?)
        .args(["-device", "virtio-blk-device,drive=disk", "-drive"])
        .arg(format!(
            "file={},if=none,id=disk,format=raw,throttling.iops-total={}",
            disk.display(),
            DISK_OPS
        ));
    let log = boot(paths, "arm64-faults", &mut qemu)?;
    let cases = passed(&log).with_context(|| proc::last_lines(&log))?;
    println!("arm64: fault_retry: {cases} cases pass");
    Ok(())
}

/// How many cases passed, if all did.
fn passed(log: &str) -> Result<usize> {
    // A case that is skipped is "ok", too, but shows nothing.
    if let Some(skipped) = log.lines().find(|l| l.starts_with("ok ") && l.contains("# SKIP")) {
        bail!("fault_retry: {skipped}");
    }
    let cases = |result: &str| log.lines().filter(|line| line.starts_with(result)).count();
    let (ok, not_ok) = (cases("ok "), cases("not ok "));
    if !log.contains("init: exit status 0\n") || not_ok > 0 || ok != faults::CASES.len() {
        bail!("fault_retry: {ok} of {} cases pass", faults::CASES.len());
    }
    Ok(ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_did_not_pass_is_found() {
        let cases: Vec<_> = (1..=faults::CASES.len()).map(|n| format!("ok {n} a case\n")).collect();
        let log = |cases: &str| format!("[ 1.0] Run /init\n{cases}init: exit status 0\n");
        let good = log(&cases.concat());
        assert_eq!(passed(&good).unwrap(), cases.len());
        passed(&good.replacen("ok 2", "not ok 2", 1)).unwrap_err();
        passed(&log(&cases[1..].concat())).unwrap_err();
        let skipped = passed(&good.replacen("ok 2 a case", "ok 2 # SKIP no counters", 1));
        assert!(skipped.unwrap_err().to_string().contains("no counters"));
        passed(&good.replace("status 0", "status 256")).unwrap_err();
    }
}
