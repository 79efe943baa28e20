//! Sends a file to a socket without a copy: its bytes are pinned in the cache, the ring knows them as
//! fixed buffers, and the kernel takes them from there.
//!
//! `cargo run --example pin_to_socket [FILE]`; without a file, one of 8 MiB is made. The receiver, a
//! thread of this program, compares what comes with the file. `tests/pin_example.rs` runs it.

use std::error::Error;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use io_uring::{IoUring, opcode, types};
use pinfold::{Cache, Options, PinnedRange};

/// What is pinned at a time.
const PART_BYTES: u64 = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => make(&dir.path().join("numbers"))?,
    };
    let (sender, receiver) = UnixStream::pair()?;
    let expected = std::fs::read(&path)?;
    let check = std::thread::spawn(move || compare(receiver, &expected));
    let (bytes, buffers) = send(&path, sender)?;
    check.join().expect("the receiver")?;
    println!("sent {bytes} bytes from {buffers} pinned pieces of memory; all of them arrived");
    Ok(())
}

/// A file whose words count up.
pub(crate) fn make(path: &Path) -> std::io::Result<PathBuf> {
    let words = 0..(8_u64 << 20) / 8;
    std::fs::write(path, words.flat_map(u64::to_ne_bytes).collect::<Vec<_>>())?;
    Ok(path.to_owned())
}

pub(crate) fn compare(mut receiver: UnixStream, expected: &[u8]) -> std::io::Result<()> {
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

/// Sends all of the file; gives how many bytes, and in how many fixed buffers they were.
pub(crate) fn send(path: &Path, socket: UnixStream) -> Result<(u64, usize), Box<dyn Error>> {
    let cache = Cache::new(Options::new(256 << 20).track_pins(true))?;
    let file = cache.open(path)?;
    let mut ring = IoUring::new(8)?;
    let (mut sent, mut buffers) = (0, 0);
    while sent < file.len() {
        // Read into the cache, by direct I/O where the file system can, and kept there.
        let pinned = file.pin(sent..(sent + PART_BYTES).min(file.len()))?;
        let iovecs = pinned.iovecs();
        buffers += iovecs.len();
        // SAFETY: the memory is pinned, and stays so until the buffers are unregistered.
        unsafe { ring.submitter().register_buffers(&iovecs)? };
        send_pinned(&mut ring, &socket, &pinned)?;
        ring.submitter().unregister_buffers()?;
        sent += pinned.len();
    }
    drop((socket, file));
    cache.close()?;
    Ok((sent, buffers))
}

/// Writes the pinned bytes to the socket. Each extent is a registered buffer.
fn send_pinned(
    ring: &mut IoUring,
    socket: &UnixStream,
    pinned: &PinnedRange,
) -> Result<(), Box<dyn Error>> {
    let socket = types::Fd(socket.as_raw_fd());
    for (n, extent) in pinned.extents().enumerate() {
        let mut done = 0;
        // Ends: each turn sends at least a byte.
        while done < extent.len() {
            let from = extent.address().wrapping_add(done);
            let rest = u32::try_from(extent.len() - done)?;
            let write = opcode::WriteFixed::new(socket, from, rest, u16::try_from(n)?).build();
            // SAFETY: the buffer is pinned and registered, and this waits for the completion.
            unsafe { ring.submission().push(&write)? };
            ring.submit_and_wait(1)?;
            let result = ring.completion().next().ok_or("no completion")?.result();
            match result {
                0 => return Err("the receiver has gone".into()),
                1.. => done += result as usize,
                failed => return Err(std::io::Error::from_raw_os_error(-failed).into()),
            }
        }
    }
    Ok(())
}
