//! What sources are at: how many requests and calls of a cache's sources have begun and ended, and
//! whether the calling thread is in one of them.
//!
//! Belongs here: the answers, for whoever waits for memory and asks whether there is any to come.
//! Called by `backing.rs`, `request.rs` and `pool.rs`; asked by `reclaim`.

use std::cell::Cell;
use std::sync::Arc;
// Not from `crate::sync`: no protocol hangs on it.
use std::sync::atomic::{AtomicU64, Ordering};

/// The requests and calls of a cache's sources.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// One that is under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Move(UnderWay);

impl UnderWay {
    /// One more begins.
    pub(super) fn begin(&self) -> Move {
        self.0.begun.fetch_add(1, Ordering::Relaxed); // these numbers order nothing
        Move(self.clone())
    }

    /// How many have ended.
    pub(super) fn ended(&self) -> u64 {
        self.0.ended.load(Ordering::Relaxed)
    }

    /// Whether there is one; about now.
    pub(super) fn any(&self) -> bool {
        self.0.begun.load(Ordering::Relaxed) != self.ended()
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread is in a source's call, until this is dropped.
#[derive(Debug)]
pub(super) struct Inside(());

impl Inside {
    pub(super) fn enter() -> Self {
        CALLS.set(CALLS.get() + 1);
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        CALLS.set(CALLS.get() - 1);
    }
}

/// Whether the calling thread carries out a source's call: what it asks of the cache, that source
/// waits for.
pub(crate) fn in_a_source() -> bool {
    CALLS.get() > 0
}
