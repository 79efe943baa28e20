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

impl Handle {
    /// Takes over a mapping that was counted as open. Reads ahead by so many bytes at most.
    pub(crate) fn new(core: Arc<Core>, mapping: Arc<Mapping>, window_max_bytes: usize) -> Self {
        Handle { core, mapping, stream: Stream::new(window_max_bytes) }
    }
}
