//! Options of a cache and of a file.

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

/// Options of a cache. Start from [`Options::new`] and change what matters.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) budget_bytes: u64,
    pub(crate) short_read_max_bytes: usize,
    pub(crate) readahead_max_bytes: usize,
    pub(crate) folio_max_bytes: usize,
    pub(crate) reference: Reference,
    pub(crate) barrier: Barrier,
    pub(crate) io_uring: bool,
    pub(crate) track_pins: bool,
    pub(crate) pin_in_place: bool,
    /// And how many bytes of it, at most.
    #[cfg(feature = "map")]
    pub(crate) paged_out_to: Option<(PagedOutTo, u64)>,
    /// How long a reader waits for others to let go of memory. Tests have less.
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
    /// The order of the largest folios; `None` if the option is none of the sizes that there are.
    pub(crate) fn folio_order_max(&self) -> Option<Order> {
        Order::all().find(|order| order.bytes() == self.folio_max_bytes)
    }

    /// A cache of `budget_bytes` bytes, from [`BUDGET_MIN_BYTES`](crate::BUDGET_MIN_BYTES) to
    /// [`BUDGET_MAX_BYTES`](crate::BUDGET_MAX_BYTES); [`Cache::new`](crate::Cache::new) refuses
    /// others. Rounded down to whole pages.
    ///
    /// The budget covers all pages and their metadata. Its address space is reserved when the cache
    /// is made; memory is used as pages are read. It is not checked against the machine's memory:
    /// too large a budget may end in swapping, or with the process killed. Outside of the budget
    /// are:
    /// - for each file that is open or cached, about 1.6 KiB
    ///   ([`Stats::files_bytes`](crate::Stats::files_bytes)), and 4 bytes for each 256 KiB of its
    ///   length, at most 256 KiB, or 512 KiB if it has grown
    ///   ([`Stats::directories_bytes`](crate::Stats::directories_bytes));
    /// - 192 bytes for each handle;
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
            reference: Reference::Add,
            barrier: Barrier::Membarrier,
            io_uring: true,
            track_pins: false,
            pin_in_place: false,
            #[cfg(feature = "map")]
            paged_out_to: None,
            patience: crate::base::sizes::PATIENCE,
        }
    }

    /// The longest read, in bytes, that is first tried without a reference: it copies, checks that
    /// nothing changed meanwhile, and copies again under a reference if something did.
    ///
    /// 64 KiB by default; 0 turns such reads off, and values from 4 GiB on count as 4 GiB - 1. A
    /// read that crosses the end of a folio, which has at most 2 MiB, always takes references.
    #[must_use]
    pub fn short_read_max_bytes(mut self, bytes: usize) -> Self {
        self.short_read_max_bytes = bytes;
        self
    }

    /// The most bytes that are read ahead of a sequential reader in one piece.
    ///
    /// 2 MiB by default. The limit is 2 MiB or a 32nd of the budget, whichever is less; larger
    /// values count as that. Rounded up to whole pages. The first piece has 64 KiB, or this if it
    /// is less, and each further one twice as much. Where much was read ahead in vain before, less
    /// is read at first: a quarter of what is known to be read in order. 0 turns readahead off; what
    /// [`Hint::WillNeed`](crate::Hint::WillNeed) asks for is then read in pieces of 64 KiB.
    #[must_use]
    pub fn readahead_max_bytes(mut self, bytes: usize) -> Self {
        self.readahead_max_bytes = bytes;
        self
    }

    /// The size of the largest folios: a power of two from 4096 to 2 MiB, which is the default;
    /// [`Cache::new`](crate::Cache::new) refuses others. No folio is larger than a 64th of the
    /// budget, whatever this says.
    ///
    /// Large folios make scans and hits cheaper. But a borrow keeps its whole folio, and so does a
    /// pin: a program that keeps many single pages can choose smaller folios. Counted guards need
    /// no such choice: see [`File::get`](crate::File::get).
    #[must_use]
    pub fn folio_max_bytes(mut self, bytes: usize) -> Self {
        self.folio_max_bytes = bytes;
        self
    }

    /// How borrowing threads and evicting threads are ordered: by membarrier(2), which is the
    /// default and makes borrowing cheap, or by a fence in each borrow, which is also the fallback
    /// where the system refuses membarrier. [`BorrowStats::barrier`](crate::BorrowStats::barrier)
    /// says which is in use.
    #[must_use]
    pub fn barrier(mut self, barrier: Barrier) -> Self {
        self.barrier = barrier;
        self
    }

    /// Whether reads ahead, futures and batches may use `io_uring`. True by default. Worker threads
    /// read instead where the kernel has no `io_uring` or forbids it, and for files without direct
    /// I/O. Turn it off under debuggers and valgrind, which support rings poorly.
    #[must_use]
    pub fn io_uring(mut self, allowed: bool) -> Self {
        self.io_uring = allowed;
        self
    }

    /// Keeps a list of all pins, for [`Cache::pins`](crate::Cache::pins) and
    /// [`Cache::close`](crate::Cache::close). Costs each pin a lock and an allocation. False by
    /// default.
    #[must_use]
    pub fn track_pins(mut self, track: bool) -> Self {
        self.track_pins = track;
        self
    }

    /// Pins folios where they lie, instead of moving those below 2 MiB first
    /// ([`File::pin`](crate::File::pin), "Moving before pinning"). False by default.
    ///
    /// For programs that pin pages which other threads hold all the time, or that must not wait: no
    /// pin then waits for holders, nor fails with
    /// [`ErrorKind::PinHeld`](crate::ErrorKind::PinHeld), and none copies a folio. The price is
    /// memory in one piece: each pinned page keeps the 2 MiB around it from becoming free as a
    /// whole, so folios stay smaller and whole runs are few as long as the pins last. Pins that
    /// last no longer than an I/O cost little. The document `docs/pin.md` has figures.
    #[must_use]
    pub fn pin_in_place(mut self, in_place: bool) -> Self {
        self.pin_in_place = in_place;
        self
    }

    /// How readers that need a reference take it. [`Reference::Add`] by default. Feature `testing`:
    /// for comparisons only.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn reference(mut self, reference: Reference) -> Self {
        self.reference = reference;
        self
    }
}

/// Options of a file.
#[derive(Debug, Clone, Copy)]
pub struct FileOptions {
    pub(crate) preference: Preference,
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions { preference: Preference::Auto }
    }
}

impl FileOptions {
    /// Direct I/O, or the kernel's page cache. [`Preference::Auto`] by default: direct I/O where
    /// the file system supports it. A file that is open already keeps what it has.
    #[must_use]
    pub fn preference(mut self, preference: Preference) -> Self {
        self.preference = preference;
        self
    }
}

/// Where memory of the program's own goes that leaves the budget.
#[cfg(feature = "map")]
#[derive(Debug, Clone)]
pub(crate) enum PagedOutTo {
    /// To a file without a name in this directory.
    Dir(PathBuf),
    /// To a source of the program's own.
    Source(Arc<dyn Source>),
}
