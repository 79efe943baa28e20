//! Residency: which folios are cached, in the order in which the policy would evict them.
//!
//! The policy behind its lock, and the frame table as the policy sees it. `pinfold-policy` decides
//! which folio is evicted, `reclaim/evict.rs` evicts it. Called by the modules that add, drop, move
//! or split folios: `fill`, `freeze`, `reclaim`.

use pinfold_policy::{Answer, Id, NONE, Place, Policy, Residents, S3Fifo, Shadow, Sweep};

use crate::frame::{Frame, FrameNumber, Frames};
use crate::sync::Mutex;

/// Any policy, for any borrow of the frame table.
type AnyPolicy = Box<dyn for<'a> Policy<Entries<'a>>>;

/// The policy, behind its lock. The lock is taken under a mapping's `change` mutex or under no
/// lock, and no lock is taken under it.
pub(crate) struct Residency(Mutex<AnyPolicy>);

impl std::fmt::Debug for Residency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Residency").finish_non_exhaustive()
    }
}

impl Residency {
    /// For a cache of at most `pages` pages of files.
    pub(crate) fn new(pages: u32) -> Self {
        Residency(Mutex::new(Box::new(S3Fifo::new(pages.into()))))
    }

    /// The folio at `head` is up to date from now on. Call it under its mapping's `change` mutex.
    pub(crate) fn insert(&self, frames: &Frames, head: FrameNumber, shadow: Option<Shadow>) {
        self.0.lock().insert(&mut Entries(frames), head.0, shadow);
    }

    /// The folio at `head` has left its file, but not by eviction.
    pub(crate) fn remove(&self, frames: &Frames, head: FrameNumber) {
        self.0.lock().remove(&mut Entries(frames), head.0);
    }

    /// The folio at `old` moved to `new`.
    pub(crate) fn replace(&self, frames: &Frames, old: FrameNumber, new: FrameNumber) {
        self.0.lock().replace(&mut Entries(frames), old.0, new.0);
    }

    /// The folio at `head`, of `pages_before` pages, is split: `hand_out` makes the pieces, under
    /// the policy's lock, which must not see a folio that is lighter than it was told. `rest` are
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

    /// The folios that the policy would evict next, until they have `pages` pages, there are `most`
    /// of them, or one is mirrored.
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
            let Ok(victim) = policy.next_victim(&mut Entries(frames), sweep) else { break };
            let victim = FrameNumber(victim);
            let frame = frames.frame(victim);
            offered += u64::from(frame.order().frames());
            victims.push(victim);
            if frame.is_mirrored() {
                break;
            }
        }
        victims
    }

    /// Tells the policy what happened to a victim. For an eviction, under the `change` mutex,
    /// returns the shadow to leave in its place.
    pub(crate) fn answer(
        &self,
        frames: &Frames,
        sweep: &mut Sweep,
        victim: FrameNumber,
        answer: Answer,
    ) -> Option<u32> {
        let mut policy = self.0.lock();
        let shadow = policy.answer(&mut Entries(frames), sweep, victim.0, answer);
        shadow.map(Shadow::payload)
    }
}

/// The entries of folio heads, as the policy sees them under its lock.
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
