use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::counters::Counters;
use crate::base::mutant::{self, Mutant};
use crate::frames::{Frame, FrameNumber, Global, PAGE_BYTES, PAGE_SHIFT, Window};
use crate::index::Lookup;
use crate::options::Reference;
use crate::pages::core::Core;
use crate::pages::mapping::Mapping;
use crate::pages::outside::Outside;
use crate::pages::stream::{Asks, Stream, Unread};

/// What a hint leads to: a folio's entry and its first byte.
pub(crate) type Asked<'a> = (&'a Frame, *mut u8);

/// So many hollow folios are asked for at a time: a fault has little memory (`base/heap.rs`).
const HOLLOW_MAX: usize = 64;

/// `lookup` is of `mapping`'s index, `window` of `core`'s frames, and `counters` are `core`'s.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Handle {
    // The first cache line, in the order in which a hit needs it.
    lookup: Lookup,
    pub(crate) window: Window,
    /// Of the file's first byte.
    global: Global,
    counters: CoresCounters,
    // The second cache line.
    pub(crate) core: Arc<Core>,
    pub(crate) mapping: Arc<Mapping>,
    /// Of the core's readers. A borrow compares it with its reader's.
    pub(crate) readers_address: usize,
    pub(crate) id: u32,
    pub(crate) reference: Reference,
    pub(crate) stream: Stream,
}

#[derive(Debug)]
struct CoresCounters(NonNull<Counters>);

// SAFETY: used as a `&Counters` alone.
unsafe impl Send for CoresCounters where Counters: Sync {}
// SAFETY: as above.
unsafe impl Sync for CoresCounters where Counters: Sync {}

#[cfg(not(loom))]
const _: () =
    assert!(std::mem::offset_of!(Handle, core) == 64, "what a hit needs is one cache line");

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Handle>() == 128, "docs/design.md, Limits, says so");

impl Handle {
    /// Takes over a mapping whose open is already counted.
    pub(crate) fn new(core: Arc<Core>, mapping: Arc<Mapping>, window_max_bytes: usize) -> Self {
        let short_max_bytes = core.options.short_read_max_bytes;
        let short_max_bytes = u32::try_from(short_max_bytes).unwrap_or(u32::MAX);
        Handle {
            // SAFETY: the handle keeps the mapping, which keeps its index.
            lookup: unsafe { Lookup::of(&mapping.index) },
            // SAFETY: the handle keeps the core, which keeps its frames.
            window: unsafe { Window::of(&core.frames, short_max_bytes) },
            global: Global::near(mapping.id, 0).expect("a file's first byte is near"),
            counters: CoresCounters(NonNull::from(&core.counters)),
            readers_address: Arc::as_ptr(&core.readers).addr(),
            id: mapping.id,
            reference: core.options.reference(),
            stream: Stream::new(window_max_bytes),
            core,
            mapping,
        }
    }

    /// As [`Index::lookup_hint`](crate::index::Index); may also be 0.
    #[inline(always)]
    pub(crate) fn hint(&self, page: u64) -> FrameNumber {
        match self.lookup.hint(page, 0) {
            Some(head) => head,
            None => self.lookup.hint_behind(&self.mapping.index, page),
        }
    }

    /// Where the folio may be that has a page: its head, entry and first byte. A hint, or
    /// [`nothing`](Self::nothing).
    #[inline(always)]
    pub(crate) fn there(&self, page: u64) -> (FrameNumber, Asked<'_>) {
        let head = self.known(page, 0, |head| head, |head| head);
        let head = head.unwrap_or_else(|| self.head_behind(page));
        // SAFETY: both give frames that the arena has.
        (head, unsafe { self.window.get(head) })
    }

    #[inline(always)]
    pub(crate) fn there_of_byte(&self, offset: u64) -> (FrameNumber, Asked<'_>) {
        let head = self.known(offset, PAGE_SHIFT, |head| head, |head| head);
        let head = head.unwrap_or_else(|| self.head_of_byte_behind(offset));
        // SAFETY: as above.
        (head, unsafe { self.window.get(head) })
    }

    /// [`Lookup::known`], but only with frames that the arena has.
    #[inline(always)]
    pub(crate) fn known<T>(
        &self,
        at: u64,
        unit: u32,
        in_block: impl FnOnce(FrameNumber) -> T,
        of_blocks: impl FnOnce(FrameNumber) -> T,
    ) -> Option<T> {
        // The second's is of an index of the core, whose arena has it.
        self.lookup.known(at, unit, |head| in_block(self.window.checked(head)), of_blocks)
    }

    #[cold]
    #[inline(never)]
    fn head_behind(&self, page: u64) -> FrameNumber {
        let offset = page.saturating_mul(PAGE_BYTES as u64);
        match Global::near(self.id, offset) {
            Some(_) => self.window.checked(self.lookup.hint_behind(&self.mapping.index, page)),
            None => FrameNumber(0),
        }
    }

    #[cold]
    #[inline(never)]
    fn head_of_byte_behind(&self, offset: u64) -> FrameNumber {
        self.head_behind(offset >> PAGE_SHIFT)
    }

    /// What leads to no folio: frame 0, the frame table's own.
    #[inline(always)]
    pub(crate) fn nothing(&self) -> Asked<'_> {
        self.window.both(FrameNumber(0))
    }

    pub(crate) fn is_nothing(&self, frame: &Frame) -> bool {
        std::ptr::eq(frame, self.nothing().0)
    }

    /// Of a byte that [`there`](Self::there) finds.
    #[inline(always)]
    pub(crate) fn global(&self, offset: u64) -> Global {
        self.global.after(offset)
    }

    /// May be wrong: it takes no lock, and holds nothing.
    pub(crate) fn unread(&self, pages: Range<u64>, asks: Asks) -> Unread {
        let (mut unread, mut page, mut hollow) = (Unread::default(), pages.start, Vec::new());
        // What maps skip can be found out.
        let skipped = |hollow: &mut Vec<(Range<u64>, Range<u64>)>| {
            let seen = hollow.is_empty() || mutant::on(Mutant::MapsUseAll);
            let skipped = if seen { 0 } else { self.core.unaccessed(&self.mapping, hollow) };
            hollow.clear();
            skipped
        };
        // Ends: each turn advances `page`.
        while page < pages.end {
            let found = self.window.try_both(self.hint(page)).and_then(|(frame, _)| {
                let identity = frame.identity();
                let of = identity.pages();
                let is_there = identity.mapping == self.id && of.contains(&page);
                is_there.then_some((frame, of))
            });
            let Some((frame, of)) = found else {
                unread.absent += 1;
                page += 1;
                continue;
            };
            let part = page..pages.end.min(of.end);
            page = part.end;
            let in_folio = |page: u64| (page - of.start) as u32;
            let unused = frame.unread_pages(in_folio(part.start)..in_folio(part.end));
            let is_read = frame.uses() > 0 || frame.is_first_read() && unused == 0;
            if !frame.is_hollow() {
                unread.unused += u64::from(unused);
            } else if !is_read && asks == Asks::Maps {
                hollow.push((of, part));
            }
            if hollow.len() == HOLLOW_MAX {
                unread.unused += skipped(&mut hollow);
            }
        }
        unread.unused += skipped(&mut hollow);
        unread
    }

    #[inline(always)]
    pub(crate) fn counters(&self) -> &Counters {
        // SAFETY: the counters are the core's, which the handle keeps.
        unsafe { self.counters.0.as_ref() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::borrow::Cow;
    use std::io::{self, Write};

    use super::*;
    use crate::source::Source;
    use crate::{Cache, Options};

    #[derive(Debug)]
    struct Long;

    impl Source for Long {
        fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
            Ok(buf.len())
        }

        fn len_bytes(&self) -> io::Result<u64> {
            Ok(5 << 40)
        }

        fn kind(&self) -> Cow<'static, str> {
            "long".into()
        }
    }

    /// Else the reader would take it for a byte of the next file.
    #[test]
    fn a_byte_without_a_global_offset_is_not_found_without_a_reference() {
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let file = cache.attach("long", Arc::new(Long)).unwrap();
        let far = (4 << 40) / PAGE_BYTES as u64;
        for (page, is_found) in [(far - 1, true), (far, false), (far + 9, false)] {
            drop(file.get(page).unwrap());
            let head = file.handle().mapping.index.lookup(page);
            let (found, _) = file.handle().there(page);
            assert_eq!(Some(found) == head, is_found, "{page}");
            assert_eq!(file.handle().there_of_byte(page * PAGE_BYTES as u64).0, found);
        }
    }

    #[test]
    fn what_a_file_has_grown_by_is_found_by_the_directory() {
        const MIB: usize = 1 << 20;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![1; MIB]).unwrap();
        let cache = Cache::new(Options::new(32 << 20)).unwrap();
        let old = cache.open(file.path()).unwrap();
        let mut block = [0; 64];
        old.read_at(&mut block, 0).unwrap();
        file.write_all(&vec![2; 4 * MIB]).unwrap();
        old.invalidate(0..0).unwrap();
        assert_eq!(old.len(), 5 * MIB as u64);
        let young = cache.open(file.path()).unwrap();
        for at in (0..5 * MIB).step_by(4096) {
            assert_eq!(old.read_at(&mut block, at as u64).unwrap(), 64);
            let page = (at / 4096) as u64;
            let head = old.handle().mapping.index.lookup(page);
            assert_eq!(old.handle().lookup.hint(page, 0), head, "page {page}");
        }
        // The old handle looks past the end of its directory once, newer handles never do.
        let last = (5 * MIB / 4096) as u64 - 1;
        assert_eq!(young.handle().lookup.hint(last, 0), None);
        assert_eq!(young.read_at(&mut block, last * 4096).unwrap(), 64);
        let head = old.handle().mapping.index.lookup(last);
        assert!(head.is_some());
        assert_eq!(young.handle().lookup.hint(last, 0), head);
        assert_eq!(young.clone().handle().lookup.hint(last, 0), head);
        // Changes are stored to both arrays.
        old.invalidate(0..8192).unwrap();
        assert_eq!(old.handle().lookup.hint(0, 0), young.handle().lookup.hint(0, 0));
        assert_ne!(old.handle().lookup.hint(last, 0), old.handle().lookup.hint(0, 0));
    }
}
