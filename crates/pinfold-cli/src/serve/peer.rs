//! The other side of a connection, as all threads see it: who it is, how it is told to end, and
//! the process that has connected.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use pinfold::ClientError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FsWord;
use rustix::io::Errno;

use super::protocol::NO_DESCRIPTORS;

/// The type of the file system whose inodes are processes (`PID_FS_MAGIC`).
const PID_FS: FsWord = 0x5049_4446;

/// The other side of a connection, as all threads see it.
#[derive(Debug)]
pub struct Peer {
    number: u64,
    pid: Option<i32>,
    user: u32,
    stream: UnixStream,
    /// Once it was asked for.
    process: OnceLock<PeerProcess>,
    state: Mutex<PeerState>,
    /// What it has left, if it was given up: closed with the connection, as that may wait.
    left: Mutex<Option<ClientError>>,
}

/// How far it is. A peer that is served does not give way: who decides that it does, and who begins
/// to serve it, do so under one lock.
#[derive(Debug)]
enum PeerState {
    /// It has sent no mappings.
    New,
    /// It has sent its mappings: it is served, or about to be.
    Served,
    /// It is told to end, for this, and not for what it has said.
    Ended(String),
}

impl Peer {
    /// The other side of a new connection.
    pub fn new(number: u64, stream: UnixStream) -> Self {
        let (pid, user) = credentials(&stream).map_or((None, u32::MAX), |it| known(&it));
        let (state, left) = (Mutex::new(PeerState::New), Mutex::default());
        Peer { number, pid, user, stream, process: OnceLock::new(), state, left }
    }

    /// Counted from 1 on.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The number of the process here, if it has one.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// The process that has connected.
    ///
    /// # Errors
    /// It has ended; or this process has no descriptor for it.
    pub fn process(&self) -> Result<&PeerProcess, String> {
        match self.process.get() {
            Some(process) => Ok(process),
            None => self.find_process().map(|process| self.process.get_or_init(|| process)),
        }
    }

    fn find_process(&self) -> Result<PeerProcess, String> {
        let user = u64::from(self.user) << 32 | u64::from(self.pid.unwrap_or(0).unsigned_abs());
        let fd = match option(&self.stream, libc::SO_PEERPIDFD, -1) {
            // SAFETY: the system has just made this descriptor.
            Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
            // Before Linux 6.5.
            Err(Errno::NOPROTOOPT) => return Ok(PeerProcess { fd: None, owner: user }),
            Err(Errno::MFILE | Errno::NFILE) => return Err(NO_DESCRIPTORS.to_owned()),
            // Older systems make none of a process that is not there any more.
            Err(Errno::INVAL | Errno::SRCH) => return Err(ENDED.to_owned()),
            Err(why) => return Err(format!("its process cannot be found: {why}")),
        };
        // Since Linux 6.9. No two processes have the same, as long as the system runs.
        let is_number = rustix::fs::fstatfs(&fd).is_ok_and(|it| it.f_type == PID_FS);
        let number = rustix::fs::fstat(&fd).ok().filter(|_| is_number).map(|it| it.st_ino);
        Ok(PeerProcess { fd: Some(fd), owner: number.unwrap_or(user) })
    }

    /// Whether the process has ended, or the other side has closed the connection. Does not wait,
    /// and receives nothing: the system may close there what a client has sent, for as long as that
    /// takes.
    pub fn has_left(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Some(process) = self.process.get() else { return false };
        // Interrupted: the next look says it.
        let looked = process.poll(&self.stream, PollFlags::RDHUP, Some(&now));
        looked.is_ok_and(|of_both| of_both.iter().any(|of_one| !of_one.is_empty()))
    }

    /// The connection.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// A thread that has panicked had no half-done change of it.
    fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has sent its mappings. Before it is served: from now on it does not give way.
    ///
    /// # Errors
    /// Why it was told to end.
    pub fn begin_service(&self) -> Result<(), String> {
        let mut state = self.state();
        if let PeerState::Ended(why) = &*state {
            return Err(why.clone());
        }
        *state = PeerState::Served;
        Ok(())
    }

    /// Whether it has sent no mappings, and was not told to end.
    pub fn is_new(&self) -> bool {
        matches!(*self.state(), PeerState::New)
    }

    /// Has its thread end the connection, and tell why.
    pub fn end(&self, why: String) {
        let state = self.state();
        if !matches!(*state, PeerState::Ended(_)) {
            self.set_ended(state, why);
        }
    }

    /// As [`Self::end`], unless it has sent its mappings by now.
    pub fn give_way(&self, why: &str) {
        let state = self.state();
        if matches!(*state, PeerState::New) {
            self.set_ended(state, why.to_owned());
        }
    }

    fn set_ended(&self, mut state: MutexGuard<'_, PeerState>, why: String) {
        *state = PeerState::Ended(why);
        // What can be received is left to its thread. It may have closed the connection itself.
        let _ = self.stream.shutdown(std::net::Shutdown::Read);
    }

    /// As [`Self::end`], for who is not served any more.
    pub fn give_up(&self, cause: ClientError) {
        let why = cause.to_string();
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
        self.end(why);
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
        match &*self.state() {
            PeerState::Ended(why) => Some(why.clone()),
            PeerState::New | PeerState::Served => None,
        }
    }
}

/// The process that has connected. It is the one that is served, whoever else has the connection.
#[derive(Debug)]
pub struct PeerProcess {
    /// Readable when it has ended. `None` if the system has no such thing.
    fd: Option<OwnedFd>,
    owner: u64,
}

/// Why a connection ends whose process has.
pub const ENDED: &str = "the process that has connected has ended";

impl PeerProcess {
    /// The process as a number: all its clients are served by one thread. Before Linux 6.9 a
    /// process of another pid namespace may have none: then all such processes of one user are one.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// Waits until `stream` can be received from or the process has ended, at most for this time.
    /// Whether the process has ended; `None` if the time is over.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(
        &self,
        stream: &UnixStream,
        wait: Option<&Timespec>,
    ) -> Result<Option<bool>, Errno> {
        match self.poll(stream, PollFlags::IN, wait) {
            Ok([stream, process]) if stream.is_empty() && process.is_empty() => Ok(None),
            Ok([_, process]) => Ok(Some(!process.is_empty())),
            Err(Errno::INTR) => Ok(Some(false)),
            Err(error) => Err(error),
        }
    }

    /// Waits for these events of `stream`, or for the end of the process, and says what came of each.
    fn poll(
        &self,
        stream: &UnixStream,
        events: PollFlags,
        wait: Option<&Timespec>,
    ) -> Result<[PollFlags; 2], Errno> {
        let one = |fd, events| PollFd::from_borrowed_fd(fd, events);
        // Without a process, nothing is waited for in its place.
        let process = self.fd.as_ref().map(|fd| one(fd.as_fd(), PollFlags::IN));
        let stream = one(stream.as_fd(), events);
        let mut fds = [stream.clone(), process.unwrap_or(stream)];
        poll(&mut fds, wait)?;
        let of_process = self.fd.as_ref().map_or(PollFlags::empty(), |_| fds[1].revents());
        Ok([fds[0].revents(), of_process])
    }
}

/// Who has connected, as the system says.
///
/// Not by rustix, whose struct has no pid of 0. The kernel reports 0 for a process that has no
/// number in this process's pid namespace.
fn credentials(stream: &UnixStream) -> Option<libc::ucred> {
    option(stream, libc::SO_PEERCRED, libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX }).ok()
}

/// What the system says of a socket; `it` is of the type that this option has.
fn option<T: Copy>(stream: &UnixStream, which: i32, mut it: T) -> Result<T, Errno> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let socket = stream.as_raw_fd();
    let to = (&raw mut it).cast();
    // SAFETY: `to` has room for `bytes` bytes, which any value of the option's type is.
    let done = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, which, to, &raw mut bytes) };
    if done == 0 {
        return Ok(it);
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
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
    use std::io::Write;
    use std::sync::Arc;

    #[test]
    fn a_process_has_a_number_and_lives() {
        let of = |pid, uid| known(&libc::ucred { pid, uid, gid: 0 });
        assert_eq!(of(0, 7), (None, 7));
        assert_eq!(of(5, 7), (Some(5), 7));
        let (stream, other) = UnixStream::pair().unwrap();
        let [peer, same] = [stream, other.try_clone().unwrap()].map(|it| Peer::new(1, it));
        let [one, two] = [&peer, &same].map(|peer| peer.process().unwrap());
        assert!(one.owner() != 0 && one.owner() == two.owner());
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(one.wait(peer.stream(), Some(&now)), Ok(None), "it lives");
        (&other).write_all(b"?").unwrap();
        assert_eq!(one.wait(peer.stream(), Some(&now)), Ok(Some(false)), "it lives");
        assert!(!peer.has_left(), "it has said something");
        other.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(peer.has_left());
    }

    #[test]
    fn what_a_client_has_left_is_closed_with_its_connection() {
        let (stream, _other) = UnixStream::pair().unwrap(); // not closed
        let peer = Peer::new(1, stream);
        let (_reader, child) = std::io::pipe().unwrap();
        let children = Arc::new(vec![OwnedFd::from(child)]);
        let left = Arc::downgrade(&children);
        peer.give_up(ClientError::Forked { children });
        assert!(peer.why_ended().unwrap().starts_with("it has forked"));
        assert!(left.upgrade().is_some(), "its thread closes it");
        drop(peer);
        assert!(left.upgrade().is_none());
    }

    #[test]
    fn who_gives_way_is_not_served() {
        let (stream, _other) = UnixStream::pair().unwrap(); // not closed
        let peer = Peer::new(1, stream);
        peer.give_way("first");
        peer.end("second".to_owned());
        assert_eq!(peer.begin_service().unwrap_err(), "first");
    }
}
