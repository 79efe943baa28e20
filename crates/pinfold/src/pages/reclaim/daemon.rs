use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::evict::evict;
use super::{NAP_MAX, NAP_MIN};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::thread;
use crate::base::threads::{NotStarted, without_signals};
use crate::error::Result;
use crate::pages::core::Core;
use crate::pages::outside::Outside;
use crate::pages::pressure::Listener;

/// Between two checks of the watermark.
const BATCH_PAGES: u32 = 512;

const NAME: &str = "pinfold-reclaim";

/// The thread does not keep `core` alive, and ends with it.
pub(crate) fn start(core: &Arc<Core>) -> Result<()> {
    let (listener, weak) = (core.pressure.bell.listener(), Arc::downgrade(core));
    let life = move || {
        let mut naps = Naps { next: NAP_MIN, seen: 0 };
        while listener.wait() {
            let Some(core) = Weak::upgrade(&weak) else { return };
            evict_to_high(&core);
            if !wake_the_queued(&core, &listener, &mut naps) {
                return;
            }
        }
    };
    let start = || thread::Builder::new().name(NAME.to_owned()).spawn(life);
    let thread = without_signals(start)
        .map_err(|cause| NotStarted { name: NAME, cause: Arc::new(cause) })?;
    core.pressure.bell.is_heard_by(thread);
    Ok(())
}

/// As long as futures queue for memory, wakes one from time to time: the drop of a guard tells
/// nobody. False if the thread shall end.
fn wake_the_queued(core: &Core, listener: &Listener, naps: &mut Naps) -> bool {
    // Ends: futures give up after a while, as threads do.
    while core.pressure.is_queued_for() && !mutant::on(Mutant::QueueForgotten) {
        let (nap, since) = (naps.next(core), Instant::now());
        // All that find no memory ring: that must not cut the nap short.
        while let left = nap.saturating_sub(since.elapsed())
            && !left.is_zero()
            && let Some(go_on) = listener.wait_at_most(left)
        {
            if !go_on {
                return false;
            }
            evict_to_high(core);
        }
        evict_to_high(core);
        core.pressure.wake_first();
    }
    true
}

/// How long it sleeps between two futures: ever longer, as long as there is no progress.
struct Naps {
    next: Duration,
    seen: u64,
}

impl Naps {
    fn next(&mut self, core: &Core) -> Duration {
        let seen = core.pressure.progress_seen();
        if std::mem::replace(&mut self.seen, seen) != seen {
            self.next = NAP_MIN;
        }
        let nap = self.next;
        self.next = (nap * 2).min(NAP_MAX);
        nap
    }
}

fn evict_to_high(core: &Core) {
    // Ends: each turn takes a run back, evicts something, or is the last.
    loop {
        let wanted = core.pressure.high_frames.saturating_sub(core.frames.free_frames());
        if wanted == 0 {
            break;
        }
        // First what nobody uses.
        let taken =
            !mutant::on(Mutant::EvictsFirst) && core.take_run_back(core.pressure.high_frames);
        if !taken && evict(core, wanted.min(BATCH_PAGES)).evicted == 0 {
            break;
        }
    }
    core.keep_some_free();
}

#[cfg(all(test, feature = "map", not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::evict_to_high;
    use crate::base::mutant::{self, Mutant};
    use crate::frames::Order;
    use crate::pages::core::Core;
    use crate::pages::reclaim;
    use crate::source::Memory;
    use crate::{Cache, Hint, Options};

    /// The evictions by `step`, while the arena has a little less than so many pages free, and runs
    /// are lent that nobody uses.
    fn evictions_beside_unused_runs(
        mutant: Option<Mutant>,
        free: impl Fn(&Core) -> u32,
        step: impl Fn(&Core),
    ) -> u64 {
        let cache = Cache::new(Options::new(32 << 20)).unwrap();
        let core = cache.core();
        assert!(core.frames.hollow_out_run() && core.frames.hollow_out_run());
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 32 << 20]))).unwrap();
        file.advise(0..0, Hint::Random).unwrap();
        let mut page = 0;
        // Ends: each page takes a frame.
        while core.frames.free_frames() >= free(core) {
            file.read_at(&mut [0], page * 4096).unwrap();
            page += 1;
        }
        assert!(
            core.frames.free_frames() >= core.pressure.low_frames,
            "the daemon is at work, too"
        );
        mutant::with(mutant, || step(core));
        cache.stats().evictions
    }

    #[test]
    fn runs_that_nobody_uses_go_back_before_anything_is_evicted() {
        let evictions = |mutant| {
            evictions_beside_unused_runs(mutant, |core| core.pressure.high_frames, evict_to_high)
        };
        assert_eq!(evictions(None), 0);
        assert!(evictions(Some(Mutant::EvictsFirst)) > 0);
    }

    #[test]
    fn runs_that_nobody_uses_go_back_before_anything_is_evicted_for_a_large_folio() {
        let evictions = |mutant| {
            let a_run = |_: &Core| Order::MAX.frames();
            evictions_beside_unused_runs(mutant, a_run, |core| {
                let got = reclaim::allocate(core, Order::MAX, true).unwrap().unwrap();
                core.give_back(got.0);
            })
        };
        assert_eq!(evictions(None), 0);
        assert!(evictions(Some(Mutant::LargeEvictFirst)) > 0);
    }
}
