//! A page cache that a program links.

mod cache;
mod core;
mod counters;
mod error;
mod file;
mod fill;
mod frame;
mod freeze;
mod handle;
mod index;
mod mapping;
mod options;
mod read;
mod reclaim;
pub mod source;
mod stats;
mod sync;
#[cfg(all(feature = "testing", not(loom)))]
pub mod testing;
mod wait;

pub use cache::{BUDGET_MAX_BYTES, BUDGET_MIN_BYTES, Cache};
pub use error::{Error, Result};
pub use file::File;
#[doc(hidden)]
pub use options::Reference;
pub use options::{FileOptions, Options};
pub use source::Hint;
pub use stats::{Fallbacks, READ_SIZE_BUCKETS, Stats};
