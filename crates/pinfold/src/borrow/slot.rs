//! The guard that announces: `file.borrow(page, &reader)`.
//!
//! Here: the borrow without a shared store, and what it falls back to. Not here: the slots and the
//! look at them, with the argument why announcing is enough (`readers/mod.rs`). Called by `file`.
//!
//! # A borrow, step by step
//!
//! 1. look the page up: a hint;
//! 2. load the version, which must be even, then the identity, which must be ours, then the length;
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
use std::ops::Deref;
use std::ptr::NonNull;

use super::FolioRef;
use super::reader::{Memory, Reader, State};
use super::view::View;
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::fill;
use crate::flaw::{self, Flaw};
use crate::frame::{Flags, Frame, FrameNumber, PAGE_SHIFT, Stamp, guessed};
use crate::handle::Handle;
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

/// What stands in the way of a borrow without counting.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The folio is not there, is on its way, or changes.
    Folio,
    /// All slots are in use.
    Slots,
}

impl Handle {
    /// The page number `page`, announced in a slot of `reader`'s.
    #[inline(always)]
    pub(crate) fn borrow<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Result<Borrowed<'f, 'r>> {
        match self.borrow_at_once(page, reader) {
            Ok(borrowed) => Ok(borrowed),
            Err(_) => self.borrow_slowly(page, reader),
        }
    }

    /// Steps 1 to 5, if nothing is in the way.
    #[inline(always)]
    pub(crate) fn borrow_at_once<'f, 'r>(
        &'f self,
        page: u64,
        reader: &'r Reader,
    ) -> Result<Borrowed<'f, 'r>, Trouble> {
        let (slot, state) = reader.free_slot().ok_or(Trouble::Slots)?;
        let Memory { serial, page: shown, stamp, head } = state.memory.get();
        if shown == page
            && serial == self.serial
            && let Some(borrowed) = self.announce_again((slot, state), head, stamp, reader)
        {
            return Ok(borrowed);
        }
        let core = &*self.core;
        // Its slots are looked at by those who freeze in its own cache only.
        if !reader.is_of(&core.readers) {
            return Err(Trouble::Folio);
        }
        let head = self.mapping.index.lookup_hint(page);
        let both = core.frames.try_both(head).ok_or(Trouble::Folio)?;
        self.announce(page, head, both, (slot, state), reader)
    }

    /// Steps 3 to 5, for the page that the slot showed last.
    #[inline(always)]
    fn announce_again<'f, 'r>(
        &'f self,
        (slot, state): (&AtomicU32, &'r State),
        head: FrameNumber,
        stamp: Stamp,
        reader: &'r Reader,
    ) -> Option<Borrowed<'f, 'r>> {
        // SAFETY: there is a view with a memory. Its cache is this one's: the serial is this handle's.
        let frame = unsafe { state.view.get().unwrap_unchecked().frame_of(self) };
        let stamp = if flaw::on(Flaw::RecallBlindly) { frame.read_begin()? } else { stamp };
        // Release, both stores: as in `announce`.
        slot.store(head.0, Ordering::Release);
        reader.light_fence();
        if frame.read_retry(stamp) {
            slot.store(0, Ordering::Release);
            return None;
        }
        reader.note_use(frame, head);
        Some(Borrowed::again(state, self))
    }

    /// Steps 2 to 5.
    #[inline(always)]
    fn announce<'f, 'r>(
        &'f self,
        page: u64,
        head: FrameNumber,
        (frame, from): (&Frame, *mut u8),
        (slot, state): (&AtomicU32, &'r State),
        reader: &'r Reader,
    ) -> Result<Borrowed<'f, 'r>, Trouble> {
        let stamp = frame.read_begin().ok_or(Trouble::Folio)?;
        let (id, folio_start, span) = frame.readable();
        let start = page << PAGE_SHIFT;
        let at = start.wrapping_sub(folio_start);
        if id != self.mapping.id || at >= u64::from(span) {
            return Err(Trouble::Folio);
        }
        // Inside the folio at this head, if both are of one time; and inside the arena if not, as
        // orders of a head are of folios that began there.
        let bytes = guessed(from, at as usize, 0);
        // SAFETY: see above.
        let view = unsafe { View::of(self, frame, bytes, start) }.ok_or(Trouble::Folio)?;
        if flaw::on(Flaw::AnnounceLate) && frame.read_retry(stamp) {
            return Err(Trouble::Folio);
        }
        // Release: pairs with the acquire in `Readers::look`. A freezer that finds this folio here,
        // and so not the one before, comes after all that was read of that one.
        slot.store(head.0, Ordering::Release);
        reader.light_fence();
        if !flaw::on(Flaw::AnnounceLate) && frame.read_retry(stamp) {
            // Release: as at the end of a borrow; nothing was read, though.
            slot.store(0, Ordering::Release);
            return Err(Trouble::Folio);
        }
        reader.note_use(frame, head);
        state.memory.set(Memory { serial: self.serial, page, stamp, head });
        Ok(Borrowed::of(state, view, self))
    }

    /// By a reference: with a fill, with reading ahead, with errors.
    #[cold]
    #[inline(never)]
    fn borrow_slowly<'f, 'r>(&'f self, page: u64, reader: &'r Reader) -> Result<Borrowed<'f, 'r>> {
        if !reader.is_of(&self.core.readers) {
            return Err(Error::ForeignReader { path: self.mapping.path.clone() });
        }
        // Ends: each further turn follows an invalidation of this very folio.
        loop {
            let held = self.core.hold(&self.mapping, page);
            let held = match held.filter(|held| !held.frame().is_changing()) {
                Some(held) => held,
                None => self.get_missing(page)?,
            };
            if held.frame().flags().contains(Flags::READAHEAD) {
                fill::read_further(self, &held);
            }
            let both = (held.frame(), self.core.frames.address(held.head()));
            match reader.free_slot() {
                Some(free) => {
                    if let Ok(borrowed) = self.announce(page, held.head(), both, free, reader) {
                        return Ok(borrowed);
                    }
                }
                None => self.core.counters.count(Event::BorrowCounted),
            }
            if let Some(folio) = FolioRef::of(self, held, page) {
                let state = Box::leak(Box::new(State::new(None)));
                return Ok(Borrowed::of(state, folio.into_view(), self));
            }
            self.check_page(page)?;
        }
    }
}

impl<'f, 'r> Borrowed<'f, 'r> {
    #[inline(always)]
    fn of(state: &'r State, view: View, handle: &'f Handle) -> Self {
        state.view.set(Some(view));
        Self::again(state, handle)
    }

    /// Of what the state showed last.
    #[inline(always)]
    fn again(state: &'r State, handle: &'f Handle) -> Self {
        state.handle.set(Some(handle.into()));
        Borrowed { state: state.into(), file: PhantomData, reader: PhantomData }
    }

    #[inline(always)]
    fn state(&self) -> &State {
        // SAFETY: the reader, whose lifetime the guard has, keeps its states where they are; a
        // boxed one lives until the guard's drop.
        unsafe { self.state.as_ref() }
    }

    /// What the guard shows.
    #[inline(always)]
    fn view(&self) -> &View {
        // SAFETY: stored to by `of`, and not again before the guard's drop gives the state back,
        // which takes the guard from all who have this.
        let view = unsafe { &*self.state().view.as_ptr() };
        // SAFETY: `of` stored something.
        unsafe { view.as_ref().unwrap_unchecked() }
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
        let count = &self.view().frame().count;
        if flaw::on(Flaw::UpgradeUnannounced)
            && let Some(slot) = self.state().slot
        {
            // SAFETY: as in `drop`.
            unsafe { slot.as_ref() }.store(0, Ordering::Release);
        }
        // Frozen: somebody has not seen yet that it is announced. Under the mutex that he holds
        // from before the freeze until he has put it back, it is not.
        let got = count.try_get(1).or_else(|_| {
            let _changing = self.handle().mapping.change();
            count.try_get(1)
        });
        let (path, offset) = (&self.handle().mapping.path, self.view().folio_offset());
        let page = offset / crate::frame::PAGE_BYTES as u64;
        got.map_err(|_| Error::TooManyReferences { path: path.clone(), page })?;
        Ok(FolioRef::adopt(self.handle(), *self.view()))
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

    #[cold]
    #[inline(never)]
    fn drop_counted(&mut self) {
        drop(FolioRef::adopt(self.handle(), *self.view()));
        // SAFETY: a state without a slot was boxed for this guard, which ends here.
        drop(unsafe { Box::from_raw(self.state.as_ptr()) });
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
        // SAFETY: as in `folio`.
        unsafe { self.view().page() }
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
        // A model that has failed has no atomics any more.
        if cfg!(loom) && std::thread::panicking() {
            return;
        }
        let Some(slot) = self.state().slot else { return self.drop_counted() };
        // Release: pairs with the acquire in `Readers::look`: all that was read here comes before
        // whatever is done to the folio next.
        let order =
            if flaw::on(Flaw::ClearRelaxed) { Ordering::Relaxed } else { Ordering::Release };
        // SAFETY: the slot is in the record of the reader, which the guard's lifetime keeps.
        unsafe { slot.as_ref() }.store(0, order);
    }
}
impl std::fmt::Debug for Borrowed<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Borrowed").field(self.view()).finish()
    }
}
