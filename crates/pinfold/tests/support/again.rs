//! This program again, in a process that runs one test.

use std::process::Command;

/// A process that runs the test `name` of a module, of which `module` is the `module_path!()`, and
/// no other test.
pub(crate) fn again(module: &str, name: &str) -> Command {
    // The path of a test does not begin with its program.
    let path = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{name}"),
        None => name.to_owned(),
    };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &path, "--nocapture"]).env("RUST_BACKTRACE", "0");
    command
}
