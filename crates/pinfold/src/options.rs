//! Options of a cache and of a file.

use std::ops::RangeInclusive;
#[cfg(feature = "map")]
use std::path::PathBuf;
#[cfg(feature = "map")]
use std::sync::Arc;
use std::time::Duration;

use crate::base::barrier::Barrier;
use crate::frames::{Order, PAGE_BYTES};
use crate::source::Preference;
#[cfg(feature = "map")]
use crate::source::Source;

/// The largest folio that there can be, in bytes.
pub(crate) const FOLIO_MAX_BYTES: usize = PAGE_BYTES << Order::MAX.get();

/// Options of a cache: those of [`Options::new`], but for what a program changes.
///
/// ```
/// use pinfold::{Cache, Options};
///
/// let options = Options { track_pins: true, ..Options::new(64 << 20) };
/// let cache = Cache::new(options)?;
/// # Ok::<(), pinfold::Error>(())
/// ```
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each is a choice by itself")]
pub struct Options {
    /// The bytes of all pages and their metadata; [`Options::new`] says more.
    pub budget_bytes: u64,
    /// The longest read, in bytes, that is first tried without a reference: it copies, checks that
    /// nothing changed meanwhile, and copies again under a reference if something did.
    ///
    /// 64 KiB by default; 0 turns such reads off, and values from 4 GiB on count as 4 GiB - 1. A
    /// read that crosses the end of a folio, which has at most 2 MiB, always takes references.
    pub short_read_max_bytes: usize,
    /// The most bytes that are read ahead of a sequential reader in one piece: 2 MiB by default.
    /// The limit is 2 MiB or a 32nd of the budget, whichever is less. Rounded up to whole pages.
    /// The first piece has 64 KiB, or this if it is less, and each further one twice as much. Where
    /// much was read ahead in vain before, less is read at first: a quarter of what is known to be
    /// read in order. 0 turns readahead off; what [`Hint::WillNeed`](crate::Hint::WillNeed) asks
    /// for is then read in pieces of 64 KiB.
    pub readahead_max_bytes: usize,
    /// The size of the largest folios: a power of two from 4096 to 2 MiB, which is the default;
    /// [`Cache::new`](crate::Cache::new) refuses others. No folio is larger than a 64th of the
    /// budget, whatever this says.
    ///
    /// Large folios make scans and hits cheaper. But a borrow keeps its whole folio, and so does a
    /// pin: a program that keeps many single pages can choose smaller folios. Counted guards need
    /// no such choice: see [`File::get`](crate::File::get).
    pub folio_max_bytes: usize,
    /// Whether borrowing threads and evicting threads are ordered by membarrier(2), which makes
    /// borrowing cheap. True by default. Otherwise, and where the system refuses membarrier, by a
    /// fence in each borrow. [`Stats::membarrier`](crate::Stats::membarrier) says which is in use.
    pub membarrier: bool,
    /// Whether reads ahead, futures and batches may use `io_uring`. True by default. Worker threads
    /// read instead where the kernel has no `io_uring` or forbids it, and for files without direct
    /// I/O. Turn it off under debuggers and valgrind, which support rings poorly.
    pub io_uring: bool,
    /// Whether to keep a list of all pins, for [`Cache::pins`](crate::Cache::pins): a lock and an
    /// allocation for each. False by default.
    pub track_pins: bool,
    /// Whether to pin folios where they lie, instead of moving those below 2 MiB first
    /// ([`File::pin`](crate::File::pin), "Moving before pinning"). False by default.
    ///
    /// For programs that pin pages which other threads hold all the time, or that must not wait: no
    /// pin then waits for holders, nor fails with [`ErrorKind::Busy`](crate::ErrorKind::Busy). The
    /// price: each pinned page keeps the 2 MiB around it from becoming free as a whole, so folios
    /// stay smaller as long as the pins last (`docs/pin.md` has figures).
    pub pin_in_place: bool,
    /// The bytes of the swap, rounded down to whole pages: where [own
    /// memory](crate::Space::map_anon) goes when its pages leave the budget. 0, the default: there
    /// is none, and own memory stays in the budget.
    ///
    /// [`Cache::new`](crate::Cache::new) fails with
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the swap cannot be made, or if it has
    /// less than a page, 4096, or more than the process's limit for files (`ulimit -f`). If that
    /// limit is set later, writes beyond it fail, and are counted
    /// ([`Stats::swap_write_errors`](crate::Stats::swap_write_errors)).
    #[cfg(feature = "map")]
    pub swap_bytes: u64,
    /// The directory of the swap: there it is a file without a name, whose blocks are allocated by
    /// [`Cache::new`](crate::Cache::new) where the file system can do that; it is read and written
    /// by direct I/O where the file system can do that. It ends with the cache. An empty path,
    /// which is the default, is the current directory.
    #[cfg(feature = "map")]
    pub swap_dir: PathBuf,
    /// A source of the program's own that is the swap instead, written to and read from its start
    /// up to `swap_bytes`. Several threads do so at once. Nothing is synced, and nothing is
    /// expected to be there before. None by default.
    #[cfg(feature = "map")]
    pub swap_source: Option<Arc<dyn Source>>,
    /// How readers that need a reference take it. Feature `testing`: for comparisons only.
    #[cfg(feature = "testing")]
    pub reference: Reference,
    /// How long a reader waits for memory.
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
    /// The budgets that a cache can have, in bytes: from 1 MiB, which holds the frame table, some
    /// index nodes, and the folios of a few readers at a time, to 256 GiB, the most that index
    /// nodes can address.
    pub const BUDGET_BYTES: RangeInclusive<u64> = 1 << 20..=256 << 30;

    /// The order of the largest folios; `None` if the option is none of the sizes that there are.
    pub(crate) fn folio_order_max(&self) -> Option<Order> {
        Order::all().find(|order| order.bytes() == self.folio_max_bytes)
    }

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

    /// How long a reader waits for memory.
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

    /// A cache of `budget_bytes` bytes, one of [`BUDGET_BYTES`](Self::BUDGET_BYTES);
    /// [`Cache::new`](crate::Cache::new) refuses others. Rounded down to whole pages.
    ///
    /// The budget covers all pages and their metadata. Its address space is reserved when the cache
    /// is made; memory is used as pages are read. It is not checked against the machine's memory:
    /// too large a budget may end in swapping, or with the process killed. Outside of the budget
    /// are:
    /// - for each file that is open or cached, about 1.6 KiB
    ///   ([`Stats::files_bytes`](crate::Stats::files_bytes)), and 4 bytes for each 256 KiB of its
    ///   length, at most 256 KiB, or 512 KiB if it has grown
    ///   ([`Stats::directories_bytes`](crate::Stats::directories_bytes));
    /// - 280 bytes and its path for each handle;
    /// - 8 KiB for each 64 [readers](crate::Reader);
    /// - for each cache its counters (33 KiB), its threads, and its `io_uring`;
    /// - for each thread that reads absent pages of files in batches an `io_uring` of 64 entries
    ///   and 10 KiB, until the thread ends;
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

/// Options of a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileOptions {
    /// Whether the file is read by direct I/O, or through the kernel's page cache.
    ///
    /// `None`, the default: by direct I/O where the file system supports it, as long as it does.
    /// [`Cache::sources`](crate::Cache::sources) says which. The end of a file that is being
    /// appended to is read through the kernel's page cache, too: a direct read would make the
    /// kernel write out each append by itself. A file that is open already keeps what it has.
    ///
    /// `Some(true)`: by direct I/O, or not at all: an error if the file is open already and read
    /// through the kernel's page cache, or if a direct read is refused later.
    pub direct: Option<bool>,
}

impl FileOptions {
    pub(crate) fn preference(self) -> Preference {
        match self.direct {
            None => Preference::Auto,
            Some(true) => Preference::Direct,
            Some(false) => Preference::Buffered,
        }
    }
}
