//! A lock for many readers or one writer, of std or of a model checker.

use std::sync::PoisonError;
#[cfg(any(feature = "testing", loom, shuttle))]
use std::sync::TryLockError;

#[cfg(loom)]
use loom::sync as read_write;
#[cfg(shuttle)]
use shuttle::sync as read_write;
#[cfg(not(any(loom, shuttle)))]
use std::sync as read_write;

pub(crate) use read_write::{RwLockReadGuard, RwLockWriteGuard};

/// Not poisoned by a panic. Who comes to read while a writer waits is behind it, as with std's on
/// Linux: so a writer waits only for those who read already.
#[derive(Debug)]
pub(crate) struct RwLock<T>(read_write::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        RwLock(read_write::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(any(feature = "testing", loom, shuttle))]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        at_once(self.0.try_read())
    }

    #[cfg(any(feature = "testing", loom, shuttle))]
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        at_once(self.0.try_write())
    }
}

#[cfg(any(feature = "testing", loom, shuttle))]
fn at_once<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
