//! The kernel's part of `cargo xtask test`, and the way to the lab's own command line.

use std::process::{Command, exit};

use anyhow::Result;
use xshell::{Cmd, Shell, cmd};

use crate::packages::Need;

/// The lab's commands that want a kernel's source.
const WITH_SOURCE: [&str; 11] = [
    "prepare",
    "check",
    "build",
    "run",
    "test",
    "selftests",
    "machines",
    "stress",
    "bench",
    "writes",
    "cores",
];

/// What `cargo xtask kernel ARGS` needs.
pub(crate) fn needs(args: &[String]) -> Vec<Need> {
    if !wants_source(args) {
        return vec![];
    }
    let others = args.first().is_some_and(|command| command == "machines");
    if others { vec![Need::Lab, Need::Machines] } else { vec![Need::Lab] }
}

/// Nothing is installed for help, or for a command that does not exist.
fn wants_source(args: &[String]) -> bool {
    let helps = args.iter().take_while(|a| *a != "--").any(|a| a == "-h" || a == "--help");
    !helps && args.first().is_some_and(|command| WITH_SOURCE.contains(&command.as_str()))
}

/// Runs the lab's own command. Ends as it does if it fails: it has said why.
pub(crate) fn pass_on(sh: &Shell, what: &str, args: &[String]) -> Result<()> {
    let status = Command::from(lab(sh, what, args)).status()?;
    if !status.success() {
        exit(status.code().unwrap_or(1));
    }
    Ok(())
}

/// What `cargo xtask test` has of it. The litmus tests come after the source, which has the
/// kernel's memory model.
pub(crate) fn all(sh: &Shell) -> Result<()> {
    pass_on(sh, "kernel", &["prepare".to_owned()])?;
    pass_on(sh, "litmus", &[])?;
    pass_on(sh, "kernel", &["check".to_owned()])
}

fn lab<'a>(sh: &'a Shell, what: &str, args: &[String]) -> Cmd<'a> {
    cmd!(sh, "cargo run --quiet -p pinfold-lab -- {what} {args...}").quiet()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_installs_nothing() {
        let wants = |line: &str| {
            wants_source(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert!(wants("check") && wants("run -- pread_bench --help"));
        let needs = |command: &str| needs(&[command.to_owned()]);
        assert_eq!(needs("machines"), [Need::Lab, Need::Machines]);
        assert_eq!(needs("check"), [Need::Lab]);
        assert!(!wants("chekc") && !wants("") && !wants("build --help") && !wants("report"));
    }
}
