//! The users of a folio in place: the one file that checks for them before a folio is changed.
//!
//! | user | how it shows | what keeps new ones away |
//! |---|---|---|
//! | a counted guard, a read under a reference, a filler | `refs` of the count above 1 | the frozen bit |
//! | a pin | `pins` of the count | the frozen bit |
//! | a borrow | its folio's head in a reader's slot | the odd version |
//!
//! A map is no user: when a hollow folio is evicted, its pages are taken out of every map. What
//! becomes of a folio that left its file while it was in use is here, too ([`let_go`]).

use pinfold_policy::Answer;

use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::frames::{Flags, Frame, FrameNumber};
use crate::pages::core::Core;
use crate::pages::grants::Grant;
use crate::pages::outside::Outside;
use crate::pages::readers::Announced;

/// Why a folio cannot be frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InUse {
    /// Or it is not the folio it was.
    Busy,
    Pinned,
    /// By a reader, who has announced it.
    Borrowed,
    NotClean,
    /// It does not become smaller: see [`Flags::HUGE`].
    Huge,
}

impl InUse {
    pub(crate) fn answer(self) -> Answer {
        match self {
            InUse::Busy | InUse::Borrowed | InUse::NotClean | InUse::Huge => Answer::Busy,
            InUse::Pinned => Answer::Pinned,
        }
    }
}

/// Freezes a folio to which only the index has a reference, and makes its version odd. No thread
/// gets a reference or a pin, and no optimistic read succeeds. Existing borrows continue.
pub(super) fn freeze(frame: &Frame) -> Result<(), InUse> {
    let expected = if mutant::on(Mutant::FreezeAnyCount) { frame.count.word().refs() } else { 1 };
    if mutant::on(Mutant::FreezePinned) && frame.count.pins() > 0 {
        let _ = frame.count.unpin(frame.count.pins());
    }
    // The frozen bit is set here.
    match frame.count.freeze(expected) {
        Ok(()) => {
            if !mutant::on(Mutant::FreezeStaysEven) {
                frame.change_begin();
            }
            mutant::pause();
            Ok(())
        }
        Err(word) if !word.is_frozen() && word.pins() > 0 => Err(InUse::Pinned),
        Err(_) => Err(InUse::Busy),
    }
}

pub(super) fn announced(core: &Core, heads: &[FrameNumber]) -> Announced {
    core.readers.announced(heads, &core.counters)
}

/// Unless the folio is in use or borrowed; under its mapping's `change` mutex.
pub(super) fn freeze_alone(core: &Core, head: FrameNumber) -> Result<(), InUse> {
    let frame = core.frames.frame(head);
    freeze(frame)?;
    if announced(core, &[head]).has(0) {
        thaw_announced(core, frame);
        return Err(InUse::Borrowed);
    }
    Ok(())
}

/// Only the index has a reference. Existing announcements stay valid, as long as bytes and identity
/// have not changed. Revokes the folio's grant.
pub(super) fn thaw(frame: &Frame) {
    end_grant(frame);
    frame.change_end();
    frame.count.thaw(1);
}

/// Under an odd version: the list of grants goes by the version.
pub(super) fn end_grant(frame: &Frame) {
    if frame.flags().contains(Flags::GRANTED) {
        frame.revoke();
    }
}

/// Freezes and thaws a folio that nobody has a reference to: whoever looked it up before finds
/// another version. Borrows go on. False: the folio is in use or gone.
pub(crate) fn revoke(core: &Core, grant: &Grant) -> bool {
    let frame = core.frames.frame(grant.head);
    let identity = frame.identity();
    let Some(mapping) = core.mappings.get(identity.mapping) else { return false };
    let changing = mapping.change();
    // Now it cannot change: another folio may have its frames.
    let there = changing.head(identity.index) == Some(grant.head);
    if !there || frame.since(grant.stamp) != 0 {
        return false;
    }
    if mutant::on(Mutant::RevokeUnfrozen) {
        let alone = frame.count.word().refs() == 1;
        return alone && frame.clear_flags(Flags::GRANTED).contains(Flags::GRANTED);
    }
    let frozen = freeze(frame).is_ok();
    if frozen {
        thaw(frame);
    }
    frozen
}

pub(super) fn thaw_announced(core: &Core, frame: &Frame) {
    core.counters.count(Event::Announced);
    thaw(frame);
}

/// Gives back the index's references to folios that have left it, with odd versions, and wakes who
/// waits for them. What is announced is deferred: so a borrowed folio keeps a reference.
pub(crate) fn let_go(core: &Core, gone: &[FrameNumber]) {
    if gone.iter().any(|&head| core.frames.frame(head).is_hollow()) {
        core.let_go_of_kept(|head| gone.contains(&head));
    }
    let announced = announced(core, gone);
    for (n, &head) in gone.iter().enumerate() {
        core.waiters.wake(head.0);
        let count = &core.frames.frame(head).count;
        if mutant::on(Mutant::DropPins) && count.pins() > 0 {
            let _ = count.unpin(count.pins());
        }
        if announced.has(n) && !mutant::on(Mutant::GoneAtOnce) {
            core.counters.count(Event::Deferred);
            core.deferred.push(head);
        } else {
            core.put(head);
        }
    }
}

/// Frees the deferred folios that are not borrowed any more.
pub(crate) fn collect(core: &Core) -> usize {
    let over = core.deferred.take_over(|heads| core.readers.look_again(heads));
    for &head in &over {
        core.put(head);
    }
    over.len()
}
