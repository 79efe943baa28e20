//! An open file or block device, and the system calls on it: `preadv` and `pwritev` on raw extents
//! (by libc: a slice of a frame must not exist), length, sync, advice.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::fs::{Advice, AtFlags, FallocateFlags, OFlags, SeekFrom, Stat, StatxFlags};
use rustix::io::Errno;

use super::aligned::AlignedBuffer;
use super::beside::{Beside, TRIES_MAX, open_again, refuses_direct};
use super::contents::Contents;
use super::extent::{self, Extent};
use super::request::{Direction, underlong};
use crate::base::limits::check_file_end;

/// `IOV_MAX`.
const IOVECS_MAX: usize = 1024;
/// Up to here the array lives on the stack.
const IOVECS_FEW: usize = 8;
const NO_IOVEC: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Offsets, lengths and addresses must be multiples of `alignment`.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is known of a file by itself")]
pub(super) struct Descriptor {
    pub(super) fd: OwnedFd,
    pub(super) block_device: bool,
    pub(super) writable: bool,
    pub(super) alignment: usize,
    /// The kernel begins a read of it without waiting for anything that may last.
    pub(super) begins_at_once: bool,
    /// For many reads that a thread waits for.
    pub(super) by_own_rings: bool,
    /// If it is read directly, unless it was opened for direct I/O alone.
    pub(super) beside: Option<Beside>,
    /// Through which its last page is written, if it is written to directly.
    pub(super) tail: OnceLock<Box<Descriptor>>,
}

#[derive(Debug, Default)]
pub(super) struct TransferProgress {
    pub(super) done: usize,
    /// How often it was given back undone.
    given_back: u8,
    /// Whether it was tried directly.
    direct: bool,
}

impl TransferProgress {
    pub(super) fn descriptor(
        &mut self,
        file: &Descriptor,
        direction: Direction,
        end: u64,
    ) -> RawFd {
        let beside = file.beside.as_ref();
        let chosen = beside.map(|beside| beside.descriptor(&file.fd, direction, end));
        let (fd, direct) = chosen.unwrap_or((file.fd.as_raw_fd(), false));
        self.direct = direct;
        fd
    }

    /// What came of a transfer of `asked` bytes of which a try ended so; `None`: try again.
    pub(super) fn landed(
        &mut self,
        file: &Descriptor,
        direction: Direction,
        asked: usize,
        got: Result<usize, Errno>,
    ) -> Option<io::Result<usize>> {
        match got {
            Ok(got) => {
                self.done += got;
                (self.done >= asked || file.ended(self.done, got)).then_some(Ok(self.done))
            }
            Err(errno) => {
                let given_back = [Errno::INTR, Errno::AGAIN, Errno::CANCELED].contains(&errno);
                self.given_back += u8::from(given_back);
                let refused = self.direct && direction == Direction::Read && refuses_direct(errno);
                let refuse = |beside: &Beside| beside.refuse(&file.fd, errno);
                let again = given_back && self.given_back < TRIES_MAX
                    || refused && file.beside.as_ref().is_some_and(refuse);
                (!again).then(|| Err(file.error(errno)))
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Iovecs {
    few: [libc::iovec; IOVECS_FEW],
    many: Vec<libc::iovec>,
    used: usize,
}

impl Iovecs {
    pub(super) fn new() -> Self {
        Self { few: [NO_IOVEC; IOVECS_FEW], many: Vec::new(), used: 0 }
    }

    /// With what is left of `extents` after the first `done` bytes, up to the limit of one call.
    pub(super) fn fill(&mut self, extents: &[Extent<'_>], done: usize) {
        let slots = if extents.len() <= IOVECS_FEW {
            self.many.clear();
            &mut self.few[..]
        } else {
            self.many.resize(extents.len().min(IOVECS_MAX), NO_IOVEC);
            &mut self.many[..]
        };
        self.used = 0;
        let left = extent::parts(extents, done, extent::total_bytes(extents));
        for (slot, part) in slots.iter_mut().zip(left) {
            slot.iov_base = part.address().as_ptr().cast();
            slot.iov_len = part.bytes();
            self.used += 1;
        }
    }

    pub(super) fn as_slice(&self) -> &[libc::iovec] {
        let slots = if self.many.is_empty() { &self.few[..] } else { &self.many[..] };
        &slots[..self.used]
    }
}

impl Descriptor {
    /// To be read only; its reads may wait as they begin.
    pub(super) fn of(fd: OwnedFd, alignment: usize) -> Self {
        Descriptor {
            fd,
            block_device: false,
            writable: false,
            alignment,
            begins_at_once: false,
            by_own_rings: false,
            beside: (alignment > 1).then(Beside::new),
            tail: OnceLock::new(),
        }
    }

    /// Fewer bytes than there are in `extents`: a read met the end of the file.
    pub(super) fn transfer(
        &self,
        direction: Direction,
        offset: u64,
        extents: &[Extent<'_>],
    ) -> io::Result<usize> {
        self.transfer_as(direction, offset, extents, false)
    }

    /// Directly only if none of the file is read otherwise.
    pub(super) fn read_again(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        self.transfer_as(Direction::Read, offset, extents, true)
    }

    fn transfer_as(
        &self,
        direction: Direction,
        offset: u64,
        extents: &[Extent<'_>],
        again: bool,
    ) -> io::Result<usize> {
        self.check(direction, offset, extents)?;
        let bytes = extent::total_bytes(extents);
        let (mut iovecs, mut progress) = (Iovecs::new(), TransferProgress::default());
        if bytes == 0 {
            return Ok(0);
        }
        // All of it counts as near the end.
        let end = if again { u64::MAX } else { offset + bytes as u64 };
        // Ends: each turn moves forward, is the last, or is one of a bounded number of tries.
        loop {
            iovecs.fill(extents, progress.done);
            let fd = progress.descriptor(self, direction, end);
            let got = call(fd, direction, offset + progress.done as u64, &iovecs);
            match (progress.landed(self, direction, bytes, got), direction) {
                (None, _) => {}
                (Some(Ok(done)), Direction::Write) if done < bytes => {
                    return Err(underlong(done, bytes));
                }
                (Some(ended), _) => return ended,
            }
        }
    }

    fn error(&self, errno: Errno) -> io::Error {
        let (cause, alone) = (io::Error::from(errno), self.alignment > 1 && self.beside.is_none());
        if !(alone && refuses_direct(errno)) {
            return cause;
        }
        let text = format!("the file was opened for direct I/O alone, which was refused: {cause}");
        io::Error::new(cause.kind(), text)
    }

    pub(super) fn refused(&self) -> Option<Errno> {
        self.beside.as_ref()?.refused()
    }

    pub(super) fn forget(&self, range: Range<u64>) {
        let cached = (self.alignment == 1).then_some(&self.fd);
        if let Some(fd) = cached.or_else(|| self.beside.as_ref()?.cached_by(&self.fd)) {
            // What is dirty, or mapped by another program, stays.
            let _ = advise(fd, range, Advice::DontNeed);
        }
    }

    /// Whether a transfer met the end of the file: a direct read stops inside a block only there.
    fn ended(&self, done: usize, got: usize) -> bool {
        got == 0 || !done.is_multiple_of(self.alignment)
    }

    /// A clear error where the kernel would only say "invalid argument".
    pub(super) fn check(
        &self,
        direction: Direction,
        offset: u64,
        extents: &[Extent<'_>],
    ) -> io::Result<()> {
        if direction == Direction::Write {
            self.check_writable()?;
        }
        let end = offset.checked_add(extent::total_bytes(extents) as u64);
        let Some(end) = end.filter(|&end| i64::try_from(end).is_ok()) else {
            return Err(super::beyond_offsets());
        };
        let wrong = |what: &str, value: u64| {
            let need = self.alignment;
            let text =
                format!("{what} {value:#x} is not a multiple of {need}, as direct I/O needs");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        };
        let mask = self.alignment as u64 - 1;
        if offset & mask != 0 {
            return wrong("offset", offset);
        }
        for extent in extents {
            let (address, bytes) = (extent.address().addr().get() as u64, extent.bytes() as u64);
            if address & mask != 0 {
                return wrong("memory address", address);
            }
            if bytes & mask != 0 {
                return wrong("length", bytes);
            }
        }
        // A block device has no such limit.
        if direction == Direction::Write && !self.block_device {
            check_file_end(end)
        } else {
            Ok(())
        }
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file was opened for reading only"))
    }

    /// Writes the last bytes of the file, from the start of a page on, through the kernel's page
    /// cache: so after a crash the file ends where it did or where it does, and not with a block.
    pub(super) fn write_tail(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let extents = [Extent::to_write(bytes)];
        if self.alignment == 1 {
            return self.transfer(Direction::Write, offset, &extents).map(drop);
        }
        self.check_writable()?;
        if self.tail.get().is_none() {
            match open_again(&self.fd, OFlags::RDWR) {
                Ok(fd) => {
                    let tail = Descriptor { writable: true, ..Descriptor::of(fd, 1) };
                    drop(self.tail.set(Box::new(tail)));
                }
                // Without /proc, or the right to open it: by whole blocks.
                Err(_) => return self.write_block(offset, bytes),
            }
        }
        let tail = self.tail.get().expect("it was set");
        tail.transfer(Direction::Write, offset, &extents).map(drop)
    }

    /// As [`write_tail`](Self::write_tail), but after a crash the file may end with zeros.
    fn write_block(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let blocks = bytes.len().next_multiple_of(self.alignment);
        let mut block = AlignedBuffer::zeroed(blocks, self.alignment);
        block[..bytes.len()].copy_from_slice(bytes);
        self.transfer(Direction::Write, offset, &[Extent::to_write(&block)])?;
        self.set_len(offset + bytes.len() as u64)
    }

    pub(super) fn contents(&self) -> io::Result<Option<Contents>> {
        if self.block_device {
            return Ok(None);
        }
        Ok(Some(Contents::of(&self.stat()?)))
    }

    fn stat(&self) -> io::Result<Stat> {
        let stat = rustix::fs::fstat(&self.fd)?;
        self.note(&stat);
        Ok(stat)
    }

    pub(super) fn note(&self, stat: &Stat) {
        if let Some(beside) = &self.beside
            && !self.block_device
        {
            beside.note(&self.fd, stat);
        }
    }

    /// Whether no path leads to it any more; a server that hangs is not asked.
    pub(super) fn is_deleted(&self) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(&self.fd, c"", flags, StatxFlags::NLINK)
            .is_ok_and(|stat| stat.stx_mask & StatxFlags::NLINK.bits() != 0 && stat.stx_nlink == 0)
    }

    pub(super) fn len_bytes(&self) -> io::Result<u64> {
        if self.block_device {
            return Ok(rustix::fs::seek(&self.fd, SeekFrom::End(0))?);
        }
        let stat = self.stat()?;
        u64::try_from(stat.st_size).map_err(io::Error::other)
    }

    pub(super) fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.check_writable()?;
        if bytes > self.len_bytes()? {
            check_file_end(bytes)?;
        }
        Ok(rustix::fs::ftruncate(&self.fd, bytes)?)
    }

    pub(super) fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.check_writable()?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (at, bytes) = (range.start, range.end - range.start);
        Ok(rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.fd, how, at, bytes))?)
    }

    pub(super) fn sync(&self, data_only: bool) -> io::Result<()> {
        let fd = self.fd.as_fd();
        Ok(if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }?)
    }
}

fn call(fd: RawFd, direction: Direction, offset: u64, iovecs: &Iovecs) -> Result<usize, Errno> {
    let iovecs = iovecs.as_slice();
    let count = libc::c_int::try_from(iovecs.len()).expect("at most IOVECS_MAX");
    let at = libc::off_t::try_from(offset).expect("checked before");
    let got = match direction {
        // SAFETY: the caller has the fd open; each iovec is a part of an `Extent`, whose memory is
        // valid for the call and may be written.
        Direction::Read => unsafe { libc::preadv(fd, iovecs.as_ptr(), count, at) },
        // SAFETY: as above; the kernel only reads the memory.
        Direction::Write => unsafe { libc::pwritev(fd, iovecs.as_ptr(), count, at) },
    };
    let errno = |_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
    usize::try_from(got).map_err(errno)
}

pub(super) fn advise(fd: &OwnedFd, range: Range<u64>, advice: Advice) -> io::Result<()> {
    let Some(bytes) = range.end.checked_sub(range.start).and_then(std::num::NonZero::new) else {
        return Ok(()); // for the kernel, a length of 0 means all the rest
    };
    Ok(rustix::fs::fadvise(fd, range.start, Some(bytes), advice)?)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_direct_read_that_stops_inside_a_block_is_at_the_end() {
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut file = Descriptor::of(fd, 512);
        assert!(!file.ended(1024, 512));
        assert!(file.ended(1024, 0));
        assert!(file.ended(1000, 488));
        file.alignment = 1;
        assert!(!file.ended(1000, 488));
        assert!(file.ended(1000, 0));
    }
}
