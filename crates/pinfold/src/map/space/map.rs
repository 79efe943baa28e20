//! `Map`: a range of a file in memory; mapping, unmapping, and changing it.
//!
//! Belongs here: the address space of a map, and the order in which it, the record and the index
//! change. Not here: what an access does (`fault.rs`).
//!
//! # Address space
//!
//! A map has whole granules of 2 MiB. Its pages come first, as a shared mapping of the file's
//! mirror that is registered with the userfaultfd; what is left is reserved, and accesses to it
//! fail. All of it is `MADV_DONTFORK`: a child has no userfaultfd, so the kernel would put a page
//! of zeros into the mirror for it.
//!
//! For the same reason no page of a mirror is ever accessible while it is not registered: it is
//! mapped without access, registered, and made accessible last. It is not unregistered at the end,
//! but unmapped; then whoever still waits for one of its pages is woken. A range that moves is
//! mapped anew, as mremap(2) would lose the registration.
//!
//! No map reaches beyond the end of its mirror, which never becomes shorter. For an access there
//! the kernel asks nobody, and sends SIGBUS. Where handler threads serve, that is taken for a
//! poisoned page, even if the file has it.
//!
//! # Order of steps
//!
//! Under the space's lock and the record's, both for writing:
//! - mapping: the pages are mapped and registered; the record is filled; the index leads to it; the
//!   pages become accessible;
//! - unmapping: the index does not lead there any more; the range is unmapped; the record is empty.
//!   It is given back after that.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, slice};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::held::HeldBytes;
use super::reservation::Reservation;
use super::target::{INDEX, MapTarget, RECORDS, SpaceCore, no_record, not_indexed};
use super::vma::{Mapped, Vma, begin, end};
use crate::access::many;
use crate::base::mutant::{self, Mutant};
use crate::cache::Cache;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, RangeCause, Result};
use crate::file::File;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT, give_back};
use crate::map::{bring, lend};
use crate::mapped::mirror::{MayMap, Mirror, Showings, prepare};
use crate::mapped::task::{Waiter, now};
use crate::mapped::uffd::Uffd;
use crate::source::Hint;

/// A range of a file in memory, for reading. Made by [`Space::map_file`](super::Space::map_file).
///
/// Dropping it unmaps the range. Offsets of its calls count from the start of the map.
///
/// # What may be done with the pointer
///
/// The memory can be read from any thread, as long as the map is there. An access to a page that is
/// not cached waits for a read, and gets SIGBUS if that fails ([`Space`](super::Space), "A page
/// that cannot be read"); past the end of the map it is SIGBUS or SIGSEGV. Bytes past the end of
/// the file in its last page have no meaning.
///
/// The bytes are those of the cache: a page stays as it was read until it is evicted or
/// invalidated; the next access reads it again. So if somebody changes the file, two reads of one
/// address may differ.
///
/// As long as a guard of a page in a map lives, the page stays in the map, with the bytes that the
/// guard has, also after [`File::invalidate`](crate::File::invalidate). So it does while another
/// thread is just reading the page.
pub struct Map {
    target: Arc<MapTarget>,
    vma: &'static Vma<Arc<MapTarget>>,
    number: u32,
    reservation: Reservation,
    /// Of the file.
    range: Range<u64>,
    readable: AtomicBool,
    /// The right to map the file's mirror. Dropped last.
    _right: MayMap,
}

// As for `Cache`.
impl UnwindSafe for Map {}
impl RefUnwindSafe for Map {}

impl std::fmt::Debug for Map {
    /// One line: the file, the range, and where it is.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map")
            .field("path", &self.target.file.handle().mapping.path)
            .field("range", &self.range)
            .field("at", &self.as_ptr())
            .finish_non_exhaustive()
    }
}

impl Map {
    pub(super) fn new(space: &Arc<SpaceCore>, file: &File, range: Range<u64>) -> Result<Self> {
        check_own(&space.cache, file)?;
        check(file, &range)?;
        let refused = |cause| refused(file, &range, cause);
        let mirror = lend::reaching(file.handle(), range.end)?;
        let path = || file.handle().mapping.path.clone();
        let served = || Cause::MappedOrServed { path: path(), what: "map" };
        let may_map = mirror.map().ok_or_else(served)?;
        let target = Arc::new(MapTarget::new(file.clone(), None, space.clone()));
        let reservation = Reservation::new(bytes(&range)).map_err(refused)?;
        let pages = reservation.pages(&range);
        // SAFETY: reserved by this call, and given to nobody.
        unsafe { install(&space.uffd, &pages, mirror.fd(), range.start) }.map_err(refused)?;
        let claimed = RECORDS.claim().ok_or_else(no_record);
        let (number, vma) = claimed.map_err(refused)?;
        let mapped = Mapped {
            addresses: pages.clone(),
            first_page: range.start >> PAGE_SHIFT,
            target: target.clone(),
        };
        let readable = AtomicBool::new(true);
        let (first_page, range) = (range.start >> PAGE_SHIFT, range.clone());
        let map = Map { target, vma, number, reservation, range, readable, _right: may_map };
        // Ended by the drop.
        map.shown().begin(&pages, first_page);
        let layout = map.target.space.layout();
        let published = begin(vma, &space.shared.counters.map_writers, mapped, || {
            // The whole reservation, so that growing within it does not change the index.
            INDEX.set(&map.reservation.addresses(), Some(number))
        });
        drop(layout);
        if !published {
            // The drop of `map` undoes all of it.
            return Err(refused(not_indexed()));
        }
        allow(&pages, true).map_err(refused)?;
        Ok(map)
    }

    /// The first byte of the map. Valid for reads of [`len`](Self::len) bytes as long as the map is
    /// there; see [`Map`] for what an access may do.
    pub fn as_ptr(&self) -> *const u8 {
        self.reservation.start
    }

    /// The length in bytes; no map is empty.
    #[allow(clippy::len_without_is_empty, reason = "none is")]
    pub fn len(&self) -> usize {
        bytes(&self.range)
    }

    /// The bytes of the file that it maps. Feature `testing`.
    #[cfg(feature = "testing")]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Copies bytes from `offset` of the map on to `buf`, as [`File::read_at`] does. Feature
    /// `testing`.
    ///
    /// # Errors
    /// As [`File::read_at`].
    #[cfg(feature = "testing")]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let left = (self.len() as u64).saturating_sub(offset);
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        if bytes == 0 {
            return Ok(0);
        }
        self.target.file.read_at(&mut buf[..bytes], self.range.start + offset)
    }

    /// The error of the last access to the map that failed. `None` if none has failed, and in a
    /// forked child. Feature `testing`: [`Space::last_failure`](super::Space::last_failure) has
    /// that of the last access to any map.
    #[cfg(feature = "testing")]
    pub fn last_failure(&self) -> Option<crate::Error> {
        self.target.last_failure()
    }

    /// All of it as a slice.
    ///
    /// # Safety
    /// As long as the slice is used,
    /// - the bytes of the file in this range do not change, nor does the file become shorter: the
    ///   slice promises that bytes stay as they are, and an evicted page is read again;
    /// - the thread may call the cache wherever it uses the slice ([`Space`](super::Space), "Who
    ///   serves a fault").
    ///
    /// That a read of the source fails breaks no promise: the access gets SIGBUS, and does not go
    /// on.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped as long as `self` is; the caller promises the rest.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Says how the bytes `range` of the map will be used. `Sequential` and `Random` concern the
    /// whole map, until the next of the two. `WillNeed` brings the pages of the range that the file
    /// has, at most a quarter of the budget, and waits for them. `DontNeed` takes the pages out of
    /// the map's page table, and ends the poison of those that could not be read; they stay cached,
    /// and the next access maps them again. Other maps keep them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the range is reversed, or ends beyond the map;
    /// [`ErrorKind::Forked`]; for `WillNeed` as [`File::read_at`], of the first page that fails;
    /// for `DontNeed` [`ErrorKind::System`] if the system refuses.
    pub fn advise(&self, range: Range<usize>, hint: Hint) -> Result<()> {
        let handle = self.target.file.handle();
        handle.core.check_owner()?;
        self.check("advise on", &range)?;
        match hint {
            Hint::Sequential | Hint::Random => handle.stream.advise(hint),
            Hint::WillNeed => self.bring(&range)?,
            Hint::DontNeed => {
                if !range.is_empty() {
                    self.zap(&range)?;
                }
            }
        }
        Ok(())
    }

    /// Takes a range that is not empty out of the page table, and ends poison.
    fn zap(&self, range: &Range<usize>) -> Result<()> {
        let start = range.start / PAGE_BYTES * PAGE_BYTES;
        let bytes = range.end.next_multiple_of(PAGE_BYTES) - start;
        let at = self.reservation.start.wrapping_add(start);
        // SAFETY: pages of a shared mapping, which the mirror keeps.
        let zapped = unsafe { give_back(at, bytes) };
        zapped.map_err(|cause| refused(&self.target.file, &self.range, cause.into()))
    }

    /// # Errors
    /// [`ErrorKind::Invalid`] if the range is not in the map.
    fn check(&self, what: &'static str, range: &Range<usize>) -> Result<()> {
        self.target.check(what, range, self.len())
    }

    /// Brings the pages of `range`, and keeps them in memory, at their address, as long as what it
    /// returns is there: for system calls that get an address in the map, such as write(2), for
    /// direct I/O, and for rings. None of them meets an absent page there, whoever serves the
    /// faults of the space, and whatever rights the process has. What it returns is the bytes as a
    /// slice, which never change.
    ///
    /// Maps and own memory of a cache together can have a quarter of its budget held, in whole
    /// folios: so hold, write and drop piece by piece what is longer than a part of that. As
    /// long as a page is held, a [pin](File::pin) of it fails, and after
    /// [`File::invalidate`](crate::File::invalidate) the map goes on to show the bytes that are
    /// held.
    ///
    /// ```
    /// # use pinfold::{Cache, Options, Space, source::Memory};
    /// # use std::io::Write;
    /// # let cache = Cache::new(Options::new(8 << 20))?;
    /// # let file = cache.attach("table", std::sync::Arc::new(Memory::new(vec![7; 100_000])))?;
    /// # let mut to = tempfile::tempfile().unwrap();
    /// let space = Space::new(&cache, 0)?;
    /// let map = space.map_file(&file, 0..file.len())?;
    /// for start in (0..map.len()).step_by(1 << 16) {
    ///     to.write_all(&map.hold(start..map.len().min(start + (1 << 16)))?).unwrap();
    /// }
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    ///
    /// Cost: for each folio an atomic addition and a subtraction, and what a miss costs if it is
    /// absent.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] if more than a quarter of the budget would be held;
    /// [`ErrorKind::Invalid`] as for [`advise`](Self::advise); [`ErrorKind::Busy`] if somebody uses
    /// an older version of a page for 2 seconds; [`ErrorKind::Forked`]; as [`File::get`].
    pub fn hold(&self, range: Range<usize>) -> Result<HeldBytes<'_>> {
        let handle = self.target.file.handle();
        handle.core.check_owner()?;
        self.check("hold", &range)?;
        let (body, _) = self.vma.read();
        if !self.is_readable() {
            let cause = rustix::io::Errno::ACCESS.into();
            return Err(refused(&self.target.file, &self.range, cause));
        }
        let hold = self.target.holds.begin();
        drop(body);
        let place = (self.as_ptr(), self.range.start);
        // SAFETY: `self` is borrowed as long as `hold`, so it stays where it is; `protect` asks
        // `holds`.
        unsafe { HeldBytes::new(handle, hold, place, range.clone(), || self.zap(&range)) }
    }

    /// Brings what is absent of a range that is in the map.
    fn bring(&self, range: &Range<usize>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let handle = self.target.file.handle();
        let share = u64::from(handle.core.frames.frames() / 4);
        let first = (self.range.start + range.start as u64) >> PAGE_SHIFT;
        let end = (self.range.start + range.end as u64).div_ceil(PAGE_BYTES as u64);
        let pages = first..end.min(first + share);
        many::will_need(handle, pages.clone());
        for page in pages {
            // As in `File::read_at`, the end is no error, if the file has become shorter. It may do
            // so in the middle of this.
            let put = || now(bring::put(handle, page, Waiter::Thread)).map(drop);
            let done = handle.check_page(page).and_then(|()| put());
            match done {
                Err(error) if matches!(error.cause(), Cause::BeyondEnd { .. }) => break,
                done => done?,
            }
        }
        Ok(())
    }

    /// Maps another range of the same file instead: longer, shorter, or elsewhere. The map keeps
    /// its address if the new range begins at the same byte and fits into the map's address space
    /// (whole pieces of 2 MiB). Otherwise it gets a new address, so pointers and slices must be
    /// made anew.
    ///
    /// After an error the map is as before.
    ///
    /// # Errors
    /// As [`Space::map_file`](super::Space::map_file).
    pub fn remap(&mut self, range: Range<u64>) -> Result<()> {
        let file = &self.target.file;
        file.handle().core.check_owner()?;
        check(file, &range)?;
        lend::reaching(file.handle(), range.end)?;
        let fits = bytes(&range).next_multiple_of(PAGE_BYTES) <= self.reservation.bytes;
        let changed = if range.start == self.range.start && fits {
            self.resize(&range)
        } else {
            self.relocate(&range)
        };
        changed.map_err(|cause| refused(&self.target.file, &range, cause))?;
        self.range = range;
        Ok(())
    }

    /// Changes the end of the map, within what it has reserved. The mirror reaches to the new one.
    fn resize(&self, range: &Range<u64>) -> io::Result<()> {
        let (old, new) = (self.reservation.pages(&self.range), self.reservation.pages(range));
        let _layout = self.target.space.layout();
        let uffd = &self.target.space.uffd;
        self.change(|slot| {
            if new.end > old.end {
                let more = old.end..new.end;
                let offset = self.range.start + (old.end - old.start) as u64;
                // SAFETY: reserved by this map, and not in use.
                let installed = unsafe { install(uffd, &more, self.mirror().fd(), offset) };
                let allowed = installed.and_then(|()| allow(&more, self.is_readable()));
                if let Err(cause) = allowed {
                    // SAFETY: as above: nobody was told of these addresses.
                    let _ = unsafe { reserve_again(&more) };
                    return Err(cause);
                }
                self.shown().begin(&more, offset >> PAGE_SHIFT);
            } else if new.end < old.end {
                let less = new.end..old.end;
                self.shown().end(&less);
                // SAFETY: the caller has the map alone, and so no slice of it.
                if let Err(cause) = unsafe { reserve_again(&less) } {
                    let kept = (less.start - old.start) >> PAGE_SHIFT;
                    self.shown().begin(&less, (self.range.start >> PAGE_SHIFT) + kept as u64);
                    return Err(cause);
                }
                uffd.wake(less.start, less.len());
            }
            if let Some(mapped) = slot {
                mapped.addresses = new;
            }
            Ok(())
        })
    }

    /// Maps a range at a new address, and unmaps the old one. The mirror reaches to its end.
    fn relocate(&mut self, range: &Range<u64>) -> io::Result<()> {
        let reservation = Reservation::new(bytes(range))?;
        let pages = reservation.pages(range);
        let uffd = &self.target.space.uffd;
        // SAFETY: reserved by this call, and given to nobody.
        unsafe { install(uffd, &pages, self.mirror().fd(), range.start) }?;
        let layout = self.target.space.layout();
        let old = self.change(|slot| {
            if !INDEX.set(&reservation.addresses(), Some(self.number)) {
                return Err(not_indexed());
            }
            if let Err(cause) = allow(&pages, self.is_readable()) {
                INDEX.set(&reservation.addresses(), None);
                return Err(cause);
            }
            if let Some(mapped) = slot {
                mapped.addresses = pages.clone();
                mapped.first_page = range.start >> PAGE_SHIFT;
            }
            INDEX.set(&self.reservation.addresses(), None);
            Ok(())
        });
        drop(layout);
        old?;
        let old = std::mem::replace(&mut self.reservation, reservation);
        let addresses = old.addresses();
        self.shown().begin(&pages, range.start >> PAGE_SHIFT);
        self.shown().end(&addresses);
        drop(old);
        self.target.space.uffd.wake(addresses.start, addresses.len());
        Ok(())
    }

    /// Whether the memory can be read. If not, an access gets SIGSEGV. Nothing is evicted or read
    /// for it.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system refuses, or (`EBUSY`) if something of the map is held
    /// ([`hold`](Self::hold)) that could not be read then; [`ErrorKind::Forked`].
    #[cfg(feature = "testing")]
    pub fn protect(&self, readable: bool) -> Result<()> {
        let file = &self.target.file;
        file.handle().core.check_owner()?;
        let pages = self.reservation.pages(&self.range);
        let allowed = self.change(|_| {
            if !readable && self.target.holds.are_there() {
                return Err(rustix::io::Errno::BUSY.into());
            }
            allow(&pages, readable)?;
            self.readable.store(readable, Ordering::Relaxed); // under the lock
            Ok(())
        });
        allowed.map_err(|cause| refused(file, &self.range, cause))
    }

    /// Changes the record, while no fault reads it.
    fn change<R>(&self, change: impl FnOnce(&mut Option<Mapped<Arc<MapTarget>>>) -> R) -> R {
        self.vma.change(&self.target.space.shared.counters.map_writers, change)
    }

    /// Where the file's mirror is shown.
    fn shown(&self) -> &Showings {
        &self.mirror().shown
    }

    fn mirror(&self) -> &Mirror {
        self.target.file.handle().mapping.mirror_of_folios()
    }

    fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Relaxed) // under the lock
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if !self.target.file.handle().core.owner.is_here() {
            // A child does not have the range, and may have something else there.
            self.reservation.bytes = 0;
            return;
        }
        let layout = self.target.space.layout();
        if !mutant::on(Mutant::UnmapsUnsaid) {
            self.shown().end(&self.reservation.addresses());
        }
        let waits = &self.target.space.shared.counters.map_writers;
        let clear = |_: &Mapped<_>| {
            let addresses = self.reservation.addresses();
            INDEX.set(&addresses, None);
            self.reservation.unmap();
            self.target.space.uffd.wake(addresses.start, addresses.len());
        };
        let mapped = end(self.vma, waits, clear, || RECORDS.release(self.number));
        drop(layout);
        if mapped.is_some() {
            self.reservation.bytes = 0; // unmapped above
        }
    }
}

/// How many bytes a checked range has.
fn bytes(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(usize::MAX)
}

/// Maps pages of a mirror from `offset` on, without access, and registers them.
///
/// # Safety
/// The addresses are reserved by the caller, and not in use.
unsafe fn install(
    uffd: &Uffd,
    pages: &Range<usize>,
    mirror: BorrowedFd<'_>,
    offset: u64,
) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut::<u8>(pages.start);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    let access = ProtFlags::empty();
    // SAFETY: the caller's addresses.
    unsafe { rustix::mm::mmap(at.cast(), pages.len(), access, flags, mirror, offset) }?;
    // SAFETY: as above; mapped from a mirror just now.
    unsafe { prepare(at, pages.len(), uffd) }
}

/// Makes pages accessible, or not.
fn allow(pages: &Range<usize>, readable: bool) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut(pages.start);
    let access = if readable { MprotectFlags::READ } else { MprotectFlags::empty() };
    // SAFETY: pages of a map; who has slices has promised not to make it unreadable.
    Ok(unsafe { rustix::mm::mprotect(at, pages.len(), access) }?)
}

/// Makes addresses what they were when they were reserved.
///
/// # Safety
/// They are the caller's, and nobody uses them any more.
unsafe fn reserve_again(pages: &Range<usize>) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut(pages.start);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller's addresses.
    unsafe { rustix::mm::mmap_anonymous(at, pages.len(), ProtFlags::empty(), flags) }?;
    Ok(())
}

/// # Errors
/// [`ErrorKind::Invalid`] if the file is of another cache than the space's.
pub(super) fn check_own(cache: &Cache, file: &File) -> Result<()> {
    let core = &file.handle().core;
    core.check_owner()?;
    if !Arc::ptr_eq(core, cache.core()) {
        let path = file.handle().mapping.path.clone();
        return Err(Cause::Foreign { what: "map", whose: "space", path }.into());
    }
    Ok(())
}

/// # Errors
/// [`ErrorKind::Invalid`] if the range of the file cannot be mapped.
pub(super) fn check(file: &File, range: &Range<u64>) -> Result<()> {
    let len_bytes = file.len();
    let cause = if range.start > range.end {
        RangeCause::Reversed
    } else if range.is_empty() {
        RangeCause::Empty
    } else if !range.start.is_multiple_of(PAGE_BYTES as u64) {
        RangeCause::Unaligned
    } else if range.end > len_bytes {
        RangeCause::BeyondEnd { len_bytes }
    } else {
        return Ok(());
    };
    Err(wrong_range("map", file, range, cause))
}

fn wrong_range(
    what: &'static str,
    file: &File,
    range: &Range<u64>,
    cause: RangeCause,
) -> crate::error::Error {
    let path = file.handle().mapping.path.clone();
    Cause::WrongRange { what, path, start: range.start, end: range.end, cause }.into()
}

fn refused(file: &File, range: &Range<u64>, cause: io::Error) -> crate::error::Error {
    let path = file.handle().mapping.path.clone();
    let (start, end, cause) = (range.start, range.end, Arc::new(cause));
    Cause::Map { what: "map", path, start, end, cause }.into()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
