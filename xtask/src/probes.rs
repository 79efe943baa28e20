//! The tracepoints of the counted reference, checked from outside: a debugger stops at each.

use anyhow::{Result, ensure};
use xshell::{Shell, cmd};

/// Each probe, what to print of it, and what the example makes it say first.
const PROBES: [(&str, &str, &str); 6] = [
    ("set", "", ""),
    ("modify", "$_probe_arg2", "2"),
    ("freeze", "$_probe_arg2, $_probe_arg3", "1 1"),
    ("mod_unless", "$_probe_arg2, $_probe_arg3", "1 0"),
    ("unfreeze", "$_probe_arg2", "1"),
    ("mod_and_test", "$_probe_arg2, $_probe_arg3", "-2 0"),
];

/// Builds the example with probes and runs it once under gdb for each.
pub(crate) fn run(sh: &Shell) -> Result<()> {
    let what = ["--features", "pinfold-refcount/usdt", "--example", "operations"];
    // Of the whole workspace: so `test` has built all that it depends on.
    cmd!(sh, "cargo build --workspace {what...}").run()?;
    let program = sh.current_dir().join("target/debug/examples/operations");
    for (probe, arguments, expected) in PROBES {
        let stop = format!("break -probe-stap pinfold_refcount:{probe}");
        let say = match arguments.split(", ").filter(|a| !a.is_empty()).count() {
            0 => r#"printf "fired:\n""#.to_owned(),
            1 => format!(r#"printf "fired: %ld\n", {arguments}"#),
            _ => format!(r#"printf "fired: %ld %ld\n", {arguments}"#),
        };
        let seen = cmd!(sh, "gdb -nx -batch -ex {stop} -ex run -ex {say} {program}")
            .quiet()
            .ignore_stderr()
            .read()?;
        let fired = format!("fired: {expected}");
        ensure!(
            seen.lines().any(|line| line.trim_end() == fired.trim_end()),
            "the probe {probe} did not say «{}»; gdb said:\n{seen}",
            fired.trim_end()
        );
        println!("probe {probe}: {}", fired.trim_end());
    }
    Ok(())
}
