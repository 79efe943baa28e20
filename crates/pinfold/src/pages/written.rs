//! What is known of the writing of a file: what the source has, and how its syncs stand. The states
//! of folios are in `dirt.rs`.
//!
//! One thread at a time has the file's *turn*: to give bytes to the source and sync it, or to cut
//! it. Syncs are numbered as they begin. A thread that waits for the turn leaves without it when a
//! sync has succeeded that began after it came.

use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU64, Condvar, Mutex, Ordering};

#[derive(Debug)]
pub(crate) struct WriteState {
    /// Once it was opened for writing. Not from `crate::base::sync`: it never goes back.
    is_writable: std::sync::atomic::AtomicBool,
    /// So many bytes the source has, at least. What is beyond is zeros, until it is written.
    source_bytes: AtomicU64,
    /// Of folios that are not clean. Changes under the `change` mutex.
    unsynced_pages: AtomicU64,
    turns: Mutex<SyncTurns>,
    ended: Condvar,
    /// Taken before the turn: one thread at a time appends.
    pub(crate) appending: Mutex<()>,
}

#[derive(Debug, Default)]
struct SyncTurns {
    taken: bool,
    /// The last sync that has begun.
    begun: u64,
    /// The last that has succeeded, and the last of metadata, too.
    succeeded: [u64; 2],
    /// What the source had when a sync began that has succeeded.
    durable_bytes: u64,
}

/// The turn, given up on drop.
#[derive(Debug)]
pub(crate) struct SyncTurn<'a>(&'a WriteState);

impl WriteState {
    pub(crate) fn new(source_bytes: u64) -> Self {
        WriteState {
            is_writable: false.into(),
            source_bytes: AtomicU64::new(source_bytes),
            unsynced_pages: AtomicU64::new(0),
            turns: Mutex::new(SyncTurns { durable_bytes: source_bytes, ..SyncTurns::default() }),
            ended: Condvar::new(),
            appending: Mutex::new(()),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable.load(std::sync::atomic::Ordering::Relaxed) // a hint
    }

    pub(crate) fn set_writable(&self) {
        self.is_writable.store(true, std::sync::atomic::Ordering::Relaxed); // as above
    }

    pub(crate) fn source_bytes(&self) -> u64 {
        // Relaxed: the `change` mutex orders what depends on it.
        self.source_bytes.load(Ordering::Relaxed)
    }

    /// For who has the turn.
    pub(crate) fn source_reaches(&self, bytes: u64) {
        // Relaxed: as above.
        self.source_bytes.store(self.source_bytes().max(bytes), Ordering::Relaxed);
    }

    /// The source's length was set, or asked for.
    pub(crate) fn source_has(&self, bytes: u64) {
        self.turns.lock().durable_bytes = bytes;
        self.source_bytes.store(bytes, Ordering::Relaxed); // as above
    }

    pub(crate) fn unsynced_pages(&self) -> u64 {
        self.unsynced_pages.load(Ordering::Relaxed) // a hint, but under the `change` mutex
    }

    pub(super) fn add_unsynced(&self, pages: i64) {
        // Relaxed: under the `change` mutex.
        self.unsynced_pages.fetch_add(pages.cast_unsigned(), Ordering::Relaxed);
    }

    /// Waits for the turn.
    pub(crate) fn turn(&self) -> SyncTurn<'_> {
        let mut turns = self.turns.lock();
        while turns.taken {
            turns = self.ended.wait(turns);
        }
        turns.taken = true;
        SyncTurn(self)
    }

    /// Waits for the turn, and begins a sync; or until another one will do (`None`).
    pub(crate) fn turn_to_sync(&self, data_only: bool) -> Option<SyncTurn<'_>> {
        let mut turns = self.turns.lock();
        let came = turns.begun.saturating_sub(mutant::on(Mutant::SyncOfOthers).into());
        // Ends: each turn of the loop follows the end of another thread's.
        loop {
            if turns.succeeded[usize::from(!data_only)] > came {
                return None;
            }
            if !turns.taken {
                turns.taken = true;
                turns.begun += 1;
                return Some(SyncTurn(self));
            }
            turns = self.ended.wait(turns);
        }
    }

    /// Waits for the turn, and begins a sync; or until `is_wanted` is false (`None`).
    pub(crate) fn turn_to_begin(&self, is_wanted: impl Fn() -> bool) -> Option<SyncTurn<'_>> {
        let mut turns = self.turns.lock();
        while turns.taken {
            turns = self.ended.wait(turns);
        }
        is_wanted().then(|| {
            turns.taken = true;
            turns.begun += 1;
            SyncTurn(self)
        })
    }
}

impl SyncTurn<'_> {
    /// The sync that it began with has succeeded, or failed: then nobody knows what the source has
    /// of what came since the last that has succeeded.
    pub(crate) fn ends(self, data_only: bool, succeeded: bool) {
        let mut turns = self.0.turns.lock();
        if succeeded {
            turns.durable_bytes = self.0.source_bytes();
            turns.succeeded[0] = turns.begun;
            if !data_only {
                turns.succeeded[1] = turns.begun;
            }
        } else {
            self.0.source_bytes.store(turns.durable_bytes, Ordering::Relaxed); // as above
        }
    }
}

impl Drop for SyncTurn<'_> {
    fn drop(&mut self) {
        self.0.turns.lock().taken = false;
        self.0.ended.notify_all();
    }
}
