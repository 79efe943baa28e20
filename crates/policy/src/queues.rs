//! The queues themselves: intrusive lists through the caller's table, and every move between them.
//!
//! The invariants at the crate's head are kept here; `s3fifo.rs` has which queue and folio to take.

use crate::residents::{Id, NONE, PAGES_MAX, Place, Queue, Residents};
use crate::sweep::Sweep;

/// A number of folios and their sum of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Folios.
    pub folios: u32,
    /// Their pages.
    pub pages: u64,
}

impl Weight {
    fn add(&mut self, pages: u32) {
        debug_assert!((1..=PAGES_MAX).contains(&pages), "{pages} pages in one folio");
        self.folios += 1;
        self.pages += u64::from(pages);
    }

    fn sub(&mut self, pages: u32) {
        debug_assert!((1..=PAGES_MAX).contains(&pages), "{pages} pages in one folio");
        debug_assert!(self.folios >= 1 && self.pages >= u64::from(pages), "weight below zero");
        self.folios -= 1;
        self.pages -= u64::from(pages);
    }
}

/// The folios and pages that a policy holds, by place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In the small queue.
    pub small: Weight,
    /// In the main queue.
    pub main: Weight,
    /// Offered to callers that have not answered.
    pub offered: Weight,
}

impl Usage {
    /// All pages the policy knows.
    pub fn pages(&self) -> u64 {
        self.small.pages + self.main.pages + self.offered.pages
    }
}

/// A list from the evicting end (head) to the newest (tail).
#[derive(Debug)]
struct List {
    head: Id,
    tail: Id,
    weight: Weight,
}

impl List {
    /// Puts `id` between two neighbours, either of which may be the end.
    fn link<R: Residents>(&mut self, r: &mut R, prev: Id, id: Id, next: Id) {
        r.set_prev(id, prev);
        r.set_next(id, next);
        match prev {
            NONE => self.head = id,
            _ => r.set_next(prev, id),
        }
        match next {
            NONE => self.tail = id,
            _ => r.set_prev(next, id),
        }
        self.weight.add(r.pages(id));
    }

    fn unlink<R: Residents>(&mut self, r: &mut R, id: Id) {
        let (prev, next) = (r.prev(id), r.next(id));
        if prev == NONE {
            debug_assert_eq!(self.head, id, "a folio without predecessor is not the head");
            self.head = next;
        } else {
            debug_assert_eq!(r.next(prev), id, "predecessor does not name the folio");
            r.set_next(prev, next);
        }
        if next == NONE {
            debug_assert_eq!(self.tail, id, "a folio without successor is not the tail");
            self.tail = prev;
        } else {
            debug_assert_eq!(r.prev(next), id, "successor does not name the folio");
            r.set_prev(next, prev);
        }
        self.weight.sub(r.pages(id));
    }
}

/// The two lists and the folios on offer.
#[derive(Debug)]
pub(crate) struct Queues {
    lists: [List; Queue::ALL.len()],
    offered: Weight,
}

impl Queues {
    pub(crate) fn new() -> Self {
        let empty = || List { head: NONE, tail: NONE, weight: Weight::default() };
        Self { lists: [empty(), empty()], offered: Weight::default() }
    }

    #[inline]
    fn list(&mut self, queue: Queue) -> &mut List {
        &mut self.lists[queue as usize]
    }

    #[inline]
    pub(crate) fn weight(&self, queue: Queue) -> Weight {
        self.lists[queue as usize].weight
    }

    /// The next folio of this queue to evict, or [`NONE`].
    #[inline]
    pub(crate) fn head(&self, queue: Queue) -> Id {
        self.lists[queue as usize].head
    }

    /// Whether this queue's head was not offered to the sweep yet; of an empty queue: no.
    #[inline]
    pub(crate) fn gives(&self, queue: Queue, sweep: &Sweep) -> bool {
        sweep.refused[queue as usize] < self.weight(queue).folios
    }

    /// Whether this queue has folios, and all of them refused this sweep.
    #[inline]
    pub(crate) fn all_refused(&self, queue: Queue, sweep: &Sweep) -> bool {
        self.weight(queue).folios > 0 && !self.gives(queue, sweep)
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            small: self.weight(Queue::Small),
            main: self.weight(Queue::Main),
            offered: self.offered,
        }
    }

    /// Puts a folio that is in no list at the newest end.
    pub(crate) fn push_tail<R: Residents>(&mut self, r: &mut R, id: Id, queue: Queue) {
        debug_assert!(!matches!(r.place(id), Place::Queued(_)), "folio {id} is queued already");
        let list = self.list(queue);
        let tail = list.tail;
        list.link(r, tail, id, NONE);
        r.set_place(id, Place::Queued(queue));
    }

    /// Takes the head out of a queue and marks it as offered.
    pub(crate) fn offer<R: Residents>(&mut self, r: &mut R, queue: Queue) -> Id {
        let id = self.head(queue);
        assert_ne!(id, NONE, "nothing to offer in the {queue:?} queue");
        debug_assert_eq!(r.place(id), Place::Queued(queue), "the head is not in its queue");
        self.list(queue).unlink(r, id);
        self.offered.add(r.pages(id));
        r.set_place(id, Place::Offered(queue));
        id
    }

    /// Ends an offer by queueing the folio again; tells where. A folio that is not on offer (any
    /// more) is left where it is: a removal ended its offer, and the id may be another folio's.
    pub(crate) fn put_back<R: Residents>(
        &mut self,
        r: &mut R,
        id: Id,
        pinned: bool,
    ) -> Option<Queue> {
        let Place::Offered(from) = r.place(id) else { return None };
        let queue = if pinned { Queue::Main } else { from };
        self.offered.sub(r.pages(id));
        self.push_tail(r, id, queue);
        Some(queue)
    }

    /// Takes a folio out of the queue or the offer that it is in; returns that queue.
    pub(crate) fn take_off<R: Residents>(&mut self, r: &mut R, id: Id) -> Option<Queue> {
        let queue = match r.place(id) {
            Place::Out => return None,
            Place::Queued(queue) => {
                self.list(queue).unlink(r, id);
                queue
            }
            Place::Offered(queue) => {
                self.offered.sub(r.pages(id));
                queue
            }
        };
        r.set_place(id, Place::Out);
        Some(queue)
    }

    /// See [`crate::S3Fifo::split`].
    pub(crate) fn split<R: Residents>(
        &mut self,
        r: &mut R,
        head: Id,
        pages_before: u32,
        rest: &[Id],
    ) {
        let pages_after = r.pages(head) + rest.iter().map(|&id| r.pages(id)).sum::<u32>();
        assert_eq!(pages_before, pages_after, "folio {head} lost or gained pages in its split");
        let shrunk = u64::from(pages_before - r.pages(head));
        match r.place(head) {
            Place::Out => {}
            Place::Queued(queue) => {
                let list = self.list(queue);
                list.weight.pages -= shrunk;
                let mut prev = head;
                for &id in rest {
                    debug_assert_eq!(r.place(id), Place::Out, "part {id} was somebody else's");
                    let next = r.next(prev);
                    list.link(r, prev, id, next);
                    r.set_place(id, Place::Queued(queue));
                    prev = id;
                }
            }
            Place::Offered(queue) => {
                self.offered.pages -= shrunk;
                for &id in rest {
                    self.push_tail(r, id, queue);
                }
            }
        }
    }

    /// See [`crate::S3Fifo::replace`].
    pub(crate) fn replace<R: Residents>(&mut self, r: &mut R, old: Id, new: Id) {
        assert_eq!(r.pages(old), r.pages(new), "folio {new} is to replace {old} of another weight");
        debug_assert_eq!(r.place(new), Place::Out, "folio {new} has a place already");
        match r.place(old) {
            Place::Out => return,
            Place::Queued(queue) => {
                let list = self.list(queue);
                let (prev, next) = (r.prev(old), r.next(old));
                list.unlink(r, old);
                list.link(r, prev, new, next);
                r.set_place(new, Place::Queued(queue));
            }
            // The answer to this offer will name the old folio and find it gone.
            Place::Offered(queue) => {
                self.offered.sub(r.pages(old));
                self.push_tail(r, new, queue);
            }
        }
        r.set_place(old, Place::Out);
    }
}
