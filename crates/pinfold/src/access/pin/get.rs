//! Pinning a range: folio by folio, with one addition each.
//!
//! # The fast path, for a cached folio that may stay where it is
//!
//! 1. and 2. the optimistic look-up (`found.rs`);
//! 3. check that the folio may stay where it is; then load the file's length, not before 2;
//! 4. add the number of pages to the pins: fails if the folio is frozen;
//! 5. load the version again: if it is unchanged, 2 and 3 were true of the folio that 4 pinned.
//!    Otherwise give the pins back.
//!
//! From 4 on no thread can freeze the folio, so it is neither evicted, nor split, nor moved.
//!
//! # The slow path, under a reference
//!
//! A folio smaller than a 2 MiB run, in a run that should become free some day, moves first:
//! 1. allocate frames in a run for unmovable folios (`reclaim::alloc_unmovable`), before any lock.
//!    If there are none, the folio's run becomes a run for unmovable folios;
//! 2. under the mapping's `change` mutex: give up the reference (the index's own keeps the folio,
//!    as eviction needs this mutex), migrate, pin the new folio;
//! 3. free the old frames.
//!
//! If another thread holds the folio, the move is retried for [`MOVE_PATIENCE`] after the read.

use std::cell::Cell;
use std::ops::Range;
use std::panic::Location;
use std::time::{Duration, Instant};

use pinfold_refcount::GetError;

use crate::access::found::{Found, PageOfFolio, ReadaheadMark, filled};
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::error::{Cause, Error, RangeCause, Result};
use crate::frames::{FrameNumber, Order, PAGE_BYTES, PAGE_SHIFT};
use crate::index::FolioAt;
use crate::pages::core::{Core, Held};
use crate::pages::fill;
use crate::pages::freeze::{self, InUse};
use crate::pages::handle::Handle;
use crate::pages::mapping::Mapping;
use crate::pages::outside::Outside;
use crate::pages::reclaim::{self, kept_pages_max};

use super::run::{PinnedRun, PinnedRuns};
use super::{PinnedRange, too_many};

const MOVE_PATIENCE: Duration = Duration::from_millis(500);

/// Pins the bytes `range` of the file. `asked_by` goes to the list of pins. `BY_PAGE`: each page by
/// a look-up and an addition of its own, for comparisons only.
#[inline]
pub(crate) fn pin<const BY_PAGE: bool>(
    handle: &Handle,
    range: Range<u64>,
    asked_by: &'static Location<'static>,
) -> Result<PinnedRange> {
    let (core, mapping) = (&handle.core, &*handle.mapping);
    check(core, mapping, &range)?;
    let holder = core.holders.add(asked_by, &mapping.path, &range);
    let Range { start, end } = range;
    let mut pinned =
        PinnedRange { core: core.clone(), start, end, runs: PinnedRuns::new(), holder };
    let done = pin_pages::<BY_PAGE>(handle, &mut pinned);
    core.counters.add(Event::PinnedPages, pinned.runs.pages().into());
    // On an error, the drop of `pinned` unpins what was pinned.
    done.map(|()| pinned)
}

#[inline]
fn pin_pages<const BY_PAGE: bool>(handle: &Handle, range: &mut PinnedRange) -> Result<()> {
    let mut page = range.start >> PAGE_SHIFT;
    let end = range.end.div_ceil(PAGE_BYTES as u64);
    let mut run = PinnedRun::EMPTY;
    let mut last_head = None;
    let mut singles = false;
    // Ends: each turn pins at least a page, or is the last.
    let done = loop {
        if page >= end {
            break Ok(());
        }
        let to = if BY_PAGE { page + 1 } else { end };
        let seek = FolioWanted { handle, page, to, end_byte: range.end };
        let got = if BY_PAGE {
            quick::<ONE_PAGE>(seek)
        } else if singles {
            let got = lengthen_by_singles(seek, &mut run, &mut page);
            singles = got.is_some();
            if got.is_none() {
                continue;
            }
            got
        } else {
            quick::<ANY>(seek)
        };
        let got = match got {
            Some(got) => got,
            None => match slow(handle, page, to, range) {
                Ok(got) => got,
                Err(error) => break Err(error),
            },
        };
        let PinnedRun { head, skip, pages } = got;
        // A run finds its next folio by the size of the previous one.
        let found = skip == 0 || last_head == Some(head);
        if !(found && run.lengthen(head.after(skip), pages)) {
            range.runs.push(run);
            run = PinnedRun { head, skip, pages };
        }
        last_head = Some(head);
        page += u64::from(pages);
        singles = !BY_PAGE && pages == 1;
    };
    range.runs.push(run);
    done
}

/// Pins the bytes of one folio by the fast path, if that succeeds; for models.
#[cfg(all(test, loom))]
pub(crate) fn try_pin(handle: &Handle, range: Range<u64>) -> Option<PinnedRange> {
    let core = &handle.core;
    let (page, to) = (range.start >> PAGE_SHIFT, range.end.div_ceil(PAGE_BYTES as u64));
    let seek = FolioWanted { handle, page, to, end_byte: range.end };
    let got = quick::<ANY>(seek)?;
    assert_eq!(u64::from(got.pages), to - page, "the model's folios are larger");
    let mut runs = PinnedRuns::new();
    runs.push(got);
    let Range { start, end } = range;
    Some(PinnedRange { core: core.clone(), start, end, runs, holder: 0 })
}

#[inline]
fn check(core: &Core, mapping: &Mapping, range: &Range<u64>) -> Result<()> {
    let len_bytes = mapping.len_bytes();
    if range.start < range.end && range.end <= len_bytes {
        let asked_bytes = range.end.next_multiple_of(PAGE_BYTES as u64)
            - range.start / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if asked_bytes >> PAGE_SHIFT <= kept_pages_max(core) {
            return Ok(());
        }
        return Err(Cause::PinTooLarge {
            path: mapping.path.clone(),
            start: range.start,
            end: range.end,
            asked_bytes,
            most_bytes: kept_pages_max(core) << PAGE_SHIFT,
            budget_bytes: u64::from(core.frames.frames()) << PAGE_SHIFT,
        }
        .into());
    }
    Err(no_range(mapping, range))
}

#[cold]
fn no_range(mapping: &Mapping, range: &Range<u64>) -> Error {
    let len_bytes = mapping.len_bytes();
    let cause = match () {
        () if range.start > range.end => RangeCause::Reversed,
        () if range.start == range.end => RangeCause::Empty,
        () => RangeCause::BeyondEnd { len_bytes },
    };
    let path = mapping.path.clone();
    Cause::WrongRange { what: "pin", path, start: range.start, end: range.end, cause }.into()
}

/// Pins folios of a single page as long as they follow the run; returns the first that does not, or
/// `None` at anything else. A loop of its own: the next page is always the next look-up, so the
/// processor does not wait for the entry of this one.
#[inline(never)]
fn lengthen_by_singles(
    mut seek: FolioWanted<'_>,
    run: &mut PinnedRun,
    page: &mut u64,
) -> Option<PinnedRun> {
    let mut longer = *run;
    let mut left = None;
    // Ends: each turn pins a page, up to `to`.
    while seek.page < seek.to {
        let Some(got) = quick::<SINGLES>(seek) else { break };
        if !longer.lengthen(got.head, 1) {
            left = Some(got);
            break;
        }
        seek.page += 1;
    }
    *run = longer;
    *page = seek.page;
    left
}

#[derive(Clone, Copy)]
struct FolioWanted<'a> {
    handle: &'a Handle,
    page: u64,
    /// The first page that is not wanted.
    to: u64,
    /// The first byte that is not wanted.
    end_byte: u64,
}

/// All wanted pages of a folio of any size.
const ANY: u8 = 0;
/// The page of a folio that has only one.
const SINGLES: u8 = 1;
/// One page of a folio of any size; for comparisons.
const ONE_PAGE: u8 = 2;

#[inline(always)]
fn quick<const KIND: u8>(seek: FolioWanted<'_>) -> Option<PinnedRun> {
    let FolioWanted { handle, page, to, end_byte } = seek;
    let Found { frame, head, stamp, at, span, .. } = handle.found(page, PageOfFolio)?;
    if frame.is_hollow()
        || must_move(&handle.core, head, span)
        || (KIND == SINGLES && span != PAGE_BYTES as u64)
    {
        return None;
    }
    // Before a longer length is stored, the folio at the old end is dropped, or gets more bytes by a
    // new version. So either the version has changed, or it has all bytes up to this length.
    if end_byte > handle.mapping.len_bytes() {
        return None;
    }
    let left = (span - at) >> PAGE_SHIFT;
    let pages = if KIND == ANY { left.min(to - page) as u32 } else { 1 };
    frame.count.try_pin(pages).ok()?;
    if frame.read_retry(stamp) && !mutant::on(Mutant::PinBlindly) {
        handle.core.unpin(head, frame, pages);
        return None;
    }
    if !frame.is_used_most() {
        frame.note_use(true, at as usize, (pages as usize) << PAGE_SHIFT);
    }
    Some(PinnedRun { head, skip: (at >> PAGE_SHIFT) as u32, pages })
}

#[inline(always)]
fn must_move(core: &Core, head: FrameNumber, bytes: u64) -> bool {
    bytes < Order::MAX.bytes() as u64 && core.frames.is_movable(head) && !core.options.pin_in_place
}

#[cold]
#[inline(never)]
fn slow(handle: &Handle, page: u64, to: u64, range: &PinnedRange) -> Result<PinnedRun> {
    let core = &handle.core;
    core.check_owner()?;
    // Since when others hold the folio; unless it was absent after that, as a read may take long.
    let held_since = Cell::new(None::<Instant>);
    let inside = || {
        let past = range.end > handle.mapping.len_bytes();
        if past { Err(no_range(&handle.mapping, &range.range())) } else { Ok(()) }
    };
    let missing = || {
        inside()?;
        let held = fill::get_range(handle, page, range.end.div_ceil(PAGE_BYTES as u64));
        held_since.set(None);
        held.map(Some)
    };
    // Ends: when the folio was pinned, or patience is at an end.
    let pinned = handle.held(page, (ReadaheadMark::Leave, false), missing, |held| {
        inside()?;
        let found = handle.look(held.head(), page << PAGE_SHIFT, PageOfFolio);
        // Dropped meanwhile: look it up again.
        let Some(found) = found else { return Ok(None) };
        if !found.frame.is_hollow() && !must_move(core, found.head, found.span) {
            let seek = FolioWanted { handle, page, to, end_byte: range.end };
            return pin_held(seek, found);
        }
        match move_and_pin(handle, held, page, to, range.end) {
            Moved::Pinned(pinned) => return Ok(Some(pinned)),
            Moved::Gone => {}
            Moved::Held { offset, bytes, word, borrowed } => {
                let since = held_since.get().unwrap_or_else(Instant::now);
                if since.elapsed() <= MOVE_PATIENCE {
                    held_since.set(Some(since));
                    core.let_go_of_kept(|_| true);
                    breathe();
                    return Ok(None);
                }
                return Err(Cause::PinHeld {
                    path: handle.mapping.path.clone(),
                    offset,
                    bytes,
                    referenced: word.refs().saturating_sub(1),
                    pinned: word.pins(),
                    borrowed,
                    waited_ms: since.elapsed().as_millis() as u64,
                }
                .into());
            }
        }
        Ok(None)
    })?;
    Ok(filled(pinned))
}

fn breathe() {
    #[cfg(not(loom))]
    std::thread::sleep(Duration::from_micros(50));
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Steps 3 to 5 of the fast path, under a reference. `None`: the folio was dropped meanwhile.
fn pin_held(
    FolioWanted { handle, page, to, end_byte }: FolioWanted<'_>,
    Found { frame, head, stamp, at, span, .. }: Found<'_>,
) -> Result<Option<PinnedRun>> {
    if end_byte > handle.mapping.len_bytes() {
        return Ok(None);
    }
    let pages = ((span - at) >> PAGE_SHIFT).min(to - page) as u32;
    match frame.count.try_pin(pages) {
        Ok(()) => {}
        Err(GetError::TooMany) => {
            return Err(too_many(Some(handle.mapping.path.clone()), page << PAGE_SHIFT));
        }
        Err(GetError::Frozen) => return Ok(None),
    }
    if frame.read_retry(stamp) {
        handle.core.unpin(head, frame, pages);
        return Ok(None);
    }
    if !frame.is_used_most() {
        frame.note_use(true, at as usize, (pages as usize) << PAGE_SHIFT);
    }
    Ok(Some(PinnedRun { head, skip: (at >> PAGE_SHIFT) as u32, pages }))
}

fn alloc_for(core: &Core, order: Order, hollow: bool) -> Option<FrameNumber> {
    if order < Order::MAX {
        return reclaim::alloc_unmovable(core, order);
    }
    debug_assert!(hollow, "a folio that fills a run stays");
    core.frames.alloc(order).or_else(|| reclaim::compact(core).then(|| core.frames.alloc(order))?)
}

enum Moved {
    Pinned(PinnedRun),
    /// It has left the index, or may stay now.
    Gone,
    Held {
        offset: u64,
        bytes: u64,
        word: crate::frames::CountWord,
        /// A reader has announced it, which the word does not show.
        borrowed: bool,
    },
}

fn move_and_pin(handle: &Handle, held: Held<'_>, page: u64, to: u64, end_byte: u64) -> Moved {
    let (core, mapping) = (&handle.core, &handle.mapping);
    let (head, order) = (held.head(), held.frame().order());
    let Some(new) = alloc_for(core, order, held.frame().is_hollow()) else {
        if held.frame().is_hollow() {
            // It cannot stay, and there is no memory for it.
            let (offset, word) = (held.offset(), held.frame().count.word());
            let bytes = order.bytes() as u64;
            return Moved::Held { offset, bytes, word, borrowed: false };
        }
        core.frames.claim_run_of(head);
        return Moved::Gone;
    };
    let mut changing = mapping.change();
    let folio = changing.writer(&core.nodes).folio(page);
    // A longer length is stored under this mutex, after the folio at the old end was dropped.
    let whole = end_byte <= mapping.len_bytes();
    let same = |f: &FolioAt| whole && f.frame == head && f.order == u32::from(order.get());
    let Some(folio) = folio.filter(same) else {
        drop(changing);
        core.put(new);
        return Moved::Gone;
    };
    // Not the last reference: the index has one, and taking that one needs the mutex.
    drop(held);
    let woken = match freeze::migrate(core, &mut changing, folio, new) {
        Ok(woken) => woken,
        Err(why) => {
            let word = core.frames.frame(head).count.word();
            drop(changing);
            core.put(new);
            let (offset, bytes) = (folio.page << PAGE_SHIFT, order.bytes() as u64);
            return Moved::Held { offset, bytes, word, borrowed: why == InUse::Borrowed };
        }
    };
    let frame = core.frames.frame(new);
    let skip = page - folio.page;
    let pages = (u64::from(order.frames()) - skip).min(to - page) as u32;
    if mutant::on(Mutant::PinMovedLate) {
        drop(changing);
        frame.count.try_pin(pages).expect("a folio that lives, with few pins");
    } else {
        frame.count.try_pin(pages).expect("nobody freezes it without the mutex; few pins");
        drop(changing);
    }
    drop(woken); // without the mutex
    core.frames.free(head, order);
    core.counters.count(Event::PinMigration);
    Moved::Pinned(PinnedRun { head: new, skip: skip as u32, pages })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::borrow::Cow;
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use super::MOVE_PATIENCE;
    use crate::error::Cause;
    use crate::source::{Memory, Source};
    use crate::{Cache, Hint, Options};

    /// Tells when a read has begun, and ends it when it is told to.
    #[derive(Debug)]
    struct Slow(Sender<()>, Mutex<Receiver<()>>);

    impl Source for Slow {
        fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
            self.0.send(()).unwrap();
            self.1.lock().unwrap().recv().unwrap();
            Ok(buf.len())
        }

        fn len_bytes(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }

        fn kind(&self) -> Cow<'static, str> {
            "slow".into()
        }
    }

    /// A read takes longer than a pin's patience, and then another thread holds the folio.
    #[test]
    fn patience_with_who_holds_the_folio_begins_after_the_read() {
        let cache = Cache::new(Options::new(16 << 20)).unwrap();
        let ((begins, begun), (end, ends)) = (channel(), channel());
        let file = cache.attach("file", Arc::new(Slow(begins, Mutex::new(ends)))).unwrap();
        let handle = file.handle();
        std::thread::scope(|scope| {
            let pins = scope.spawn(|| (file.pin(8192..8193).unwrap_err(), Instant::now()));
            begun.recv().unwrap();
            let held = handle.core.hold(&handle.mapping, 2).expect("it is on its way");
            std::thread::sleep(MOVE_PATIENCE + MOVE_PATIENCE / 2); // the read is slow
            let read = Instant::now();
            end.send(()).unwrap();
            let (error, failed) = pins.join().unwrap();
            drop(held);
            let Cause::PinHeld { waited_ms, .. } = *error.cause() else { panic!("{error:?}") };
            let waited = Duration::from_millis(waited_ms);
            assert!(MOVE_PATIENCE <= waited, "{waited:?}");
            assert!(waited <= failed - read, "the read counts: {waited:?}, {:?}", failed - read);
        });
    }

    #[test]
    fn a_folio_that_has_to_move_and_is_held_is_an_error_that_says_by_whom() {
        let cache = Cache::new(Options::new(16 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 1 << 20]))).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        file.read_at(&mut [0], 8192).unwrap();
        let handle = file.handle();
        let held = [(); 2].map(|()| handle.core.hold(&handle.mapping, 2).expect("it was read"));
        assert!(handle.core.frames.is_movable(held[0].head()), "a pin may not stay there");
        let error = file.pin(9_000..9_001).unwrap_err();
        let Cause::PinHeld {
            offset: 8192, bytes: 4096, referenced: 2, pinned: 0, waited_ms, ..
        } = *error.cause()
        else {
            panic!("{error:?}")
        };
        assert!((500..5_000).contains(&waited_ms), "{waited_ms} ms");
        let text = error.to_string();
        assert!(text.starts_with("cannot pin file at 8192: the folio of 4096 bytes there has to"));
        assert!(text.ends_with("by 2 references and 0 pins at the end"), "{text}");
        assert_eq!(cache.stats().pinned_bytes, 0);
        drop(held);
        let pinned = file.pin(9_000..9_001).unwrap();
        let moved = handle.core.hold(&handle.mapping, 2).expect("it is pinned");
        assert!(!handle.core.frames.is_movable(moved.head()));
        drop((moved, pinned));
    }

    #[test]
    fn a_folio_that_has_to_move_and_is_borrowed_is_an_error_that_says_so() {
        let cache = Cache::new(Options::new(16 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 1 << 20]))).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        file.read_at(&mut [0], 8192).unwrap();
        let reader = cache.reader().unwrap();
        let page = file.borrow(2, &reader).unwrap();
        let error = file.pin(9_000..9_001).unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with(" ms, by a borrow at the end"), "{text}");
        let Cause::PinHeld { referenced: 0, pinned: 0, borrowed: true, .. } = error.cause() else {
            panic!("{error:?}")
        };
        drop(page);
        drop(file.pin(9_000..9_001).unwrap());
    }
}
