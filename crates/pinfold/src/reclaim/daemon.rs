//! The thread that evicts ahead of need: from the low watermark to the high one.

use std::sync::{Arc, Weak};

use super::evict::{EFFORT_MAX, evict};
use crate::core::Core;
use crate::sync::thread;

/// Pages evicted between two looks at the watermark, at most.
const BATCH_PAGES: u32 = 512;

/// Starts the thread, which keeps nothing of `core` alive and ends with it.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<()> {
    let (listener, weak) = (core.pressure.bell.listener(), Arc::downgrade(core));
    let thread = thread::Builder::new().name("pinfold-reclaim".to_owned()).spawn(move || {
        while listener.wait() {
            let Some(core) = Weak::upgrade(&weak) else { return };
            evict_to_high(&core);
        }
    })?;
    core.pressure.bell.is_heard_by(thread);
    Ok(())
}

/// Evicts until as much is free as should be, or nothing can be evicted.
fn evict_to_high(core: &Core) {
    // Ends: each turn evicts something, or the sweep found nothing to evict.
    loop {
        let wanted = core.pressure.high_frames.saturating_sub(core.frames.free_frames());
        if wanted == 0 || evict(core, wanted.min(BATCH_PAGES), EFFORT_MAX).evicted == 0 {
            break;
        }
    }
}
