//! The frames that a range has pinned, in runs. A run records its first folio only; the next ones
//! follow from the sizes, which do not change while they are pinned.

use crate::base::counters::Event;
use crate::frames::FrameNumber;
use crate::pages::core::Core;

/// Pages that are contiguous in memory, whatever folios they belong to. Each is pinned once for the
/// owner of the list. Each folio but the first begins where the previous one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PinnedRun {
    /// The head of the first folio.
    pub(super) head: FrameNumber,
    /// Pages of that folio that lie before the run.
    pub(super) skip: u32,
    pub(super) pages: u32,
}

impl PinnedRun {
    pub(super) const EMPTY: PinnedRun = PinnedRun { head: FrameNumber(0), skip: 0, pages: 0 };

    /// Adds the pages from the frame `next` on and returns true, if they follow the run.
    #[inline]
    pub(super) fn lengthen(&mut self, next: FrameNumber, pages: u32) -> bool {
        let follows = self.pages > 0 && self.first().after(self.pages) == next;
        if follows {
            self.pages += pages;
        }
        follows
    }

    pub(super) fn first(self) -> FrameNumber {
        self.head.after(self.skip)
    }
}

/// All that a range has pinned, in file order. The first run is inline, without an allocation.
#[derive(Debug)]
pub(super) struct PinnedRuns {
    /// Empty if there is nothing.
    first: PinnedRun,
    rest: Vec<PinnedRun>,
}

impl PinnedRuns {
    pub(super) const fn new() -> Self {
        PinnedRuns { first: PinnedRun::EMPTY, rest: Vec::new() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PinnedRun> {
        std::iter::once(&self.first).chain(&self.rest).filter(|run| run.pages > 0)
    }

    pub(super) fn pages(&self) -> u32 {
        self.first.pages + self.rest.iter().map(|run| run.pages).sum::<u32>()
    }

    #[inline]
    pub(super) fn push(&mut self, run: PinnedRun) {
        if self.first.pages == 0 {
            self.first = run;
        } else if run.pages > 0 {
            self.rest.push(run);
        }
    }

    /// Adds one pinned page at the front, `skip` pages into the folio `head`.
    pub(super) fn prepend(&mut self, head: FrameNumber, skip: u32) {
        let run = PinnedRun { head, skip, pages: 1 };
        if self.first.pages > 0 {
            self.rest.insert(0, self.first);
        }
        self.first = run;
    }

    pub(super) fn append(&mut self, other: &PinnedRuns) {
        for run in other.iter() {
            self.push(*run);
        }
    }

    pub(super) fn split_off(&mut self, core: &Core, keep: u32) -> PinnedRuns {
        let all = std::mem::replace(self, PinnedRuns::new());
        let mut other = PinnedRuns::new();
        let mut left = keep;
        for run in all.iter() {
            let here = run.pages.min(left);
            left -= here;
            self.push(PinnedRun { pages: here, ..*run });
            if here < run.pages {
                other.push(cut(core, *run, here));
            }
        }
        debug_assert_eq!(left, 0, "more is kept than is there");
        other
    }

    /// The last page: its folio, and its index there. There must be one.
    pub(super) fn last_page(&self, core: &Core) -> (FrameNumber, u32) {
        let run = self.rest.last().unwrap_or(&self.first);
        debug_assert!(run.pages > 0);
        let last = cut(core, *run, run.pages - 1);
        (last.head, last.skip)
    }

    /// How many folios there are in it; one that is in two runs counts twice.
    #[cfg(feature = "testing")]
    pub(super) fn folios(&self, core: &Core) -> u64 {
        let mut folios = 0;
        for run in self.iter() {
            let mut left = *run;
            while left.pages > 0 {
                let rest = core.frames.frame(left.head).order().frames() - left.skip;
                folios += 1;
                if rest >= left.pages {
                    break;
                }
                left = cut(core, left, rest);
            }
        }
        folios
    }

    /// Unpins everything, with one subtraction per folio, or per page with `BY_PAGE`.
    #[inline]
    pub(super) fn unpin<const BY_PAGE: bool>(&mut self, core: &Core) {
        let mut pages = 0;
        for run in std::iter::once(&self.first).chain(&self.rest) {
            pages += run.pages;
            unpin_run::<BY_PAGE>(core, *run);
        }
        self.first.pages = 0;
        self.rest.clear();
        core.counters.add(Event::UnpinnedPages, pages.into());
    }
}

#[inline]
fn unpin_run<const BY_PAGE: bool>(core: &Core, run: PinnedRun) {
    let PinnedRun { mut head, mut skip, pages: mut left } = run;
    // Ends: each turn unpins at least a page.
    while left > 0 {
        let frame = core.frames.frame(head);
        // Before the unpin: after it the folio may be freed and its frames reused.
        let frames = frame.order().frames();
        if frames == 1 {
            // By itself, so that the processor finds the next entry without waiting for the size.
            core.unpin(head, frame, 1);
            head = head.after(1);
            left -= 1;
            continue;
        }
        let pages = (frames - skip).min(left);
        if BY_PAGE {
            for _ in 0..pages {
                core.unpin(head, frame, 1);
            }
        } else {
            core.unpin(head, frame, pages);
        }
        head = head.after(frames);
        skip = 0;
        left -= pages;
    }
}

fn cut(core: &Core, run: PinnedRun, pages: u32) -> PinnedRun {
    debug_assert!(pages < run.pages);
    let PinnedRun { mut head, skip, .. } = run;
    let mut skip = skip + pages;
    // Ends: each turn advances by a folio, and stays inside the run.
    loop {
        let frames = core.frames.frame(head).order().frames();
        if skip < frames {
            return PinnedRun { head, skip, pages: run.pages - pages };
        }
        head = head.after(frames);
        skip -= frames;
    }
}
