//! The policy of the cache: S3-FIFO-shaped.
//!
//! Here: which queue gives the next candidate, which folios are spared, and where a returning one
//! enters. Not here: linking (`queues.rs`), effort (`sweep.rs`), the ghosts' clock (`shadow.rs`).
//!
//! **Source.** Yang, Zhang, Qiu, Yue, Vinayak: FIFO queues are all you need for cache eviction,
//! SOSP '23, <https://doi.org/10.1145/3600006.3613147>. Of it: a small FIFO queue of 10 % of the
//! space for newcomers; at its end a newcomer that was hit more than once moves to main and loses
//! its count, any other is evicted and remembered; one that comes back goes to main at once; main
//! spares what was hit since, one count a time; counts stop at 3; the memory is as long as main.
//!
//! **Other than there.** Folios weigh 1 to 512 pages, and the queues' shares are in pages. The
//! ghosts are fingerprints with the time of eviction. One call spares no more than `reprieves_max`
//! folios, then offers the next whatever its count, so that a caller's stall is bounded however hot
//! the cache is. What main evicts leaves a ghost too. While main lacks pages (a new cache, a large
//! file dropped) newcomers that do not fit in small go to main; else small would spread over the
//! whole cache and keep it, and a loop longer than the cache would find a FIFO and never hit.
//! Pinned folios are offered, too, and the caller answers that they are pinned.
//!
//! Which queue gives, of those that have a folio that did not refuse this sweep (`sweep.rs`):
//! 1. small, if it has its share;
//! 2. main;
//! 3. small, whatever it has.
//!
//! What is busy goes back to its queue; what is pinned in small moves to main.

use crate::queues::{Queues, Usage};
use crate::residents::{Id, Place, Queue, Residents, USES_MAX};
use crate::shadow::{GhostClock, Shadow};
use crate::sweep::{Answer, Sweep};

/// The options of [`S3Fifo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct S3FifoOptions {
    /// The small queue's share of the capacity, in percent.
    pub small_percent: u32,
    /// How far the ghosts reach, in percent of the capacity.
    pub ghost_percent: u32,
    /// Up to this share of the capacity, in percent, main takes newcomers that do not fit in small.
    /// Must be well below what main has left after reclaim took its batch from a full cache: at 90,
    /// with batches of 3 %, newcomers entered main for good, and the hit ratio on Zipf traces fell
    /// by up to 9 points; at 85 and 75 it did not.
    pub main_fill_percent: u32,
    /// The uses that take a newcomer to main, `1..=USES_MAX`.
    pub promote_uses: u8,
    /// Whether folios evicted from main leave a ghost too.
    pub main_ghosts: bool,
    /// The most folios spared in one call.
    pub reprieves_max: u32,
}

impl Default for S3FifoOptions {
    fn default() -> Self {
        Self {
            small_percent: 10,
            ghost_percent: 90,
            main_fill_percent: 75,
            promote_uses: 2,
            main_ghosts: true,
            reprieves_max: 64,
        }
    }
}

/// The policy. See the module's head.
///
/// Not thread-safe by itself: one caller at a time. A call touches a few table entries;
/// [`next_victim`](Self::next_victim) looks at no more folios than the sweep's effort allows.
#[derive(Debug)]
pub struct S3Fifo {
    options: S3FifoOptions,
    queues: Queues,
    ghosts: GhostClock,
    small_target_pages: u64,
    main_fill_pages: u64,
}

impl S3Fifo {
    /// A policy with the default options for a budget of `capacity_pages`.
    pub fn new(capacity_pages: u64) -> Self {
        Self::with_options(capacity_pages, S3FifoOptions::default())
    }

    /// A policy with chosen options.
    ///
    /// # Panics
    /// If `promote_uses` is not in `1..=USES_MAX`, or `small_percent` is above 100.
    pub fn with_options(capacity_pages: u64, options: S3FifoOptions) -> Self {
        let promote_uses = options.promote_uses;
        assert!((1..=USES_MAX).contains(&promote_uses), "uses stop at {USES_MAX}, not counted on");
        assert!(options.small_percent <= 100, "small queue of {} %", options.small_percent);
        let share = |percent: u32| capacity_pages.saturating_mul(u64::from(percent)) / 100;
        Self {
            options,
            queues: Queues::new(),
            ghosts: GhostClock::new(capacity_pages, share(options.ghost_percent)),
            small_target_pages: share(options.small_percent).max(1),
            main_fill_pages: share(options.main_fill_percent),
        }
    }

    /// Whether a folio with this shadow was evicted recently.
    pub fn is_recent(&self, shadow: Shadow) -> bool {
        self.ghosts.is_recent(shadow)
    }

    /// The folios that the policy holds.
    pub fn usage(&self) -> Usage {
        self.queues.usage()
    }

    /// Inserts a folio, and sets its use count to 0: the first read of a folio that a reader waited
    /// for is not a use, and the caller does not raise the count for it. `shadow` is what
    /// was left of it, if it was evicted before.
    ///
    /// # Panics
    /// In debug builds if the folio's place is not `Out`.
    pub fn insert<R: Residents>(&mut self, r: &mut R, id: Id, shadow: Option<Shadow>) {
        let returned = shadow.is_some_and(|shadow| self.is_recent(shadow));
        let main_lacks = self.queues.weight(Queue::Small).pages >= self.small_target_pages
            && self.queues.weight(Queue::Main).pages < self.main_fill_pages;
        r.set_uses(id, 0);
        let queue = if returned || main_lacks { Queue::Main } else { Queue::Small };
        self.queues.push_tail(r, id, queue);
    }

    /// Offers the next folio to evict; `None` if this sweep can offer no more. It is in no queue
    /// until it is answered, so the caller may release its lock while it tries to freeze the folio.
    pub fn next_victim<R: Residents>(&mut self, r: &mut R, sweep: &mut Sweep) -> Option<Id> {
        let mut reprieves_left = self.options.reprieves_max;
        // Ends: each turn spends one of the sweep's effort.
        loop {
            let queue = self.pick(sweep)?;
            if !sweep.spend() {
                return None;
            }
            if reprieves_left == 0 || !self.spare(r, queue, sweep) {
                return Some(self.queues.offer(r, queue));
            }
            reprieves_left -= 1;
            sweep.refused[Queue::Main as usize] = 0;
        }
    }

    /// The queue that gives the next candidate, by the order at the module's head.
    #[inline]
    fn pick(&self, sweep: &Sweep) -> Option<Queue> {
        let gives = |queue| self.queues.gives(queue, sweep);
        let small_gives = gives(Queue::Small);
        if small_gives && self.queues.weight(Queue::Small).pages >= self.small_target_pages {
            Some(Queue::Small)
        } else if gives(Queue::Main) {
            Some(Queue::Main)
        } else {
            small_gives.then_some(Queue::Small)
        }
    }

    /// Spares the head of a queue if it was used enough: moves it to the newest end of main.
    #[inline]
    fn spare<R: Residents>(&mut self, r: &mut R, queue: Queue, sweep: &Sweep) -> bool {
        if queue == Queue::Small && self.queues.all_refused(Queue::Main, sweep) {
            return false; // it would be offered all the same, after all of main once more
        }
        let id = self.queues.head(queue);
        let spared = self.spares(queue, r.uses(id)).filter(|_| !r.is_partly_used(id));
        if let Some(uses) = spared {
            r.set_uses(id, uses);
            self.queues.take_off(r, id);
            self.queues.push_tail(r, id, Queue::Main);
        }
        spared.is_some()
    }

    /// Whether a folio in this queue that was used so often is spared, and then with which count.
    #[inline]
    fn spares(&self, queue: Queue, uses: u8) -> Option<u8> {
        match queue {
            Queue::Small => (uses >= self.options.promote_uses).then_some(0),
            Queue::Main => uses.checked_sub(1),
        }
    }

    /// Reports the outcome for an offered folio. Returns the shadow to leave if it was evicted.
    ///
    /// `Evicted` is right for any folio that the caller holds frozen, offered or not. `Busy` and
    /// `Pinned` for a folio that is no longer on offer change nothing: it was removed while the
    /// policy lock was released, and its id may be another folio's now.
    pub fn answer<R: Residents>(
        &mut self,
        r: &mut R,
        sweep: &mut Sweep,
        id: Id,
        answer: Answer,
    ) -> Option<Shadow> {
        if answer != Answer::Evicted {
            if let Some(queue) = self.queues.put_back(r, id, answer == Answer::Pinned) {
                sweep.refused[queue as usize] += 1;
            }
            return None;
        }
        let pages = r.pages(id);
        sweep.counts.evicted += 1;
        sweep.counts.evicted_pages += u64::from(pages);
        let from = self.queues.take_off(r, id);
        debug_assert!(from.is_some(), "folio {id} was evicted, but not the policy's");
        let leaves_ghost = from? == Queue::Small || self.options.main_ghosts;
        leaves_ghost.then(|| self.ghosts.stamp(pages))
    }

    /// Forgets a folio that leaves for another reason: invalidated, truncated. No ghost is left. A
    /// folio that the policy does not hold is left alone.
    pub fn remove<R: Residents>(&mut self, r: &mut R, id: Id) {
        self.queues.take_off(r, id);
    }

    /// Whether an offered folio was used enough to stay, but in a few of its parts alone: the
    /// caller splits it, if it can, and those of its parts that were used stay.
    pub fn stays_in_part<R: Residents>(&self, r: &R, id: Id) -> bool {
        let Place::Offered(queue) = r.place(id) else { return false };
        self.spares(queue, r.uses(id)).is_some() && r.is_partly_used(id)
    }

    /// Spares an offered folio as a whole, if it was used enough to stay. False: it was not, or is
    /// no longer on offer.
    pub fn spare_offered<R: Residents>(&mut self, r: &mut R, id: Id) -> bool {
        let Place::Offered(queue) = r.place(id) else { return false };
        let Some(uses) = self.spares(queue, r.uses(id)) else { return false };
        r.set_uses(id, uses);
        self.queues.take_off(r, id);
        self.queues.push_tail(r, id, Queue::Main);
        true
    }

    /// A folio was split. All parts have their new weights and use counts in the table already.
    /// `head` keeps its place, and the `rest` come next behind it. If it was on offer, the `rest`
    /// go to the newest end of its queue, and all parts that were used enough are spared.
    ///
    /// # Panics
    /// If the parts do not weigh `pages_before` together.
    pub fn split<R: Residents>(&mut self, r: &mut R, head: Id, pages_before: u32, rest: &[Id]) {
        let place = r.place(head);
        self.queues.split(r, head, pages_before, rest);
        let Place::Offered(queue) = place else { return };
        for &id in std::iter::once(&head).chain(rest) {
            if let Some(uses) = self.spares(queue, r.uses(id)) {
                r.set_uses(id, uses);
                self.queues.take_off(r, id);
                self.queues.push_tail(r, id, Queue::Main);
            }
        }
    }

    /// A folio moved to another frame (migration): `new` has the place that `old` had. Its use
    /// count is in the table already.
    ///
    /// # Panics
    /// If their weights differ.
    pub fn replace<R: Residents>(&mut self, r: &mut R, old: Id, new: Id) {
        self.queues.replace(r, old, new);
    }
}
