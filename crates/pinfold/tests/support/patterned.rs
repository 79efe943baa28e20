//! A cache, and a file in it whose bytes tell where they are.
//!
//! `subject.rs` has one more for tests of reading in place.

use std::sync::Arc;

use pinfold::source::Memory;
use pinfold::{Cache, File, Options};
use pinfold_testing::pattern::Pattern;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) fn cache_of(budget_bytes: u64) -> Cache {
    Cache::new(Options::new(budget_bytes)).unwrap()
}

/// A file of the pattern.
pub(crate) fn file(cache: &Cache, bytes: u64) -> (File, Pattern) {
    let pattern = Pattern::new(3, 0);
    let memory = Memory::new(pattern.to_vec(bytes as usize));
    (cache.attach("file", Arc::new(memory)).unwrap(), pattern)
}
