//! Stacks on which threads serve their own faults: the thread may have little left, as a coroutine
//! has, or a signal handler on its alternate stack. So only the way here is on the thread's own.
//!
//! A few stacks are kept, with the memory that was touched of them; further ones are mapped for one
//! fault. There is no lock, which a forked child could find locked.
//!
//! The kernel tells by the stack pointer alone whether a thread is on its alternate stack. If that
//! left one with live frames, the next signal that is handled there would overwrite them. So
//! meanwhile the stack of the fault is the alternate one; in between, all signals are blocked.

// Not from `crate::base::sync`: no model has signals.
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{mem, ptr};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::frames::PAGE_BYTES;

/// What a stack has: as much as a thread of the standard library.
const BYTES: usize = 2 << 20;

const KEPT: usize = 16;

/// Those that are kept and not in use. A word is null, or the lowest address of a stack, which is
/// then nobody's.
static FREE: [AtomicPtr<u8>; KEPT] = [const { AtomicPtr::new(ptr::null_mut()) }; KEPT];

/// A stack of [`BYTES`] bytes, this value's alone. Below it is a page without access.
struct Stack(*mut u8);

impl Stack {
    /// `None`: there are no addresses for one.
    fn take() -> Option<Self> {
        // Acquire: pairs with the release in `give_back`: its last user has left it.
        let kept = FREE.iter().map(|slot| slot.swap(ptr::null_mut(), Ordering::Acquire));
        kept.into_iter().find(|stack| !stack.is_null()).map(Stack).or_else(Stack::map)
    }

    fn map() -> Option<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        let (access, bytes) = (ProtFlags::READ | ProtFlags::WRITE, BYTES + PAGE_BYTES);
        // SAFETY: a new mapping at an address of the system's choice replaces nothing.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, flags) }.ok()?;
        // SAFETY: the first page of that mapping. If it fails, it is a stack without that page.
        let _ = unsafe { mprotect(at, PAGE_BYTES, MprotectFlags::empty()) };
        Some(Stack(at.cast::<u8>().wrapping_add(PAGE_BYTES)))
    }

    /// Calls `body`, which must not panic, on this stack.
    fn run<R>(&self, body: impl FnOnce() -> R) -> R {
        // SAFETY: so many bytes are there, nobody else uses them, and `body` returns.
        unsafe { psm::on_stack(self.0, BYTES, body) }
    }

    /// [`run`](Self::run) for a thread that is on its alternate stack.
    fn run_as_alternate<R>(&self, body: impl FnOnce() -> R) -> R {
        let own = libc::stack_t { ss_sp: self.0.cast(), ss_flags: 0, ss_size: BYTES };
        let mask = block_signals();
        let (done, before) = self.run(|| {
            // Only here: the kernel refuses it to a thread that is on the one before.
            let before = set_alternate(&own);
            set_mask(&mask);
            let done = body();
            block_signals();
            (done, before)
        });
        // Only here, as above.
        set_alternate(&before);
        set_mask(&mask);
        done
    }

    fn give_back(self) {
        let empty = |slot: &&AtomicPtr<u8>| {
            // Release: pairs with the acquire in `take`.
            let (success, failure) = (Ordering::Release, Ordering::Relaxed);
            slot.compare_exchange(ptr::null_mut(), self.0, success, failure).is_ok()
        };
        if FREE.iter().find(empty).is_none() {
            let at = self.0.wrapping_sub(PAGE_BYTES);
            // SAFETY: mapped by `map`, and nobody uses it any more.
            let unmapped = unsafe { munmap(at.cast(), BYTES + PAGE_BYTES) };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        }
    }
}

/// Calls `body`, which must not panic, on a stack of its own; on this one if there is none.
/// `alternate` is the thread's alternate stack when it got the signal, as the kernel has told it.
pub(super) fn on_own_stack<R>(alternate: &libc::stack_t, body: impl FnOnce() -> R) -> R {
    let Some(stack) = Stack::take() else { return body() };
    // Without an alternate stack, there are no bytes.
    let above = psm::stack_pointer().addr().wrapping_sub(alternate.ss_sp.addr());
    let is_on_it = above < alternate.ss_size;
    let done = if is_on_it { stack.run_as_alternate(body) } else { stack.run(body) };
    stack.give_back();
    done
}

/// Sets the alternate stack of this thread, which must not be on the one before, and returns that
/// one.
fn set_alternate(stack: &libc::stack_t) -> libc::stack_t {
    // SAFETY: all zeros are a stack's description.
    let mut before: libc::stack_t = unsafe { mem::zeroed() };
    // SAFETY: the memory is there as long as it is the alternate stack: `run_as_alternate` returns
    // only after it has set the other one, which was there before.
    let done = unsafe { libc::sigaltstack(ptr::from_ref(stack), &raw mut before) };
    debug_assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    before
}

/// Blocks all signals for this thread, and returns those that were blocked.
fn block_signals() -> libc::sigset_t {
    // SAFETY: an empty set is one.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { mem::zeroed() };
    // SAFETY: a set of this function's.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    before
}

fn set_mask(blocked: &libc::sigset_t) {
    let mask = ptr::from_ref(blocked);
    // SAFETY: a set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}
