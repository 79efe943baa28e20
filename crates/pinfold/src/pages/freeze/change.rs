//! Changing bytes: what a write does to one cached folio. Under the `change` mutex:
//! 1. freeze the folio, version odd. Unless its guards are counted, look at the slots: if one shows
//!    it, thaw it;
//! 2. store the bytes, then how many are the file's, then the file's length;
//! 3. make the version even: from here on its guards are counted, so that the next write need not
//!    look; thaw the count;
//! 4. mark it dirty.
//!
//! If others read it in place, they keep the old bytes, and a copy takes its place:
//! 1. make the old folio's version odd; if it is pinned by now, make it even, wake who met it
//!    meanwhile, and give up;
//! 2. the copy gets the bytes and what is known of their uses, and then the change, as above;
//! 3. give it the identity, store it to the index, tell the policy; forget the old one's identity;
//! 4. make the copy's version even: only now, so that no two are current; mark it dirty.
//!
//! The caller wakes the futures that met an odd version, and lets go of the old folio, when it has
//! released the mutex. A pinned folio is not changed.

use super::users::{self, InUse};
use crate::base::mutant::{self, Mutant};
use crate::base::wait::Woken;
use crate::frames::{Flags, Frame, FrameNumber, Order, PAGE_SHIFT, copy_racing};
use crate::index::FolioAt;
use crate::pages::core::Core;
use crate::pages::dirt;
use crate::pages::mapping::Changing;

/// Why a folio was not changed.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// It is in use: a copy is needed, a folio of this order.
    Used(Order),
    /// With who met it while its version was odd.
    Pinned(Woken),
}

/// The folio whose place a changed copy has taken.
#[derive(Debug)]
#[must_use = "nobody has let go of it"]
pub(crate) struct Replaced {
    pub(crate) old: FrameNumber,
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

/// Changes a folio; `store` gets its address. `copy` is taken if it is needed.
pub(crate) fn change(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: FolioAt,
    length: Length,
    copy: &mut Option<FrameNumber>,
    store: impl FnOnce(*mut u8),
) -> Result<Option<Replaced>, Obstacle> {
    let frame = core.frames.frame(folio.frame);
    let mut head = folio.frame;
    let replaced = match freeze_unseen(core, folio.frame) {
        Ok(()) => {
            store(core.frames.address(folio.frame));
            set_length(changing, frame, folio.page, length);
            users::end_grant(frame);
            frame.change_end_by_count();
            frame.count.thaw(1);
            None
        }
        Err(InUse::Pinned) => return Err(Obstacle::Pinned(Woken::default())),
        Err(_) => {
            let fits = |new: &mut FrameNumber| core.frames.frame(*new).order() == frame.order();
            let new = copy.take_if(fits).ok_or(Obstacle::Used(frame.order()))?;
            if !mutant::on(Mutant::OldGoesLate) {
                frame.change_begin();
            }
            if is_pinned(frame) {
                frame.change_end();
                *copy = Some(new);
                let wakes = !mutant::on(Mutant::PinnedWakesNobody);
                let woken = wakes.then(|| core.waiters.wake_later(folio.frame.0));
                return Err(Obstacle::Pinned(woken.unwrap_or_default()));
            }
            head = new;
            Some(replace(core, changing, folio, new, length, store))
        }
    };
    if replaced.is_none() || !mutant::on(Mutant::CopyUndirtied) {
        dirt::make_dirty(core, changing, head, folio.page);
    }
    Ok(replaced)
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

/// Of a folio whose version was just made odd. A pin that comes after this sees that, and gives up.
fn is_pinned(frame: &Frame) -> bool {
    if frame.count.try_get(1).is_ok() {
        let last = frame.count.put(1);
        assert!(!last, "a folio of the index had no reference");
    }
    // A pin's addition is before that of `put`, and seen here; or after it, and then it
    // synchronizes with it (release and acquire), and its look at the version finds it odd.
    frame.count.word().pins() > 0
}

/// Steps 2 to 4 with a copy.
fn replace(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: FolioAt,
    new_head: FrameNumber,
    length: Length,
    store: impl FnOnce(*mut u8),
) -> Replaced {
    let (old, new) = (core.frames.frame(folio.frame), core.frames.frame(new_head));
    let identity = old.identity();
    assert_eq!(identity.order, new.order(), "a copy of another size");
    let to = core.frames.address(new_head);
    // SAFETY: two folios of this order. Under the mutex nobody changes the old one; the new one is
    // the caller's alone, but for readers of its last use, who notice by the version.
    unsafe { copy_racing(to, core.frames.address(folio.frame), identity.order.bytes()) };
    store(to);
    new.set_uses_of(old);
    new.set_flags(old.flags() & Flags::READAHEAD);
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
    Replaced { old: folio.frame, woken: core.waiters.wake_later(new_head.0) }
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
