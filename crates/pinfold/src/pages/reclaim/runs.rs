//! Which runs to make hollow, or to take back. Who asks is on the way of a fault, or of an eviction:
//! so a look allocates nothing, and reads at most about [`ENTRIES_MAX`] entries, however large the
//! cache is. The next one goes on where it has ended.

// Not from `crate::base::sync`: a hint, as `Pressure` has it.
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::mutant::{self, Mutant};
use crate::frames::{FrameNumber, Order};
use crate::pages::core::Core;

/// That a look returns.
const RUNS_MAX: usize = 8;

/// Those of 64 runs of single pages. A run that is not looked at counts as one.
const ENTRIES_MAX: u32 = 64 * Order::MAX.frames();

/// So many free frames are as good as any: the look ends.
const FREE_ENOUGH: u32 = Order::MAX.frames() / 8 * 7;

/// Of a run in which all folios seem to be movable, but for hollow ones.
#[derive(Debug, Default)]
pub(crate) struct RunContent {
    /// Frames.
    pub(crate) free: u32,
    /// Frames of the hollow folios that cannot move.
    pub(crate) held: u32,
}

/// The larger, the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunRank {
    /// All of the run would be free.
    pub(crate) all_free: bool,
    pub(crate) is_movable: bool,
    /// How many of its frames are free now.
    pub(crate) free: u32,
}

type BestRuns = [Option<(RunRank, FrameNumber)>; RUNS_MAX];

/// The best of some runs that are hollow, or of some that are not, the best first, as `rank` says;
/// those of which it says nothing are left out. Begins at `hand`.
pub(crate) fn best_runs(
    core: &Core,
    hand: &AtomicU32,
    are_hollow: bool,
    rank: impl Fn(FrameNumber, &RunContent) -> Option<RunRank>,
) -> impl Iterator<Item = FrameNumber> {
    // Relaxed, as the store below: a hint.
    let mut nth = hand.load(Ordering::Relaxed);
    let (mut best, mut entries_left) = (BestRuns::default(), ENTRIES_MAX);
    let mut rank_of = |run| {
        entries_left = entries_left.saturating_sub(1);
        let is_one = core.frames.is_hollow(run) == are_hollow;
        let content = is_one.then(|| content(core, run, &mut entries_left)).flatten();
        (content.and_then(|content| rank(run, &content)), entries_left == 0)
    };
    let first = core.frames.whole_run(nth);
    let mut next = first;
    // Ends: each turn looks at another run, until all were looked at.
    while let Some(run) = next {
        let (rank, mut is_over) = rank_of(run);
        let mut it = rank.map(|rank| (rank, run));
        if it > best[RUNS_MAX - 1] && (are_hollow || !has_borrowed(core, run)) {
            is_over |=
                rank >= Some(RunRank { all_free: true, is_movable: true, free: FREE_ENOUGH });
            for place in &mut best {
                if it > *place {
                    std::mem::swap(place, &mut it);
                }
            }
        }
        nth = nth.wrapping_add(1);
        next = core.frames.whole_run(nth).filter(|_| !is_over);
        if next == first {
            break;
        }
    }
    hand.store(nth, Ordering::Relaxed);
    best.into_iter().flatten().map(|(_, run)| run)
}

/// `None`: there is an ordinary folio that cannot move.
fn content(core: &Core, run: FrameNumber, entries_left: &mut u32) -> Option<RunContent> {
    let mut content = RunContent::default();
    let mut at = 0;
    // Ends: each turn advances by at least a frame.
    while at < Order::MAX.frames() {
        *entries_left = entries_left.saturating_sub(1);
        let head = run.after(at);
        let frame = core.frames.frame(head);
        if frame.count.word().is_frozen() {
            content.free += 1;
            at += 1;
            continue;
        }
        let frames = frame.order().frames();
        if frame.can_move().is_none() {
            if frame.is_hollow() {
                content.held += frames;
            } else if !mutant::on(Mutant::InUseTried) {
                return None;
            }
        }
        at += frames;
    }
    Some(content)
}

/// Whether an ordinary folio of the run is borrowed, which its count does not show.
fn has_borrowed(core: &Core, run: FrameNumber) -> bool {
    let is_of_it = |head: FrameNumber| head.0.wrapping_sub(run.0) < Order::MAX.frames();
    let is_it = |head: FrameNumber| is_of_it(head) && !core.frames.frame(head).is_hollow();
    core.readers.seen_announced().any(is_it) && !mutant::on(Mutant::InUseTried)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::pages::outside::Outside;
    use crate::{Cache, Options};

    const FREE_IN_EACH: u32 = 8;

    /// All runs are lent, and nearly all of each is in use.
    fn all_lent() -> (Cache, Vec<FrameNumber>) {
        let cache = Cache::new(Options::new(1 << 30)).unwrap();
        let frames = &cache.core().frames;
        while frames.hollow_out_run() {}
        let runs: Vec<_> = frames.hollow_runs().collect();
        assert!(runs.len() > 400);
        while frames.alloc_hollow(Order::MIN).is_some() {}
        for run in &runs {
            (0..FREE_IN_EACH).for_each(|at| cache.core().give_back(run.after(at)));
        }
        (cache, runs)
    }

    /// How many runs the hand passes by in one look.
    fn passed(hand: &AtomicU32, look: impl FnOnce()) -> u32 {
        let before = hand.load(Ordering::Relaxed);
        look();
        hand.load(Ordering::Relaxed) - before
    }

    #[test]
    fn a_look_for_a_run_to_take_back_is_bounded_and_the_next_goes_on() {
        let (cache, runs) = all_lent();
        let core = cache.core();
        let hand = &core.pressure.take_back_hand;
        let taken = || core.take_run_back(u32::MAX);
        for _ in 0..2 {
            assert_eq!(passed(hand, || assert!(!taken())), 64);
        }
        // One of the first can be taken back by now, nearly; and there is room for what is in it.
        let run = runs[3];
        (FREE_IN_EACH..100).for_each(|at| core.give_back(run.after(at)));
        assert_eq!((0..runs.len().div_ceil(64)).filter(|_| taken()).count(), 1);
        assert!(!core.frames.is_hollow(run));
    }
}
