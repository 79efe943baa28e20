//! The kernel's part of `cargo xtask test`, and the way to the lab's own command line.

use std::process::{Command, exit};

use anyhow::Result;
use xshell::{Cmd, Shell, cmd};

use crate::packages::Need;

/// The lab's commands that build or boot kernels, or read what was built.
const WITH_KERNELS: [&str; 17] = [
    "prepare",
    "check",
    "build",
    "run",
    "test",
    "each",
    "selftests",
    "mutants",
    "machines",
    "stress",
    "bench",
    "writes",
    "pins",
    "cores",
    "faults",
    "reads",
    "report",
];

/// What `cargo xtask kernel ARGS` needs. Nothing is installed for help, or for a command that does
/// not exist.
pub(crate) fn needs(args: &[String]) -> Vec<Need> {
    let helps = args.iter().take_while(|a| *a != "--").any(|a| a == "-h" || a == "--help");
    match args.first().map(String::as_str) {
        _ if helps => vec![],
        Some("machines") => vec![Need::Lab, Need::Machines],
        Some("read-sizes") => vec![Need::Traces],
        Some(command) if WITH_KERNELS.contains(&command) => vec![Need::Lab],
        _ => vec![],
    }
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

    fn needs_of(line: &str) -> Vec<Need> {
        needs(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_typing_error_installs_nothing() {
        assert_eq!(needs_of("machines"), [Need::Lab, Need::Machines]);
        assert_eq!(needs_of("check"), [Need::Lab]);
        assert_eq!(needs_of("run -- pread_bench --help"), [Need::Lab]);
        for line in ["chekc", "", "build --help", "report --help"] {
            assert_eq!(needs_of(line), [], "{line}");
        }
    }

    #[test]
    fn each_command_of_the_lab_is_known() {
        let readme = include_str!("../../kernel/lab/README.md");
        let rows = readme.lines().filter_map(|l| l.strip_prefix("| `cargo xtask kernel "));
        let commands: Vec<_> = rows.filter_map(|row| row.split([' ', '`']).next()).collect();
        assert!(commands.len() > WITH_KERNELS.len());
        for command in commands {
            assert_ne!(needs_of(command), [], "{command}");
        }
    }
}
