//! In place of `compared.rs` where the feature `testing` is off: faults have one way, and nobody
//! measures their locks.

use crate::base::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug, Default)]
pub(crate) struct Compared {}

pub(crate) struct Waited;

#[expect(clippy::unused_self, reason = "as with the feature")]
impl Compared {
    pub(crate) fn change_layout<R>(&self, change: impl FnOnce() -> R) -> R {
        change()
    }

    pub(crate) fn in_layout<R>(&self, body: impl FnOnce() -> R) -> R {
        body()
    }

    pub(crate) fn retry<R>(&self, look: impl FnOnce() -> R) -> R {
        look()
    }

    pub(crate) fn holds(&self, _: bool) -> bool {
        false
    }

    pub(crate) fn drops(&self) -> bool {
        true
    }

    pub(crate) fn note_reader(&self, _: Waited) {}

    pub(crate) fn note_writer(&self, _: Waited) {}
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> (RwLockReadGuard<'_, T>, Waited) {
    (lock.read(), Waited)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> (RwLockWriteGuard<'_, T>, Waited) {
    (lock.write(), Waited)
}
