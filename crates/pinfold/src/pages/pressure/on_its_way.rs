//! What is on its way from sources, and how much of it each file may have. A source that hangs
//! keeps that memory for ever. However many hang, the others must have memory, and read ahead.
//!
//! | what a file has | together with what it has already, at most |
//! |---|---|
//! | folios that are being filled | half of the cache without what all files have of these; and three quarters without what all have of both kinds. If nobody waits for them, half of that |
//! | copies that are being read | the same; one copy at a time, of all files, may be more |
//! | folios that somebody waits for; copies | beyond that, a 64th of what is left up to 13/16 of the cache, at least a page |
//! | the first of these folios, if reads of the file have ended | the same up to 15/16 |
//!
//! So one file alone has at most a quarter of the cache in folios, and a sixth of it that nobody
//! waits for: whoever reads what does not answer, and around it, leaves room to those who wait for
//! other parts of the file. If the sources of `n` files hang, each has an `n + 1`th of half of the
//! cache, and others have as much. Beyond three quarters, what
//! somebody waits for still comes: of any file up to the first limit, and then only of those whose
//! source has answered before and has nothing else to answer.

// Not from `crate::base::sync`: levels.
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::base::mutant::{self, Mutant};
use crate::base::sync::Ordering;
use crate::frames::Order;

/// What one file, or all files, have on their way.
#[derive(Debug, Default)]
pub(crate) struct OnItsWay {
    /// Frames of folios that are being filled.
    fills: AtomicU32,
    /// Pages of copies that are being read.
    copies: AtomicU64,
    /// Reads of folios.
    ended: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Or somebody who then asks for each page of it that has not come, or for one page of it.
    Nobody,
    /// A thread or a future, for its first page alone.
    First,
    /// A thread within a call of a source, for its first page: a fill that is under way waits for
    /// it, so it must not wait for a fill.
    InASource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyCounts {
    Pages(u32),
    /// The one that may be more than the share of its file.
    Alone,
}

impl OnItsWay {
    pub(crate) fn frames(&self) -> u32 {
        // Relaxed, here and below: a level.
        self.fills.load(Ordering::Relaxed)
    }

    fn both(&self) -> u32 {
        let all = u64::from(self.frames()) + self.copies.load(Ordering::Relaxed);
        u32::try_from(all).unwrap_or(u32::MAX)
    }

    pub(crate) fn reads_ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn read_ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Shares {
    all: OnItsWay,
    /// Some copy is more than the share of its file.
    alone: AtomicBool,
    /// Half of the cache, of each of the two kinds.
    pub(super) each_max: u32,
    /// Of both kinds.
    both_max: u32,
    /// With folios that somebody waits for: of any file; of one whose reads end; in a source.
    waited_max: [u32; 3],
    least_max: u32,
}

const REST_SHARE: u32 = 64;

impl Shares {
    pub(super) fn new(frames: u32) -> Self {
        let part = |of_32: u32| (u64::from(frames) * u64::from(of_32) / 32) as u32;
        Shares {
            all: OnItsWay::default(),
            alone: AtomicBool::new(false),
            each_max: part(16),
            both_max: part(24),
            waited_max: [26, 30, 31].map(part),
            least_max: (frames / 256).max(1),
        }
    }

    /// What is waited for may be on its way as long as there is memory.
    #[cfg(all(test, any(loom, shuttle)))]
    pub(super) fn model(frames: u32) -> Self {
        // A quarter of few frames is one: here it is half, for a batch's groups.
        let each_max = if cfg!(shuttle) { 3 * frames / 2 } else { 3 * frames / 4 };
        let all = 2 * frames;
        let (both_max, waited_max) = (all, [REST_SHARE * all; 3]);
        Shares { each_max, both_max, waited_max, least_max: frames, ..Shares::new(frames) }
    }

    /// False if the file has enough. Called before there is memory for the folio, so that what many
    /// threads begin at once is bounded, too.
    pub(crate) fn fill_begins(&self, of_file: &OnItsWay, order: Order, need: Need) -> bool {
        let frames = order.frames();
        self.all.fills.fetch_add(frames, Ordering::Relaxed);
        let more = |own: u32| {
            let is_known = own == 0 && of_file.reads_ended() > 0;
            let most = self.most_folios([self.all.frames(), self.all.both()], need, is_known);
            Some(own + frames).filter(|own| *own <= most)
        };
        // Acquire and release pair with each other: who sees a folio in the file's level sees it in
        // all.
        let begins = of_file.fills.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok();
        if !begins {
            self.all.fills.fetch_sub(frames, Ordering::Relaxed);
        }
        begins
    }

    /// Of one file, where all have so many, and with copies `both`.
    fn most_folios(&self, [all, both]: [u32; 2], need: Need, is_known: bool) -> u32 {
        let left = self.left(all, both);
        let [any_max, known_max, in_a_source_max] = self.waited_max;
        match need {
            Need::First | Need::Nobody if mutant::on(Mutant::HungUnbounded) => {
                left.max(self.least_max)
            }
            Need::First if is_known => left.max(self.rest(known_max, both)),
            Need::First => left.max(self.rest(any_max, both)),
            Need::InASource if both <= in_a_source_max => u32::MAX,
            Need::InASource => left,
            Need::Nobody if mutant::on(Mutant::UnwaitedTakesAll) => left,
            Need::Nobody => left / 2,
        }
    }

    fn left(&self, all: u32, both: u32) -> u32 {
        self.each_max.saturating_sub(all).min(self.both_max.saturating_sub(both))
    }

    fn rest(&self, most: u32, both: u32) -> u32 {
        let left = most.checked_sub(both);
        left.map_or(0, |left| (left / REST_SHARE).clamp(1, self.least_max))
    }

    /// Filled, failed, or not begun.
    pub(crate) fn fill_ends(&self, of_file: &OnItsWay, frames: u32) {
        for level in [&self.all, of_file] {
            level.fills.fetch_sub(frames, Ordering::Relaxed);
        }
    }

    /// Whether not even a page that somebody waits for may come.
    pub(crate) fn is_enough(&self, of_file: &OnItsWay) -> bool {
        let own = of_file.frames();
        let is_known = own == 0 && of_file.reads_ended() > 0;
        let all = [self.all.frames() + 1, self.all.both() + 1];
        own + 1 > self.most_folios(all, Need::First, is_known)
    }

    /// `None` if the file has enough of them.
    #[cfg(not(loom))]
    pub(crate) fn copy_begins(&self, of_file: &OnItsWay, pages: u32) -> Option<CopyCounts> {
        let more_pages = u64::from(pages);
        let before = self.all.copies.fetch_add(more_pages, Ordering::Relaxed);
        let more = |own: u64| {
            let (all, both) = (before + more_pages, self.all.both());
            let left = self.left(u32::try_from(all).unwrap_or(u32::MAX), both);
            let most = left.max(self.rest(self.waited_max[0], both));
            Some(own + more_pages).filter(|own| *own <= most.into())
        };
        let fits = of_file.copies.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok();
        if fits {
            return Some(CopyCounts::Pages(pages));
        }
        self.all.copies.fetch_sub(more_pages, Ordering::Relaxed);
        if mutant::on(Mutant::HungUnbounded) {
            return Some(CopyCounts::Pages(0));
        }
        // Relaxed: a level, of one.
        let alone = self.alone.compare_exchange(false, true, Ordering::Relaxed, Ordering::Relaxed);
        alone.is_ok().then_some(CopyCounts::Alone)
    }

    #[cfg(not(loom))]
    pub(crate) fn copy_ends(&self, of_file: &OnItsWay, counts: CopyCounts) {
        match counts {
            CopyCounts::Alone => self.alone.store(false, Ordering::Relaxed),
            CopyCounts::Pages(pages) => {
                for level in [&self.all, of_file] {
                    level.copies.fetch_sub(pages.into(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Of folios: of all files, and of one.
    pub(super) fn on_their_way(&self, of_file: &OnItsWay) -> [u32; 2] {
        [&self.all, of_file].map(OnItsWay::frames)
    }
}
