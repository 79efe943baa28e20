//! What threads keep, and leave to each other.
//!
//! Belongs here: a guard and a pinned range, each with what its bytes may be.

use std::ops::RangeInclusive;

use pinfold::{FolioRef, PinnedRange};

/// A guard that goes from thread to thread, and what it showed at first.
#[derive(Debug)]
pub(super) struct Guarded {
    pub(super) guard: FolioRef<'static>,
    pub(super) copy: Vec<u8>,
    pub(super) name: String,
}

/// A pinned range with what its bytes may be. Every pinner may go on with it.
#[derive(Debug)]
pub(super) struct Pinned {
    pub(super) subject: usize,
    pub(super) range: PinnedRange,
    /// Epochs of a file that is written anew, between which it was pinned.
    pub(super) epochs: RangeInclusive<u32>,
}
