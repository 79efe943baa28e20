//! Finding a cached page: the look-ups that all ways in share. [`Handle::found`],
//! [`Handle::found_at`] and [`Handle::look`] hold nothing: the entry as it was under a version, to
//! be validated. [`Handle::held`] gives a counted reference, to a cached folio or one just filled.
//!
//! # The optimistic look-up, step by step
//!
//! 1. look the page up in the index, which returns a hint, right or wrong;
//! 2. load the folio's version, acquire; odd: not up to date, or being changed;
//! 3. load where it begins, the file's number included, and its length; the page is not in that:
//!    another folio has the frame by now, or the file ends before the page.
//!
//! Then the caller copies, announces, counts or pins, and validates the version. All of it is
//! inlined into the program's own loops: every instruction here delays the reads that follow.

use crate::base::counters::Event;
use crate::error::Result;
use crate::frames::{Flags, Frame, FrameNumber, Global, PAGE_BYTES, PAGE_SHIFT, Stamp};
use crate::pages::core::Held;
use crate::pages::fill;
use crate::pages::handle::Handle;

/// Nothing holds it: valid if [`Frame::read_retry`] says so.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) frame: &'a Frame,
    pub(crate) head: FrameNumber,
    /// Of the folio's first byte.
    pub(crate) from: *mut u8,
    pub(crate) stamp: Stamp,
    /// The wanted byte.
    pub(crate) byte: Global,
    /// Of the wanted byte, in the folio.
    pub(crate) at: u64,
    /// The folio's length, as the [`Want`] has it.
    pub(crate) span: u64,
}

/// What a way in needs of a folio, and how a failure is counted.
pub(crate) trait Want: Copy {
    /// Whether a slot will show it.
    const BORROWS: bool = false;

    /// Where the folio begins, and its length.
    #[inline(always)]
    fn readable(self, frame: &Frame) -> (Global, u64) {
        let (start, span) = frame.readable();
        (start, span.into())
    }

    /// From byte `at` of a folio on, within `span`.
    #[inline(always)]
    fn fits(self, at: u64, span: u64) -> bool {
        at < span
    }

    /// Counts the reason `WHY`, an [`Event`].
    #[inline(always)]
    fn absent<const WHY: usize>(self, _: &Handle) {}

    /// The folio has only a part of it.
    #[inline(always)]
    fn misfit(self, _: &Handle, _: &Frame, _: u64) {}
}

/// To be borrowed.
#[derive(Clone, Copy)]
pub(crate) struct WholePage;

impl Want for WholePage {
    const BORROWS: bool = true;

    #[inline(always)]
    fn fits(self, at: u64, span: u64) -> bool {
        // Compares the last byte: no overflow, as all of these are multiples of a page.
        (at | (PAGE_BYTES as u64 - 1)) < span
    }
}

/// To be borrowed, with at least one byte of the file.
#[derive(Clone, Copy)]
pub(crate) struct AnyPage;

impl Want for AnyPage {
    const BORROWS: bool = true;
}

/// With at least one byte of the file, of which copies will be made.
#[derive(Clone, Copy)]
pub(crate) struct CopiedPage;

impl Want for CopiedPage {}

/// Of a folio that a counted guard may be taken of at once.
#[derive(Clone, Copy)]
pub(crate) struct HoldablePage;

impl Want for HoldablePage {
    #[inline(always)]
    fn readable(self, frame: &Frame) -> (Global, u64) {
        let (start, span) = frame.holdable();
        (start, span.into())
    }
}

/// With a readahead mark or not; `span` is the whole folio.
#[derive(Clone, Copy)]
pub(crate) struct PageOfFolio;

impl Want for PageOfFolio {
    #[inline(always)]
    fn readable(self, frame: &Frame) -> (Global, u64) {
        (frame.start(), frame.order().bytes() as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadaheadMark {
    Meet,
    Leave,
}

/// For the read of what is absent, and for others to let go of a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayWait {
    Yes,
    Never,
}

impl MayWait {
    #[inline(always)]
    pub(crate) fn fill<T>(self, fill: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        match self {
            MayWait::Yes => fill().map(Some),
            MayWait::Never => Ok(None),
        }
    }
}

pub(crate) fn filled<T>(it: Option<T>) -> T {
    it.expect("it was waited for")
}

impl Handle {
    #[inline(always)]
    pub(crate) fn found<W: Want>(&self, page: u64, want: W) -> Option<Found<'_>> {
        // Step 1, and the others.
        let (head, there) = self.there(page);
        self.look_there(head, there, self.global(page << PAGE_SHIFT), want)
    }

    #[inline(always)]
    pub(crate) fn found_at<W: Want>(&self, offset: u64, want: W) -> Option<Found<'_>> {
        let (head, there) = self.there_of_byte(offset);
        self.look_there(head, there, self.global(offset), want)
    }

    /// Steps 2 and 3 of a folio that the caller holds, and that has had the byte.
    pub(crate) fn look<W: Want>(
        &self,
        head: FrameNumber,
        offset: u64,
        want: W,
    ) -> Option<Found<'_>> {
        self.look_there(head, self.window.both(head), Global::of(self.id, offset), want)
    }

    /// Steps 2 and 3, with an entry and its first byte.
    #[inline(always)]
    pub(crate) fn look_there<'a, W: Want>(
        &'a self,
        head: FrameNumber,
        (frame, from): (&'a Frame, *mut u8),
        byte: Global,
        want: W,
    ) -> Option<Found<'a>> {
        // Step 2.
        let stamp = if W::BORROWS { frame.borrow_begin() } else { frame.read_begin() };
        let Some(stamp) = stamp else {
            if self.is_nothing(frame) {
                want.absent::<{ Event::Absent as usize }>(self);
            } else {
                want.absent::<{ Event::Changing as usize }>(self);
            }
            return None;
        };
        // Step 3.
        let (start, span) = want.readable(frame);
        let at = byte.from(start);
        if !want.fits(at, span) {
            want.misfit(self, frame, at);
            return None;
        }
        Some(Found { frame, head, from, stamp, byte, at, span })
    }

    /// Calls `done` with a reference to the folio that has `page` and was up to date, until it
    /// returns something: not for a folio dropped meanwhile. `missing` gets a reference if the page
    /// is absent; if it gets none, there is no result. With `counted`, a page that is present
    /// counts as a hit.
    #[inline(always)]
    pub(crate) fn held<'a, T>(
        &'a self,
        page: u64,
        (mark, counted): (ReadaheadMark, bool),
        mut missing: impl FnMut() -> Result<Option<Held<'a>>>,
        mut done: impl FnMut(Held<'a>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        // Ends: each repetition follows an invalidation of this folio, or the caller's patience
        // bounds it.
        loop {
            let held = self.core.hold(&self.mapping, page);
            // Given back before the miss, which may have to evict.
            let held = match held.filter(Held::is_readable_here) {
                Some(held) => {
                    if counted {
                        self.counters().count(Event::CountedHit);
                    }
                    held
                }
                None => match missing()? {
                    Some(held) => held,
                    None => return Ok(None),
                },
            };
            self.meet(mark, &held);
            let it = done(held)?;
            if it.is_some() {
                return Ok(it);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn meet(&self, mark: ReadaheadMark, held: &Held<'_>) {
        if mark == ReadaheadMark::Meet && held.frame().flags().contains(Flags::READAHEAD) {
            fill::read_further(self, held);
        }
    }
}
