//! The thread that evicts in the background, from the low watermark to the high one.

use std::sync::{Arc, Weak};

use super::compact::compact_some;
use super::evict::{EFFORT_MAX, evict};
use crate::core::Core;
use crate::counters::Event;
use crate::error::{Error, Result};
use crate::frame::{FrameNumber, Order};
use crate::sync::thread;

/// The most pages evicted between two checks of the watermark.
const BATCH_PAGES: u32 = 512;

/// Where 2 MiB are more than one in this many of the cache's frames, they are not kept free.
const RUN_SHARE: u32 = 32;

/// A search for a run that found none is not repeated before so many more evictions.
const EVICTIONS_LATER: u64 = 256;

/// The thread's name.
const NAME: &str = "pinfold-reclaim";

/// Starts the thread. It does not keep `core` alive, and ends with it.
///
/// # Errors
/// The system does not start it.
pub(crate) fn start(core: &Arc<Core>) -> Result<()> {
    let (listener, weak) = (core.pressure.bell.listener(), Arc::downgrade(core));
    let thread = thread::Builder::new().name(NAME.to_owned()).spawn(move || {
        let mut search = Search { hand: FrameNumber(0), in_vain: None };
        while listener.wait() {
            let Some(core) = Weak::upgrade(&weak) else { return };
            evict_to_high(&core);
            if core.pressure.runs_wanted() {
                free_a_run(&core, &mut search);
            }
        }
    });
    let thread = thread.map_err(|cause| Error::Thread { name: NAME, cause: Arc::new(cause) })?;
    core.pressure.bell.is_heard_by(thread);
    Ok(())
}

/// Evicts until the high watermark is reached or nothing can be evicted.
fn evict_to_high(core: &Core) {
    // Ends: each turn evicts something, or the sweep found nothing to evict.
    loop {
        let wanted = core.pressure.high_frames.saturating_sub(core.frames.free_frames());
        if wanted == 0 || evict(core, wanted.min(BATCH_PAGES), EFFORT_MAX).evicted == 0 {
            break;
        }
    }
}

/// The daemon's search for runs that can be emptied.
#[derive(Debug)]
struct Search {
    /// The last run that was looked at.
    hand: FrameNumber,
    /// The evictions until the last search, if that was in vain.
    in_vain: Option<u64>,
}

/// Makes one free run of 2 MiB, for readers ahead of themselves: evicts as much, unless it is free
/// already, and moves folios together.
fn free_a_run(core: &Core, search: &mut Search) {
    let (run_frames, frames) = (Order::MAX.frames(), core.frames.frames());
    if frames / RUN_SHARE < run_frames {
        return;
    }
    let evictions = core.counters.sum(Event::Eviction);
    // What is held for long keeps its runs: so many evictions later there may be others.
    if search.in_vain.is_some_and(|then| evictions - then < EVICTIONS_LATER) {
        return;
    }
    let wanted = (run_frames + core.pressure.low_frames).saturating_sub(core.frames.free_frames());
    if wanted > 0 {
        evict(core, wanted, EFFORT_MAX);
    }
    let freed = compact_some(core, &mut search.hand);
    search.in_vain = if freed { None } else { Some(evictions) };
}
