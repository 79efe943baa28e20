//! Sizes that are smaller under a model checker, and why.
//!
//! loom tries every interleaving of the accesses to `crate::base::sync`'s words, so each additional
//! word and thread multiplies its work: it gets two of each kind, or one. shuttle runs random
//! schedules of caches with real memory: it gets sizes with which a cache of some twenty frames
//! works like one of millions. A value that changes what a protocol *does*, and not only how often,
//! must not be here.

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
    /// Frames of the smallest arena. Shipped: two frames of table, and the 62 others it describes;
    /// a cache needs more (nodes, folios in flight) and checks that itself. A model has a frame of
    /// table and one other.
    FRAMES_MIN: u32 = 64, loom 2, shuttle 2;

    /// The largest order of a folio, and so the size of the runs that compaction frees: 2 MiB.
    /// loom's arenas have no whole run; shuttle's runs have eight frames, so that a cache of three
    /// runs is small.
    FOLIO_ORDER_MAX: u8 = 9, loom 9, shuttle 3;

    /// The order of the smallest folio for which others are moved: that of the first window that is
    /// read ahead.
    BLOCK_ORDER_MIN: u8 = 4, loom 4, shuttle 2;

    /// Log2 of a node's slots. With two slots, two pages make a tree.
    NODE_BITS: u32 = 6, loom 1, shuttle 6;

    /// The most blocks of a directory: 16 GiB of a file. loom's has one: more words would be more
    /// to interleave.
    DIRECTORY_BLOCKS_MAX: u64 = 1 << 16, loom 1, shuttle 1 << 16;

    /// Folios that one record of a reader can announce at once.
    SLOTS: usize = 16, loom 1, shuttle 2;

    /// Records that a reader may have beside its first, for batches of borrows: 64 slots in all.
    SEATS_FURTHER: usize = 3, loom 1, shuttle 1;

    /// The fewest entries of a batch that have the passes of `many/hits.rs`. The shipped number is
    /// from where on they are faster; the models are of the passes.
    BATCH_MIN: usize = 4, loom 1, shuttle 2;

    /// Readers' records that are allocated at a time.
    RECORDS_CHUNK: usize = 64, loom 2, shuttle 8;

    /// The most such allocations.
    RECORDS_CHUNKS: usize = 64, loom 1, shuttle 1;

    /// Granules of 2 MiB that one leaf of the index of maps has.
    #[cfg(feature = "map")]
    LEAF_GRANULES: usize = 1 << 13, loom 2, shuttle 1 << 13;

    /// How often a fault brings a page that is evicted before the fault has its lock again. After
    /// that the access is repeated, and is another fault.
    #[cfg(feature = "map")]
    RETRIES_MAX: u32 = 4, loom 1, shuttle 2;

    /// Stripes of wait queues. In the stress's mutants, and for shuttle, there are enough that no
    /// thread is woken by chance, for another folio.
    WAIT_STRIPES: usize = if cfg!(feature = "mutants") { 1 << 16 } else { 64 }, loom 2, shuttle 64;

    /// Threads that have a shard of counters of their own. The checkers' threads make caches on
    /// small stacks.
    COUNTER_SHARDS: usize = 64, loom 1, shuttle 1;

    /// The most folios that one sweep for victims examines. A sweep over three folios that are all
    /// held examines each of them as often as it may.
    SWEEP_EFFORT_MAX: u32 = 4096, loom 4096, shuttle 16;

    /// How often a batch of futures drops its guards for want of memory. Then there is not enough
    /// for all of them, however often they are read again.
    RETREATS_MAX: u32 = 16, loom 16, shuttle 2;

    /// How long a future may take from being woken to being polled until the daemon
    /// wakes the next one of its line, too. No time passes in a model: whoever is woken may be
    /// passed over at once.
    UNPOLLED: std::time::Duration = std::time::Duration::from_millis(20),
        loom std::time::Duration::ZERO, shuttle std::time::Duration::ZERO;

    /// How long a round of the futures' claims lasts at least (`pressure/queue.rs`). A program that
    /// takes longer from one poll to the next does not lose what it has, but its futures get more
    /// memory than their share, and may have to step back.
    ROUND: std::time::Duration = std::time::Duration::from_millis(200),
        loom std::time::Duration::ZERO, shuttle std::time::Duration::ZERO;

    /// How long a thread waits for memory that others hold before it gets an error; for reads under
    /// way it waits longer (`reclaim`). No time passes in a model.
    PATIENCE: std::time::Duration = std::time::Duration::from_secs(2),
        loom std::time::Duration::MAX, shuttle std::time::Duration::MAX;
}
