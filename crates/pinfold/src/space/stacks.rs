//! Stacks on which threads serve their own faults.
//!
//! What a fault needs is not known to the program that makes an access: to read a page takes the
//! cache's frames, and those of a source of the program. The thread may have little left, as a
//! coroutine or a signal handler on its alternate stack has. So only the way here is on the thread's
//! own stack.
//!
//! A few stacks are kept, with the memory that was touched of them; further ones are mapped for one
//! fault. There is no lock: a child that was forked in the middle of one would wait for ever.

// Not from `crate::sync`: no model has signals.
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use crate::frame::PAGE_BYTES;

/// What a stack has: as much as a thread of the standard library.
const BYTES: usize = 2 << 20;

/// How many are kept.
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
pub(super) fn on_own_stack<R>(body: impl FnOnce() -> R) -> R {
    let Some(stack) = Stack::take() else { return body() };
    // SAFETY: so many bytes are there, nobody else uses them, and `body` returns.
    let done = unsafe { psm::on_stack(stack.0, BYTES, body) };
    stack.give_back();
    done
}
