//! Running a part of a test in a forked child.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Only there to end a child that hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// Runs `body` in a child of this process, which must end well.
pub(crate) fn in_a_child(body: impl FnOnce()) {
    // SAFETY: the child runs `body`, which is this test's, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    if child == 0 {
        let ended = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let since = Instant::now();
    let mut status = 0;
    // Ends: the child does, or is ended.
    // SAFETY: a child of this process, waited for once; `status` is this function's.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if since.elapsed() > HANGS_AFTER {
            // SAFETY: the child was not waited for yet, so the number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0, "the child hung, or panicked");
}
