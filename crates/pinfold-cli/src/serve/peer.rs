//! The other side of a connection, as all threads see it: who it is, and how it is told to end.

use std::fmt;
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
        let credentials = rustix::net::sockopt::socket_peercred(&stream).ok();
        let pid = credentials.map(|it| it.pid.as_raw_nonzero().get());
        let user = credentials.map_or(u32::MAX, |it| it.uid.as_raw());
        let (is_served, ended) = (AtomicBool::new(false), Mutex::new(None));
        Peer { number, pid, user, stream, is_served, ended }
    }

    /// Counted from 1 on.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its process, as a number: the clients of one have one share. Of a process of another
    /// namespace, whose number cannot be seen, its user.
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

/// How it is told of.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "client {} (pid {pid})", self.number),
            None => write!(f, "client {}", self.number),
        }
    }
}
