//! Reads through the kernel's page cache of a file that is otherwise read directly.
//!
//! Some file systems accept `O_DIRECT` and refuse direct reads, or only large ones, or only later.
//! Then the flag is taken from the descriptor, and all reads go through the kernel's page cache,
//! unless the file was opened for direct I/O alone.
//!
//! A direct read makes the kernel write out what another program has just written: each append to a
//! log by itself. So, of a file that has grown, all from shortly before its former end on is read
//! through the kernel's page cache, until it was not changed for a minute. That takes a second
//! descriptor, which is opened when the file is asked for its length, and never by a ring's thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
// Not from `crate::base::sync`: no protocol depends on it.
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::{Advice, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::request::Direction;

/// How often a transfer is tried that a signal interrupts, or the kernel gives back undone.
pub(super) const TRIES_MAX: u8 = 64;
/// So long after a change, bytes have been written out. The kernel waits 30 s.
const WRITTEN_AFTER_S: i64 = 60;
/// So many bytes before the former end may be read once more (`refresh.rs`).
const READ_AGAIN_BYTES: u64 = 128 << 10;
const PAGE: u64 = 4096;

#[derive(Debug)]
pub(super) struct Beside {
    /// The error by which a direct read was refused, or 0.
    refused: AtomicI32,
    /// The length when it was last asked for, or [`UNKNOWN`].
    len_bytes: AtomicU64,
    /// Reads that end beyond this are not direct.
    tail: AtomicU64,
    /// Once it was tried to open it.
    second: OnceLock<Option<OwnedFd>>,
}

const UNKNOWN: u64 = u64::MAX;

/// A file system says so that it has no direct I/O, or none of this kind.
pub(super) fn refuses_direct(errno: Errno) -> bool {
    [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS].contains(&errno)
}

pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut result = call();
    for _ in 0..TRIES_MAX {
        if !matches!(result, Err(Errno::INTR)) {
            break;
        }
        result = call();
    }
    result
}

impl Beside {
    pub(super) fn new() -> Self {
        Beside {
            refused: AtomicI32::new(0),
            len_bytes: AtomicU64::new(UNKNOWN),
            tail: AtomicU64::new(UNKNOWN),
            second: OnceLock::new(),
        }
    }

    pub(super) fn refused(&self) -> Option<Errno> {
        // Relaxed: the flag of the descriptor counts, and its call orders that.
        Some(self.refused.load(Ordering::Relaxed))
            .filter(|it| *it != 0)
            .map(Errno::from_raw_os_error)
    }

    /// By what the transfer is made, and whether it is direct.
    pub(super) fn descriptor(
        &self,
        first: &OwnedFd,
        direction: Direction,
        end: u64,
    ) -> (RawFd, bool) {
        // Relaxed: whichever is read, the bytes are the same.
        let in_tail = direction == Direction::Read && end > self.tail.load(Ordering::Relaxed);
        let second = self.second.get().and_then(Option::as_ref).filter(|_| in_tail);
        let direct = second.is_none() && self.refused().is_none();
        (second.unwrap_or(first).as_raw_fd(), direct)
    }

    /// From now on no read is direct. False if that cannot be had.
    pub(super) fn refuse(&self, first: &OwnedFd, errno: Errno) -> bool {
        let done = rustix::fs::fcntl_setfl(first, OFlags::empty()).is_ok();
        if done {
            // Advice only: the cache reads ahead by itself.
            let _ = rustix::fs::fadvise(first, 0, None, Advice::Random);
            self.refused.store(errno.raw_os_error(), Ordering::Relaxed); // see `refused`
        }
        done
    }

    /// Through which some reads have gone to the kernel's page cache.
    pub(super) fn cached_by<'a>(&'a self, first: &'a OwnedFd) -> Option<&'a OwnedFd> {
        let refused = self.refused().map(|_| first);
        refused.or_else(|| self.second.get().and_then(Option::as_ref))
    }

    pub(super) fn note(&self, first: &OwnedFd, stat: &Stat) {
        let len_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        // Relaxed, here and below: of two that ask at once, one may set a tail that is too short.
        let before = self.len_bytes.swap(len_bytes, Ordering::Relaxed);
        let age = clock_gettime(ClockId::RealtimeCoarse).tv_sec.checked_sub(stat.st_mtime);
        if age.is_none_or(|age| age.abs() >= WRITTEN_AFTER_S) {
            self.tail.store(UNKNOWN, Ordering::Relaxed); // see above
        } else if before < len_bytes {
            self.second.get_or_init(|| open_again(first, OFlags::RDONLY).ok());
            let tail = before.saturating_sub(READ_AGAIN_BYTES) / PAGE * PAGE;
            self.tail.store(tail, Ordering::Relaxed); // see above
        }
    }
}

pub(super) fn open_again(first: &OwnedFd, mode: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", first.as_raw_fd());
    let flags = mode | OFlags::CLOEXEC | OFlags::NOCTTY;
    let second = uninterrupted(|| rustix::fs::open(path.as_str(), flags, Mode::empty()))?;
    let _ = rustix::fs::fadvise(&second, 0, None, Advice::Random);
    Ok(second)
}
