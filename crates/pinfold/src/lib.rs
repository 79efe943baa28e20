//! A page cache that a program links.

mod cache;
mod error;
mod frame;
mod index;
mod options;
pub mod source;
mod stats;
mod sync;

pub use cache::{Cache, File};
pub use error::{Error, Result};
pub use options::{FileOptions, Options};
#[doc(hidden)]
pub use options::Reference;
pub use source::Hint;
pub use stats::{Fallbacks, READ_SIZE_BUCKETS, Stats};
