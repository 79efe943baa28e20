//! Everything that can go wrong, each with what it happened to and why.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::holders::PinHolder;
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
    /// There are as many files in the cache as it can number.
    #[error("cannot open {}: {most} files are cached, and can be no more", path.display())]
    TooManyFiles {
        /// What was to be opened.
        path: PathBuf,
        /// How many there can be at once.
        most: u32,
    },
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
    /// The cache belongs to the process that this one was forked from: what is cached can be read
    /// here, and nothing else be done with it. See [`Cache`](crate::Cache), "Forking".
    #[error(
        "the cache belongs to process {owner}, which this one was forked from: it has neither the \
         cache's threads nor its locks, and can only read what was cached at the fork"
    )]
    Forked {
        /// The number of the process that made the cache.
        owner: u32,
    },
    /// The source failed, or panicked.
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
    /// The source is none that the cache can work with.
    #[error("cannot use the source of {}: {cause}", path.display())]
    BadSource {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        cause: Arc<io::Error>,
    },
    /// The file is longer than the cache can number its bytes.
    #[error(
        "{} has {len_bytes} bytes: a file can have {most_bytes} at most, the largest file offset \
         rounded down to a page", path.display()
    )]
    TooLong {
        /// Which file.
        path: PathBuf,
        /// The length that its source told.
        len_bytes: u64,
        /// The longest that works: 2^63 - 4096.
        most_bytes: u64,
    },
    /// A source of an object that is open in another version.
    #[error(
        "cannot attach {}: {key} is open in version {open:?}, and this source has version \
         {attached:?}",
        path.display()
    )]
    SourceChanged {
        /// The name that was to be attached.
        path: PathBuf,
        /// The object's key.
        key: String,
        /// The version that is open.
        open: String,
        /// The version that was to be attached.
        attached: String,
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
         pinned, {held_bytes} held by readers, {filling_bytes} being read, {dirty_bytes} dirty, \
         {reclaimable_bytes} reclaimable, {metadata_bytes} metadata"
    )]
    NoMemory {
        /// What was needed.
        wanted_bytes: u64,
        /// The cache's budget.
        budget_bytes: u64,
        /// Folios with pinned pages; [`Cache::pins`](crate::Cache::pins) tells by whom.
        pinned_bytes: u64,
        /// Folios that somebody else than the cache has a reference to.
        held_bytes: u64,
        /// Folios on their way from a source.
        filling_bytes: u64,
        /// Folios that are newer than the source's.
        dirty_bytes: u64,
        /// Folios that could be evicted by now.
        reclaimable_bytes: u64,
        /// The frame table and the indexes.
        metadata_bytes: u64,
    },
    /// There are no such bytes to pin.
    #[error("cannot pin bytes {start} to {end} of {}: {cause}", path.display())]
    PinRange {
        /// Which file.
        path: PathBuf,
        /// Where the range begins.
        start: u64,
        /// The first byte behind it.
        end: u64,
        /// What is wrong with it.
        cause: PinRangeCause,
    },
    /// More was to be pinned at once than the cache can ever hold.
    #[error(
        "cannot pin {asked_bytes} bytes at once: in a budget of {budget_bytes} bytes, at most \
         {most_bytes} can be pinned"
    )]
    PinTooLarge {
        /// The bytes of all pages that the range touches.
        asked_bytes: u64,
        /// What could be pinned if nothing else was.
        most_bytes: u64,
        /// The cache's budget.
        budget_bytes: u64,
    },
    /// A folio would have to move before it can be pinned for long, and others held it all the time.
    #[error(
        "cannot pin {} at {offset}: the folio of {bytes} bytes there has to move first, and was \
         held for {waited_ms} ms, by {referenced} references and {pinned} pins at last{}",
        path.display(), uncounted(*referenced, *pinned)
    )]
    PinHeld {
        /// Which file.
        path: PathBuf,
        /// Where in the file the folio begins.
        offset: u64,
        /// How large it is.
        bytes: u64,
        /// References that others have to it.
        referenced: u32,
        /// Pins of its pages.
        pinned: u32,
        /// How long it was tried.
        waited_ms: u64,
    },
    /// A folio has as many pins as can be counted.
    #[error(
        "cannot pin the page at {offset}: {most_pages} pages of its folio are pinned, the most that can be counted"
    )]
    TooManyPins {
        /// Where in the file the page is.
        offset: u64,
        /// How many pages of one folio can be pinned, each counted as often as it is.
        most_pages: u32,
    },
    /// A pinned range was asked for a byte that it does not have.
    #[error("byte {at} is outside of what is pinned, {start} to {end}")]
    OutsidePin {
        /// Where in the file.
        at: u64,
        /// Where the pinned range begins.
        start: u64,
        /// The first byte behind it.
        end: u64,
    },
    /// A cache was closed in which something is pinned.
    #[error("{pinned_bytes} bytes are still pinned{}", listed(holders))]
    StillPinned {
        /// The bytes of all pages that are pinned, each as often as it is.
        pinned_bytes: u64,
        /// By whom, if the cache keeps a list (see
        /// [`Options::track_pins`](crate::Options::track_pins)).
        holders: Vec<PinHolder>,
    },
}

impl Error {
    /// What went wrong, in a word for programs, logs and other languages: the variant's name in small
    /// letters with hyphens, `no-memory` for [`Error::NoMemory`]. A code means the same in all
    /// versions: there may be new ones, but none is renamed or used for something else. Messages
    /// may change.
    ///
    /// ```
    /// # let cache = pinfold::Cache::new(pinfold::Options::new(8 << 20))?;
    /// assert_eq!(cache.open("/no/such/file").unwrap_err().code(), "open");
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Error::Budget { .. } => "budget",
            Error::Reserve { .. } => "reserve",
            Error::Open(_) => "open",
            Error::TooManyFiles { .. } => "too-many-files",
            Error::Range { .. } => "range",
            Error::BeyondEnd { .. } => "beyond-end",
            Error::TooManyReferences { .. } => "too-many-references",
            Error::TooManyReaders { .. } => "too-many-readers",
            Error::ForeignReader { .. } => "foreign-reader",
            Error::Forked { .. } => "forked",
            Error::Read { .. } => "read",
            Error::Length { .. } => "length",
            Error::BadSource { .. } => "bad-source",
            Error::TooLong { .. } => "too-long",
            Error::SourceChanged { .. } => "source-changed",
            Error::Truncated { .. } => "truncated",
            Error::NoMemory { .. } => "no-memory",
            Error::PinRange { .. } => "pin-range",
            Error::PinTooLarge { .. } => "pin-too-large",
            Error::PinHeld { .. } => "pin-held",
            Error::TooManyPins { .. } => "too-many-pins",
            Error::OutsidePin { .. } => "outside-pin",
            Error::StillPinned { .. } => "still-pinned",
        }
    }
}

/// What is wrong with a range that was to be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinRangeCause {
    /// It has no byte.
    #[error("the range is empty")]
    Empty,
    /// It ends before it begins.
    #[error("the range ends before it begins")]
    Reversed,
    /// It ends behind the file.
    #[error("the file ends at {len_bytes}")]
    BeyondEnd {
        /// How long the file is.
        len_bytes: u64,
    },
}

/// What to say where nobody is counted.
fn uncounted(referenced: u32, pinned: u32) -> &'static str {
    if referenced == 0 && pinned == 0 { " (only for moments each time)" } else { "" }
}

/// One holder a line.
fn listed(holders: &[PinHolder]) -> String {
    if holders.is_empty() {
        return " (Options::track_pins lets the cache say by whom)".to_owned();
    }
    holders.iter().fold(":".to_owned(), |text, holder| text + "\n  " + &holder.to_string())
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
