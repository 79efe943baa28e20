//! `quick_cache::sync::Cache`, values in `Arc`s, as a get clones the value.

use std::sync::Arc;

use foldhash::fast::RandomState;
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use crate::{Peer, roomy};

/// `quick_cache` as it comes: four shards a CPU, and the same hash function as its default.
#[derive(Debug)]
pub struct QuickCache {
    cache: Cache<u64, Arc<[u8]>, UnitWeighter, RandomState>,
}

impl Peer for QuickCache {
    fn new(values: usize, _value_bytes: usize) -> Self {
        let (room, hasher) = (roomy(values), RandomState::default());
        let lifecycle = DefaultLifecycle::default();
        QuickCache { cache: Cache::with(room, room as u64, UnitWeighter, hasher, lifecycle) }
    }

    fn insert(&self, key: u64, value: &[u8]) {
        self.cache.insert(key, value.into());
    }

    #[inline]
    fn get<R>(&self, key: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.cache.get(&key).map(|value| read(&value))
    }
}
