//! Accesses to maps that may fail, and are made again.
//!
//! Belongs here: the SIGBUS handler of the stress. Does not: what is accessed, and whether it is
//! right or excused (`mapper.rs`). Called by `mapper`.
//!
//! A page that cannot be read is a SIGBUS for the access. Rust has no way to give such an access up:
//! its instruction has to come to an end. So the handler takes the page out of the map's page table,
//! which ends its poison where handler threads have put it there, waits a moment, and returns: the
//! access is made again, until the source is well. One that never comes to an end is a hang, which
//! the watch finds as it finds any other.
//!
//! The cache passes on what is not its own to the handler that was there before its own. So this one
//! is installed before the process makes its first space.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{Ordering, compiler_fence};

const PAGE_BYTES: usize = 4096;

/// How long an access that failed waits.
const NAP_NS: libc::c_long = 100_000;

thread_local! {
    /// What this thread accesses just now.
    static RANGE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    /// How many of these accesses failed.
    static FAILURES: Cell<u32> = const { Cell::new(0) };
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

/// Runs `body`, in which this thread accesses `range`. Returns how often an access failed, too.
pub(super) fn repeated<T>(range: Range<usize>, body: impl FnOnce() -> T) -> (T, u32) {
    RANGE.set((range.start, range.end));
    FAILURES.set(0);
    // SeqCst, both: pair with nothing but the handler, in this thread. The words are stored before
    // the accesses and loaded after them, which the compiler does not know otherwise.
    compiler_fence(Ordering::SeqCst);
    let done = body();
    compiler_fence(Ordering::SeqCst);
    RANGE.set((0, 0));
    (done, FAILURES.get())
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
    FAILURES.set(FAILURES.get() + 1);
    let page = address.wrapping_byte_sub(address.addr() % PAGE_BYTES);
    // SAFETY: a page of a map, which has the bytes elsewhere.
    unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_DONTNEED) };
    let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP_NS };
    // SAFETY: a struct of this function's.
    unsafe { libc::nanosleep(&raw const nap, ptr::null_mut()) };
}
