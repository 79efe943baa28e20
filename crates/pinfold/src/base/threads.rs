//! Starting the cache's threads. Each blocks all signals that a program can be sent, so a signal
//! handler never waits on a thread of the cache for what this thread alone can give it. Signals
//! that an instruction causes stay: the kernel ends a process that blocks them.

use std::io;
use std::ptr;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const CAUSED: [libc::c_int; 6] =
    [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot start the thread {name}: {cause}{}", limits(cause))]
pub(crate) struct NotStarted {
    pub(crate) name: &'static str,
    pub(crate) cause: Arc<io::Error>,
}

impl From<NotStarted> for io::Error {
    fn from(why: NotStarted) -> Self {
        io::Error::new(why.cause.kind(), why)
    }
}

/// The system has one error for all limits.
pub(crate) fn limits(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EAGAIN) => {
            ": its user or its control group has as many threads as it may (ulimit -u, pids.max), \
             or there are no addresses for its stack"
        }
        Some(libc::ENOMEM) => {
            ": there are no addresses for its stack (RLIMIT_AS), or the process has as many \
             mappings as vm.max_map_count allows"
        }
        _ => "",
    }
}

/// Starts a thread, which blocks signals. It runs when this returns: what the standard library
/// makes for it is there, whatever limit the program sets then.
pub(crate) fn start<T: Send + 'static>(
    name: &'static str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, NotStarted> {
    let (runs, has_begun) = std::sync::mpsc::channel::<()>();
    let body = move || {
        drop(runs);
        body()
    };
    let spawn = || Builder::new().name(name.to_owned()).spawn(body);
    has_room_for_one()
        .and_then(|()| without_signals(spawn))
        .inspect(|_| assert!(has_begun.recv().is_err(), "nothing is sent"))
        .map_err(|cause| NotStarted { name, cause: Arc::new(cause) })
}

/// Whether there may be the mappings of a thread: one without an alternate stack ends the process.
fn has_room_for_one() -> io::Result<()> {
    /// A stack of the standard library's, and some more.
    const BYTES: usize = (2 << 20) + (256 << 10);
    const PAGE: usize = 4096;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice replaces nothing.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), BYTES, ProtFlags::empty(), flags) }?;
    // As both stacks do, each with its guard.
    let parts = [1, 3].map(|page| {
        // SAFETY: of this mapping.
        unsafe { mprotect(at.wrapping_byte_add(page * PAGE), PAGE, MprotectFlags::READ) }
    });
    // SAFETY: all of this mapping, which nobody else knows.
    unsafe { munmap(at, BYTES) }?;
    parts.into_iter().try_for_each(|part| Ok(part?))
}

/// Calls `start`; a thread that it starts inherits the mask of this one, which blocks signals.
pub(crate) fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: an empty set is one.
    let (mut all, mut own): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: the set is this function's.
    unsafe { libc::sigfillset(&raw mut all) };
    for signal in CAUSED {
        // SAFETY: as above, and the signal exists.
        unsafe { libc::sigdelset(&raw mut all, signal) };
    }
    // SAFETY: both sets are this function's.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut own) };
    let started = start();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const own, std::ptr::null_mut()) };
    started
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named() {
        let cause = Arc::new(io::Error::from_raw_os_error(libc::EAGAIN));
        let text = io::Error::from(NotStarted { name: "a-thread", cause }).to_string();
        assert!(text.starts_with("cannot start the thread a-thread: Resource"), "{text}");
        assert!(text.contains("(ulimit -u, pids.max)"), "{text}");
    }

    #[test]
    fn who_starts_a_thread_keeps_its_signals() {
        let blocked = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("SigBlk:")).unwrap().to_owned()
        };
        let before = blocked();
        let inside = start("a-thread", blocked).unwrap().join().unwrap();
        assert_ne!(inside, before);
        assert_eq!(blocked(), before);
    }
}
