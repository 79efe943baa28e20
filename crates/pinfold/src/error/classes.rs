//! How programs tell errors apart: by code, by [`io::ErrorKind`], by cause.
//!
//! What belongs here: functions of an [`ErrorKind`], each with a line for each variant or for each
//! class of them. What they say to people is in `error.rs`.

use std::error::Error as StdError;
use std::io;

use super::{Error, ErrorKind, MapRangeCause, PinRangeCause};

impl Error {
    /// The error as one word for programs, logs and other languages: the variant's name in lower
    /// case with hyphens, `no-memory` for [`ErrorKind::NoMemory`]. A file that cannot be opened has
    /// a code for the cause where programs handle it by itself: `not-found`, `permission-denied`,
    /// `is-a-directory`; otherwise `open`. Codes are stable: later versions may add codes, but
    /// never rename one or change its meaning. Messages may change.
    ///
    /// ```
    /// # let cache = pinfold::Cache::new(pinfold::Options::new(8 << 20))?;
    /// assert_eq!(cache.open("/no/such/file").unwrap_err().code(), "not-found");
    /// assert_eq!(cache.open("/dev").unwrap_err().code(), "is-a-directory");
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    pub fn code(&self) -> &'static str {
        match self.kind() {
            ErrorKind::Budget { .. } => "budget",
            ErrorKind::FolioSize { .. } => "folio-size",
            ErrorKind::Reserve { .. } => "reserve",
            ErrorKind::ForkHandler { .. } => "fork-handler",
            ErrorKind::Mirror { .. } => "mirror",
            ErrorKind::Eventfd { .. } => "eventfd",
            ErrorKind::Thread { .. } => "thread",
            ErrorKind::Open(why) => match why.io_kind() {
                io::ErrorKind::NotFound => "not-found",
                io::ErrorKind::PermissionDenied => "permission-denied",
                io::ErrorKind::IsADirectory => "is-a-directory",
                _ => "open",
            },
            ErrorKind::TooManyFiles { .. } => "too-many-files",
            ErrorKind::Range { .. } => "range",
            ErrorKind::RangeReversed { .. } => "range-reversed",
            ErrorKind::RangeBeyondEnd { .. } => "range-beyond-end",
            ErrorKind::BeyondEnd { .. } => "beyond-end",
            ErrorKind::TooManyReferences { .. } => "too-many-references",
            ErrorKind::TooManyReaders { .. } => "too-many-readers",
            ErrorKind::ForeignReader { .. } => "foreign-reader",
            ErrorKind::Forked { .. } => "forked",
            ErrorKind::Read { .. } => "read",
            ErrorKind::Length { .. } => "length",
            ErrorKind::BadSource { .. } => "bad-source",
            ErrorKind::TooLong { .. } => "too-long",
            ErrorKind::SourceChanged { .. } => "source-changed",
            ErrorKind::Truncated { .. } => "truncated",
            ErrorKind::NoMemory { .. } => "no-memory",
            ErrorKind::PinRange { .. } => "pin-range",
            ErrorKind::PinTooLarge { .. } => "pin-too-large",
            ErrorKind::PinHeld { .. } => "pin-held",
            ErrorKind::TooManyPins { .. } => "too-many-pins",
            ErrorKind::OutsidePin { .. } => "outside-pin",
            ErrorKind::Userfaultfd { .. } => "userfaultfd",
            ErrorKind::SpaceBudget { .. } => "space-budget",
            ErrorKind::SignalHandler { .. } => "signal-handler",
            ErrorKind::ForeignSpace { .. } => "foreign-space",
            ErrorKind::MappedOrServed { .. } => "mapped-or-served",
            ErrorKind::MapRange { .. } => "map-range",
            ErrorKind::Map { .. } => "map",
            ErrorKind::SwapFile { .. } => "swap-file",
            ErrorKind::SwapRead { .. } => "swap-read",
            ErrorKind::OwnMemory { .. } => "own-memory",
            ErrorKind::HoldTooLarge { .. } => "hold-too-large",
            ErrorKind::Own { .. } => "own",
            ErrorKind::StillPinned { .. } => "still-pinned",
        }
    }

    /// The nearest kind of an [`io::Error`]. Where the system or a source returned an error, its
    /// kind: [`NotFound`](io::ErrorKind::NotFound) or
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) of a file that cannot be opened,
    /// [`TimedOut`](io::ErrorKind::TimedOut) of a read whose deadline passed; but `Other` for
    /// [`Interrupted`](io::ErrorKind::Interrupted), which would tell the standard library to call
    /// again. Otherwise:
    ///
    /// | kind | errors |
    /// |---|---|
    /// | `IsADirectory` | a directory was to be opened |
    /// | `UnexpectedEof` | [`BeyondEnd`](ErrorKind::BeyondEnd), `RangeBeyondEnd`, [`Truncated`](ErrorKind::Truncated), and a range to be pinned or mapped that ends beyond the file |
    /// | `OutOfMemory` | [`NoMemory`](ErrorKind::NoMemory), [`OwnMemory`](ErrorKind::OwnMemory) |
    /// | `QuotaExceeded` | as many of something as there can be: `TooMany...`, `PinTooLarge`, `HoldTooLarge` |
    /// | `ResourceBusy` | others use it: `PinHeld`, `StillPinned`, `MappedOrServed`, `SourceChanged` |
    /// | `FileTooLarge` | [`TooLong`](ErrorKind::TooLong) |
    /// | `Unsupported` | [`Forked`](ErrorKind::Forked), and what no cache can open: a pipe, a file without a length, direct I/O where there is none |
    /// | `InvalidInput` | everything else: what the caller asked for is never possible |
    pub fn io_kind(&self) -> io::ErrorKind {
        if let Some(cause) = self.io_cause() {
            // Of `Interrupted`, callers of the standard library believe that one has but to call
            // again. The cache has done so, in vain.
            return match cause.kind() {
                io::ErrorKind::Interrupted => io::ErrorKind::Other,
                kind => kind,
            };
        }
        match self.kind() {
            ErrorKind::Open(why) => why.io_kind(),
            ErrorKind::BeyondEnd { .. }
            | ErrorKind::RangeBeyondEnd { .. }
            | ErrorKind::Truncated { .. }
            | ErrorKind::PinRange { cause: PinRangeCause::BeyondEnd { .. }, .. }
            | ErrorKind::MapRange { cause: MapRangeCause::BeyondEnd { .. }, .. } => {
                io::ErrorKind::UnexpectedEof
            }
            ErrorKind::NoMemory { .. } => io::ErrorKind::OutOfMemory,
            ErrorKind::OwnMemory { cause, .. } => cause.io_kind(),
            ErrorKind::TooManyFiles { .. }
            | ErrorKind::TooManyReferences { .. }
            | ErrorKind::TooManyReaders { .. }
            | ErrorKind::TooManyPins { .. }
            | ErrorKind::PinTooLarge { .. }
            | ErrorKind::HoldTooLarge { .. } => io::ErrorKind::QuotaExceeded,
            ErrorKind::PinHeld { .. }
            | ErrorKind::StillPinned { .. }
            | ErrorKind::MappedOrServed { .. }
            | ErrorKind::SourceChanged { .. } => io::ErrorKind::ResourceBusy,
            ErrorKind::TooLong { .. } => io::ErrorKind::FileTooLarge,
            ErrorKind::Forked { .. } => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::InvalidInput,
        }
    }

    /// The error of the system or of a source that it is about.
    fn io_cause(&self) -> Option<&io::Error> {
        match self.kind() {
            ErrorKind::Open(why) => why.io_cause(),
            ErrorKind::Reserve { cause, .. }
            | ErrorKind::ForkHandler { cause }
            | ErrorKind::Mirror { cause, .. }
            | ErrorKind::Eventfd { cause }
            | ErrorKind::Thread { cause, .. }
            | ErrorKind::Read { cause, .. }
            | ErrorKind::Length { cause, .. }
            | ErrorKind::BadSource { cause, .. }
            | ErrorKind::Userfaultfd { cause, .. }
            | ErrorKind::SignalHandler { cause }
            | ErrorKind::Map { cause, .. }
            | ErrorKind::SwapFile { cause, .. }
            | ErrorKind::SwapRead { cause, .. }
            | ErrorKind::Own { cause, .. } => Some(cause),
            _ => None,
        }
    }
}

/// The cause is the error itself, not an `Arc` of it, so that it can be downcast.
impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        if let Some(cause) = self.io_cause() {
            return Some(cause);
        }
        match self.kind() {
            ErrorKind::Truncated { cause, .. } => Some(cause),
            ErrorKind::PinRange { cause, .. } => Some(cause),
            ErrorKind::MapRange { cause, .. } => Some(cause),
            ErrorKind::OwnMemory { cause, .. } => Some(&**cause),
            _ => None,
        }
    }
}

/// With [`Error::io_kind`], and the error inside.
impl From<Error> for io::Error {
    #[cold]
    fn from(error: Error) -> Self {
        io::Error::new(error.io_kind(), error)
    }
}
