//! Running a part of a test in a process of its own: what ends by a signal, or concerns the whole
//! process.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::again::again;

/// Only there to end a process that hangs. Longer than `child.rs` gives a child: who has the pipes
/// would keep them open.
const HANGS_AFTER: Duration = Duration::from_secs(120);

const IS_CHILD: &str = "PINFOLD_TEST_ALONE";

/// Runs `body` in a process of its own that runs the test `name`, which calls this, alone; `module`
/// is its `module_path!()`. Returns the signal that ended that process, if one did; fails if it
/// failed otherwise.
pub(crate) fn alone(module: &str, name: &str, body: impl FnOnce()) -> Option<i32> {
    if std::env::var_os(IS_CHILD).is_some() {
        body();
        std::process::exit(0);
    }
    let mut command = again(module, name);
    let command = command.env(IS_CHILD, "1");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let since = Instant::now();
    // Ends: the process does, or is ended. It writes less than a pipe takes.
    while child.try_wait().unwrap().is_none() {
        if since.elapsed() > HANGS_AFTER {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let signal = output.status.signal();
    assert_ne!(signal, Some(9), "it hung: {told}");
    assert!(output.status.success() || signal.is_some(), "{}: {told}", output.status);
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    assert!(said.contains("running 1 test"), "no test is called {name}: {told}");
    signal
}
