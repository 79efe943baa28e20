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

#[cfg(test)]
mod tests {
    use super::super::results::Results;
    use super::*;
    use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
    use std::fs;
    use std::process::Command;

    /// The program runs on this machine as well, on tmpfs and with ordinary reads.
    #[test]
    fn ordinary_reads_return_what_the_tables_have() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf();
        let paths = Paths::new(kernel, dir.path());
        for folder in ["guest", "log"] {
            fs::create_dir(paths.cache.join(folder)).unwrap();
        }
        let program = guest::compile(&paths, "read_races").unwrap();
        let files = tempfile::tempdir_in("/dev/shm").unwrap();
        let run = |wrong: &[&str]| {
            let mut run = Command::new(&program);
            run.args(wrong).arg("0.05").arg(files.path()).args(["--", "overwrite", "append"]);
            let out = run.output().unwrap();
            let text = String::from_utf8(out.stdout).unwrap();
            (out.status.code(), Results::parse(&text).unwrap(), text)
        };
        let (status, right, text) = run(&[]);
        assert_eq!(status, Some(0), "{text}");
        assert_eq!((right.races(), right.wrong()), (2, 0), "{text}");
        assert!(text.contains("seen tmpfs overwrite ordinary full one - "), "{text}");
        // On one CPU, few reads come between a claim and its step.
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        sched_setaffinity(None, &one).unwrap();
        for kind in ["byte", "size", "early"] {
            let (status, wrong, text) = run(&["-w", kind]);
            assert_eq!(status, Some(1), "{text}");
            assert!(wrong.wrong() > 0 && wrong.first_wrong().starts_with("WRONG "), "{text}");
        }
    }
}
