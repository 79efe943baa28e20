//! A file's mirror: memory outside of the arena in which each page has its own offset in the file,
//! so that it can be mapped. It is a memfd.
//!
//! Has the memfd, the cache's own view of it, and who owns which place of it. Which folios are put
//! there is decided in `lend.rs`, and when they go in `freeze` and `reclaim`. Called by these.
//!
//! # Present means up to date
//!
//! A page is in the memfd exactly while it has the right bytes: it gets there by one write(2) of
//! them. While it copies, the kernel keeps such a page locked, and a page fault waits for that lock.
//! So the kernel itself may map whatever it finds, and a fault on a page that is absent is the only
//! one that the program has to serve. That has one gap, where the system takes the source's page
//! away just before the copy: [docs/map.md](../../../docs/map.md), "What is not there yet". The same
//! document has what else was tried.
//!
//! # States of a place, the bytes of a folio's pages
//!
//! | state | the index has there | in the memfd | owner |
//! |---|---|---|---|
//! | free | no mirrored folio | nothing | none |
//! | claimed | a folio in the arena | nothing, then all of its bytes | the thread that lends ([`Claim`]) |
//! | lent | a mirrored folio | all of its bytes | the folio |
//! | left over | anything | the bytes of a folio that left the file while it was used | that folio |
//!
//! | from | to | step | by |
//! |---|---|---|---|
//! | free | claimed | [`Mirror::claim`] | `lend.rs` |
//! | claimed | lent | bytes written; the index gets the mirrored folio, under `change`; then the claim ends | `lend.rs`, `freeze/lend.rs` |
//! | claimed | free | hole punched; then the claim ends | a lender that finds the folio gone |
//! | lent | free | hole punched under the `change` mutex under which the folio leaves the index | eviction, migration to the arena |
//! | lent | left over | under the `change` mutex | `freeze/drop.rs` |
//! | left over | free | hole punched when the last user gives the folio back | [`Leftovers::end`] |
//!
//! A folio gets into the index under that mutex, and a lender claims before it writes: so nobody
//! writes to a place that another folio owns, and no hole is punched under a later owner.
//!
//! The cache's view is read under a reference to a mirrored folio alone: a page that is absent would
//! be made by the read, as zeros, outside of the budget, and present.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::frame::{FrameNumber, Order, PAGE_BYTES, PAGE_SHIFT};
use crate::mutant::{self, Mutant};
use crate::sync::{Condvar, Mutex};

/// What the view is aligned to: the largest folio, so that a folio's first byte follows from the
/// address of any of its bytes.
const ALIGN_BYTES: usize = Order::MAX.bytes();

/// How much further than the file the view reaches, at least: for files that grow.
const ROOM_BYTES: u64 = 1 << 30;

/// The mirror of one file.
///
/// # Invariants
///
/// `view .. view + view_bytes` is a mapping of the memfd, and this struct's alone to unmap.
#[derive(Debug)]
pub(crate) struct Mirror {
    fd: OwnedFd,
    view: NonNull<u8>,
    view_bytes: usize,
    /// The memfd's length.
    bytes: Mutex<u64>,
    /// Pages that are claimed or left over.
    owned: Mutex<Vec<Range<u64>>>,
    freed: Condvar,
}

// SAFETY: the view is an address that does not change; it is read only, and unmapped only by the
// drop.
unsafe impl Send for Mirror {}
// SAFETY: as above; the rest is behind mutexes.
unsafe impl Sync for Mirror {}

/// The right to put bytes to a place. Dropped once the place has its owner in the index, or is
/// free.
#[derive(Debug)]
#[must_use = "dropped at once, it claims nothing"]
pub(crate) struct Claim<'a> {
    mirror: &'a Mirror,
    pages: Range<u64>,
}

impl Mirror {
    /// A mirror of a file of `len_bytes` bytes; all of it is free.
    ///
    /// # Errors
    /// The system gives no memfd, or no address space.
    pub(crate) fn new(len_bytes: u64) -> io::Result<Self> {
        let bytes = len_bytes.next_multiple_of(PAGE_BYTES as u64);
        let fd = memfd_create(c"pinfold", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, bytes)?;
        let view_bytes = (bytes + bytes.max(ROOM_BYTES)).next_multiple_of(ALIGN_BYTES as u64);
        let view_bytes = usize::try_from(view_bytes)
            .ok()
            .and_then(|view| view.checked_add(ALIGN_BYTES).map(|_| view))
            .ok_or(rustix::io::Errno::NOMEM)?;
        let view = map_view(fd.as_fd(), view_bytes)?;
        let (owned, freed) = (Mutex::new(Vec::new()), Condvar::new());
        Ok(Mirror { fd, view, view_bytes, bytes: Mutex::new(bytes), owned, freed })
    }

    /// The memfd. To be mapped shared and read-only, and never where a child inherits it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes it at least `bytes` long, as the file is now.
    ///
    /// # Errors
    /// The system refuses it, or the file has grown to more than twice its length.
    pub(crate) fn grow(&self, bytes: u64) -> io::Result<()> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES as u64);
        let mut is = self.bytes.lock();
        if *is < bytes {
            if bytes > self.view_bytes as u64 {
                return Err(rustix::io::Errno::FBIG.into());
            }
            ftruncate(&self.fd, bytes)?;
            *is = bytes;
        }
        Ok(())
    }

    /// The address of a page, for who has a reference to the mirrored folio that has it.
    pub(crate) fn address(&self, page: u64) -> *mut u8 {
        let at = (page << PAGE_SHIFT) as usize;
        assert!(at < self.view_bytes, "page {page} is not in a view of {} bytes", self.view_bytes);
        self.view.as_ptr().wrapping_add(at)
    }

    /// Claims the place of `pages`. `None`: some of it is claimed or left over.
    pub(crate) fn claim(&self, pages: Range<u64>) -> Option<Claim<'_>> {
        let mut owned = self.owned.lock();
        let overlaps = |other: &Range<u64>| other.start < pages.end && pages.start < other.end;
        if owned.iter().any(overlaps) && !mutant::on(Mutant::ClaimBlindly) {
            return None;
        }
        owned.push(pages.clone());
        Some(Claim { mirror: self, pages })
    }

    /// Sleeps until some place may have become free, at most for `nap`.
    pub(crate) fn wait_for_claims(&self, nap: std::time::Duration) {
        let owned = self.owned.lock();
        if !owned.is_empty() {
            drop(self.freed.wait_timeout(&self.owned, owned, nap));
        }
    }

    /// Takes the pages out of the memfd, and so out of every mapping of it.
    ///
    /// # Panics
    /// If the system refuses: the bytes would stay, outside of the budget.
    pub(crate) fn punch(&self, pages: Range<u64>) {
        let (at, bytes) = (pages.start << PAGE_SHIFT, (pages.end - pages.start) << PAGE_SHIFT);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::io::retry_on_intr(|| fallocate(&self.fd, flags, at, bytes));
        assert!(punched.is_ok(), "no hole of {bytes} bytes at {at} in a mirror: {punched:?}");
    }

    fn disown(&self, pages: &Range<u64>) {
        let mut owned = self.owned.lock();
        let at = owned.iter().position(|other| other == pages).expect("it was owned");
        owned.swap_remove(at);
        drop(owned);
        self.freed.notify_all();
    }
}

impl Claim<'_> {
    /// Puts `bytes` bytes from `from` on to the beginning of the place. What is left of the last
    /// page is zeros.
    ///
    /// # Errors
    /// The system has no memory. Then some of the pages may be there.
    ///
    /// # Safety
    /// The bytes can be read, and no thread changes them meanwhile.
    pub(crate) unsafe fn write(&self, from: *const u8, bytes: usize) -> io::Result<()> {
        let at = self.pages.start << PAGE_SHIFT;
        debug_assert!(bytes as u64 <= (self.pages.end - self.pages.start) << PAGE_SHIFT);
        // SAFETY: the caller's promise.
        let mut left = unsafe { std::slice::from_raw_parts(from, bytes) };
        // The kernel copies what it finds. Where that is nothing yet (it was swapped out), a page
        // of zeros is there for all to see until the bytes have come.
        for page in left.chunks(PAGE_BYTES) {
            std::hint::black_box(page[0]);
        }
        // Ends: each turn writes at least a byte, or is the last.
        while !left.is_empty() {
            let offset = at + (bytes - left.len()) as u64;
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.mirror.fd, left, offset))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => left = &left[written..],
            }
        }
        Ok(())
    }

    /// Takes back what was written: the place is free once the claim ends.
    pub(crate) fn punch(&self) {
        self.mirror.punch(self.pages.clone());
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.mirror.disown(&self.pages);
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: the range is the one mapped by `new`; who has an address in it has a folio of the
        // mirror, and with it the mirror.
        let unmapped = unsafe { munmap(self.view.as_ptr().cast(), self.view_bytes) };
        debug_assert!(unmapped.is_ok(), "its own range is valid to unmap: {unmapped:?}");
    }
}

/// Maps the whole view, at a multiple of [`ALIGN_BYTES`].
fn map_view(fd: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<NonNull<u8>> {
    let asked = bytes + ALIGN_BYTES;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice replaces nothing.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), asked, ProtFlags::empty(), flags) }?;
    let start = start.cast::<u8>();
    let before = start.addr().next_multiple_of(ALIGN_BYTES) - start.addr();
    // SAFETY: the sum lies in the mapping, which is longer by ALIGN_BYTES.
    let view = unsafe { start.add(before) };
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: it replaces a part of the mapping made above, in which no address is in use.
    let mapped = unsafe { mmap(view.cast(), bytes, ProtFlags::READ, flags, fd, 0) }
        // SAFETY: that mapping. A child has no use for it, and would make pages by reading it.
        .and_then(|view| unsafe { madvise(view, bytes, Advice::LinuxDontFork) });
    let ends = match mapped {
        Ok(()) => [(start, before), (view.wrapping_add(bytes), ALIGN_BYTES - before)],
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

/// Mirrored folios that left their file while they were used: their places stay theirs.
#[derive(Debug)]
pub(crate) struct Leftovers(Mutex<HashMap<u32, Place>>);

/// Pages of a mirror.
type Place = (Arc<Mirror>, Range<u64>);

impl Leftovers {
    pub(crate) fn new() -> Self {
        Leftovers(Mutex::new(HashMap::new()))
    }

    /// The folio at `head` leaves its file. Call it under the `change` mutex.
    pub(crate) fn begin(&self, head: FrameNumber, mirror: &Arc<Mirror>, pages: Range<u64>) {
        mirror.owned.lock().push(pages.clone());
        let before = self.0.lock().insert(head.0, (mirror.clone(), pages));
        debug_assert!(before.is_none(), "{head:?} has left two files");
    }

    /// The folio at `head` is about to be freed.
    pub(crate) fn end(&self, head: FrameNumber) {
        let left = self.0.lock().remove(&head.0);
        if let Some((mirror, pages)) = left {
            mirror.punch(pages.clone());
            mirror.disown(&pages);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn put(mirror: &Mirror, pages: Range<u64>, byte: u8) {
        let bytes = vec![byte; (pages.end - pages.start) as usize * PAGE_BYTES];
        let claim = mirror.claim(pages).expect("a free place");
        // SAFETY: the bytes are this thread's.
        unsafe { claim.write(bytes.as_ptr(), bytes.len()) }.unwrap();
    }

    fn blocks(mirror: &Mirror) -> i64 {
        rustix::fs::fstat(&mirror.fd).unwrap().st_blocks
    }

    #[test]
    fn what_is_put_there_can_be_read_and_taken_out_again() {
        let mirror = Mirror::new(10 * PAGE_BYTES as u64 - 7).unwrap();
        assert_eq!(*mirror.bytes.lock(), 10 * PAGE_BYTES as u64);
        assert!(mirror.address(0).addr().is_multiple_of(ALIGN_BYTES));
        put(&mirror, 3..5, 7);
        put(&mirror, 9..10, 9);
        assert_eq!(blocks(&mirror), 3 * 8);
        for (page, byte) in [(3, 7), (4, 7), (9, 9)] {
            // SAFETY: the page is there.
            assert_eq!(unsafe { mirror.address(page).read() }, byte);
        }
        mirror.punch(3..5);
        assert_eq!(blocks(&mirror), 8);
    }

    #[test]
    fn the_rest_of_a_last_page_is_zeros() {
        let mirror = Mirror::new(5000).unwrap();
        let claim = mirror.claim(1..2).unwrap();
        // SAFETY: the bytes are this thread's.
        unsafe { claim.write([7; 904].as_ptr(), 904) }.unwrap();
        drop(claim);
        // SAFETY: the page is there, and nobody changes it.
        let page = unsafe { std::slice::from_raw_parts(mirror.address(1), PAGE_BYTES) };
        assert!(page[..904].iter().all(|&byte| byte == 7));
        assert!(page[904..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_place_has_one_owner() {
        let mirror = Arc::new(Mirror::new(1 << 20).unwrap());
        let claim = mirror.claim(4..8).unwrap();
        for pages in [0..5, 4..5, 7..9, 0..100] {
            assert!(mirror.claim(pages).is_none());
        }
        mutant::with(Some(Mutant::ClaimBlindly), || assert!(mirror.claim(4..5).is_some()));
        drop((mirror.claim(0..4).unwrap(), mirror.claim(8..9).unwrap()));
        drop(claim);
        let leftovers = Leftovers::new();
        put(&mirror, 4..8, 1);
        leftovers.begin(FrameNumber(77), &mirror, 4..8);
        assert!(mirror.claim(7..8).is_none());
        leftovers.end(FrameNumber(76));
        assert!(mirror.claim(7..8).is_none());
        leftovers.end(FrameNumber(77));
        assert_eq!(blocks(&mirror), 0, "its bytes go with it");
        drop(mirror.claim(7..8).unwrap());
    }

    #[test]
    fn it_grows_with_the_file_up_to_a_bound() {
        let mirror = Mirror::new(4096).unwrap();
        mirror.grow(1 << 20).unwrap();
        mirror.grow(5000).unwrap();
        assert_eq!(*mirror.bytes.lock(), 1 << 20);
        put(&mirror, 255..256, 3);
        assert!(mirror.grow(1 << 40).is_err());
    }

    /// How many pages were seen there with other bytes than those written, while memory that the
    /// system has to bring first, as if it were swapped out, was written to them.
    fn seen_with_other_bytes() -> usize {
        use std::sync::atomic::{AtomicU64, Ordering};
        const PAGES: u64 = 256;
        let file = tempfile::tempfile().unwrap();
        let bytes = PAGES as usize * PAGE_BYTES;
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![7; bytes], 0).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let (access, shared) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the system's choice replaces nothing.
        let from = unsafe { mmap(std::ptr::null_mut(), bytes, access, shared, &file, 0) }.unwrap();
        // SAFETY: that mapping.
        unsafe { madvise(from, bytes, Advice::Random) }.unwrap();
        let mirror = Mirror::new(bytes as u64).unwrap();
        let next = AtomicU64::new(0);
        let seen = std::thread::scope(|scope| {
            let (mirror, next) = (&mirror, &next);
            let watch = scope.spawn(move || {
                let mut seen = vec![false; PAGES as usize];
                // Ends: the writer comes to the end.
                while let page = next.load(Ordering::Acquire)
                    && page < PAGES
                {
                    let (at, mut there) = (mirror.address(page), 0);
                    // SAFETY: the range is the view's, and the call writes one byte.
                    let told = unsafe { libc::mincore(at.cast(), PAGE_BYTES, &raw mut there) };
                    assert_eq!(told, 0);
                    // SAFETY: the page is there.
                    if there & 1 == 1 && unsafe { at.read_volatile() } != 7 {
                        seen[page as usize] = true;
                    }
                }
                seen.into_iter().filter(|&seen| seen).count()
            });
            for page in 0..PAGES {
                next.store(page, Ordering::Release);
                let claim = mirror.claim(page..page + 1).unwrap();
                let from = from.cast::<u8>().wrapping_add(page as usize * PAGE_BYTES);
                // SAFETY: the page is mapped, and nobody changes the file.
                unsafe { claim.write(from, PAGE_BYTES) }.unwrap();
            }
            next.store(PAGES, Ordering::Release);
            watch.join().unwrap()
        });
        // SAFETY: the mapping made above, which nobody uses any more.
        unsafe { munmap(from, bytes) }.unwrap();
        seen
    }

    #[test]
    fn a_page_is_there_only_with_its_bytes() {
        assert_eq!(seen_with_other_bytes(), 0);
    }
}
