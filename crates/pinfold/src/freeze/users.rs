//! Who may still use a folio in place: the one place that asks.
//!
//! | user | how it shows | what keeps new ones away |
//! |---|---|---|
//! | a counted guard, a read under a reference, a filler | `refs` of the count above 1 | the frozen bit |
//! | a pin | `pins` of the count | the frozen bit |
//! | a borrow | its folio's head in a reader's slot | the odd version |
//!
//! Mapped memory will be a fourth user, with a row here and a step in [`freeze_alone`] and
//! `batch.rs`: its pages are unmapped after the version is odd, before the look at the slots.
//!
//! Here: claiming a folio by its count, the look at the slots, putting a claimed folio back, and the
//! end of a folio that left its file while it was in use. Not here: what is done to a folio that
//! nobody uses (the other files of this folder). Called by these, and by `reclaim`.

use crate::core::Core;
use crate::counters::Event;
use crate::flaw::{self, Flaw};
use crate::frame::{Frame, FrameNumber};
use crate::readers::Announced;

/// Why a folio cannot be taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InUse {
    /// Somebody holds a reference, or the folio is not what it was.
    Busy,
    /// Somebody has pinned it.
    Pinned,
    /// Somebody reads it in place, having announced it.
    Borrowed,
    /// Its bytes are newer than the source's, and must be written there first.
    Dirty,
}

/// Freezes a folio that only the index has, and makes its version odd. From here on nobody gets a
/// reference or a pin, and no read without one succeeds. Borrows that were there go on.
pub(super) fn freeze(frame: &Frame) -> Result<(), InUse> {
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
        Err(word) if !word.is_frozen() && word.pins() > 0 => Err(InUse::Pinned),
        Err(_) => Err(InUse::Busy),
    }
}

/// Which of the folios at `heads`, whose versions are odd, readers have announced.
pub(super) fn announced(core: &Core, heads: &[FrameNumber]) -> Announced {
    core.readers.announced(heads, &core.counters)
}

/// Freezes one folio that nobody borrows either; under its mapping's `change` mutex.
pub(crate) fn freeze_alone(core: &Core, head: FrameNumber) -> Result<(), InUse> {
    let frame = core.frames.frame(head);
    freeze(frame)?;
    if announced(core, &[head]).has(0) {
        thaw(core, frame);
        return Err(InUse::Borrowed);
    }
    Ok(())
}

/// Without the look at the announcements: for a model of a writer that is wrong.
#[cfg(all(test, loom))]
pub(crate) fn freeze_blindly(frame: &Frame) -> Result<(), InUse> {
    freeze(frame)
}

/// Puts back a folio whose bytes and identity are what they were: what was announced stays so.
pub(super) fn thaw(core: &Core, frame: &Frame) {
    core.counters.count(Event::Announced);
    frame.change_end();
    frame.count.unfreeze(1);
}

/// Gives up the index's references to folios that have left it: out of the index, version odd.
///
/// Wakes those who wait for one of them: they look again. What nobody has announced is freed when
/// its last holder lets go; what somebody has announced is deferred. So a folio's last reference is
/// never given up while somebody borrows it: the index's goes last.
pub(crate) fn let_go(core: &Core, gone: &[FrameNumber]) {
    let announced = announced(core, gone);
    for (n, &head) in gone.iter().enumerate() {
        core.waiters.wake(head.0);
        let count = &core.frames.frame(head).count;
        if flaw::on(Flaw::DropPins) && count.pins() > 0 {
            let _ = count.unpin(count.pins());
        }
        if announced.has(n) && !flaw::on(Flaw::GoneAtOnce) {
            core.counters.count(Event::Deferred);
            core.deferred.push(head);
        } else {
            core.put(head);
        }
    }
}

/// Frees the deferred folios that nobody borrows any more; gives how many.
pub(crate) fn collect(core: &Core) -> usize {
    let Some(looked) = core.deferred.look() else { return 0 };
    let announced = core.readers.look_again(looked.heads());
    let over = looked.over(|n| announced.has(n));
    for &head in &over {
        core.put(head);
    }
    over.len()
}
