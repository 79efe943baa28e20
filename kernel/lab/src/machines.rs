//! The patched kernel on other machines: it is built for each of them, and where QEMU has the
//! machine and the configuration has `KUnit`, the suites run. They run while the kernel boots and
//! then restart it, so no guest is packed. The selftest of page faults that wait needs one
//! (`machines/waiting.rs`). What no machine here has is compiled (`machines/allmod.rs`).

mod allmod;
mod machine;
mod waiting;

use crate::kernels::Tree;
use crate::paths::Paths;
use crate::smoke;
use anyhow::Result;
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

/// `kernel machines`: builds for each machine, and boots those that can be.
///
/// # Errors
/// The first that does not build, or whose boot fails.
pub(crate) fn machines(paths: &Paths) -> Result<()> {
    for machine in MACHINES {
        let objects = machine::build(paths, machine)?;
        match machine.boot {
            Some((image, qemu, console)) => {
                let mut qemu = machine::emulator(qemu, &objects.join(image));
                qemu.arg("-append")
                    .arg(format!("{} kunit_shutdown=reboot", machine::parameters(console)));
                let log = machine::boot(paths, machine.arch, &mut qemu)?;
                let asked = machine::fragments(paths, machine)?;
                println!("{}: {}", machine.arch, smoke::suites(paths, Tree::Series, &log, &asked)?);
            }
            None => println!("{}: builds", machine.arch),
        }
    }
    waiting::arm64(paths)?;
    allmod::compile(paths)
}
