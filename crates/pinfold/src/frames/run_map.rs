//! A set of frames of one 2 MiB run: which are free, or held.

use super::units::{FrameNumber, Order};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunMap([u64; RunMap::WORDS]);

impl RunMap {
    pub(super) const FRAMES: u32 = Order::MAX.frames();
    const WORDS: usize = RunMap::FRAMES.div_ceil(64) as usize;

    /// By how many frames it lies from the run's start.
    pub(crate) fn contains(&self, offset: u32) -> bool {
        self.0[offset as usize / 64] >> (offset % 64) & 1 == 1
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == RunMap::FRAMES
    }

    /// Panics if some of the block is in the set already.
    pub(super) fn insert(&mut self, offset: u32, order: Order) {
        debug_assert!(FrameNumber(offset).is_aligned(order));
        let words = order.frames().div_ceil(64);
        let bits = if order.frames() < 64 { (1 << order.frames()) - 1 } else { u64::MAX };
        let mask = bits << (offset % 64);
        let first = offset as usize / 64;
        for word in &mut self.0[first..first + words as usize] {
            assert!(*word & mask == 0, "frames of a held run are freed twice");
            *word |= mask;
        }
    }
}
