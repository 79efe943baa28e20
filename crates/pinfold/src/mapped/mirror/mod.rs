//! A file's mirror: a memfd in which each page has its own offset in the file, so that it can be
//! mapped; and who owns which place of it. `map/lend.rs` decides what is put there, `map/pieces.rs`
//! and `pages/reclaim/evict.rs` when it goes. `view.rs` is the cache's own view of the memfd,
//! `shown.rs` has where maps show it, `samples.rs` how much of a folio they access.
//!
//! # Present means up to date
//!
//! In a mirror that this program alone has, a page is in the memfd exactly while it has the right
//! bytes: it gets there by `UFFDIO_COPY` with all of them, through the map that wants it or the
//! cache's own view. So the kernel may map whatever it finds, and the program serves faults on
//! absent pages alone. `docs/map.md` has what else was tried.
//!
//! # States of a place, the bytes of a folio's pages
//!
//! | state | the index has there | in the memfd | owner |
//! |---|---|---|---|
//! | free | no mirrored folio | nothing | none |
//! | claimed | a folio in the arena | nothing, then all of its bytes | the thread that lends ([`PlaceClaim`]) |
//! | lent | a mirrored folio | all of its bytes | the folio |
//! | leaving | anything | its last folio's bytes | the thread that evicted that ([`Leaving`]) |
//! | left over | anything | the bytes of a folio that left the file while it was used | that folio |
//!
//! | from | to | step | by |
//! |---|---|---|---|
//! | free | claimed | [`Mirror::claim`] | `lend.rs` |
//! | claimed | lent | bytes copied; the index gets the mirrored folio, under `change`; then the claim ends | `lend.rs` |
//! | claimed | free | hole punched; then the claim ends | a lender that finds the folio gone |
//! | lent | free | hole punched under the `change` mutex under which the folio leaves the index | migration to the arena |
//! | lent | leaving | under the `change` mutex under which the folio leaves the index | eviction |
//! | leaving | free | hole punched, without the mutex | eviction |
//! | lent | left over | under the `change` mutex | `freeze/drop.rs` |
//! | left over | free | hole punched when the last user gives the folio back | [`Leftovers::end`] |
//!
//! A folio gets into the index under that mutex, and a lender claims before it copies: so nobody
//! copies to a place that another folio owns, and no hole is punched under a later owner.
//!
//! Who drops what the file does not have any more waits until no place is claimed or leaving
//! ([`Mirror::settle`]): no access that comes later finds the bytes of either.

mod samples;
mod shown;
mod view;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, fallocate, fchmod, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::base::limits::check_file_end;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{Condvar, Mutex, between_steps};
use crate::error::{Cause, Error, Result};
use crate::frames::{FrameNumber, Order, PAGE_BYTES, PAGE_SHIFT};
use crate::mapped::reserved::{GRANULE_BYTES, Reservation};
use crate::mapped::uffd::{Uffd, copy};
use samples::{Sample, samples};
pub(crate) use shown::{Showings, Shown};
use view::MirrorView;

/// How often a copy takes pages that are not its own out of its place before it gives up.
const STRAYS_MAX: u32 = 16;

/// On how many condition variables threads sleep that wait for places.
const BEDS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 32 };

#[derive(Debug)]
pub(crate) struct Mirror {
    /// Of the file, for errors.
    path: PathBuf,
    fd: OwnedFd,
    uffd: Arc<Uffd>,
    view: MirrorView,
    bytes: Mutex<u64>,
    /// Places that are not the index's.
    owned: Mutex<Places>,
    /// When the owned place with number n becomes free, `freed[n % BEDS]` is notified.
    freed: [Condvar; BEDS],
    punching: Mutex<()>,
    /// Where maps have it; not the view.
    pub(crate) shown: Showings,
    /// Who sees the pages beside the cache: so many maps of the program, or [`CLIENTS`]. Other
    /// processes keep their descriptor for ever, and can make pages of zeros, which a map would
    /// show.
    // Not from `crate::base::sync`: no protocol of pages rests on it.
    seen_by: Arc<AtomicU32>,
}

const CLIENTS: u32 = u32::MAX;

/// What the system refuses where there are no addresses.
const RESERVE: &str = "reserve addresses";

/// The right to map a mirror in this process.
#[derive(Debug)]
pub(crate) struct MayMap(Arc<AtomicU32>);

#[derive(Debug, Default)]
struct Places {
    all: Vec<Owned>,
    count: u64,
}

#[derive(Debug)]
struct Owned {
    pages: Range<u64>,
    by: PlaceOwner,
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlaceOwner {
    /// A thread that lends or evicts, and is done soon.
    Step,
    /// A folio, as long as it is used.
    Folio,
}

/// The right to put bytes to a place, until it has its owner in the index, or is free.
#[derive(Debug)]
#[must_use = "dropped at once, it claims nothing"]
pub(crate) struct PlaceClaim<'a> {
    mirror: &'a Mirror,
    pages: Range<u64>,
}

impl Mirror {
    /// A mirror of a file of `len_bytes` bytes; all of it is free.
    /// Error: the system gives no memfd of that length, or no address space.
    pub(crate) fn new(path: &Path, len_bytes: u64, uffd: &Arc<Uffd>) -> Result<Self> {
        let bytes = len_bytes.next_multiple_of(PAGE_BYTES as u64);
        let fd = memfd_create(c"pinfold", MemfdFlags::CLOEXEC)
            // Who is given a descriptor for reading could open it anew for writing.
            .and_then(|fd| fchmod(&fd, Mode::RUSR).map(|()| fd))
            .map_err(|why| refused(path, "make a memory file", why))?;
        set_len(path, fd.as_fd(), bytes)?;
        let view = MirrorView::new(fd.as_fd(), bytes, uffd);
        Ok(Mirror {
            path: path.to_owned(),
            fd,
            uffd: uffd.clone(),
            view: view.map_err(|why| refused(path, RESERVE, why))?,
            bytes: Mutex::new(bytes),
            owned: Mutex::default(),
            freed: std::array::from_fn(|_| Condvar::new()),
            punching: Mutex::default(),
            shown: Showings::default(),
            seen_by: Arc::default(),
        })
    }

    /// The error that the system has refused something of it.
    pub(crate) fn refused(&self, what: &'static str, cause: impl Into<io::Error>) -> Error {
        refused(&self.path, what, cause)
    }

    /// The right to map it, for a map of the program. `None`: other processes may have it.
    pub(crate) fn map(&self) -> Option<MayMap> {
        let more = |maps: u32| maps.checked_add(1).filter(|&maps| maps != CLIENTS);
        // Relaxed, here and below: a number alone.
        let more = self.seen_by.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        more.is_ok().then(|| MayMap(self.seen_by.clone()))
    }

    /// Whether maps or other processes see it.
    pub(crate) fn is_seen(&self) -> bool {
        self.seen_by.load(Ordering::Relaxed) > 0
    }

    /// From now on other processes may have it. False: the program maps it.
    #[cfg(feature = "serve")]
    pub(crate) fn give_out(&self) -> bool {
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let before = self.seen_by.compare_exchange(0, CLIENTS, success, failure);
        before.is_ok() || before == Err(CLIENTS)
    }

    /// The memfd. To be mapped shared and read-only, and never where a child inherits it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes it at least so many bytes long, which are asked for under the lock.
    pub(crate) fn grow(&self, bytes: impl FnOnce() -> u64) -> Result<()> {
        let mut is = self.bytes.lock();
        let bytes = bytes().next_multiple_of(PAGE_BYTES as u64);
        if *is < bytes {
            set_len(&self.path, self.fd(), bytes)?;
            *is = bytes;
        }
        Ok(())
    }

    /// Sees to it that the cache's view has the folio that begins at `page`, which is to be lent.
    pub(crate) fn reach(&self, page: u64) -> Result<()> {
        let reached = self.view.reach(self.fd(), page << PAGE_SHIFT, &self.uffd);
        reached.map_err(|why| self.refused(RESERVE, why))
    }

    /// The address of a page, for who has a reference to the mirrored folio that has it, or a claim
    /// to its place.
    pub(crate) fn address(&self, page: u64) -> *mut u8 {
        self.view.address(page << PAGE_SHIFT)
    }

    /// Copies what the memfd has from byte `at` on, within a page: zeros where it has nothing.
    /// Makes no page there, and no fault.
    /// Panics: if the system cannot read its own memory.
    pub(crate) fn load(&self, at: u64, to: &mut [u8]) {
        // Of memory of a map, as `to` may be, the kernel would ask nobody.
        let mut copy = [0; PAGE_BYTES];
        let copy = &mut copy[..to.len()];
        let got = rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut *copy, at));
        assert_eq!(got, Ok(to.len()), "no bytes at {at} of a mirror");
        to.copy_from_slice(copy);
    }

    /// Claims the place of `pages`. `None`: some of it is claimed, leaving, or left over.
    pub(crate) fn claim(&self, pages: Range<u64>) -> Option<PlaceClaim<'_>> {
        let mut owned = self.owned.lock();
        if owned.has_any_of(&pages) && !mutant::on(Mutant::ClaimBlindly) {
            return None;
        }
        owned.add(pages.clone(), PlaceOwner::Step);
        Some(PlaceClaim { mirror: self, pages })
    }

    /// The places of folios that are evicted, in the order of the file, under the `change` mutex
    /// under which they leave the index. Two of them become one with the pages between, where
    /// `is_free` says so: to take out one place costs an interrupt, however long it is.
    pub(crate) fn leave(
        &self,
        mut places: Vec<Range<u64>>,
        mut is_free: impl FnMut(&Range<u64>) -> bool,
    ) -> Leaving<'_> {
        let mut owned = self.owned.lock();
        join(&mut places, |gap| {
            let others = owned.has_any_of(gap) || !is_free(gap);
            gap.is_empty() || !others || mutant::on(Mutant::JoinsOverOthers)
        });
        if !mutant::on(Mutant::LeavesUnowned) {
            for pages in &places {
                owned.add(pages.clone(), PlaceOwner::Step);
            }
        }
        Leaving { mirror: self, places }
    }

    /// Waits until none of the places of `pages` is claimed or leaving that is so now.
    pub(crate) fn settle(&self, pages: &Range<u64>) {
        let mut owned = self.owned.lock();
        let later = owned.count;
        let waits_for =
            |it: &Owned| it.by == PlaceOwner::Step && it.number < later && it.overlaps(pages);
        // Ends: each of these threads is done soon, and then notifies.
        while let Some(it) = owned.all.iter().find(|it| waits_for(it))
            && !mutant::on(Mutant::SettlesAtOnce)
        {
            owned = self.freed[it.bed()].wait(owned);
        }
    }

    pub(crate) fn is_unsettled(&self, pages: &Range<u64>) -> bool {
        self.owned.lock().all.iter().any(|it| it.by == PlaceOwner::Step && it.overlaps(pages))
    }

    /// Whether some of it is claimed, leaving, or left over.
    pub(crate) fn is_taken(&self, pages: &Range<u64>) -> bool {
        self.owned.lock().has_any_of(pages)
    }

    /// Whether maps show a page of a folio that has left the file, and that somebody uses.
    pub(crate) fn shows_left_over(&self, page: u64) -> bool {
        let owned = self.owned.lock();
        let is_of = |it: &Owned| it.by == PlaceOwner::Folio && it.pages.contains(&page);
        let at = page << PAGE_SHIFT;
        // The file may have ended before it, when the folio was read. Nobody uses the descriptor's
        // position.
        let has_it = || rustix::fs::seek(&self.fd, rustix::fs::SeekFrom::Data(at)) == Ok(at);
        owned.all.iter().any(is_of) && has_it() && !mutant::on(Mutant::LeftOverAwaited)
    }

    /// Sleeps until the place of `pages` is free, at most for `nap`.
    pub(crate) fn wait_for_place(&self, pages: &Range<u64>, nap: Duration) {
        let since = Instant::now();
        let mut owned = self.owned.lock();
        // Ends: when the time is up; in a model, where none passes, at once.
        while let Some(it) = owned.all.iter().find(|it| it.overlaps(pages))
            && let left = nap.saturating_sub(since.elapsed())
            && !left.is_zero()
        {
            owned = self.freed[it.bed()].wait_timeout(owned, left);
            if cfg!(any(loom, shuttle)) {
                return;
            }
        }
    }

    /// Takes the pages out of the memfd, and so out of every mapping of it.
    /// Panics: if the system refuses: the bytes would stay, outside of the budget.
    pub(crate) fn punch(&self, pages: Range<u64>) {
        between_steps();
        let (at, bytes) = (pages.start << PAGE_SHIFT, (pages.end - pages.start) << PAGE_SHIFT);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::io::retry_on_intr(|| fallocate(&self.fd, flags, at, bytes));
        assert!(punched.is_ok(), "no hole of {bytes} bytes at {at} in a mirror: {punched:?}");
    }

    /// Makes the pages of a largest folio, all of which are there, one huge page, whose pages are
    /// mapped by one fault. They are there all the time; page tables lose them. Best effort.
    ///
    /// From now on they leave together alone: of a hole in a huge page, the kernel may show zeros.
    /// So what is mapped otherwise is not to become one by itself ([`install`](super::uffd)).
    pub(crate) fn make_huge(&self, first: u64) {
        let Ok(at) = Reservation::new(GRANULE_BYTES) else { return };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        let (start, access, offset) = (at.start.cast(), ProtFlags::empty(), first << PAGE_SHIFT);
        // At once, where the kernel would take them out one by one.
        self.shown.unmap(&(first..first + u64::from(Order::MAX.frames())));
        // SAFETY: reserved by this call, and given to nobody. A child cannot access it.
        if unsafe { mmap(start, GRANULE_BYTES, access, flags, &self.fd, offset) }.is_ok() {
            // SAFETY: as above; no byte changes.
            unsafe { libc::madvise(start, GRANULE_BYTES, libc::MADV_COLLAPSE) };
        }
    }

    /// How many bytes of it are there. Feature `testing`.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn bytes_in_memory(&self) -> u64 {
        let blocks = rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_blocks);
        blocks.cast_unsigned() * 512
    }

    /// What a map shows of a page, if the page is there; and whether it belongs to a folio that has
    /// left the file. For models.
    #[cfg(all(test, shuttle))]
    pub(crate) fn shown<R>(&self, page: u64, tell: impl FnOnce(&[u8], bool) -> R) -> Option<R> {
        let owned = self.owned.lock();
        // From here on no other thread of the model runs, until the mutex is released.
        let (at, mut there) = (self.address(page), 0);
        // SAFETY: the range is the view's, and the call writes one byte.
        let told = unsafe { libc::mincore(at.cast(), PAGE_BYTES, &raw mut there) };
        assert_eq!(told, 0, "a view can be asked what is there");
        if there & 1 == 0 {
            return None;
        }
        // SAFETY: the page is there.
        let bytes = unsafe { std::slice::from_raw_parts(at, PAGE_BYTES) };
        let is_of = |it: &Owned| it.by == PlaceOwner::Folio && it.pages.contains(&page);
        Some(tell(bytes, owned.all.iter().any(is_of)))
    }

    /// Whether no place is claimed, leaving or left over. For models.
    #[cfg(all(test, shuttle))]
    pub(crate) fn is_free(&self) -> bool {
        self.owned.lock().all.is_empty()
    }

    fn disown(&self, places: &[Range<u64>], by: PlaceOwner) {
        let mut owned = self.owned.lock();
        let mut beds = 0_u32;
        for pages in places {
            let is_it = |other: &Owned| other.by == by && other.pages == *pages;
            let at = owned.all.iter().position(is_it).expect("it was owned");
            let it = owned.all.swap_remove(at);
            beds |= 1 << it.bed();
        }
        drop(owned);
        for (n, freed) in self.freed.iter().enumerate() {
            if beds >> n & 1 == 1 {
                freed.notify_all();
            }
        }
    }
}

impl PlaceClaim<'_> {
    /// Puts `bytes` bytes from `from` on to the beginning of the place; what is left of the last
    /// page is zeros. With `shown` that has the place, all pages but samples are mapped there at
    /// once.
    /// Error: the system has no memory. Then some of the pages may be there.
    ///
    /// # Safety
    /// The bytes can be read, and no thread changes them meanwhile. Nobody unmaps `shown`.
    pub(crate) unsafe fn copy(
        &self,
        from: *const u8,
        bytes: usize,
        shown: Option<&Shown<'_>>,
    ) -> io::Result<()> {
        debug_assert!(bytes as u64 <= (self.pages.end - self.pages.start) << PAGE_SHIFT);
        between_steps();
        let whole = bytes / PAGE_BYTES * PAGE_BYTES;
        let part = |at: usize, end: usize, shown| {
            // SAFETY: the caller's promises.
            unsafe { self.copy_pages(at, from.wrapping_add(at), end - at, shown) }
        };
        let mut at = 0;
        let sampled = shown.is_some_and(|shown| shown.sampled);
        for Sample { page, .. } in samples(&self.pages).filter(|_| sampled) {
            let sample = ((page - self.pages.start) << PAGE_SHIFT) as usize;
            if sample >= whole {
                break;
            }
            part(at, sample, shown)?;
            at = sample + PAGE_BYTES;
            part(sample, at, None)?;
        }
        part(at, whole, shown)?;
        if whole < bytes {
            let mut last = [0; PAGE_BYTES];
            let rest = from.wrapping_add(whole);
            // SAFETY: the caller's promise.
            let rest = unsafe { std::slice::from_raw_parts(rest, bytes - whole) };
            last[..rest.len()].copy_from_slice(rest);
            // SAFETY: the bytes are this thread's; of the map the caller says it.
            unsafe { self.copy_pages(whole, last.as_ptr(), PAGE_BYTES, shown) }?;
        }
        Ok(())
    }

    /// Puts whole pages at `at` bytes from the beginning of the place.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    unsafe fn copy_pages(
        &self,
        at: usize,
        from: *const u8,
        bytes: usize,
        shown: Option<&Shown<'_>>,
    ) -> io::Result<()> {
        if mutant::on(Mutant::CopyByWrite) {
            let offset = (self.pages.start << PAGE_SHIFT) + at as u64;
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(from, bytes) };
            let fd = std::fs::File::from(self.mirror.fd.try_clone()?);
            return std::os::unix::fs::FileExt::write_all_at(&fd, bytes, offset);
        }
        let view = (&*self.mirror.uffd, self.mirror.address(self.pages.start));
        let shown = shown.and_then(|map| Some((map.uffd, map.address(&self.pages)?)));
        let mut through = shown.unwrap_or(view);
        let (mut done, mut strays) = (0, 0);
        // Ends: each turn copies a page, takes out strays a bounded number of times, or goes over
        // to the view.
        while done < bytes {
            let ((uffd, place), from) = (through, from.wrapping_add(done));
            let start = place.expose_provenance() + at;
            // SAFETY: the place is claimed; of bytes and map the caller says it.
            let copied = unsafe { copy(uffd.as_fd(), &(start + done..start + bytes), from, 0) };
            let Err((copied, cause)) = copied else { break };
            done += copied;
            match cause {
                // The page may be poisoned in the map.
                _ if through.1 != view.1 => through = view,
                // Another process made a page of zeros there, and more of them perhaps.
                cause if cause.kind() == io::ErrorKind::AlreadyExists && strays < STRAYS_MAX => {
                    strays += 1;
                    let page = self.pages.start + ((at + done) / PAGE_BYTES) as u64;
                    let one = mutant::on(Mutant::StraysOneByOne);
                    self.mirror.punch(page..if one { page + 1 } else { self.pages.end });
                }
                cause => return Err(cause),
            }
        }
        Ok(())
    }

    /// Takes back what was written: the place is free once the claim ends.
    pub(crate) fn punch(&self) {
        self.mirror.punch(self.pages.clone());
    }
}

impl Drop for MayMap {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for PlaceClaim<'_> {
    fn drop(&mut self) {
        self.mirror.disown(std::slice::from_ref(&self.pages), PlaceOwner::Step);
    }
}

/// Places that folios have left. Their pages are in the memfd, and in maps of it, until
/// [`take_out_of_maps`](Self::take_out_of_maps).
#[derive(Debug)]
#[must_use = "the pages are there until they are taken out of the maps"]
pub(crate) struct Leaving<'a> {
    mirror: &'a Mirror,
    places: Vec<Range<u64>>,
}

impl Leaving<'_> {
    /// Takes the pages out of the memfd, and so out of all maps; then the places are free. Without
    /// the `change` mutex.
    pub(crate) fn take_out_of_maps(self) {
        if !mutant::on(Mutant::EvictKeepsPages) {
            // One thread at a time, asleep meanwhile: in the kernel they would spin for the memfd.
            let _punching = self.mirror.punching.lock();
            for place in &self.places {
                self.mirror.punch(place.clone());
            }
        }
        if !mutant::on(Mutant::LeavesUnowned) {
            self.mirror.disown(&self.places, PlaceOwner::Step);
        }
    }
}

impl Places {
    fn add(&mut self, pages: Range<u64>, by: PlaceOwner) {
        self.all.push(Owned { pages, by, number: self.count });
        self.count += 1;
    }

    fn has_any_of(&self, pages: &Range<u64>) -> bool {
        self.all.iter().any(|other| other.overlaps(pages))
    }
}

impl Owned {
    fn bed(&self) -> usize {
        self.number as usize % BEDS
    }

    fn overlaps(&self, pages: &Range<u64>) -> bool {
        self.pages.start < pages.end && pages.start < self.pages.end
    }
}

/// Joins neighbouring places, which are in the order of the file, where `joins` is true of the
/// pages between them.
fn join(places: &mut Vec<Range<u64>>, mut joins: impl FnMut(&Range<u64>) -> bool) {
    places.dedup_by(|next, one| {
        let joined = joins(&(one.end..next.start));
        if joined {
            one.end = next.end;
        }
        joined
    });
}

fn refused(path: &Path, what: &'static str, cause: impl Into<io::Error>) -> Error {
    Cause::Mirror { path: path.to_owned(), what, cause: Arc::new(cause.into()) }.into()
}

fn set_len(path: &Path, fd: BorrowedFd<'_>, bytes: u64) -> Result<()> {
    let done = check_file_end(bytes).and_then(|()| Ok(ftruncate(fd, bytes)?));
    done.map_err(|why| refused(path, "make the memory file as long as the file", why))
}

/// Mirrored folios that left their file while they were used: their places stay theirs.
#[derive(Debug, Default)]
pub(crate) struct Leftovers(Mutex<HashMap<u32, Place>>);

type Place = (Arc<Mirror>, Range<u64>);

impl Leftovers {
    /// The folio at `head` leaves its file. Call it under the `change` mutex.
    pub(crate) fn begin(&self, head: FrameNumber, mirror: &Arc<Mirror>, pages: Range<u64>) {
        mirror.owned.lock().add(pages.clone(), PlaceOwner::Folio);
        let before = self.0.lock().insert(head.0, (mirror.clone(), pages));
        debug_assert!(before.is_none(), "{head:?} has left two files");
    }

    /// The folio at `head` is about to be freed.
    pub(crate) fn end(&self, head: FrameNumber) {
        let left = self.0.lock().remove(&head.0);
        if let Some((mirror, pages)) = left {
            let disown = || mirror.disown(std::slice::from_ref(&pages), PlaceOwner::Folio);
            if mutant::on(Mutant::LeftoverDisownsFirst) {
                disown();
                return mirror.punch(pages);
            }
            mirror.punch(pages.clone());
            disown();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests;
