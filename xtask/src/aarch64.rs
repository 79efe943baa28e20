//! The cache and its count built for aarch64, and their tests run by qemu's user emulation.
//!
//! What it shows: that it builds, that the inline assembly and the system calls are right there.
//! What it does not: the order of memory accesses, which on this host is the host's (loom's models
//! are for that), and speed.

use anyhow::Result;
use xshell::{Shell, cmd};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Where Debian puts the target's C library.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// Tests that the emulation has no means for, and why.
const SKIPPED: [(&str, &str); 7] = [
    ("a_kernel_that_refuses_rings_is_told_of_and_done_without", "no seccomp filters"),
    ("a_counted_hit_does_store", "a process of its own would need the emulator to be started by"),
    ("a_hit_stores_nothing_in_shared_memory", "the same"),
    ("what_was_brought_for_an_access_keeps_nobody_from_dropping_or_pinning_it", "no userfaultfd"),
    ("the_kernel_takes_no_second_answer_and_knows_no_unknown_feature", "no userfaultfd"),
    ("clients::tests::", "no userfaultfd"),
    ("compaction_beside_splits", "three seconds are too short for it to meet a move"),
];

/// Builds and runs them; loom's models and long searches are the host's business.
pub(crate) fn run(sh: &Shell) -> Result<()> {
    // With no network it is an error only where the target is not there yet.
    let installed = cmd!(sh, "rustup target list --installed").quiet().read()?;
    if !installed.lines().any(|line| line == TARGET) {
        cmd!(sh, "rustup target add {TARGET}").run()?;
    }
    let _linker =
        sh.push_env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    let runner = format!("qemu-aarch64 -L {SYSROOT}");
    let _runner = sh.push_env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    let skips: &Vec<&str> = &SKIPPED.iter().flat_map(|(test, _)| ["--skip", *test]).collect();
    for (test, why) in SKIPPED {
        println!("not run: {test} ({why})");
    }
    cmd!(sh, "cargo test -p pinfold-refcount -p pinfold --target {TARGET} --lib --test reference -- {skips...}")
        .run()?;
    let modules = ["bad_input::", "filling::", "differential::", "objections::"];
    cmd!(sh, "cargo test -p pinfold --target {TARGET} --test it -- {modules...} {skips...}")
        .run()?;
    Ok(())
}
