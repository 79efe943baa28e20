//! Memory under the budget: allocation, and the eviction that it needs.
//!
//! `residency` decides which folio goes, `pressure` has the watermarks and waiting threads, `freeze`
//! takes a folio apart.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | allocating folios and index nodes, and waiting for memory |
//! | `evict.rs` | eviction, step by step |
//! | `daemon.rs` | the thread that evicts ahead of need |
//! | `unmovable.rs` | memory for what stays where it is |
//! | `copies.rs` | memory for contiguous copies that programs keep |
//! | `compact.rs` | making a run of 2 MiB free by moving what is in it |
//! | `by_range.rs` | splitting and moving what tests ask for (feature `testing`) |
//! | `census.rs` | what the memory is full of, for errors |
//!
//! The arena *is* the budget: everything in it is data, the frame table with the ghosts, or slabs
//! of index nodes. So the budget holds at every instant, and eviction only decides who gets memory.

#[cfg(any(test, feature = "testing"))]
mod by_range;
mod census;
mod compact;
#[cfg(not(loom))]
mod copies;
pub(crate) mod daemon;
mod evict;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod unmovable;

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use pinfold_policy::SweepCounts;

use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::base::sizes::BLOCK_ORDER_MIN;
use crate::error::{Cause, Error, Result};
use crate::frames::{FrameNumber, Order, PAGE_BYTES, PAGE_SHIFT};
use crate::pages::core::Core;
use crate::pages::mapping::Mapping;
use crate::pages::outside::Outside;
use crate::pages::pressure::{Refused, Share};
use crate::source;
use census::Census;
#[cfg(not(all(feature = "map", not(loom))))]
use evict::{EFFORT_MAX, evict_at_once};

#[cfg(any(test, feature = "testing"))]
pub(crate) use by_range::{migrate_range, split_range};
pub(crate) use compact::compact;
#[cfg(all(test, feature = "map", not(any(loom, shuttle))))]
pub(crate) use compact::empty_run;
#[cfg(all(feature = "map", not(loom)))]
pub(crate) use compact::empty_some;
#[cfg(all(test, shuttle))]
pub(crate) use compact::make_block;
#[cfg(not(loom))]
pub(crate) use copies::{Copied, allocate_copy};
#[cfg(all(feature = "map", not(loom)))]
pub(crate) use evict::{EFFORT_MAX, FOLIOS_AT_ONCE, evict_at_once, evict_handed_over};
pub(crate) use evict::{evict, evict_these};
pub(crate) use unmovable::{alloc_unmovable, alloc_unmovable_now};

/// How long a thread sleeps at a time when nothing can be evicted: at first, and at most. The end
/// of a guard wakes nobody, as every put would have to check who waits.
pub(crate) const NAP_MIN: Duration = Duration::from_micros(50);
pub(crate) const NAP_MAX: Duration = Duration::from_millis(20);

/// There is no memory: an error once it says for which page.
#[derive(Debug)]
#[must_use]
pub(crate) struct Shortage {
    wanted_bytes: u64,
    budget_bytes: u64,
    metadata_bytes: u64,
    census: Census,
    share: Option<Share>,
}

impl Shortage {
    /// The error of whoever wanted to read `page` of `mapping`.
    #[cold]
    pub(crate) fn of(self, mapping: &Mapping, page: u64) -> Error {
        let Shortage { wanted_bytes, budget_bytes, metadata_bytes, census, share } = self;
        let bytes = |pages: fn(Share) -> u32| {
            share.map_or(0, |share| u64::from(pages(share)) << PAGE_SHIFT)
        };
        Cause::NoMemory {
            path: mapping.path.clone(),
            offset: page << PAGE_SHIFT,
            wanted_bytes,
            budget_bytes,
            pinned_bytes: census.pinned_bytes,
            held_bytes: census.held_bytes,
            filling_bytes: census.filling_bytes,
            dirty_bytes: census.dirty_bytes,
            reclaimable_bytes: census.reclaimable_bytes,
            metadata_bytes,
            futures_bytes: bytes(|share| share.claimed),
            futures_most_bytes: bytes(|share| share.most),
        }
        .into()
    }

    /// The error of a future, which was refused for this reason.
    #[cold]
    pub(crate) fn of_future(
        mut self,
        core: &Core,
        (file, page): (&Mapping, u64),
        why: Refused,
    ) -> Error {
        if why != Refused::NoMemory {
            self.share = Some(core.pressure.share(file.id, &file.on_its_way));
        }
        self.of(file, page)
    }
}

/// A folio of order `wish` or smaller. With `needed`, evicts until there is one, or says why there
/// is none; without, evicts one turn, waits for nobody, and returns `None` if that was not enough.
pub(crate) fn allocate(
    core: &Core,
    wish: Order,
    needed: bool,
) -> Result<Option<(FrameNumber, Order)>, Shortage> {
    // The budget is charged here: the arena is the budget. (A fill's share is of its file alone.)
    let whole = core.frames.alloc(wish).map(|head| (head, wish));
    let whole = whole.or_else(|| make_whole(core, wish, needed).map(|head| (head, wish)));
    let got = whole.or_else(|| core.frames.alloc_at_most(wish));
    if let Some(got) = got {
        if core.frames.free_frames() < core.pressure.low_frames {
            core.pressure.bell.ring();
        }
        return Ok(Some(got));
    }
    core.pressure.bell.ring();
    core.counters.count(Event::DirectReclaim);
    core.take_run_back();
    let evict_first = if needed { evict } else { evict_at_once };
    evict_first(core, wish.frames().max(core.pressure.direct_pages), EFFORT_MAX);
    let mut patience = Patience::new(core);
    // Ends: when memory comes, or patience is at an end.
    loop {
        let seen = core.pressure.progress_seen();
        if let Some(got) = core.frames.alloc_at_most(wish) {
            return Ok(Some(got));
        }
        if !needed {
            return Ok(None);
        }
        if patience.is_over(core) {
            return Err(shortage(core, wish.bytes() as u64));
        }
        if evict_again(core, core.pressure.direct_pages, &patience).evicted == 0 {
            patience.sleep(core, seen);
        }
    }
}

/// A turn of eviction for a thread that waits. That as many evict as may is a reason to wait for
/// them, but not until patience is over: they may all look at what cannot leave, or take what they
/// free.
pub(crate) fn evict_again(core: &Core, pages: u32, patience: &Patience) -> SweepCounts {
    let goes_by_itself = patience.wears_thin(core) && !mutant::on(Mutant::EvictorsAwaited);
    let evict = if goes_by_itself { evict_at_once } else { evict };
    evict(core, pages, EFFORT_MAX)
}

/// Waits until `look` returns something, in a thread whose file has enough on its way.
pub(crate) fn wait_for_own_file<T>(
    core: &Core,
    file: &Mapping,
    look: impl Fn() -> Option<T>,
) -> Result<T, Shortage> {
    let mut patience = Patience::new(core);
    // Ends: when a read of the file has ended, or patience is at an end.
    loop {
        let seen = core.pressure.progress_seen();
        if let Some(it) = look() {
            return Ok(it);
        }
        if patience.is_over_for(core, file, Refused::OwnFile) {
            return Err(shortage(core, PAGE_BYTES as u64));
        }
        patience.sleep(core, seen);
    }
}

/// A folio of `order` where the free memory is in smaller pieces. Used as they are, they would be
/// evicted as pieces, and so on.
fn make_whole(core: &Core, order: Order, needed: bool) -> Option<FrameNumber> {
    if order == Order::MIN {
        return None;
    }
    // First, as much as is wanted is evicted: large folios leave large pieces. But small ones would
    // leave ever more small pieces, and memory unused.
    if core.frames.free_frames() < core.pressure.high_frames + 2 * order.frames() {
        let evict = if needed { evict } else { evict_at_once };
        evict(core, order.frames(), EFFORT_MAX);
        let got = core.frames.alloc(order);
        if got.is_some() {
            return got;
        }
    }
    let made = order.get() >= BLOCK_ORDER_MIN && compact::make_block(core, order);
    made.then(|| core.frames.alloc(order)).flatten()
}

/// How long a thread waits for memory. It begins anew with each read that ends, of whatever file:
/// what the read brought can be evicted. While no read ends but some are under way, it is longer by
/// [`READS_TAKE`]: a disk that starts up is waited for, a source that hangs is not without end. A
/// thread in a source's call, for whose folios others wait, waits once, and not for other reads.
#[derive(Debug)]
pub(crate) struct Patience {
    ended: u64,
    /// Of the file whose reads alone it looks at: see [`Self::is_over_for`].
    of_file: Option<u64>,
    since: Instant,
    nap: Duration,
}

/// How many times longer it waits while reads are under way.
const READS_TAKE: u32 = 15;

impl Patience {
    pub(crate) fn new(core: &Core) -> Self {
        let (ended, since) = (core.engine.reads().ended, Instant::now());
        Patience { ended, of_file: None, since, nap: NAP_MIN }
    }

    /// Sleeps until there is progress beyond `seen`, or as long again as it has slept so far.
    pub(crate) fn sleep(&mut self, core: &Core, seen: u64) {
        core.pressure.wait_for_progress(seen, self.nap);
        self.nap = (self.nap * 2).min(NAP_MAX);
    }

    pub(crate) fn is_over(&mut self, core: &Core) -> bool {
        let ended = core.engine.reads().ended;
        let before = std::mem::replace(&mut self.ended, ended);
        self.has_lasted(core, ended != before)
    }

    /// [`is_over`](Self::is_over) for a future, or for a thread that waits for its own file: then
    /// what is read of other files is of no use to it.
    pub(crate) fn is_over_for(&mut self, core: &Core, file: &Mapping, why: Refused) -> bool {
        if why != Refused::OwnFile {
            return self.is_over(core);
        }
        let ended = Some(file.on_its_way.reads_ended());
        let before = std::mem::replace(&mut self.of_file, ended);
        self.has_lasted(core, ended != before)
    }

    /// [`is_over`](Self::is_over) for a copy, whose time does not begin anew: no read ends other
    /// copies, or guards.
    #[cfg(not(loom))]
    pub(crate) fn is_over_for_copy(&mut self, core: &Core) -> bool {
        self.has_lasted(core, false)
    }

    /// A quarter of it is over.
    pub(crate) fn wears_thin(&self, core: &Core) -> bool {
        self.since.elapsed() > core.options.patience() / 4
    }

    /// Whether it is over; the time may begin anew first.
    pub(crate) fn has_lasted(&mut self, core: &Core, begins_anew: bool) -> bool {
        let in_a_source = source::in_a_source();
        if begins_anew && !in_a_source {
            self.since = Instant::now();
        }
        let waits_for_reads = !in_a_source && core.engine.reads().under_way;
        let limit = if waits_for_reads { reads_take(core) } else { core.options.patience() };
        self.since.elapsed() > limit
    }
}

/// How long it waits while reads are under way and none ends. A source that takes longer hangs.
pub(crate) fn reads_take(core: &Core) -> Duration {
    core.options.patience().saturating_mul(READS_TAKE)
}

/// The most pages that can be kept by pins alone, or by copies alone: all but the frame table, the
/// index nodes for that many pages, and a small reserve to read with.
#[inline]
pub(crate) fn kept_pages_max(core: &Core) -> u64 {
    let frames = u64::from(core.frames.frames());
    frames - frames / 64 - (frames / 64).max(16)
}

/// What the memory is full of, for who wanted so many bytes.
pub(crate) fn shortage(core: &Core, wanted_bytes: u64) -> Shortage {
    let mut census = Census::take(core);
    let page = PAGE_BYTES as u64;
    // Neither are folios of files: those that left their file while they were borrowed, and copies.
    census.held_bytes += core.deferred.outstanding(&core.frames).1 * page;
    census.held_bytes += u64::from(core.pressure.copied.now()) * page;
    Shortage {
        wanted_bytes,
        budget_bytes: u64::from(core.frames.frames()) * page,
        metadata_bytes: metadata_bytes(core),
        census,
        share: None,
    }
}

/// Bytes of the frame table and of the slabs of index nodes.
pub(crate) fn metadata_bytes(core: &Core) -> u64 {
    core.frames.table_bytes() + core.nodes.stats().slab_bytes
}

/// More index nodes, at least `wanted`; false if there is no memory for them. `needed` as in
/// [`allocate`], but not for a thread that holds folios on which others may wait.
pub(crate) fn refill_nodes(core: &Core, wanted: u32, needed: bool) -> Result<bool, Shortage> {
    let mut result = Ok(true);
    // Whether they are there, or another thread took them: the caller tries again.
    let _ = core.nodes.refill(wanted, || match allocate_slab(core, needed) {
        Ok(Some(frame)) => NonNull::new(core.frames.address(frame)),
        Ok(None) => {
            result = Ok(false);
            None
        }
        Err(error) => {
            result = Err(error);
            None
        }
    });
    result
}

/// A frame for index nodes, which keeps its reference for ever: where it fragments no run.
fn allocate_slab(core: &Core, needed: bool) -> Result<Option<FrameNumber>, Shortage> {
    let frame = unmovable::alloc_for_nodes(core).or_else(|| alloc_unmovable(core, Order::MIN));
    if frame.is_some() {
        return Ok(frame);
    }
    let Some((frame, _)) = allocate(core, Order::MIN, needed)? else { return Ok(None) };
    core.frames.claim_run_of(frame);
    Ok(Some(frame))
}
