//! One open of a file: what every door needs to serve it.
//!
//! Here: the three things together, and nothing else. `file.rs` is what the program sees of it.

use std::sync::Arc;

use crate::core::Core;
use crate::fill::Stream;
use crate::mapping::Mapping;

/// Whose bytes, through which cache, and read in which pattern.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) stream: Stream,
}
