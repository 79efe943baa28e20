//! Addresses that a map, or the cache's view of a mirror, has for itself: reserving whole granules,
//! and giving them back.

use std::ops::Range;
use std::{io, ptr};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::base::fork::Birth;
use crate::frames::{Order, PAGE_BYTES};

/// The smallest piece of addresses that a map has for itself: as long as the largest folio.
pub(crate) const GRANULE_BYTES: usize = Order::MAX.bytes();

/// Addresses of this process that the system gives nobody else: whole granules. Unmapped when it is
/// dropped; but a forked child does not have the range, and may have something else there.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
    birth: Birth,
}

// SAFETY: it owns the addresses, and gives nothing else away.
unsafe impl Send for Reservation {}
// SAFETY: as above; a shared one only tells where it is.
unsafe impl Sync for Reservation {}

impl Reservation {
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let too_large = || io::Error::from_raw_os_error(libc::ENOMEM);
        let bytes = bytes.checked_next_multiple_of(GRANULE_BYTES).ok_or_else(too_large)?;
        let reserve = |bytes| {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: new addresses, without access.
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::empty(), flags) }
        };
        // Linux aligns what may have huge pages, from 6.7 on.
        let of = |start, bytes| Reservation { start, bytes, birth: Birth::here() };
        let first = of(reserve(bytes)?.cast(), bytes);
        if first.start.addr().is_multiple_of(GRANULE_BYTES) {
            return Ok(first);
        }
        drop(first);
        let more = bytes.checked_add(GRANULE_BYTES).ok_or_else(too_large)?;
        let start: *mut u8 = reserve(more)?.cast();
        let before = start.addr().next_multiple_of(GRANULE_BYTES) - start.addr();
        let aligned = start.wrapping_add(before);
        drop((of(start, before), of(aligned.wrapping_add(bytes), GRANULE_BYTES - before)));
        Ok(of(aligned, bytes))
    }

    pub(crate) fn none() -> Self {
        Reservation { start: ptr::null_mut(), bytes: 0, birth: Birth::here() }
    }

    pub(crate) fn addresses(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.bytes
    }

    /// The addresses of the pages of a range of the file.
    pub(crate) fn pages(&self, range: &Range<u64>) -> Range<usize> {
        let bytes = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        self.start.addr()..self.start.addr() + bytes.next_multiple_of(PAGE_BYTES)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 && self.birth.is_here() {
            // SAFETY: this value's own addresses, which nobody uses any more.
            let unmapped = unsafe { rustix::mm::munmap(self.start.cast(), self.bytes) };
            // What the program has sealed, or where one mapping more would be one too many, stays
            // nobody's until the process ends.
            let may_stay = [Errno::PERM, Errno::NOMEM];
            debug_assert!(unmapped.err().is_none_or(|it| may_stay.contains(&it)), "{unmapped:?}");
        }
    }
}
