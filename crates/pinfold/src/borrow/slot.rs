//! The guard that announces: `file.borrow(page, &reader)`.
//!
//! Here: the borrow without a shared store, and what it falls back to. Not here: the slots and the
//! look at them, with the argument why announcing is enough (`readers/mod.rs`). Called by `file`.
//!
//! # A borrow, step by step
//!
//! 1. and 2. the look (`found.rs`): the page's folio, up to date, and how much of it is the file's;
//! 3. store the head in a free slot of the reader's;
//! 4. the light fence;
//! 5. load the version again: unchanged means that 2 saw one thing, and that it stays.
//!
//! A slot remembers the page that it showed last, with the version: for that page 3 to 5 are enough.
//!
//! No step waits, and a hit stores to memory of the thread's own only. On any doubt the slot is cleared
//! and the page held by a reference instead; then 2 to 5 are tried again under that reference, which is
//! given back if they succeed. With no slot free the guard keeps it.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

use super::FolioRef;
use super::reader::{Reader, Shown, State};
use super::view::{self, View};
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::found::{AnyPage, Found, Mark, Want, WholePage};
use crate::frame::{FrameNumber, PAGE_BYTES, PAGE_SHIFT, Stamp, guessed};
use crate::handle::Handle;
use crate::mutant::{self, Mutant};
use crate::sync::{AtomicU32, Ordering};

/// A page of a file, in place, announced in the thread's own slot: derefs to its bytes.
///
/// Made by [`File::borrow`](crate::File::borrow). The bytes are those of one moment and never
/// change under the guard, whatever becomes of the file. It cannot leave its thread:
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
/// [`upgrade`](Self::upgrade) gives one that can. Its folio cannot be evicted, moved or written
/// to meanwhile; held for ever, it keeps just that folio. A guard that is
/// [forgotten](std::mem::forget) keeps its slot until the reader goes.
#[must_use = "the page is borrowed only as long as the guard lives"]
pub struct Borrowed<'f, 'r> {
    /// A state of the reader's, or a boxed one. Being a pointer it makes the guard neither `Send` nor
    /// `Sync`: the slot has one writer.
    state: NonNull<State>,
    file: PhantomData<&'f Handle>,
    reader: PhantomData<&'r Reader>,
}

impl Handle {
    /// The page number `page`, announced in a slot of `reader`'s.
    ///
    /// Here, in the program's own loops, is what a hit needs in a reader's first slot and without a
    /// fence; the rest is called.
    #[inline(always)]
    pub(crate) fn borrow<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Result<Borrowed<'f, 'r>> {
        if reader.is_unfenced_of(self.readers_address)
            && let Some(free) = reader.first_slot()
            && announce::<false, _>(self, page, WholePage, free, reader)
        {
            return Ok(Borrowed::of(free.1, self));
        }
        self.borrow_otherwise(page, reader)
    }

    /// In any slot, with or without a fence, any page; and if that cannot be had, slowly.
    #[cold]
    #[inline(never)]
    fn borrow_otherwise<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Result<Borrowed<'f, 'r>> {
        // Its slots are looked at by those who freeze in its own cache only.
        if !reader.is_of(&self.core.readers) {
            return Err(Error::ForeignReader { path: self.mapping.path.clone() });
        }
        match self.borrow_at_once(page, reader) {
            Some(borrowed) => Ok(borrowed),
            None => self.borrow_slowly(page, reader),
        }
    }

    /// Steps 1 to 5 in any slot, if nothing is in the way.
    pub(crate) fn borrow_at_once<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Option<Borrowed<'f, 'r>> {
        let free = reader.free_slot(page)?;
        announce::<true, _>(self, page, AnyPage, free, reader).then(|| Borrowed::of(free.1, self))
    }

    /// By a reference: with a fill, with reading ahead, with errors.
    #[cold]
    #[inline(never)]
    fn borrow_slowly<'f, 'r>(&'f self, page: u64, reader: &'r Reader) -> Result<Borrowed<'f, 'r>> {
        self.held(
            page,
            (Mark::Meet, false),
            || self.get_missing(page),
            |held| {
                let head = held.head();
                let free = reader.free_slot(page);
                if free.is_none() {
                    self.counters().count(Event::BorrowCounted);
                }
                if let Some(free) = free
                    && let Some(found) = self.look(head, page << PAGE_SHIFT, AnyPage)
                    && announce_found::<true>(page, found, free, reader)
                {
                    return Ok(Some(Borrowed::of(free.1, self)));
                }
                match FolioRef::of(self, held, page) {
                    Some(folio) => Ok(Some(Borrowed::counted(folio.into_view(), head, page, self))),
                    None => self.check_page(page).map(|()| None),
                }
            },
        )
    }
}

/// Steps 1 to 5; or 3 to 5, if it is the page that the slot showed last. Unless `ANY`, no fence, and
/// `want` must be whole pages. Whether the state shows the page now.
#[inline(always)]
fn announce<const ANY: bool, W: Want>(
    handle: &Handle,
    page: u64,
    want: W,
    free: (&AtomicU32, &State),
    reader: &Reader,
) -> bool {
    let shown = free.1.shown.get();
    if shown.page == page && announce_again::<ANY>(handle, shown, free.0, reader) {
        return true;
    }
    let Some(found) = handle.found(page, want) else { return false };
    announce_found::<ANY>(page, found, free, reader)
}

/// Steps 3 to 5, for the page that the slot showed last.
#[inline(always)]
fn announce_again<const ANY: bool>(
    handle: &Handle,
    Shown { head, stamp, .. }: Shown,
    slot: &AtomicU32,
    reader: &Reader,
) -> bool {
    let Some((frame, _)) = handle.window.try_both(head) else { return false };
    let anew = mutant::on(Mutant::RecallBlindly).then(|| frame.read_begin().unwrap_or_default());
    // Release, both stores: as in `announce_found`.
    slot.store(head.0, Ordering::Release);
    reader.light_fence::<ANY>();
    // The page may have been another file's.
    let same = frame.is_of(handle.id);
    if frame.read_retry(anew.unwrap_or(stamp)) || !same {
        slot.store(0, Ordering::Release);
        return false;
    }
    reader.note_use(frame, head);
    true
}

/// Steps 3 to 5. Unless `ANY`, of a whole page.
#[inline(always)]
fn announce_found<const ANY: bool>(
    page: u64,
    Found { frame, head, from, stamp, at, span }: Found<'_>,
    (slot, state): (&AtomicU32, &State),
    reader: &Reader,
) -> bool {
    // Inside the folio at this head, if both are of one time; and inside the arena if not, as
    // orders of a head are of folios that began there.
    let bytes = guessed(from, at as usize, 0);
    let page_bytes = if ANY { view::page_bytes(at as usize, span as usize) } else { PAGE_BYTES };
    if mutant::on(Mutant::AnnounceLate) && frame.read_retry(stamp) {
        return false;
    }
    // Release: pairs with the acquire in `Readers::look`. A freezer that finds this folio here,
    // and so not the one before, comes after all that was read of that one.
    slot.store(head.0, Ordering::Release);
    reader.light_fence::<ANY>();
    if !mutant::on(Mutant::AnnounceLate) && frame.read_retry(stamp) {
        // Release: as at the end of a borrow; nothing was read, though.
        slot.store(0, Ordering::Release);
        return false;
    }
    reader.note_use(frame, head);
    state.shown.set(Shown { page, head, stamp, bytes, page_bytes });
    true
}

impl<'f, 'r> Borrowed<'f, 'r> {
    /// Of what the state shows.
    #[inline(always)]
    fn of(state: &'r State, handle: &'f Handle) -> Self {
        state.handle.set(Some(handle.into()));
        Borrowed { state: state.into(), file: PhantomData, reader: PhantomData }
    }

    /// Takes over the reference of what has this view.
    fn counted(view: View, head: FrameNumber, page: u64, handle: &'f Handle) -> Self {
        let state = Box::leak(Box::new(State::new(None)));
        let (bytes, page_bytes) = (view.address().cast_mut(), view.page_bytes());
        state.shown.set(Shown { page, head, stamp: Stamp::default(), bytes, page_bytes });
        Self::of(state, handle)
    }

    #[inline(always)]
    fn state(&self) -> &State {
        // SAFETY: the reader, whose lifetime the guard has, keeps its states where they are; a
        // boxed one lives until the guard's drop.
        unsafe { self.state.as_ref() }
    }

    /// What the guard shows.
    fn view(&self) -> View {
        let Shown { head, bytes, page_bytes, .. } = self.state().shown.get();
        // SAFETY: as it was found, and nobody has stored there since: that takes a free slot.
        unsafe { View::at(self.handle().core.frames.frame(head), bytes, page_bytes) }
    }

    fn handle(&self) -> &'f Handle {
        let handle = self.state().handle.get().expect("set with the guard");
        // SAFETY: it was made of a reference of this lifetime.
        unsafe { handle.as_ref() }
    }

    /// What the model's page says, now.
    #[cfg(all(test, loom))]
    pub(crate) fn word(&self) -> u64 {
        self.view().word()
    }

    /// The same page under a counted reference, which may leave the thread. Cost: one atomic add.
    ///
    /// # Errors
    /// [`Error::TooManyReferences`] if there are four million to its folio already.
    pub fn upgrade(&self) -> Result<FolioRef<'f>> {
        let head = self.state().shown.get().head;
        let count = &self.handle().core.frames.frame(head).count;
        if mutant::on(Mutant::UpgradeUnannounced)
            && let Some(slot) = self.state().slot
        {
            // SAFETY: as in `drop`.
            unsafe { slot.as_ref() }.store(0, Ordering::Release);
        }
        // Frozen: somebody has not seen yet that it is announced. Under the mutex that he holds
        // from before the freeze until he has put it back, it is not.
        let got = count.try_get(1);
        if got.is_err() {
            self.handle().core.check_owner()?;
        }
        let got = got.or_else(|_| {
            let _changing = self.handle().mapping.change();
            count.try_get(1)
        });
        let (path, offset) = (&self.handle().mapping.path, self.view().folio_offset());
        let page = offset / crate::frame::PAGE_BYTES as u64;
        got.map_err(|_| Error::TooManyReferences { path: path.clone(), page })?;
        Ok(FolioRef::adopt(self.handle(), self.view()))
    }

    /// All bytes of the folio that has the page, up to the end of the file: the page's neighbours
    /// that happen to lie beside it, 4 KiB to 2 MiB. Where they begin in the file:
    /// [`folio_offset`](Self::folio_offset).
    pub fn folio(&self) -> &[u8] {
        // SAFETY: announced, or referenced, it is not freed, and nobody writes to such a folio.
        unsafe { self.view().folio() }
    }

    /// The byte of the file that [`folio`](Self::folio) begins with; a multiple of 4096.
    pub fn folio_offset(&self) -> u64 {
        self.view().folio_offset()
    }

    /// As [`FolioRef::is_current`].
    pub fn is_current(&self) -> bool {
        self.view().is_current()
    }

    /// By value: a guard whose address nobody takes lives in a register.
    #[cold]
    #[inline(never)]
    fn drop_counted(state: NonNull<State>) {
        let (file, reader) = (PhantomData, PhantomData);
        let guard = ManuallyDrop::new(Borrowed { state, file, reader });
        drop(FolioRef::adopt(guard.handle(), guard.view()));
        // SAFETY: a state without a slot was boxed for this guard, which ends here.
        drop(unsafe { Box::from_raw(state.as_ptr()) });
    }

    /// Whether it has a reference because there was no slot.
    pub fn is_counted(&self) -> bool {
        self.state().slot.is_none()
    }
}

impl Deref for Borrowed<'_, '_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        let Shown { bytes, page_bytes, .. } = self.state().shown.get();
        // SAFETY: as it was found, see `view`; and as in `folio`.
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
        if crate::sync::model_failed() {
            return;
        }
        let Some(slot) = self.state().slot else { return Self::drop_counted(self.state) };
        // Release: pairs with the acquire in `Readers::look`: all that was read here comes before
        // whatever is done to the folio next.
        let order =
            if mutant::on(Mutant::ClearRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        // SAFETY: the slot is in the record of the reader, which the guard's lifetime keeps.
        unsafe { slot.as_ref() }.store(0, order);
    }
}
impl std::fmt::Debug for Borrowed<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Borrowed").field(&self.view()).finish()
    }
}
