//! One open of a file: what every door needs to serve it.
//!
//! Here: the three things together, and nothing else. `file.rs` is what the program sees of it.

use std::sync::Arc;
// Not from `crate::sync`: it orders nothing.
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::Core;
use crate::fill::Stream;
use crate::mapping::Mapping;

/// Whose bytes, through which cache, and read in which pattern.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) stream: Stream,
    /// Unlike any other handle's of the process, ever; from 1 on.
    pub(crate) serial: u64,
}

impl Handle {
    /// Takes over a mapping that was counted as open. Reads ahead by so many bytes at most.
    pub(crate) fn new(core: Arc<Core>, mapping: Arc<Mapping>, window_max_bytes: usize) -> Self {
        static SERIALS: AtomicU64 = AtomicU64::new(1);
        // Relaxed: nothing but the number is told.
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        Handle { core, mapping, stream: Stream::new(window_max_bytes), serial }
    }
}
