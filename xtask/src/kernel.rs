//! The kernel's part of `cargo xtask test`, and the way to the lab's own command line.

use std::process::{Command, exit};

use anyhow::Result;
use xshell::{Cmd, Shell, cmd};

use crate::packages;

/// The lab's commands that do without a kernel's source.
const WITHOUT_SOURCE: [&str; 3] = ["help", "packages", "report"];

/// `cargo xtask kernel ARGS`, with the Debian packages that the command needs.
pub(crate) fn run(sh: &Shell, args: &[String]) -> Result<()> {
    let helps = args.iter().take_while(|a| *a != "--").any(|a| a == "-h" || a == "--help");
    match args.first() {
        Some(command) if !helps && !WITHOUT_SOURCE.contains(&command.as_str()) => bring(sh)?,
        _ => {}
    }
    pass_on(sh, "kernel", args)
}

/// Runs the lab's own command. Ends as it does if it fails: it has said why.
pub(crate) fn pass_on(sh: &Shell, what: &str, args: &[String]) -> Result<()> {
    let status = Command::from(lab(sh, what, args)).status()?;
    if !status.success() {
        exit(status.code().unwrap_or(1));
    }
    Ok(())
}

/// The series on a tiny kernel.
pub(crate) fn check(sh: &Shell) -> Result<()> {
    run(sh, &["check".to_owned()])
}

/// Sees to the packages that the lab names as missing.
fn bring(sh: &Shell) -> Result<()> {
    let missing = lab(sh, "kernel", &["packages".to_owned()]).read()?;
    let missing: Vec<_> = missing.split_whitespace().collect();
    packages::install(sh, &missing)
}

fn lab<'a>(sh: &'a Shell, what: &str, args: &[String]) -> Cmd<'a> {
    cmd!(sh, "cargo run --quiet --release -p pinfold-lab -- {what} {args...}").quiet()
}
