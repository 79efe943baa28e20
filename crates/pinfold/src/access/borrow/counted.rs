//! The counted guard: `file.get(page)`, a reference that outlives the call. A hit, step by step:
//!
//! 1. and 2. the optimistic look-up (`found.rs`);
//! 3. add one to the count, which must not be frozen;
//! 4. load the version again: if it is unchanged, what 2 read is consistent, and stays so.
//!
//! All but the version is read from the entry before the add: others may take its line away.
//!
//! Under the reference no thread can freeze the folio: it is not evicted, split, moved or written
//! to. Invalidation can still remove it from its file; then the last holder frees the old bytes.

use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;

use super::admit::admit;
use super::view::PageView;
use crate::access::found::{Found, HoldablePage, MayWait, ReadaheadMark, filled};
use crate::base::counters::{Event, Shard};
use crate::base::mutant::{self, Mutant};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::{Global, PAGE_BYTES, PAGE_SHIFT, predicted};
use crate::pages::core::{Core, Held, take_one};
use crate::pages::fill;
use crate::pages::handle::Handle;

/// A page of a file, in place, under a counted reference. Made by [`File::get`](crate::File::get).
/// Derefs to the page's bytes, which never change under the guard; [`is_current`](Self::is_current)
/// says whether the file still has them. Guards can be sent to other threads and shared. They keep
/// memory from the cache.
///
/// Cost: one atomic add on the folio's line to get one, another for a clone, one subtraction for a
/// drop. An [owned](Self::into_owned) guard also counts on the cache itself.
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
    view: PageView,
    core: NonNull<Core>,
    /// Set if nothing else keeps the cache alive.
    owner: Option<Arc<Core>>,
    life: PhantomData<&'a Core>,
}

// SAFETY: what it points to is `Sync`, and any thread may give the reference back.
unsafe impl Send for FolioRef<'_> {}
// SAFETY: as above; a shared guard hands out shared bytes only.
unsafe impl Sync for FolioRef<'_> {}

impl Handle {
    #[inline(always)]
    pub(crate) fn get(&self, page: u64) -> Result<FolioRef<'_>> {
        // A `PageView` fits registers; a guard would go through memory.
        let view = match self.hold_at_once(page) {
            Some(view) => view,
            None => self.hold_slowly(page, true)?,
        };
        Ok(FolioRef::adopt(self, view))
    }

    #[inline(always)]
    pub(crate) fn try_get(&self, page: u64) -> Result<Option<FolioRef<'_>>> {
        let view = match self.hold_at_once(page) {
            Some(view) => Some(view),
            None => self.hold(page, (MayWait::Never, true))?,
        };
        Ok(view.map(|view| FolioRef::adopt(self, view)))
    }

    /// Steps 1 to 4.
    #[inline(always)]
    fn hold_at_once(&self, page: u64) -> Option<PageView> {
        let shard = self.counters().shard();
        let view = self.hold_found(self.found(page, HoldablePage)?, shard)?;
        shard.add(Event::CountedHit, 1);
        Some(view)
    }

    /// Steps 3 and 4. The caller counts the hit.
    #[inline(always)]
    fn hold_found(&self, found: Found<'_>, shard: &Shard) -> Option<PageView> {
        let Found { frame, head, from, stamp, byte, at, span } = found;
        let used_most = frame.is_used_most();
        if !take_one(self.reference, frame) {
            return None;
        }
        mutant::pause();
        if frame.read_retry(stamp) && !mutant::on(Mutant::CountedBlindly) {
            self.core.put(head);
            return None;
        }
        if !used_most {
            frame.note_read(shard, byte, at as usize, PAGE_BYTES);
        }
        let bytes = predicted(from, at as usize, 0);
        // Not negative: the folio has at least one byte of the page.
        let page_bytes = (span.wrapping_sub(at) as usize).min(PAGE_BYTES);
        // SAFETY: the page is at offset `at` of the folio, which the reference keeps.
        Some(unsafe { PageView::at(frame, bytes, page_bytes) })
    }

    /// The caller counts the hit.
    #[inline(always)]
    pub(crate) fn get_found(&self, found: Found<'_>, shard: &Shard) -> Option<FolioRef<'_>> {
        self.hold_found(found, shard).map(|view| FolioRef::adopt(self, view))
    }

    #[inline(always)]
    pub(crate) fn get_at_once(&self, page: u64) -> Option<FolioRef<'_>> {
        self.hold_at_once(page).map(|view| FolioRef::adopt(self, view))
    }

    /// With fills, readahead and errors. With `counted`, a page that is present counts as a hit.
    pub(crate) fn get_slowly(&self, page: u64, counted: bool) -> Result<FolioRef<'_>> {
        self.hold_slowly(page, counted).map(|view| FolioRef::adopt(self, view))
    }

    #[cold]
    #[inline(never)]
    fn hold_slowly(&self, page: u64, counted: bool) -> Result<PageView> {
        self.hold(page, (MayWait::Yes, counted)).map(filled)
    }

    /// `None`: the page is absent, and the caller may not wait.
    #[cold]
    #[inline(never)]
    fn hold(&self, page: u64, (wait, counted): (MayWait, bool)) -> Result<Option<PageView>> {
        let missing = || self.get_missing(page, wait);
        self.held(page, (ReadaheadMark::Meet, counted), missing, |held| {
            let Some(held) = admit(self, held, page, wait)? else { return Ok(None) };
            match FolioRef::of(self, held, page) {
                Some(folio) => Ok(Some(folio.into_view())),
                None => self.check_page(page).map(|()| None),
            }
        })
    }

    #[cold]
    #[inline(never)]
    pub(super) fn get_missing(&self, page: u64, wait: MayWait) -> Result<Option<Held<'_>>> {
        self.check_page(page)?;
        wait.fill(|| fill::get(self, page, PAGE_BYTES))
    }

    /// Error: [`ErrorKind::BeyondEnd`].
    #[cold]
    pub(crate) fn check_page(&self, page: u64) -> Result<()> {
        let len_bytes = self.mapping.len_bytes();
        if page < len_bytes.div_ceil(PAGE_BYTES as u64) {
            return Ok(());
        }
        Err(Cause::BeyondEnd { path: self.mapping.path.clone(), page, len_bytes }.into())
    }
}

impl<'a> FolioRef<'a> {
    /// Takes over the reference of `held`, whose folio has `page`, was up to date, and was
    /// admitted. `None`: the file ended before that page.
    #[inline(always)]
    pub(crate) fn of(handle: &'a Handle, held: Held<'a>, page: u64) -> Option<Self> {
        let frame = held.frame();
        let at = ((page << PAGE_SHIFT) - held.offset()) as usize;
        let from = held.address(&handle.mapping);
        // SAFETY: the reference is to the folio that has the page, and whose head this is.
        let view = unsafe { PageView::of(frame, from, at, frame.file_bytes()) }?;
        let first = Global::of(handle.id, page << PAGE_SHIFT);
        frame.note_read(handle.counters().shard(), first, at, PAGE_BYTES);
        std::mem::forget(held);
        Some(FolioRef::adopt(handle, view))
    }

    /// Takes over a reference to the folio of `view`.
    #[inline(always)]
    pub(crate) fn adopt(handle: &'a Handle, view: PageView) -> Self {
        // From the `Arc`, so that `into_owned` can make another `Arc` of it.
        let core = Arc::as_ptr(&handle.core).cast_mut();
        let core = NonNull::new(core).expect("an `Arc` is not null");
        FolioRef { view, core, owner: None, life: PhantomData }
    }

    /// With the reference. Only for a guard without an owner.
    pub(crate) fn into_view(self) -> PageView {
        debug_assert!(self.owner.is_none(), "an owner would be lost");
        std::mem::ManuallyDrop::new(self).view
    }

    /// For one who has a share of the file of `handle`, and drops the guard first. Panics if the
    /// page is of another cache.
    #[inline]
    #[cfg(not(loom))]
    pub(crate) fn kept_by(self, handle: &Handle) -> FolioRef<'static> {
        let is_of_it = std::ptr::eq(self.core.as_ptr(), Arc::as_ptr(&handle.core));
        assert!(is_of_it, "the page is of another cache than the file");
        let mut this = std::mem::ManuallyDrop::new(self);
        // An owned guard needs its own share no more.
        drop(this.owner.take());
        FolioRef { view: this.view, core: this.core, owner: None, life: PhantomData }
    }

    fn core(&self) -> &Core {
        // SAFETY: the file, whose lifetime the guard has, keeps the core; or `owner` does.
        unsafe { self.core.as_ref() }
    }

    /// The page alone, or a folio that is granted.
    #[cfg(all(test, any(loom, shuttle)))]
    pub(crate) fn may_keep(&self) -> bool {
        let frame = self.view.frame();
        let granted = frame.flags().contains(crate::frames::Flags::GRANTED);
        granted || frame.order() == crate::frames::Order::MIN
    }

    #[cfg(all(test, loom))]
    pub(crate) fn word(&self) -> u64 {
        self.view.word()
    }

    /// The same page in a guard that keeps the cache itself alive, with all of its memory, and so
    /// outlives its file. Cost: one atomic add on a line that all such guards share.
    /// [`FolioOf`](crate::FolioOf) costs less.
    pub fn into_owned(mut self) -> FolioRef<'static> {
        if self.owner.is_none() {
            // SAFETY: the pointer came from `Arc::as_ptr`, and that `Arc` is alive.
            unsafe { Arc::increment_strong_count(self.core.as_ptr()) };
            // SAFETY: the count was raised for this one.
            self.owner = Some(unsafe { Arc::from_raw(self.core.as_ptr()) });
        }
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped or used again, so that each field is moved once.
        let owner = unsafe { std::ptr::read(&raw const this.owner) };
        FolioRef { view: this.view, core: this.core, owner, life: PhantomData }
    }

    /// All bytes of the page's folio, up to the end of the file: 4 KiB to 2 MiB, from
    /// [`folio_offset`](Self::folio_offset) on.
    pub fn folio(&self) -> &[u8] {
        // SAFETY: the reference keeps the folio, and a folio with holders is never written to.
        unsafe { self.view.folio_read() }
    }

    /// `bytes` bytes of the folio from its byte `at` on, as far as it has them.
    pub(crate) fn part(&self, at: usize, bytes: usize) -> Option<&[u8]> {
        // SAFETY: as above.
        let part = unsafe { self.view.folio() }.get(at..at + bytes)?;
        self.view.note_read(at, bytes);
        Some(part)
    }

    /// The offset in the file, in bytes, of [`folio`](Self::folio); a multiple of 4096.
    pub fn folio_offset(&self) -> u64 {
        self.view.folio_offset()
    }

    /// Whether the file, as the cache knows it, still has these bytes, and has had them ever since
    /// the guard was taken. False for ever once the folio has left the file: after
    /// [`File::invalidate`](crate::File::invalidate), [`Hint::DontNeed`](crate::Hint::DontNeed) or
    /// a write, after a change of the file's length within the folio, and after the cache has given
    /// up the file.
    ///
    /// It begins with an acquire fence: a thread that has read, by any load, something stored after
    /// the folio left its file, gets false. Cost: the fence and one load.
    ///
    /// Guards of several pages that all say so, once the last of them was taken, show the file as
    /// of that one moment. To go down an index tree, take the parent, read the child's number in
    /// it, take the child, and then ask the parent.
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
    /// If the folio has more than four million references.
    #[inline]
    fn clone(&self) -> Self {
        self.view.frame().count.get(1);
        FolioRef { view: self.view, core: self.core, owner: self.owner.clone(), life: PhantomData }
    }
}

impl Drop for FolioRef<'_> {
    #[inline]
    fn drop(&mut self) {
        if crate::base::sync::model_failed() {
            return;
        }
        let frame = self.view.frame();
        if frame.count.put(1) {
            let core = self.core();
            core.destroy(core.frames.number(frame), frame);
        }
    }
}

impl UnwindSafe for FolioRef<'_> {}
impl RefUnwindSafe for FolioRef<'_> {}

impl std::fmt::Debug for FolioRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FolioRef").field(&self.view).finish()
    }
}
