//! The frame table, as the policy sees it.

use pinfold_policy::{Id, NONE, Place, Residents};

use crate::core::Core;
use crate::frame::{Frame, FrameNumber, Frames};

/// The entries of folios' heads, lent to the policy under its lock.
pub(crate) struct Entries<'a>(&'a Frames);

impl<'a> Entries<'a> {
    /// Those of a cache.
    pub(crate) fn of(core: &'a Core) -> Self {
        Entries(&core.frames)
    }

    fn entry(&self, id: Id) -> &Frame {
        self.0.frame(FrameNumber(id))
    }
}

fn id(link: Option<FrameNumber>) -> Id {
    link.map_or(NONE, |frame| frame.0)
}

fn link(id: Id) -> Option<FrameNumber> {
    (id != NONE).then_some(FrameNumber(id))
}

impl Residents for Entries<'_> {
    fn uses(&self, id: Id) -> u8 {
        self.entry(id).uses()
    }
    fn set_uses(&mut self, id: Id, uses: u8) {
        self.entry(id).set_uses(uses);
    }
    fn pages(&self, id: Id) -> u32 {
        self.entry(id).order().frames()
    }
    fn place(&self, id: Id) -> Place {
        Place::from_bits(self.entry(id).place())
    }
    fn set_place(&mut self, id: Id, place: Place) {
        if place == Place::Out {
            // A policy leaves old neighbours behind; the allocator wants none.
            self.entry(id).set_prev(None);
            self.entry(id).set_next(None);
        }
        self.entry(id).set_place(place.to_bits());
    }
    fn prev(&self, folio: Id) -> Id {
        id(self.entry(folio).prev())
    }
    fn set_prev(&mut self, folio: Id, prev: Id) {
        self.entry(folio).set_prev(link(prev));
    }
    fn next(&self, folio: Id) -> Id {
        id(self.entry(folio).next())
    }
    fn set_next(&mut self, folio: Id, next: Id) {
        self.entry(folio).set_next(link(next));
    }
}
