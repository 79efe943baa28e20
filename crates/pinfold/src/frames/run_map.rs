// Not from `crate::base::sync`: changed under the allocator's mutex, or a mutex of the arena's.
use std::sync::atomic::{AtomicU64, Ordering};

use super::units::{FrameNumber, Order};

/// Runs of an arena. Relaxed, all: what orders an answer is said where it is used.
#[derive(Debug)]
pub(super) struct RunSet(Box<[AtomicU64]>);

impl RunSet {
    /// Empty, of an arena with so many frames.
    pub(super) fn new(frames: u32) -> Self {
        let words = frames.div_ceil(RunMap::FRAMES).div_ceil(u64::BITS);
        RunSet((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    fn word_and_bit(&self, frame: FrameNumber) -> (&AtomicU64, u64) {
        let run = frame.0 / RunMap::FRAMES;
        (&self.0[(run / u64::BITS) as usize], 1 << (run % u64::BITS))
    }

    /// Of the run that `frame` lies in.
    #[inline]
    pub(super) fn contains(&self, frame: FrameNumber) -> bool {
        let (word, bit) = self.word_and_bit(frame);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// Puts the run of `frame` in, or takes it out.
    pub(super) fn set(&self, frame: FrameNumber, is_in: bool) {
        let (word, bit) = self.word_and_bit(frame);
        if is_in {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Right at some moment for each 64 runs.
    #[cfg(feature = "map")]
    pub(super) fn len(&self) -> u32 {
        self.0.iter().map(|runs| runs.load(Ordering::Relaxed).count_ones()).sum()
    }
}

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
