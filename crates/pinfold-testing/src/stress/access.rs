//! Accesses to maps that may fail, and are made again.
//!
//! Belongs here: the SIGBUS handler of the stress. Does not: what is accessed, and whether it is
//! right or excused (`mapper.rs`).
//!
//! A page that cannot be read is a SIGBUS for the access. Rust has no way to give such an access
//! up: its instruction has to come to an end. So the handler takes the page out of the map's page
//! table, which ends its poison where handler threads have put it there, waits a moment, and
//! returns: the access is made again, until the source is well. One that never comes to an end is a
//! hang, which the watch finds as it finds any other; that it fails, and does not wait, is seen at
//! the desk.
//!
//! The cache passes on what is not its own to the handler that was there before its own. So this
//! one is installed before the process makes its first space.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

const PAGE_BYTES: usize = 4096;

/// How long an access that failed waits.
const NAP_NS: libc::c_long = 100_000;

thread_local! {
    /// What this thread accesses just now.
    static RANGE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// Where it is counted how many of these accesses failed. Null as long as there are none.
    static FAILURES: Cell<*const AtomicU64> = const { Cell::new(ptr::null()) };
}

/// Installs the handler, once for the process. Call it before the first space is made.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeros are an action without flags, and with no signal blocked.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = (on_sigbus as *const ()).expose_provenance();
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: the handler is this file's, and calls nothing but the system.
        let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
        assert_eq!(done, 0, "SIGBUS can be handled: {}", io::Error::last_os_error());
    });
}

/// Runs `body`, in which this thread accesses `range`. Returns how often an access failed, too;
/// until then `failures` says it to others.
pub(super) fn repeated<T>(
    range: Range<usize>,
    failures: &AtomicU64,
    body: impl FnOnce() -> T,
) -> (T, u64) {
    FAILURES.set(failures);
    RANGE.set((range.start, range.end));
    // SeqCst, both: pair with nothing but the handler, in this thread. The words are stored before
    // the accesses and loaded after them, which the compiler does not know otherwise.
    compiler_fence(Ordering::SeqCst);
    let done = body();
    compiler_fence(Ordering::SeqCst);
    RANGE.set((0, 0));
    FAILURES.set(ptr::null());
    (done, failures.swap(0, Ordering::Relaxed)) // a count, as in the handler
}

/// Only what may be called at any moment: this thread's own words, and system calls.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel's, for this call.
    let info = unsafe { &*info };
    // SAFETY: of a signal with a positive code it is the address; of others it is not used.
    let address = unsafe { info.si_addr() };
    let (start, end) = RANGE.get();
    if info.si_code <= 0 || !(start..end).contains(&address.addr()) {
        // Not an access of ours: the process ends, when the access is made again or by this.
        // SAFETY: all zeros are the default action.
        let default: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a struct of this function's.
        unsafe { libc::sigaction(signal, &raw const default, ptr::null_mut()) };
        if info.si_code <= 0 {
            // SAFETY: ends the process.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    // SAFETY: while there is a range, it is what `repeated` was given, which has not returned.
    let failures = unsafe { &*FAILURES.get() };
    failures.fetch_add(1, Ordering::Relaxed);
    let page = address.wrapping_byte_sub(address.addr() % PAGE_BYTES);
    // SAFETY: a page of a map, which has the bytes elsewhere.
    unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_DONTNEED) };
    let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP_NS };
    // SAFETY: a struct of this function's.
    unsafe { libc::nanosleep(&raw const nap, ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    #[test]
    fn an_access_that_fails_is_made_again_and_counted() {
        install();
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::memfd_create(c"short".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: made just now.
        let file = unsafe { std::fs::File::from_raw_fd(fd) };
        let (access, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new mapping, of a file without a page.
        let at = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, access, shared, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let (range, failures) = (at.addr()..at.addr() + PAGE_BYTES, AtomicU64::new(0));
        let at = at.expose_provenance();
        let (byte, times) = std::thread::scope(|scope| {
            let accesses = scope.spawn(|| {
                let from = ptr::with_exposed_provenance::<u8>(at);
                // SAFETY: a byte of the mapping, once the file has it.
                repeated(range, &failures, || unsafe { from.read_volatile() })
            });
            while failures.load(Ordering::Relaxed) < 3 {
                std::thread::yield_now();
            }
            file.set_len(PAGE_BYTES as u64).unwrap();
            accesses.join().unwrap()
        });
        assert_eq!((byte, failures.into_inner()), (0, 0));
        assert!(times >= 3, "{times}");
    }
}
