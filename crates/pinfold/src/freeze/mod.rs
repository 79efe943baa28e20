//! The users of freeze. Each is one function in one file, with its order of steps at its head.
//!
//! What they share: the caller holds nothing of the folio; the mapping's `change` mutex is held
//! from before the freeze until the folio is thawed, replaced or out of the index; the version is
//! odd all that time; the count is frozen from the index's own reference (1), so that anybody else's
//! reference or pin makes it fail. Called by `reclaim` and by `file`.

mod evict;
mod invalidate;
mod migrate;
mod split;

use std::sync::Arc;

use crate::flaw::{self, Flaw};
use crate::frame::Frame;
use crate::mapping::Mapping;

pub(crate) use evict::evict;
pub(crate) use invalidate::{invalidate, resize};
pub(crate) use migrate::{migrate, migrate_range};
pub(crate) use split::split_range;

/// What became of a folio.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// What was asked for, to a folio of this mapping, of so many bytes.
    Done {
        /// Whose it was.
        mapping: Arc<Mapping>,
        /// How large.
        bytes: u64,
    },
    /// Somebody holds it, or it is not what it was.
    Busy,
    /// Somebody has pinned it.
    Pinned,
}

/// Freezes a folio that only the index has, and makes its version odd.
fn freeze(frame: &Frame) -> Result<(), Outcome> {
    let expected = if flaw::on(Flaw::FreezeAnyCount) { frame.count.word().refs() } else { 1 };
    if flaw::on(Flaw::FreezePinned) && frame.count.pins() > 0 {
        let _ = frame.count.unpin(frame.count.pins());
    }
    match frame.count.freeze(expected) {
        Ok(()) => {
            if !flaw::on(Flaw::FreezeStaysEven) {
                frame.change_begin();
            }
            Ok(())
        }
        Err(word) if !word.is_frozen() && word.pins() > 0 => Err(Outcome::Pinned),
        Err(_) => Err(Outcome::Busy),
    }
}
