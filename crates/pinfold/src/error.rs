//! Everything that can go wrong, each with what it happened to and why.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::source::{OpenError, Truncated};

/// Why a call failed. Whatever it is, the cache lives on.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The budget is smaller than the cache can work with, or larger than it can manage.
    #[error("a budget of {asked_bytes} bytes: it must be from {least_bytes} to {most_bytes}")]
    Budget {
        /// What was asked for.
        asked_bytes: u64,
        /// The smallest that works.
        least_bytes: u64,
        /// The largest.
        most_bytes: u64,
    },
    /// The system did not give the memory.
    #[error("cannot reserve {bytes} bytes of memory: {cause}")]
    Reserve {
        /// How much was to be reserved.
        bytes: u64,
        /// What the system said.
        cause: Arc<io::Error>,
    },
    /// A file could not be opened.
    #[error(transparent)]
    Open(#[from] Arc<OpenError>),
    /// A range ends beyond the largest file offset, 2^63 - 1.
    #[error("{bytes} bytes at {offset} end beyond the largest file offset, 2^63 - 1")]
    Range {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        bytes: u64,
    },
    /// A page that begins at or behind the end of the file.
    #[error("no page {page} in {}: it has {len_bytes} bytes", path.display())]
    BeyondEnd {
        /// Which file.
        path: PathBuf,
        /// The page asked for.
        page: u64,
        /// The file's length.
        len_bytes: u64,
    },
    /// A folio has as many references as can be counted: somebody keeps them and never lets go.
    #[error("too many references to the folio of page {page} of {}", path.display())]
    TooManyReferences {
        /// Which file.
        path: PathBuf,
        /// The page asked for.
        page: u64,
    },
    /// There are as many [`Reader`](crate::Reader)s of this cache as there can be.
    #[error("there are {most} readers of this cache already, and there can be no more")]
    TooManyReaders {
        /// How many there can be at once.
        most: usize,
    },
    /// A [`Reader`](crate::Reader) of another cache than the file's.
    #[error("cannot borrow from {}: the reader belongs to another cache", path.display())]
    ForeignReader {
        /// Which file.
        path: PathBuf,
    },
    /// The source failed.
    #[error("cannot read {} at {offset} ({asked_bytes} bytes wanted): {cause}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Where the read of the source began.
        offset: u64,
        /// How much it was asked for: more than the caller wanted, where whole pages are read.
        asked_bytes: u64,
        /// The source's own error, with its system error number if it had one.
        cause: Arc<io::Error>,
    },
    /// The source cannot tell its length.
    #[error("cannot tell the length of {}: {cause}", path.display())]
    Length {
        /// Which file.
        path: PathBuf,
        /// The source's own error.
        cause: Arc<io::Error>,
    },
    /// Somebody cut the file short while it was cached.
    #[error("cannot read {}: {cause}", path.display())]
    Truncated {
        /// Which file.
        path: PathBuf,
        /// Where it ended.
        cause: Truncated,
    },
    /// The budget is used up by what cannot be evicted.
    #[error(
        "no memory for {wanted_bytes} bytes in a budget of {budget_bytes}: {pinned_bytes} are \
         pinned, {held_bytes} held by readers, {filling_bytes} being read, {metadata_bytes} are metadata"
    )]
    NoMemory {
        /// What was needed.
        wanted_bytes: u64,
        /// The cache's budget.
        budget_bytes: u64,
        /// Pinned, among the folios that were looked at.
        pinned_bytes: u64,
        /// Referenced for a moment, among the folios that were looked at.
        held_bytes: u64,
        /// On their way from a source.
        filling_bytes: u64,
        /// The frame table and the indexes.
        metadata_bytes: u64,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
