//! How programs tell errors apart: by kind, by [`io::ErrorKind`], by cause.
//!
//! What belongs here: functions of a [`Cause`], each with a line for each class of them. What they
//! say to people is in `cause.rs`.

use std::error::Error as StdError;
use std::{fmt, io};

use super::{Cause, Error, ErrorKind, MapRangeCause, PinRangeCause};

impl Cause {
    /// What a program does about it.
    pub(super) fn kind(&self) -> ErrorKind {
        match self {
            Cause::PinRange { cause: PinRangeCause::BeyondEnd { .. }, .. }
            | Cause::MapRange { cause: MapRangeCause::BeyondEnd { .. }, .. }
            | Cause::RangeBeyondEnd { .. }
            | Cause::BeyondEnd { .. } => ErrorKind::BeyondEnd,
            Cause::Budget { .. }
            | Cause::FolioSize { .. }
            | Cause::Range { .. }
            | Cause::RangeReversed { .. }
            | Cause::PinRange { .. }
            | Cause::MapRange { .. }
            | Cause::OutsidePin { .. }
            | Cause::ForeignReader { .. }
            | Cause::ForeignSpace { .. }
            | Cause::SpaceBudget { .. } => ErrorKind::Invalid,
            Cause::Truncated { .. } => ErrorKind::Truncated,
            Cause::Open(_) => ErrorKind::Open,
            Cause::BadSource { .. } | Cause::TooLong { .. } => ErrorKind::Unsupported,
            Cause::SourceChanged { .. } => ErrorKind::Changed,
            Cause::Read { .. } | Cause::Length { .. } | Cause::SwapRead { .. } => ErrorKind::Read,
            Cause::NoMemory { .. } => ErrorKind::NoMemory,
            Cause::OwnMemory { cause, .. } => cause.kind(),
            Cause::TooManyFiles { .. }
            | Cause::TooManyReferences { .. }
            | Cause::TooManyReaders { .. }
            | Cause::TooManyPins { .. } => ErrorKind::TooMany,
            Cause::PinTooLarge { .. } | Cause::HoldTooLarge { .. } => ErrorKind::TooLarge,
            Cause::PinHeld { .. } | Cause::MappedOrServed { .. } => ErrorKind::Busy,
            Cause::Mirror { cause, .. } if cause.kind() == io::ErrorKind::TimedOut => {
                ErrorKind::Busy
            }
            Cause::Forked { .. } => ErrorKind::Forked,
            Cause::Reserve { .. }
            | Cause::ForkHandler { .. }
            | Cause::Mirror { .. }
            | Cause::Eventfd { .. }
            | Cause::Thread { .. }
            | Cause::Userfaultfd { .. }
            | Cause::SignalHandler { .. }
            | Cause::Map { .. }
            | Cause::SwapFile { .. }
            | Cause::Own { .. } => ErrorKind::System,
        }
    }
}

/// One word: the variant's name in lower case with hyphens.
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            ErrorKind::Invalid => "invalid",
            ErrorKind::BeyondEnd => "beyond-end",
            ErrorKind::Truncated => "truncated",
            ErrorKind::Open => "open",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Changed => "changed",
            ErrorKind::Read => "read",
            ErrorKind::NoMemory => "no-memory",
            ErrorKind::TooMany => "too-many",
            ErrorKind::TooLarge => "too-large",
            ErrorKind::Busy => "busy",
            ErrorKind::Forked => "forked",
            ErrorKind::System => "system",
        };
        f.pad(word)
    }
}

impl Error {
    /// The nearest kind of an [`io::Error`]. Where the system or a source returned an error, its
    /// kind: [`NotFound`](io::ErrorKind::NotFound) or
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) of a file that cannot be opened,
    /// [`TimedOut`](io::ErrorKind::TimedOut) of a read whose deadline passed; but `Other` for
    /// [`Interrupted`](io::ErrorKind::Interrupted), which would tell the standard library to call
    /// again. Otherwise:
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
    ///
    /// ```
    /// # use std::io::ErrorKind;
    /// # let cache = pinfold::Cache::new(pinfold::Options::new(8 << 20))?;
    /// assert_eq!(cache.open("/no/such/file").unwrap_err().io_kind(), ErrorKind::NotFound);
    /// assert_eq!(cache.open("/dev").unwrap_err().io_kind(), ErrorKind::IsADirectory);
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    pub fn io_kind(&self) -> io::ErrorKind {
        self.0.io_kind()
    }
}

impl Cause {
    fn io_kind(&self) -> io::ErrorKind {
        if let Some(cause) = self.io_cause() {
            // Of `Interrupted`, callers of the standard library believe that one has but to call
            // again. The cache has done so, in vain.
            return match cause.kind() {
                io::ErrorKind::Interrupted => io::ErrorKind::Other,
                kind => kind,
            };
        }
        match (self, self.kind()) {
            (Cause::Open(why), _) => why.io_kind(),
            (Cause::OwnMemory { cause, .. }, _) => cause.io_kind(),
            (Cause::TooLong { .. }, _) => io::ErrorKind::FileTooLarge,
            (_, ErrorKind::BeyondEnd | ErrorKind::Truncated) => io::ErrorKind::UnexpectedEof,
            (_, ErrorKind::NoMemory) => io::ErrorKind::OutOfMemory,
            (_, ErrorKind::TooMany | ErrorKind::TooLarge) => io::ErrorKind::QuotaExceeded,
            (_, ErrorKind::Busy | ErrorKind::Changed) => io::ErrorKind::ResourceBusy,
            (_, ErrorKind::Forked) => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::InvalidInput,
        }
    }

    /// The error of the system or of a source that it is about.
    fn io_cause(&self) -> Option<&io::Error> {
        match self {
            Cause::Open(why) => why.io_cause(),
            Cause::Reserve { cause, .. }
            | Cause::ForkHandler { cause }
            | Cause::Mirror { cause, .. }
            | Cause::Eventfd { cause }
            | Cause::Thread { cause, .. }
            | Cause::Read { cause, .. }
            | Cause::Length { cause, .. }
            | Cause::BadSource { cause, .. }
            | Cause::Userfaultfd { cause, .. }
            | Cause::SignalHandler { cause }
            | Cause::Map { cause, .. }
            | Cause::SwapFile { cause, .. }
            | Cause::SwapRead { cause, .. }
            | Cause::Own { cause, .. } => Some(cause),
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
            Cause::PinRange { cause, .. } => Some(cause),
            Cause::MapRange { cause, .. } => Some(cause),
            Cause::OwnMemory { cause, .. } => Some(&**cause),
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
