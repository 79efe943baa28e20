//! Memory under the budget: allocation, and the eviction that it needs. `residency` decides which
//! folio goes, `pressure` has the watermarks and who waits, `freeze` takes a folio apart. The arena
//! *is* the budget: data, the frame table with the ghosts, and index nodes.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | allocating a folio; how long a thread tries |
//! | `evict.rs` | eviction, step by step |
//! | `daemon.rs` | the thread that evicts in the background |
//! | `compact.rs` | making whole runs and blocks by moving folios |
//! | `unmovable.rs` | memory for index nodes, and for what is about to be pinned |
//! | `copies.rs` | memory for copies (`File::bytes`) |
//! | `census.rs` | what fills the memory, for errors |
//! | `by_range.rs` | splitting and moving what is cached of a range, for tests |
//!
//! Every `NoMemory` is made by [`shortage`]. Its callers decide that the wait is over: here, in
//! `copies.rs`, in `access/futures/` and `access/many/`, and in `map/`.

#[cfg(any(test, feature = "testing"))]
mod by_range;
mod census;
mod compact;
#[cfg(not(loom))]
mod copies;
pub(crate) mod daemon;
mod evict;
#[cfg(all(feature = "map", not(loom)))]
mod runs;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod unmovable;

use std::path::PathBuf;
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
use crate::pages::pressure::Refused;
use crate::source;
use census::Census;
#[cfg(not(all(feature = "map", not(loom))))]
use evict::evict_at_once;

#[cfg(any(test, feature = "testing"))]
pub(crate) use by_range::{migrate_range, split_range};
pub(crate) use compact::compact;
#[cfg(all(test, feature = "map", not(any(loom, shuttle))))]
pub(crate) use compact::empty_run;
#[cfg(all(test, feature = "map", not(any(loom, shuttle))))]
pub(crate) use compact::move_out;
#[cfg(all(feature = "map", not(loom)))]
pub(crate) use compact::{empty_some, hollow_out};
#[cfg(not(loom))]
pub(crate) use copies::{Copied, allocate_copy};
#[cfg(all(feature = "map", not(loom)))]
pub(crate) use evict::{FOLIOS_AT_ONCE, evict_at_once, evict_handed_over};
pub(crate) use evict::{evict, evict_these};
#[cfg(all(feature = "map", not(loom)))]
pub(crate) use runs::{RunContent, RunRank, best_runs};
pub(crate) use unmovable::{alloc_unmovable, alloc_unmovable_now};

/// How long a thread sleeps at a time when nothing can be evicted. The end of a guard wakes nobody.
pub(crate) const NAP_MIN: Duration = Duration::from_micros(50);
pub(crate) const NAP_MAX: Duration = Duration::from_millis(20);

/// An error once it says for which page.
#[derive(Debug)]
#[must_use]
pub(crate) struct Shortage(Cause);

impl Shortage {
    #[cold]
    pub(crate) fn of(mut self, mapping: &Mapping, page: u64) -> Error {
        if let Cause::NoMemory { path, offset, .. } = &mut self.0 {
            (*path, *offset) = (mapping.path.clone(), page << PAGE_SHIFT);
        }
        self.0.into()
    }

    #[cold]
    pub(crate) fn of_future(
        mut self,
        core: &Core,
        (file, page): (&Mapping, u64),
        why: Refused,
    ) -> Error {
        if let Cause::NoMemory { futures_bytes, futures_most_bytes, .. } = &mut self.0
            && why != Refused::NoMemory
        {
            let share = core.pressure.share(file.id, &file.on_its_way);
            *futures_bytes = u64::from(share.claimed) << PAGE_SHIFT;
            *futures_most_bytes = u64::from(share.most) << PAGE_SHIFT;
        }
        self.of(file, page)
    }
}

/// A folio of order `wish` or smaller. With `needed`, evicts until there is one, or says why there
/// is none; without, evicts one turn, and waits for nobody.
pub(crate) fn allocate(
    core: &Core,
    wish: Order,
    needed: bool,
) -> Result<Option<(FrameNumber, Order)>, Shortage> {
    // The budget is charged here. (A fill's share is of its file alone.)
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
    core.take_run_back(core.pressure.high_frames);
    let evict_first = if needed { evict } else { evict_at_once };
    evict_first(core, wish.frames().max(core.pressure.direct_pages));
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

/// A turn of eviction for a thread that waits: for those that evict already, but not until patience
/// is over, as they may look at what cannot leave, or take what they free.
pub(crate) fn evict_again(core: &Core, pages: u32, patience: &Patience) -> SweepCounts {
    let goes_by_itself = patience.wears_thin(core) && !mutant::on(Mutant::EvictorsAwaited);
    let evict = if goes_by_itself { evict_at_once } else { evict };
    evict(core, pages)
}

/// In a thread whose file has enough on its way.
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

/// A folio of `order` where the free memory is in smaller pieces, which would be evicted as pieces.
fn make_whole(core: &Core, order: Order, needed: bool) -> Option<FrameNumber> {
    if order == Order::MIN {
        return None;
    }
    // Large folios leave large pieces. But small ones would leave ever more small ones.
    let enough = core.pressure.high_frames + 2 * order.frames();
    if core.frames.free_frames() < enough {
        let evict = if needed { evict } else { evict_at_once };
        let is_back = !mutant::on(Mutant::LargeEvictFirst) && core.take_run_back(enough);
        let got = is_back.then(|| core.frames.alloc(order)).flatten();
        if got.is_some() {
            return got;
        }
        evict(core, order.frames());
        let got = core.frames.alloc(order);
        if got.is_some() {
            return got;
        }
    }
    let made = order.get() >= BLOCK_ORDER_MIN && compact::make_block(core, order);
    made.then(|| core.frames.alloc(order)).flatten()
}

/// How long a thread waits for memory. It begins anew with each read that ends. While no read ends
/// but some are under way, it is longer by [`READS_TAKE`]: a disk that starts up is waited for. A
/// thread in a source's call, for whose folios others wait, waits once, and not for other reads.
#[derive(Debug)]
pub(crate) struct Patience {
    ended: u64,
    /// See [`Self::is_over_for`].
    of_file: Option<u64>,
    since: Instant,
    nap: Duration,
}

const READS_TAKE: u32 = 15;

impl Patience {
    pub(crate) fn new(core: &Core) -> Self {
        let (ended, since) = (core.engine.reads().ended, Instant::now());
        Patience { ended, of_file: None, since, nap: NAP_MIN }
    }

    /// Until there is progress beyond `seen`, or as long again as it has slept so far.
    pub(crate) fn sleep(&mut self, core: &Core, seen: u64) {
        core.pressure.wait_for_progress(seen, self.nap);
        self.nap = (self.nap * 2).min(NAP_MAX);
    }

    pub(crate) fn is_over(&mut self, core: &Core) -> bool {
        let ended = core.engine.reads().ended;
        let before = std::mem::replace(&mut self.ended, ended);
        self.has_lasted(core, ended != before)
    }

    /// For who waits for its own file, if that is why: other files' reads are of no use then.
    pub(crate) fn is_over_for(&mut self, core: &Core, file: &Mapping, why: Refused) -> bool {
        if why != Refused::OwnFile {
            return self.is_over(core);
        }
        let ended = Some(file.on_its_way.reads_ended());
        let before = std::mem::replace(&mut self.of_file, ended);
        self.has_lasted(core, ended != before)
    }

    /// For a copy, for which no read frees what others keep, copies or guards. But if its file has
    /// enough copies on their way, it waits for these.
    #[cfg(not(loom))]
    pub(crate) fn is_over_for_copy(&mut self, core: &Core, file: &Mapping, why: Refused) -> bool {
        match why {
            Refused::OwnCopies => self.is_over_for(core, file, Refused::OwnFile),
            _ => self.has_lasted(core, false),
        }
    }

    pub(crate) fn wears_thin(&self, core: &Core) -> bool {
        self.since.elapsed() > core.options.patience() / 4
    }

    /// The time may begin anew first.
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

/// A source that takes longer hangs.
pub(crate) fn reads_take(core: &Core) -> Duration {
    core.options.patience().saturating_mul(READS_TAKE)
}

/// The most pages that can be kept by pins alone, or by copies alone: all but the frame table, the
/// index nodes for that many, and a small reserve.
#[inline]
pub(crate) fn kept_pages_max(core: &Core) -> u64 {
    let frames = u64::from(core.frames.frames());
    frames - frames / 64 - (frames / 64).max(16)
}

pub(crate) fn shortage(core: &Core, wanted_bytes: u64) -> Shortage {
    let Census { pinned_bytes, filling_bytes, held_bytes, dirty_bytes, reclaimable_bytes } =
        Census::take(core);
    // These are not of files: what left its file while it was borrowed, and copies.
    let others = core.deferred.outstanding(&core.frames).1 + u64::from(core.pressure.copied.now());
    Shortage(Cause::NoMemory {
        path: PathBuf::new(),
        offset: 0,
        wanted_bytes,
        budget_bytes: u64::from(core.frames.frames()) << PAGE_SHIFT,
        pinned_bytes,
        held_bytes: held_bytes + (others << PAGE_SHIFT),
        filling_bytes,
        dirty_bytes,
        reclaimable_bytes,
        metadata_bytes: metadata_bytes(core),
        futures_bytes: 0,
        futures_most_bytes: 0,
    })
}

pub(crate) fn metadata_bytes(core: &Core) -> u64 {
    core.frames.table_bytes() + core.nodes.bytes()
}

/// At least `wanted`; false if there is no memory for them. `needed` as in [`allocate`], but not
/// for a thread that holds folios on which others may wait.
pub(crate) fn refill_nodes(core: &Core, wanted: u32, needed: bool) -> Result<bool, Shortage> {
    let mut result = Ok(true);
    // The caller tries again.
    let _ = core.nodes.refill(wanted, || {
        match allocate_slab(core, needed) {
            Ok(Some(frame)) => return NonNull::new(core.frames.address(frame)),
            Ok(None) => result = Ok(false),
            Err(error) => result = Err(error),
        }
        None
    });
    result
}

/// A frame that keeps its reference for ever: where it fragments no run.
fn allocate_slab(core: &Core, needed: bool) -> Result<Option<FrameNumber>, Shortage> {
    let frame = unmovable::alloc_for_nodes(core).or_else(|| alloc_unmovable(core, Order::MIN));
    if frame.is_some() {
        return Ok(frame);
    }
    let Some((frame, _)) = allocate(core, Order::MIN, needed)? else { return Ok(None) };
    core.frames.claim_run_of(frame);
    Ok(Some(frame))
}
