//! The thread that evicts in the background, from the low watermark to the high one.

use std::sync::{Arc, Weak};

use super::evict::{EFFORT_MAX, evict};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::sync::thread;

/// The most pages evicted between two checks of the watermark.
const BATCH_PAGES: u32 = 512;

/// The thread's name.
const NAME: &str = "pinfold-reclaim";

/// Starts the thread. It does not keep `core` alive, and ends with it.
///
/// # Errors
/// The system does not start it.
pub(crate) fn start(core: &Arc<Core>) -> Result<()> {
    let (listener, weak) = (core.pressure.bell.listener(), Arc::downgrade(core));
    let thread = thread::Builder::new().name(NAME.to_owned()).spawn(move || {
        while listener.wait() {
            let Some(core) = Weak::upgrade(&weak) else { return };
            evict_to_high(&core);
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
