//! A page cache that a program links.
//!
//! The feature `testing` adds what only tests, benchmarks and comparisons need; each such item says
//! so.

// Where tests live: what the public interface shows, in `crates/pinfold/tests`, made of what is in
// `crates/pinfold-testing`; what needs internals, in a `tests` module beside the code; protocols, in
// `src/models`.

// The model checkers run the rooms, not the house: without the front door much of them is unused.
#![cfg_attr(any(loom, shuttle), allow(dead_code, unused_imports, unreachable_pub))]

/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod borrow;
#[cfg(not(loom))]
mod cache;
mod core;
mod counters;
mod error;
mod failures;
#[cfg(not(loom))]
mod file;
mod fill;
mod fork;
mod found;
mod frame;
mod freeze;
mod handle;
mod holders;
mod index;
mod mapping;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, shuttle))]
#[path = "models/whole/mod.rs"]
mod models;
mod mutant;
#[cfg(all(feature = "mutants", not(any(test, loom, shuttle))))]
pub mod mutants;
mod options;
mod pin;
mod pressure;
mod read;
mod readers;
mod reclaim;
mod residency;
mod sizes;
pub mod source;
mod stats;
mod stream;
mod sync;
mod wait;

#[cfg(not(loom))]
pub use borrow::{Borrowed, FolioRef, Optimistic, Reader};
#[cfg(not(loom))]
pub use cache::{BUDGET_MAX_BYTES, BUDGET_MIN_BYTES, Cache};
pub use error::{Error, PinRangeCause, Result};
#[cfg(not(loom))]
pub use file::File;
pub use holders::PinHolder;
#[cfg(feature = "testing")]
pub use options::Reference;
pub use options::{FileOptions, Options};
pub use pin::{PinnedExtent, PinnedRange};
pub use readers::{Barrier, READERS_MAX};
pub use source::Hint;
pub use stats::{BorrowStats, Fallbacks, READ_SIZE_BUCKETS, Stats};
