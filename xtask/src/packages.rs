//! The only list of Debian packages that these commands need. `main` installs them before a
//! command begins; where it lacks the permission, the error names them.

use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use xshell::{Shell, cmd};

/// What needs packages beside README's prerequisites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// The other caches of `bench get`, one of them RocksDB's.
    Peers,
    /// The debugger that stops at the tracepoints.
    Probes,
    /// Instructions counted.
    Valgrind,
    /// A compiler and an emulator for aarch64.
    Aarch64,
    /// What runs on the file system of the example `fuse`; fsx is in no package.
    Programs,
    /// Another Debian beside this one.
    Root,
}

impl Need {
    fn packages(self) -> &'static [&'static str] {
        match self {
            Need::Peers => &["g++", "librocksdb-dev"],
            Need::Probes => &["gdb"],
            Need::Valgrind => &["valgrind"],
            Need::Aarch64 => &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"],
            Need::Programs => &["fio", "fuse3", "git", "sqlite3", "stress-ng"],
            Need::Root => &["mmdebstrap"],
        }
    }
}

/// Installs what is not there of the packages that these need.
///
/// # Errors
/// If we are not root, with the command to run; or if apt fails.
pub(crate) fn bring(sh: &Shell, needs: &[Need]) -> Result<()> {
    // In alphabetical order, each once.
    let wanted: BTreeSet<_> = needs.iter().flat_map(|need| need.packages()).copied().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let status = "${Package} ${db:Status-Status}\\n";
    // It fails for packages that it has never heard of, and lists the others.
    let query = cmd!(sh, "dpkg-query --show --showformat {status}").args(&wanted);
    let Ok(known) = query.quiet().ignore_status().ignore_stderr().read() else {
        println!("no dpkg here, so nothing is installed; needed are Debian's {}", spaced(wanted));
        return Ok(());
    };
    install(sh, &missing(wanted, &known))
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

fn install(sh: &Shell, packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    if !rustix::process::geteuid().is_root() {
        bail!("run `sudo apt-get install {names}`, then this again");
    }
    let _quiet = sh.push_env("DEBIAN_FRONTEND", "noninteractive");
    cmd!(sh, "apt-get update -q").run()?;
    cmd!(sh, "apt-get install -q -y --no-install-recommends {packages...}")
        .run()
        .with_context(|| format!("cannot install {names}"))
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
