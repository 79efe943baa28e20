//! What a cache tells of itself: [`Stats`], and the counters behind it.
//!
//! A reader counts in a shard of its own thread, so that counting writes nothing shared.

use crate::readers::Barrier;
use crate::source::SourceStats;

pub use crate::counters::READ_SIZE_BUCKETS;

/// A cache's counters, as they stood while they were being added up.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Reads by size: bucket 0 counts empty reads, bucket n those of 2^(n-1) to 2^n - 1 bytes, the
    /// last also all longer ones.
    pub reads: [u64; READ_SIZE_BUCKETS],
    /// Reads served without a reference.
    pub short_reads: u64,
    /// Reads that did not try to do without one: longer than the limit.
    pub long_reads: u64,
    /// Reads that tried to do without a reference, and why they could not.
    pub fallbacks: Fallbacks,
    /// Folios copied from under a reference.
    pub counted_hits: u64,
    /// Folios that a reader wanted and that were not there.
    pub misses: u64,
    /// Of the misses, those that found the folio on its way already, and waited.
    pub waits: u64,
    /// Folios read ahead of a reader.
    pub readahead: u64,
    /// Folios on their way from a source now.
    pub fills_in_flight: u64,
    /// Fills that failed.
    pub fill_errors: u64,
    /// Folios evicted, and their bytes.
    pub evictions: u64,
    /// Bytes of the folios evicted.
    pub evicted_bytes: u64,
    /// Folios that came back soon after their eviction.
    pub refaults: u64,
    /// Times a reader had to evict for itself.
    pub direct_reclaims: u64,
    /// Folios split.
    pub splits: u64,
    /// Folios moved to another place.
    pub migrations: u64,
    /// Of these, those that were to be pinned for long and lay in the way.
    pub pin_migrations: u64,
    /// Of those who borrow, and of what that costs those who evict.
    pub borrow: BorrowStats,
    /// The budget.
    pub budget_bytes: u64,
    /// Bytes of file pages in memory.
    pub resident_bytes: u64,
    /// Of these, newer than the source's. Nothing writes yet.
    pub dirty_bytes: u64,
    /// Pinned: the bytes of all pages, each as often as it is pinned.
    pub pinned_bytes: u64,
    /// The frame table and the index nodes with their slabs.
    pub metadata_bytes: u64,
    /// The directories of files, which lie outside of the budget like their names: 4 bytes for each
    /// 256 KiB of a file, 256 KiB at most.
    pub directories_bytes: u64,
    /// Bytes that nothing is in.
    pub free_bytes: u64,
    /// Whether the system agreed to back the cache with huge pages where it can.
    pub huge_pages: bool,
    /// Files known: open, or with pages in memory.
    pub files: u64,
    /// Calls of each file's source, with latencies.
    pub sources: Vec<(String, SourceStats)>,
}

/// Borrowing: [`File::borrow`](crate::File::borrow).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BorrowStats {
    /// What keeps borrowing and evicting apart.
    pub barrier: Barrier,
    /// Readers registered now.
    pub readers: u64,
    /// Borrows that took a reference because all slots of their reader were in use.
    pub counted: u64,
    /// Times a folio was frozen, found to be borrowed, and put back.
    pub put_back: u64,
    /// Folios that were dropped while somebody borrowed them, so that their memory had to wait.
    pub deferred: u64,
    /// Of these, how many wait now (or until somebody looks).
    pub deferred_folios: u64,
    /// And their bytes.
    pub deferred_bytes: u64,
    /// Calls of membarrier(2).
    pub membarriers: u64,
}

/// Why reads fell back from the short path to the counted one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fallbacks {
    /// Nothing was found at the first page.
    pub absent: u64,
    /// What was found was being filled or changed.
    pub changing: u64,
    /// What was found was another folio by then.
    pub identity: u64,
    /// It began what was read ahead, and more was to be.
    pub readahead: u64,
    /// The range went beyond the folio.
    pub crosses: u64,
    /// The range went beyond the end of the file.
    pub end_of_file: u64,
    /// The folio changed while it was copied.
    pub changed: u64,
}

impl Fallbacks {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.absent
            + self.changing
            + self.identity
            + self.readahead
            + self.crosses
            + self.end_of_file
            + self.changed
    }
}
