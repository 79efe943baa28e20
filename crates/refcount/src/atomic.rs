//! The atomic integer under a count: the operations that the protocol needs, and no others.
//!
//! Shipped counts sit on `core`'s atomics. Tests put other things here: loom's atomics, or a word
//! that stops after each access so that an explicit-state search can run the very same code.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An atomic integer of type `T`.
pub trait AtomicWord<T: Copy> {
    fn new(value: T) -> Self;
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn fetch_add(&self, value: T, order: Ordering) -> T;
    fn fetch_sub(&self, value: T, order: Ordering) -> T;
    /// Replaces `current` by `new`, or returns the value found. Never fails spuriously: a last put
    /// whose swap failed for no reason would leak its folio.
    ///
    /// # Errors
    /// The value found, if it was not `current`.
    fn compare_exchange(&self, current: T, new: T, success: Ordering) -> Result<T, T>;
    /// Replaces the word by what `change` makes of it, starting from a value `seen` before, until
    /// that succeeds or `change` declines with `None`. Always relaxed: its users only take away
    /// what they added themselves.
    ///
    /// It ends: a failed exchange means that another thread changed the word, and every user's
    /// `change` declines once another thread has done its work.
    ///
    /// # Errors
    /// The value that `change` declined.
    fn update(&self, mut seen: T, change: impl Fn(T) -> Option<T>) -> Result<T, T> {
        loop {
            let Some(new) = change(seen) else { return Err(seen) };
            // Relaxed, and pairs with nothing: see above.
            match self.compare_exchange(seen, new, Ordering::Relaxed) {
                Ok(_) => return Ok(new),
                Err(now) => seen = now,
            }
        }
    }
}

macro_rules! on_core {
    ($atomic:ty, $int:ty) => {
        impl AtomicWord<$int> for $atomic {
            #[inline]
            fn new(value: $int) -> Self {
                <$atomic>::new(value)
            }
            #[inline]
            fn load(&self, order: Ordering) -> $int {
                self.load(order)
            }
            #[inline]
            fn store(&self, value: $int, order: Ordering) {
                self.store(value, order);
            }
            #[inline]
            fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.fetch_add(value, order)
            }
            #[inline]
            fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                self.fetch_sub(value, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
            ) -> Result<$int, $int> {
                // Relaxed on failure: the loser learns nothing that it acts upon.
                self.compare_exchange(current, new, success, Ordering::Relaxed)
            }
        }
    };
}

/// The model checker's atomic, for the models of this crate and of its users.
#[cfg(feature = "loom")]
pub mod checked {
    use super::{AtomicWord, Ordering};

    /// loom's 64-bit atomic.
    #[derive(Debug)]
    pub struct CheckedWord(loom::sync::atomic::AtomicU64);

    impl AtomicWord<u64> for CheckedWord {
        fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }
        fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }
        /// A swap, because loom 0.7 has no total order of one word's changes: it lets a
        /// compare-and-swap succeed on a value older than a concurrent store, and a later load then
        /// see the swap's value as the newest (in the cache: a frame that is never freed). A swap
        /// of the same ordering is stronger in one thing only, that it continues release sequences;
        /// `tests/explore.rs` has the plain store.
        fn store(&self, value: u64, order: Ordering) {
            self.0.swap(value, order);
        }
        fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_add(value, order)
        }
        fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
            self.0.fetch_sub(value, order)
        }
        fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
            // Relaxed on failure: as the shipped word does it.
            self.0.compare_exchange(current, new, success, Ordering::Relaxed)
        }
    }
}

on_core!(AtomicU64, u64);
on_core!(AtomicU32, u32);
