//! The cache's own view of a mirror: where it reads the pages that are there, under a reference to
//! their folio, and puts those that no map wants at once.
//!
//! The view is made of *pieces*, each a mapping of a part of the memfd, until the mirror goes. The
//! first has all of most files, with room to grow. A further one is mapped when its first page is
//! to be lent: so a file of any length can be mapped.
//!
//! All pieces begin at a multiple of the largest folio, in the file and in memory: so no folio lies
//! in two, and a folio's first byte follows from the address of any of its bytes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::mm::{MprotectFlags, mprotect};

use crate::base::sync::RwLock;
use crate::frames::PAGE_BYTES;
use crate::mapped::reserved::{GRANULE_BYTES, Reservation};
use crate::mapped::uffd::{Uffd, install};

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
    first: Reservation,
    /// By their numbers.
    further: RwLock<BTreeMap<u64, Reservation>>,
}

impl MirrorView {
    /// The view of a memfd for a file of `len_bytes` bytes. Where there are no addresses for its
    /// first piece, it has none.
    pub(super) fn new(fd: BorrowedFd<'_>, len_bytes: u64, uffd: &Uffd) -> io::Result<Self> {
        let bytes = len_bytes.saturating_add(len_bytes.max(ROOM_BYTES)).min(FIRST_MAX_BYTES);
        let bytes = bytes.next_multiple_of(GRANULE_BYTES as u64);
        let first = match map(fd, 0, bytes, uffd) {
            Err(why) if why.kind() == io::ErrorKind::OutOfMemory => Reservation::none(),
            first => first?,
        };
        Ok(MirrorView { first, further: RwLock::new(BTreeMap::new()) })
    }

    /// The address of the byte `at`, which [`reach`](Self::reach) was called for.
    pub(super) fn address(&self, at: u64) -> *mut u8 {
        if at < self.first.bytes as u64 {
            return self.first.start.wrapping_add(at as usize);
        }
        let further = self.further.read();
        let piece = further.get(&(at / PIECE_BYTES));
        let piece = piece.expect("it was mapped before a page of it was lent");
        piece.start.wrapping_add((at % PIECE_BYTES) as usize)
    }

    /// Maps the piece that has the byte `at`, and so its whole folio.
    pub(super) fn reach(&self, fd: BorrowedFd<'_>, at: u64, uffd: &Uffd) -> io::Result<()> {
        let number = at / PIECE_BYTES;
        if at < self.first.bytes as u64 || self.further.read().contains_key(&number) {
            return Ok(());
        }
        if let Entry::Vacant(place) = self.further.write().entry(number) {
            let start = number * PIECE_BYTES;
            place.insert(map(fd, start, PIECE_BYTES.min(END_MAX - start), uffd)?);
        }
        Ok(())
    }

    /// How many bytes of addresses it takes.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn bytes(&self) -> usize {
        self.first.bytes + self.further.read().values().map(|piece| piece.bytes).sum::<usize>()
    }
}

/// Maps the part of the memfd from `offset` on.
fn map(fd: BorrowedFd<'_>, offset: u64, bytes: u64, uffd: &Uffd) -> io::Result<Reservation> {
    let bytes = usize::try_from(bytes).map_err(|_| rustix::io::Errno::NOMEM)?;
    let piece = Reservation::new(bytes)?;
    let start = piece.start.expose_provenance();
    // SAFETY: reserved by this call, and given to nobody.
    unsafe { install(uffd.as_fd(), &(start..start + bytes), Some((fd, offset))) }?;
    // SAFETY: as above; registered by now.
    unsafe { mprotect(piece.start.cast(), bytes, MprotectFlags::READ) }?;
    Ok(piece)
}
