//! Why a client is not served, or not any more.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::error::Error;

/// Why a client of [`Clients`](super::Clients) is refused, or was given up. Only that client is
/// concerned.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The descriptor is something else.
    #[error("the descriptor is no userfaultfd, but {what}")]
    NotUserfaultfd {
        /// What it is.
        what: String,
    },
    /// There are no mappings, or too many.
    #[error("{count} mappings: there must be 1 to {most}")]
    Count {
        /// So many.
        count: usize,
        /// The most.
        most: usize,
    },
    /// A mapping is wrong.
    #[error("mapping {n} (address {address:#x}, {bytes} bytes, offset {offset}): {why}")]
    Mapping {
        /// Its number, from 0 on.
        n: usize,
        /// Its address.
        address: u64,
        /// Its length.
        bytes: u64,
        /// Its offset in the snapshot.
        offset: u64,
        /// What is wrong.
        why: String,
    },
    /// Unmapping and remapping have left too many pieces.
    #[error("its memory is in more than {most} pieces")]
    Pieces {
        /// The most.
        most: usize,
    },
    /// A fault is in none of its mappings.
    #[error("a thread waits for address {address:#x}, which is in none of its mappings")]
    Outside {
        /// The address.
        address: u64,
    },
    /// A fault asks for something that is not served.
    #[error("a thread waits to write to address {address:#x}: write protection is not served")]
    WriteProtected {
        /// The address.
        address: u64,
    },
    /// The process has forked, and has asked to have that told.
    #[error("it has forked, which is not served: leave that feature of the userfaultfd off")]
    Forked {
        /// The userfaultfds of the children's memory, until the last clone of this is dropped. That
        /// waits for the locks of that memory, which the children can hold for as long as they
        /// like: drop it where nobody waits for it.
        children: Arc<Vec<OwnedFd>>,
    },
    /// An event that is not served.
    #[error("{what}, which is not served: leave that feature of the userfaultfd off")]
    Event {
        /// What happened.
        what: String,
    },
    /// Its memory is not what its mappings say.
    #[error(
        "cannot {what} at {:#x}..{:#x}: {cause}: the range is not mapped and registered as its \
         mappings say", range.start, range.end
    )]
    Refused {
        /// What was tried.
        what: &'static str,
        /// Where.
        range: Range<u64>,
        /// The system's error.
        cause: Arc<std::io::Error>,
    },
    /// The userfaultfd cannot be waited for.
    #[error("its userfaultfd is not in non-blocking mode, or broken")]
    Blocking,
    /// The system refuses to read the userfaultfd.
    #[error("its userfaultfd cannot be read: {cause}")]
    Read {
        /// The system's error.
        cause: Arc<std::io::Error>,
    },
    /// The process has ended, or has replaced its memory by execve(2).
    #[error("its memory is gone")]
    Gone,
    /// The cache cannot serve it.
    #[error(transparent)]
    Cache(#[from] Error),
}

impl ClientError {
    /// A userfaultfd could not be read. That may be this process's fault: a message of a fork needs
    /// a descriptor.
    pub(super) fn of_read(cause: Errno) -> Self {
        match cause {
            Errno::WOULDBLOCK => ClientError::Blocking,
            cause => ClientError::Read { cause: Arc::new(cause.into()) },
        }
    }
}
