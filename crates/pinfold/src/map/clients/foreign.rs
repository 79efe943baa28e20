//! A userfaultfd that another process has sent: its messages, and the calls that put pages into
//! that process's memory. The process is not trusted: what is checked here is that the descriptor
//! is a userfaultfd, and that reading it cannot block, whatever its owner does to it meanwhile.

use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};
use rustix::ioctl::Opcode;

use super::error::{ClientError, ClientResult};
use crate::mapped::uffd::abi::{
    self, Copy, EVENT_FORK, EVENT_PAGEFAULT, EVENT_REMAP, EVENT_REMOVE, EVENT_UNMAP,
    FAULT_WRITE_PROTECT, Install, OP_CONTINUE, OP_COPY, OP_POISON, OP_PROTECT, OP_WAKE,
    OP_ZEROPAGE, PROTECT_QUIETLY, Protect, Span, call,
};

const NAME: &str = "anon_inode:[userfaultfd]";

/// The most messages that one read takes. Few: what was read is done before a turn can end.
pub(super) const MESSAGES_MAX: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Fault(u64),
    /// A thread waits until it may write to this address.
    WriteProtected(u64),
    /// These addresses are about to lose their pages.
    Removed(Range<u64>),
    Unmapped(Range<u64>),
    Moved {
        from: u64,
        to: u64,
        bytes: u64,
    },
    Unknown(u8),
}

#[derive(Debug)]
pub(super) struct Foreign(OwnedFd);

impl Foreign {
    pub(super) fn new(fd: OwnedFd) -> ClientResult<Self> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let what = match std::fs::read_link(path) {
            Ok(name) if name.as_os_str() == NAME => return Ok(Foreign(fd)),
            Ok(name) => name.display().to_string(),
            Err(why) => why.to_string(),
        };
        Err(ClientError::Wrong(format!("the descriptor is no userfaultfd, but {what}")))
    }

    /// Up to [`MESSAGES_MAX`] messages. None if there are none now. Of each fork that they tell of,
    /// the userfaultfd of the child's memory is one of the `children`: its close waits for the lock
    /// of that memory.
    pub(super) fn read(
        &self,
        messages: &mut Vec<Message>,
        children: &mut Vec<OwnedFd>,
    ) -> Result<(), Errno> {
        let mut bytes = [0; MESSAGES_MAX * size_of::<abi::UffdMsg>()];
        let got = loop {
            match self.read_now(&mut bytes) {
                Ok(got) => break got,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        };
        for raw in bytes[..got].chunks_exact(size_of::<abi::UffdMsg>()) {
            let raw: &[u8; size_of::<abi::UffdMsg>()] =
                raw.try_into().expect("a chunk of that size");
            // SAFETY: any bytes are a message.
            let raw = unsafe { std::mem::transmute::<[u8; 32], abi::UffdMsg>(*raw) };
            if raw.event == EVENT_FORK {
                // SAFETY: the kernel has just made this descriptor for the reader of the message.
                children.push(unsafe { OwnedFd::from_raw_fd(raw.words[0] as i32) });
            } else {
                messages.push(message(raw));
            }
        }
        Ok(())
    }

    /// A read that does not block, though the process shares the descriptor's flags, and may have
    /// made it blocking.
    fn read_now(&self, bytes: &mut [u8]) -> Result<usize, Errno> {
        let mut parts = [IoSliceMut::new(bytes)];
        let read = rustix::io::preadv2(&self.0, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT);
        if read != Err(Errno::OPNOTSUPP) {
            return read;
        }
        // Before Linux 6.10. The process can still change it between the two.
        if !rustix::fs::fcntl_getfl(&self.0)?.contains(OFlags::NONBLOCK) {
            return Err(Errno::WOULDBLOCK);
        }
        rustix::io::read(&self.0, bytes)
    }

    /// Maps pages that the memory file behind the range has. Returns for how many bytes from the
    /// start on that was done; an error is that of the first page.
    pub(super) fn proceed(&self, range: Range<u64>) -> Result<u64, Errno> {
        self.install::<OP_CONTINUE>(range)
    }

    /// Maps pages of zeros; returns as [`proceed`](Self::proceed).
    pub(super) fn zero(&self, range: Range<u64>) -> Result<u64, Errno> {
        self.install::<OP_ZEROPAGE>(range)
    }

    /// Whoever accesses these pages gets SIGBUS; returns as [`proceed`](Self::proceed).
    pub(super) fn poison(&self, range: Range<u64>) -> Result<u64, Errno> {
        self.install::<OP_POISON>(range)
    }

    fn install<const OP: Opcode>(&self, range: Range<u64>) -> Result<u64, Errno> {
        let mut install = Install { span: span(&range), mode: 0, done: 0 };
        // SAFETY: it changes the memory of the process that has sent the descriptor for that. If
        // that is this process, the range is one that it has registered for it.
        let called = unsafe { call::<OP, _>(&self.0, &mut install) };
        outcome(called, install.done)
    }

    /// Puts copies of the bytes at `from` there; returns as [`proceed`](Self::proceed).
    ///
    /// # Safety
    /// There are as many bytes at `from`, which no thread changes.
    pub(super) unsafe fn copy(&self, to: Range<u64>, from: *const u8) -> Result<u64, Errno> {
        let (bytes, from) = (to.end - to.start, from.expose_provenance() as u64);
        let mut copy = Copy { to: to.start, from, bytes, mode: 0, done: 0 };
        // SAFETY: the caller's promise; and as in `install`.
        let called = unsafe { call::<OP_COPY, _>(&self.0, &mut copy) };
        outcome(called, copy.done)
    }

    /// Whether the memory is gone, with its process or by execve(2). `at` is an address that the
    /// process may have.
    pub(super) fn is_gone(&self, at: u64) -> bool {
        self.try_at(at) == Err(Errno::SRCH)
    }

    /// Whether the process is changing its memory: there is an event that was not read yet, or that
    /// the kernel is about to tell. `at` as for [`is_gone`](Self::is_gone).
    pub(super) fn is_changing(&self, at: u64) -> bool {
        self.try_at(at) == Err(Errno::AGAIN)
    }

    fn try_at(&self, at: u64) -> Result<(), Errno> {
        let span = Span { start: at, bytes: crate::frames::PAGE_BYTES as u64 };
        // To unprotect a page that is not protected. Nobody is woken.
        let mut protect = Protect { span, mode: PROTECT_QUIETLY };
        // SAFETY: no page of these mappings is protected by this process, and the call takes
        // nothing but protection away.
        unsafe { call::<OP_PROTECT, _>(&self.0, &mut protect) }
    }

    /// All threads that wait for these pages repeat their accesses.
    pub(super) fn wake(&self, range: Range<u64>) {
        // SAFETY: a thread that is woken in vain faults again. It fails if the process is gone.
        let _ = unsafe { call::<OP_WAKE, _>(&self.0, &mut span(&range)) };
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn span(range: &Range<u64>) -> Span {
    Span { start: range.start, bytes: range.end - range.start }
}

/// A call that has done a part fails with EAGAIN, and so does one that has to be repeated later:
/// `done` tells which.
fn outcome(called: Result<(), Errno>, done: i64) -> Result<u64, Errno> {
    match called {
        Err(Errno::AGAIN) if done > 0 => Ok(done.unsigned_abs()),
        Err(error) => Err(error),
        Ok(()) => Ok(done.unsigned_abs()),
    }
}

fn message(raw: abi::UffdMsg) -> Message {
    let [first, second, third] = raw.words;
    match raw.event {
        EVENT_PAGEFAULT if first & FAULT_WRITE_PROTECT != 0 => Message::WriteProtected(second),
        EVENT_PAGEFAULT => Message::Fault(second),
        EVENT_REMOVE => Message::Removed(first..second),
        EVENT_UNMAP => Message::Unmapped(first..second),
        EVENT_REMAP => Message::Moved { from: first, to: second, bytes: third },
        other => Message::Unknown(other),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_another_kind_is_refused_by_name() {
        let error = Foreign::new(std::fs::File::open("/dev/null").unwrap().into()).unwrap_err();
        assert_eq!(error.to_string(), "the descriptor is no userfaultfd, but /dev/null");
    }

    #[test]
    fn messages_have_the_kernels_layout() {
        let raw = |event, words| message(abi::UffdMsg { event, reserved: [0; 7], words });
        assert_eq!(raw(0x12, [0, 0x1000, 7]), Message::Fault(0x1000));
        assert_eq!(raw(0x12, [3, 0x1000, 7]), Message::WriteProtected(0x1000));
        assert_eq!(raw(0x12, [5, 0x1000, 7]), Message::Fault(0x1000));
        assert_eq!(raw(0x14, [1, 2, 3]), Message::Moved { from: 1, to: 2, bytes: 3 });
        assert_eq!(raw(0x15, [1, 2, 3]), Message::Removed(1..2));
        assert_eq!(raw(0x16, [1, 2, 3]), Message::Unmapped(1..2));
        assert_eq!(raw(0x99, [1, 2, 3]), Message::Unknown(0x99));
    }

    #[test]
    fn a_part_that_was_done_is_no_error() {
        assert_eq!(outcome(Ok(()), 4096), Ok(4096));
        assert_eq!(outcome(Err(Errno::AGAIN), 8192), Ok(8192));
        assert_eq!(outcome(Err(Errno::AGAIN), -11), Err(Errno::AGAIN));
        assert_eq!(outcome(Err(Errno::EXIST), -17), Err(Errno::EXIST));
    }
}
