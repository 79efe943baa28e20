//! Frames for folios whose bytes are outside of the arena: runs are made hollow, and taken back.
//!
//! A hollow run has no memory of its own (`frames/hollow.rs`), so its frames and those of the arena
//! do not stand in for each other. The policy evicts in one order, whatever kind of frame that
//! frees. A free run of the arena becomes hollow when frames for mirrors are wanted and the arena
//! has more free than it wants.
//!
//! Eviction takes back a hollow run, when the arena wants frames and the hollow runs have as many
//! free as one has: what is in it moves to the others, which copies no byte. What is in use keeps
//! its frames, but not the run. One run stays hollow while there are maps: where guards lie in all
//! others, none could become hollow anew, and accesses would fail although nearly all is free.

use std::time::{Duration, Instant};

use crate::base::heap;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::Ordering;
use crate::base::wait::Woken;
use crate::frames::{FrameNumber, Order, TAKEN_BACK_MIN};
use crate::mapped::task::{Rests, Waiter, now};
use crate::pages::core::Core;
use crate::pages::reclaim::{
    self, NAP_MAX, NAP_MIN, Patience, RunContent, RunRank, Shortage, best_runs, evict, evict_again,
    evict_at_once, shortage,
};

/// How often room for the first run is made: other threads take what is free.
const FIRST_TRIES: u32 = 4;

/// Pages that a thread without hollow frames evicts at a time: an access waits for it.
const PAGES_AT_ONCE: u32 = 16;

/// How long a task rests that has found no hollow frames.
const TASK_NAP: Duration = Duration::from_micros(500);

/// [`Patience`] of who waits for hollow frames: threads that get some take turns, and a mapped
/// access that came late has its turn yet. An error would be a signal. But who is always passed by
/// others waits no longer than for reads that do not end.
#[derive(Debug)]
pub(crate) struct LentPatience {
    patience: Patience,
    began: Instant,
    /// How much was lent when it was asked last.
    lent: u64,
    /// How long the thread sleeps next, if nothing could be evicted. `None` before the first wait.
    nap: Option<Duration>,
}

impl LentPatience {
    pub(crate) fn new(core: &Core) -> Self {
        let (patience, began) = (Patience::new(core), Instant::now());
        LentPatience { patience, began, lent: Self::lent(core), nap: None }
    }

    fn lent(core: &Core) -> u64 {
        core.mapped.lent.load(Ordering::Relaxed) // a count
    }

    fn is_over(&mut self, core: &Core) -> bool {
        let before = std::mem::replace(&mut self.lent, Self::lent(core));
        let has_lasted = self.patience.has_lasted(core, self.lent != before);
        has_lasted || self.began.elapsed() > reclaim::reads_take(core)
    }
}

/// A folio for a mirror, of order `wish` or smaller, counted as
/// [`alloc_hollow`](crate::frames::Frames::alloc_hollow) does. Evicts until there is one, or says
/// why there is none.
pub(crate) fn allocate_lent(core: &Core, wish: Order) -> Result<(FrameNumber, Order), Shortage> {
    let mut patience = LentPatience::new(core);
    // Ends: when memory comes, or patience is at an end.
    loop {
        if let Some(got) = lent_at_once(core, wish) {
            return Ok(got);
        }
        now(wait_for_lent(core, wish, &mut patience, Waiter::Thread))?;
    }
}

/// A turn of eviction and a short sleep, for a thread or a task that has no folio, and then tries
/// again.
/// Error: its patience is at an end, and it has waited before.
pub(crate) async fn wait_for_lent(
    core: &Core,
    wish: Order,
    patience: &mut LentPatience,
    waiter: Waiter<'_>,
) -> Result<(), Shortage> {
    if patience.nap.is_some() && patience.is_over(core) {
        return Err(shortage(core, wish.bytes() as u64));
    }
    let nap = patience.nap.map_or(NAP_MIN, |nap| (nap * 2).min(NAP_MAX));
    patience.nap = Some(nap);
    let seen = core.pressure.progress_seen();
    match waiter {
        Waiter::Thread => {
            let pages = wish.frames().max(PAGES_AT_ONCE);
            if evict_again(core, pages, &patience.patience).evicted == 0 {
                core.pressure.wait_for_progress(seen, nap);
            }
        }
        // What could be evicted was, and the daemon is at work.
        Waiter::Task(rests) => rests.rest(TASK_NAP).await,
    }
    Ok(())
}

/// [`lent_at_once`] after one turn of eviction, for who may not sleep.
pub(crate) fn evict_for_lent(core: &Core, wish: Order) -> Option<(FrameNumber, Order)> {
    core.pressure.bell.ring();
    evict_at_once(core, core.pressure.direct_pages.max(wish.frames()));
    lent_at_once(core, wish)
}

/// [`evict_for_lent`] for a task, of which there may be many: one in a while evicts for all of its
/// thread.
pub(crate) fn evict_for_task(
    core: &Core,
    wish: Order,
    rests: &Rests,
) -> Option<(FrameNumber, Order)> {
    if rests.once_in(TASK_NAP) { evict_for_lent(core, wish) } else { lent_at_once(core, wish) }
}

/// As [`allocate_lent`], of what is free, or can become hollow.
pub(crate) fn lent_at_once(core: &Core, wish: Order) -> Option<(FrameNumber, Order)> {
    let mut got = core.frames.alloc_hollow(wish);
    if got.is_none_or(|(_, order)| order != wish) && lend(core) {
        if let Some((smaller, _)) = got {
            core.give_back(smaller);
        }
        got = core.frames.alloc_hollow(wish);
    }
    if got.is_some() {
        core.mapped.lent.fetch_add(1, Ordering::Relaxed); // a count
        if core.frames.free_hollow() < core.pressure.low_frames {
            core.pressure.bell.ring();
        }
    }
    got
}

/// Makes a run hollow if none is, for which it evicts what is in it. Best effort: users of folios
/// may lie in all runs.
pub(crate) fn lend_first(core: &Core) {
    for _ in 0..FIRST_TRIES {
        if core.frames.hollow_frames() > 0 || lend(core) {
            break;
        }
        evict(core, Order::MAX.frames() + core.pressure.high_frames);
    }
}

/// Lends a run, if the arena has more than enough free.
fn lend(core: &Core) -> bool {
    let enough = core.pressure.high_frames + Order::MAX.frames();
    core.frames.free_frames() >= enough
        && (core.frames.hollow_out_run() || heap::has_room() && reclaim::hollow_out(core))
}

/// Frees hollow frames up to the high watermark, if any are in use, or makes a run hollow. For the
/// reclaiming thread.
pub(super) fn keep_some_free(core: &Core) {
    let wanted = || core.pressure.high_frames.saturating_sub(core.frames.free_hollow());
    // Ends: each turn evicts something, makes a run hollow, or is the last.
    while core.frames.hollow_frames() > core.frames.free_hollow() && wanted() > 0 {
        if !lend(core) && evict(core, wanted()).evicted == 0 {
            break;
        }
    }
}

/// Makes a hollow run a run of the arena again, if that has not enough free, the other hollow runs
/// have enough free for what is in it, and one of a few can be emptied, or nearly. That copies
/// nothing.
///
/// Who uses hollow runs keeps some free: else what a program has just given up could go to the
/// arena, and its next store would find nothing.
pub(super) fn take_run_back(core: &Core, enough: u32) -> bool {
    if core.frames.free_frames() >= enough {
        return false;
    }
    let free = core.frames.free_hollow();
    let is_used = core.frames.hollow_frames() > free && !mutant::on(Mutant::TakesAllBack);
    let kept = if is_used { core.pressure.low_frames } else { 0 };
    let spare = free >= Order::MAX.frames() + kept && core.frames.may_take_back();
    if !spare || !heap::has_room() {
        return false;
    }
    let rank = |_, content: &RunContent| {
        let is_worth_it = content.held + TAKEN_BACK_MIN <= Order::MAX.frames();
        let rank = RunRank { all_free: true, is_movable: true, free: content.free };
        is_worth_it.then_some(rank)
    };
    best_runs(core, &core.pressure.take_back_hand, true, rank).any(|run| take_back(core, run))
}

/// Makes `run` a run of the arena again, if it is hollow, but for the folios that cannot move.
pub(crate) fn take_back(core: &Core, run: FrameNumber) -> bool {
    // Dropped after the run is released.
    let mut woken = Woken::default();
    let Some(held) = core.frames.take_free_in(run) else { return false };
    // Asked now that it cannot change: a hollow run that was free for a moment is the arena's, and
    // may have folios of it.
    if !core.frames.is_hollow(run) && !mutant::on(Mutant::TakeBackAnyRun) {
        return false;
    }
    let map = held.held();
    // They stay in the mirror: they move, and are not evicted.
    core.let_go_of_recent(|head| head.0.wrapping_sub(run.0) < Order::MAX.frames());
    let mut at = 0;
    // Ends: each turn advances by at least a frame.
    while at < Order::MAX.frames() {
        at = reclaim::empty_some(core, run, at..Order::MAX.frames(), &map, &mut woken);
    }
    held.take_back()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use crate::base::heap;
    use crate::base::mutant::{self, Mutant};
    use crate::frames::{FrameNumber, Order};
    use crate::pages::reclaim;
    use crate::source::Memory;
    use crate::{Cache, File, Hint, Options, Space};

    /// What compaction takes for a hollow run may have become one of the arena meanwhile, with
    /// folios or without.
    #[test]
    fn a_run_that_is_not_lent_any_more_is_not_taken_back() {
        let cache = Cache::new(Options::new(32 << 20)).unwrap();
        let file = cache.attach("page", Arc::new(Memory::new(vec![7; 4096]))).unwrap();
        file.read_at(&mut [0], 0).unwrap();
        let core = cache.core();
        assert!(core.frames.hollow_out_run());
        let mapping = core.mappings.all().pop().unwrap();
        let run = core.hold(&mapping, 0).unwrap().head().align_down(Order::MAX);
        assert!(core.frames.is_movable(run) && !core.frames.is_hollow(run));
        let take_back = || super::take_back(core, run);
        assert!(!take_back());
        file.read_at(&mut [0], 0).unwrap();
        assert_eq!(cache.stats().migrations, 0);
        // Without folios: with them, the mutant would meet an assertion.
        file.invalidate(0..4096).unwrap();
        assert!(!take_back());
        assert!(mutant::with(Some(Mutant::TakeBackAnyRun), take_back));
    }

    /// Whether a run is taken back as a whole in which there is a page that was stored to.
    fn is_taken_back_with_what_is_dirty(mutant: Option<Mutant>) -> bool {
        let mut options = Options::new(32 << 20);
        options.swap_source = Some(Arc::new(Memory::new(Vec::new())));
        options.swap_bytes = 8 << 20;
        let cache = Cache::new(options).unwrap();
        let map = Space::new(&cache, 0).unwrap().map_anon(4096).unwrap();
        map.write_at(&[7], 0).unwrap();
        let core = cache.core();
        let is_used = |run: &FrameNumber| core.frames.free_in(*run).len() > 1;
        let run = core.frames.hollow_runs().find(is_used).unwrap();
        // One that stays hollow, and one where the page can go.
        assert!(core.frames.hollow_out_run());
        assert_eq!(core.frames.alloc_hollow(Order::MAX).unwrap().1, Order::MAX);
        assert!(core.frames.hollow_out_run());
        assert!(mutant::with(mutant, || super::take_back(core, run)));
        let mut byte = [0];
        map.read_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [7]);
        core.frames.free_in(run).is_full()
    }

    #[test]
    fn a_run_goes_back_though_what_is_in_it_is_dirty() {
        assert!(is_taken_back_with_what_is_dirty(None));
        assert!(!is_taken_back_with_what_is_dirty(Some(Mutant::DirtyStays)));
    }

    /// What of own memory a program gives up is there for its next store.
    fn is_all_taken_back(mutant: Option<Mutant>) -> bool {
        let cache = Cache::new(Options::new(32 << 20)).unwrap();
        let map = Space::new(&cache, 0).unwrap().map_anon(4 << 20).unwrap();
        let core = cache.core();
        let mut pages = 0;
        while pages == 0 || !core.frames.free_hollow().is_multiple_of(Order::MAX.frames()) {
            map.write_at(&[7], pages << 12).unwrap();
            pages += 1;
        }
        while core.frames.free_hollow() < Order::MAX.frames() {
            assert!(core.frames.hollow_out_run());
        }
        let file = cache.attach("zeros", Arc::new(Memory::new(vec![0; 32 << 20]))).unwrap();
        file.advise(0..0, Hint::Random).unwrap();
        let mut offset = 0;
        while core.frames.free_frames() >= core.pressure.high_frames {
            file.read_at(&mut [0], offset).unwrap();
            offset += 4096;
        }
        let taken = mutant::with(mutant, || super::take_run_back(core, core.pressure.high_frames));
        map.discard(0..(core.pressure.low_frames as usize) << 12).unwrap();
        assert!(
            taken || super::take_run_back(core, core.pressure.high_frames),
            "the arena wants it"
        );
        taken
    }

    #[test]
    fn who_uses_lent_memory_keeps_some_free() {
        assert!(!is_all_taken_back(None));
        assert!(is_all_taken_back(Some(Mutant::TakesAllBack)));
    }

    const PAGE: usize = 4096;
    const RUN: usize = 2 << 20;

    /// Of a cache of 64 MiB, 52 MiB were hollow, and in each 2 MiB of these a page is still in use.
    /// Now files want the memory: how many runs stay hollow, and what part of the budget is cached
    /// of a file, in percent.
    fn left_to_files(cache: &Cache) -> (usize, usize) {
        let core = cache.core();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 58 << 20]))).unwrap();
        let mut buf = vec![0; 1 << 16];
        let offsets = |step| (0..file.len()).step_by(step);
        let cached = |_| {
            for at in offsets(1 << 16) {
                file.read_at(&mut buf, at).unwrap();
            }
            let is_hit = |&at: &u64| file.try_read_at(&mut [0], at).unwrap().is_some();
            offsets(PAGE).filter(is_hit).count() * PAGE * 100 / (64 << 20)
        };
        // The policy learns in some of them that the file is used again and again.
        let most = (0..20).map(cached).max().unwrap();
        (core.frames.hollow_runs().count(), most)
    }

    #[test]
    fn own_memory_that_is_held_leaves_files_the_rest() {
        let cache = Cache::new(Options::new(64 << 20)).unwrap();
        let core = cache.core();
        let map = Space::new(&cache, 0).unwrap().map_anon(52 << 20).unwrap();
        let store = |value: u8| {
            for at in (0..map.len()).step_by(PAGE) {
                map.write_at(&[value], at).unwrap();
            }
        };
        store(8);
        let held: Vec<_> =
            (0..map.len()).step_by(RUN).map(|at| map.hold(at..at + PAGE).unwrap()).collect();
        (0..map.len()).step_by(RUN).for_each(|at| map.discard(at + PAGE..at + RUN).unwrap());
        let left = left_to_files(&cache);
        println!("{} pages are held: {left:?}", held.len());
        assert!(left.0 <= 3 && left.1 >= 85, "{left:?}");
        let bytes_of = |at: usize| {
            let mut byte = [0];
            map.read_at(&mut byte, at).unwrap();
            byte[0]
        };
        assert!((0..map.len()).step_by(RUN).all(|at| bytes_of(at) == 8));
        // Own memory gets it again, though the pages are still held.
        store(9);
        assert!(core.frames.hollow_runs().count() >= 26, "own memory has no room");
        assert!((0..map.len()).step_by(PAGE).all(|at| bytes_of(at) == 9));
    }

    #[test]
    fn what_is_in_use_of_mirrors_leaves_files_the_rest() {
        let cache = Cache::new(Options::new(64 << 20)).unwrap();
        let file = cache.attach("mapped", Arc::new(Memory::new(vec![7; 52 << 20]))).unwrap();
        file.advise(0..0, Hint::Random).unwrap();
        let map = Space::new(&cache, 0).unwrap().map_file(&file, 0..52 << 20).unwrap();
        let reader = cache.reader().unwrap();
        let (mut held, mut guards, mut borrows) = (Vec::new(), Vec::new(), Vec::new());
        for page in 0..map.len() / PAGE {
            let bytes = map.hold(page * PAGE..(page + 1) * PAGE).unwrap();
            match page % 1536 {
                0 => held.push(bytes),
                512 => guards.push(file.get(page as u64).unwrap()),
                1024 => borrows.push(file.borrow(page as u64, &reader).unwrap()),
                _ => {}
            }
        }
        // Some leave their file, too.
        file.invalidate(0..26 << 20).unwrap();
        let left = left_to_files(&cache);
        println!("{} pages are held, guarded or borrowed: {left:?}", held.len() * 3);
        assert!(left.0 <= 3 && left.1 >= 85, "{left:?}");
        assert!(held.iter().all(|bytes| bytes[9] == 7));
        assert!(guards.iter().all(|bytes| bytes[9] == 7));
        assert!(borrows.iter().all(|bytes| bytes[9] == 7));
    }

    /// What is left of a run that was taken back may come to lie in an unmovable one.
    #[test]
    fn a_page_whose_run_is_wanted_for_what_cannot_move_moves_without_being_written() {
        let mut options = Options::new(32 << 20);
        options.swap_source = Some(Arc::new(Memory::new(Vec::new())));
        options.swap_bytes = 8 << 20;
        let cache = Cache::new(options).unwrap();
        let core = cache.core();
        let map = Space::new(&cache, 0).unwrap().map_anon(PAGE).unwrap();
        map.write_at(&[7], 0).unwrap();
        let held = map.hold(0..PAGE).unwrap();
        let is_used = |run: &FrameNumber| !core.frames.free_in(*run).is_full();
        let run = core.frames.hollow_runs().find(is_used).unwrap();
        // One that stays hollow.
        assert!(core.frames.hollow_out_run());
        assert_eq!(core.frames.alloc_hollow(Order::MAX).unwrap().1, Order::MAX);
        assert!(super::take_back(core, run) && core.frames.is_movable(run));
        assert!(core.frames.hollow_out_run());
        drop(held);
        let is_hollow = |head: &FrameNumber| core.frames.frame(*head).is_hollow();
        let frames = (run.0..run.0 + Order::MAX.frames()).map(FrameNumber);
        let head = frames.clone().find(is_hollow).expect("it was left there");
        // Somebody may hold it for a moment.
        let moves = |_| {
            std::thread::sleep(Duration::from_millis(1));
            reclaim::move_out(core, head)
        };
        assert!((0..1000).any(moves), "it stays there");
        assert_eq!(frames.clone().find(is_hollow), None);
        let mut byte = [0];
        map.read_at(&mut byte, 0).unwrap();
        assert_eq!((byte, cache.stats().swap_pages_written), ([7], 0));
    }

    /// Whether a run is hollow in which there is a page of own memory that is held.
    fn is_lent_beside_what_is_held(mutant: Option<Mutant>) -> bool {
        let cache = Cache::new(Options::new(32 << 20)).unwrap();
        let core = cache.core();
        let map = Space::new(&cache, 0).unwrap().map_anon(PAGE).unwrap();
        let _held = map.hold(0..PAGE).unwrap();
        let is_used = |run: &FrameNumber| !core.frames.free_in(*run).is_full();
        let used = core.frames.hollow_runs().find(is_used).unwrap();
        // One that stays hollow.
        assert!(core.frames.hollow_out_run());
        assert_eq!(core.frames.alloc_hollow(Order::MAX).unwrap().1, Order::MAX);
        assert!(super::take_back(core, used) && !core.frames.is_hollow(used));
        // Ends: there are so many free ones.
        while core.frames.hollow_out_run() {}
        mutant::with(mutant, || reclaim::hollow_out(core)) && core.frames.is_hollow(used)
    }

    #[test]
    fn a_run_is_lent_again_beside_what_is_held_in_it() {
        assert!(is_lent_beside_what_is_held(None));
        assert!(!is_lent_beside_what_is_held(Some(Mutant::UsedStaysUnhollow)));
    }

    /// A cache whose arena is full of single pages of a file, but for runs of which all is free.
    fn full_of_pages() -> (Cache, File) {
        let cache = Cache::new(Options::new(32 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 28 << 20]))).unwrap();
        file.advise(0..0, Hint::Random).unwrap();
        (0..file.len()).step_by(PAGE).for_each(|at| assert!(file.read_at(&mut [0], at).is_ok()));
        (cache, file)
    }

    /// Whether a run becomes hollow, where guards of a page each lie in the eight runs that have most
    /// free, and little is free in the others.
    fn is_lent_beside<'f, G>(
        (cache, file): &'f (Cache, File),
        mutant: Option<Mutant>,
        guard: impl Fn(&'f File, u64) -> G,
    ) -> bool {
        let core = cache.core();
        let mut runs = BTreeMap::<_, Vec<u64>>::new();
        for page in 0..file.len() / PAGE as u64 {
            let head = core.hold(&file.handle().mapping, page).unwrap().head();
            runs.entry(head.align_down(Order::MAX)).or_default().push(page);
        }
        runs.retain(|&run, pages| core.frames.is_movable(run) && pages.len() == RUN / PAGE);
        assert!(runs.len() >= 12, "only {} runs are full", runs.len());
        // Ends: there are so many free ones.
        while core.frames.hollow_out_run() {}
        let drop_page = |page: &u64| {
            let at = page * PAGE as u64;
            file.invalidate(at..at + PAGE as u64).unwrap();
        };
        let mut guards = Vec::new();
        for pages in runs.values().take(8) {
            guards.push(guard(file, pages[9]));
            pages.iter().filter(|page| **page != pages[9]).for_each(drop_page);
        }
        runs.values().skip(8).take(4).for_each(|pages| pages[8..].iter().for_each(drop_page));
        mutant::with(mutant, || reclaim::hollow_out(core))
    }

    /// What would move is listed in the heap.
    #[test]
    fn without_a_heap_no_run_is_emptied() {
        let (cache, file) = full_of_pages();
        let core = cache.core();
        while core.frames.hollow_out_run() {}
        let without = |does: &dyn Fn() -> bool| {
            heap::HAS_NO_ROOM.set(true);
            let done = does();
            heap::HAS_NO_ROOM.set(false);
            done
        };
        (0..file.len()).step_by(4 * PAGE).for_each(|at| {
            file.invalidate(at..at + PAGE as u64).unwrap();
        });
        let lend = || super::lend(core);
        assert!(!without(&lend) && lend());
        let take_back = || super::take_run_back(core, u32::MAX);
        assert!(!without(&take_back) && take_back());
    }

    /// To try the others comes too late: the eight would be tried each time.
    #[test]
    fn guards_keep_no_runs_but_their_own_from_being_lent() {
        let get = |mutant| is_lent_beside(&full_of_pages(), mutant, File::get);
        assert!(get(None), "guards");
        assert!(!get(Some(Mutant::InUseTried)), "the mutant does nothing");
        let cache = full_of_pages();
        let left_its_file = |file: &'_ File, page: u64| {
            let guard = file.get(page).unwrap().into_owned();
            file.invalidate(page * PAGE as u64..(page + 1) * PAGE as u64).unwrap();
            guard
        };
        assert!(is_lent_beside(&cache, None, left_its_file), "guards of what has left its file");
        let cache = full_of_pages();
        let reader = cache.0.reader().unwrap();
        assert!(is_lent_beside(&cache, None, |file, page| file.borrow(page, &reader)), "borrows");
    }

    /// What compaction has chosen may be hollow by now, and have pages of own memory: these have no
    /// other place.
    #[test]
    fn a_run_that_was_lent_meanwhile_is_not_emptied() {
        let mut options = Options::new(32 << 20);
        options.swap_source = Some(Arc::new(Memory::new(Vec::new())));
        options.swap_bytes = 8 << 20;
        let cache = Cache::new(options).unwrap();
        let map = Space::new(&cache, 0).unwrap().map_anon(4096).unwrap();
        map.write_at(&[7], 0).unwrap();
        let core = cache.core();
        let is_used = |run: &FrameNumber| core.frames.free_in(*run).len() > 1;
        let used = core.frames.hollow_runs().find(is_used).unwrap();
        assert!(!reclaim::empty_run(core, used));
        let mut byte = [0];
        map.read_at(&mut byte, 0).unwrap();
        assert_eq!(byte, [7]);
        // With a page in it, the mutant would meet an assertion.
        assert!(core.frames.hollow_out_run());
        let free = core.frames.hollow_runs().find(|&run| run != used).unwrap();
        assert!(!reclaim::empty_run(core, free));
        assert!(mutant::with(Some(Mutant::CompactHollow), || reclaim::empty_run(core, free)));
    }

    #[test]
    fn while_others_get_lent_memory_it_is_waited_for() {
        let mut options = Options::new(16 << 20);
        options.patience = Duration::from_secs(1);
        let cache = Cache::new(options).unwrap();
        let core = cache.core();
        let mut patience = super::LentPatience::new(core);
        std::thread::sleep(Duration::from_millis(1100));
        let (lent, _) = super::allocate_lent(core, Order::MIN).unwrap();
        assert!(!patience.is_over(core));
        std::thread::sleep(Duration::from_millis(1100));
        assert!(patience.is_over(core));
        core.give_back(lent);
    }

    #[test]
    fn who_is_always_passed_by_others_waits_no_longer_than_for_reads() {
        let mut options = Options::new(16 << 20);
        options.patience = Duration::from_millis(100);
        let cache = Cache::new(options).unwrap();
        let core = cache.core();
        let (begin, most) = (Instant::now(), reclaim::reads_take(core));
        let mut patience = super::LentPatience::new(core);
        let mut gets = || {
            let (lent, _) = super::allocate_lent(core, Order::MIN).unwrap();
            core.give_back(lent);
            patience.is_over(core)
        };
        // Ends: there is a bound.
        while !gets() {
            assert!(begin.elapsed() < 4 * most, "it waits without end");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(begin.elapsed() >= most);
    }
}
