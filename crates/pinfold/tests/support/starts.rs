//! Threads that are just starting.

use std::fs;
use std::io;
use std::time::Duration;

/// Waits until every thread of the process but the first and this one has a name of its own: std
/// names a thread once it has started.
pub(crate) fn wait_for_starts() {
    let named = |task: io::Result<fs::DirEntry>| {
        let task = task.unwrap();
        let id: i32 = task.file_name().to_str().unwrap().parse().unwrap();
        let name = fs::read_to_string(task.path().join("comm")).unwrap();
        // SAFETY: it has no preconditions.
        let own = unsafe { libc::gettid() };
        id == own
            || id == std::process::id().cast_signed()
            || name.starts_with("pinfold-")
            || name.trim_end() == "busy"
    };
    // Ends: all threads have names.
    while !fs::read_dir("/proc/self/task").unwrap().all(named) {
        std::thread::sleep(Duration::from_millis(1));
    }
}
