//! Options of a cache and of a file.

use std::ops::RangeInclusive;
#[cfg(feature = "map")]
use std::path::PathBuf;
#[cfg(feature = "map")]
use std::sync::Arc;
use std::time::Duration;

use crate::base::barrier::Barrier;
use crate::frames::{Order, PAGE_BYTES};
#[cfg(feature = "map")]
use crate::source::Source;

pub(crate) const FOLIO_MAX_BYTES: usize = PAGE_BYTES << Order::MAX.get();

/// Options of a cache: those of [`Options::new`], but for what a program changes, as by
/// `Options { track_pins: true, ..Options::new(64 << 20) }`.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a choice by itself")]
pub struct Options {
    /// The bytes of all pages and their metadata: see [`Options::new`].
    pub budget_bytes: u64,
    /// The longest read, in bytes, that is first tried without a reference: it copies, checks that
    /// nothing changed meanwhile, and copies again under a reference if something did. 64 KiB by
    /// default; 0 turns such reads off, and values from 4 GiB on count as 4 GiB - 1.
    pub short_read_max_bytes: usize,
    /// The most bytes that are read ahead of a sequential reader in one piece: 2 MiB by default,
    /// and at most 2 MiB or a 32nd of the budget. Rounded up to whole pages. The first piece has 64
    /// KiB, or this if it is less, and each further one twice as much; where much was read ahead in
    /// vain before, less. 0 turns readahead off; what [`Hint::WillNeed`](crate::Hint::WillNeed)
    /// asks for is then read in pieces of 64 KiB.
    pub readahead_max_bytes: usize,
    /// The size of the largest folios: a power of two from 4096 to 2 MiB, the default. No folio is
    /// larger than a 64th of the budget, whatever this says. Large folios make scans and hits
    /// cheaper. But borrows and pins keep whole folios, so a program that keeps many single pages
    /// can choose smaller ones ([`File::get`](crate::File::get) needs no such choice).
    pub folio_max_bytes: usize,
    /// Whether borrowing and evicting threads are ordered by membarrier(2), which makes borrowing
    /// cheap: true by default. Otherwise, and where the system refuses it, by a fence in each
    /// borrow. [`Stats::membarrier`](crate::Stats::membarrier) says which.
    pub membarrier: bool,
    /// Whether reads ahead, futures and batches may use `io_uring`: true by default. Worker threads
    /// read instead where the kernel has or allows none, and for files without direct I/O. Turn it
    /// off under debuggers and valgrind, which support rings poorly.
    pub io_uring: bool,
    /// Whether to keep a list of all pins, for [`Cache::pins`](crate::Cache::pins): a lock and an
    /// allocation for each. False by default.
    pub track_pins: bool,
    /// Whether to pin folios where they lie, instead of moving those below 2 MiB first
    /// ([`File::pin`](crate::File::pin), "Moving before pinning"). False by default. No pin then
    /// waits for holders, nor fails with [`ErrorKind::Busy`](crate::ErrorKind::Busy). The price:
    /// each pinned page keeps the 2 MiB around it from becoming free as a whole, so folios stay
    /// smaller meanwhile (`docs/pin.md` has figures).
    pub pin_in_place: bool,
    /// The bytes of the swap, rounded down to whole pages: where [own
    /// memory](crate::Space::map_anon) goes from the budget. 0, the default: own memory stays.
    ///
    /// [`Cache::new`](crate::Cache::new) fails with [`ErrorKind::System`](crate::ErrorKind::System)
    /// if the swap cannot be made, or has less than a page or more than the process's limit for
    /// files (`ulimit -f`). Beyond a limit that is set later, writes fail, and are counted
    /// ([`Stats::swap_write_errors`](crate::Stats::swap_write_errors)).
    #[cfg(feature = "map")]
    pub swap_bytes: u64,
    /// The directory of the swap, a file without a name that ends with the cache. Where the file
    /// system can do that, its blocks are allocated by [`Cache::new`](crate::Cache::new), and its
    /// I/O is direct. Empty, the default: the current directory.
    #[cfg(feature = "map")]
    pub swap_dir: PathBuf,
    /// A source of the program's own that is the swap instead, from its start up to `swap_bytes`,
    /// used by several threads at once. Nothing is synced, or expected to be there before. It is the
    /// swap of one cache at a time: with a clone of these options,
    /// [`Cache::new`](crate::Cache::new) fails while the first cache is there.
    #[cfg(feature = "map")]
    pub swap_source: Option<Arc<dyn Source>>,
    /// How readers that need a reference take it. Feature `testing`: for comparisons only.
    #[cfg(feature = "testing")]
    pub reference: Reference,
    #[cfg(test)]
    pub(crate) patience: Duration,
}

/// How a reader takes a counted reference. Feature `testing`: for comparisons only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "nobody can choose then"))]
pub enum Reference {
    /// One atomic add, on the word that has the frozen bit.
    Add,
    /// A load and a loop of compare-exchanges on the same word.
    #[cfg(feature = "testing")]
    CasLoop,
}

impl Options {
    /// The budgets that a cache can have, in bytes: the folios of a few readers need the least, and
    /// index nodes address no more than the most.
    pub const BUDGET_BYTES: RangeInclusive<u64> = 1 << 20..=256 << 30;

    pub(crate) fn reference(&self) -> Reference {
        #[cfg(feature = "testing")]
        {
            self.reference
        }
        #[cfg(not(feature = "testing"))]
        {
            let _ = self;
            Reference::Add
        }
    }

    pub(crate) fn barrier(&self) -> Barrier {
        if self.membarrier { Barrier::Membarrier } else { Barrier::FullFence }
    }

    pub(crate) fn patience(&self) -> Duration {
        #[cfg(test)]
        {
            self.patience
        }
        #[cfg(not(test))]
        {
            let _ = self;
            crate::base::sizes::PATIENCE
        }
    }

    /// A cache of `budget_bytes` bytes, one of [`BUDGET_BYTES`](Self::BUDGET_BYTES), rounded down
    /// to whole pages. The budget covers all pages and their metadata. Its address space is
    /// reserved when the cache is made; memory is used as pages are read. It is not checked against
    /// the machine's memory: too large a budget may end in swapping, or with the process killed.
    /// Outside of the budget are:
    /// - for each file that is open or cached, up to 2 KiB
    ///   ([`Stats::files_bytes`](crate::Stats::files_bytes)), and 4 bytes for each 256 KiB of its
    ///   length, at most 256 KiB, and 256 KiB more once a page is cached beyond the length at open
    ///   ([`Stats::directories_bytes`](crate::Stats::directories_bytes));
    /// - 280 bytes and its path for each handle;
    /// - 8 KiB for each 64 [readers](crate::Reader);
    /// - for each cache its counters (33 KiB), its threads, and its `io_uring`;
    /// - for each thread that reads absent pages in batches an `io_uring` of 64 entries and 10 KiB;
    /// - what is known of each map, and of each open file that was mapped: a few KiB;
    /// - for own memory, what [`Space::map_anon`](crate::Space::map_anon) says.
    pub fn new(budget_bytes: u64) -> Self {
        Options {
            budget_bytes,
            short_read_max_bytes: 64 << 10,
            readahead_max_bytes: 2 << 20,
            folio_max_bytes: FOLIO_MAX_BYTES,
            membarrier: true,
            io_uring: true,
            track_pins: false,
            pin_in_place: false,
            #[cfg(feature = "map")]
            swap_bytes: 0,
            #[cfg(feature = "map")]
            swap_dir: PathBuf::new(),
            #[cfg(feature = "map")]
            swap_source: None,
            #[cfg(feature = "testing")]
            reference: Reference::Add,
            #[cfg(test)]
            patience: crate::base::sizes::PATIENCE,
        }
    }
}

/// Options of a file, such as `FileOptions { write: true, ..FileOptions::default() }`.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileOptions {
    /// Whether the file is read by direct I/O, or through the kernel's page cache. `None`, the
    /// default: by direct I/O where the file system supports it; the end of a file that is being
    /// appended to is read through the kernel's page cache, or the kernel would write out each
    /// append by itself. `Some(true)`: by direct I/O, or not at all, also if a direct read is
    /// refused later. A file that is open already keeps what it has.
    /// [`Cache::sources`](crate::Cache::sources) says which.
    pub direct: Option<bool>,
    /// Whether the file is written to, too. `false`, the default: [`File::write_at`] and its like
    /// fail. A file that is open for reading already is opened once more.
    ///
    /// [`File::write_at`]: crate::File::write_at
    pub write: bool,
    /// Whether a file that does not exist is made, empty, with the rights that the process's umask
    /// leaves of `rw-rw-rw-`. Only if it is written to. `false` by default. Its name is durable once
    /// its folder was synced.
    pub create: bool,
}
