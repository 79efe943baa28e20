//! The other side of a connection, as all threads see it: who it is, and how it is told to end.

use std::fmt;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The other side of a connection, as all threads see it.
#[derive(Debug)]
pub struct Peer {
    number: u64,
    pid: Option<i32>,
    user: u32,
    stream: UnixStream,
    is_served: AtomicBool,
    /// Why it ends, if that is not for what it has said.
    ended: Mutex<Option<String>>,
}

impl Peer {
    /// The other side of a new connection.
    pub fn new(number: u64, stream: UnixStream) -> Self {
        let (pid, user) = credentials(&stream).map_or((None, u32::MAX), |it| known(&it));
        let (is_served, ended) = (AtomicBool::new(false), Mutex::new(None));
        Peer { number, pid, user, stream, is_served, ended }
    }

    /// Counted from 1 on.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its process, as a number: the clients of one have one share. A process of another pid
    /// namespace may have no number here: then all such processes of one user have one share.
    pub fn owner(&self) -> u64 {
        u64::from(self.user) << 32 | u64::from(self.pid.unwrap_or(0).unsigned_abs())
    }

    /// The connection.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// It has sent its mappings.
    pub fn set_served(&self) {
        self.is_served.store(true, Ordering::Relaxed); // for who looks for an older one
    }

    /// Whether it can give way: it has sent no mappings, and was not told to end.
    pub fn gives_way(&self) -> bool {
        let is_served = self.is_served.load(Ordering::Relaxed); // what it was a moment ago
        !is_served && self.ended.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Has its thread end the connection, and tell why.
    pub fn end(&self, why: String) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        ended.get_or_insert(why);
        // What can be received is left to its thread. It may have closed the connection itself.
        let _ = self.stream.shutdown(std::net::Shutdown::Read);
    }

    /// Before its thread waits for it.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&self) -> Result<(), String> {
        self.stream.set_nonblocking(true).map_err(|error| error.to_string())
    }

    /// Why it is ended by [`Self::end`].
    pub fn why_ended(&self) -> Option<String> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Who has connected, as the system says.
///
/// Not by rustix, whose struct has no pid of 0. The kernel reports 0 for a process that has no
/// number in this process's pid namespace.
fn credentials(stream: &UnixStream) -> Option<libc::ucred> {
    let mut it = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the struct is the kernel's for this option, and `bytes` is its size.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut it).cast(),
            &raw mut bytes,
        )
    };
    (done == 0).then_some(it)
}

/// The process, if it has a number here, and its user.
fn known(it: &libc::ucred) -> (Option<i32>, u32) {
    ((it.pid != 0).then_some(it.pid), it.uid)
}

/// How it is told of.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "client {} (pid {pid})", self.number),
            None => write!(f, "client {}", self.number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_number_here_has_its_user() {
        let of = |pid, uid| known(&libc::ucred { pid, uid, gid: 0 });
        assert_eq!(of(0, 7), (None, 7));
        assert_eq!(of(5, 7), (Some(5), 7));
        let (stream, _other) = UnixStream::pair().unwrap();
        let peer = Peer::new(1, stream);
        let user = u64::from(rustix::process::getuid().as_raw());
        assert_eq!(peer.owner(), user << 32 | u64::from(std::process::id()));
    }
}
