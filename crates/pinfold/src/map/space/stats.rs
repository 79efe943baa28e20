//! What is counted about a space: its faults.

#[cfg(any(feature = "testing", loom, shuttle))]
use super::compared::SpaceLocks;
use super::counter::Counter;

/// What has happened in a [`Space`](super::Space) since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceStats {
    /// Whether system calls that touch absent pages wait for them. False without handler threads;
    /// and with them, if the process has no privilege for it: root, `vm.unprivileged_userfaultfd`,
    /// or access to `/dev/userfaultfd`.
    pub serves_system_calls: bool,
    /// Faults that the space was asked to serve. An access to a page that is in the map's memory is
    /// none: the kernel serves it alone.
    pub faults: u64,
    /// Faults whose page was cached by the time they looked: nothing was read for them.
    pub there: u64,
    /// Faults whose page had to be read, or was being read by another thread.
    pub absent: u64,
    /// How often a fault dropped its lock for a read and took a lock again after it.
    pub retries: u64,
    /// Retries that found the page evicted again.
    pub retry_io_miss: u64,
    /// Faults whose map was changed or unmapped while their page was read. The access is repeated.
    pub changed: u64,
    /// Faults whose page could not be read.
    pub failed: u64,
    /// What is measured of locks. Feature `testing`.
    #[cfg(any(feature = "testing", loom, shuttle))]
    pub locks: SpaceLocks,
}

#[derive(Debug, Default)]
pub(crate) struct SpaceCounters {
    pub(crate) faults: Counter,
    pub(crate) there: Counter,
    pub(crate) absent: Counter,
    pub(crate) retries: Counter,
    pub(crate) retry_io_miss: Counter,
    pub(crate) changed: Counter,
    pub(crate) failed: Counter,
}
