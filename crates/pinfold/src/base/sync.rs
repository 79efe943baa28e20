//! The only module that replaces std by a model checker's types: what threads of this crate share
//! is built from the names here. Under `--cfg loom` they are loom's. Under `--cfg shuttle` they are
//! std's with points in between at which shuttle may switch threads (`sync/scheduled.rs`).
//! docs/models.md lists which model runs what.

pub(crate) mod locks;
#[cfg(feature = "map")]
mod read_write;
#[cfg(shuttle)]
pub(crate) mod scheduled;

use crate::base::mutant::{self, Mutant};

#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicUsize};

#[cfg(shuttle)]
pub(crate) use scheduled::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence, thread};

#[cfg(not(shuttle))]
pub(crate) use std::thread;

#[cfg(loom)]
pub(crate) use loom::thread_local;
#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::thread_local;

/// Whether this thread unwinds from a failed model, whose atomics are gone or in any state.
#[inline(always)]
pub(crate) fn model_failed() -> bool {
    cfg!(any(loom, shuttle)) && std::thread::panicking()
}

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

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
/// the fence of the thread that made the version odd orders only its own stores. `without` is the
/// mutant that omits this fence.
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

#[cfg(loom)]
mod raw {
    pub(super) type RawMutex<T> = loom::sync::Mutex<T>;
    pub(super) type RawCondvar = loom::sync::Condvar;
    pub(crate) type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

    pub(super) fn lock<T>(mutex: &RawMutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("a model does not go on after a panic")
    }

    pub(super) fn wait<'a, T>(on: &RawCondvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        on.wait(guard).expect("a model does not go on after a panic")
    }

    /// Time does not pass in a model: without a wake-up this is a deadlock.
    pub(super) fn wait_timeout<'a, T>(
        on: &RawCondvar,
        _: &'a RawMutex<T>,
        guard: MutexGuard<'a, T>,
        _: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        wait(on, guard)
    }
}

#[cfg(shuttle)]
mod raw {
    pub(crate) use super::scheduled::MutexGuard;
    pub(super) use super::scheduled::{RawCondvar, RawMutex, lock, wait, wait_timeout};
}

#[cfg(not(any(loom, shuttle)))]
mod raw {
    use super::locks;

    pub(super) type RawMutex<T> = locks::Mutex<T>;
    pub(super) type RawCondvar = locks::Condvar;
    pub(crate) use locks::MutexGuard;

    pub(super) fn lock<T>(mutex: &RawMutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    pub(super) fn wait<'a, T>(on: &RawCondvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        on.wait(guard)
    }

    pub(super) fn wait_timeout<'a, T>(
        on: &RawCondvar,
        _: &'a RawMutex<T>,
        guard: MutexGuard<'a, T>,
        timeout: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        on.wait_timeout(guard, timeout)
    }
}

pub(crate) use raw::MutexGuard;
#[cfg(feature = "map")]
pub(crate) use read_write::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug)]
pub(crate) struct Mutex<T>(raw::RawMutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(raw::RawMutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        raw::lock(&self.0)
    }
}

/// For [`Mutex`]. Who notifies must have held the mutex since the change. A notification that
/// nobody waits for costs a load.
#[derive(Debug)]
pub(crate) struct Condvar {
    queue: raw::RawCondvar,
    /// Threads that sleep, or are about to and still hold the mutex.
    waiters: AtomicU32,
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar { queue: raw::RawCondvar::new(), waiters: AtomicU32::new(0) }
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.counted(|queue| raw::wait(queue, guard))
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        timeout: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        self.counted(|queue| raw::wait_timeout(queue, &mutex.0, guard, timeout))
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::Relaxed)
    }

    fn counted<G>(&self, wait: impl FnOnce(&raw::RawCondvar) -> G) -> G {
        // Relaxed, here and below: a waiter that has not seen the change was counted before the
        // notifier took the mutex.
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let guard = wait(&self.queue);
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    pub(crate) fn notify_all(&self) {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.queue.notify_all();
        }
    }
}
