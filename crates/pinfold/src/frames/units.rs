pub(crate) use crate::base::sizes::FRAMES_MIN;

use crate::base::sizes::FOLIO_ORDER_MAX;

pub(crate) const PAGE_SHIFT: u32 = 12;

pub(crate) const PAGE_BYTES: usize = 1 << PAGE_SHIFT;

/// Most frames that one cache may have: 4 TiB. Two bits of a `u32` stay free.
pub(crate) const FRAMES_MAX: u32 = 1 << 30;

/// The smallest budget: 256 KiB.
pub(crate) const BUDGET_MIN_BYTES: u64 = (FRAMES_MIN as u64) << PAGE_SHIFT;

/// The largest budget: 4 TiB.
pub(crate) const BUDGET_MAX_BYTES: u64 = (FRAMES_MAX as u64) << PAGE_SHIFT;

/// Frame `n` is the 4 KiB that start `n * 4096` bytes into the arena, which may have none such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FrameNumber(pub(crate) u32);

impl FrameNumber {
    /// Wraps: a racing reader may add arbitrary numbers, and checks the sum where it is used.
    pub(crate) const fn after(self, frames: u32) -> Self {
        FrameNumber(self.0.wrapping_add(frames))
    }

    /// Whether a folio of `order` may start here.
    pub(crate) const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.frames() - 1) == 0
    }

    pub(crate) const fn align_down(self, order: Order) -> Self {
        FrameNumber(self.0 & !(order.frames() - 1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Order(pub(super) u8);

impl Order {
    pub(crate) const MIN: Order = Order(0);
    /// 2 MiB, what one huge page of the machine maps.
    pub(crate) const MAX: Order = Order(FOLIO_ORDER_MAX);
    pub(crate) const COUNT: usize = Order::MAX.0 as usize + 1;

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

    pub(crate) fn all() -> impl DoubleEndedIterator<Item = Order> {
        (0..=Order::MAX.0).map(Order)
    }

    /// The largest order whose aligned block starts at `first` and ends no later than `end`.
    pub(crate) const fn of_block_at(first: u64, end: u64) -> Order {
        debug_assert!(first < end, "a block has at least one frame");
        // 0 is aligned to everything, and has 64 trailing zeros.
        let aligned = first.trailing_zeros();
        let fits = (end - first).ilog2();
        let least = if aligned < fits { aligned } else { fits };
        if least < Order::MAX.0 as u32 { Order(least as u8) } else { Order::MAX }
    }
}
