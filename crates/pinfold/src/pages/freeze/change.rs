//! Changing bytes: what a write does to one cached folio. Under the `change` mutex:
//! 1. freeze the folio, version odd. Unless its guards are counted, look at the slots: if one shows
//!    it, thaw it;
//! 2. store the bytes, then how many are the file's, then the file's length;
//! 3. make the version even: from here on its guards are counted, so that the next write need not
//!    look; thaw the count;
//! 4. mark it dirty.
//!
//! If others read it in place, they keep the old bytes, and a copy takes its place:
//! 1. make the old folio's version odd; if it is pinned by now, make it even, and begin again;
//! 2. the copy gets the bytes and what is known of their uses, and then the change, as above;
//! 3. give it the identity, store it to the index, tell the policy; forget the old one's identity;
//! 4. make the copy's version even: only now, so that no two are current; mark it dirty.
//!
//! A pinned folio stays where it is, and cannot be frozen:
//! 1. make its version odd; if anybody but pins uses it, make it even, and give up;
//! 2. go on as with a frozen one, from 2 on; there is no count to thaw.
//!
//! The caller wakes those who met an odd version of a folio that was not frozen, and lets go of the
//! old folio, when it has released the mutex.

use std::ops::Range;

use super::users::{self, InUse};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{Ordering, fence};
use crate::base::wait::Woken;
use crate::frames::{CountWord, Flags, Frame, FrameNumber, Order, PAGE_SHIFT, copy_racing};
use crate::index::FolioAt;
use crate::pages::core::Core;
use crate::pages::dirt;
use crate::pages::mapping::Changing;

/// Why a folio was not changed.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// It is in use: a copy is needed, a folio of this order.
    Used(Order),
    /// It is pinned, and in use; with who met it while its version was odd.
    Pinned(Woken),
}

/// What a change has left to do.
#[derive(Debug, Default)]
#[must_use = "nobody has let go of the old folio"]
pub(crate) struct AfterChange {
    /// The folio whose place a changed copy has taken.
    pub(crate) old: Option<FrameNumber>,
    pub(crate) woken: Woken,
}

/// What becomes of the file's length.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    /// It is so many bytes, or more if it was.
    Reaches(u64),
    /// It is so many bytes, fewer than before.
    IsCut(u64),
}

/// Changes these `bytes` of a folio; `store` gets its address. `copy` is taken if it is needed.
pub(crate) fn change(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: FolioAt,
    bytes: &Range<usize>,
    length: Length,
    copy: &mut Option<FrameNumber>,
    store: impl FnOnce(*mut u8),
) -> Result<AfterChange, Obstacle> {
    let frame = core.frames.frame(folio.frame);
    let mut head = folio.frame;
    let changed = match freeze_unseen(core, folio.frame) {
        Ok(()) => {
            change_in_place(core, changing, folio, length, store);
            frame.count.thaw(1);
            AfterChange::default()
        }
        Err(InUse::Pinned) => {
            // As far as a look tells: then nobody meets an odd version.
            let is_counted = frame.count.word().refs() > 1;
            if is_counted && !mutant::on(Mutant::ChangePinnedAnyCount) {
                return Err(Obstacle::Pinned(Woken::default()));
            }
            let by_count = frame.is_by_count();
            frame.change_begin();
            if !is_used_by_pins_alone(core, folio.frame, by_count) {
                frame.change_end();
                let wakes = !mutant::on(Mutant::PinnedWakesNobody);
                let woken = wakes.then(|| core.waiters.wake_later(folio.frame.0));
                return Err(Obstacle::Pinned(woken.unwrap_or_default()));
            }
            change_in_place(core, changing, folio, length, store);
            AfterChange { old: None, woken: core.waiters.wake_later(folio.frame.0) }
        }
        Err(_) => {
            let fits = |new: &mut FrameNumber| core.frames.frame(*new).order() == frame.order();
            let new = copy.take_if(fits).ok_or(Obstacle::Used(frame.order()))?;
            if !mutant::on(Mutant::OldGoesLate) {
                frame.change_begin();
            }
            if users_of_odd(frame).pins() > 0 {
                frame.change_end();
                *copy = Some(new);
                return Err(Obstacle::Pinned(core.waiters.wake_later(folio.frame.0)));
            }
            head = new;
            replace(core, changing, folio, new, length, store)
        }
    };
    if changed.old.is_none() || !mutant::on(Mutant::CopyUndirtied) {
        dirt::make_dirty(core, changing, head, folio.page, bytes);
    }
    Ok(changed)
}

/// Step 1.
fn freeze_unseen(core: &Core, head: FrameNumber) -> Result<(), InUse> {
    let frame = core.frames.frame(head);
    if mutant::on(Mutant::WriteUnderBorrow) || frame.is_by_count() {
        return users::freeze(frame);
    }
    users::freeze_alone(core, head)
}

/// The end of step 2: what the file has of the folio, then the file's length. Who sees the length
/// finds the bytes, or an odd version.
fn set_length(changing: &Changing<'_>, frame: &Frame, page: u64, length: Length) {
    let (Length::Reaches(end) | Length::IsCut(end)) = length;
    let in_folio = end.saturating_sub(page << PAGE_SHIFT).min(frame.order().bytes() as u64);
    let is_cut = matches!(length, Length::IsCut(_));
    if is_cut || in_folio as usize > frame.file_bytes() {
        frame.set_file_bytes(in_folio as usize);
    }
    if is_cut {
        changing.mapping().set_len_bytes(end);
    } else {
        changing.mapping().reach(end);
    }
}

/// Steps 2 and 3, but for the count. The version is odd, and nobody but pins uses the folio.
fn change_in_place(
    core: &Core,
    changing: &Changing<'_>,
    folio: FolioAt,
    length: Length,
    store: impl FnOnce(*mut u8),
) {
    let frame = core.frames.frame(folio.frame);
    store(core.frames.address(folio.frame));
    set_length(changing, frame, folio.page, length);
    users::end_grant(frame);
    frame.change_end_by_count();
}

/// The count of a folio whose version was just made odd. A reference or a pin that comes after this
/// sees that, and gives up.
fn users_of_odd(frame: &Frame) -> CountWord {
    if frame.count.try_get(1).is_ok() {
        let last = frame.count.put(1);
        assert!(!last, "a folio of the index had no reference");
    }
    // Another's addition is before that of `put`, and seen here; or after it, and then it
    // synchronizes with it (release and acquire), and its look at the version finds it odd.
    let word = frame.count.word();
    // Acquire: pairs with the release of `put` in who has used the folio.
    fence(Ordering::Acquire);
    word
}

/// Of a folio whose version was just made odd; before, slots showed it unless it was `by_count`.
fn is_used_by_pins_alone(core: &Core, head: FrameNumber, by_count: bool) -> bool {
    let frame = core.frames.frame(head);
    let is_shown = || !by_count && users::announced(core, &[head]).has(0);
    let is_counted = || users_of_odd(frame).refs() > 1 && !mutant::on(Mutant::ChangePinnedAnyCount);
    if mutant::on(Mutant::CountedBeforeSlots) {
        return !is_counted() && !is_shown();
    }
    // A borrow that becomes a reference takes that before it clears its slot, and does not look at
    // the version. So the slots come first: who finds one cleared finds the reference.
    !is_shown() && !is_counted()
}

/// Steps 2 to 4 with a copy.
fn replace(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: FolioAt,
    new_head: FrameNumber,
    length: Length,
    store: impl FnOnce(*mut u8),
) -> AfterChange {
    let (old, new) = (core.frames.frame(folio.frame), core.frames.frame(new_head));
    let identity = old.identity();
    assert_eq!(identity.order, new.order(), "a copy of another size");
    let to = core.frames.address(new_head);
    // SAFETY: two folios of this order. Under the mutex nobody changes the old one; the new one is
    // the caller's alone, but for readers of its last use, who notice by the version.
    unsafe { copy_racing(to, core.frames.address(folio.frame), identity.order.bytes()) };
    store(to);
    new.set_uses_of(old);
    new.set_flags(old.flags() & (Flags::READAHEAD | Flags::CHANGED));
    new.set_identity(identity);
    new.set_file_bytes(old.file_bytes());
    set_length(changing, new, folio.page, length);
    let replaced = changing.writer(&core.nodes).replace(folio.page, new_head);
    assert_eq!(replaced.map(|it| it.frame), Some(folio.frame), "the copy replaced another folio");
    core.residency.replace(&core.frames, folio.frame, new_head);
    if mutant::on(Mutant::OldGoesLate) {
        new.change_end_by_count();
        old.change_begin();
        old.forget_identity();
    } else {
        old.forget_identity();
        new.change_end_by_count();
    }
    AfterChange { old: Some(folio.frame), woken: core.waiters.wake_later(new_head.0) }
}

/// Lets slots show the folio of `page` again, if it is clean and nobody uses it.
pub(crate) fn open_to_borrows(core: &Core, changing: &mut Changing<'_>, page: u64) {
    let Some(folio) = changing.writer(&core.nodes).folio(page) else { return };
    let frame = core.frames.frame(folio.frame);
    // Under the mutex, an odd version says that it is being filled.
    let may = frame.is_by_count() && !frame.is_changing() && core.is_clean(changing, page);
    if may && users::freeze(frame).is_ok() {
        users::thaw(frame);
    }
}
