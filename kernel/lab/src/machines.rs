//! The patched kernel on other machines: it is built for each of them, and where QEMU has the
//! machine and the configuration has `KUnit`, the suites run. They run while the kernel boots and
//! then restart it, so no guest is packed. The selftest of page faults that wait needs one
//! (`machines/waiting.rs`). What no machine here has is compiled (`machines/objects.rs`).

mod machine;
mod objects;
mod waiting;

use crate::failures::Failures;
use crate::kernels::Tree;
use crate::paths::Paths;
use crate::smoke;
use anyhow::{Context, Result};
use machine::{ARM64, Machine};

const MACHINES: &[Machine] = &[
    ARM64,
    Machine {
        arch: "i386",
        fragments: &["i386"],
        tree: Tree::Series,
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
        fragments: &["m68k"],
        tree: Tree::Series,
        cross: "m68k-linux-gnu-",
        base: "m5208evb_defconfig",
        target: "vmlinux",
        boot: None,
    },
];

/// Builds for one machine, and boots it if that can be.
fn one(paths: &Paths, machine: &Machine) -> Result<()> {
    let objects = machine::build(paths, machine)?;
    let Some((image, qemu, console)) = machine.boot else {
        println!("{}: builds", machine.arch);
        return Ok(());
    };
    let mut qemu = machine::emulator(qemu, &objects.join(image));
    qemu.arg("-append").arg(format!("{} kunit_shutdown=reboot", machine::parameters(console)));
    let log = machine::boot(paths, machine.arch, &mut qemu)?;
    let asked = machine::fragments(paths, machine)?;
    println!("{}: {}", machine.arch, smoke::suites(paths, machine.tree, &log, &asked)?);
    Ok(())
}

/// `lab machines`: builds for each machine, and boots those that can be. One that fails does
/// not keep the others from being tried: each takes long.
///
/// # Errors
/// All that do not build, and all whose boot fails.
pub(crate) fn machines(paths: &Paths) -> Result<()> {
    let mut failed = Failures::default();
    for machine in MACHINES {
        failed.of(one(paths, machine).with_context(|| machine.arch));
    }
    failed.of(waiting::arm64(paths).context("arm64, page faults that wait"));
    failed.of(objects::machines(paths));
    failed.of(objects::allmod(paths));
    failed.end()
}
