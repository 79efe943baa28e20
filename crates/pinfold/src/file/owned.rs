//! Bytes of a range that own what keeps them: `file.bytes(range)`.
//!
//! 1. the folio of the first byte, from the cache or filled;
//! 2. if it has the whole range, is not hollow (a forked child has no bytes of such) and may be
//!    kept by a guard (`borrow/admit.rs`): the bytes in place. Nothing is split: a copy keeps less;
//! 3. otherwise memory for a copy (`reclaim/copies.rs`), and a read into it.
//!
//! The memory of a copy is its own: nobody writes to it once it is shared.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::ops::{Deref, Range, RangeBounds};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::access::borrow::{FolioRef, may_keep};
use crate::access::found::{ReadaheadMark, filled};
use crate::access::futures;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::file::File;
use crate::file::ranges;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::pages::core::Held;
use crate::pages::fill;
use crate::pages::handle::Handle;
use crate::pages::reclaim::{Copied, allocate_copy};

/// Bytes of a file, contiguous in memory, that own what keeps them. Made by [`File::bytes`].
///
/// They can be sent, shared and cloned, outlive the file and the cache, and never change, as under
/// [`FolioRef`]. All of their memory is of the budget, until the last clone is dropped:
///
/// - *in place*, where one folio has them all, and at most twice as much (or large folios with
///   guards take no more than a 20th of the budget, as for [`File::get`]): the folio stays;
/// - a *copy* otherwise: whole pages, or where the range is longer than 2 MiB or memory is in small
///   pieces, up to a multiple of 2 MiB. All copies together have at most as much as can be pinned.
///
/// A clone copies no byte: it costs two atomic additions in place, and one of a copy.
///
/// With the crate `bytes`, they are a `Bytes` without a copy, to be sliced and given to a runtime:
///
/// ```
/// # use pinfold::{Cache, Options, source::Memory};
/// # let cache = Cache::new(Options::new(8 << 20))?;
/// # let file = cache.attach("table", std::sync::Arc::new(Memory::new(vec![7; 100_000])))?;
/// let column = bytes::Bytes::from_owner(file.bytes(4_000..60_000)?);
/// let value = column.slice(5_000..5_008);
/// drop((file, cache)); // it keeps what it needs
/// assert_eq!(value, [7; 8][..]);
/// # Ok::<(), pinfold::Error>(())
/// ```
#[derive(Clone)]
pub struct OwnedBytes {
    from: NonNull<u8>,
    len: usize,
    keeper: BytesKeeper,
}

#[derive(Clone)]
enum BytesKeeper {
    Nothing,
    Folio { _guard: FolioRef<'static> },
    Copy { _memory: Arc<Copied> },
}

// SAFETY: bytes that no thread writes, and what keeps them may be given back by any thread.
unsafe impl Send for OwnedBytes where BytesKeeper: Send {}
// SAFETY: as above; shared bytes only are handed out.
unsafe impl Sync for OwnedBytes where BytesKeeper: Sync {}

impl File {
    /// The bytes `range` of the file, in one piece ([`OwnedBytes`]): in place, if one folio has
    /// them all, otherwise a copy in memory of the budget. Reads what is not cached. The bytes of a
    /// copy that come from one folio are of one moment.
    ///
    /// Cost in place: a look-up, two atomic additions, and two subtractions in the end, one of each
    /// on the count of the cache itself. Of a copy: that of `read_at`, three allocations, and a
    /// mutex that all allocations of memory share; if it is longer than 2 MiB also mmap(2),
    /// munmap(2), and a madvise(2) for each 2 MiB. It may have to evict.
    ///
    /// Copies longer than a quarter of the budget, or than less where more is being read, are read
    /// one at a time, whatever their files are: the others wait, as for memory, and may fail. They
    /// wait also if its source hangs, or its future ([`bytes_async`](Self::bytes_async)) is not
    /// polled.
    ///
    /// # Errors
    /// [`ErrorKind::BeyondEnd`] if the file has not all of them; [`ErrorKind::Invalid`] if the
    /// range ends before it begins; [`ErrorKind::NoMemory`] if there is no memory for a copy: at
    /// once, if the range is longer than all copies together may be, otherwise after two seconds,
    /// or thirty while reads are under way; [`ErrorKind::System`] if the system refuses a mapping
    /// for a copy longer than 2 MiB; otherwise as [`read_at`](Self::read_at).
    pub fn bytes(&self, range: impl RangeBounds<u64>) -> Result<OwnedBytes> {
        let handle = self.handle();
        let wanted = handle.check_bytes(&range)?;
        let Some((page, bytes)) = pages_of(&wanted) else { return Ok(OwnedBytes::empty()) };
        let missing = || fill::get(handle, page, bytes).map(Some);
        let in_place = handle.held(page, (ReadaheadMark::Meet, true), missing, |held| {
            Ok(Some(OwnedBytes::in_place(handle, held, &wanted)))
        })?;
        if let Some(bytes) = filled(in_place) {
            return Ok(bytes);
        }
        let len = (wanted.end - wanted.start) as usize;
        let copied = allocate_copy(&handle.core, (&handle.mapping, page), len, true)?;
        let mut copied = filled(copied.ok());
        let got = handle.read_at(copied.bytes_mut(), wanted.start)?;
        OwnedBytes::copy(handle, copied, got, &wanted)
    }

    /// As [`bytes`](Self::bytes), but as a future; see [`read_at_async`](Self::read_at_async).
    /// Futures that wait for memory for a copy hold nothing, and have their turns in the order in
    /// which they came; the time after which one fails begins with its turn.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes) and [`read_at_async`](Self::read_at_async).
    pub async fn bytes_async(&self, range: impl RangeBounds<u64>) -> Result<OwnedBytes> {
        let handle = self.handle();
        let wanted = handle.check_bytes(&range)?;
        drop(range);
        let Some((page, bytes)) = pages_of(&wanted) else { return Ok(OwnedBytes::empty()) };
        let held = futures::bring(handle, page, bytes, None).await?;
        if let Some(bytes) = OwnedBytes::in_place(handle, held, &wanted) {
            return Ok(bytes);
        }
        let len = (wanted.end - wanted.start) as usize;
        let mut copied = futures::copy_memory(handle, page, len).await?;
        let got = self.read_at_async(copied.bytes_mut(), wanted.start).await?;
        OwnedBytes::copy(handle, copied, got, &wanted)
    }
}

/// The first page, and how many bytes are wanted from its start on, if any.
fn pages_of(wanted: &Range<u64>) -> Option<(u64, usize)> {
    let page = wanted.start >> PAGE_SHIFT;
    (!wanted.is_empty()).then(|| (page, (wanted.end - (page << PAGE_SHIFT)) as usize))
}

impl Handle {
    fn check_bytes(&self, range: &impl RangeBounds<u64>) -> Result<Range<u64>> {
        let len_bytes = self.mapping.len_bytes();
        let wanted = ranges::bytes_of(range, len_bytes);
        ranges::check(&self.mapping, &wanted)?;
        self.check_has(&wanted, len_bytes).map(|()| wanted)
    }

    fn check_has(&self, &Range { start, end }: &Range<u64>, len_bytes: u64) -> Result<()> {
        if end <= len_bytes {
            return Ok(());
        }
        let path = self.mapping.path.clone();
        Err(Cause::RangeBeyondEnd { path, start, end, len_bytes }.into())
    }
}

impl OwnedBytes {
    fn empty() -> Self {
        OwnedBytes { from: NonNull::dangling(), len: 0, keeper: BytesKeeper::Nothing }
    }

    /// `wanted`, which begins in the folio of `held`, if all of it is there and may be kept.
    fn in_place<'a>(handle: &'a Handle, held: Held<'a>, wanted: &Range<u64>) -> Option<Self> {
        let page = wanted.start >> PAGE_SHIFT;
        let pages = wanted.end.div_ceil(PAGE_BYTES as u64) - page;
        let folio_end = held.offset() + held.frame().file_bytes() as u64;
        if held.frame().is_hollow()
            || wanted.end > folio_end
            || !may_keep(&handle.core, &held, pages)
        {
            return None;
        }
        let guard = FolioRef::of(handle, held, page)?.into_owned();
        let at = (wanted.start - guard.folio_offset()) as usize;
        let len = (wanted.end - wanted.start) as usize;
        let bytes = guard.part(at, len)?;
        let from = NonNull::from(bytes).cast();
        Some(OwnedBytes { from, len, keeper: BytesKeeper::Folio { _guard: guard } })
    }

    /// A copy that has `got` bytes of `wanted`. Error: the file is shorter by now.
    fn copy(handle: &Handle, mut copied: Copied, got: usize, wanted: &Range<u64>) -> Result<Self> {
        let len = (wanted.end - wanted.start) as usize;
        copied.is_read();
        if got < len {
            handle.check_has(wanted, wanted.start + got as u64)?;
        }
        let from = copied.address();
        Ok(OwnedBytes { from, len, keeper: BytesKeeper::Copy { _memory: Arc::new(copied) } })
    }
}

impl Deref for OwnedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: initialised bytes that the keeper keeps, and that nobody writes; see the head.
        unsafe { std::slice::from_raw_parts(self.from.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for OwnedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl UnwindSafe for OwnedBytes {}
impl RefUnwindSafe for OwnedBytes {}

impl std::fmt::Debug for OwnedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept = match &self.keeper {
            BytesKeeper::Nothing => "nothing",
            BytesKeeper::Folio { .. } => "in place",
            BytesKeeper::Copy { .. } => "a copy",
        };
        f.debug_struct("OwnedBytes")
            .field("len", &self.len)
            .field("kept", &kept)
            .finish_non_exhaustive()
    }
}
