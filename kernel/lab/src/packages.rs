//! The Debian packages that the commands need. `main` installs those that are missing before a
//! command begins; if it is not root, the error names them.

use crate::paths::Paths;
use crate::proc;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

/// What builds, boots and reads kernels for this machine, and what the lab's unit tests need. The
/// headers are those of the kernel's build (libelf) and of its selftests.
pub(crate) const KERNELS: &[&str] = &[
    "bc",
    "bison",
    "busybox-static",
    "cpio",
    "e2fsprogs",
    "flex",
    "gcc",
    "git",
    "libc6-dev",
    "libcap-dev",
    "libelf-dev",
    "libnuma-dev",
    "linux-source-6.12",
    "make",
    "perl",
    "python3",
    "qemu-system-x86",
    "xz-utils",
];

/// Compilers and emulators of other machines.
pub(crate) const MACHINES: &[&str] = &[
    "gcc-aarch64-linux-gnu",
    "gcc-arm-linux-gnueabi",
    "gcc-m68k-linux-gnu",
    "gcc-powerpc64le-linux-gnu",
    "gcc-riscv64-linux-gnu",
    "gcc-s390x-linux-gnu",
    "libc6-dev-arm64-cross",
    "qemu-system-arm",
];

/// What counts the reads of this machine's own kernel.
pub(crate) const TRACES: &[&str] = &["bpftrace"];

/// How long dpkg may take to say what is installed.
const LIMIT: Duration = Duration::from_secs(60);

/// Installs those of these packages that are missing. On a system without dpkg it only names them.
///
/// # Errors
/// If a package is missing and the caller is not root: the command to run. If apt fails.
pub(crate) fn bring(paths: &Paths, lists: &[&[&'static str]]) -> Result<()> {
    let wanted: BTreeSet<_> = lists.concat().into_iter().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    if !proc::on_path("dpkg-query") {
        println!("no dpkg here, so nothing is installed; needed are Debian's {}", spaced(wanted));
        return Ok(());
    }
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${Package} ${db:Status-Status}\\n"]).args(&wanted);
    // It fails if it has never heard of one, and lists the others.
    let known = proc::capture(&mut query, LIMIT)?.stdout;
    let missing = missing(wanted, &String::from_utf8_lossy(&known));
    if missing.is_empty() {
        return Ok(());
    }
    let names = spaced(missing.iter().copied());
    if !rustix::process::geteuid().is_root() {
        bail!("run `sudo apt-get install {names}`, then this again");
    }
    let apt = |args: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive").arg("-q").args(args);
        proc::run(&format!("apt-get {}", args.join(" ")), &mut apt, &paths.log("packages"))
    };
    apt(&["update"])?;
    apt(&[&["install", "-y", "--no-install-recommends"], &missing[..]].concat())
        .with_context(|| format!("cannot install {names}"))
}

/// The packages that `dpkg-query` does not call installed.
fn missing<'a>(mut wanted: BTreeSet<&'a str>, known: &str) -> Vec<&'a str> {
    for line in known.lines() {
        if let Some(package) = line.strip_suffix(" installed") {
            wanted.remove(package);
        }
    }
    wanted.into_iter().collect()
}

fn spaced<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_installed_is_not_missing() {
        let known = "make installed\ncpio config-files\nlibelf-dev installed\nlibelf-dev installed";
        let wanted = BTreeSet::from(["bc", "cpio", "libelf-dev", "make"]);
        assert_eq!(missing(wanted.clone(), known), ["bc", "cpio"]);
        assert_eq!(missing(wanted, ""), ["bc", "cpio", "libelf-dev", "make"]);
    }
}
