//! One machine: its configuration, its kernel, and its boot.

use crate::kernels::Tree;
use crate::paths::Paths;
use crate::proc::{self, Ended};
use crate::{build, git, prepare, splat};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A machine: how to build for it, and how to boot it.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    /// `ARCH`.
    pub(super) arch: &'static str,
    /// The fragments of configuration.
    pub(super) fragments: &'static [&'static str],
    /// The patches.
    pub(super) tree: Tree,
    /// `CROSS_COMPILE`; empty for the machine's own compiler.
    pub(super) cross: &'static str,
    /// What the fragment is put on top of.
    pub(super) base: &'static str,
    pub(super) target: &'static str,
    /// The image's path in the objects, and QEMU with its arguments; the last is the console.
    pub(super) boot: Option<(&'static str, &'static [&'static str], &'static str)>,
}

pub(super) const ARM64: Machine = Machine {
    arch: "arm64",
    fragments: &["arm64"],
    tree: Tree::Series,
    cross: "aarch64-linux-gnu-",
    base: "tinyconfig",
    target: "Image",
    boot: Some((
        "arch/arm64/boot/Image",
        &["qemu-system-aarch64", "-machine", "virt", "-cpu", "max", "-smp", "2"],
        "ttyAMA0",
    )),
};

/// How long a boot may take. Each takes about a minute; the selftest, whose threads wait for each
/// other, took more than five beside programs that kept all cores busy.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// `make` for a machine.
pub(super) fn make(paths: &Paths, machine: &Machine, objects: &str) -> Command {
    let jobs = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut make = Command::new("nice");
    git::without_variables(&mut make);
    make.args(["-n", "10", "make", "-s", &format!("-j{jobs}"), "-C"])
        .arg(paths.source(machine.tree))
        .arg(format!("O={objects}"))
        .arg(format!("ARCH={}", machine.arch))
        .arg(format!("CROSS_COMPILE={}", machine.cross));
    make
}

/// The fragments of configuration of a machine.
///
/// # Errors
/// If one cannot be read.
pub(super) fn fragments(paths: &Paths, machine: &Machine) -> Result<String> {
    let read = |name| build::read(&paths.kernel.join(format!("lab/config/{name}.config")));
    let all = machine.fragments.iter().map(read).collect::<Result<String>>()?;
    Ok(build::without_missing(paths, machine.tree, all))
}

/// What a machine's objects are called. Several machines may have the same fragment.
pub(super) fn name(machine: &Machine) -> String {
    let (tree, arch) = (machine.tree.name(), machine.arch);
    match machine.fragments.last() {
        Some(fragment) if fragment.starts_with(arch) => format!("{tree}-{fragment}"),
        Some(fragment) => format!("{tree}-{arch}-{fragment}"),
        None => format!("{tree}-{arch}"),
    }
}

/// Configures a machine's kernel. Returns the folder for its objects, and the log of its builds.
///
/// # Errors
/// If that fails, or Kconfig drops an option.
pub(super) fn configure(paths: &Paths, machine: &Machine) -> Result<(String, PathBuf)> {
    let objects = paths.cache.join("build").join(name(machine));
    fs::create_dir_all(&objects)?;
    let dir = objects.to_string_lossy().into_owned();
    let fragment = fragments(paths, machine)?;
    let (stamp, dot_config) = (objects.join("lab-fragments"), objects.join(".config"));
    let log = paths.log(&format!("build-{}", name(machine)));
    let what = format!("configuring {}", name(machine));
    if !build::holds(&stamp, &fragment) {
        prepare::remove_file(&stamp)?;
        proc::run(&what, make(paths, machine, &dir).arg(machine.base), &log)?;
        fs::write(&dot_config, build::read(&dot_config)? + &fragment)?;
        proc::run(&what, make(paths, machine, &dir).arg("olddefconfig"), &log)?;
        fs::write(&stamp, &fragment).context("cannot record the configuration")?;
    }
    let lacking = build::lacking(&build::read(&dot_config)?, &build::requested(&fragment));
    if !lacking.is_empty() {
        bail!("{} lacks requested options: {}", dot_config.display(), lacking.join(", "));
    }
    Ok((dir, log))
}

/// Builds a machine's kernel, and returns the folder of its objects.
///
/// # Errors
/// If it does not build.
pub(super) fn build(paths: &Paths, machine: &Machine) -> Result<PathBuf> {
    let (objects, log) = configure(paths, machine)?;
    let what = format!("building {}", name(machine));
    let mut make = make(paths, machine, &objects);
    proc::run_for(&what, make.arg(machine.target), &log, build::LONGEST)?;
    Ok(objects.into())
}

/// QEMU with what every boot has.
pub(super) fn emulator(qemu: &[&str], image: &Path) -> Command {
    let mut command = Command::new(qemu[0]);
    command
        .args(&qemu[1..])
        .args(["-nodefaults", "-display", "none", "-no-reboot", "-m", "1024M", "-kernel"])
        .arg(image);
    command
}

/// The kernel's parameters that every boot has.
pub(super) fn parameters(console: &str) -> String {
    format!("console={console} panic=-1")
}

/// Boots, and returns the kernel's log.
///
/// # Errors
/// If the boot does not come to its restart, or there is a splat in the log.
pub(super) fn boot(paths: &Paths, name: &str, qemu: &mut Command) -> Result<String> {
    let console = paths.log(&format!("console-{name}"));
    prepare::remove_file(&console)?;
    qemu.arg("-serial").arg(format!("file:{}", console.display()));
    let log = paths.log(&format!("qemu-{name}"));
    let ended = proc::run_limited(&format!("{name} under TCG"), qemu, &log, LIMIT)?;
    let text = build::read(&console)?.replace('\r', "");
    whole(name, &ended, &text)?;
    Ok(text)
}

/// Checks that a boot came to its restart without a splat.
fn whole(arch: &str, ended: &Ended, text: &str) -> Result<()> {
    if let Some(first) = splat::find(text).first() {
        bail!("{arch}: the kernel's log has a splat ({}):\n{}", first.kind, first.shown());
    }
    match ended {
        Ended::Exited(status) if status.success() && text.contains("reboot: Restarting system") => {
            Ok(())
        }
        Ended::Exited(_) => bail!("{arch}: no restart in the log:\n{}", proc::last_lines(text)),
        Ended::TimedOut => bail!("{arch}: does not end:\n{}", proc::last_lines(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    #[test]
    fn a_boot_that_is_not_whole_is_found() {
        let good = "Linux version 6\n# page_ref: pass:2\nreboot: Restarting system\n";
        let ended = |code| Ended::Exited(ExitStatus::from_raw(code));
        whole("arm64", &ended(0), good).unwrap();
        whole("arm64", &ended(256), good).unwrap_err();
        whole("arm64", &Ended::TimedOut, good).unwrap_err();
        whole("arm64", &ended(0), "Linux version 6\n").unwrap_err();
        let splat = good.replace("# page_ref", "WARNING: CPU: 0 PID: 1 at mm/a.c:1\n# page_ref");
        let error = whole("arm64", &ended(0), &splat).unwrap_err().to_string();
        assert!(error.contains("mm/a.c:1"), "{error}");
    }
}
