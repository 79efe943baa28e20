//! Forked children: whose a cache is.
//!
//! A child of fork(2) has a copy of the cache's memory, and of its threads only the one that called
//! fork. What the others were about is left as it was at that moment: mutexes locked, maps half
//! changed, reads on their way for ever. So in a child:
//!
//! | what | becomes |
//! |---|---|
//! | a hit, by whatever door | a hit: it takes no lock, and nothing is evicted or filled any more |
//! | anything that needs a lock, a thread or the source | [`Error::Forked`](crate::Error::Forked) |
//! | dropping a handle, a guard or a pin | nothing is given back, nothing is waited for |
//! | the last handle | the cache stays in memory until the child ends or calls exec |
//!
//! Here: telling a child from its parent, and keeping what must not be dropped there. Called where
//! a hit has failed already; the ways of a hit ask nothing. `posix_spawn`, which shares memory until
//! exec, runs none of this, and need not.

use std::io;
use std::ptr;
use std::sync::{Arc, OnceLock};
// Not from `crate::sync`: a model does not fork.
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// How often this process, counted from its first ancestor that had a cache, is the child of a fork.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// What is kept, newest first. Only added to; changed by single stores, so that whatever moment a
/// fork meets, the child can walk it.
static KEPT: AtomicPtr<Kept> = AtomicPtr::new(ptr::null_mut());

/// An `Arc` that a child must not be the last to drop.
struct Kept {
    /// Null: free to be used again. [`CLAIMED`]: about to be.
    what: AtomicPtr<()>,
    /// An `unsafe fn(*const ())` that raises the count of `what`. Set before that.
    raise: AtomicPtr<()>,
    next: *const Kept,
}

const CLAIMED: *mut () = ptr::dangling_mut();

/// The process that something was made in. Right wherever there is an [`Owner`], too: that sees to
/// it that forks are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth(u32);

/// The process that a cache belongs to.
#[derive(Debug)]
pub(crate) struct Owner {
    birth: Birth,
    pid: u32,
    kept: OnceLock<&'static Kept>,
}

// SAFETY: its words are atomics, and `next` never changes.
unsafe impl Sync for Kept {}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("what", &self.what).finish_non_exhaustive()
    }
}

impl Birth {
    pub(crate) fn here() -> Self {
        Birth(FORKS.load(Ordering::Relaxed)) // see `is_here`
    }

    /// Whether it was in this process. Cost: a load.
    pub(crate) fn is_here(self) -> bool {
        // Relaxed: it changes only where there is no other thread, before fork returns.
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

impl Owner {
    /// This process.
    ///
    /// # Errors
    /// The system has no memory to note that forks are to be counted.
    pub(crate) fn here() -> io::Result<Self> {
        static ASKED: OnceLock<i32> = OnceLock::new();
        // SAFETY: the handler does nothing but load and store atomics, which may be done there.
        let errno =
            *ASKED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(forked)) });
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(Owner { birth: Birth::here(), pid: std::process::id(), kept: OnceLock::new() })
    }

    /// Whether the calling process is the owner. Cost: a load.
    pub(crate) fn is_here(&self) -> bool {
        self.birth.is_here()
    }

    /// The owner's number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// From now on `arc` is never dropped for good in a child. To be called once, of the `Arc` that
    /// this owner is in.
    pub(crate) fn keep<T>(&self, arc: &Arc<T>) {
        unsafe fn raise<T>(what: *const ()) {
            // SAFETY: the caller's: it came from `Arc::as_ptr`, and that `Arc` is alive.
            unsafe { Arc::increment_strong_count(what.cast::<T>()) };
        }
        let kept = Kept::claim();
        kept.raise.store(raise::<T> as *mut (), Ordering::Relaxed);
        // Release: pairs with the acquire in `forked`, and for the compiler's sake: `raise` first.
        kept.what.store(Arc::as_ptr(arc).cast_mut().cast(), Ordering::Release);
        assert!(self.kept.set(kept).is_ok(), "an owner keeps one thing");
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.get() {
            // Release: pairs with the acquire in `claim`. The memory goes after this.
            kept.what.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

impl Kept {
    /// One that is free, or a new one.
    fn claim() -> &'static Kept {
        let free = |kept: &&Kept| {
            // Acquire: pairs with the release in `drop`.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            kept.what.compare_exchange(ptr::null_mut(), CLAIMED, success, failure).is_ok()
        };
        if let Some(kept) = all().find(free) {
            return kept;
        }
        let kept = Box::leak(Box::new(Kept {
            what: AtomicPtr::new(CLAIMED),
            raise: AtomicPtr::new(ptr::null_mut()),
            next: KEPT.load(Ordering::Relaxed), // compared below
        }));
        // Ends: a turn fails only if another thread's succeeds.
        loop {
            let next = kept.next.cast_mut();
            // Release: pairs with the acquire in `all`.
            match KEPT.compare_exchange(next, kept, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return kept,
                Err(newer) => kept.next = newer,
            }
        }
    }
}

/// Whether this process is a child that was forked since there was a first cache.
pub(crate) fn is_child() -> bool {
    FORKS.load(Ordering::Relaxed) > 0 // see `Birth::is_here`
}

/// All there are.
fn all() -> impl Iterator<Item = &'static Kept> {
    // Acquire: pairs with the release in `claim`.
    let mut at: *const Kept = KEPT.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or one that was leaked.
        let kept = unsafe { at.as_ref() }?;
        at = kept.next;
        Some(kept)
    })
}

/// In the child, before fork returns there.
extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed); // see `Birth::is_here`
    for kept in all() {
        // Acquire: pairs with the release in `keep`.
        let what = kept.what.load(Ordering::Acquire);
        if what.is_null() || what == CLAIMED {
            continue;
        }
        let raise = kept.raise.load(Ordering::Relaxed); // after `what`, see there
        // SAFETY: `keep` stored such a function.
        let raise = unsafe { std::mem::transmute::<*mut (), unsafe fn(*const ())>(raise) };
        // SAFETY: the `Arc` is alive, or was about to be freed by a thread that is not here: its
        // memory goes only after `what` is null.
        unsafe { raise(what) };
    }
}
