//! The count in a frame's entry: the shipped one, or the same on the model checker's atomics.
//!
//! What belongs here: that choice. What does not: the count's protocol, which is
//! `pinfold-refcount`'s. Called by `entry`.

#[cfg(not(loom))]
pub(crate) use pinfold_refcount::RefCount as Count;

/// A count's word, decoded.
pub(crate) type CountWord = pinfold_refcount::Word;

#[cfg(not(loom))]
pub(super) const fn frozen() -> Count {
    Count::frozen()
}

#[cfg(loom)]
pub(crate) type Count =
    pinfold_refcount::RefCount<pinfold_refcount::protocol::Shipped, checked::Word>;

#[cfg(loom)]
pub(super) fn frozen() -> Count {
    Count::new_frozen()
}

/// loom's 64-bit atomic, as the count wants it.
#[cfg(loom)]
mod checked {
    use pinfold_refcount::atomic::AtomicWord;

    use crate::sync::{AtomicU64, Ordering};

    #[derive(Debug)]
    pub(crate) struct Word(AtomicU64);

    impl AtomicWord<u64> for Word {
        fn new(value: u64) -> Self {
            Word(AtomicU64::new(value))
        }

        fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        /// A swap: loom 0.7 keeps no total order of one word's changes, so that a loser's swap
        /// may succeed on the value from before a plain store and undo it (seen here as a frame
        /// that nobody frees). The models of the count itself do the same.
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

        fn update(&self, seen: u64, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
            let mut seen = seen;
            loop {
                let Some(new) = change(seen) else { return Err(seen) };
                // Relaxed, and pairs with nothing: as the trait asks.
                match self.0.compare_exchange(seen, new, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Ok(new),
                    Err(now) => seen = now,
                }
            }
        }
    }
}
