//! What the lab's own code has to pass: format, lints, documentation and unit tests.

use crate::paths::Paths;
use crate::proc;
use anyhow::Result;
use std::process::Command;

/// Each with the name of its log.
const CHECKS: [(&str, &[&str]); 4] = [
    ("format", &["fmt", "--check"]),
    ("lints", &["clippy", "--locked", "--all-targets", "--", "-D", "warnings"]),
    ("documentation", &["doc", "--locked", "--no-deps"]),
    ("unit-tests", &["test", "--locked"]),
];

/// Runs all of them, by the cargo that runs the lab.
///
/// # Errors
/// The first that fails.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    for (name, args) in CHECKS {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&paths.kernel).env("RUSTDOCFLAGS", "-D warnings").args(args);
        proc::run(&format!("the lab itself: {name}"), &mut cargo, &paths.log(name))?;
    }
    println!("lab: format, lints, documentation and unit tests pass");
    Ok(())
}
