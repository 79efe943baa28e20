//! Sizes that are smaller under a model checker, and why.
//!
//! loom tries every interleaving, so it gets two words and threads of each kind, or one. shuttle
//! runs random schedules of caches with real memory, of some twenty frames. A value that changes
//! what a protocol *does*, and not only how often, must not be here.

use std::time::Duration;

/// Makes constants of a table with columns for the shipped build, loom and shuttle.
macro_rules! sizes {
    ($(
        $(#[$doc:meta])*
        $name:ident: $type:ty = $shipped:expr, loom $loom:expr, shuttle $shuttle:expr;
    )*) => {$(
        $(#[$doc])*
        #[cfg(not(any(loom, shuttle)))]
        pub(crate) const $name: $type = $shipped;
        $(#[$doc])*
        #[cfg(loom)]
        pub(crate) const $name: $type = $loom;
        $(#[$doc])*
        #[cfg(shuttle)]
        pub(crate) const $name: $type = $shuttle;
    )*};
}

sizes! {
    /// Frames of the smallest arena: two frames of table, and the 62 others it describes.
    FRAMES_MIN: u32 = 64, loom 2, shuttle 2;
    /// The largest order of a folio, and so the size of the runs that compaction frees: 2 MiB.
    /// loom's arenas have no whole run; shuttle's runs have eight frames.
    FOLIO_ORDER_MAX: u8 = 9, loom 9, shuttle 3;
    /// The order of the smallest folio for which others are moved: that of the first readahead.
    BLOCK_ORDER_MIN: u8 = 4, loom 4, shuttle 2;
    /// Log2 of a node's slots.
    NODE_BITS: u32 = 6, loom 1, shuttle 6;
    /// The most blocks of a directory: 16 GiB of a file.
    DIRECTORY_BLOCKS_MAX: u64 = 1 << 16, loom 1, shuttle 1 << 16;
    /// Folios that one record of a reader can announce at once.
    SLOTS: usize = 16, loom 1, shuttle 2;
    /// Records that a reader may have beside its first, for batches of borrows.
    SEATS_FURTHER: usize = 3, loom 1, shuttle 1;
    /// The fewest entries of a batch that have the passes of `many/hits.rs`, which are faster then.
    BATCH_MIN: usize = 4, loom 1, shuttle 2;
    /// Readers' records that are allocated at a time.
    RECORDS_CHUNK: usize = 64, loom 2, shuttle 8;
    RECORDS_CHUNKS: usize = 64, loom 1, shuttle 1;
    /// Granules that one leaf of the index of maps has.
    #[cfg(feature = "map")]
    LEAF_GRANULES: usize = 1 << 13, loom 2, shuttle 1 << 13;
    /// How often a fault brings a page that is evicted meanwhile, before the access is repeated.
    #[cfg(feature = "map")]
    RETRIES_MAX: u32 = 4, loom 1, shuttle 2;
    /// Stripes of wait queues; under mutants, so many that no thread is woken by chance.
    WAIT_STRIPES: usize = if cfg!(feature = "mutants") { 1 << 16 } else { 64 }, loom 2, shuttle 64;
    /// Threads that have a shard of counters of their own.
    COUNTER_SHARDS: usize = 64, loom 1, shuttle 1;
    /// The most folios that one sweep for victims examines.
    SWEEP_EFFORT_MAX: u32 = 4096, loom 8, shuttle 16;
    /// How often a batch of futures drops its guards for want of memory.
    RETREATS_MAX: u32 = 16, loom 16, shuttle 2;
    /// How long a future may take from being woken to being polled until the daemon wakes the next
    /// one of its line, too. No time passes in a model.
    UNPOLLED: Duration = Duration::from_millis(20), loom Duration::ZERO, shuttle Duration::ZERO;
    /// How long a round of the futures' claims lasts at least (`pressure/queue.rs`).
    ROUND: Duration = Duration::from_millis(200), loom Duration::ZERO, shuttle Duration::ZERO;
    /// How long a thread waits for memory that others hold; for reads under way longer (`reclaim`).
    PATIENCE: Duration = Duration::from_secs(2), loom Duration::MAX, shuttle Duration::MAX;
}
