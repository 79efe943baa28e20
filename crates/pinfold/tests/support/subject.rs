//! A cache for tests of reading in place, with a file whose bytes give their own offset.
//!
//! Here: that, and evicting all of it. Not here: guards. Used by `it/borrow.rs` and `it/get.rs`.

use std::sync::Arc;

use pinfold::source::Memory;
use pinfold::{Cache, File, Options};
use pinfold_testing::pattern::Pattern;

pub(crate) const PAGE: usize = 4096;

pub(crate) struct Subject {
    pub(crate) cache: Cache,
    pub(crate) file: File,
    pub(crate) memory: Arc<Memory>,
    pub(crate) pattern: Pattern,
}

impl Subject {
    pub(crate) fn new(options: Options, pattern: Pattern, bytes: usize) -> Self {
        let cache = Cache::new(options).unwrap();
        let memory = Arc::new(Memory::new(pattern.to_vec(bytes)));
        let file = cache.attach("file", memory.clone()).unwrap();
        Subject { cache, file, memory, pattern }
    }

    pub(crate) fn check(&self, page: u64, bytes: &[u8]) {
        self.pattern.check(page * PAGE as u64, bytes).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    /// So much of another file that nothing of the first can stay that need not.
    pub(crate) fn crowd(&self) {
        let other = self.cache.attach("crowd", Arc::new(Memory::new(vec![0xee; 8 << 20]))).unwrap();
        let mut buf = vec![0; 64 << 10];
        for offset in (0..8 << 20).step_by(buf.len()) {
            assert_eq!(other.read_at(&mut buf, offset).unwrap(), buf.len());
        }
    }
}
