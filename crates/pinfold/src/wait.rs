//! Waiting for a change of a folio, without spinning.
//!
//! Called by `fill`: threads that find a folio being filled wait here, and its filler wakes them.

use crate::mutant::{self, Mutant};
use crate::sizes::WAIT_STRIPES as STRIPES;
use crate::sync::{Condvar, Mutex};

/// Wait queues, shared by all folios of a cache.
///
/// A waiter checks its condition under the stripe's mutex and sleeps atomically with its release. A
/// waker makes the condition true, then takes and drops the mutex, so that no waiter is between its
/// check and its sleep, and wakes all.
#[derive(Debug)]
pub(crate) struct Waiters {
    stripes: Box<[(Mutex<()>, Condvar)]>,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Waiters { stripes: (0..STRIPES).map(|_| (Mutex::new(()), Condvar::new())).collect() }
    }

    fn stripe(&self, key: u32) -> &(Mutex<()>, Condvar) {
        // Heads are aligned to their order: the low bits alone would put them all on a few stripes.
        &self.stripes[(key ^ (key >> 6) ^ (key >> 9)) as usize % STRIPES]
    }

    /// Sleeps until `done` is true. `done` must become true before [`Self::wake`] for the same key.
    pub(crate) fn wait(&self, key: u32, mut done: impl FnMut() -> bool) {
        let (mutex, condvar) = self.stripe(key);
        let mut guard = mutex.lock();
        while !done() {
            mutant::pause();
            guard = condvar.wait(guard);
        }
    }

    /// Wakes all threads that wait for `key`.
    pub(crate) fn wake(&self, key: u32) {
        let (mutex, condvar) = self.stripe(key);
        if !mutant::on(Mutant::WakeUnlocked) {
            drop(mutex.lock());
        }
        condvar.notify_all();
    }
}
