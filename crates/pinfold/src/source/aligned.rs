//! Heap memory at a chosen alignment.

use std::ops::{Deref, DerefMut};

use crate::base::heap::zeroed;

#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    storage: Box<[u8]>,
    start: usize,
    bytes: usize,
}

impl AlignedBuffer {
    pub(crate) fn zeroed(bytes: usize, alignment: usize) -> Self {
        Self::at_multiple(vec![0; bytes + alignment - 1].into(), bytes, alignment)
    }

    pub(crate) fn try_zeroed(bytes: usize, alignment: usize) -> Option<Self> {
        let storage = zeroed(bytes + alignment - 1)?;
        Some(Self::at_multiple(storage, bytes, alignment))
    }

    fn at_multiple(storage: Box<[u8]>, bytes: usize, alignment: usize) -> Self {
        assert!(alignment.is_power_of_two(), "alignment {alignment} is not a power of two");
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
