//! The threads that write own memory to the swap, and evict what they have written.
//!
//! Who needs memory hands dirty pages over (`pressure/to_write.rs`), and goes on with what is clean.
//! A page that the program wants paged out is written by the thread that says so.

use std::sync::{Arc, Weak};

use super::evict::{FOLIOS_AT_ONCE, evict_handed_over};
use crate::base::guarded::quietly;
use crate::error::Result;
use crate::pages::core::Core;

/// How many there are: so many writes are under way at once.
const THREADS: usize = 2;

/// Their name.
const NAME: &str = "pinfold-swap";

/// Starts the threads. They do not keep `core` alive, and end with it.
///
/// # Errors
/// The system does not start one.
pub(crate) fn start(core: &Arc<Core>) -> Result<()> {
    for _ in 0..THREADS {
        let (pages, weak) = (core.pressure.to_write.pages(), Arc::downgrade(core));
        let life = move || {
            // Ends: with the cache.
            while let Some(some) = pages.next(FOLIOS_AT_ONCE) {
                let Some(core) = Weak::upgrade(&weak) else { return };
                // After a panic, which was told, others are written all the same.
                quietly("a page-out", || evict_handed_over(&core, &some));
                pages.are_done(&some);
            }
        };
        core.pressure.to_write.are_written_by(crate::base::threads::start(NAME, life)?);
    }
    Ok(())
}
