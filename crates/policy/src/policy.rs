//! The trait of a policy, by which the cache and the simulator can exchange one for another.
//!
//! Here: the trait, and the code that all policies with queues share.
//! Not here: any rules (`s3fifo.rs`, `clock.rs`).

use crate::queues::{Queues, Usage};
use crate::residents::{Id, Place, Queue, Residents};
use crate::shadow::Shadow;
use crate::sweep::{Answer, GaveUp, GaveUpReason, Sweep};

/// The part of a policy that needs no table.
pub trait PolicyState: Send {
    /// A short name, for reports.
    fn name(&self) -> &'static str;

    /// Whether a folio with this shadow was evicted recently.
    fn is_recent(&self, shadow: Shadow) -> bool;

    /// The folios that the policy holds.
    fn usage(&self) -> Usage;
}

/// A replacement policy over the folios of a table.
///
/// Not thread-safe by itself: one caller at a time. A call touches a few table entries;
/// `next_victim` looks at no more folios than the sweep's effort allows.
pub trait Policy<R: Residents + ?Sized>: PolicyState {
    /// Inserts a folio, and sets its use count to 0: the first read of a folio that a reader waited
    /// for is not a use, and the caller does not raise the count for it. `shadow` is what
    /// was left of it, if it was evicted before.
    ///
    /// # Panics
    /// In debug builds if the folio's place is not `Out`.
    fn insert(&mut self, residents: &mut R, id: Id, shadow: Option<Shadow>);

    /// Offers the next folio to evict. It is in no queue until it is answered, so the caller may
    /// release the policy lock while it tries to freeze the folio; other sweeps get other folios.
    ///
    /// # Errors
    /// If this sweep can offer no more: the reason, with counts.
    fn next_victim(&mut self, residents: &mut R, sweep: &mut Sweep) -> Result<Id, GaveUp>;

    /// Reports the outcome for an offered folio. If it was evicted, returns the shadow to
    /// leave behind, if any.
    ///
    /// `Evicted` is right for any folio that the caller holds frozen, offered or not. `Busy` and
    /// `Pinned` for a folio that is no longer on offer change nothing: it was removed while the
    /// policy lock was released, and its id may be another folio's now.
    fn answer(
        &mut self,
        residents: &mut R,
        sweep: &mut Sweep,
        id: Id,
        answer: Answer,
    ) -> Option<Shadow>;

    /// Forgets a folio that leaves for another reason: invalidated, truncated. No ghost is left. A
    /// folio that the policy does not hold is left alone.
    fn remove(&mut self, residents: &mut R, id: Id);

    /// Whether an offered folio was used enough to stay, but in a few of its parts alone: the caller
    /// splits it, if it can, and those of its parts that were used stay.
    fn stays_in_part(&self, residents: &R, id: Id) -> bool;

    /// A folio was split. All parts have their new weights and use counts in the table already.
    /// `head` keeps its place, and the `rest` come next behind it. If it was on offer, the `rest` go
    /// to the newest end of its queue, and all parts that were used enough are spared.
    ///
    /// # Panics
    /// If the parts do not weigh `pages_before` together.
    fn split(&mut self, residents: &mut R, head: Id, pages_before: u32, rest: &[Id]);

    /// A folio moved to another frame (migration): `new` has the place that `old` had. Its use count
    /// is in the table already.
    ///
    /// # Panics
    /// If their weights differ.
    fn replace(&mut self, residents: &mut R, old: Id, new: Id);
}

/// The decisions of a policy made of [`Queues`]; a type that implements this is a [`Policy`].
pub(crate) trait Rules: PolicyState {
    fn queues(&mut self) -> &mut Queues;

    /// The queue for a folio that arrives.
    fn enters(&self, shadow: Option<Shadow>) -> Queue;

    /// The queue that gives the next candidate: one that [`Queues::gives`]; `None` if none does.
    fn pick(&self, sweep: &Sweep) -> Option<Queue>;

    /// Whether a folio in this queue that was used so often is spared, and then with which count.
    fn spares(&self, queue: Queue, uses: u8) -> Option<u8>;

    /// Spares the head of a queue if it was used enough: moves it to the newest end of main.
    fn spare<R: Residents + ?Sized>(&mut self, r: &mut R, queue: Queue, _: &Sweep) -> bool {
        self.spare_used(r, queue)
    }

    /// [`spare`](Self::spare), whatever this sweep met.
    #[inline]
    fn spare_used<R: Residents + ?Sized>(&mut self, r: &mut R, queue: Queue) -> bool {
        let id = self.queues().head(queue);
        let spared = self.spares(queue, r.uses(id)).filter(|_| !r.is_partly_used(id));
        if let Some(uses) = spared {
            r.set_uses(id, uses);
            self.queues().rotate(r, queue, Queue::Main);
        }
        spared.is_some()
    }

    /// The most folios spared in one call.
    fn reprieves_max(&self) -> u32;

    /// The shadow to leave for a folio that was evicted from this queue.
    fn ghost(&mut self, from: Queue, pages: u32) -> Option<Shadow>;
}

impl<P: Rules, R: Residents + ?Sized> Policy<R> for P {
    fn insert(&mut self, residents: &mut R, id: Id, shadow: Option<Shadow>) {
        let queue = self.enters(shadow);
        residents.set_uses(id, 0);
        self.queues().push_tail(residents, id, queue);
    }

    fn next_victim(&mut self, residents: &mut R, sweep: &mut Sweep) -> Result<Id, GaveUp> {
        let mut reprieves_left = self.reprieves_max();
        // Ends: each turn spends one of the sweep's effort.
        loop {
            let Some(queue) = self.pick(sweep) else {
                return Err(sweep.gave_up(self.queues().why_nothing(sweep)));
            };
            if !sweep.spend() {
                return Err(sweep.gave_up(GaveUpReason::EffortExhausted));
            }
            if reprieves_left == 0 || !self.spare(residents, queue, sweep) {
                return Ok(self.queues().offer(residents, queue));
            }
            reprieves_left -= 1;
            sweep.note_reprieve();
        }
    }

    fn answer(
        &mut self,
        residents: &mut R,
        sweep: &mut Sweep,
        id: Id,
        answer: Answer,
    ) -> Option<Shadow> {
        let pages = residents.pages(id);
        sweep.note(answer, pages);
        if answer != Answer::Evicted {
            let queue = self.queues().put_back(residents, id, answer == Answer::Pinned);
            if let Some(queue) = queue {
                sweep.note_refusal(queue);
            }
            return None;
        }
        let from = self.queues().take_off(residents, id);
        debug_assert!(from.is_some(), "folio {id} was evicted, but not the policy's");
        self.ghost(from?, pages)
    }

    fn remove(&mut self, residents: &mut R, id: Id) {
        self.queues().take_off(residents, id);
    }

    fn stays_in_part(&self, residents: &R, id: Id) -> bool {
        let Place::Offered(queue) = residents.place(id) else { return false };
        self.spares(queue, residents.uses(id)).is_some() && residents.is_partly_used(id)
    }

    fn split(&mut self, residents: &mut R, head: Id, pages_before: u32, rest: &[Id]) {
        let place = residents.place(head);
        self.queues().split(residents, head, pages_before, rest);
        let Place::Offered(queue) = place else { return };
        for &id in std::iter::once(&head).chain(rest) {
            if let Some(uses) = self.spares(queue, residents.uses(id)) {
                residents.set_uses(id, uses);
                self.queues().take_off(residents, id);
                self.queues().push_tail(residents, id, Queue::Main);
            }
        }
    }

    fn replace(&mut self, residents: &mut R, old: Id, new: Id) {
        self.queues().replace(residents, old, new);
    }
}
