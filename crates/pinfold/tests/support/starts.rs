//! Threads that are just starting, or ending.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Waits until all other threads of the process sleep, so that none is starting or ending: std's
/// lock of the whole process (`fork_own_cache.rs`) is then free. For a process whose other threads
/// have nothing to do.
pub(crate) fn wait_until_others_sleep() {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    // A thread that waits for that lock sleeps, too, but then another one has it and does not.
    // Three times, as the look at all of them takes a while.
    let mut quiet = 0;
    // Ends: they have nothing to do.
    while quiet < 3 {
        let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap());
        let others = tasks.filter(|task| task.file_name() != own.as_str());
        quiet =
            if others.map(|task| task.path()).all(|task| sleeps(&task)) { quiet + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn sleeps(task: &Path) -> bool {
    // A thread that has ended meanwhile has no file.
    let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
    // The state is behind the name, which is in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
}
