//! `foyer::Cache`, which is `foyer_memory::Cache`: a get gives a counted entry, read in place.

use std::fmt;

use foldhash::fast::RandomState;
use foyer_memory::{Cache, CacheBuilder, S3FifoConfig};

use crate::{Peer, roomy};

/// foyer with S3-FIFO. Its default, LRU, takes a shard's lock for writing at each hit.
pub struct Foyer {
    cache: Cache<u64, Box<[u8]>, RandomState>,
}

impl fmt::Debug for Foyer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foyer").finish_non_exhaustive()
    }
}

impl Peer for Foyer {
    fn new(values: usize, _value_bytes: usize) -> Self {
        let builder = CacheBuilder::new(roomy(values))
            .with_eviction_config(S3FifoConfig::default())
            .with_hash_builder(RandomState::default());
        Foyer { cache: builder.build() }
    }

    fn insert(&self, key: u64, value: &[u8]) {
        self.cache.insert(key, value.into());
    }

    #[inline]
    fn get<R>(&self, key: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.cache.get(&key).map(|entry| read(&entry))
    }
}
