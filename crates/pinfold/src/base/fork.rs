//! Forked children, and the process that owns a cache.
//!
//! A child of fork(2) has a copy of the cache's memory, but only the thread that called fork. The
//! other threads' work stays as it was at that moment: mutexes locked, maps half changed, reads in
//! flight for ever. So in a child:
//!
//! | operation | result |
//! |---|---|
//! | a hit of any kind | a hit: it takes no lock, and nothing is evicted or filled any more |
//! | a hit of a page whose bytes are outside (`pages/outside.rs`) | [`ErrorKind::Forked`](crate::ErrorKind::Forked); a guard from before the fork must not be read |
//! | a `try_` call of what is absent | `None`, as it takes no lock either |
//! | anything that needs a lock, a thread or the source | [`ErrorKind::Forked`](crate::ErrorKind::Forked) |
//! | dropping a handle, a guard or a pin | nothing is given back, nothing is waited for |
//! | the last handle | the cache stays in memory until the child ends or calls exec |
//!
//! Distinguishes a child from its parent, and keeps what must not be dropped in a child. It is
//! called after a hit has failed; hits themselves check nothing. `posix_spawn`, which shares memory
//! until exec, runs none of this code and need not.

use std::io;
use std::ptr;
use std::sync::{Arc, OnceLock};
// Not from `crate::base::sync`: models do not fork.
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// How often this process, counted from its first ancestor that had a cache, is the child of a
/// fork.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// All [`KeptArc`], the newest first. The list only grows and changes by single stores, so a child can
/// walk it whenever the fork happened.
static KEPT: AtomicPtr<KeptArc> = AtomicPtr::new(ptr::null_mut());

/// An `Arc` that a child must not be the last to drop.
struct KeptArc {
    /// Null: free to be reused. [`CLAIMED`]: about to be used.
    what: AtomicPtr<()>,
    /// An `unsafe fn(*const ())` that raises the count of `what`. Stored before `what`.
    raise: AtomicPtr<()>,
    next: *const KeptArc,
}

const CLAIMED: *mut () = ptr::dangling_mut();

/// The process in which something was made. Forks are counted once there is an [`OwnerProcess`], so this
/// is right wherever there is one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth(u32);

/// The process that a cache belongs to.
#[derive(Debug)]
pub(crate) struct OwnerProcess {
    birth: Birth,
    pid: u32,
    kept: OnceLock<&'static KeptArc>,
}

// SAFETY: its words are atomics, and `next` never changes.
unsafe impl Sync for KeptArc {}

impl std::fmt::Debug for KeptArc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptArc").field("what", &self.what).finish_non_exhaustive()
    }
}

impl Birth {
    pub(crate) fn here() -> Self {
        Birth(FORKS.load(Ordering::Relaxed)) // see `is_here`
    }

    /// Whether it was made in this process. Cost: one load.
    pub(crate) fn is_here(self) -> bool {
        // Relaxed: it changes only before fork returns, while the child has no other thread.
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

impl OwnerProcess {
    /// This process.
    ///
    /// # Errors
    /// The system has no memory to register the fork handler.
    pub(crate) fn here() -> io::Result<Self> {
        // Not a `OnceLock`: forked in the middle of that, a child would wait for ever. Threads that
        // come at once may register it several times, which counts one fork as several: no harm.
        static REGISTERED: AtomicBool = AtomicBool::new(false);
        // Relaxed, both: the handler is the system's, and nothing else depends on this.
        if !REGISTERED.load(Ordering::Relaxed) {
            // SAFETY: the handler only loads and stores atomics, which is allowed there.
            let errno = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            if errno != 0 {
                return Err(io::Error::from_raw_os_error(errno));
            }
            REGISTERED.store(true, Ordering::Relaxed);
        }
        Ok(OwnerProcess { birth: Birth::here(), pid: std::process::id(), kept: OnceLock::new() })
    }

    /// Whether the calling process is the owner. Cost: one load.
    pub(crate) fn is_here(&self) -> bool {
        self.birth.is_here()
    }

    /// The owner's number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// From now on a child never drops the last reference of `arc`. Call it once, with the `Arc`
    /// that contains this owner.
    pub(crate) fn keep<T>(&self, arc: &Arc<T>) {
        unsafe fn raise<T>(what: *const ()) {
            // SAFETY: the caller guarantees that it came from `Arc::as_ptr` and that the `Arc` is
            // alive.
            unsafe { Arc::increment_strong_count(what.cast::<T>()) };
        }
        let kept = KeptArc::claim();
        kept.raise.store(raise::<T> as *mut (), Ordering::Relaxed);
        // Release: pairs with the acquire in `forked`; the compiler must store `raise` first.
        kept.what.store(Arc::as_ptr(arc).cast_mut().cast(), Ordering::Release);
        assert!(self.kept.set(kept).is_ok(), "an owner keeps one thing");
    }
}

impl Drop for OwnerProcess {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.get() {
            // Release: pairs with the acquire in `claim`. The memory is freed after this.
            kept.what.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

impl KeptArc {
    /// A free entry, or a new one.
    fn claim() -> &'static KeptArc {
        let free = |kept: &&KeptArc| {
            // Acquire: pairs with the release in `drop`.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            kept.what.compare_exchange(ptr::null_mut(), CLAIMED, success, failure).is_ok()
        };
        if let Some(kept) = all().find(free) {
            return kept;
        }
        let kept = Box::leak(Box::new(KeptArc {
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

/// Whether this process was forked after the first cache was made.
pub(crate) fn is_child() -> bool {
    FORKS.load(Ordering::Relaxed) > 0 // see `Birth::is_here`
}

/// All entries.
fn all() -> impl Iterator<Item = &'static KeptArc> {
    // Acquire: pairs with the release in `claim`.
    let mut at: *const KeptArc = KEPT.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or one that was leaked.
        let kept = unsafe { at.as_ref() }?;
        at = kept.next;
        Some(kept)
    })
}

/// Runs in the child, before fork returns there.
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
        // SAFETY: the `Arc` is alive, or a thread that the child does not have was about to free
        // it: its memory is freed only after `what` is null.
        unsafe { raise(what) };
    }
}
