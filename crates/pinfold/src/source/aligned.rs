//! Heap memory at a chosen alignment, for bounce buffers and probes.
//!
//! Belongs here: the buffer alone. Cache memory never comes from here (see `frame/`).

use std::ops::{Deref, DerefMut};

/// Zeroed bytes whose address is a multiple of an alignment.
#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    storage: Box<[u8]>,
    start: usize,
    bytes: usize,
}

impl AlignedBuffer {
    /// Allocates `bytes` zeroed bytes at a multiple of `alignment`, a power of two.
    pub(crate) fn zeroed(bytes: usize, alignment: usize) -> Self {
        assert!(alignment.is_power_of_two(), "alignment {alignment} is not a power of two");
        let storage = vec![0; bytes + alignment - 1].into_boxed_slice();
        let start = storage.as_ptr().addr().next_multiple_of(alignment) - storage.as_ptr().addr();
        assert!(start < alignment);
        Self { storage, start, bytes }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.bytes]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.bytes]
    }
}
