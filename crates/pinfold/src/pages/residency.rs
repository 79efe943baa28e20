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
    pub(crate) fn insert(&self, mut frames: &Frames, head: FrameNumber, file: u64) -> bool {
        let mut policy = self.0.lock();
        let shadow = frames.ghosts().get(file, frames.frame(head).identity().index);
        policy.insert(&mut frames, head.0, shadow);
        if !mutant::on(Mutant::FirstReadUses) {
            frames.frame(head).set_fresh();
        }
        shadow.is_some_and(|shadow| policy.is_recent(shadow))
    }

    /// Not by eviction.
    pub(crate) fn remove(&self, mut frames: &Frames, head: FrameNumber) {
        self.0.lock().remove(&mut frames, head.0);
    }

    pub(crate) fn replace(&self, mut frames: &Frames, old: FrameNumber, new: FrameNumber) {
        self.0.lock().replace(&mut frames, old.0, new.0);
    }

    /// `hand_out` makes the pieces of the folio at `head`, of `pages_before` pages, under the
    /// policy's lock: the policy must not see a folio that is lighter than it was told. `rest` are
    /// the heads of all pieces but the first.
    pub(crate) fn split(
        &self,
        mut frames: &Frames,
        head: FrameNumber,
        pages_before: u32,
        rest: &[u32],
        hand_out: impl FnOnce(),
    ) {
        let mut policy = self.0.lock();
        hand_out();
        policy.split(&mut frames, head.0, pages_before, rest);
    }

    /// Until they have `pages` pages, there are `most` of them, or one is hollow.
    pub(crate) fn next_victims(
        &self,
        mut frames: &Frames,
        sweep: &mut Sweep,
        pages: u64,
        most: usize,
    ) -> Vec<FrameNumber> {
        let mut victims = Vec::with_capacity(most);
        let mut offered = 0;
        let mut policy = self.0.lock();
        while victims.len() < most && offered < pages {
            let Some(victim) = policy.next_victim(&mut frames, sweep) else { break };
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
        frames.frame(victim).is_partly_used() && self.0.lock().stays_in_part(&frames, victim.0)
    }

    /// It stays as a whole then.
    #[cfg(all(feature = "map", not(loom)))]
    pub(crate) fn spare_in_part(&self, mut frames: &Frames, victim: FrameNumber) -> bool {
        let mut policy = self.0.lock();
        policy.stays_in_part(&frames, victim.0) && policy.spare_offered(&mut frames, victim.0)
    }

    pub(crate) fn is_offered(&self, frames: &Frames, head: FrameNumber) -> bool {
        let _policy = self.0.lock();
        matches!(frames.place(head.0), Place::Offered(_))
    }

    /// `victim` is frozen. Under its mapping's `change` mutex.
    pub(crate) fn evicted(
        &self,
        mut frames: &Frames,
        sweep: &mut Sweep,
        victim: FrameNumber,
        file: u64,
    ) {
        let mut policy = self.0.lock();
        if let Some(shadow) = policy.answer(&mut frames, sweep, victim.0, Answer::Evicted)
            && !mutant::on(Mutant::GhostsForgotten)
        {
            frames.ghosts().put(file, frames.frame(victim).identity().pages(), shadow);
        }
    }

    pub(crate) fn stays(
        &self,
        mut frames: &Frames,
        sweep: &mut Sweep,
        victim: FrameNumber,
        why: Answer,
    ) {
        let none = self.0.lock().answer(&mut frames, sweep, victim.0, why);
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

fn entry(frames: &Frames, id: Id) -> &Frame {
    frames.frame(FrameNumber(id))
}

fn id(link: Option<FrameNumber>) -> Id {
    link.map_or(NONE, |frame| frame.0)
}

fn link(id: Id) -> Option<FrameNumber> {
    (id != NONE).then_some(FrameNumber(id))
}

impl Residents for &Frames {
    fn uses(&self, id: Id) -> u8 {
        entry(self, id).uses()
    }
    fn set_uses(&mut self, id: Id, uses: u8) {
        entry(self, id).set_uses(uses);
    }
    fn is_partly_used(&self, id: Id) -> bool {
        entry(self, id).is_partly_used()
            && !entry(self, id).flags().intersects(Flags::GRANTED)
            && !mutant::on(Mutant::PartsUnsplit)
    }
    fn pages(&self, id: Id) -> u32 {
        entry(self, id).order().frames()
    }
    fn place(&self, id: Id) -> Place {
        Place::from_bits(entry(self, id).place())
    }
    fn set_place(&mut self, id: Id, place: Place) {
        if place == Place::Out {
            // A policy leaves old links behind; the allocator requires none.
            entry(self, id).set_prev(None);
            entry(self, id).set_next(None);
        }
        entry(self, id).set_place(place.to_bits());
    }
    fn prev(&self, folio: Id) -> Id {
        id(entry(self, folio).prev())
    }
    fn set_prev(&mut self, folio: Id, prev: Id) {
        entry(self, folio).set_prev(link(prev));
    }
    fn next(&self, folio: Id) -> Id {
        id(entry(self, folio).next())
    }
    fn set_next(&mut self, folio: Id, next: Id) {
        entry(self, folio).set_next(link(next));
    }
}
