//! Reads pages without holding them: copy, then validate.
//!
//! Versions only grow. So if all stamps are found unchanged after the last copy, then at the moment
//! the last stamp was taken every page was what its copy says.
//!
//! The bytes of pages that maps show are outside of the arena, where a load of a page that has left
//! would be a fault. So their stamp is taken under a reference, and each copy is a system call,
//! which finds anything there, or nothing. A page leaves its place after its version has become
//! odd.

use std::panic::{RefUnwindSafe, UnwindSafe};

use super::view::PageView;
use crate::access::found::{CopiedPage, Found, MayWait, ReadaheadMark, filled};
use crate::error::Result;
use crate::frames::{Frame, PAGE_BYTES, PAGE_SHIFT, Stamp, copy_racing};
use crate::pages::core::Held;
use crate::pages::handle::Handle;
use crate::pages::outside::Outside;

/// A page of a file that nothing holds: its bytes can be copied, and the copy validated. Made by
/// [`File::optimistic`](crate::File::optimistic). Any thread may keep any number for any time. When
/// the page is evicted, moved or written to, or an attempt is made to evict it,
/// [`validate`](Self::validate) becomes false, and the program must ask for the page again. Of a
/// page that a [`Map`](crate::Map) shows, each [`read`](Self::read) is a system call.
///
/// ```
/// # use pinfold::{Cache, Optimistic, Options, source::Memory};
/// # let cache = Cache::new(Options::new(8 << 20))?;
/// # let file = cache.attach("bytes", std::sync::Arc::new(Memory::new(vec![7; 9000])))?;
/// let (mut parent, mut child) = ([0; 8], [0; 8]);
/// loop {
///     let first = file.optimistic(0)?;
///     first.read(16, &mut parent);
///     // Validate a pointer before following it.
///     if !first.validate() {
///         continue;
///     }
///     let second = file.optimistic(u64::from(parent[0]) % 2)?;
///     second.read(32, &mut child);
///     // Both pages are of one moment; otherwise start again.
///     if [first, second].iter().all(Optimistic::validate) {
///         break;
///     }
/// }
/// # assert_eq!((parent, child), ([7; 8], [7; 8]));
/// # Ok::<(), pinfold::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Optimistic<'a> {
    frame: &'a Frame,
    stamp: Stamp,
    view: PageView,
    /// Of bytes outside of the arena: whose page it is, and its number.
    outside: Option<(&'a Handle, u64)>,
}

// SAFETY: an entry and bytes of the arena, which the file keeps mapped, read by racing loads only.
unsafe impl Send for Optimistic<'_> {}
// SAFETY: as above; nothing is stored.
unsafe impl Sync for Optimistic<'_> {}
impl UnwindSafe for Optimistic<'_> {}
impl RefUnwindSafe for Optimistic<'_> {}

impl std::fmt::Debug for Optimistic<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Optimistic { view, stamp, .. } = self;
        f.debug_struct("Optimistic")
            .field("view", view)
            .field("stamp", stamp)
            .finish_non_exhaustive()
    }
}

impl Handle {
    /// Up to date at this moment.
    #[inline]
    pub(crate) fn optimistic(&self, page: u64) -> Result<Optimistic<'_>> {
        match self.stamped(page) {
            Some(found) => Ok(found),
            None => self.bring(page),
        }
    }

    /// Reads the page if it is absent, and meets a readahead mark. A page outside of the arena, or
    /// without a global offset, is found here alone.
    #[cold]
    #[inline(never)]
    fn bring(&self, page: u64) -> Result<Optimistic<'_>> {
        let missing = || self.get_missing(page, MayWait::Yes);
        self.held(page, (ReadaheadMark::Meet, true), missing, |held| {
            if held.frame().file_bytes() as u64 + held.offset() <= page << PAGE_SHIFT {
                return self.check_page(page).map(|()| None);
            }
            // `None`: it was dropped just now.
            Ok(if held.frame().is_hollow() {
                self.stamped_outside(&held, page)
            } else {
                self.look(held.head(), page << PAGE_SHIFT, CopiedPage).and_then(stamp)
            })
        })
        .map(filled)
    }

    /// Of a hollow folio.
    fn stamped_outside<'a>(&'a self, held: &Held<'a>, page: u64) -> Option<Optimistic<'a>> {
        let (frame, from) = (held.frame(), held.address(&self.mapping));
        let stamp = frame.read_begin()?;
        let at = ((page << PAGE_SHIFT) - held.offset()) as usize;
        // SAFETY: the reference is to the folio that has the page; it has that address.
        let view = unsafe { PageView::of(frame, from, at, frame.file_bytes()) }?;
        note_first_read(frame, at);
        Some(Optimistic { frame, stamp, view, outside: Some((self, page)) })
    }

    /// As the index has it now, if it is up to date.
    #[inline]
    pub(crate) fn stamped(&self, page: u64) -> Option<Optimistic<'_>> {
        self.found(page, CopiedPage).and_then(stamp)
    }
}

#[inline]
fn stamp(found: Found<'_>) -> Option<Optimistic<'_>> {
    let Found { frame, from, stamp, at, span, .. } = found;
    // SAFETY: inside the arena; it is the page's if the stamp is still valid below.
    let view = unsafe { PageView::of(frame, from, at as usize, span as usize) }?;
    // The check makes length and address those of the folio with this stamp.
    if frame.read_retry(stamp) {
        return None;
    }
    if frame.is_first_read() {
        note_first_read(frame, at as usize);
    }
    Some(Optimistic { frame, stamp, view, outside: None })
}

/// Whoever reads ahead wants to know that the page is read at all.
#[cold]
#[inline(never)]
fn note_first_read(frame: &Frame, at: usize) {
    frame.note_use(false, at, PAGE_BYTES);
}

impl Optimistic<'_> {
    /// The length of the page: 4096 bytes, or fewer at the end of the file.
    #[allow(clippy::len_without_is_empty, reason = "a page past the end is none")]
    pub fn len(&self) -> usize {
        self.view.page_bytes
    }

    /// Copies `buf.len()` bytes, from byte `from` of the page on. The copy is unspecified until
    /// [`validate`](Self::validate) returns true.
    ///
    /// # Panics
    /// If the range is not in the page.
    pub fn read(&self, from: usize, buf: &mut [u8]) {
        let page_bytes = self.view.page_bytes;
        let inside = from.checked_add(buf.len()).is_some_and(|end| end <= page_bytes);
        assert!(inside, "{} bytes at {from} of a page of {page_bytes}", buf.len());
        if let Some((handle, page)) = self.outside {
            handle.core.copy_outside(&handle.mapping, (page << PAGE_SHIFT) + from as u64, buf);
            return;
        }
        let source = self.view.address().wrapping_add(from);
        // SAFETY: inside a page of the arena, read by racing loads; `buf` is the caller's alone.
        unsafe { copy_racing(buf.as_mut_ptr(), source, buf.len()) };
    }

    /// True if all copies made so far are of one moment, at which the file had these bytes, and it
    /// still has them. Of several pages that are all valid once the last copy was made, all copies
    /// are of one moment. May be false although nothing changed. Once false, it stays false. Cost:
    /// an acquire fence and one load.
    #[must_use = "what was read may be used only if this is true"]
    pub fn validate(&self) -> bool {
        !self.frame.read_retry(self.stamp)
            // A forked child sees what the parent does to bytes outside, without a version.
            && self.outside.is_none_or(|(handle, _)| handle.core.owner.is_here())
    }
}
