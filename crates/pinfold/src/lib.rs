//! A page cache that a program links: file pages in the program's own memory, under a budget.
//!
//! [`Cache`] holds the pages, [`File`] is a file read through it, and [`source::Source`] is
//! anything else with bytes to be cached. A program gets at a page in one of these ways:
//!
//! | way | call | cost of a hit | the bytes |
//! |---|---|---|---|
//! | copy | [`File::read_at`] | a lookup and the copy | a snapshot per folio |
//! | borrow, within a thread | [`File::borrow`] | a lookup and a store to the thread's own line | never change under the guard |
//! | borrow, across threads | [`File::get`] | a lookup and an atomic add | never change under the guard |
//! | borrow without holding | [`File::optimistic`] | a lookup | copied, then validated |
//! | pin, for I/O and DMA | [`File::pin`] | a lookup and an atomic add per folio | at fixed addresses |
//! | many pages at once | [`File::read_many`], [`File::get_many`], [`File::borrow_many`] | as of the single calls, waited for together | as of the single calls |
//! | only what is cached | [`File::try_read_at`], [`File::try_get`], [`File::try_borrow`] | as of the waiting calls | as of the waiting calls |
//!
//! A page has 4096 bytes. A folio is a power of two of pages, 4 KiB to 2 MiB, that are contiguous
//! in the file and in memory and are cached as one.
//!
//! `borrow`, `get` and `optimistic` take the number of a page; `read_at` takes an offset in bytes,
//! and `pin`, `advise` and `invalidate` take a range of bytes. Each call returns when the bytes are
//! there, but for those of the last row, which wait for nothing; [`File::prefetch`] and
//! [`Hint::WillNeed`] only start to read. There is no asynchronous interface yet.
//!
//! The feature `testing` adds what only tests, benchmarks and comparisons need; each such item says
//! so.

// Where tests live: what the public interface shows, in `crates/pinfold/tests`, made of what is in
// `crates/pinfold-testing`; what needs internals, in a `tests` module beside the code; protocols,
// in `src/models`.

// loom builds without the public types, so much of the crate is unused there.
#![cfg_attr(loom, allow(dead_code, unused_imports, unreachable_pub))]

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
mod many;
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
#[cfg(not(loom))]
pub use many::ReadAt;
#[cfg(feature = "testing")]
pub use options::Reference;
pub use options::{FileOptions, Options};
pub use pin::{PinnedExtent, PinnedRange};
pub use readers::{Barrier, READERS_MAX};
pub use source::Hint;
pub use stats::{BorrowStats, Fallbacks, READ_SIZE_BUCKETS, Stats};
