//! A cache's statistics: [`Stats`]. The counters behind it are in `counters.rs`.

/// A cache's counters. They are summed one after another while threads go on counting.
///
/// Not every way in counts every hit, because counting costs time:
///
/// | call | a hit counts in | a page that is not up to date counts in |
/// |---|---|---|
/// | [`File::read_at`](crate::File::read_at) | `reads`, and `short_reads` or `counted_hits` | `misses` or `waits` |
/// | [`File::get`](crate::File::get) | `counted_hits` | `misses` or `waits` |
/// | `borrow`, `optimistic`, `pin` | nothing (a pin: `pinned_bytes`) | `misses` or `waits` |
/// | an access to a map | nothing | `misses` or `waits`; what is read with the page in `readahead` |
///
/// How many *bytes* were read, by whatever way in, is in [`Cache::sources`](crate::Cache::sources).
/// Calls for many pages count each read or page. The futures count as the calls without `async`; a
/// miss of theirs may count in `waits`, too. A miss of a `try_` call counts nowhere, but for
/// `try_read_at`, where it counts in `reads` and in `fallbacks` or `long_reads`. If more than 64
/// threads count at a time, some counts may be lost.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Calls of `read_at` by size: bucket 0 counts empty reads, bucket n reads of 2^(n-1) to
    /// 2^n - 1 bytes, the last bucket also all longer ones.
    pub reads: [u64; 32],
    /// Calls of `read_at` that were served without a reference.
    pub short_reads: u64,
    /// Calls of `read_at` that were longer than the short-read limit.
    pub long_reads: u64,
    /// Short reads that were repeated under a reference: no folio was found at the first page; or
    /// it lies 4 TiB or more from the file's start.
    pub fallbacks_absent: u64,
    /// The folio was being filled or changed.
    pub fallbacks_changing: u64,
    /// The memory held another folio by then.
    pub fallbacks_identity: u64,
    /// The folio carries the readahead mark: the read had to start the next readahead.
    pub fallbacks_readahead: u64,
    /// The range crosses the end of the folio.
    pub fallbacks_crosses: u64,
    /// The range crosses the end of the file.
    pub fallbacks_end_of_file: u64,
    /// The folio changed during the copy.
    pub fallbacks_changed: u64,
    /// Folios found up to date to which `read_at` or `get` took a reference, or an `optimistic`
    /// whose first look-up failed.
    pub counted_hits: u64,
    /// Folios that a call wanted and began to read: they were neither cached nor on their way.
    pub misses: u64,
    /// Times a call waited for a folio that was on its way, whoever had begun to read it.
    pub waits: u64,
    /// Folios that the cache began to read ahead of a reader, or for a
    /// [`File::prefetch`](crate::File::prefetch) or [`Hint::WillNeed`](crate::Hint::WillNeed).
    pub readahead: u64,
    /// Folios that were not read ahead, because as many reads were under way as may be.
    pub readahead_dropped: u64,
    /// Folios being read from a source now.
    pub fills_in_flight: u64,
    /// Folios whose read failed. Failed calls are in [`Cache::sources`](crate::Cache::sources).
    pub fill_errors: u64,
    /// Folios evicted.
    pub evictions: u64,
    /// Bytes of the evicted folios.
    pub evicted_bytes: u64,
    /// Folios that were read again soon after their eviction.
    pub refaults: u64,
    /// Times a thread that needed memory had to evict by itself.
    pub direct_reclaims: u64,
    /// Folios split.
    pub splits: u64,
    /// Folios moved to another place in memory.
    pub migrations: u64,
    /// Migrations made so that a folio could be pinned.
    pub pin_migrations: u64,
    /// Whether [`Options::membarrier`](crate::Options::membarrier) is in use.
    pub membarrier: bool,
    /// Calls of membarrier(2).
    pub membarriers: u64,
    /// [`Reader`](crate::Reader)s registered now.
    pub readers: u64,
    /// Borrows that took a reference because all slots of their reader were in use.
    pub borrows_counted: u64,
    /// Times eviction or a move chose a folio, found it borrowed, and left it alone.
    pub put_back: u64,
    /// Folios dropped while borrowed, whose memory could be freed only later.
    pub deferred: u64,
    /// Of these, folios still waiting, as of the last time the readers were scanned.
    pub deferred_folios: u64,
    /// Bytes of these folios.
    pub deferred_bytes: u64,
    /// The budget, in bytes.
    pub budget_bytes: u64,
    /// Bytes of file pages in memory.
    pub resident_bytes: u64,
    /// Of these, bytes of folios that were written to, and are not known to be durable.
    pub dirty_bytes: u64,
    /// Bytes of all pinned pages, each counted once per pin.
    pub pinned_bytes: u64,
    /// Bytes of the cache's own tables in the budget: what is known of each page, and the indexes.
    pub metadata_bytes: u64,
    /// Bytes of the tables by which readers find pages quickly, outside the budget
    /// ([`Options::new`](crate::Options::new)).
    pub directories_bytes: u64,
    /// Bytes of what else is kept for each file, outside the budget too, mostly counters. Computed
    /// from the sizes of its parts: without what the allocator adds, and sources of the program.
    pub files_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Whether the system accepted the request to back the cache with huge pages.
    pub huge_pages: bool,
    /// Files that are open or have cached pages.
    pub files: u64,
    /// The bytes that the swap can hold; 0 if there is none, as all that follows.
    #[cfg(feature = "map")]
    pub swap_bytes: u64,
    /// The bytes that it holds.
    #[cfg(feature = "map")]
    pub swap_used_bytes: u64,
    /// Pages written to it.
    #[cfg(feature = "map")]
    pub swap_pages_written: u64,
    /// Writes, each of one or more pages.
    #[cfg(feature = "map")]
    pub swap_writes: u64,
    /// Pages read from it.
    #[cfg(feature = "map")]
    pub swap_pages_read: u64,
    /// Reads, each of one or more pages.
    #[cfg(feature = "map")]
    pub swap_reads: u64,
    /// Pages that left memory without a write: they were all zeros.
    #[cfg(feature = "map")]
    pub swap_zeros: u64,
    /// Page-outs that were given up, because the page was stored to meanwhile.
    #[cfg(feature = "map")]
    pub swap_stored_meanwhile: u64,
    /// How often a page was to be written and stayed in memory because the swap was full.
    #[cfg(feature = "map")]
    pub swap_full: u64,
    /// Writes that failed: their pages stayed in memory.
    #[cfg(feature = "map")]
    pub swap_write_errors: u64,
    /// Reads that failed.
    #[cfg(feature = "map")]
    pub swap_read_errors: u64,
    /// Why the last of them failed.
    #[cfg(feature = "map")]
    pub swap_last_error: Option<String>,
}
