//! The only module that replaces std by a model checker's types: what threads of this crate share
//! is built from the names here. Under `--cfg loom` they are loom's. Under `--cfg shuttle` they are
//! std's with points in between at which shuttle may switch threads (`sync/scheduled.rs`).
//! docs/models.md lists which model runs what.

#[cfg(any(loom, shuttle))]
mod checked;
pub(crate) mod locks;
#[cfg(shuttle)]
pub(crate) mod scheduled;

use std::time::Duration;

use crate::base::mutant::{self, Mutant};

#[cfg(any(loom, shuttle))]
use checked as kind;
#[cfg(not(any(loom, shuttle)))]
use locks as kind;

use kind::Condvar as RawCondvar;
pub(crate) use kind::{Mutex, MutexGuard};
#[cfg(feature = "map")]
pub(crate) use kind::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::{
    sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread, thread_local,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread_local,
};
#[cfg(loom)]
pub(crate) use std::thread;

#[cfg(shuttle)]
pub(crate) use scheduled::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence, thread};
#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;
#[cfg(shuttle)]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// Whether this thread unwinds from a failed model, whose atomics are gone or in any state.
#[inline(always)]
pub(crate) fn model_failed() -> bool {
    cfg!(any(loom, shuttle)) && std::thread::panicking()
}

/// Another thread may go on here, where no access to a word of this module separates two steps: in
/// models, and under the stress's mutants.
#[cfg(feature = "map")]
#[inline(always)]
pub(crate) fn between_steps() {
    #[cfg(shuttle)]
    scheduled::point();
    mutant::pause();
}

/// The fence of a thread that stores to words of a frame that readers without a reference load:
/// identity, span, bytes. Each *thread* that stores them needs one, after it received the frame:
/// that of the thread that made the version odd orders only its own stores. `without` omits it.
#[inline(always)]
pub(crate) fn fence_before_racing_stores(without: Mutant) {
    // Release: pairs with the Acquire fence in `Frame::read_retry`. A reader that has loaded
    // something stored after this fence sees the odd version, which happened before it (through the
    // allocator's mutex, a queue's, or a reference).
    if !mutant::on(without) && !mutant::on(Mutant::RefillUnfenced) {
        fence(Ordering::Release);
    }
    // The next stores bypass the buffers.
    #[cfg(shuttle)]
    scheduled::empty_own_buffer();
}

/// For [`Mutex`]. Who notifies must have held the mutex since the change. If nobody waits, it costs
/// a load.
#[derive(Debug)]
pub(crate) struct Condvar {
    queue: RawCondvar,
    /// Threads that sleep, or are about to and still hold the mutex.
    waiters: AtomicU32,
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar { queue: RawCondvar::new(), waiters: AtomicU32::new(0) }
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.counted(|queue| queue.wait(guard))
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        self.counted(|queue| queue.wait_timeout(guard, timeout))
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::Relaxed)
    }

    fn counted<G>(&self, wait: impl FnOnce(&RawCondvar) -> G) -> G {
        // Relaxed, all: who has not seen the change was counted before the notifier took the mutex.
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let guard = wait(&self.queue);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    pub(crate) fn notify_one(&self) {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.queue.notify_one();
        }
    }

    pub(crate) fn notify_all(&self) {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.queue.notify_all();
        }
    }
}
