//! What is known of the writing of a file: what the source has, and how the syncs of it stand. The
//! states of folios are in `dirt.rs`.

use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU64, Mutex, Ordering};

#[derive(Debug)]
pub(crate) struct Written {
    /// Once it was opened for writing. Not from `crate::base::sync`: it never goes back.
    is_writable: std::sync::atomic::AtomicBool,
    /// So many bytes the source has, at least. What is beyond is zeros, until it is written.
    source_bytes: AtomicU64,
    /// Of folios that are not clean. Changes under the `change` mutex.
    unsynced_pages: AtomicU64,
    /// How many syncs have begun.
    begun: AtomicU64,
    /// Held while bytes are given to the source, and while it syncs.
    pub(crate) syncing: Mutex<Syncing>,
}

/// The syncs of a file are numbered from 1, as they begin.
#[derive(Debug, Default)]
pub(crate) struct Syncing {
    /// The last one that has succeeded, and the last one of metadata, too.
    succeeded: [u64; 2],
    number: u64,
}

impl Written {
    pub(crate) fn new(source_bytes: u64) -> Self {
        Written {
            is_writable: false.into(),
            source_bytes: AtomicU64::new(source_bytes),
            unsynced_pages: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            syncing: Mutex::new(Syncing::default()),
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

    /// Under the `change` mutex, or `syncing`.
    pub(crate) fn set_source_bytes(&self, bytes: u64) {
        self.source_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn unsynced_pages(&self) -> u64 {
        self.unsynced_pages.load(Ordering::Relaxed) // a hint, but under the `change` mutex
    }

    pub(super) fn add_unsynced(&self, pages: i64) {
        // Relaxed: under the `change` mutex.
        self.unsynced_pages.fetch_add(pages.cast_unsigned(), Ordering::Relaxed);
    }

    /// Before `syncing` is locked: a sync of a higher number begins later.
    pub(crate) fn begun(&self) -> u64 {
        // Acquire: pairs with the release in `Syncing::begin`.
        self.begun.load(Ordering::Acquire)
    }
}

impl Syncing {
    /// Whether a sync that has succeeded began after `begun` was seen.
    pub(crate) fn covers(&self, begun: u64, data_only: bool) -> bool {
        let begun = if mutant::on(Mutant::SyncOfOthers) { begun.saturating_sub(1) } else { begun };
        self.succeeded[usize::from(!data_only)] > begun
    }

    pub(crate) fn begin(&mut self, written: &Written) {
        self.number += 1;
        // Release: pairs with the acquire in `begun`.
        written.begun.store(self.number, Ordering::Release);
    }

    pub(crate) fn succeeded(&mut self, data_only: bool) {
        self.succeeded[0] = self.number;
        if !data_only {
            self.succeeded[1] = self.number;
        }
    }
}
