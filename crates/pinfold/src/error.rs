//! All errors, as a program gets them: [`Error`], and the [`ErrorKind`] to act on. What each says
//! is in `error/cause.rs`.

use std::error::Error as StdError;
use std::sync::Arc;
use std::{fmt, io};

use crate::base::threads::NotStarted;
use crate::source::OpenError;

pub(crate) use cause::{Cause, RangeCause};

/// Why a call failed. The cache stays usable. An error is one pointer; a clone allocates nothing.
///
/// Messages name the file, by the first path that it was opened by, and the page or the offset,
/// have all numbers that matter, and end with the cause. For programs:
///
/// - [`kind`](Self::kind) says what to do about it.
/// - `source()` is the error of the system or of the source where there is one, an [`io::Error`]
///   with its errno. The message has it already.
/// - [`io_kind`](Self::io_kind) is the nearest [`io::ErrorKind`].
/// - `io::Error::from(error)` has that kind, and the error inside ([`io::Error::downcast`] gets it
///   out again): `?` does it in functions that return an [`io::Result`].
///
/// ```
/// use pinfold::{Cache, ErrorKind, Options};
///
/// let cache = Cache::new(Options::new(8 << 20))?;
/// match cache.open("/no/such/file") {
///     Err(error) if error.io_kind() == std::io::ErrorKind::NotFound => println!("{error}"),
///     Err(error) if error.kind() == ErrorKind::NoMemory => println!("later"),
///     opened => drop(opened?),
/// }
/// # Ok::<(), pinfold::Error>(())
/// ```
#[derive(Clone)]
pub struct Error(Arc<Cause>);

/// What a program does about an [`Error`]. It prints as one word, for logs and other languages,
/// such as `no-memory`. Words are stable; later versions may add kinds. Messages may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What was asked for is never possible: an option without sense, a range that is empty,
    /// reversed or beyond the largest file offset (2^63 - 1), something of another cache, writing
    /// to a file that was opened for reading.
    Invalid,
    /// The file ends before the page or range. Stop there, or [refresh](crate::File::refresh) it.
    BeyondEnd,
    /// The file was cut short while it was cached. [Refresh](crate::File::refresh) it.
    Truncated,
    /// The file could not be opened: [`Error::io_kind`] says why.
    Open,
    /// The cache cannot work with this file or source: it is longer than 2^63 - 4096 bytes, or the
    /// source panics, or wants an alignment above 4096.
    Unsupported,
    /// The object is open in another version than that of the source to be attached.
    Changed,
    /// The source or the swap failed or panicked, a deadline passed, or no thread of the cache was
    /// free for a future (both [`TimedOut`](io::ErrorKind::TimedOut)). The next read tries again.
    Read,
    /// The source failed to take bytes that were written, or a length, or to make them durable: a
    /// full disk, for example. They stay in the cache. The next sync gives them to the source again.
    Write,
    /// The budget is full of memory that cannot be evicted, and no read of the cache ended for two
    /// seconds, or for thirty while reads were under way. Drop guards and pins, or try later. The
    /// message says what has the memory.
    ///
    /// Or as long was waited in vain for a copy ([`File::bytes`](crate::File::bytes)), for the
    /// file's share of what futures may bring
    /// ([`File::get_many_async`](crate::File::get_many_async)), or for its share of what may be on
    /// its way (a quarter of the budget, if no other file has any).
    NoMemory,
    /// There are as many files, [`Reader`](crate::Reader)s, references or pins as can be counted.
    TooMany,
    /// More than can ever be pinned or held at once. Do it in pieces.
    TooLarge,
    /// Others use it: a folio that has to move before it is pinned is held, or one that is written
    /// to is pinned; or the file is to be used by two of these: maps of this process, other
    /// processes, and writing.
    Busy,
    /// The cache belongs to the parent of this forked process ([`Cache`](crate::Cache#forking)).
    Forked,
    /// The system refused memory, addresses, a descriptor, a thread, a userfaultfd or a file for
    /// the swap; or own memory is protected against the access.
    System,
}

impl Error {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind()
    }

    pub(crate) fn into_cause(self) -> Arc<Cause> {
        self.0
    }

    pub(crate) fn cause(&self) -> &Cause {
        &self.0
    }

    /// This error for the page that begins at `begin`.
    pub(crate) fn of_page_at(&self, begin: u64) -> Error {
        let mut cause = self.cause().clone();
        let Cause::NoMemory { offset, .. } = &mut cause else { return self.clone() };
        *offset = begin;
        cause.into()
    }
}

impl From<Cause> for Error {
    #[cold]
    fn from(cause: Cause) -> Self {
        Error(Arc::new(cause))
    }
}

impl From<NotStarted> for Error {
    fn from(why: NotStarted) -> Self {
        Cause::Thread(why).into()
    }
}

impl From<Arc<OpenError>> for Error {
    fn from(why: Arc<OpenError>) -> Self {
        Cause::Open(why).into()
    }
}

/// All that the message says, by name.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.cause(), f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.cause(), f)
    }
}

impl Cause {
    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Cause::WrongRange { cause: RangeCause::BeyondEnd { .. }, .. }
            | Cause::RangeBeyondEnd { .. }
            | Cause::BeyondEnd { .. } => ErrorKind::BeyondEnd,
            Cause::Budget { .. }
            | Cause::FolioSize { .. }
            | Cause::Range { .. }
            | Cause::RangeReversed { .. }
            | Cause::WrongRange { .. }
            | Cause::OutsidePin { .. }
            | Cause::Foreign { .. }
            | Cause::NotWritable { .. }
            | Cause::SpaceBudget { .. } => ErrorKind::Invalid,
            Cause::Truncated { .. } => ErrorKind::Truncated,
            Cause::Open(_) => ErrorKind::Open,
            Cause::BadSource { .. } | Cause::TooLong { .. } => ErrorKind::Unsupported,
            Cause::SourceChanged { .. } => ErrorKind::Changed,
            Cause::Read { .. } | Cause::Length { .. } | Cause::SwapRead { .. } => ErrorKind::Read,
            Cause::Write { .. }
            | Cause::Sync { .. }
            | Cause::SyncHangs { .. }
            | Cause::SetLength { .. } => ErrorKind::Write,
            Cause::NoMemory { .. } => ErrorKind::NoMemory,
            Cause::OwnMemory { cause, .. } => cause.kind(),
            Cause::SyncOfMany { first, .. } => first.kind(),
            Cause::TooManyFiles { .. }
            | Cause::TooManyReferences { .. }
            | Cause::TooManyReaders { .. }
            | Cause::TooManyPins { .. } => ErrorKind::TooMany,
            Cause::PinTooLarge { .. } | Cause::HoldTooLarge { .. } => ErrorKind::TooLarge,
            Cause::PinHeld { .. }
            | Cause::WriteHeld { .. }
            | Cause::MappedOrServed { .. }
            | Cause::MappedOrWritten { .. } => ErrorKind::Busy,
            Cause::Mirror { cause, .. } if cause.kind() == io::ErrorKind::TimedOut => {
                ErrorKind::Busy
            }
            Cause::Forked { .. } => ErrorKind::Forked,
            Cause::System { .. } | Cause::Mirror { .. } | Cause::Thread(_) | Cause::Map { .. } => {
                ErrorKind::System
            }
        }
    }
}

/// One word: the variant's name in lower case with hyphens.
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut word = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !word.is_empty() {
                word.push('-');
            }
            word.extend(letter.to_lowercase());
        }
        f.pad(&word)
    }
}

impl Error {
    /// The nearest kind of an [`io::Error`]. Where the system or a source returned an error, its
    /// kind: [`NotFound`](io::ErrorKind::NotFound) of a file that cannot be opened,
    /// [`TimedOut`](io::ErrorKind::TimedOut) of a read whose deadline passed; but `Other` for
    /// [`Interrupted`](io::ErrorKind::Interrupted), which tells the standard library to call again.
    /// Otherwise:
    ///
    /// | kind | of |
    /// |---|---|
    /// | `IsADirectory` | a directory that was to be opened |
    /// | `UnexpectedEof` | [`BeyondEnd`](ErrorKind::BeyondEnd), [`Truncated`](ErrorKind::Truncated) |
    /// | `OutOfMemory` | [`NoMemory`](ErrorKind::NoMemory) |
    /// | `QuotaExceeded` | [`TooMany`](ErrorKind::TooMany), [`TooLarge`](ErrorKind::TooLarge) |
    /// | `ResourceBusy` | [`Busy`](ErrorKind::Busy), [`Changed`](ErrorKind::Changed) |
    /// | `FileTooLarge` | a file that is too long ([`Unsupported`](ErrorKind::Unsupported)) |
    /// | `Unsupported` | [`Forked`](ErrorKind::Forked), and what no cache can open: a pipe, a file without a length, direct I/O where there is none |
    /// | `InvalidInput` | [`Invalid`](ErrorKind::Invalid) |
    pub fn io_kind(&self) -> io::ErrorKind {
        self.0.io_kind()
    }
}

impl Cause {
    fn io_kind(&self) -> io::ErrorKind {
        if let Some(cause) = self.io_cause() {
            // The standard library would call again. The cache has done so, in vain.
            return match cause.kind() {
                io::ErrorKind::Interrupted => io::ErrorKind::Other,
                kind => kind,
            };
        }
        match (self, self.kind()) {
            (Cause::Open(why), _) => why.io_kind(),
            (Cause::OwnMemory { cause, .. }, _) => cause.io_kind(),
            (Cause::SyncHangs { .. }, _) => io::ErrorKind::TimedOut,
            (Cause::TooLong { .. }, _) => io::ErrorKind::FileTooLarge,
            (_, ErrorKind::BeyondEnd | ErrorKind::Truncated) => io::ErrorKind::UnexpectedEof,
            (_, ErrorKind::NoMemory) => io::ErrorKind::OutOfMemory,
            (_, ErrorKind::TooMany | ErrorKind::TooLarge) => io::ErrorKind::QuotaExceeded,
            (_, ErrorKind::Busy | ErrorKind::Changed) => io::ErrorKind::ResourceBusy,
            (_, ErrorKind::Forked) => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::InvalidInput,
        }
    }

    fn io_cause(&self) -> Option<&io::Error> {
        match self {
            Cause::Open(why) => why.io_cause(),
            Cause::SyncOfMany { first, .. } => first.io_cause(),
            Cause::Thread(why) => Some(&why.cause),
            Cause::System { cause, .. }
            | Cause::Mirror { cause, .. }
            | Cause::Read { cause, .. }
            | Cause::Write { cause, .. }
            | Cause::Sync { cause, .. }
            | Cause::SetLength { cause, .. }
            | Cause::Length { cause, .. }
            | Cause::BadSource { cause, .. }
            | Cause::Map { cause, .. }
            | Cause::SwapRead { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// The cause is the error itself, not an `Arc` of it, so that it can be downcast.
impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        if let Some(cause) = self.0.io_cause() {
            return Some(cause);
        }
        match self.cause() {
            Cause::Truncated { cause, .. } => Some(cause),
            Cause::WrongRange { cause, .. } => Some(cause),
            Cause::OwnMemory { cause, .. } => Some(&**cause),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    #[cold]
    fn from(error: Error) -> Self {
        io::Error::new(error.io_kind(), error)
    }
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg_attr(not(feature = "map"), allow(dead_code, reason = "maps fail with some of them"))]
mod cause;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
