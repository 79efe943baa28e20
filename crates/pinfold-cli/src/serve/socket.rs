//! Bytes and descriptors over a Unix socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors that are taken of one message. Of more, the system closes the rest.
const DESCRIPTORS_MAX: usize = 2;

/// What came.
#[derive(Debug)]
pub struct Received {
    /// So many bytes; 0: the other side has closed the connection.
    pub bytes: usize,
    /// With these.
    pub descriptors: [Option<OwnedFd>; DESCRIPTORS_MAX],
    /// There were more of them than the process may have. Of more than [`DESCRIPTORS_MAX`] nothing
    /// is said: these are too many in any case.
    pub left_out: bool,
}

/// Receives what is there. The system closes the descriptors that are not taken, which may wait. It
/// allocates nothing.
///
/// # Errors
/// The system's.
pub fn receive(socket: impl AsFd, buf: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(buf)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = [const { None }; DESCRIPTORS_MAX];
    let mut count = 0;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for (place, right) in descriptors[count..].iter_mut().zip(rights) {
                *place = Some(right);
                count += 1;
            }
        }
    }
    let is_cut = got.flags.contains(ReturnFlags::CTRUNC);
    let left_out = is_cut && count < DESCRIPTORS_MAX;
    Ok(Received { bytes: got.bytes, descriptors, left_out })
}

/// Sends a message with at most one descriptor; returns how many bytes were sent.
///
/// # Errors
/// The system's.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptor: Option<&OwnedFd>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.iter().map(|fd| fd.as_fd()).collect();
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    // Without a signal if the other side is gone.
    let flags = SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags))
}
