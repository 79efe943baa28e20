//! Other caches behind one trait, for `pinfold bench get`.
//!
//! Here: opening each peer as its authors advise for many threads, filling it, and one hit. Not
//! here: what is measured and how (`pinfold-cli`). Each peer is a feature and a file; `docs/get.md`
//! says what a hit of each writes to shared memory.

#[cfg(feature = "foyer")]
mod foyer;
#[cfg(feature = "hyperclock")]
mod hyperclock;
#[cfg(feature = "moka")]
mod moka;
#[cfg(feature = "quick_cache")]
mod quick_cache;

#[cfg(feature = "foyer")]
pub use foyer::Foyer;
#[cfg(feature = "hyperclock")]
pub use hyperclock::HyperClock;
#[cfg(feature = "moka")]
pub use moka::Moka;
#[cfg(feature = "quick_cache")]
pub use quick_cache::QuickCache;

/// A cache of values, all of one length, by number.
pub trait Peer: Send + Sync + Sized {
    /// A cache that holds `values` values of `value_bytes` bytes each, and evicts none of them.
    fn new(values: usize, value_bytes: usize) -> Self;

    /// Puts a copy of `value` in.
    fn insert(&self, key: u64, value: &[u8]);

    /// Gets the value of `key`, calls `read` on it in place, and releases it. `None`: it is not
    /// there.
    fn get<R>(&self, key: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R>;
}

/// A capacity that is certainly enough for this many values. Caches that split their capacity over
/// shards need more than the sum: values are not spread evenly.
#[cfg(any(feature = "foyer", feature = "moka", feature = "quick_cache", feature = "hyperclock"))]
const fn roomy(values: usize) -> usize {
    values + values / 4 + 4096
}

#[cfg(all(test, feature = "all"))]
mod tests {
    use super::*;

    const VALUES: u64 = 5000;
    const VALUE_BYTES: usize = 4096;

    fn value(key: u64) -> Vec<u8> {
        (0..VALUE_BYTES as u64).map(|at| (key * 31 + at * 7) as u8).collect()
    }

    /// A value that was put in is returned whole, any number of times and to two threads at once; a
    /// value that was not put in is not found.
    fn keeps_everything<P: Peer>() {
        let peer = P::new(VALUES as usize, VALUE_BYTES);
        assert_eq!(peer.get(0, <[u8]>::len), None);
        for key in 0..VALUES {
            peer.insert(key, &value(key));
        }
        let check = || {
            for key in (0..VALUES).chain((0..VALUES).rev()) {
                assert_eq!(peer.get(key, |bytes| bytes == value(key)), Some(true), "{key}");
            }
            assert_eq!(peer.get(VALUES, <[u8]>::len), None);
        };
        std::thread::scope(|scope| {
            scope.spawn(check);
            check();
        });
    }

    #[test]
    fn foyer_keeps_everything() {
        keeps_everything::<Foyer>();
    }

    #[test]
    fn hyperclock_keeps_everything() {
        keeps_everything::<HyperClock>();
    }

    #[test]
    fn moka_keeps_everything() {
        keeps_everything::<Moka>();
    }

    #[test]
    fn quick_cache_keeps_everything() {
        keeps_everything::<QuickCache>();
    }
}
