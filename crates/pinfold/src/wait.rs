//! Waiting without spinning, for something about a folio to change.
//!
//! Called by `fill`: those who find a folio on its way wait here, its filler wakes them.

use crate::flaw::{self, Flaw};
use crate::sizes::WAIT_STRIPES as STRIPES;
use crate::sync::{Condvar, Mutex};

/// Sleeping places, shared by all folios of a cache.
///
/// A condition is checked, and waited for, under the stripe's mutex; whoever makes it true then
/// takes and drops that mutex, so that no waiter is between its check and its sleep, and wakes all.
#[derive(Debug)]
pub(crate) struct Waiters {
    stripes: Box<[(Mutex<()>, Condvar)]>,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Waiters { stripes: (0..STRIPES).map(|_| (Mutex::new(()), Condvar::new())).collect() }
    }

    fn stripe(&self, key: u32) -> &(Mutex<()>, Condvar) {
        // Heads are aligned to their order: the low bits alone would crowd one stripe.
        &self.stripes[(key ^ (key >> 6) ^ (key >> 9)) as usize % STRIPES]
    }

    /// Sleeps until `done`; `done` must be made true before [`Self::wake`] of the same key.
    pub(crate) fn wait(&self, key: u32, mut done: impl FnMut() -> bool) {
        let (mutex, condvar) = self.stripe(key);
        let mut guard = mutex.lock();
        while !done() {
            flaw::pause();
            guard = condvar.wait(guard);
        }
    }

    /// Wakes whoever waits for `key`.
    pub(crate) fn wake(&self, key: u32) {
        let (mutex, condvar) = self.stripe(key);
        if !flaw::on(Flaw::WakeUnlocked) {
            drop(mutex.lock());
        }
        condvar.notify_all();
    }
}
