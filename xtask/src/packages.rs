//! Debian packages that a step needs: installed when we may, named when we may not.

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

/// Sees to it that `program` is there, which Debian's `package` brings.
pub(crate) fn need(sh: &Shell, program: &str, package: &str) -> Result<()> {
    if cmd!(sh, "which {program}").quiet().ignore_stdout().ignore_stderr().run().is_ok() {
        return Ok(());
    }
    install(sh, &[package]).with_context(|| format!("{program} is missing"))
}

/// Installs Debian packages; none is no work.
pub(crate) fn install(sh: &Shell, packages: &[&str]) -> Result<()> {
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
