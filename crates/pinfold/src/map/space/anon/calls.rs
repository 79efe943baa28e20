//! The calls of the system that put pages into own memory, protect them, and take them out.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{Advice, MprotectFlags, madvise, mprotect};

use crate::frames::{PAGE_BYTES, give_back};
use crate::mapped::reserved::Reservation;
use crate::mapped::uffd::abi::{
    COPY_PROTECTED, COPY_QUIETLY, Install, OP_PROTECT, OP_ZEROPAGE, PROTECT_ON, Protect, call,
};
use crate::mapped::uffd::{self, repeat};

/// Makes reserved addresses an area, which can be accessed.
///
/// # Safety
/// The addresses are reserved by the caller, and not in use.
pub(super) unsafe fn install(uffd: BorrowedFd<'_>, at: &Range<usize>) -> io::Result<()> {
    // SAFETY: the caller's addresses.
    unsafe { uffd::install(uffd, at, None) }?;
    let _ = merge_nothing(at); // asked again before a page leaves
    let start = std::ptr::with_exposed_provenance_mut(at.start);
    // SAFETY: as above.
    Ok(unsafe { mprotect(start, at.len(), MprotectFlags::READ | MprotectFlags::WRITE) }?)
}

/// What `look` finds at the address of a page that is protected, which is there only meanwhile.
pub(super) fn protected_page<R>(
    uffd: BorrowedFd<'_>,
    look: impl FnOnce(usize) -> R,
) -> io::Result<R> {
    let place = Reservation::new(PAGE_BYTES)?;
    let at = place.start.expose_provenance();
    let page = at..at + PAGE_BYTES;
    // SAFETY: reserved by this call, and given to nobody.
    unsafe { install(uffd, &page) }?;
    zero_unpoisoned(uffd, &page).map_err(|(_, why)| why)?;
    protect(uffd, &page, true);
    Ok(look(at))
}

/// Whether KSM may merge all memory of the process that does not say otherwise.
pub(super) fn merges_all() -> bool {
    /// `PR_GET_MEMORY_MERGE` (Linux 6.4).
    const GET: libc::c_int = 68;
    // SAFETY: it only asks.
    unsafe { libc::prctl(GET, 0, 0, 0, 0) == 1 }
}

/// KSM does not merge these pages, and what it has merged is as before, but for its protection.
/// False: the system has no memory for that, and KSM goes on.
#[must_use = "KSM may go on"]
pub(super) fn merge_nothing(at: &Range<usize>) -> bool {
    let start = std::ptr::with_exposed_provenance_mut(at.start);
    // SAFETY: an area's addresses; no byte of it changes.
    let done = unsafe { madvise(start, at.len(), Advice::LinuxUnmergeable) };
    // A kernel without KSM; or the program has unmapped some of it, and the rest is done.
    matches!(done, Ok(()) | Err(Errno::INVAL | Errno::NOMEM))
}

/// Puts copies of the bytes at `from` to absent pages. Who waits for one is woken once the fault
/// has let go of the page (`handlers.rs`), so that a page-out right after the access does not find
/// it in use.
/// Error: as [`uffd::copy`].
pub(super) fn copy(
    uffd: BorrowedFd<'_>,
    to: &Range<usize>,
    from: &[u8],
    protected: bool,
) -> Result<(), (usize, io::Error)> {
    assert_eq!(to.len(), from.len(), "a copy has the length of its place");
    // SAFETY: it fills pages of an area that are absent, which nobody has read.
    unsafe { uffd::copy(uffd, to, from.as_ptr(), if protected { COPY_PROTECTED } else { 0 }) }
}

/// Makes absent pages pages of zeros, which take memory when they are stored to. One that is
/// poisoned becomes a copy of its part of `zeros`, as the kernel puts only copies in the place of
/// poison.
pub(super) fn zero(
    uffd: BorrowedFd<'_>,
    at: &Range<usize>,
    zeros: &[u8],
) -> Result<(), (usize, io::Error)> {
    let zeroed = zero_unpoisoned(uffd, at);
    let Err((done, why)) = &zeroed else { return zeroed };
    if why.raw_os_error() != Some(libc::EEXIST) {
        return zeroed;
    }
    let rest = at.start + done..at.end;
    copy(uffd, &rest, &zeros[*done..], false).map_err(|(more, why)| (done + more, why))
}

fn zero_unpoisoned(uffd: BorrowedFd<'_>, at: &Range<usize>) -> Result<(), (usize, io::Error)> {
    repeat(at, |left| {
        let mut zero = Install { span: (&left).into(), mode: COPY_QUIETLY, done: 0 };
        // SAFETY: as in `copy`.
        let result = unsafe { call::<OP_ZEROPAGE, _>(uffd, &mut zero) };
        (result, zero.done)
    })
}

/// From now on a store to a page of the range that is there is a fault; or not any more, and then
/// threads that wait are woken. The kernel refuses that where the program has unmapped the memory,
/// or mapped something else there: then page by page, for what is left of it. Nothing relies on a
/// protection that was not looked up.
pub(super) fn protect(uffd: BorrowedFd<'_>, at: &Range<usize>, on: bool) {
    if protect_all(uffd, at, on).is_err() && at.len() > PAGE_BYTES {
        for page in at.clone().step_by(PAGE_BYTES) {
            let _ = protect_all(uffd, &(page..page + PAGE_BYTES), on);
        }
    }
}

/// As [`protect`], up to the first page that the kernel refuses.
fn protect_all(
    uffd: BorrowedFd<'_>,
    at: &Range<usize>,
    on: bool,
) -> Result<(), (usize, io::Error)> {
    repeat(at, |left| {
        let mode = if on { PROTECT_ON } else { 0 };
        let mut protect = Protect { span: (&left).into(), mode };
        // SAFETY: it changes which accesses to pages of an area are faults.
        let result = unsafe { call::<OP_PROTECT, _>(uffd, &mut protect) };
        (result, if result.is_ok() { left.len().cast_signed() as i64 } else { 0 })
    })
}

/// Takes pages out of memory; the next access is a fault.
/// Error: the kernel keeps some of them, as the program has sealed them (mseal(2)), or mapped
/// something else there.
pub(super) fn give_back_pages(at: &Range<usize>) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(at.start);
    // SAFETY: pages of an area, whose bytes are elsewhere, or wanted by nobody.
    match unsafe { give_back(start, at.len()) } {
        // What the program has unmapped is not in memory.
        Ok(()) | Err(Errno::NOMEM) => Ok(()),
        Err(why) => Err(why.into()),
    }
}
