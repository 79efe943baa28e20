//! Finding a page that is cached: the two ways that all doors share.
//!
//! | way | what the caller has then | called by |
//! |---|---|---|
//! | [`Handle::found`], [`Handle::found_at`], [`Handle::look`] | nothing: an entry that said the right thing, and the stamp under which it did | each door's hit |
//! | [`Handle::held`] | a counted reference, taken if the page is there, or left by a fill | each door's long way |
//!
//! Not here: what a door does then: copy, announce, count or pin, and look at the stamp once more.
//!
//! # The look, step by step
//!
//! 1. look the page up: a hint, whatever it says;
//! 2. load the folio's version, acquire; odd: not up to date, or being changed;
//! 3. load its identity, and how far it reaches; not what is wanted: another folio by now, or the end
//!    of the file.
//!
//! All of it is compiled into the program's own loops: each instruction here is one that other reads'
//! memory waits behind (docs/cache.md, "What a short read costs").

use crate::core::Held;
use crate::counters::Event;
use crate::error::Result;
use crate::fill;
use crate::flaw::{self, Flaw};
use crate::frame::{Flags, Frame, FrameNumber, PAGE_BYTES, PAGE_SHIFT, Stamp};
use crate::handle::Handle;

/// A folio as it was at a look. Nothing holds it: to be believed if [`Frame::read_retry`] says so.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) frame: &'a Frame,
    pub(crate) head: FrameNumber,
    /// Where the folio's bytes begin.
    pub(crate) from: *mut u8,
    pub(crate) stamp: Stamp,
    /// Where in the folio the wanted byte is.
    pub(crate) at: u64,
    /// How far the folio reaches, in the sense of what was wanted.
    pub(crate) span: u64,
}

/// What a door wants of a folio, and whom it tells if it cannot be had.
pub(crate) trait Want: Copy {
    /// The mapping, the byte of it that the folio begins with, and how far the folio reaches.
    #[inline(always)]
    fn readable(self, frame: &Frame) -> (u32, u64, u64) {
        let (mapping, start, span) = frame.readable();
        (mapping, start, span.into())
    }

    /// Whether what is wanted, from byte `at` of a folio on, lies within `span`.
    fn fits(self, at: u64, span: u64) -> bool;

    /// It was not found for that reason, an [`Event`].
    #[inline(always)]
    fn absent<const WHY: usize>(self, _: &Handle) {}

    /// The folio has not got all of it.
    #[inline(always)]
    fn misfit(self, _: &Handle, _: &Frame, _: u64) {}
}

/// A whole page.
#[derive(Clone, Copy)]
pub(crate) struct WholePage;

impl Want for WholePage {
    #[inline(always)]
    fn fits(self, at: u64, span: u64) -> bool {
        // By its last byte: no overflow, as all of these are multiples of a page.
        (at | (PAGE_BYTES as u64 - 1)) < span
    }
}

/// A page that has at least one byte of the file.
#[derive(Clone, Copy)]
pub(crate) struct AnyPage;

impl Want for AnyPage {
    #[inline(always)]
    fn fits(self, at: u64, span: u64) -> bool {
        at < span
    }
}

/// A page, whether its folio has a readahead mark or not; `span` is all of the folio.
#[derive(Clone, Copy)]
pub(crate) struct PageOfFolio;

impl Want for PageOfFolio {
    #[inline(always)]
    fn readable(self, frame: &Frame) -> (u32, u64, u64) {
        let (mapping, start, _) = frame.readable();
        (mapping, start, frame.order().bytes() as u64)
    }

    #[inline(always)]
    fn fits(self, at: u64, span: u64) -> bool {
        at < span
    }
}

/// What the long way does with a page that has a readahead mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Has more read ahead.
    Meet,
    /// Leaves it for a reader.
    Leave,
}

impl Handle {
    /// Looks for what is wanted in `page`.
    #[inline(always)]
    pub(crate) fn found<W: Want>(&self, page: u64, want: W) -> Option<Found<'_>> {
        self.look(self.hint(page), page << PAGE_SHIFT, want)
    }

    /// Looks for what is wanted from byte `offset` of the file on.
    #[inline(always)]
    pub(crate) fn found_at<W: Want>(&self, offset: u64, want: W) -> Option<Found<'_>> {
        self.look(self.hint_of_byte(offset), offset, want)
    }

    /// The same in the folio at `head`, whatever that is: steps 2 and 3.
    #[inline(always)]
    pub(crate) fn look<W: Want>(
        &self,
        head: FrameNumber,
        offset: u64,
        want: W,
    ) -> Option<Found<'_>> {
        let Some((frame, from)) = self.window.try_both(head) else {
            want.absent::<{ Event::Absent as usize }>(self);
            return None;
        };
        let Some(stamp) = frame.read_begin() else {
            want.absent::<{ Event::Changing as usize }>(self);
            return None;
        };
        let (id, start, span) = want.readable(frame);
        let at = offset.wrapping_sub(start);
        if id != self.id && !flaw::on(Flaw::AnyIdentity) {
            want.absent::<{ Event::Identity as usize }>(self);
            return None;
        }
        if !want.fits(at, span) {
            want.misfit(self, frame, at);
            return None;
        }
        Some(Found { frame, head, from, stamp, at, span })
    }

    /// What `done` makes of a reference to the folio that has `page` and was up to date. `fill` brings
    /// one if there is none; `counted`: a page that was there is counted as a hit. Until `done` gives
    /// something: what it says no to was dropped meanwhile.
    #[inline(always)]
    pub(crate) fn held<'a, T>(
        &'a self,
        page: u64,
        (mark, counted): (Mark, bool),
        mut fill: impl FnMut() -> Result<Held<'a>>,
        mut done: impl FnMut(Held<'a>) -> Result<Option<T>>,
    ) -> Result<T> {
        // Ends: each further turn follows an invalidation of this very folio, or the caller's patience
        // does.
        loop {
            let held = self.core.hold(&self.mapping, page);
            // Given back before the fill, which may have to make room: hence no guard in the match.
            let held = match held.filter(|held| !held.frame().is_changing()) {
                Some(held) => {
                    if counted {
                        self.counters().count(Event::CountedHit);
                    }
                    held
                }
                None => fill()?,
            };
            if mark == Mark::Meet && held.frame().flags().contains(Flags::READAHEAD) {
                fill::read_further(self, &held);
            }
            if let Some(it) = done(held)? {
                return Ok(it);
            }
        }
    }
}
