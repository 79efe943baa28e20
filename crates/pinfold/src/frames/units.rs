//! The units of memory: pages, frames and orders of folios, with their limits.

pub(crate) use crate::base::sizes::FRAMES_MIN;

use crate::base::sizes::FOLIO_ORDER_MAX;

/// Bits of an address that lie inside one page.
pub(crate) const PAGE_SHIFT: u32 = 12;

/// Bytes in one page, and so in one frame.
pub(crate) const PAGE_BYTES: usize = 1 << PAGE_SHIFT;

/// Most frames that one cache may have: 2^30, which is 4 TiB. The two bits above stay free in
/// every `u32` that carries a frame number.
pub(crate) const FRAMES_MAX: u32 = 1 << 30;

/// The smallest budget that opens, in bytes: 256 KiB.
pub(crate) const BUDGET_MIN_BYTES: u64 = (FRAMES_MIN as u64) << PAGE_SHIFT;

/// The largest budget that opens, in bytes: 4 TiB.
pub(crate) const BUDGET_MAX_BYTES: u64 = (FRAMES_MAX as u64) << PAGE_SHIFT;

/// Which frame of the arena: frame `n` is the 4 KiB that start `n * 4096` bytes into it. Any `u32`
/// is one; its use checks whether the arena has that frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FrameNumber(pub(crate) u32);

impl FrameNumber {
    /// The frame `frames` after this one. Wraps: a racing reader may add arbitrary numbers, and the
    /// bounds check where it uses the sum stops it.
    pub(crate) const fn after(self, frames: u32) -> Self {
        FrameNumber(self.0.wrapping_add(frames))
    }

    /// Whether a folio of `order` may start here.
    pub(crate) const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.frames() - 1) == 0
    }

    /// The first frame of the aligned run of `order` that this frame lies in.
    pub(crate) const fn align_down(self, order: Order) -> Self {
        FrameNumber(self.0 & !(order.frames() - 1))
    }
}

/// The size of a folio: 2^order frames, order 0 (4 KiB) to 9 (2 MiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Order(pub(super) u8);

impl Order {
    pub(crate) const MIN: Order = Order(0);
    /// 512 frames: 2 MiB, what one huge page of the machine maps.
    pub(crate) const MAX: Order = Order(FOLIO_ORDER_MAX);
    pub(crate) const COUNT: usize = Order::MAX.0 as usize + 1;

    /// The order `order`, if there is such an order.
    pub(crate) const fn new(order: u8) -> Option<Order> {
        if order <= Order::MAX.0 { Some(Order(order)) } else { None }
    }

    pub(crate) const fn get(self) -> u8 {
        self.0
    }

    pub(crate) const fn frames(self) -> u32 {
        1 << self.0
    }

    pub(crate) const fn bytes(self) -> usize {
        PAGE_BYTES << self.0
    }

    /// Every order, smallest first.
    pub(crate) fn all() -> impl DoubleEndedIterator<Item = Order> {
        (0..=Order::MAX.0).map(Order)
    }

    /// The largest order whose aligned block starts at `first` and ends no later than `end`; of
    /// frames or of a file's pages.
    pub(crate) const fn of_block_at(first: u64, end: u64) -> Order {
        debug_assert!(first < end, "a block has at least one frame");
        // 0 is aligned to everything, and has 64 trailing zeros.
        let aligned = first.trailing_zeros();
        let fits = (end - first).ilog2();
        let least = if aligned < fits { aligned } else { fits };
        if least < Order::MAX.0 as u32 { Order(least as u8) } else { Order::MAX }
    }
}
