//! Forked children, and the process that owns a cache.
//!
//! A child of fork(2) has only the thread that called fork: mutexes may be locked for ever, and
//! reads in flight. [`Cache`](crate::Cache#forking) says what goes on nevertheless. This is asked
//! after a hit has failed. `posix_spawn`, which shares memory until exec, runs none of this code.

use std::io;
// Not from `crate::base::sync`: models do not fork.
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How often this process is the child of a fork, counted from its first ancestor with a cache.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth(u32);

#[derive(Debug)]
pub(crate) struct OwnerProcess {
    birth: Birth,
    pid: u32,
}

impl Birth {
    pub(crate) fn here() -> Self {
        Birth(FORKS.load(Ordering::Relaxed)) // see `is_here`
    }

    pub(crate) fn is_here(self) -> bool {
        // Relaxed: it changes only before fork returns, while the child has no other thread.
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

impl OwnerProcess {
    /// Error: the system has no memory to register the fork handler.
    pub(crate) fn here() -> io::Result<Self> {
        // Not a `OnceLock`: forked in the middle of that, a child would wait for ever. Registered
        // several times, one fork counts as several: no harm.
        static REGISTERED: AtomicBool = AtomicBool::new(false);
        // Relaxed, both: the handler is the system's, and nothing else depends on this.
        if !REGISTERED.load(Ordering::Relaxed) {
            // SAFETY: the handler only adds to an atomic, which is allowed there.
            let errno = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            if errno != 0 {
                return Err(io::Error::from_raw_os_error(errno));
            }
            REGISTERED.store(true, Ordering::Relaxed);
        }
        Ok(OwnerProcess { birth: Birth::here(), pid: std::process::id() })
    }

    pub(crate) fn is_here(&self) -> bool {
        self.birth.is_here()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed); // see `Birth::is_here`
}
