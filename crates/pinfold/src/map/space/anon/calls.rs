//! The calls of the system that put pages into own memory, protect them, and take them out.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

use crate::frames::{PAGE_BYTES, give_back};
use crate::map::space::reservation::Reservation;
use crate::mapped::uffd::AGAIN_MAX;
use crate::mapped::uffd::abi::{
    COPY_PROTECTED, COPY_QUIETLY, Copy, Install, OP_COPY, OP_PROTECT, OP_REGISTER, OP_ZEROPAGE,
    PROTECT_ON, Protect, REGISTER_MISSING, REGISTER_PROTECTED, Register, Span,
};

fn span(at: &Range<usize>) -> Span {
    Span { start: at.start as u64, bytes: at.len() as u64 }
}

/// Makes reserved addresses private memory without access, which no child inherits, and registers
/// them: the kernel asks for what is missing, and for stores to what is protected.
///
/// # Safety
/// The addresses are reserved by the caller, and not in use.
pub(super) unsafe fn install(uffd: BorrowedFd<'_>, at: &Range<usize>) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(at.start);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller's addresses.
    unsafe { mmap_anonymous(start, at.len(), ProtFlags::empty(), flags) }?;
    // A huge page would have more pages than were brought.
    for advice in [Advice::LinuxDontFork, Advice::LinuxNoHugepage] {
        // SAFETY: as above.
        match unsafe { madvise(start, at.len(), advice) } {
            // A kernel without huge pages.
            Err(Errno::INVAL) if advice == Advice::LinuxNoHugepage => {}
            done => done?,
        }
    }
    let _ = merge_nothing(at); // asked again before a page leaves
    let mode = REGISTER_MISSING | REGISTER_PROTECTED;
    let mut register = Register { span: span(at), mode, ioctls: 0 };
    // SAFETY: the struct is the kernel's for this number.
    let register = unsafe { Updater::<OP_REGISTER, _>::new(&mut register) };
    // SAFETY: it changes nothing but how faults of the caller's addresses are served.
    Ok(unsafe { ioctl(uffd, register) }?)
}

/// What `look` finds at the address of a page that is protected, which is there only meanwhile.
///
/// # Errors
/// The system refuses it.
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

/// Puts copies of the bytes at `from` to absent pages. They are complete when they can be seen. Who
/// waits for one is not woken: that is done once the fault has let go of the page (`handlers.rs`),
/// so that a page-out right after the access does not find it in use.
///
/// # Errors
/// A page is there, or there is no memory: the pages before it have come.
pub(super) fn copy(
    uffd: BorrowedFd<'_>,
    to: &Range<usize>,
    from: &[u8],
    protected: bool,
) -> Result<(), (usize, io::Error)> {
    assert_eq!(to.len(), from.len(), "a copy has the length of its place");
    let mode = COPY_QUIETLY | if protected { COPY_PROTECTED } else { 0 };
    repeat(to, |left| {
        let at = left.start - to.start;
        let (to, from) = (left.start as u64, from[at..].as_ptr().expose_provenance() as u64);
        let mut copy = Copy { to, from, bytes: left.len() as u64, mode, done: 0 };
        // SAFETY: the struct is the kernel's for this number.
        let call = unsafe { Updater::<OP_COPY, _>::new(&mut copy) };
        // SAFETY: it fills pages of an area that are absent, which nobody has read.
        let result = unsafe { ioctl(uffd, call) };
        (result, copy.done)
    })
}

/// Makes absent pages pages of zeros, which take memory when they are stored to. One that is
/// poisoned becomes a copy of its part of `zeros`, as the kernel puts only copies in the place of
/// poison.
///
/// # Errors
/// As [`copy`].
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
        let mut zero = Install { span: span(&left), mode: COPY_QUIETLY, done: 0 };
        // SAFETY: the struct is the kernel's for this number.
        let call = unsafe { Updater::<OP_ZEROPAGE, _>::new(&mut zero) };
        // SAFETY: as in `copy`.
        let result = unsafe { ioctl(uffd, call) };
        (result, zero.done)
    })
}

/// Calls until all of the range is done. The error says how many bytes are.
fn repeat(
    range: &Range<usize>,
    mut call: impl FnMut(Range<usize>) -> (rustix::io::Result<()>, i64),
) -> Result<(), (usize, io::Error)> {
    let (mut at, mut again) = (range.start, 0);
    // Ends: each turn gets on, or is one of a bounded number.
    while at < range.end {
        let (result, done) = call(at..range.end);
        at += usize::try_from(done).unwrap_or(0);
        match result {
            Ok(()) => {}
            Err(Errno::AGAIN) if again < AGAIN_MAX => {
                again += 1;
                std::thread::yield_now();
            }
            Err(errno) => return Err((at - range.start, errno.into())),
        }
    }
    Ok(())
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
fn protect_all(uffd: BorrowedFd<'_>, at: &Range<usize>, on: bool) -> rustix::io::Result<()> {
    let mode = if on { PROTECT_ON } else { 0 };
    let mut again = 0;
    // Ends: as in `repeat`.
    loop {
        let mut protect = Protect { span: span(at), mode };
        // SAFETY: the struct is the kernel's for this number.
        let call = unsafe { Updater::<OP_PROTECT, _>::new(&mut protect) };
        // SAFETY: it changes which accesses to pages of an area are faults.
        match unsafe { ioctl(uffd, call) } {
            Err(Errno::AGAIN) if again < AGAIN_MAX => {
                again += 1;
                std::thread::yield_now();
            }
            done => return done,
        }
    }
}

/// Takes pages out of memory; the next access is a fault.
///
/// # Errors
/// The kernel keeps some of them, as the program has sealed them (mseal(2)), or mapped something
/// else there.
pub(super) fn give_back_pages(at: &Range<usize>) -> io::Result<()> {
    let start = std::ptr::with_exposed_provenance_mut(at.start);
    // SAFETY: pages of an area, whose bytes are elsewhere, or wanted by nobody.
    match unsafe { give_back(start, at.len()) } {
        // What the program has unmapped is not in memory.
        Ok(()) | Err(Errno::NOMEM) => Ok(()),
        Err(why) => Err(why.into()),
    }
}
