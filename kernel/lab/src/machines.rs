//! The patched kernel on other machines: it is built for each of them, and where QEMU has the
//! machine and the configuration has `KUnit`, the suites run. They run while the kernel boots and
//! then restart it, so no guest is packed.

use crate::kernels::Tree;
use crate::paths::Paths;
use crate::proc::{self, Ended};
use crate::{build, git, prepare, smoke, splat};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A machine: how to build for it, and how to boot it.
struct Machine {
    /// `ARCH`, and the name of the fragment of configuration.
    arch: &'static str,
    /// `CROSS_COMPILE`; empty for the machine's own compiler.
    cross: &'static str,
    /// What the fragment is put on top of.
    base: &'static str,
    target: &'static str,
    /// The image's path in the objects, and QEMU with its arguments; the last is the console.
    boot: Option<(&'static str, &'static [&'static str], &'static str)>,
}

const MACHINES: &[Machine] = &[
    Machine {
        arch: "arm64",
        cross: "aarch64-linux-gnu-",
        base: "tinyconfig",
        target: "Image",
        boot: Some((
            "arch/arm64/boot/Image",
            &["qemu-system-aarch64", "-machine", "virt", "-cpu", "max", "-smp", "2"],
            "ttyAMA0",
        )),
    },
    Machine {
        arch: "i386",
        cross: "",
        base: "tinyconfig",
        target: "bzImage",
        boot: Some((
            "arch/x86/boot/bzImage",
            &["qemu-system-x86_64", "-cpu", "qemu32", "-smp", "2,sockets=2,cores=1"],
            "ttyS0",
        )),
    },
    Machine {
        arch: "m68k",
        cross: "m68k-linux-gnu-",
        base: "m5208evb_defconfig",
        target: "vmlinux",
        boot: None,
    },
];

/// How long a boot may take.
const LIMIT: Duration = Duration::from_secs(300);

/// `kernel machines`: builds for each machine, and boots those that can be.
///
/// # Errors
/// The first that does not build, or whose boot fails.
pub(crate) fn machines(paths: &Paths) -> Result<()> {
    for machine in MACHINES {
        let objects = build(paths, machine)?;
        match machine.boot {
            Some((image, qemu, console)) => {
                let log = boot(paths, machine.arch, &objects.join(image), qemu, console)?;
                let asked = fragment(paths, machine)?;
                println!("{}: {}", machine.arch, smoke::suites(paths, &log, &asked)?);
            }
            None => println!("{}: builds", machine.arch),
        }
    }
    Ok(())
}

fn make(paths: &Paths, machine: &Machine, objects: &str) -> Command {
    let jobs = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut make = Command::new("nice");
    git::without_variables(&mut make);
    make.args(["-n", "10", "make", "-s", &format!("-j{jobs}"), "-C"])
        .arg(paths.source(Tree::Series))
        .arg(format!("O={objects}"))
        .arg(format!("ARCH={}", machine.arch))
        .arg(format!("CROSS_COMPILE={}", machine.cross));
    make
}

/// The fragment of configuration of a machine.
fn fragment(paths: &Paths, machine: &Machine) -> Result<String> {
    build::read(&paths.kernel.join(format!("lab/config/{}.config", machine.arch)))
}

fn build(paths: &Paths, machine: &Machine) -> Result<PathBuf> {
    let objects = paths.cache.join("build").join(format!("series-{}", machine.arch));
    fs::create_dir_all(&objects)?;
    let dir = objects.to_string_lossy().into_owned();
    let fragment = fragment(paths, machine)?;
    let (stamp, dot_config) = (objects.join("lab-fragments"), objects.join(".config"));
    let log = paths.log(&format!("build-series-{}", machine.arch));
    let what = format!("configuring {}", machine.arch);
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
    let what = format!("building series for {}", machine.arch);
    let mut make = make(paths, machine, &dir);
    proc::run_for(&what, make.arg(machine.target), &log, build::LONGEST)?;
    Ok(objects)
}

/// Boots, and returns the kernel's log.
fn boot(
    paths: &Paths,
    arch: &str,
    image: &std::path::Path,
    qemu: &[&str],
    tty: &str,
) -> Result<String> {
    let console = paths.log(&format!("console-{arch}"));
    prepare::remove_file(&console)?;
    let mut command = Command::new(qemu[0]);
    command
        .args(&qemu[1..])
        .args(["-nodefaults", "-display", "none", "-no-reboot", "-m", "1024M", "-kernel"])
        .arg(image)
        .arg("-append")
        .arg(format!("console={tty} panic=-1 kunit_shutdown=reboot"))
        .arg("-serial")
        .arg(format!("file:{}", console.display()));
    let log = paths.log(&format!("qemu-{arch}"));
    let ended = proc::run_limited(&format!("{arch} under TCG"), &mut command, &log, LIMIT)?;
    let text = build::read(&console)?.replace('\r', "");
    whole(arch, &ended, &text)?;
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
