//! The kernel's part of `cargo xtask test`, and the way to the lab's own command line.

use anyhow::Result;
use xshell::{Shell, cmd};

use crate::packages;

/// Runs the lab's own command.
pub(crate) fn lab(sh: &Shell, what: &str, rest: &[String]) -> Result<()> {
    Ok(cmd!(sh, "cargo run --quiet --release -p pinfold-lab -- {what} {rest...}").quiet().run()?)
}

/// The series on a tiny kernel, with the Debian packages that this needs.
pub(crate) fn check(sh: &Shell) -> Result<()> {
    let missing =
        cmd!(sh, "cargo run --quiet --release -p pinfold-lab -- kernel packages").read()?;
    let missing: Vec<_> = missing.split_whitespace().collect();
    packages::install(sh, &missing)?;
    lab(sh, "kernel", &["check".to_owned()])
}
