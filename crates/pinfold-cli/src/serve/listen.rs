//! The socket at which a server listens, and the lock by which there is one server at a socket.
//!
//! The lock is of a file beside the socket, and is held as long as the process lives: the system
//! gives it up with the process, or if this process closes any descriptor of that file. Only who
//! has the lock replaces a socket that was left there. The file stays when the server ends: if it
//! were removed, two servers could have a lock each, of two files.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::peer::Peer;

/// A listening socket at `path`, and the lock of it. A socket there that nobody listens to is
/// replaced.
///
/// # Errors
/// The path is something else, or another server has it.
pub fn listen(path: &Path) -> Result<(UnixListener, File)> {
    let at = || path.display();
    let lock = lock(path)?;
    match UnixListener::bind(path) {
        Ok(listener) => return Ok((listener, lock)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {}
        Err(error) => return Err(error).with_context(|| format!("cannot listen at {}", at())),
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if !is_socket {
        bail!("cannot listen at {}: there is a file that is no socket", at());
    }
    // A server without the lock: another program's, or its lock file was removed.
    if let Some(who) = listener_of(path).with_context(|| format!("cannot look at {}", at()))? {
        bail!("cannot listen at {}: another server{who} has this socket", at());
    }
    std::fs::remove_file(path).with_context(|| format!("cannot replace {}", at()))?;
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen at {}", at()))?;
    Ok((listener, lock))
}

/// The lock of a socket.
fn lock(socket: &Path) -> Result<File> {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    let path = PathBuf::from(name);
    let cannot = || format!("cannot lock {}", path.display());
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    // Nobody else's file by a link; no wait for a pipe.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let file = options.mode(0o600).open(&path).with_context(cannot)?;
    // Ends: with the lock, unless another process has it at both looks.
    loop {
        if locks(&file, libc::F_SETLK).with_context(cannot)?.is_some() {
            return Ok(file);
        }
        // It may have ended between the two.
        if let Some(it) = locks(&file, libc::F_GETLK).with_context(cannot)?
            && i32::from(it.l_type) != libc::F_UNLCK
        {
            let who = words(Some(it.l_pid).filter(|&pid| pid > 0));
            bail!("cannot listen at {}: another server{who} has this socket", socket.display());
        }
    }
}

/// Sets the lock of a file, or asks who has it, of which the system knows the process. `None`:
/// another process has it.
fn locks(file: &File, command: i32) -> std::io::Result<Option<libc::flock>> {
    // SAFETY: all of it is numbers.
    let mut it: libc::flock = unsafe { std::mem::zeroed() };
    it.l_type = libc::F_WRLCK as i16;
    // SAFETY: the struct is the system's for these two commands.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut it) } == 0 {
        return Ok(Some(it));
    }
    match std::io::Error::last_os_error() {
        why if matches!(why.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
        why => Err(why),
    }
}

fn words(pid: Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

/// Who listens at a socket, as words; `None`: nobody.
///
/// # Errors
/// The system's.
fn listener_of(path: &Path) -> Result<Option<String>> {
    // It must not wait: a server that stands still takes no connection.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(None),
        Ok(()) => Ok(Some(words(Peer::new(0, UnixStream::from(socket)).pid()))),
        // Its queue is full.
        Err(Errno::AGAIN) => Ok(Some(String::new())),
        Err(why) => Err(why.into()),
    }
}
