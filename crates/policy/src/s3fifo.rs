//! The policy of the cache: S3-FIFO-shaped.
//!
//! Here: which queue gives the next candidate, which folios are spared, and which queue a returning
//! folio enters. Not here: the walk that asks for it (`policy.rs`), linking (`queues.rs`), effort
//! (`sweep.rs`), the ghosts' clock (`shadow.rs`).
//!
//! **Source.** Yang, Zhang, Qiu, Yue, Vinayak: FIFO queues are all you need for cache eviction,
//! SOSP '23, <https://doi.org/10.1145/3600006.3613147>. Of it: a small FIFO queue of 10 % of the
//! space for newcomers; at its end a newcomer that was hit more than once moves to the main queue
//! and loses its count, any other is evicted and remembered; a remembered one that comes back goes
//! to main at once; main spares what was hit since, one count a time; counts stop at 3; the memory
//! is as long as main. (The authors' simulator, libCacheSim, has the same defaults: small 0.10,
//! ghost 0.90, threshold 2.)
//!
//! **Other than there.** Folios weigh 1 to 512 pages, and the queues' shares are in pages. The
//! ghosts are fingerprints with the time of eviction (`ghosts.rs`, `shadow.rs`). One call spares no more than
//! `reprieves_max` folios, then offers the next whatever its count, so that a caller's stall is
//! bounded however hot the cache is. What main evicts leaves a ghost too. While main lacks pages (a
//! new cache, a budget raised, a large file dropped) newcomers that do not fit in small go to main;
//! else small would spread over the whole cache and keep it, and a loop longer than the cache would
//! find a FIFO and never hit. (libCacheSim's later version does so until the cache is full.) The
//! share is below what main has in a full cache, so that the pages which reclaim keeps free between
//! its watermarks do not count as lacking. Pinned folios are offered, too, and the caller answers
//! that they are pinned.
//!
//! Which queue gives, in this order, of those that still have a folio that did not refuse this
//! sweep (`sweep.rs`):
//! 1. small, if it has its share;
//! 2. main;
//! 3. small, whatever it has.
//!
//! What is busy goes back to its queue; what is pinned in small moves to main.

use crate::policy::{PolicyState, Rules};
use crate::queues::{Queues, Usage};
use crate::residents::{Queue, Residents, USES_MAX};
use crate::shadow::{GhostClock, Shadow};
use crate::sweep::Sweep;

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

/// The S3-FIFO-shaped policy. See the module's head.
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

    /// Whether small has its share and main does not.
    fn main_lacks(&self) -> bool {
        self.queues.weight(Queue::Small).pages >= self.small_target_pages
            && self.queues.weight(Queue::Main).pages < self.main_fill_pages
    }
}

impl PolicyState for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn is_recent(&self, shadow: Shadow) -> bool {
        self.ghosts.is_recent(shadow)
    }

    fn usage(&self) -> Usage {
        self.queues.usage()
    }
}

impl Rules for S3Fifo {
    fn queues(&mut self) -> &mut Queues {
        &mut self.queues
    }

    fn enters(&self, shadow: Option<Shadow>) -> Queue {
        let returned = shadow.is_some_and(|shadow| self.ghosts.is_recent(shadow));
        if returned || self.main_lacks() { Queue::Main } else { Queue::Small }
    }

    #[inline]
    fn spares(&self, queue: Queue, uses: u8) -> Option<u8> {
        match queue {
            Queue::Small => (uses >= self.options.promote_uses).then_some(0),
            Queue::Main => uses.checked_sub(1),
        }
    }

    /// By the order at the module's head.
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

    #[inline]
    fn spare<R: Residents + ?Sized>(&mut self, r: &mut R, queue: Queue, sweep: &Sweep) -> bool {
        // It would be offered all the same, after all of main once more.
        let in_vain = queue == Queue::Small && self.queues.all_refused(Queue::Main, sweep);
        !in_vain && self.spare_used(r, queue)
    }

    fn reprieves_max(&self) -> u32 {
        self.options.reprieves_max
    }

    fn ghost(&mut self, from: Queue, pages: u32) -> Option<Shadow> {
        let leaves_ghost = match from {
            Queue::Small => true,
            Queue::Main => self.options.main_ghosts,
        };
        leaves_ghost.then(|| self.ghosts.stamp(pages))
    }
}
