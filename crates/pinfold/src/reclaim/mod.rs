//! Memory for what comes, from what has to go: allocation under the budget.
//!
//! Here: the watermarks, who evicts when (the daemon between them, a reader for itself when there is
//! nothing left), and the policy's lock. Not here: which folio (`pinfold-policy`), how one is taken
//! out of its file (`freeze`). Called by `fill`.
//!
//! The arena *is* the budget: what is in it is data, the frame table, or slabs of index nodes, so
//! the budget holds at every instant by itself; evicting only decides who gets it.

mod census;
mod compact;
mod daemon;
mod place;
mod residents;
#[cfg(all(test, not(loom)))]
mod tests;

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use pinfold_policy::{Answer, Arrival, Policy, S3Fifo, Shadow, Sweep, SweepCounts};

use crate::core::Core;
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::frame::{FrameNumber, Order, PAGE_BYTES};
use crate::freeze::{self, BATCH_MAX, Outcome};
use crate::index::{NodePool, TrimWhere};
use crate::mapping::Mapping;
use crate::source;
use crate::sync::{Condvar, Mutex, MutexGuard, Ordering};
use census::Census;

pub(crate) use compact::compact;
pub(crate) use daemon::Daemon;
pub(crate) use place::place;
pub(crate) use residents::Entries;

/// Folios that one sweep looks at, at most.
const EFFORT_MAX: u32 = 4096;

/// Pages that a reader who finds nothing free evicts for itself at a time, at least and at most.
const DIRECT_PAGES: std::ops::RangeInclusive<u32> = 32..=256;

/// How long it sleeps at a time for want of anything to evict: at first, and at most. Whoever lets go
/// of a folio wakes nobody (a look at who waits would be part of every put), so it looks again by
/// itself, after about as long again as it has waited so far.
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(20);

/// Of the frames, so many in a thousand may hold index nodes before shadows are given up.
const NODES_PER_MILLE: u64 = 9;

/// Any policy, over any borrow of the frame table.
pub(crate) type AnyPolicy = Box<dyn for<'a> Policy<Entries<'a>>>;

/// What reclaim knows.
pub(crate) struct Reclaim {
    policy: Mutex<AnyPolicy>,
    pub(crate) daemon: Daemon,
    low_frames: u32,
    high_frames: u32,
    order_max: Order,
    direct_pages: u32,
    /// Moves when something is freed or arrives; readers out of memory wait for it.
    moved: Mutex<u64>,
    moved_wake: Condvar,
    /// Frames of folios on their way. Not from `crate::sync`: no protocol hangs on it.
    filling_frames: std::sync::atomic::AtomicU32,
    /// Where `place` goes on looking for folios to move out of the way. The same.
    room_hand: std::sync::atomic::AtomicU32,
}

impl std::fmt::Debug for Reclaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reclaim")
            .field("low_frames", &self.low_frames)
            .field("high_frames", &self.high_frames)
            .finish_non_exhaustive()
    }
}

impl Reclaim {
    /// For an arena of `frames`, of which `data_frames` are not the table's.
    pub(crate) fn new(frames: u32, data_frames: u32) -> Self {
        // Enough for a burst of readers, little enough to be no loss.
        let low_frames = (frames / 128).max(8);
        let high_frames = low_frames * 2;
        // A folio is at most a 64th of the cache, so that one reader ahead of himself is not all.
        let order = (frames / 64).max(1).ilog2().min(u32::from(Order::MAX.get()));
        let capacity = u64::from(data_frames - high_frames);
        Reclaim {
            policy: Mutex::new(Box::new(S3Fifo::new(capacity))),
            daemon: Daemon::new(),
            low_frames,
            high_frames,
            order_max: Order::new(order as u8).expect("at most the largest"),
            direct_pages: low_frames.clamp(*DIRECT_PAGES.start(), *DIRECT_PAGES.end()),
            moved: Mutex::new(0),
            moved_wake: Condvar::new(),
            filling_frames: 0.into(),
            room_hand: 0.into(),
        }
    }

    /// Without a daemon and its watermarks.
    #[cfg(all(test, loom))]
    pub(crate) fn model(data_frames: u32, order_max: Order) -> Self {
        Reclaim {
            policy: Mutex::new(Box::new(S3Fifo::new(u64::from(data_frames)))),
            daemon: Daemon::new(),
            low_frames: 0,
            high_frames: 0,
            order_max,
            direct_pages: *DIRECT_PAGES.start(),
            moved: Mutex::new(0),
            moved_wake: Condvar::new(),
            filling_frames: 0.into(),
            room_hand: 0.into(),
        }
    }

    /// The largest folio worth making in a cache of this size.
    pub(crate) fn order_max(&self) -> Order {
        self.order_max
    }

    /// Tells the policy of a folio that is up to date now; under its mapping's `change` mutex.
    pub(crate) fn insert(&self, core: &Core, head: FrameNumber, arrival: Arrival) {
        self.policy.lock().insert(&mut Entries::of(core), head.0, arrival);
    }

    /// The policy, locked; the calls on it want [`Entries::of`] too. Taken under a mapping's
    /// `change` mutex, or with no lock held.
    pub(crate) fn policy(&self) -> MutexGuard<'_, AnyPolicy> {
        self.policy.lock()
    }

    /// A folio of `order` is on its way.
    pub(crate) fn fill_begins(&self, order: Order) {
        // Relaxed, here and below: a level, to be compared with a limit.
        self.filling_frames.fetch_add(order.frames(), Ordering::Relaxed);
    }

    /// A folio of `order` has arrived, or will not.
    pub(crate) fn fill_ends(&self, order: Order) {
        self.filling_frames.fetch_sub(order.frames(), Ordering::Relaxed);
    }

    /// Whether a quarter of the cache is on its way. Then nothing more is read ahead: one source
    /// that hangs must not take the memory of all others.
    pub(crate) fn enough_on_its_way(&self, core: &Core) -> bool {
        self.filling_frames.load(Ordering::Relaxed) > core.frames.frames() / 4
    }

    /// Something was freed, or can be evicted now.
    pub(crate) fn progress(&self) {
        *self.moved.lock() += 1;
        self.moved_wake.notify_all();
    }

    /// Waits for [`Self::progress`] beyond `seen`, but no longer than `nap`.
    fn wait_for_progress(&self, seen: u64, nap: Duration) {
        let moved = self.moved.lock();
        if *moved == seen {
            drop(self.moved_wake.wait_timeout(moved, nap));
        }
    }
}

/// A folio of `wish` or smaller. With `needed`, others are evicted for it until there is one or the
/// error says why not; without, `None` when there is none to be had at once.
pub(crate) fn allocate(
    core: &Core,
    wish: Order,
    needed: bool,
) -> Result<Option<(FrameNumber, Order)>> {
    let whole = core.frames.alloc(wish).map(|head| (head, wish));
    let got = whole.or_else(|| {
        // What is free is in smaller pieces. Taken as they are they would be evicted as pieces one
        // day, and so on: first as much as is wanted makes room, in the order in which it came.
        if wish > Order::MIN {
            evict(core, wish.frames(), EFFORT_MAX);
        }
        core.frames.alloc_at_most(wish)
    });
    if let Some(got) = got {
        if core.frames.free_frames() < core.reclaim.low_frames {
            core.reclaim.daemon.kick();
        }
        return Ok(Some(got));
    }
    core.reclaim.daemon.kick();
    core.counters.count(Event::DirectReclaim);
    let mut last = evict(core, wish.frames().max(core.reclaim.direct_pages), EFFORT_MAX);
    let (mut since, mut nap) = (Instant::now(), NAP_MIN);
    // Ends: when memory comes, or patience is at an end. That is for what others hold: as long as a
    // source is at work, what is on its way will be memory again. Not for whoever is in a source's
    // call itself: all that is on its way may wait for this one.
    loop {
        let seen = *core.reclaim.moved.lock();
        if let Some(got) = core.frames.alloc_at_most(wish) {
            return Ok(Some(got));
        }
        if !needed {
            return Ok(None);
        }
        if core.engine.is_moving() && !source::in_a_source() {
            since = Instant::now();
        }
        if since.elapsed() > core.options.patience {
            return Err(no_memory(core, wish, &last));
        }
        last = evict(core, core.reclaim.direct_pages, EFFORT_MAX);
        if last.evicted == 0 {
            core.reclaim.wait_for_progress(seen, nap);
            nap = (nap * 2).min(NAP_MAX);
        }
    }
}

fn no_memory(core: &Core, wish: Order, last: &SweepCounts) -> Error {
    let mut census = Census::take(core);
    let page = PAGE_BYTES as u64;
    // What is borrowed has no reference: the sweep met it, the walk over the table cannot tell.
    let borrowed_bytes = (last.busy_pages * page).saturating_sub(census.held_bytes);
    let borrowed_bytes = borrowed_bytes.min(census.reclaimable_bytes);
    census.reclaimable_bytes -= borrowed_bytes;
    census.held_bytes += borrowed_bytes + core.deferred.outstanding(core).1 * page;
    Error::NoMemory {
        wanted_bytes: wish.bytes() as u64,
        budget_bytes: u64::from(core.frames.frames()) * page,
        pinned_bytes: census.pinned_bytes,
        held_bytes: census.held_bytes,
        filling_bytes: census.filling_bytes,
        dirty_bytes: census.dirty_bytes,
        reclaimable_bytes: census.reclaimable_bytes,
        metadata_bytes: metadata_bytes(core),
    }
}

/// The frame table and the slabs of index nodes.
pub(crate) fn metadata_bytes(core: &Core) -> u64 {
    u64::from(core.frames.frames()) * 64 + core.nodes.stats().slab_bytes
}

/// More index nodes, at least `wanted`.
pub(crate) fn refill_nodes(core: &Core, wanted: u32) -> Result<()> {
    let mut failed = None;
    let refilled = core.nodes.refill(wanted, || match allocate_slab(core) {
        Ok(frame) => NonNull::new(core.frames.address(frame)),
        Err(error) => {
            failed = Some(error);
            None
        }
    });
    // Without an error the nodes are there, or others were quicker: the caller tries again.
    let _ = refilled;
    failed.map_or(Ok(()), Err)
}

/// A frame for index nodes. It keeps its reference for ever: it is never evicted, split or moved, and
/// so it goes where it splinters no run.
fn allocate_slab(core: &Core) -> Result<FrameNumber> {
    if let Some(frame) = place(core, Order::MIN) {
        return Ok(frame);
    }
    let got = allocate(core, Order::MIN, true)?;
    let (frame, _) = got.expect("what is needed comes, or there is an error");
    core.frames.claim_run_of(frame);
    Ok(frame)
}

/// Evicts until `pages` are gone or the effort is spent, in batches.
pub(crate) fn evict(core: &Core, pages: u32, effort_max: u32) -> SweepCounts {
    let collected = core.deferred.collect(core);
    let mut sweep = Sweep::new(effort_max);
    // Ends: the sweep's effort is bounded.
    while sweep.counts().evicted_pages < u64::from(pages) {
        let victims = victims(core, &mut sweep, pages);
        if victims.is_empty() {
            break;
        }
        freeze::evict(core, &victims, &mut sweep, |victim, outcome, sweep| match outcome {
            Outcome::Done { mapping, bytes } => {
                core.counters.count(Event::Eviction);
                core.counters.add(Event::EvictedBytes, bytes);
                bound_shadows(core, &mapping);
                core.retire(&mapping);
            }
            Outcome::Busy | Outcome::Borrowed => answer(core, sweep, victim, Answer::Busy),
            Outcome::Pinned => answer(core, sweep, victim, Answer::Pinned),
        });
    }
    let counts = sweep.counts();
    if counts.evicted > 0 || collected > 0 {
        // A reader who evicts for himself may free more than he takes: others wait for it.
        core.reclaim.progress();
    }
    counts
}

/// What the policy offers next: as many folios as have the pages that are still wanted of `pages`,
/// or as fit in a batch.
fn victims(core: &Core, sweep: &mut Sweep, pages: u32) -> Vec<FrameNumber> {
    let mut victims = Vec::with_capacity(BATCH_MAX);
    let mut offered = sweep.counts().evicted_pages;
    let mut policy = core.reclaim.policy();
    while victims.len() < BATCH_MAX && offered < u64::from(pages) {
        let Ok(victim) = policy.next_victim(&mut Entries::of(core), sweep) else { break };
        let victim = FrameNumber(victim);
        offered += u64::from(core.frames.frame(victim).order().frames());
        victims.push(victim);
    }
    victims
}

fn answer(core: &Core, sweep: &mut Sweep, victim: FrameNumber, answer: Answer) {
    core.reclaim.policy().answer(&mut Entries::of(core), sweep, victim.0, answer);
}

/// The answer for a folio that is frozen: what to leave in its place. Under the `change` mutex.
pub(crate) fn answer_evicted(core: &Core, sweep: &mut Sweep, head: FrameNumber) -> Option<u32> {
    let mut policy = core.reclaim.policy();
    let shadow = policy.answer(&mut Entries::of(core), sweep, head.0, Answer::Evicted);
    shadow.map(Shadow::payload)
}

/// Ghosts are no more than the cache has pages, and where the index takes too much of the budget,
/// nodes with nothing else but ghosts go.
fn bound_shadows(core: &Core, mapping: &Mapping) {
    let frames = u64::from(core.frames.frames());
    let nodes = core.nodes.stats();
    let too_many_nodes = nodes.nodes_in_use * <NodePool>::node_bytes() as u64
        > frames * PAGE_BYTES as u64 * NODES_PER_MILLE / 1000;
    let mut changing = mapping.change();
    let mut writer = changing.writer(&core.nodes);
    if writer.shadow_slots() > frames {
        writer.drop_shadows(64, TrimWhere::Anywhere);
    } else if too_many_nodes && writer.shadow_slots() > 0 {
        writer.drop_shadows(64, TrimWhere::ShadowOnlyNodes);
    }
}
