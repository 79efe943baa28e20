//! The counted guard: `file.get(page)`.
//!
//! Here: taking a reference that outlives the call, cloning it, giving it back. Called by `file`, and
//! by the other guards when one is upgraded.
//!
//! # A hit, step by step
//!
//! 1. and 2. the look (`found.rs`): the page's folio, up to date, and how much of it is the file's;
//! 3. add one to the count, which must not be frozen;
//! 4. load the version again: unchanged means that 2 saw one thing, and that it stays.
//!
//! All that the entry says is read before the add, but for the version. Another thread that wants the
//! folio asks for its line at any moment; what is loaded once it is gone fetches it back.
//!
//! # Why the bytes stay
//!
//! The guard owns one reference on the folio's count. So nobody can freeze the folio: it is not
//! evicted, split or moved, and nobody writes to it. Invalidation takes it out of its file all the
//! same; then the guard keeps the bytes it has, and the last holder frees them.

use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::view::{self, View};
use crate::core::{Core, Held, take_one};
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::fill;
use crate::flaw::{self, Flaw};
use crate::found::{AnyPage, Found, Mark};
use crate::frame::{PAGE_BYTES, PAGE_SHIFT, guessed};
use crate::handle::Handle;

/// A page of a file, in place, under a counted reference: derefs to its bytes.
///
/// Made by [`File::get`](crate::File::get). The bytes are those of one moment and never change
/// under the guard, whatever becomes of the file; [`is_current`](Self::is_current) tells whether
/// they are still what the file has. It may be sent to other threads and shared with them. Its
/// folio cannot be evicted meanwhile, so a program that keeps many takes that much from the cache.
///
/// Cost: getting one is one atomic add on the folio's line, a clone one more, a drop one
/// subtraction. One that is [owned](Self::into_owned) also adds to and subtracts from the count of
/// the cache itself.
///
/// ```
/// # use pinfold::{Cache, Options, source::Memory};
/// # let cache = Cache::new(Options::new(8 << 20))?;
/// let file = cache.attach("bytes", std::sync::Arc::new(Memory::new(vec![7; 5000])))?;
/// let page = file.get(1)?;
/// assert_eq!(page.len(), 5000 - 4096);
/// std::thread::scope(|scope| {
///     scope.spawn(|| assert_eq!(page[0], 7));
/// });
/// # Ok::<(), pinfold::Error>(())
/// ```
pub struct FolioRef<'a> {
    view: View,
    core: NonNull<Core>,
    /// Of one that nothing else keeps the cache for. After the reference is given back.
    owner: Option<Arc<Core>>,
    life: PhantomData<&'a Core>,
}

// SAFETY: what it points to (the core, an entry, bytes that nobody writes) is `Sync`, and the
// reference may be given back by any thread.
unsafe impl Send for FolioRef<'_> {}
// SAFETY: as above; a shared guard gives out shared bytes only.
unsafe impl Sync for FolioRef<'_> {}

impl Handle {
    /// The page number `page`, under a counted reference.
    #[inline(always)]
    pub(crate) fn get(&self, page: u64) -> Result<FolioRef<'_>> {
        // Both ways bring words that fit into registers. A guard that is moved goes through memory, stored
        // by words and loaded by pairs, and such a load waits for the stores.
        let view = match self.hold_at_once(page) {
            Some(view) => view,
            None => self.hold_slowly(page)?,
        };
        Ok(FolioRef::adopt(self, view))
    }

    /// Steps 1 to 4, if nothing is in the way: the page, with a reference that is the caller's.
    #[inline(always)]
    fn hold_at_once(&self, page: u64) -> Option<View> {
        let Found { frame, head, from, stamp, at, span } = self.found(page, AnyPage)?;
        let used_most = frame.is_used_most();
        if !take_one(self.reference, frame) {
            return None;
        }
        flaw::pause();
        if frame.read_retry(stamp) && !flaw::on(Flaw::CountedBlindly) {
            self.core.put(head);
            return None;
        }
        self.counters().count(Event::CountedHit);
        if !used_most && self.counters().shard().comes_to(head.0) {
            frame.note_use();
        }
        let bytes = guessed(from, at as usize, 0);
        // SAFETY: the page is at `at` of the folio, which the reference keeps.
        Some(unsafe { View::at(frame, bytes, view::page_bytes(at as usize, span as usize)) })
    }

    /// What the models race.
    #[cfg(all(test, loom))]
    pub(crate) fn get_at_once(&self, page: u64) -> Option<FolioRef<'_>> {
        self.hold_at_once(page).map(|view| FolioRef::adopt(self, view))
    }

    /// The same with a fill, with reading ahead, with errors.
    #[cold]
    #[inline(never)]
    fn hold_slowly(&self, page: u64) -> Result<View> {
        self.held(
            page,
            (Mark::Meet, true),
            || self.get_missing(page),
            |held| match FolioRef::of(self, held, page) {
                Some(folio) => Ok(Some(folio.into_view())),
                None => self.check_page(page).map(|()| None),
            },
        )
    }

    #[cold]
    #[inline(never)]
    pub(super) fn get_missing(&self, page: u64) -> Result<Held<'_>> {
        self.check_page(page)?;
        fill::get(self, page, PAGE_BYTES)
    }

    /// # Errors
    /// The file ends before that page.
    #[cold]
    pub(super) fn check_page(&self, page: u64) -> Result<()> {
        let len_bytes = self.mapping.len_bytes();
        if page < len_bytes.div_ceil(PAGE_BYTES as u64) {
            return Ok(());
        }
        Err(Error::BeyondEnd { path: self.mapping.path.clone(), page, len_bytes })
    }
}

impl<'a> FolioRef<'a> {
    /// Takes over the reference of `held`, whose folio has `page` and was up to date. `None`: the file
    /// ended before that page.
    #[inline(always)]
    pub(super) fn of(handle: &'a Handle, held: Held<'a>, page: u64) -> Option<Self> {
        let (frame, head) = (held.frame(), held.head());
        let at = ((page << PAGE_SHIFT) - held.offset()) as usize;
        let from = handle.core.frames.address(head);
        // SAFETY: the reference is to the folio that has the page, and whose head this is.
        let view = unsafe { View::of(frame, from, at, frame.file_bytes()) }?;
        if handle.counters().shard().comes_to(head.0) {
            frame.note_use();
        }
        // The reference is the guard's from here on.
        std::mem::forget(held);
        Some(FolioRef::adopt(handle, view))
    }

    /// Takes over a reference to the folio of `view`.
    #[inline(always)]
    pub(super) fn adopt(handle: &'a Handle, view: View) -> Self {
        // From the `Arc`, so that `into_owned` can make another of it.
        let core = Arc::as_ptr(&handle.core).cast_mut();
        let core = NonNull::new(core).expect("an `Arc` is not null");
        FolioRef { view, core, owner: None, life: PhantomData }
    }

    /// The view, with the reference; only of one that has no owner.
    pub(super) fn into_view(self) -> View {
        debug_assert!(self.owner.is_none(), "an owner would be lost");
        std::mem::ManuallyDrop::new(self).view
    }

    fn core(&self) -> &Core {
        // SAFETY: the file that it came from, whose lifetime it has, keeps the core; or `owner` does.
        unsafe { self.core.as_ref() }
    }

    /// What the model's page says, now.
    #[cfg(all(test, loom))]
    pub(crate) fn word(&self) -> u64 {
        self.view.word()
    }

    /// The same page, with a hold on the cache itself: it outlives the file it came from.
    ///
    /// As long as one of these is alive the cache keeps all of its memory. Cost: one atomic add
    /// on the cache's count, a line that all who do this share.
    pub fn into_owned(mut self) -> FolioRef<'static> {
        if self.owner.is_none() {
            // SAFETY: the pointer came from `Arc::as_ptr`, and that `Arc` is alive: see `core`.
            unsafe { Arc::increment_strong_count(self.core.as_ptr()) };
            // SAFETY: the count was raised for this one.
            self.owner = Some(unsafe { Arc::from_raw(self.core.as_ptr()) });
        }
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped or used again, so that each field is moved once.
        let owner = unsafe { std::ptr::read(&raw const this.owner) };
        FolioRef { view: this.view, core: this.core, owner, life: PhantomData }
    }

    /// All bytes of the folio that has the page, up to the end of the file: the page's neighbours
    /// that happen to lie beside it, 4 KiB to 2 MiB. Where they begin in the file:
    /// [`folio_offset`](Self::folio_offset).
    pub fn folio(&self) -> &[u8] {
        // SAFETY: the reference keeps the folio, and nobody writes to one that others hold.
        unsafe { self.view.folio() }
    }

    /// The byte of the file that [`folio`](Self::folio) begins with; a multiple of 4096.
    pub fn folio_offset(&self) -> u64 {
        self.view.folio_offset()
    }

    /// Whether these bytes are still the file's: false for ever once they were invalidated, or
    /// written to, or the file's length has changed inside of the folio.
    ///
    /// What was read, through any guard or by any copy, before this said "true" belongs together
    /// with this page: see `docs/borrow.md`. Cost: one load.
    pub fn is_current(&self) -> bool {
        self.view.is_current()
    }
}

impl Deref for FolioRef<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: as in `folio`.
        unsafe { self.view.page() }
    }
}

impl AsRef<[u8]> for FolioRef<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for FolioRef<'_> {
    /// # Panics
    /// With more than four million references to one folio at once.
    #[inline]
    fn clone(&self) -> Self {
        self.view.frame().count.get(1);
        FolioRef { view: self.view, core: self.core, owner: self.owner.clone(), life: PhantomData }
    }
}

impl Drop for FolioRef<'_> {
    #[inline]
    fn drop(&mut self) {
        if crate::sync::model_failed() {
            return;
        }
        let frame = self.view.frame();
        if frame.count.put(1) {
            let core = self.core();
            core.destroy(core.frames.number(frame), frame);
        }
    }
}

impl std::fmt::Debug for FolioRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FolioRef").field(&self.view).finish()
    }
}
