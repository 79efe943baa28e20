//! Sends a file to a socket without a copy: its bytes are pinned in the cache, the ring knows them
//! as fixed buffers, and the network takes them from there.
//!
//! `cargo run --example pin_to_socket [FILE]`; without a file, one of 8 MiB is made. The receiver,
//! a thread of this program, compares what comes with the file. `tests/it/pin_example.rs` runs it.
//!
//! A zero-copy send is done with its buffer only when it says so, long after the call: until the
//! receiver has acknowledged the bytes they may have to be sent again from there. That is what a
//! pin is for. Where the kernel has no such send (before 6.0), fixed-buffer writes do, which copy
//! once.

use std::error::Error;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use io_uring::{IoUring, cqueue, opcode, types};
use pinfold::{Cache, Options, PinnedRange};

/// What is pinned at a time.
const PART_BYTES: u64 = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => make(&dir.path().join("numbers"))?,
    };
    let (sender, receiver) = pair()?;
    let expected = std::fs::read(&path)?;
    let check = std::thread::spawn(move || compare(receiver, &expected));
    let sent = send(&path, sender)?;
    check.join().expect("the receiver")?;
    let how = if sent.zero_copy { "without a copy" } else { "by writes, which copy" };
    println!("{} bytes arrived, sent {how} from {} pinned pieces", sent.bytes, sent.buffers);
    Ok(())
}

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) bytes: u64,
    /// Fixed buffers they were in.
    pub(crate) buffers: usize,
    /// Whether the kernel took them from there, or copied them into buffers of its own.
    pub(crate) zero_copy: bool,
}

/// Two ends of a connection.
pub(crate) fn pair() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    Ok((sender, listener.accept()?.0))
}

/// A file whose words count up.
pub(crate) fn make(path: &Path) -> std::io::Result<PathBuf> {
    let words = 0..(8_u64 << 20) / 8;
    std::fs::write(path, words.flat_map(u64::to_ne_bytes).collect::<Vec<_>>())?;
    Ok(path.to_owned())
}

pub(crate) fn compare(mut receiver: TcpStream, expected: &[u8]) -> std::io::Result<()> {
    let mut got = Vec::new();
    receiver.read_to_end(&mut got)?;
    let differs = got.iter().zip(expected).position(|(got, wanted)| got != wanted);
    match differs {
        Some(at) => Err(std::io::Error::other(format!("byte {at} is not the file's"))),
        None if got.len() != expected.len() => {
            Err(std::io::Error::other(format!("{} bytes came of {}", got.len(), expected.len())))
        }
        None => Ok(()),
    }
}

/// Sends all of the file.
pub(crate) fn send(path: &Path, socket: TcpStream) -> Result<Sent, Box<dyn Error>> {
    let cache = Cache::new(Options { track_pins: true, ..Options::new(256 << 20) })?;
    let file = cache.open(path)?;
    let mut ring = IoUring::new(8)?;
    let mut sent = Sent { zero_copy: true, ..Sent::default() };
    while sent.bytes < file.len() {
        // Read into the cache, by direct I/O where the file system can, and kept there.
        let pinned = file.pin(sent.bytes..(sent.bytes + PART_BYTES).min(file.len()))?;
        let iovecs: Vec<libc::iovec> = pinned
            .extents()
            .map(|part| libc::iovec { iov_base: part.cast_mut().cast(), iov_len: part.len() })
            .collect();
        sent.buffers += iovecs.len();
        // SAFETY: the memory is pinned, and stays so until the buffers are unregistered, when the
        // kernel is done with them.
        unsafe { ring.submitter().register_buffers(&iovecs)? };
        send_pinned(&mut ring, &socket, &pinned, &mut sent)?;
        ring.submitter().unregister_buffers()?;
    }
    drop((socket, file));
    assert_eq!(cache.stats().pinned_bytes, 0, "{:?}", cache.pins());
    Ok(sent)
}

/// Sends the pinned bytes, of which each extent is a registered buffer, and waits until the kernel
/// needs none of them any more.
fn send_pinned(
    ring: &mut IoUring,
    socket: &TcpStream,
    pinned: &PinnedRange,
    sent: &mut Sent,
) -> Result<(), Box<dyn Error>> {
    let socket = types::Fd(socket.as_raw_fd());
    // Sends whose buffers are still in use.
    let mut in_use = 0_u32;
    for (n, extent) in pinned.extents().enumerate() {
        let (mut done, buffer) = (0, u16::try_from(n)?);
        // Ends: each turn sends at least a byte, or is the last with zero-copy sends.
        while done < extent.len() {
            let from = extent.cast::<u8>().wrapping_add(done);
            let rest = u32::try_from(extent.len() - done)?;
            let entry = if sent.zero_copy {
                opcode::SendZc::new(socket, from, rest).buf_index(Some(buffer)).build()
            } else {
                opcode::WriteFixed::new(socket, from, rest, buffer).build()
            };
            // SAFETY: the buffer is pinned and registered until its use is over, see below.
            unsafe { ring.submission().push(&entry)? };
            match result(ring, &mut in_use)? {
                0 => return Err("the receiver has gone".into()),
                bytes @ 1.. => done += usize::try_from(bytes)?,
                _ if sent.zero_copy => sent.zero_copy = false,
                failed => return Err(std::io::Error::from_raw_os_error(-failed).into()),
            }
        }
        sent.bytes += done as u64;
    }
    // Ends: each use ends when the bytes are acknowledged, or the connection is gone.
    while in_use > 0 {
        ring.submit_and_wait(1)?;
        in_use -= ring.completion().filter(|entry| cqueue::notif(entry.flags())).count() as u32;
    }
    Ok(())
}

/// What came of the one request that was pushed; counts buffers that go into use or out of it.
fn result(ring: &mut IoUring, in_use: &mut u32) -> std::io::Result<i32> {
    // Ends: a request has one result.
    loop {
        ring.submit_and_wait(1)?;
        let mut result = None;
        for entry in ring.completion() {
            if cqueue::notif(entry.flags()) {
                *in_use -= 1;
            } else {
                *in_use += u32::from(cqueue::more(entry.flags()));
                result = Some(entry.result());
            }
        }
        if let Some(result) = result {
            return Ok(result);
        }
    }
}
