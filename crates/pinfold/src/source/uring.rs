//! What the cache's ring and those of threads share.

use std::io::{self, PipeReader, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::io::Errno;

use super::descriptor::{Descriptor, Iovecs};
use super::request::Direction;

const SHORTAGE_PAUSE: Duration = Duration::from_millis(1);

/// The kernel may still write to memory that requests in flight own: unwinding must not drop them.
pub(super) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// A ring for the calling thread, in the kernel's best mode, and a pipe that ends when the kernel
/// has released it. It has room for so many submissions, and twice as many completions.
pub(super) fn set_up(entries: usize) -> io::Result<(IoUring, PipeReader)> {
    let entries = u32::try_from(entries).map_err(io::Error::other)?.next_power_of_two();
    // A forked child must not see the queues.
    let mut best = IoUring::builder();
    best.dontfork().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let ring = match best.build(entries) {
        Ok(ring) => ring,
        // Before Linux 6.1 these flags are unknown.
        Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().dontfork().build(entries)?
        }
        Err(cause) => return Err(cause),
    };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Readv::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::AsyncCancel::CODE,
    ];
    if !needed.iter().all(|&code| probe.is_supported(code)) {
        let text = "this kernel's ring cannot read, write and cancel";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let (gone, kept) = io::pipe()?;
    // From the end of this function on, the ring alone has the write end.
    ring.submitter().register_files(&[kept.as_raw_fd()])?;
    Ok((ring, gone))
}

/// Lets the kernel have a thread for each of so many requests that wait as they begin; else
/// requests of all files wait with those of one. Error: the kernel is older than Linux 5.15.
pub(super) fn no_request_waits_for_another(ring: &IoUring, requests: usize) -> io::Result<()> {
    let mut threads = [u32::try_from(requests).map_err(io::Error::other)?, 0];
    ring.submitter().register_iowq_max_workers(&mut threads).map_err(|cause| {
        let text = format!("its ring cannot have a thread for each request: {cause}");
        io::Error::new(cause.kind(), text)
    })
}

pub(super) fn told(result: i32) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result))
}

/// Submits what was pushed, and waits for `completions`, or fewer. Error: the ring takes no calls.
pub(super) fn enter(ring: &mut IoUring, completions: usize) -> io::Result<()> {
    let entered = ring.submitter().submit_and_wait(completions);
    match entered.map_err(|cause| (cause.raw_os_error(), cause)) {
        Ok(_) | Err((Some(libc::EINTR | libc::EBUSY), _)) => Ok(()),
        Err((Some(libc::EAGAIN | libc::ENOMEM), _)) => {
            std::thread::sleep(SHORTAGE_PAUSE);
            Ok(())
        }
        Err((_, cause)) => Err(cause),
    }
}

/// The entry of a transfer of `iovecs`, which stay where they are until it completes, by
/// [`TransferProgress::descriptor`](super::descriptor::TransferProgress::descriptor).
pub(super) fn transfer(
    file: &Descriptor,
    fd: RawFd,
    direction: Direction,
    offset: u64,
    iovecs: &Iovecs,
) -> squeue::Entry {
    let (fd, iovecs) = (types::Fd(fd), iovecs.as_slice());
    let (array, count) = (iovecs.as_ptr(), u32::try_from(iovecs.len()).expect("at most 1024"));
    // A longer one comes back short and is continued.
    let one = (iovecs[0].iov_base.cast(), iovecs[0].iov_len.min(1 << 30) as u32);
    let entry = match (direction, count) {
        (Direction::Read, 1) => opcode::Read::new(fd, one.0, one.1).offset(offset).build(),
        (Direction::Read, _) => opcode::Readv::new(fd, array, count).offset(offset).build(),
        (Direction::Write, 1) => opcode::Write::new(fd, one.0, one.1).offset(offset).build(),
        (Direction::Write, _) => opcode::Writev::new(fd, array, count).offset(offset).build(),
    };
    // Else by a thread of the kernel's, so that whoever submits it does not wait.
    if file.begins_at_once { entry } else { entry.flags(squeue::Flags::ASYNC) }
}

pub(super) fn wait_for_release(mut gone: PipeReader) {
    // Ends: nothing is written to the pipe.
    let end = loop {
        match gone.read(&mut [0]) {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {} // by a signal
            end => break end,
        }
    };
    assert!(matches!(end, Ok(0)), "the pipe did not end: {end:?}");
}
