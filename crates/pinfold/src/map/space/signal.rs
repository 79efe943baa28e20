//! The SIGBUS handler, by which a thread serves its own faults.
//!
//! # What it may do
//!
//! The signal comes at the instruction that accesses a map, as if the program had called a function
//! there. Where a call of [`File::read_at`](crate::File::read_at) would be in order, the access is:
//! the handler takes the cache's locks, allocates, and waits for a read, on a stack of its own
//! (`stacks.rs`). The cache itself never accesses a map while it holds a lock.
//!
//! # Which signals are its own
//!
//! Those that the kernel sent for an address of a map (`BUS_ADRERR`), if the page can be brought.
//! All others go to the handler that was there before. Where there was none, the process ends.
//!
//! A handler that the program installs later has to pass on what is not its own in the same way. So
//! where a new space finds such a handler, it installs nothing: otherwise each would pass on to the
//! other for ever. Where it finds the default action, or what was there at first, this handler is
//! installed again.
//!
//! A handler that gets a signal that is not its own may go back to the default action and return,
//! as that of Rust's standard library does, so that the repeated access ends the process. If a
//! process sent the signal, there is no such access, and this handler is installed again; but an
//! access to a map that another thread makes in between ends the process.

use std::ffi::{c_int, c_void};
// Not from `crate::base::sync`: no model has signals.
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{io, mem, ptr};

use super::fault::Fault;
use super::index::{made_once, there};
use super::stacks::on_own_stack;
use super::target;
use super::vma::FaultAccess;
use crate::base::guarded::guarded;

/// `BUS_ADRERR`: there is no such address behind the access.
const NO_ADDRESS: c_int = 2;

/// What was there before. Null: this handler was never installed.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// The actions without a handler. Statics, as a signal handler must not allocate.
static DEFAULT: libc::sigaction = action(libc::SIG_DFL, 0);
static IGNORE: libc::sigaction = action(libc::SIG_IGN, 0);

const fn action(handler: libc::sighandler_t, flags: c_int) -> libc::sigaction {
    // SAFETY: all zeros are a `sigaction`: no handler, no flags, no signal blocked.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

/// Sees to it that signals get to this handler. Threads that come at once all install it; the first
/// stores what was there before.
pub(super) fn install() -> io::Result<()> {
    let now = change(None)?;
    if now.sa_sigaction == address_of_handler() || put_back(&now) {
        return Ok(());
    }
    match there(&BEFORE) {
        None => {
            made_once(&BEFORE, || now); // it is there before the handler is
        }
        Some(before) if before.sa_sigaction == now.sa_sigaction => {}
        Some(_) => return Ok(()), // the program's own, which passes on to this one
    }
    install_over()
}

fn install_over() -> io::Result<()> {
    // Not on the alternate stack: a handler that gets what is passed on may expect the thread's
    // own. The signal is not blocked meanwhile: a source may read another map.
    let flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    change(Some(&action(address_of_handler(), flags))).map(drop)
}

/// If this handler was there, and `now` there is none, installs it again, and says so. Called by
/// the handler, too: allocates nothing.
fn put_back(now: &libc::sigaction) -> bool {
    let plain = match now.sa_sigaction {
        libc::SIG_DFL => &DEFAULT,
        libc::SIG_IGN => &IGNORE,
        _ => return false,
    };
    if there(&BEFORE).is_none() {
        return false; // it was never installed
    }
    // Release: pairs with the acquire in `there`. Who has the old one uses that.
    BEFORE.store(ptr::from_ref(plain).cast_mut(), Ordering::Release);
    install_over().is_ok()
}

fn address_of_handler() -> libc::sighandler_t {
    (on_sigbus as *const ()).addr()
}

/// Installs an action, if one is given, and returns the one before.
fn change(to: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut before = DEFAULT;
    let to = to.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both point to such structs, or nowhere; what is installed is a handler or none.
    match unsafe { libc::sigaction(libc::SIGBUS, to, &raw mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error()),
    }
}

unsafe extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: the kernel's, for this call.
    let info_of = unsafe { &*info };
    // SAFETY: a SIGBUS of the kernel has an address; of another one it is not looked at.
    let at = || unsafe { info_of.si_addr() }.addr();
    // SAFETY: as above.
    let access = || unsafe { access(context) };
    // SAFETY: as above.
    let alternate = || unsafe { (*context.cast::<libc::ucontext_t>()).uc_stack };
    let is_ours = info_of.si_code == NO_ADDRESS && serves(at(), access(), &alternate());
    if !is_ours {
        // SAFETY: what the kernel has given, passed on.
        unsafe { pass_on(signal, info, context) };
    }
    // The instruction before the access may have been a call that sets it.
    // SAFETY: always there.
    let own = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own.
    unsafe { *own = errno };
}

/// Whether the access to `address` can be repeated. `alternate` is the thread's alternate stack.
fn serves(address: usize, access: FaultAccess, alternate: &libc::stack_t) -> bool {
    // A panic, which is a mistake of this crate's, is an access that fails.
    let serve = || guarded("a fault", || Ok(target::serve_signal(address, access)));
    matches!(on_own_stack(alternate, serve), Ok(Fault::Served))
}

/// What the access did; it may have been a store where the processor's report is not understood.
///
/// # Safety
/// `context` is what the kernel gave the handler.
unsafe fn access(context: *const c_void) -> FaultAccess {
    // SAFETY: the caller's promise: it points to such a struct.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    {
        /// The bit of a page fault's error code that says that it was a write.
        const WRITE: i64 = 1 << 1;
        let code = context.uc_mcontext.gregs[libc::REG_ERR as usize];
        if code & WRITE == 0 { FaultAccess::Load } else { FaultAccess::Store }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = context;
        FaultAccess::Store
    }
}

/// Does what would have been done without this handler.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = there(&BEFORE).expect("stored before this handler was installed");
    // SAFETY: as in `on_sigbus`. What a process sends has no positive code.
    let was_sent = unsafe { (*info).si_code } <= 0;
    match before.sa_sigaction {
        libc::SIG_IGN if was_sent => {}
        // Without the handler, the repeated access ends the process.
        libc::SIG_DFL | libc::SIG_IGN => {
            let _ = change(Some(&DEFAULT)); // cannot fail: the signal has a number that exists
            if was_sent {
                // SAFETY: ends the process.
                unsafe { libc::raise(signal) };
            }
        }
        handler => {
            // SAFETY: the mask that the handler wants, and the thread's own again afterwards.
            unsafe { with_mask(before, signal, || call(before, handler, signal, info, context)) };
            if was_sent && let Ok(now) = change(None) {
                put_back(&now);
            }
        }
    }
}

fn call(
    action: &libc::sigaction,
    handler: libc::sighandler_t,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    type Handler = unsafe extern "C" fn(c_int);
    type HandlerOfInfo = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let handler: *const () = ptr::with_exposed_provenance(handler);
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the flag says what kind of function it is.
        let handler = unsafe { mem::transmute::<*const (), HandlerOfInfo>(handler) };
        // SAFETY: with what the kernel has given.
        unsafe { handler(signal, info, context) };
    } else {
        // SAFETY: as above.
        let handler = unsafe { mem::transmute::<*const (), Handler>(handler) };
        // SAFETY: as above.
        unsafe { handler(signal) };
    }
}

/// Runs `body` with the signals blocked that `action` wants to be.
unsafe fn with_mask(action: &libc::sigaction, signal: c_int, body: impl FnOnce()) {
    let mut blocked = action.sa_mask;
    if action.sa_flags & libc::SA_NODEFER == 0 {
        // SAFETY: a set of this function's, and a signal that exists.
        unsafe { libc::sigaddset(&raw mut blocked, signal) };
    }
    // SAFETY: an empty set is one.
    let mut own: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: both are sets of this function's.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut own) };
    body();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const own, ptr::null_mut()) };
}
