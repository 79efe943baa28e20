//! Which folios are cached, in the order in which the policy (`pinfold-policy`) would evict them.

use pinfold_policy::{Answer, Id, NONE, Place, Residents, S3Fifo, Sweep};

use crate::base::mutant::{self, Mutant};
use crate::base::sync::Mutex;
use crate::frames::{Flags, Frame, FrameNumber, Frames, Identity};

/// The lock is taken under a mapping's `change` mutex or under no lock, and no lock under it.
#[derive(Debug)]
pub(crate) struct Residency(Mutex<S3Fifo>);

impl Residency {
    pub(crate) fn new(pages: u32) -> Self {
        Residency(Mutex::new(S3Fifo::new(pages.into())))
    }

    /// The folio at `head` is up to date from now on. `file`: as ghosts know it. Under the
    /// mapping's `change` mutex. Returns whether the folio came back soon after it was evicted.
    pub(crate) fn insert(&self, frames: &Frames, head: FrameNumber, file: u64) -> bool {
        let mut policy = self.0.lock();
        let shadow = frames.ghosts().get(file, frames.frame(head).identity().index);
        policy.insert(&mut Entries(frames), head.0, shadow);
        if !mutant::on(Mutant::FirstReadUses) {
            frames.frame(head).set_fresh();
        }
        shadow.is_some_and(|shadow| policy.is_recent(shadow))
    }

    /// Not by eviction.
    pub(crate) fn remove(&self, frames: &Frames, head: FrameNumber) {
        self.0.lock().remove(&mut Entries(frames), head.0);
    }

    pub(crate) fn replace(&self, frames: &Frames, old: FrameNumber, new: FrameNumber) {
        self.0.lock().replace(&mut Entries(frames), old.0, new.0);
    }

    /// `hand_out` makes the pieces of the folio at `head`, of `pages_before` pages, under the
    /// policy's lock: the policy must not see a folio that is lighter than it was told. `rest` are
    /// the heads of all pieces but the first.
    pub(crate) fn split(
        &self,
        frames: &Frames,
        head: FrameNumber,
        pages_before: u32,
        rest: &[u32],
        hand_out: impl FnOnce(),
    ) {
        let mut policy = self.0.lock();
        hand_out();
        policy.split(&mut Entries(frames), head.0, pages_before, rest);
    }

    /// Until they have `pages` pages, there are `most` of them, or one is hollow.
    pub(crate) fn next_victims(
        &self,
        frames: &Frames,
        sweep: &mut Sweep,
        pages: u64,
        most: usize,
    ) -> Vec<FrameNumber> {
        let mut victims = Vec::with_capacity(most);
        let mut offered = 0;
        let mut policy = self.0.lock();
        while victims.len() < most && offered < pages {
            let Some(victim) = policy.next_victim(&mut Entries(frames), sweep) else { break };
            let victim = FrameNumber(victim);
            let frame = frames.frame(victim);
            offered += u64::from(frame.order().frames());
            victims.push(victim);
            if frame.is_hollow() {
                break;
            }
        }
        victims
    }

    /// Whether the folio has parts that were used enough to stay.
    pub(crate) fn stays_in_part(&self, frames: &Frames, victim: FrameNumber) -> bool {
        frames.frame(victim).is_partly_used()
            && self.0.lock().stays_in_part(&Entries(frames), victim.0)
    }

    pub(crate) fn is_offered(&self, frames: &Frames, head: FrameNumber) -> bool {
        let _policy = self.0.lock();
        matches!(Entries(frames).place(head.0), Place::Offered(_))
    }

    /// `victim` is frozen. Under its mapping's `change` mutex.
    pub(crate) fn evicted(
        &self,
        frames: &Frames,
        sweep: &mut Sweep,
        victim: FrameNumber,
        file: u64,
    ) {
        let mut policy = self.0.lock();
        let mut entries = Entries(frames);
        if let Some(shadow) = policy.answer(&mut entries, sweep, victim.0, Answer::Evicted)
            && !mutant::on(Mutant::GhostsForgotten)
        {
            frames.ghosts().put(file, frames.frame(victim).identity().pages(), shadow);
        }
    }

    pub(crate) fn stays(
        &self,
        frames: &Frames,
        sweep: &mut Sweep,
        victim: FrameNumber,
        why: Answer,
    ) {
        let none = self.0.lock().answer(&mut Entries(frames), sweep, victim.0, why);
        debug_assert_eq!(none, None, "what stays leaves no shadow");
    }
}

/// A folio that may go, with its identity when it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) head: FrameNumber,
    pub(crate) identity: Identity,
}

impl Candidate {
    pub(crate) fn of(frames: &Frames, head: FrameNumber) -> Self {
        Candidate { head, identity: frames.frame(head).identity() }
    }
}

struct Entries<'a>(&'a Frames);

impl Entries<'_> {
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
    fn is_partly_used(&self, id: Id) -> bool {
        let kept_whole = Flags::HOLLOW | Flags::GRANTED;
        self.entry(id).is_partly_used()
            && !self.entry(id).flags().intersects(kept_whole)
            && !mutant::on(Mutant::PartsUnsplit)
    }
    fn pages(&self, id: Id) -> u32 {
        self.entry(id).order().frames()
    }
    fn place(&self, id: Id) -> Place {
        Place::from_bits(self.entry(id).place())
    }
    fn set_place(&mut self, id: Id, place: Place) {
        if place == Place::Out {
            // A policy leaves old links behind; the allocator requires none.
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
