//! The cache's own view of a mirror: where it reads the pages that are there, and puts those that
//! no map wants at once.
//!
//! The view is made of *pieces*, each a mapping of a part of the memfd. The first has all of most
//! files, with room to grow. What lies beyond comes in further pieces, each mapped when the first
//! page of it is to be lent, and there until the mirror goes: so a file of any length can be
//! mapped.
//!
//! All pieces begin at a multiple of the largest folio, in the file and in memory: so no folio lies
//! in two, and a folio's first byte follows from the address of any of its bytes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect};

use crate::base::sync::RwLock;
use crate::frames::PAGE_BYTES;
use crate::mapped::reserved::{GRANULE_BYTES, Reservation};
use crate::mapped::uffd::Uffd;

/// How much further than the file the first piece reaches, at least: for files that grow.
const ROOM_BYTES: u64 = 1 << 30;

const FIRST_MAX_BYTES: u64 = 64 << 30;

/// What each further piece has: all addresses of a process are fewer pieces than the mappings that
/// it may have.
const PIECE_BYTES: u64 = 4 << 30;

/// No file is longer; nor may a mapping reach further.
const END_MAX: u64 = (1 << 63) - PAGE_BYTES as u64;

#[derive(Debug)]
pub(super) struct MirrorView {
    first: ViewPiece,
    /// By their numbers.
    further: RwLock<BTreeMap<u64, ViewPiece>>,
}

#[derive(Debug)]
struct ViewPiece {
    place: Reservation,
    bytes: usize,
}

impl MirrorView {
    /// The view of a memfd for a file of `len_bytes` bytes. Where there are no addresses for its
    /// first piece, it has none.
    pub(super) fn new(fd: BorrowedFd<'_>, len_bytes: u64, uffd: &Uffd) -> io::Result<Self> {
        let bytes = len_bytes.saturating_add(len_bytes.max(ROOM_BYTES)).min(FIRST_MAX_BYTES);
        let bytes = bytes.next_multiple_of(GRANULE_BYTES as u64);
        let first = match ViewPiece::map(fd, 0, bytes, uffd) {
            Err(why) if why.raw_os_error() == Some(libc::ENOMEM) => {
                ViewPiece { place: Reservation::none(), bytes: 0 }
            }
            first => first?,
        };
        Ok(MirrorView { first, further: RwLock::new(BTreeMap::new()) })
    }

    /// The address of the byte `at`, which [`reach`](Self::reach) was called for.
    pub(super) fn address(&self, at: u64) -> *mut u8 {
        if at < self.first.bytes as u64 {
            return self.first.address(at);
        }
        let further = self.further.read();
        let piece = further.get(&(at / PIECE_BYTES));
        piece.expect("it was mapped before a page of it was lent").address(at % PIECE_BYTES)
    }

    /// Maps the piece that has the byte `at`, and so its whole folio.
    pub(super) fn reach(&self, fd: BorrowedFd<'_>, at: u64, uffd: &Uffd) -> io::Result<()> {
        let number = at / PIECE_BYTES;
        if at < self.first.bytes as u64 || self.further.read().contains_key(&number) {
            return Ok(());
        }
        if let Entry::Vacant(place) = self.further.write().entry(number) {
            let start = number * PIECE_BYTES;
            place.insert(ViewPiece::map(fd, start, PIECE_BYTES.min(END_MAX - start), uffd)?);
        }
        Ok(())
    }

    /// How many bytes of addresses it takes.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn bytes(&self) -> usize {
        self.first.bytes + self.further.read().values().map(|piece| piece.bytes).sum::<usize>()
    }
}

impl ViewPiece {
    /// The part of the memfd from `offset` on.
    fn map(fd: BorrowedFd<'_>, offset: u64, bytes: u64, uffd: &Uffd) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| rustix::io::Errno::NOMEM)?;
        let place = Reservation::new(bytes)?;
        let at = place.start;
        // SAFETY: reserved by this call, and given to nobody.
        unsafe { install(at, bytes, fd, offset, uffd) }?;
        // SAFETY: as above; registered by now.
        unsafe { mprotect(at.cast(), bytes, MprotectFlags::READ) }?;
        Ok(ViewPiece { place, bytes })
    }

    fn address(&self, at: u64) -> *mut u8 {
        let at = at as usize;
        assert!(at < self.bytes, "byte {at} is not in a piece of {} bytes", self.bytes);
        self.place.start.wrapping_add(at)
    }
}

/// Maps a part of a mirror, without access yet: none of its pages is ever made by an access.
/// - It is registered, so that an access asks.
/// - A child, which has no userfaultfd, does not have it.
/// - The kernel makes no huge pages of it. It would fill holes with zeros, or be left with zeros
///   where a hole is punched into one.
///
/// # Safety
/// The addresses are reserved by the caller, and nobody uses them.
pub(crate) unsafe fn install(
    at: *mut u8,
    bytes: usize,
    mirror: BorrowedFd<'_>,
    offset: u64,
    uffd: &Uffd,
) -> io::Result<()> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller's addresses.
    unsafe { mmap(at.cast(), bytes, ProtFlags::empty(), flags, mirror, offset) }?;
    // SAFETY: as above.
    unsafe { madvise(at.cast(), bytes, Advice::LinuxDontFork) }?;
    // SAFETY: as above. A kernel without huge pages refuses it, and needs none of it.
    let _ = unsafe { madvise(at.cast(), bytes, Advice::LinuxNoHugepage) };
    // SAFETY: as above.
    unsafe { uffd.register(at.addr(), bytes) }
}
