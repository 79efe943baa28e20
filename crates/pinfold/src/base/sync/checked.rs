//! The locks of the model checkers, not poisoned by a panic.

use std::sync::PoisonError;
#[cfg(feature = "map")]
use std::sync::TryLockError;
#[cfg(loom)]
use std::time::Duration;

#[cfg(loom)]
use loom::sync as checker;
#[cfg(shuttle)]
use shuttle::sync as checker;

#[cfg(shuttle)]
pub(super) use super::scheduled::Condvar;
#[cfg(shuttle)]
pub(crate) use super::scheduled::MutexGuard;
#[cfg(feature = "map")]
pub(crate) use checker::{RwLockReadGuard, RwLockWriteGuard};
#[cfg(loom)]
pub(crate) use loom::sync::MutexGuard;

#[derive(Debug)]
pub(crate) struct Mutex<T>(checker::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(checker::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(loom)]
        return self.0.lock().expect("a model does not go on after a panic");
        #[cfg(shuttle)]
        super::scheduled::lock(&self.0)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Mutex::new(T::default())
    }
}

#[cfg(loom)]
#[derive(Debug)]
pub(super) struct Condvar(loom::sync::Condvar);

#[cfg(loom)]
impl Condvar {
    pub(super) fn new() -> Self {
        Condvar(loom::sync::Condvar::new())
    }

    pub(super) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).expect("a model does not go on after a panic")
    }

    /// Time does not pass in a model: without a wake-up this is a deadlock.
    pub(super) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _: Duration,
    ) -> MutexGuard<'a, T> {
        self.wait(guard)
    }

    pub(super) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(super) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Who comes to read while a writer waits is behind it, as with std's on Linux.
#[cfg(feature = "map")]
#[derive(Debug)]
pub(crate) struct RwLock<T>(checker::RwLock<T>);

#[cfg(feature = "map")]
impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        RwLock(checker::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        at_once(self.0.try_read())
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        at_once(self.0.try_write())
    }
}

#[cfg(feature = "map")]
fn at_once<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
