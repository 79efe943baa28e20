//! The users of freeze. Each is one function in one file, with its order of steps at its head.
//!
//! What they share: the caller holds nothing of the folio; the mapping's `change` mutex is held
//! from before the freeze until the folio is thawed, replaced or out of the index; the version is
//! odd all that time; the count is frozen from the index's own reference (1), so that anybody else's
//! reference or pin makes it fail. Then, with the version odd, they look whether anybody has
//! announced the folio (`readers`), and if so put it back. Called by `reclaim` and by `file`.

mod batch;
mod evict;
mod invalidate;
mod migrate;
mod split;

use std::sync::Arc;

use crate::core::Core;
use crate::counters::Event;
use crate::flaw::{self, Flaw};
use crate::frame::{Frame, FrameNumber};
use crate::mapping::Mapping;

pub(crate) use batch::{BATCH_MAX, Candidate, Frozen, freeze_batch};
pub(crate) use evict::evict;
#[cfg(all(test, loom))]
pub(crate) use invalidate::let_go;
pub(crate) use invalidate::{invalidate, resize};
pub(crate) use migrate::{migrate, migrate_range, move_frozen};
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
    /// Somebody reads it in place, having announced it.
    Borrowed,
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
            flaw::pause();
            Ok(())
        }
        Err(word) if !word.is_frozen() && word.pins() > 0 => Err(Outcome::Pinned),
        Err(_) => Err(Outcome::Busy),
    }
}

/// Freezes one folio that nobody has announced either; under its mapping's `change` mutex.
pub(crate) fn freeze_alone(core: &Core, head: FrameNumber) -> Result<(), Outcome> {
    let frame = core.frames.frame(head);
    freeze(frame)?;
    if core.readers.announced(&[head], &core.counters).has(0) {
        thaw(core, frame);
        return Err(Outcome::Borrowed);
    }
    Ok(())
}

/// Without the look at the announcements: for a model of a writer that is wrong.
#[cfg(all(test, loom))]
pub(crate) fn freeze_blindly(frame: &Frame) -> Result<(), Outcome> {
    freeze(frame)
}

/// Puts a folio back whose bytes and identity are what they were: what was announced stays so.
pub(crate) fn thaw(core: &Core, frame: &Frame) {
    core.counters.count(Event::Announced);
    frame.change_end();
    frame.count.unfreeze(1);
}
