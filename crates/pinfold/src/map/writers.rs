//! The threads that write own memory to the swap, and evict what they have written.
//!
//! Who needs memory hands dirty pages over (`mapped/to_write.rs`), and goes on with what is clean.
//! A page that the program wants paged out is written by the thread that says so.

use std::sync::{Arc, Weak};

use crate::base::guarded::quietly;
use crate::base::heap;
use crate::error::Result;
use crate::pages::core::Core;
use crate::pages::reclaim::{FOLIOS_AT_ONCE, evict_handed_over};
use crate::pages::residency::Candidate;

/// How many there are: so many writes are under way at once.
const THREADS: usize = 2;

const NAME: &str = "pinfold-swap";

/// Starts the threads. They do not keep `core` alive, and end with it.
pub(super) fn start(core: &Arc<Core>) -> Result<()> {
    for _ in 0..THREADS {
        let (pages, weak) = (core.mapped.to_write.pages(), Arc::downgrade(core));
        let life = move || {
            // Ends: with the cache.
            while let Some(some) = pages.next(FOLIOS_AT_ONCE) {
                let Some(core) = Weak::upgrade(&weak) else { return };
                // After a panic, which was told, others are written all the same.
                if heap::has_room() {
                    let folios = some.iter().map(|&(head, identity)| Candidate { head, identity });
                    quietly("a page-out", || evict_handed_over(&core, folios.collect()));
                }
                pages.are_done(&some);
            }
        };
        core.mapped.to_write.are_written_by(crate::base::threads::start(NAME, life)?);
    }
    Ok(())
}
