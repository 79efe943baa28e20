//! The options that give a cache a swap.

use std::path::PathBuf;
use std::sync::Arc;

use crate::options::{Options, PagedOutTo};
use crate::source::Source;

impl Options {
    /// Gives the cache a swap of `bytes` bytes, rounded down to whole pages: where [own
    /// memory](crate::Space::map_anon) goes when its pages leave the budget. It is a file without a
    /// name in `dir`, whose blocks are allocated by [`Cache::new`](crate::Cache::new) where the
    /// file system can do that; it is read and written by direct I/O where the file system can do
    /// that. It ends with the cache. An empty path is the current directory.
    ///
    /// [`Cache::new`](crate::Cache::new) fails with
    /// [`ErrorKind::SwapFile`](crate::ErrorKind::SwapFile) if the file cannot be made, or if
    /// `bytes` is less than a page, 4096, or above the process's limit for files (`ulimit -f`). If
    /// that limit is set later, writes beyond it fail, and are counted
    /// ([`SwapStats::write_errors`](crate::SwapStats::write_errors)).
    ///
    /// None by default: then own memory stays in the budget.
    #[must_use]
    pub fn swap(mut self, dir: impl Into<PathBuf>, bytes: u64) -> Self {
        self.paged_out_to = Some((PagedOutTo::Dir(dir.into()), bytes));
        self
    }

    /// The swap is a source of the program's own, which is written to and read from its start up to
    /// `bytes`. Several threads do so at once. Nothing is synced, and nothing is expected to be there
    /// before.
    #[must_use]
    pub fn swap_source(mut self, source: Arc<dyn Source>, bytes: u64) -> Self {
        self.paged_out_to = Some((PagedOutTo::Source(source), bytes));
        self
    }
}
