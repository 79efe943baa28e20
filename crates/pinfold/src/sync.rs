//! The one place that swaps std for the model checker.
//!
//! Everything in this crate that threads share is built from the names here. Under `--cfg loom`
//! they are loom's, and the same code runs in every interleaving that loom can tell apart.

#![allow(unused_imports, reason = "each name is used by some room in some configuration")]

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(loom)]
type Inner<T> = loom::sync::Mutex<T>;
#[cfg(not(loom))]
type Inner<T> = std::sync::Mutex<T>;
#[cfg(loom)]
pub(crate) type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;
#[cfg(not(loom))]
pub(crate) type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;

/// A mutex that ignores poisoning: what it guards here is kept consistent by assertions, and a
/// panic of one reader must not take the cache from all others.
#[derive(Debug)]
pub(crate) struct Mutex<T>(Inner<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(Inner::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
