//! Why a client is not served, or not any more.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::error::Error;

/// Why a client of [`Clients`](super::Clients) is refused, or was given up. Only that client is
/// concerned.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// What it has sent or done is wrong, as the text says.
    #[error("{0}")]
    Wrong(String),
    /// The process has forked, and has asked to have that told.
    #[error("it has forked, which is not served: leave that feature of the userfaultfd off")]
    Forked {
        /// The userfaultfds of the children's memory, until the last clone of this is dropped. That
        /// waits for the locks of that memory, which the children can hold for as long as they
        /// like: drop it where nobody waits for it.
        children: Arc<Vec<OwnedFd>>,
    },
    /// The process has ended, or has replaced its memory by execve(2).
    #[error("its memory is gone")]
    Gone,
    /// The cache cannot serve it.
    #[error(transparent)]
    Cache(#[from] Error),
}

/// The end of what is done for a client.
pub(super) type ClientResult<T = ()> = Result<T, ClientError>;

impl ClientError {
    /// A userfaultfd could not be read. That may be this process's fault: a message of a fork needs
    /// a descriptor.
    pub(super) fn of_read(cause: Errno) -> Self {
        match cause {
            Errno::WOULDBLOCK => ClientError::blocking(),
            cause => ClientError::Wrong(format!("its userfaultfd cannot be read: {cause}")),
        }
    }

    pub(super) fn blocking() -> Self {
        ClientError::Wrong("its userfaultfd is not in non-blocking mode, or broken".to_owned())
    }

    pub(super) fn pieces(most: usize) -> Self {
        ClientError::Wrong(format!("its memory is in more than {most} pieces"))
    }

    pub(super) fn outside(address: u64) -> Self {
        let text = "which is in none of its mappings";
        ClientError::Wrong(format!("a thread waits for address {address:#x}, {text}"))
    }
}
