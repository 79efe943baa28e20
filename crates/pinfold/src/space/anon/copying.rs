//! Which page of own memory is just being copied.
//!
//! # States of the number
//!
//! | number | meaning |
//! |---|---|
//! | even | nobody copies |
//! | odd | the copy with this number is under way, of the page in `page`; `failed` has its number if that page was taken away meanwhile |
//!
//! It changes under the mapping's `change` mutex, and only grows. `page` is stored before it becomes
//! odd. All accesses are `SeqCst`: a thread that finds the same odd number before and after it looked at the
//! page table knows that the copy was under way meanwhile (each load pairs with the changes in `begin` and
//! `end`); and `fail` comes before the page of zeros that lets the copy go on, so `end` sees it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Which page is just being copied, under the `change` mutex (`hold.rs`). If the program takes it away
/// meanwhile, the copy is a fault, which must not wait for that mutex.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// Odd while there is a copy: so each copy has a number.
    number: AtomicU64,
    page: AtomicU64,
    /// The last copy whose page was taken away.
    failed: AtomicU64,
}

impl Copying {
    /// A copy of this page begins; returns its number. The caller has the mutex.
    pub(super) fn begin(&self, page: u64) -> u64 {
        self.page.store(page, Ordering::SeqCst);
        self.number.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The copy has ended; whether it met all of the page's bytes.
    pub(super) fn end(&self, number: u64) -> bool {
        self.number.store(number + 1, Ordering::SeqCst);
        self.failed.load(Ordering::SeqCst) != number
    }

    /// The page of this copy was taken away.
    pub(super) fn fail(&self, number: u64) {
        self.failed.store(number, Ordering::SeqCst);
    }

    /// The number of the copy of this page that there is, if there is one.
    pub(super) fn of(&self, page: u64) -> Option<u64> {
        let number = self.number.load(Ordering::SeqCst);
        let is_of = self.page.load(Ordering::SeqCst) == page;
        (!number.is_multiple_of(2) && is_of && self.is_now(number)).then_some(number)
    }

    /// Whether this copy has not ended.
    pub(super) fn is_now(&self, number: u64) -> bool {
        self.number.load(Ordering::SeqCst) == number
    }
}
