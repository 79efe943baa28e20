//! One open of a file: what every door needs to serve it.
//!
//! Here: the three things together, and nothing else. `file.rs` is what the program sees of it.

use std::sync::Arc;

use crate::core::Core;
use crate::mapping::Mapping;
use crate::stream::Stream;

/// Whose bytes, through which cache, and read in which pattern.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) stream: Stream,
    /// The address of the core's, to be compared with a reader's: a borrow is paid by the instruction.
    pub(crate) readers_address: usize,
}

impl Handle {
    /// Takes over a mapping that was counted as open. Reads ahead by so many bytes at most.
    pub(crate) fn new(core: Arc<Core>, mapping: Arc<Mapping>, window_max_bytes: usize) -> Self {
        let readers_address = Arc::as_ptr(&core.readers).addr();
        Handle { core, mapping, stream: Stream::new(window_max_bytes), readers_address }
    }
}
