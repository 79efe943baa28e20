//! Boots a kernel, and runs races of reads in it.

use crate::guest;
use crate::paths::Paths;
use crate::qemu::{self, Boot};
use anyhow::Result;
use std::path::Path;
use std::time::Duration;

/// More CPUs than a small machine has: a CPU of the guest that the host stops in the middle of a
/// read leaves time for whatever comes between.
const CPUS: &[&str] = &["-smp", "4"];

/// A tmpfs whose files have huge pages.
pub(super) const HUGE: &str = "mkdir /tmp/huge
mount -t tmpfs -o huge=always,size=64M huge /tmp/huge || exit 1";

/// Runs a script with the races on a kernel; returns its output and status.
///
/// # Errors
/// If the kernel does not boot, or there is a splat in its log.
pub(super) fn run(
    paths: &Paths,
    name: &str,
    image: &Path,
    command: &str,
    limit_s: u64,
) -> Result<(String, i32)> {
    let root = guest::root(paths, &[guest::compile(paths, "read_races")?])?;
    let outcome = qemu::boot(
        paths,
        &Boot {
            name,
            image,
            root: &root,
            command,
            append: "kunit.enable=0",
            accel: qemu::accel(paths, image, &root)?,
            limit: Duration::from_secs(limit_s),
            mem_mib: 1024,
            args: CPUS,
        },
    )?;
    Ok((outcome.output, outcome.status))
}
