//! What is smaller under a model checker, and why.
//!
//! loom tries every interleaving of the accesses to `crate::sync`'s words, so each word and each
//! thread more multiplies what it has to try: it gets two of each kind, or one. shuttle runs
//! schedules that it draws, of caches with real memory: it gets what makes a cache of some twenty
//! frames work like one of millions. A value that changes what a protocol *does*, not only how
//! often, must not stand here.

/// Makes constants of a table: as shipped, for loom, for shuttle.
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
    /// Frames of the smallest arena that opens. Shipped: one frame of table, and the 63 others it
    /// describes; what a whole cache needs on top of that (nodes, folios in flight) is the cache's
    /// to ask for. A model has a frame of table, and one other.
    FRAMES_MIN: u32 = 64, loom 2, shuttle 2;

    /// The largest order of a folio, and so the size of the runs that compaction makes: 2 MiB.
    /// loom's arenas have no whole run; shuttle's runs are of eight frames, so that a cache of
    /// three is small.
    FOLIO_ORDER_MAX: u8 = 9, loom 9, shuttle 3;

    /// Log2 of a node's slots. With two slots, two pages are a tree already.
    NODE_BITS: u32 = 6, loom 1, shuttle 6;

    /// Most blocks of a directory: 16 GiB of a file. loom's readers walk, but in the models that
    /// are about the directory: each of its words would be one more to interleave in all others.
    DIRECTORY_BLOCKS_MAX: u64 = 1 << 16, loom 1, shuttle 1 << 16;

    /// Folios that one thread can borrow at once without counting.
    SLOTS: usize = 8, loom 1, shuttle 2;

    /// Readers' records made at a time.
    RECORDS_CHUNK: usize = 64, loom 2, shuttle 8;

    /// And how often at most.
    RECORDS_CHUNKS: usize = 64, loom 1, shuttle 1;

    /// Stripes of those who wait. In the stress's twins, and for shuttle, nobody is woken by
    /// chance, because of another folio.
    WAIT_STRIPES: usize = if cfg!(feature = "flaws") { 1 << 16 } else { 64 }, loom 2, shuttle 64;

    /// Threads that have a shard of counters of their own. The checkers' threads have small stacks,
    /// on which a cache is put together.
    COUNTER_SHARDS: usize = 64, loom 1, shuttle 1;

    /// Folios that one sweep for victims looks at, at most. A sweep over three folios that are all
    /// held looks at each of them as often as it may.
    SWEEP_EFFORT_MAX: u32 = 4096, loom 4096, shuttle 16;

    /// How long a reader waits for memory before it gets an error. No time passes in a model.
    PATIENCE: std::time::Duration = std::time::Duration::from_secs(2),
        loom std::time::Duration::MAX, shuttle std::time::Duration::MAX;
}
