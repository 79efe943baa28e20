//! The front door.
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use crate::source::{Hint, Source};
use crate::{Error, FileOptions, Options, Result, Stats};

/// A page cache.
#[derive(Debug, Clone)]
pub struct Cache {}

/// A file read through a cache.
#[derive(Debug, Clone)]
pub struct File {}

impl Cache {
    /// Opens a cache.
    pub fn new(options: Options) -> Result<Self> { todo!("{options:?}") }
    /// Opens the file at `path` for reading.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> { todo!() }
    /// The same with options.
    pub fn open_with(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> { todo!() }
    /// Reads a source of the program's own through the cache, under `name` in messages.
    pub fn attach(&self, name: &str, source: Arc<dyn Source>) -> Result<File> { todo!() }
    /// Counters.
    pub fn stats(&self) -> Stats { todo!() }
    /// Moves folios together until there is a free run of 2 MiB; false if it cannot be had.
    pub fn compact(&self) -> bool { todo!() }
}

impl File {
    /// As pread(2): short at the end of the file, 0 beyond it.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> { todo!() }
    /// Length in bytes, as the cache knows it.
    pub fn len(&self) -> u64 { todo!() }
    /// Whether that is 0.
    pub fn is_empty(&self) -> bool { todo!() }
    /// What is known of the use to come.
    pub fn advise(&self, range: Range<u64>, hint: Hint) -> Result<()> { todo!() }
    /// Drops cached pages of the range, also those being read by others (they go on with what they have); gives the bytes dropped. Also asks the source for its length again.
    pub fn invalidate(&self, range: Range<u64>) -> Result<u64> { todo!() }
    /// Splits the folios of the range to single pages where nobody holds them; how many were split. For tests.
    #[doc(hidden)]
    pub fn split(&self, range: Range<u64>) -> u64 { todo!() }
    /// Moves the folios of the range to other frames where nobody holds them; how many were moved. For tests.
    #[doc(hidden)]
    pub fn migrate(&self, range: Range<u64>) -> u64 { todo!() }
}
