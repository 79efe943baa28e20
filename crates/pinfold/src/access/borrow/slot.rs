//! The announced guard: `file.borrow(page, &reader)`, without a store to shared memory, and its
//! fallback. Why an announcement suffices is in `readers/mod.rs`. A borrow, step by step:
//!
//! 1. and 2. the optimistic look-up (`found.rs`);
//! 3. store the head in a free slot of the reader;
//! 4. the light fence;
//! 5. load the version again: if it is unchanged, what 2 read is consistent, and stays so.
//!
//! A slot remembers the page that it showed last, and its version: for that page 3 to 5 suffice. If
//! a step fails, the slot is cleared and the page is held by a reference; 2 to 5 are tried again
//! under that. The guard keeps it only if no slot is free.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;

use super::FolioRef;
use super::admit::{self, admit};
use super::reader::{FreeSlots, GuardState, Reader, ShownPage};
use super::view::{self, PageView};
use crate::access::found::{AnyPage, Found, MayWait, ReadaheadMark, Want, WholePage, filled};
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU32, Ordering};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::{FrameNumber, PAGE_BYTES, PAGE_SHIFT, Stamp, predicted};
use crate::pages::core::Held;
use crate::pages::freeze;
use crate::pages::handle::Handle;

/// A page of a file, in place, announced in the thread's own slot. Made by
/// [`File::borrow`](crate::File::borrow). Derefs to the page's bytes, which never change under the
/// guard. It cannot leave its thread, as a guard can that [`upgrade`](Self::upgrade) makes:
///
/// ```compile_fail,E0277
/// # let cache = pinfold::Cache::new(pinfold::Options::new(8 << 20)).unwrap();
/// # let file = cache.attach("", std::sync::Arc::new(pinfold::source::Memory::new(vec![7]))).unwrap();
/// let reader = cache.reader().unwrap();
/// let page = file.borrow(0, &reader).unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(move || page[0]); // the guard cannot be sent
/// });
/// ```
///
/// While the guard lives, its folio cannot be evicted, moved or written to. A
/// [forgotten](std::mem::forget) guard keeps its slot until the reader is dropped.
#[must_use = "the page is borrowed only as long as the guard lives"]
pub struct Borrowed<'f, 'r> {
    /// A state in the reader, or a boxed one. Neither `Send` nor `Sync`.
    state: NonNull<GuardState>,
    file: PhantomData<&'f Handle>,
    reader: PhantomData<&'r Reader>,
}

impl Handle {
    /// Inlined into the program is a hit in the reader's first slot without a fence.
    #[inline(always)]
    pub(crate) fn borrow<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Result<Borrowed<'f, 'r>> {
        match self.borrow_quickly(page, reader) {
            Some(borrowed) => Ok(borrowed),
            None => self.borrow_waiting(page, reader),
        }
    }

    #[inline(always)]
    pub(crate) fn try_borrow<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Result<Option<Borrowed<'f, 'r>>> {
        match self.borrow_quickly(page, reader) {
            Some(borrowed) => Ok(Some(borrowed)),
            None => self.borrow_otherwise(page, reader, MayWait::Never),
        }
    }

    #[inline(always)]
    fn borrow_quickly<'f, 'r>(&'f self, page: u64, reader: &'r Reader) -> Option<Borrowed<'f, 'r>> {
        if self.needs_no_fence(reader)
            && let Some(free) = reader.first_slot()
            && announce::<false, _>(self, page, WholePage, free, reader)
        {
            return Some(Borrowed::of(free.1, self));
        }
        None
    }

    #[cold]
    #[inline(never)]
    fn borrow_waiting<'f, 'r>(&'f self, page: u64, reader: &'r Reader) -> Result<Borrowed<'f, 'r>> {
        self.borrow_otherwise(page, reader, MayWait::Yes).map(filled)
    }

    /// In any slot, with or without a fence; by the slow path if that fails.
    #[cold]
    #[inline(never)]
    fn borrow_otherwise<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
        wait: MayWait,
    ) -> Result<Option<Borrowed<'f, 'r>>> {
        self.check_reader(reader)?;
        match self.borrow_at_once(page, reader) {
            Some(borrowed) => Ok(Some(borrowed)),
            None => self.borrow_slowly(page, reader, wait),
        }
    }

    /// Of a reader of this cache.
    #[inline(always)]
    pub(crate) fn borrow_one<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Option<Borrowed<'f, 'r>> {
        self.borrow_quickly(page, reader).or_else(|| self.borrow_at_once(page, reader))
    }

    /// Then the reader is one of this cache's.
    #[inline(always)]
    pub(crate) fn needs_no_fence(&self, reader: &Reader) -> bool {
        reader.unfenced_address == self.readers_address
    }

    /// Steps 3 to 5 for a whole page, for a reader that needs no fence.
    #[inline(always)]
    pub(crate) fn borrow_found<'f, 'r>(
        &'f self,
        page: u64,
        found: Found<'f>,
        reader: &'r Reader,
        free: &mut FreeSlots<'r>,
    ) -> Option<Borrowed<'f, 'r>> {
        let free = free.next()?;
        announce_found::<false>(page, found, free, reader).then(|| Borrowed::of(free.1, self))
    }

    /// Steps 3 to 5 for the `pages` of a block as they were `found`, with one fence, to the end of
    /// `guards`; `left` gets the numbers of the pages of which there is none.
    #[inline(always)]
    pub(crate) fn borrow_all_found<'f, 'r, const N: usize>(
        &'f self,
        pages: &[u64],
        found: &[Option<Found<'f>>; N],
        reader: &'r Reader,
        free: &mut FreeSlots<'r>,
        guards: &mut Vec<Borrowed<'f, 'r>>,
        mut left: impl FnMut(usize),
    ) {
        let early = mutant::on(Mutant::BatchFencedFirst);
        if early {
            reader.light_fence::<true>();
        }
        let mut slots = [None; N];
        for (found, slot) in found.iter().zip(&mut slots) {
            let &Some(found) = found else { continue };
            let Some(next) = free.next() else { break };
            *slot = Some(next).filter(|next| announced(found, next.0));
        }
        if !early {
            reader.light_fence::<true>();
        }
        for (at, ((&page, found), slot)) in pages.iter().zip(found).zip(&slots).enumerate() {
            match (found, slot) {
                (&Some(found), &Some(slot)) if confirmed::<true>(page, found, slot, reader) => {
                    guards.push(Borrowed::of(slot.1, self));
                }
                _ => left(at),
            }
        }
    }

    /// Threads that freeze scan the readers of their own cache only.
    pub(crate) fn check_reader(&self, reader: &Reader) -> Result<()> {
        if reader.seat.is_of(&self.core.readers) {
            return Ok(());
        }
        let path = self.mapping.path.clone();
        Err(Cause::Foreign { what: "borrow from", whose: "reader", path }.into())
    }

    /// Steps 1 to 5 in any slot, of a reader of this cache.
    pub(crate) fn borrow_at_once<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Option<Borrowed<'f, 'r>> {
        let free = reader.free_slot(page)?;
        announce::<true, _>(self, page, AnyPage, free, reader).then(|| Borrowed::of(free.1, self))
    }

    /// `None`: the page is absent, and the caller may not wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn borrow_slowly<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
        wait: MayWait,
    ) -> Result<Option<Borrowed<'f, 'r>>> {
        let (_, (frame, _)) = self.there(page);
        // A forked child takes no locks.
        if frame.is_by_count() && wait == MayWait::Yes && self.core.owner.is_here() {
            freeze::open_to_borrows(&self.core, &mut self.mapping.change(), page);
        }
        let missing = || self.get_missing(page, wait);
        self.held(page, (ReadaheadMark::Meet, false), missing, |held| {
            if let Some(borrowed) = self.borrow_held(page, reader, &held) {
                return Ok(Some(borrowed));
            }
            let Some(held) = admit(self, held, page, wait)? else { return Ok(None) };
            match self.borrow_counted(page, held) {
                Some(borrowed) => Ok(Some(borrowed)),
                None => self.check_page(page).map(|()| None),
            }
        })
    }

    /// Of a folio that is held and was up to date.
    fn borrow_held<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
        held: &Held<'f>,
    ) -> Option<Borrowed<'f, 'r>> {
        let free = reader.free_slot(page);
        if free.is_none() {
            self.counters().count(Event::BorrowCounted);
        }
        let free = free?;
        let found = self.look(held.head(), page << PAGE_SHIFT, AnyPage)?;
        announce_found::<true>(page, found, free, reader).then(|| Borrowed::of(free.1, self))
    }

    /// `None`: the file ended before that page.
    fn borrow_counted<'f, 'r>(&'f self, page: u64, held: Held<'f>) -> Option<Borrowed<'f, 'r>> {
        let head = held.head();
        let folio = FolioRef::of(self, held, page)?;
        Some(Borrowed::counted(folio.into_view(), head, page, self))
    }
}

/// Steps 1 to 5, or 3 to 5 if the slot showed this page last. `ANY` allows fences and partial
/// pages; without it `want` must be whole pages.
#[inline(always)]
fn announce<const ANY: bool, W: Want>(
    handle: &Handle,
    page: u64,
    want: W,
    free: (&AtomicU32, &GuardState),
    reader: &Reader,
) -> bool {
    let shown = free.1.shown.get();
    if shown.page == page && announce_again::<ANY>(handle, shown, free.0, reader) {
        return true;
    }
    let Some(found) = handle.found(page, want) else { return false };
    announce_found::<ANY>(page, found, free, reader)
}

/// Steps 3 to 5.
#[inline(always)]
fn announce_again<const ANY: bool>(
    handle: &Handle,
    ShownPage { page, head, stamp, .. }: ShownPage,
    slot: &AtomicU32,
    reader: &Reader,
) -> bool {
    // SAFETY: the head is 0, or that of a folio found in the reader's cache, which is the handle's.
    let (frame, _) = unsafe { handle.window.get(head) };
    let anew = mutant::on(Mutant::RecallBlindly).then(|| frame.read_begin().unwrap_or_default());
    // Release, both stores: as in `announce_found`.
    slot.store(head.0, Ordering::Release);
    reader.light_fence::<ANY>();
    // The remembered page may have been another file's.
    let same = frame.is_of(handle.id);
    if frame.read_retry(anew.unwrap_or(stamp)) || !same {
        slot.store(0, Ordering::Release);
        return false;
    }
    reader.note_use(frame, head, page);
    true
}

/// Steps 3 to 5. Without `ANY`, for whole pages only.
#[inline(always)]
fn announce_found<const ANY: bool>(
    page: u64,
    found: Found<'_>,
    free: (&AtomicU32, &GuardState),
    reader: &Reader,
) -> bool {
    let early = mutant::on(Mutant::BatchFencedFirst);
    if early {
        reader.light_fence::<ANY>();
    }
    if !announced(found, free.0) {
        return false;
    }
    if !early {
        reader.light_fence::<ANY>();
    }
    confirmed::<ANY>(page, found, free, reader)
}

/// Step 3. False only in a mutant.
#[inline(always)]
fn announced(Found { frame, head, stamp, .. }: Found<'_>, slot: &AtomicU32) -> bool {
    if mutant::on(Mutant::AnnounceLate) && frame.read_retry(stamp) {
        return false;
    }
    // Release: pairs with the acquire in `Readers::look`. A freezer that finds this folio in the
    // slot is ordered after all reads of the previous one.
    slot.store(head.0, Ordering::Release);
    true
}

/// Step 5: whether the state now shows the page; otherwise the slot is free.
#[inline(always)]
fn confirmed<const ANY: bool>(
    page: u64,
    Found { frame, head, from, stamp, at, span, .. }: Found<'_>,
    (slot, state): (&AtomicU32, &GuardState),
    reader: &Reader,
) -> bool {
    // Inside the folio if head and order are of one moment; otherwise still inside the arena.
    let bytes = predicted(from, at as usize, 0);
    let page_bytes = if ANY { view::page_bytes(at as usize, span as usize) } else { PAGE_BYTES };
    if !mutant::on(Mutant::AnnounceLate) && frame.read_retry(stamp) {
        // Release: as at the end of a borrow.
        slot.store(0, Ordering::Release);
        return false;
    }
    reader.note_use(frame, head, page);
    state.shown.set(ShownPage { page, head, stamp, bytes, page_bytes });
    true
}

impl<'f, 'r> Borrowed<'f, 'r> {
    #[inline(always)]
    fn of(state: &'r GuardState, handle: &'f Handle) -> Self {
        state.handle.set(Some(handle.into()));
        Borrowed { state: state.into(), file: PhantomData, reader: PhantomData }
    }

    /// Takes over the reference.
    fn counted(view: PageView, head: FrameNumber, page: u64, handle: &'f Handle) -> Self {
        let state = GuardState::new(None);
        let (bytes, page_bytes) = (view.address().cast_mut(), view.page_bytes);
        state.shown.set(ShownPage { page, head, stamp: Stamp::default(), bytes, page_bytes });
        state.handle.set(Some(handle.into()));
        // `drop_counted` makes a box of it again.
        let state = NonNull::from(Box::leak(Box::new(state)));
        Borrowed { state, file: PhantomData, reader: PhantomData }
    }

    #[inline(always)]
    fn state(&self) -> &GuardState {
        // SAFETY: the reader does not move its states; a boxed state lives until the guard's drop.
        unsafe { self.state.as_ref() }
    }

    fn view(&self) -> PageView {
        let ShownPage { head, bytes, page_bytes, .. } = self.state().shown.get();
        // SAFETY: as the look-up found it; a state changes only while its slot is free.
        unsafe { PageView::at(self.handle().core.frames.frame(head), bytes, page_bytes) }
    }

    fn handle(&self) -> &'f Handle {
        let handle = self.state().handle.get().expect("set with the guard");
        // SAFETY: made from a reference of this lifetime.
        unsafe { handle.as_ref() }
    }

    #[cfg(all(test, loom))]
    pub(crate) fn word(&self) -> u64 {
        self.view().word()
    }

    /// The same page under a counted reference, which can leave the thread. Cost: one atomic add.
    /// It may wait for a thread that tries to evict or move the folio, and does no I/O meanwhile.
    /// It keeps the whole folio, however large, as what is borrowed cannot be split. For a guard
    /// that is kept for long, drop the borrow first and [`get`](crate::File::get) the page.
    ///
    /// # Errors
    /// [`ErrorKind::TooMany`] if the folio has four million references; [`ErrorKind::Forked`] in a
    /// child that was forked while another thread tried to evict or move it.
    pub fn upgrade(&self) -> Result<FolioRef<'f>> {
        let head = self.state().shown.get().head;
        let count = &self.handle().core.frames.frame(head).count;
        if mutant::on(Mutant::UpgradeUnannounced)
            && let Some(slot) = self.state().slot
        {
            // SAFETY: as in `drop`.
            unsafe { slot.as_ref() }.store(0, Ordering::Release);
        }
        // Frozen: another thread has not scanned the slots yet, and holds the mutex until it has
        // thawed the folio.
        let got = count.try_get(1);
        if got.is_err() {
            self.handle().core.check_owner()?;
        }
        let got = got.or_else(|_| {
            let _changing = self.handle().mapping.change();
            count.try_get(1)
        });
        let (path, offset) = (&self.handle().mapping.path, self.view().folio_offset());
        let page = offset / crate::frames::PAGE_BYTES as u64;
        got.map_err(|_| Cause::TooManyReferences { path: path.clone(), page })?;
        admit::upgraded(&self.handle().core, head);
        Ok(FolioRef::adopt(self.handle(), self.view()))
    }

    /// As [`FolioRef::folio`].
    pub fn folio(&self) -> &[u8] {
        // SAFETY: a folio that is announced or referenced is neither freed nor written to.
        unsafe { self.view().folio_read() }
    }

    /// As [`FolioRef::folio_offset`].
    pub fn folio_offset(&self) -> u64 {
        self.view().folio_offset()
    }

    /// As [`FolioRef::is_current`].
    pub fn is_current(&self) -> bool {
        self.view().is_current()
    }

    /// By the pointer: the guard stays in a register.
    #[cold]
    #[inline(never)]
    fn drop_counted(state: NonNull<GuardState>) {
        let (file, reader) = (PhantomData, PhantomData);
        let guard = ManuallyDrop::new(Borrowed { state, file, reader });
        drop(FolioRef::adopt(guard.handle(), guard.view()));
        // SAFETY: a state without a slot was boxed for this guard, which ends here.
        drop(unsafe { Box::from_raw(state.as_ptr()) });
    }

    /// Whether the guard has a reference because no slot was free.
    #[cfg(any(feature = "testing", all(test, loom)))]
    pub fn is_counted(&self) -> bool {
        self.state().slot.is_none()
    }
}

impl Deref for Borrowed<'_, '_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        let ShownPage { bytes, page_bytes, .. } = self.state().shown.get();
        // SAFETY: as the look-up found it, see `view`; and as in `folio`.
        unsafe { std::slice::from_raw_parts(bytes, page_bytes) }
    }
}

impl AsRef<[u8]> for Borrowed<'_, '_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Borrowed<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        if crate::base::sync::model_failed() {
            return;
        }
        let Some(slot) = self.state().slot else { return Self::drop_counted(self.state) };
        // Release: pairs with the acquire in `Readers::look`: all reads here are ordered before
        // what is done to the folio next.
        let order =
            if mutant::on(Mutant::ClearRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        // SAFETY: the slot is in the record of the reader, which the guard's lifetime keeps.
        unsafe { slot.as_ref() }.store(0, order);
    }
}

impl UnwindSafe for Borrowed<'_, '_> {}
impl RefUnwindSafe for Borrowed<'_, '_> {}

impl std::fmt::Debug for Borrowed<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Borrowed").field(&self.view()).finish()
    }
}
