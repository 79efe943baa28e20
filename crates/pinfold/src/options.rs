//! Options of a cache and of a file.

use std::time::Duration;

use crate::readers::Barrier;
use crate::source::Preference;

/// Options of a cache. Start from [`Options::new`] and change what matters.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) budget_bytes: u64,
    pub(crate) short_read_max_bytes: usize,
    pub(crate) readahead_max_bytes: usize,
    pub(crate) reference: Reference,
    pub(crate) barrier: Barrier,
    pub(crate) io_uring: bool,
    pub(crate) track_pins: bool,
    pub(crate) pin_in_place: bool,
    /// How long a reader waits for others to let go of memory. Tests have less.
    pub(crate) patience: Duration,
}

/// How a reader takes a counted reference. Feature `testing`: for comparisons only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "nobody can choose then"))]
pub enum Reference {
    /// One atomic add, on the word that has the frozen bit.
    Add,
    /// A load and a compare-and-swap loop on the same word.
    #[cfg(feature = "testing")]
    CasLoop,
}

impl Options {
    /// A cache of `budget_bytes` bytes. The budget covers all page memory, including the frame
    /// table and the indexes. It is reserved at once and used as pages are read.
    pub fn new(budget_bytes: u64) -> Self {
        Options {
            budget_bytes,
            short_read_max_bytes: 64 << 10,
            readahead_max_bytes: 2 << 20,
            reference: Reference::Add,
            barrier: Barrier::Membarrier,
            io_uring: true,
            track_pins: false,
            pin_in_place: false,
            patience: crate::sizes::PATIENCE,
        }
    }

    /// The longest read, in bytes, that is first tried without a reference: it copies, checks that
    /// nothing changed meanwhile, and copies again under a reference if something did. 0 turns that
    /// off.
    #[must_use]
    pub fn short_read_max_bytes(mut self, bytes: usize) -> Self {
        self.short_read_max_bytes = bytes;
        self
    }

    /// The most bytes that are read ahead of a sequential reader in one piece, at most 2 MiB; 0
    /// turns readahead off.
    #[must_use]
    pub fn readahead_max_bytes(mut self, bytes: usize) -> Self {
        self.readahead_max_bytes = bytes;
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

    /// Whether readahead may use `io_uring`; by default it does where the kernel allows it.
    /// Otherwise threads read. Turn it off under debuggers and valgrind, which support rings
    /// poorly.
    #[must_use]
    pub fn io_uring(mut self, allowed: bool) -> Self {
        self.io_uring = allowed;
        self
    }

    /// Keeps a list of all pins, for [`Cache::pins`](crate::Cache::pins) and
    /// [`Cache::close`](crate::Cache::close). Costs each pin a lock and an allocation; off by
    /// default.
    #[must_use]
    pub fn track_pins(mut self, track: bool) -> Self {
        self.track_pins = track;
        self
    }

    /// Pins folios where they lie, instead of moving them out of runs that could be made whole.
    /// Feature `testing`: for comparisons only.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn pin_in_place(mut self, in_place: bool) -> Self {
        self.pin_in_place = in_place;
        self
    }

    /// How readers that need a reference take it. Feature `testing`: for comparisons only.
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
    /// Direct I/O, or the kernel's page cache; by default direct where the file system supports it.
    #[must_use]
    pub fn preference(mut self, preference: Preference) -> Self {
        self.preference = preference;
        self
    }
}
