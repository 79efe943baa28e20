//! std's locks without poisoning: the data is consistent whenever an assertion fails. A lock must
//! be all in its own words: a library that queues waiting threads in one table of the process, as
//! `parking_lot` does, can leave a child of fork(2) a table that is locked for ever.

use std::sync::PoisonError;
#[cfg(all(feature = "testing", feature = "map", not(any(loom, shuttle))))]
use std::sync::TryLockError;
use std::time::Duration;

pub(crate) use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// On Linux, who comes to read while a writer waits is behind it.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(all(feature = "testing", feature = "map", not(any(loom, shuttle))))]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        at_once(self.0.try_read())
    }

    #[cfg(all(feature = "testing", feature = "map", not(any(loom, shuttle))))]
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        at_once(self.0.try_write())
    }
}

#[cfg(all(feature = "testing", feature = "map", not(any(loom, shuttle))))]
fn at_once<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A notification is a system call even if nobody waits.
#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    pub(crate) const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
