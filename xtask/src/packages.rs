//! Debian packages that a step needs: installed when we may, named when we may not.

use anyhow::{Context, Result, bail};
use xshell::{Shell, cmd};

/// Sees to it that `program` is there, which Debian's `package` brings.
pub(crate) fn need(sh: &Shell, program: &str, package: &str) -> Result<()> {
    let found = cmd!(sh, "which {program}").quiet().ignore_stdout().ignore_stderr().run().is_ok();
    if found { Ok(()) } else { bring(sh, program, package) }
}

/// Sees to it that the C or C++ header `header` is there, which Debian's `package` brings.
pub(crate) fn need_header(sh: &Shell, header: &str, package: &str) -> Result<()> {
    let found = sh.path_exists(format!("/usr/include/{header}"));
    if found { Ok(()) } else { bring(sh, header, package) }
}

/// Installs the package that brings `what`.
pub(crate) fn bring(sh: &Shell, what: &str, package: &str) -> Result<()> {
    install(sh, &[package]).with_context(|| format!("{what} is missing"))
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
