//! What is allocated by the program's allocator, which counts here, and refuses what it is told to.
#![cfg(not(any(loom, shuttle)))] // the model checkers build without the public types

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

#[path = "../support/again.rs"]
mod again;
#[path = "../support/alone.rs"]
mod alone;
#[cfg(feature = "map")]
#[path = "../support/child.rs"]
mod child;

#[cfg(feature = "serve")]
mod clients;
mod files;
#[cfg(feature = "map")]
mod mapped_heap;
#[cfg(feature = "map")]
mod own_heap;

/// The system's allocator, which counts.
struct Counting;

thread_local! {
    /// What the thread has allocated, ever: how many times.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}
/// It refuses what has so many bytes or more.
static REFUSED_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The bytes that the process has in use.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// The bytes that the process has allocated, ever.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Runs `body` while the allocator refuses what has so many bytes or more.
#[cfg(feature = "map")]
fn refusing<R>(bytes: usize, body: impl FnOnce() -> R) -> R {
    REFUSED_BYTES.store(bytes, Ordering::Relaxed);
    let done = body();
    REFUSED_BYTES.store(usize::MAX, Ordering::Relaxed);
    done
}

/// Whether the calling thread is one of the cache's that evict. Where these ask before they begin,
/// they are refused nothing: one may be at work when the refusals begin.
fn evicts() -> bool {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes a name of at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    [&b"pinfold-swap"[..], b"pinfold-reclaim"].iter().any(|it| name.starts_with(it))
}

// SAFETY: the system's allocator does all of it, or nothing is done; a count changes nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= REFUSED_BYTES.load(Ordering::Relaxed) && !evicts() {
            return std::ptr::null_mut();
        }
        COUNT.set(COUNT.get() + 1);
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
