//! A number of pages with a limit: those that somebody holds for long.

// Not from `crate::base::sync`: a level, compared with a limit, on which no protocol depends.
use std::sync::atomic::{AtomicU32, Ordering};

/// Pages that somebody holds for long: how many there may be has a limit.
#[derive(Debug, Default)]
pub(crate) struct HeldPages(AtomicU32);

impl HeldPages {
    /// Adds `pages`, unless they were more than `most` then: `Err` says how many there are.
    pub(crate) fn add(&self, pages: u32, most: u32) -> Result<(), u32> {
        let more = |held: u32| held.checked_add(pages).filter(|all| *all <= most);
        // Relaxed, here and below: a level, compared with a limit.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(drop)
    }

    pub(crate) fn pages(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn take_back(&self, pages: u32) {
        self.0.fetch_sub(pages, Ordering::Relaxed);
    }
}
