//! The cache's own view of a mirror: where it reads the pages that are there, and puts those that
//! no map wants at once.
//!
//! The view is made of *pieces*, each a mapping of a part of the memfd. The first begins with the
//! file, and has all of most files, with room to grow. What lies beyond comes in further pieces,
//! each mapped when the first page of it is to be lent, and there until the mirror goes: so a file
//! of any length can be mapped, and takes addresses for the parts of it that are in use.
//!
//! An address in the view is the base of a piece and an offset. All pieces begin at a multiple of
//! the largest folio, in the file and in memory: so no folio lies in two, and a folio's first byte
//! follows from the address of any of its bytes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

use crate::base::sync::RwLock;
use crate::frames::{Order, PAGE_BYTES};
use crate::mapped::uffd::Uffd;

/// What pieces are aligned to.
const ALIGN_BYTES: u64 = Order::MAX.bytes() as u64;

/// How much further than the file the first piece reaches, at least: for files that grow.
const ROOM_BYTES: u64 = 1 << 30;

/// The most that the first piece has.
const FIRST_MAX_BYTES: u64 = 64 << 30;

/// What each further piece has: all addresses of a process are fewer pieces than the mappings that
/// it may have.
const PIECE_BYTES: u64 = 4 << 30;

/// No file is longer; nor may a mapping reach further.
const END_MAX: u64 = (1 << 63) - PAGE_BYTES as u64;

/// The view of one memfd.
#[derive(Debug)]
pub(super) struct MirrorView {
    first: ViewPiece,
    /// By their numbers.
    further: RwLock<BTreeMap<u64, ViewPiece>>,
}

/// A mapping of a part of the memfd, this value's alone to unmap.
#[derive(Debug)]
struct ViewPiece {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address that does not change; it is read only, and unmapped by the drop alone.
unsafe impl Send for ViewPiece {}
// SAFETY: as above.
unsafe impl Sync for ViewPiece {}

impl MirrorView {
    /// The view of a memfd for a file of `len_bytes` bytes. Where there are no addresses for its
    /// first piece, it has none.
    pub(super) fn new(fd: BorrowedFd<'_>, len_bytes: u64, uffd: &Uffd) -> io::Result<Self> {
        let bytes = len_bytes.saturating_add(len_bytes.max(ROOM_BYTES)).min(FIRST_MAX_BYTES);
        let first = match ViewPiece::map(fd, 0, bytes.next_multiple_of(ALIGN_BYTES), uffd) {
            Err(why) if why.raw_os_error() == Some(libc::ENOMEM) => ViewPiece::none(),
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
    ///
    /// # Errors
    /// There are no addresses for it.
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
        Ok(ViewPiece { base: map(fd, offset, bytes, uffd)?, bytes })
    }

    fn none() -> Self {
        ViewPiece { base: NonNull::dangling(), bytes: 0 }
    }

    fn address(&self, at: u64) -> *mut u8 {
        let at = at as usize;
        assert!(at < self.bytes, "byte {at} is not in a piece of {} bytes", self.bytes);
        self.base.as_ptr().wrapping_add(at)
    }
}

impl Drop for ViewPiece {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the range is the one that `map` has mapped; who has an address in it has a
            // folio of the mirror, and with it the mirror.
            let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
            debug_assert!(unmapped.is_ok(), "its own range is valid to unmap: {unmapped:?}");
        }
    }
}

/// Maps a part of a mirror at a multiple of [`ALIGN_BYTES`], and registers it before it can be
/// read.
fn map(fd: BorrowedFd<'_>, offset: u64, bytes: usize, uffd: &Uffd) -> io::Result<NonNull<u8>> {
    const ALIGN: usize = ALIGN_BYTES as usize;
    let asked = bytes.checked_add(ALIGN).ok_or(rustix::io::Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice replaces nothing.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), asked, ProtFlags::empty(), flags) }?;
    let start = start.cast::<u8>();
    let before = start.addr().next_multiple_of(ALIGN) - start.addr();
    // SAFETY: the sum lies in the mapping, which is longer by ALIGN.
    let view = unsafe { start.add(before) };
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: it replaces a part of the mapping made above, in which no address is in use.
    let mapped = unsafe { mmap(view.cast(), bytes, ProtFlags::empty(), flags, fd, offset) }
        .map_err(io::Error::from)
        // SAFETY: that mapping, in which no address is in use yet.
        .and_then(|_| unsafe { prepare(view, bytes, uffd) })
        // SAFETY: as above.
        .and_then(|()| Ok(unsafe { mprotect(view.cast(), bytes, MprotectFlags::READ) }?));
    let ends = match mapped {
        Ok(()) => [(start, before), (view.wrapping_add(bytes), ALIGN - before)],
        Err(_) => [(start, asked), (start, 0)],
    };
    for (at, bytes) in ends.into_iter().filter(|end| end.1 > 0) {
        // SAFETY: a part of the mapping made above that is not kept.
        let trimmed = unsafe { munmap(at.cast(), bytes) };
        debug_assert!(trimmed.is_ok(), "the ends of a fresh mapping can go: {trimmed:?}");
    }
    mapped?;
    Ok(NonNull::new(view).expect("a mapping never starts at address 0"))
}

/// Readies a mapping of a mirror, without access yet: none of its pages is ever made by an access.
/// - It is registered, so that an access asks.
/// - A child, which has no userfaultfd, does not have it.
/// - The kernel makes no huge pages of it. It would fill holes with zeros, or be left with zeros
///   where a hole is punched into one.
///
/// # Safety
/// The range is a mapping of a mirror, and nobody else uses it yet.
pub(crate) unsafe fn prepare(at: *mut u8, bytes: usize, uffd: &Uffd) -> io::Result<()> {
    // SAFETY: the caller's range.
    unsafe { madvise(at.cast(), bytes, Advice::LinuxDontFork) }?;
    // SAFETY: as above. A kernel without huge pages refuses it, and needs none of it.
    let _ = unsafe { madvise(at.cast(), bytes, Advice::LinuxNoHugepage) };
    // SAFETY: as above.
    unsafe { uffd.register(at.addr(), bytes) }
}
