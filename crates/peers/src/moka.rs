//! `moka::sync::Cache`, values in `Arc`s as its documentation advises for values that are dear to
//! clone: a get clones the value.

use std::sync::Arc;

use foldhash::fast::RandomState;
use moka::sync::Cache;

use crate::{Peer, roomy};

/// moka, with a hash function for integers in place of its default, which resists attacks.
#[derive(Debug)]
pub struct Moka {
    cache: Cache<u64, Arc<[u8]>, RandomState>,
}

impl Peer for Moka {
    fn new(values: usize, _value_bytes: usize) -> Self {
        let builder = Cache::builder().max_capacity(roomy(values) as u64).initial_capacity(values);
        Moka { cache: builder.build_with_hasher(RandomState::default()) }
    }

    fn insert(&self, key: u64, value: &[u8]) {
        self.cache.insert(key, value.into());
    }

    #[inline]
    fn get<R>(&self, key: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.cache.get(&key).map(|value| read(&value))
    }
}
