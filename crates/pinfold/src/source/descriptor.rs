//! An open file or block device, and the system calls on it.
//!
//! Belongs here: `preadv`, `pwritev` on raw extents (by libc: rustix and std want slices, and a
//! slice of a frame must not exist), the loop around short transfers, length, sync, advice.
//! Does not: whether the kernel's cache is used (`open.rs` sets the flag). Called by `disk.rs`
//! and the rings.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Advice, AtFlags, SeekFrom, StatxFlags};

use super::contents::Contents;
use super::extent::{self, Extent};
use super::request::{Direction, Request};
use crate::limits::check_file_end;

/// Extents that one system call takes at most (`IOV_MAX`).
const IOVECS_MAX: usize = 1024;
/// Up to here the array for the call lives on the stack.
const IOVECS_FEW: usize = 8;
const NO_IOVEC: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// An open file. Offsets, lengths and addresses must be multiples of `alignment`.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) fd: OwnedFd,
    pub(super) block_device: bool,
    pub(super) writable: bool,
    pub(super) alignment: usize,
    /// The kernel begins a read of it without waiting for the device, or for anything else that may
    /// last.
    pub(super) begins_at_once: bool,
}

/// The array of a `preadv` or a ring's `Readv`.
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

    /// Fills the array with what is left of `extents` after the first `done` bytes, up to the limit
    /// of one call.
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
    /// One of which nothing is known: to be read only, and its reads may wait as they begin.
    pub(super) fn of(fd: OwnedFd, alignment: usize) -> Self {
        let (block_device, writable, begins_at_once) = (false, false, false);
        Descriptor { fd, block_device, writable, alignment, begins_at_once }
    }

    /// `Source::read_extents_at`: all of it, or up to the end of the file, or an error.
    pub(super) fn read(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        self.check(offset, extents)?;
        self.transfer(Direction::Read, offset, extents)
    }

    /// `Source::write_extents_at`: all of it or an error.
    pub(super) fn write(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        self.check_write(offset, extents)?;
        let done = self.transfer(Direction::Write, offset, extents)?;
        if done < extent::total_bytes(extents) {
            return Err(super::request::underlong(done, extent::total_bytes(extents)));
        }
        Ok(())
    }

    /// Carries out the request, from its first byte.
    pub(super) fn carry_out(&self, request: &Request) -> io::Result<usize> {
        match request.direction() {
            Direction::Read => self.read(request.offset(), request.extents()),
            Direction::Write => {
                self.write(request.offset(), request.extents()).map(|()| request.bytes())
            }
        }
    }

    /// Returns the error that the request would meet later.
    pub(super) fn check_request(&self, request: &Request) -> io::Result<()> {
        match request.direction() {
            Direction::Read => self.check(request.offset(), request.extents()),
            Direction::Write => self.check_write(request.offset(), request.extents()),
        }
    }

    fn transfer(
        &self,
        direction: Direction,
        offset: u64,
        extents: &[Extent<'_>],
    ) -> io::Result<usize> {
        let bytes = extent::total_bytes(extents);
        let mut iovecs = Iovecs::new();
        let mut done = 0;
        // Ends: each turn moves forward, is the last, or was interrupted by a signal.
        while done < bytes {
            iovecs.fill(extents, done);
            match self.call(direction, offset + done as u64, &iovecs) {
                Ok(got) => {
                    done += got;
                    if self.ended(done, got) {
                        break;
                    }
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(done)
    }

    /// Whether a transfer that moved `got` bytes, `done` in all, met the end of the file. A direct
    /// read stops inside a block only at the end of the file. A read from there on would be
    /// refused, or return nothing.
    pub(super) fn ended(&self, done: usize, got: usize) -> bool {
        got == 0 || !done.is_multiple_of(self.alignment)
    }

    fn call(&self, direction: Direction, offset: u64, iovecs: &Iovecs) -> io::Result<usize> {
        let (fd, iovecs) = (self.fd.as_raw_fd(), iovecs.as_slice());
        let count = libc::c_int::try_from(iovecs.len()).expect("at most IOVECS_MAX");
        let at = libc::off_t::try_from(offset).expect("checked before");
        let got = match direction {
            // SAFETY: the fd is open; each iovec is a part of an `Extent`, whose memory is valid
            // for the call and may be written by any holder of the extent.
            Direction::Read => unsafe { libc::preadv(fd, iovecs.as_ptr(), count, at) },
            // SAFETY: as above; the kernel only reads the memory.
            Direction::Write => unsafe { libc::pwritev(fd, iovecs.as_ptr(), count, at) },
        };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Returns a clear error where the kernel would only say "invalid argument".
    pub(super) fn check(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        let end = offset.checked_add(extent::total_bytes(extents) as u64);
        if end.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(super::beyond_offsets());
        }
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
        Ok(())
    }

    fn check_write(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        self.check_writable()?;
        self.check(offset, extents)?;
        if self.block_device {
            return Ok(()); // has no such limit
        }
        check_file_end(offset + extent::total_bytes(extents) as u64)
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "the file was opened for reading only"))
    }

    /// What identifies its contents now; nothing does of a block device.
    pub(super) fn contents(&self) -> io::Result<Option<Contents>> {
        if self.block_device {
            return Ok(None);
        }
        Ok(Some(Contents::of(&rustix::fs::fstat(&self.fd)?)))
    }

    /// Whether no path leads to it any more, as far as this machine knows: a server that hangs is
    /// not asked.
    pub(super) fn is_deleted(&self) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(&self.fd, c"", flags, StatxFlags::NLINK)
            .is_ok_and(|stat| stat.stx_mask & StatxFlags::NLINK.bits() != 0 && stat.stx_nlink == 0)
    }

    pub(super) fn len_bytes(&self) -> io::Result<u64> {
        if self.block_device {
            // Every other call here names its offset, so the position is free to be moved.
            return Ok(rustix::fs::seek(&self.fd, SeekFrom::End(0))?);
        }
        let stat = rustix::fs::fstat(&self.fd)?;
        u64::try_from(stat.st_size).map_err(io::Error::other)
    }

    pub(super) fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.check_writable()?;
        if bytes > self.len_bytes()? {
            check_file_end(bytes)?;
        }
        Ok(rustix::fs::ftruncate(&self.fd, bytes)?)
    }

    pub(super) fn sync(&self, data_only: bool) -> io::Result<()> {
        let fd = self.fd.as_fd();
        Ok(if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) }?)
    }

    /// Advises the kernel's page cache; of no use with direct I/O.
    pub(super) fn advise(&self, range: Range<u64>, advice: Advice) -> io::Result<()> {
        let Some(bytes) = range.end.checked_sub(range.start).and_then(std::num::NonZero::new)
        else {
            return Ok(()); // for the kernel, a length of 0 means all the rest
        };
        Ok(rustix::fs::fadvise(&self.fd, range.start, Some(bytes), advice)?)
    }
}

#[cfg(all(test, not(loom)))]
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
