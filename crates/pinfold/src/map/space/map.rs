//! `Map`: a range of a file in memory. What an access does is `fault.rs`.
//!
//! # Address space
//!
//! A map has whole granules of 2 MiB. Its pages come first, as a shared mapping of the file's
//! mirror; what is left is reserved, and accesses to it fail. For a page that is not registered, the
//! kernel would put zeros into the mirror: so pages are mapped without access, registered, and made
//! accessible last, and they are never unregistered, but unmapped.
//!
//! No map reaches beyond the end of its mirror, which never becomes shorter: for an access there the
//! kernel asks nobody, and sends SIGBUS.
//!
//! # Order of steps
//!
//! - Mapping: the pages are mapped and registered; under the record's lock for writing, the record
//!   is filled and the index leads to it; the pages become accessible.
//! - Unmapping, under that lock: the index does not lead there any more; the range is unmapped; the
//!   record is empty. It is given back after that.

use std::ops::Range;
use std::os::fd::AsFd;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, slice};

use rustix::io::Errno;
use rustix::mm::MprotectFlags;

use super::held::HeldBytes;
use super::target::{MapRecord, MapTarget, SpaceCore};
use super::vma::Mapped;
use crate::access::many;
use crate::base::mutant::{self, Mutant};
use crate::cache::Cache;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, RangeCause, Result};
use crate::file::File;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT, give_back};
use crate::map::{bring, lend};
use crate::mapped::mirror::{MayMap, Showings};
use crate::mapped::reserved::Reservation;
use crate::mapped::task::{Waiter, now};
use crate::mapped::uffd::install;
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
/// The bytes are those of the cache: if somebody changes the file, two reads of one address may
/// differ, as a page may have been evicted or invalidated in between. As long as a guard of a page
/// lives, or a thread is just reading it, maps show the bytes that the guard has, also after
/// [`File::invalidate`](crate::File::invalidate).
pub struct Map {
    target: Arc<MapTarget>,
    record: MapRecord,
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
        let refused = |why: io::Error| file.handle().mapping.map_error("map", &range, why);
        let mirror = lend::reaching(file.handle(), range.end)?;
        let path = || file.handle().mapping.path.clone();
        let served = || Cause::MappedOrServed { path: path(), what: "map" };
        let may_map = mirror.map().ok_or_else(served)?;
        let target = Arc::new(MapTarget::new(file.clone(), None, space.clone()));
        let reservation = Reservation::new(bytes(&range)).map_err(refused)?;
        reservation.start.expose_provenance();
        let pages = reservation.pages(&range);
        // SAFETY: reserved by this call, and given to nobody.
        unsafe { install(space.uffd.as_fd(), &pages, Some((mirror.fd(), range.start))) }
            .map_err(refused)?;
        let (first_page, addresses) = (range.start >> PAGE_SHIFT, pages.clone());
        let mapped = Mapped { addresses, first_page, target: target.clone() };
        let record = MapRecord::begin(space, mapped, &reservation.addresses()).map_err(refused)?;
        let (readable, range) = (AtomicBool::new(true), range.clone());
        let map = Map { target, record, reservation, range, readable, _right: may_map };
        // Ended by the drop.
        map.shown().begin(&pages, first_page);
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
    /// - the bytes of the file in this range do not change, nor does the file become shorter: an
    ///   evicted page is read again;
    /// - the thread may call the cache wherever it uses the slice ([`Space`](super::Space), "Who
    ///   serves a fault").
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped as long as `self` is; the caller promises the rest.
        unsafe { slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Says how the bytes `range` of the map will be used. `Sequential` and `Random` concern the
    /// whole map, until the next of the two. `WillNeed` brings the pages of the range that the file
    /// has, at most a quarter of the budget, and waits for them. `DontNeed` takes the pages out of
    /// this map's page table, and ends the poison of those that could not be read; they stay
    /// cached.
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
            _ if range.is_empty() => {}
            Hint::WillNeed => self.bring(&range)?,
            Hint::DontNeed => self.zap(&range)?,
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
        zapped.map_err(|why| self.refused(why))
    }

    fn refused(&self, why: impl Into<io::Error>) -> crate::error::Error {
        self.target.file.handle().mapping.map_error("map", &self.range, why)
    }

    fn check(&self, what: &'static str, range: &Range<usize>) -> Result<()> {
        self.target.check(what, range, self.len())
    }

    /// Brings the pages of `range`, and keeps them in memory, at their address, as long as what it
    /// returns is there: for system calls that get an address in the map, such as write(2), for
    /// direct I/O, and for rings, none of which then meets an absent page. What it returns is the
    /// bytes as a slice, which never change.
    ///
    /// Maps and own memory of a cache together can have a quarter of its budget held, in whole
    /// folios: so hold, write and drop piece by piece what is long. A [pin](File::pin) of a held
    /// page fails, and after [`File::invalidate`](crate::File::invalidate) the map goes on to show
    /// the bytes that are held.
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
        let (body, _) = self.record.vma.read();
        if !self.is_readable() {
            return Err(self.refused(Errno::ACCESS));
        }
        let hold = self.target.holds.begin();
        drop(body);
        let place = (self.as_ptr(), self.range.start);
        // SAFETY: `self` is borrowed as long as `hold`, so it stays where it is; `protect` asks
        // `holds`.
        unsafe { HeldBytes::new(handle, hold, place, range.clone(), || self.zap(&range)) }
    }

    /// Brings what is absent of a range that is in the map, and not empty.
    fn bring(&self, range: &Range<usize>) -> Result<()> {
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

    /// Whether the memory can be read. If not, an access gets SIGSEGV. Nothing is evicted or read
    /// for it.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the system refuses, or (`EBUSY`) if something of the map is held
    /// ([`hold`](Self::hold)) that could not be read then; [`ErrorKind::Forked`].
    #[cfg(feature = "testing")]
    pub fn protect(&self, readable: bool) -> Result<()> {
        self.target.file.handle().core.check_owner()?;
        let pages = self.reservation.pages(&self.range);
        let allowed = self.record.vma.change(&self.target.space.shared.compared, |_| {
            if !readable && self.target.holds.are_there() {
                return Err(io::Error::from(Errno::BUSY));
            }
            allow(&pages, readable)?;
            self.readable.store(readable, Ordering::Relaxed); // under the lock
            Ok(())
        });
        allowed.map_err(|why| self.refused(why))
    }

    fn shown(&self) -> &Showings {
        &self.target.file.handle().mapping.mirror_of_folios().shown
    }

    fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Relaxed) // under the lock
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        if !self.target.file.handle().core.owner.is_here() {
            return;
        }
        if !mutant::on(Mutant::UnmapsUnsaid) {
            self.shown().end(self.reservation.start.addr());
        }
        let reservation = std::mem::replace(&mut self.reservation, Reservation::none());
        let addresses = reservation.addresses();
        self.record.end(&self.target.space, &addresses, || drop(reservation));
    }
}

fn bytes(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).unwrap_or(usize::MAX)
}

/// Makes pages accessible, or not.
fn allow(pages: &Range<usize>, readable: bool) -> io::Result<()> {
    let at = ptr::with_exposed_provenance_mut(pages.start);
    let access = if readable { MprotectFlags::READ } else { MprotectFlags::empty() };
    // SAFETY: pages of a map; who has slices has promised not to make it unreadable.
    Ok(unsafe { rustix::mm::mprotect(at, pages.len(), access) }?)
}

/// Error: [`ErrorKind::Invalid`] if the file is of another cache than the space's.
pub(super) fn check_own(cache: &Cache, file: &File) -> Result<()> {
    let core = &file.handle().core;
    core.check_owner()?;
    if !Arc::ptr_eq(core, cache.core()) {
        let path = file.handle().mapping.path.clone();
        return Err(Cause::Foreign { what: "map", whose: "space", path }.into());
    }
    Ok(())
}

/// Error: [`ErrorKind::Invalid`] if the range of the file cannot be mapped.
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
    let (path, start, end) = (file.handle().mapping.path.clone(), range.start, range.end);
    Err(Cause::WrongRange { what: "map", path, start, end, cause }.into())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
