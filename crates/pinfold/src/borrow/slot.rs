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
//! No step waits, and a hit stores to the reader's own line only. On any doubt the slot is
//! cleared and the page held by a reference instead; then 3 to 5 are tried under that reference,
//! which is given back if they succeed. With no slot free, or with the folio being frozen over and
//! over, the guard keeps the reference.

use std::marker::PhantomData;
use std::ops::Deref;

use super::FolioRef;
use super::view::View;
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::fill;
use crate::flaw::{self, Flaw};
use crate::frame::{Flags, Frame, FrameNumber};
use crate::handle::Handle;
use crate::readers::Reader;
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
pub struct Borrowed<'a> {
    view: View,
    /// Where it is announced; without, it has a reference.
    slot: Option<&'a AtomicU32>,
    handle: &'a Handle,
    /// Neither `Send` nor `Sync`: the slot has one writer.
    stays: PhantomData<*mut ()>,
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
    pub(crate) fn borrow<'a>(&'a self, page: u64, reader: &'a Reader) -> Result<Borrowed<'a>> {
        match self.borrow_at_once(page, reader) {
            Ok(borrowed) => Ok(borrowed),
            Err(_) => self.borrow_slowly(page, reader),
        }
    }

    /// Steps 1 to 5, if nothing is in the way.
    #[inline(always)]
    pub(crate) fn borrow_at_once<'a>(
        &'a self,
        page: u64,
        reader: &'a Reader,
    ) -> Result<Borrowed<'a>, Trouble> {
        let core = &*self.core;
        // Its slots are looked at by those who freeze in its own cache only.
        if !reader.is_of(&core.readers) {
            return Err(Trouble::Folio);
        }
        let head = self.mapping.index.lookup(page).ok_or(Trouble::Folio)?;
        let frame = core.frames.try_frame(head).ok_or(Trouble::Folio)?;
        self.announce(page, frame, head, reader)
    }

    /// Steps 2 to 5.
    #[inline(always)]
    fn announce<'a>(
        &'a self,
        page: u64,
        frame: &'a Frame,
        head: FrameNumber,
        reader: &'a Reader,
    ) -> Result<Borrowed<'a>, Trouble> {
        let stamp = frame.read_begin().ok_or(Trouble::Folio)?;
        let identity = frame.identity();
        let at = page.wrapping_sub(identity.index);
        if identity.mapping != self.mapping.id
            || at >= u64::from(identity.order.frames())
            || frame.has_readahead_mark()
        {
            return Err(Trouble::Folio);
        }
        let view = View::of(self, frame, head, page).ok_or(Trouble::Folio)?;
        let slot = reader.free_slot().ok_or(Trouble::Slots)?;
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
        if reader.comes_to(head) {
            frame.note_use();
        }
        Ok(Borrowed { view, slot: Some(slot), handle: self, stays: PhantomData })
    }

    /// By a reference: with a fill, with reading ahead, with errors.
    #[cold]
    #[inline(never)]
    fn borrow_slowly<'a>(&'a self, page: u64, reader: &'a Reader) -> Result<Borrowed<'a>> {
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
            match self.announce(page, held.frame(), held.head(), reader) {
                Ok(borrowed) => return Ok(borrowed),
                Err(Trouble::Slots) => self.core.counters.count(Event::BorrowCounted),
                Err(Trouble::Folio) => {}
            }
            if let Some(folio) = FolioRef::of(self, held, page) {
                let view = folio.into_view();
                return Ok(Borrowed { view, slot: None, handle: self, stays: PhantomData });
            }
            self.check_page(page)?;
        }
    }
}

impl<'a> Borrowed<'a> {
    /// What the model's page says, now.
    #[cfg(all(test, loom))]
    pub(crate) fn word(&self) -> u64 {
        self.view.word()
    }

    /// The same page under a counted reference, which may leave the thread. Cost: one atomic add.
    ///
    /// # Errors
    /// [`Error::TooManyReferences`] if there are four million to its folio already.
    pub fn upgrade(&self) -> Result<FolioRef<'a>> {
        let count = &self.view.frame().count;
        if flaw::on(Flaw::UpgradeUnannounced)
            && let Some(slot) = self.slot
        {
            slot.store(0, Ordering::Release);
        }
        // Frozen: somebody has not seen yet that it is announced. Under the mutex that he holds
        // from before the freeze until he has put it back, it is not.
        let got = count.try_get(1).or_else(|_| {
            let _changing = self.handle.mapping.change();
            count.try_get(1)
        });
        let (path, offset) = (&self.handle.mapping.path, self.view.folio_offset());
        let page = offset / crate::frame::PAGE_BYTES as u64;
        got.map_err(|_| Error::TooManyReferences { path: path.clone(), page })?;
        Ok(FolioRef::adopt(self.handle, self.view))
    }

    /// All bytes of the folio that has the page, up to the end of the file: the page's neighbours
    /// that happen to lie beside it, 4 KiB to 2 MiB. Where they begin in the file:
    /// [`folio_offset`](Self::folio_offset).
    pub fn folio(&self) -> &[u8] {
        // SAFETY: announced, or referenced, it is not freed, and nobody writes to such a folio.
        unsafe { self.view.folio() }
    }

    /// The byte of the file that [`folio`](Self::folio) begins with; a multiple of 4096.
    pub fn folio_offset(&self) -> u64 {
        self.view.folio_offset()
    }

    /// As [`FolioRef::is_current`].
    pub fn is_current(&self) -> bool {
        self.view.is_current()
    }

    /// Whether it has a reference because there was no slot.
    pub fn is_counted(&self) -> bool {
        self.slot.is_none()
    }
}

impl Deref for Borrowed<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `folio`.
        unsafe { self.view.page() }
    }
}

impl AsRef<[u8]> for Borrowed<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Borrowed<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // A model that has failed has no atomics any more.
        if cfg!(loom) && std::thread::panicking() {
            return;
        }
        match self.slot {
            // Release: pairs with the acquire in `Readers::look`: all that was read here comes
            // before whatever is done to the folio next.
            Some(slot) if flaw::on(Flaw::ClearRelaxed) => slot.store(0, Ordering::Relaxed),
            Some(slot) => slot.store(0, Ordering::Release),
            None => drop(FolioRef::adopt(self.handle, self.view)),
        }
    }
}

impl std::fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Borrowed").field(&self.view).finish()
    }
}
