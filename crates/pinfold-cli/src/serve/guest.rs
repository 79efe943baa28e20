//! A client's side: memory that a server fills, the connection, and a new one when the server was
//! killed and started again.
//!
//! The client keeps its userfaultfd open. As long as it does, an access to an absent page waits,
//! whether there is a server or not. If nobody had it open, the kernel would serve such an access
//! by itself: with zeros, or with whatever the server's memory file has there.
//!
//! A server that was started again has another memory file. What was mapped of the old one stays;
//! what is still absent comes as copies, as the client says when it connects again.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, Result, anyhow, bail, ensure};
use pinfold::{ClientMapping, ClientMemory};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{
    Advice, MapFlags, ProtFlags, UserfaultfdFlags, madvise, mmap, mmap_anonymous, munmap,
    userfaultfd,
};

use super::protocol::{self, Messages, Reply, Request, Stats};
use super::socket;

/// The kernel's `struct uffdio_api`.
#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    done: i64,
}

const OP_COPY: Opcode = opcode::read_write::<Copy>(0xAA, 0x03);
const OP_API: Opcode = opcode::read_write::<Api>(0xAA, 0x3F);
const OP_REGISTER: Opcode = opcode::read_write::<Register>(0xAA, 0x00);
/// Of the device.
const OP_NEW: Opcode = opcode::none(0xAA, 0x00);
const API: u64 = 0xAA;
const MODE_MISSING: u64 = 1;
const MODE_MINOR: u64 = 1 << 2;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
/// Faults of system calls are not served, so no privilege is needed.
const USER_MODE_ONLY: u32 = 1;

/// A connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    messages: Messages,
}

impl Connection {
    /// # Errors
    /// Nobody listens there.
    pub fn open(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("cannot connect to {}", path.display()))?;
        Ok(Connection { stream, messages: Messages::default() })
    }

    /// Sends a request with a descriptor, and waits for the answer, and the descriptor that comes
    /// with it.
    ///
    /// # Errors
    /// The server refuses it, or is gone.
    pub fn ask(
        &mut self,
        request: &Request,
        descriptor: Option<&OwnedFd>,
    ) -> Result<(Reply, Option<OwnedFd>)> {
        let message = request.message();
        let mut sent = socket::send(&self.stream, &message, descriptor).context("the server")?;
        // Ends: each turn sends at least a byte.
        while sent < message.len() {
            sent += socket::send(&self.stream, &message[sent..], None).context("the server")?;
        }
        let mut descriptors = Vec::new();
        // Ends: each turn receives at least a byte.
        loop {
            if let Some(message) = self.messages.take().map_err(|error| anyhow!(error))? {
                let reply = protocol::reply(message).map_err(|error| anyhow!(error))?;
                if let Some(why) = reply.error {
                    bail!("the server refuses: {why}");
                }
                return Ok((reply, descriptors.pop()));
            }
            let mut buf = [0; 4096];
            let got = socket::receive(&self.stream, &mut buf).context("the server")?;
            ensure!(got.bytes > 0, "the server has closed the connection");
            self.messages.push(&buf[..got.bytes]);
            descriptors.extend(got.descriptors.into_iter().flatten());
        }
    }

    /// The connection once more, to close it while another thread waits for it.
    ///
    /// # Errors
    /// There are too many descriptors.
    pub fn closer(&self) -> Result<UnixStream> {
        self.stream.try_clone().context("the connection")
    }

    /// The server's counters.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn stats(&mut self) -> Result<Stats> {
        let (reply, _) = self.ask(&Request::Stats, None)?;
        reply.stats.context("the server has sent no counters")
    }

    /// Waits until the server ends the connection. With the reason, if it gives one.
    pub fn wait_for_end(&mut self) -> Option<String> {
        let mut buf = [0; 4096];
        // Ends: with the connection.
        loop {
            match socket::receive(&self.stream, &mut buf) {
                Ok(got) if got.bytes > 0 => self.messages.push(&buf[..got.bytes]),
                Ok(_) | Err(_) => break,
            }
        }
        let message = self.messages.take().ok()??;
        protocol::reply(message).ok()?.error
    }
}

/// A private range of memory that is the whole snapshot.
#[derive(Debug)]
pub struct Guest {
    start: NonNull<u8>,
    bytes: usize,
    /// None if the kernel alone serves its faults.
    uffd: Option<OwnedFd>,
    memory: ClientMemory,
}

// SAFETY: an address; who uses the memory says why it may.
unsafe impl Send for Guest {}
// SAFETY: as above.
unsafe impl Sync for Guest {}

impl Guest {
    /// Asks the server for its memory, maps it, and hands the userfaultfd over.
    ///
    /// # Errors
    /// The server refuses it, or the system does.
    pub fn restore(connection: &mut Connection, memory: ClientMemory) -> Result<Self> {
        let (reply, shared) = connection.ask(&Request::Memory, None)?;
        let bytes = reply.bytes.context("the server does not say how much memory there is")?;
        let bytes = usize::try_from(bytes).context("more memory than addresses")?;
        let shared = shared.context("the server has sent no memory file")?;
        let uffd = ready_userfaultfd()?;
        let start = map(bytes, (memory == ClientMemory::Shared).then_some(&shared))?;
        let guest = Guest { start, bytes, uffd: Some(uffd), memory };
        // A child would have the range without the userfaultfd.
        // SAFETY: the mapping made above.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork) }?;
        guest.register()?;
        guest.hand_over(connection, memory)?;
        Ok(guest)
    }

    /// From now on its faults are told.
    fn register(&self) -> Result<()> {
        let minor = if self.memory == ClientMemory::Shared { MODE_MINOR } else { 0 };
        let (start, bytes) = (self.start.as_ptr().addr() as u64, self.bytes as u64);
        let mut register = Register { start, bytes, mode: MODE_MISSING | minor, ioctls: 0 };
        // SAFETY: the struct is the kernel's for this number.
        let call = unsafe { Updater::<OP_REGISTER, _>::new(&mut register) };
        let uffd = self.uffd.as_ref().context("it has no userfaultfd")?;
        // SAFETY: its own mapping, which nobody has touched.
        unsafe { ioctl(uffd, call) }.context("cannot register the memory")?;
        Ok(())
    }

    /// A private mapping of a file, without a server: to compare with.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn of_file(path: &Path) -> Result<Self> {
        let file = std::fs::File::open(path)?;
        let bytes = usize::try_from(file.metadata()?.len().next_multiple_of(4096))?;
        let start = map(bytes, Some(&file.into()))?;
        Ok(Guest { start, bytes, uffd: None, memory: ClientMemory::Private })
    }

    /// Memory of its own, filled from a mapping of the file by a thread of this process, page by
    /// page, as handlers for Firecracker do it: to compare with. The thread runs until the process
    /// ends.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn copied(path: &Path) -> Result<Self> {
        let source = Guest::of_file(path)?;
        let bytes = source.bytes;
        let uffd = ready_userfaultfd()?;
        let start = map(bytes, None)?;
        let thread_uffd = uffd.try_clone()?;
        let guest = Guest { start, bytes, uffd: Some(uffd), memory: ClientMemory::Private };
        guest.register()?;
        let at = start.as_ptr().addr();
        std::thread::spawn(move || copy_pages(&thread_uffd, at, &source));
        Ok(guest)
    }

    fn hand_over(&self, connection: &mut Connection, memory: ClientMemory) -> Result<()> {
        let (address, bytes) = (self.start.as_ptr().addr() as u64, self.bytes as u64);
        let mapping = ClientMapping { address, bytes, offset: 0, memory };
        connection.ask(&Request::Serve(vec![mapping]), self.uffd.as_ref())?;
        Ok(())
    }

    /// Hands it over to a server that was started again: pages that are still absent come as
    /// copies.
    ///
    /// # Errors
    /// As for [`restore`](Self::restore); the server has another snapshot.
    pub fn hand_over_again(&self, connection: &mut Connection) -> Result<()> {
        let (reply, _) = connection.ask(&Request::Memory, None)?;
        ensure!(reply.bytes == Some(self.bytes as u64), "the server has another snapshot by now");
        self.hand_over(connection, ClientMemory::Private)
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is none: never.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What kind of memory it was made of.
    pub fn memory(&self) -> ClientMemory {
        self.memory
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // SAFETY: the mapping that `restore` made; who uses it borrows the guest.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "its own range is valid to unmap: {unmapped:?}");
    }
}

/// A new private mapping of the file, or anonymous memory. Nobody changes pages of the file that
/// are there.
fn map(bytes: usize, file: Option<&OwnedFd>) -> Result<NonNull<u8>> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let (anywhere, flags) = (std::ptr::null_mut(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    let start = match file {
        // SAFETY: a new mapping.
        Some(file) => unsafe { mmap(anywhere, bytes, prot, flags, file, 0) },
        // SAFETY: as above.
        None => unsafe { mmap_anonymous(anywhere, bytes, prot, flags) },
    };
    NonNull::new(start.context("cannot map the memory")?.cast()).context("mapped at address 0")
}

/// Serves faults of the memory at `start` from `source`, for ever.
fn copy_pages(uffd: &OwnedFd, start: usize, source: &Guest) {
    let mut message = [0_u64; 4];
    loop {
        let mut fds = [rustix::event::PollFd::new(uffd, rustix::event::PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, None); // interrupted: it is read in vain
        // SAFETY: the words of the array, as bytes.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(message.as_mut_ptr().cast::<u8>(), 32) };
        if !matches!(rustix::io::read(uffd, &mut *bytes), Ok(32)) {
            continue;
        }
        let at = message[2] & !4095;
        let from = source.start.as_ptr().wrapping_add(at as usize - start).expose_provenance();
        let mut copy = Copy { to: at, from: from as u64, bytes: 4096, mode: 0, done: 0 };
        // SAFETY: the struct is the kernel's for this number.
        let call = unsafe { Updater::<OP_COPY, _>::new(&mut copy) };
        // SAFETY: a page of the guest that is absent, and one of the source.
        let _ = unsafe { ioctl(uffd, call) }; // another thread's fault was for the same page
    }
}

/// One that is ready for memory files.
fn ready_userfaultfd() -> Result<OwnedFd> {
    let uffd = open_userfaultfd().context("cannot have a userfaultfd (see docs/map.md)")?;
    let mut api =
        Api { version: API, features: FEATURE_MISSING_SHMEM | FEATURE_MINOR_SHMEM, ioctls: 0 };
    // SAFETY: the struct is the kernel's for this number.
    let call = unsafe { Updater::<OP_API, _>::new(&mut api) };
    // SAFETY: it changes only the descriptor.
    unsafe { ioctl(&uffd, call) }
        .context("this kernel has no minor faults of memory files (Linux 5.14)")?;
    Ok(uffd)
}

/// One that serves faults of system calls, too, if the process may have that.
fn open_userfaultfd() -> io::Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: what is done with it is argued at each call.
    if let Ok(fd) = unsafe { userfaultfd(flags) } {
        return Ok(fd);
    }
    if let Ok(device) = std::fs::File::open("/dev/userfaultfd") {
        let number = libc::Ioctl::from(OP_NEW);
        // SAFETY: this number of the device takes flags by value, and returns a descriptor.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), number, flags.bits()) };
        if fd >= 0 {
            // SAFETY: new, and this function's alone.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    let flags = flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: as above.
    Ok(unsafe { userfaultfd(flags) }?)
}
