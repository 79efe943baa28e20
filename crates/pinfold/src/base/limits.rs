use std::io;
// Not from `crate::base::sync`: no protocol depends on it.
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Resource, getrlimit};

/// Beyond the process's limit for files (`ulimit -f`) the kernel would answer by SIGXFSZ, which
/// ends a program. Cost: a system call. Error: `EFBIG`, as where the signal is ignored.
pub(crate) fn check_file_end(end: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if end > most => Err(rustix::io::Errno::FBIG.into()),
        _ => Ok(()),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Level(AtomicU32);

/// What was added to a level, until it is dropped.
#[derive(Debug)]
#[must_use = "dropped at once, it is taken back"]
pub(crate) struct Added<'a>(&'a Level, u32);

impl Level {
    /// Adds `n`, unless that were more than `most`: `Err` says what there is.
    pub(crate) fn add(&self, n: u32, most: u32) -> Result<(), u32> {
        let more = |now: u32| now.checked_add(n).filter(|all| *all <= most);
        // Relaxed, here and below: a level, compared with a limit.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(drop)
    }

    pub(crate) fn hold(&self, n: u32, most: u32) -> Option<Added<'_>> {
        self.add(n, most).ok().map(|()| Added(self, n))
    }

    pub(crate) fn now(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn take_back(&self, n: u32) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }
}

impl Drop for Added<'_> {
    fn drop(&mut self) {
        self.0.take_back(self.1);
    }
}
