use super::entry::FrameNumber;

/// 2 MiB.
pub(crate) const ORDER_MAX: u32 = 9;

pub(crate) const BITS: u32 = crate::base::sizes::NODE_BITS;

/// One more than the largest page offset: file offsets end at 2^63.
pub(crate) const PAGES_END: u64 = 1 << 51;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Has bytes that were not given to the source yet.
    Dirty = 0,
    /// Was given to the source, which has not said yet that it is durable.
    Writeback = 1,
    /// Was dirty when the running sync began.
    ToWrite = 2,
}

impl Mark {
    pub(crate) const ALL: [Mark; 3] = [Mark::Dirty, Mark::Writeback, Mark::ToWrite];
}

/// A folio and where it is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FolioAt {
    /// A multiple of 2^order.
    pub(crate) page: u64,
    pub(crate) order: u32,
    pub(crate) frame: FrameNumber,
}

impl FolioAt {
    pub(crate) fn end(self) -> u64 {
        self.page + (1 << self.order)
    }
}
