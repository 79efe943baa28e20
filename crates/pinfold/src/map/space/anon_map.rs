//! `AnonMap`: own memory, as a program sees it.

use std::ops::Range;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::{io, slice};

use super::anon::{Area, CopyPart, HeldRange, Origin, pages_of};
use super::target::{MapRecord, MapTarget, SpaceCore};
use super::vma::{FaultAccess, Mapped};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, RangeCause, Result};
use crate::file::File;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::mapped::swap::pages::{OwnMemory, PageStates};
use crate::mapped::task::{Waiter, now};
use crate::pages::freeze;
use crate::source::Hint;

/// Memory of the program's own under the cache's budget: anonymous memory
/// ([`Space::map_anon`](crate::Space::map_anon)), or a private view of a file
/// ([`Space::map_private`](crate::Space::map_private)).
///
/// It can be read and stored to by plain pointers, from any thread. Dropping it unmaps it. Offsets
/// of its calls count from its start.
///
/// # Where the bytes are
///
/// A page takes memory of the budget once it is touched, like a cached page of a file, and the
/// cache evicts whichever is used least. What was stored to since it was last written goes to the
/// swap ([`Options::swap_bytes`](crate::Options::swap_bytes)) before it leaves memory, unless it is
/// all zeros. The next access brings it back, with pages that follow, if they lie together in the
/// swap and the pages before were touched, too.
///
/// Without a swap, or when it is full, what was stored to stays in memory. When nothing else can
/// leave the budget, an access to a further page fails with [`ErrorKind::NoMemory`] after 2
/// seconds in which no other access got memory for maps, or after 30 while reads are under way. It
/// fails after 30 seconds in any case.
///
/// # An access that fails
///
/// The access gets SIGBUS, as with mmap(2), and [`last_failure`](crate::Space::last_failure) says
/// why: the page could not be read from the swap (or from the file of a private view), or there is
/// no memory for it. The page's bytes stay where they are, and the next access tries again. Where
/// handler threads serve, the page is *poisoned*: each access to it fails, until
/// [`read_at`](Self::read_at), [`write_at`](Self::write_at), [`hold`](Self::hold), or
/// [`advise`](Self::advise) with [`Hint::WillNeed`] has brought it, which return errors.
///
/// # What must not be done with the memory
///
/// - The program must not unmap, remap or advise it by system calls of its own. What was stored to a
///   page since it was last written to the swap is lost if the page is taken out of memory so (by
///   `MADV_DONTNEED`, for example): then each access fails, and
///   [`last_failure`](crate::Space::last_failure) says so, until [`discard`](Self::discard). What the
///   swap has comes back. Advice that takes nothing away (`MADV_COLD`, `MADV_PAGEOUT`) is harmless,
///   and so are KSM and mprotect(2), which [`read_at`](Self::read_at) and
///   [`write_at`](Self::write_at) do not heed.
/// - What [`Space`](crate::Space) says of accesses ("Who serves a fault") holds for stores, too:
///   where the thread that faults serves itself, a system call that stores to the memory (such as
///   read(2) into it) fails with `EFAULT` if a page is absent, or was written to the swap and not
///   stored to since. [`hold`](Self::hold) prevents that, too.
/// - Devices, direct I/O and other processes (`process_vm_writev`, `ptrace`, `/proc/PID/mem`) may
///   store only to what is held ([`hold`](Self::hold)). Such stores pass the page table by, so a
///   page-out does not see them, and elsewhere **the bytes are lost without an error**.
/// - A child of fork(2) does not have it.
pub struct AnonMap {
    target: Arc<MapTarget>,
    area: Arc<Area>,
    record: MapRecord,
}

// As for `Cache`.
impl UnwindSafe for AnonMap {}
impl RefUnwindSafe for AnonMap {}

impl std::fmt::Debug for AnonMap {
    /// One line: what it is, and where.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnonMap")
            .field("name", &self.target.file.handle().mapping.path)
            .field("len", &self.len())
            .field("at", &self.as_mut_ptr())
            .finish_non_exhaustive()
    }
}

impl AnonMap {
    pub(super) fn anonymous(space: &Arc<SpaceCore>, len: usize) -> Result<Self> {
        AnonMap::new(space, "anonymous memory", len, Origin::Zeros)
    }

    /// A private view of a checked range of a file.
    pub(super) fn private(space: &Arc<SpaceCore>, file: &File, range: &Range<u64>) -> Result<Self> {
        let name = format!("private view of {}", file.handle().mapping.path.display());
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        AnonMap::new(space, &name, len, Origin::File(file.clone(), range.start))
    }

    fn new(space: &Arc<SpaceCore>, name: &str, len: usize, origin: Origin) -> Result<Self> {
        let core = space.cache.core();
        core.check_owner()?;
        let refused = |cause: io::Error| {
            let (what, path, end, cause) = ("map", name.into(), len as u64, Arc::new(cause));
            crate::error::Error::from(Cause::Map { what, path, start: 0, end, cause })
        };
        if len == 0 {
            let (what, path, cause) = ("map", name.into(), RangeCause::Empty);
            return Err(Cause::WrongRange { what, path, start: 0, end: 0, cause }.into());
        }
        let too_large = || refused(io::Error::other("no process has so many addresses"));
        let whole = len.checked_next_multiple_of(PAGE_BYTES).ok_or_else(too_large)?;
        if isize::try_from(whole).is_err() {
            return Err(too_large());
        }
        let file = space.cache.own_memory(name, whole as u64)?;
        let weak = Arc::downgrade(&file.handle().core);
        let proc = space.proc().map_err(refused)?;
        let area = Area::new((&space.uffd, proc), weak, origin, len).map_err(refused)?;
        let area = Arc::new(area);
        let memory: Arc<dyn OwnMemory> = area.clone();
        let no_memory = |_| refused(io::Error::from_raw_os_error(libc::ENOMEM));
        let states = PageStates::new(area.pages()).map_err(no_memory)?;
        file.handle().mapping.make_own(states, memory);
        let target = Arc::new(MapTarget::new(file, Some(area.clone()), space.clone()));
        let addresses = area.addresses(&(0..area.pages()));
        let mapped = Mapped { addresses, first_page: 0, target: target.clone() };
        let reserved = area.reservation.addresses();
        let record = MapRecord::begin(space, mapped, &reserved).map_err(refused)?;
        Ok(AnonMap { target, area, record })
    }

    /// The first byte. Valid for reads and stores of [`len`](Self::len) bytes as long as the map is
    /// there; see [`AnonMap`] for what an access may do.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.area.reservation.start
    }

    /// The length in bytes; no map is empty.
    #[allow(clippy::len_without_is_empty, reason = "none is")]
    pub fn len(&self) -> usize {
        self.area.bytes
    }

    /// The error of the last access to the memory that failed. `None` if none has failed, and in a
    /// forked child. Feature `testing`: [`Space::last_failure`](crate::Space::last_failure) has
    /// that of the last access to any map.
    #[cfg(feature = "testing")]
    pub fn last_failure(&self) -> Option<crate::Error> {
        self.target.last_failure()
    }

    /// All of it as a slice that can be stored to.
    ///
    /// # Safety
    /// As long as the slice is used,
    /// - nobody else has a slice of the memory, reads it or stores to it, and nobody calls
    ///   [`write_at`](Self::write_at) or [`discard`](Self::discard); who only reads by this slice
    ///   may share it;
    /// - the memory stays readable and writable (mprotect(2));
    /// - the thread may call the cache wherever it uses the slice ([`Space`](crate::Space), "Who
    ///   serves a fault").
    #[allow(clippy::mut_from_ref, reason = "the caller promises that it has the memory alone")]
    pub unsafe fn as_mut_slice(&self) -> &mut [u8] {
        // SAFETY: mapped as long as `self` is; the caller promises the rest.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr(), self.len()) }
    }

    /// Copies bytes from `offset` on to `buf`, with errors instead of signals. Returns how many:
    /// `buf.len()`, or fewer at the end. What other threads store meanwhile may be there in part.
    ///
    /// # Errors
    /// [`ErrorKind::Read`], [`ErrorKind::NoMemory`], [`ErrorKind::System`] if the system refuses
    /// something, [`ErrorKind::Forked`]; of a private view what reads of its file fail with.
    pub fn read_at(&self, buf: &mut [u8], offset: usize) -> Result<usize> {
        let end = offset.saturating_add(buf.len()).min(self.len());
        let mut copy = [0; PAGE_BYTES];
        each_page(offset..end, |page, part, at| {
            let copy = &mut copy[..part.len()];
            self.area.copy(self.target.file.handle(), page, CopyPart::Load(part.start, copy))?;
            // Without a lock, as its own memory may be a map's.
            buf[at..at + copy.len()].copy_from_slice(copy);
            Ok(())
        })
    }

    /// Copies `buf` to `offset` and what follows, with errors instead of signals. Returns how many
    /// bytes: `buf.len()`, or fewer at the end. Threads that read meanwhile may see a part.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at). What lies before the page that failed was stored.
    pub fn write_at(&self, buf: &[u8], offset: usize) -> Result<usize> {
        let end = offset.saturating_add(buf.len()).min(self.len());
        let mut copy = [0; PAGE_BYTES];
        each_page(offset..end, |page, part, at| {
            let copy = &mut copy[..part.len()];
            copy.copy_from_slice(&buf[at..at + part.len()]); // without a lock, as above
            self.area.copy(self.target.file.handle(), page, CopyPart::Store(part.start, copy))
        })
    }

    /// Brings the pages of `range`, and keeps them in memory, at their address, as long as what it
    /// returns is there: no page-out takes them or writes them. So devices may store to them, and
    /// system calls meet no fault there. Pages may be held more than once.
    ///
    /// All maps of a cache together can have a quarter of its budget held.
    /// [`discard`](Self::discard) takes held pages out of memory, too.
    ///
    /// ```
    /// # use pinfold::{Cache, Options, Space};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let cache = Cache::new(Options { swap_dir: dir.path().into(), swap_bytes: 64 << 20, ..Options::new(8 << 20) })?;
    /// # let space = Space::new(&cache, 0)?;
    /// let memory = space.map_anon(1 << 20)?;
    /// let held = memory.hold(0..8192)?;
    /// assert_eq!(memory.page_out(0..8192)?, 0);
    /// // SAFETY: nobody else uses the memory.
    /// let buffer = unsafe { &mut *held.as_mut_ptr() };
    /// std::io::Read::read_exact(&mut std::io::repeat(7), buffer).unwrap();
    /// drop(held);
    /// assert_eq!(memory.page_out(0..8192)?, 8192);
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    ///
    /// Cost: for each page that is there, a mutex, and a system call if it was written to the swap
    /// and not stored to since; for each other one what its fault would cost. 24 bytes for each
    /// page.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] if more than a quarter of the budget would be held;
    /// [`ErrorKind::Invalid`] as for [`advise`](Self::advise); as [`write_at`](Self::write_at).
    pub fn hold(&self, range: Range<usize>) -> Result<HeldRange<'_>> {
        self.check("hold", &range)?;
        HeldRange::new(&self.area, self.target.file.handle(), range)
    }

    /// Says how the bytes `range` will be used. [`Hint::Sequential`] and [`Hint::Random`] concern
    /// the whole map, until the next of the two: whether pages that follow are brought with a page.
    /// [`Hint::WillNeed`] brings the pages of the range, at most a quarter of the budget, and waits
    /// for them. [`Hint::DontNeed`] lets pages leave memory that need no write for it; their bytes
    /// stay ([`discard`](Self::discard) is what madvise(2) calls `MADV_DONTNEED`).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the range is reversed, or ends beyond the map;
    /// [`ErrorKind::Forked`]; for `WillNeed` as [`read_at`](Self::read_at).
    pub fn advise(&self, range: Range<usize>, hint: Hint) -> Result<()> {
        let handle = self.target.file.handle();
        self.check("advise on", &range)?;
        match hint {
            Hint::Sequential | Hint::Random => handle.stream.advise(hint),
            _ if range.is_empty() => {}
            Hint::WillNeed => {
                let pages = pages_of(&range);
                let share = u64::from(handle.core.frames.frames() / 4);
                for page in pages.start..pages.end.min(pages.start + share) {
                    if !self.area.look(handle, page, FaultAccess::Load)? {
                        now(self.area.bring(handle, page, FaultAccess::Load, Waiter::Thread))?;
                    }
                }
            }
            Hint::DontNeed => {
                freeze::drop_clean(&handle.core, &handle.mapping, pages_of(&range));
            }
        }
        Ok(())
    }

    /// Takes the pages of `range` out of memory now, as madvise(2) does for `MADV_PAGEOUT`. Those
    /// that were stored to are written to the swap first, and the call waits for that. Returns how
    /// many bytes have left memory.
    ///
    /// Some pages stay: those that are held ([`hold`](Self::hold)), that another thread brings or
    /// stores to meanwhile, for which there is no room in the swap, or whose write fails.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] as for [`advise`](Self::advise); [`ErrorKind::Forked`]. A write that
    /// fails is none: [`Cache::stats`](crate::Cache::stats) counts these, and what found
    /// no room.
    pub fn page_out(&self, range: Range<usize>) -> Result<usize> {
        self.check("page out", &range)?;
        if range.is_empty() {
            return Ok(0);
        }
        // As madvise(2) has the lock of the whole address space.
        let out = || Area::page_out(self.target.file.handle(), pages_of(&range));
        let gone = self.target.space.shared.compared.in_layout(out)?;
        Ok(gone as usize * PAGE_BYTES)
    }

    /// The bytes of the pages of `range` are not wanted any more: they are zeros from now on, or
    /// the file's again, and take neither memory nor swap. The range begins at a multiple of 4096,
    /// and ends at one, or with the map, unless it is empty. Waits for page-outs of these pages
    /// that are under way. For slices, it is a store.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`]; [`ErrorKind::Forked`]; [`ErrorKind::System`] if the program has sealed
    /// a page (mseal(2)), which the error names: what is sealed keeps its bytes, and the other
    /// pages are forgotten.
    pub fn discard(&self, range: Range<usize>) -> Result<()> {
        self.check("discard", &range)?;
        if range.is_empty() {
            return Ok(());
        }
        if !range.start.is_multiple_of(PAGE_BYTES) {
            return Err(self.target.wrong("discard", &range, RangeCause::Unaligned));
        }
        if range.end != self.len() && !range.end.is_multiple_of(PAGE_BYTES) {
            return Err(self.target.wrong("discard", &range, RangeCause::UnalignedEnd));
        }
        let pages = pages_of(&range);
        let forgotten = self.area.forget(self.target.file.handle(), pages.clone(), false);
        // Also the poison of those that could not be brought.
        if self.target.space.handlers.is_some() {
            self.area.unpoison(self.target.file.handle(), pages);
        }
        forgotten
    }

    fn check(&self, what: &'static str, range: &Range<usize>) -> Result<()> {
        self.target.file.handle().core.check_owner()?;
        self.target.check(what, range, self.len())
    }
}

impl Drop for AnonMap {
    fn drop(&mut self) {
        let handle = self.target.file.handle();
        if !handle.core.owner.is_here() {
            return;
        }
        // First: a page-out that is under way is waited for without a lock. No page gets in after
        // it.
        let forgotten = self.area.forget(handle, 0..self.area.pages(), true);
        debug_assert!(forgotten.is_ok(), "{forgotten:?}");
        // The addresses go with the area's last share.
        self.record.end(&self.target.space, &self.area.reservation.addresses(), || {});
    }
}

/// Calls `copy` for each page of `range`: with its number, the part of it that is in the range, and
/// how far that is from the start of the range. Returns the range's length.
fn each_page(
    range: Range<usize>,
    mut copy: impl FnMut(u64, Range<usize>, usize) -> Result<()>,
) -> Result<usize> {
    let mut at = range.start;
    // Ends: each turn gets on.
    while at < range.end {
        let part = at % PAGE_BYTES..PAGE_BYTES.min(at % PAGE_BYTES + range.end - at);
        copy((at >> PAGE_SHIFT) as u64, part.clone(), at - range.start)?;
        at += part.len();
    }
    Ok(range.end.saturating_sub(range.start))
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl AnonMap {
    pub(super) fn state(&self, page: u64) -> crate::mapped::swap::pages::PageState {
        let mut changing = self.target.file.handle().mapping.change();
        changing.own().expect("own memory has states").get(page)
    }

    pub(super) fn memory_and_number(
        &self,
    ) -> (Arc<dyn crate::mapped::swap::pages::OwnMemory>, u32) {
        let mapping = &self.target.file.handle().mapping;
        (mapping.own().expect("it is own memory").clone(), mapping.id)
    }

    /// What KSM does to a page that is protected: a store is no fault any more.
    pub(super) fn end_protection(&self, page: u64) {
        self.area.end_protection(page);
    }

    /// A store to a page that counts as stored to is a fault all the same.
    pub(super) fn begin_protection(&self, page: u64) {
        self.area.begin_protection(page);
    }
}
