//! Dropping: folios leave their file and are not replaced, held or not. [`drop_clean`] keeps dirty
//! ones; [`resize`] drops nothing more once the file has one; [`discard`] loses them: for models.
//!
//! For each folio of the range, under the `change` mutex:
//! 1. make the version odd (if it is being filled, it is, and the filler notices at the end);
//! 2. tell the policy that it is gone;
//! 3. if it is hollow, its place stays its own until it is freed;
//! 4. out of the index, forget its identity: no thread finds, holds or announces it anew.
//!
//! Then, without the mutex, for a whole batch:
//! 5. let go of it (`users.rs`): its waiters are woken, its users keep it. A change of the length
//!    leaves this to its caller, which holds `resizing` ([`Gone`]), unless a map shows the folio.

use std::ops::Range;

use super::users;
use crate::base::mutant::{self, Mutant};
use crate::frames::{FrameNumber, Order, PAGE_SHIFT};
use crate::index::PAGES_END;
use crate::pages::core::Core;
use crate::pages::mapping::{Changing, Mapping};
use crate::pages::outside::Outside;
use crate::pages::readers::LOOK_MAX;

const BATCH: usize = LOOK_MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Clean,
    OnTheirWay,
    All,
}

/// Clean folios with a page of `pages`; returns the bytes dropped.
pub(crate) fn drop_clean(core: &Core, mapping: &Mapping, pages: Range<u64>) -> u64 {
    if mutant::on(Mutant::InvalidateNothing) {
        return 0;
    }
    let which = if mutant::on(Mutant::LoseDirty) { Which::All } else { Which::Clean };
    drop_range(core, mapping, pages, which, None).bytes
}

/// Of folios that are being filled; their fills go on.
pub(crate) fn drop_on_their_way(core: &Core, mapping: &Mapping) {
    let changing = mapping.change();
    // A folio counts from before it is inserted until after it has landed, both under the mutex.
    let any = mapping.on_its_way.frames() > 0;
    drop(changing);
    if !any {
        return;
    }
    let _ = drop_range(core, mapping, 0..PAGES_END, Which::OnTheirWay, None);
}

/// Dirty ones included: their changes are lost.
pub(crate) fn discard(core: &Core, mapping: &Mapping, pages: Range<u64>) -> u64 {
    drop_range(core, mapping, pages, Which::All, None).bytes
}

/// Folios that have left their file, of which nobody has let go yet.
#[derive(Debug, Default)]
#[must_use = "who waits for them is not woken yet"]
pub(crate) struct Gone {
    folios: Vec<FrameNumber>,
    /// Also of those that were let go of before.
    bytes: u64,
}

impl Gone {
    /// Step 5: no lock may be held, but within [`together`](crate::base::wait::together), as this
    /// wakes futures. Returns the bytes dropped.
    pub(crate) fn let_go(self, core: &Core) -> u64 {
        let_go_of_all(core, &self.folios);
        users::collect(core);
        core.pressure.progress();
        self.bytes
    }
}

/// Sets the length to the source's, under `resizing`. A file with dirty folios keeps its length.
///
/// First discards all folios with a page beyond the shorter of the two lengths, including those
/// being filled; stores the length in the critical section that finds none left. So each folio
/// knows how many of its bytes the file has, and a thread that has seen the new length finds no
/// byte of the old one. Hollow folios are let go of, and those who just put one outside or take one
/// in are waited for, before the length is stored: a map shows what is outside.
///
/// The caller lets go of the other folios when it has released that mutex, all within
/// [`together`](crate::base::wait::together).
pub(crate) fn resize(core: &Core, mapping: &Mapping, len_bytes: u64) -> Gone {
    let old_bytes = mapping.len_bytes();
    if mutant::on(Mutant::KeepOldEnd) {
        mapping.set_len_bytes(len_bytes);
        return Gone::default();
    }
    let pages = old_bytes.min(len_bytes) >> PAGE_SHIFT..PAGES_END;
    if mutant::on(Mutant::LengthFirst) {
        mapping.set_len_bytes(len_bytes);
        discard(core, mapping, pages);
    } else if len_bytes != old_bytes {
        let set_len = || mapping.set_len_bytes(len_bytes);
        return drop_range(core, mapping, pages, Which::All, Some(&set_len));
    }
    Gone::default()
}

/// Because folios became hollow meanwhile.
const CLEARS_MAX: u32 = 16;

/// Drops the folios that have a page of `pages`. With `when_empty`, repeats for folios inserted
/// meanwhile, and calls it under the mutex when there are none, nor any outside; drops nothing more
/// once the file has a dirty one, and leaves step 5 to the caller.
fn drop_range(
    core: &Core,
    mapping: &Mapping,
    pages: Range<u64>,
    which: Which,
    when_empty: Option<&dyn Fn()>,
) -> Gone {
    let mut dropped = 0;
    let mut later = Gone::default();
    let mut from = pages.start;
    let (mut is_shown, mut clears) = (false, 0);
    // Ends: each turn begins after the last folio of the previous one. It begins again for folios
    // inserted meanwhile, each of which takes a read, and a few times for what is outside.
    while from < pages.end {
        let mut gone = Vec::with_capacity(BATCH);
        let mut changing = mapping.change();
        if when_empty.is_some()
            && !changing.writer(&core.nodes).is_all_clean()
            && !mutant::on(Mutant::LoseDirty)
        {
            break;
        }
        while gone.len() < BATCH {
            let next = changing.writer(&core.nodes).next_present(from..pages.end);
            let Some(folio) = next else {
                from = pages.end;
                break;
            };
            from = folio.end();
            let goes = match which {
                Which::Clean => {
                    core.notice_stores(&mut changing, &[folio.page]);
                    core.is_clean(&mut changing, folio.page)
                }
                // Under the mutex no folio is frozen, so an odd version says that it is filled.
                Which::OnTheirWay => core.frames.frame(folio.frame).is_changing(),
                Which::All => true,
            };
            if !goes {
                continue;
            }
            let stays = !core.leave_memory(mapping, &[(folio.page, 0)]).is_empty();
            if stays && which == Which::Clean {
                continue;
            }
            let order = Order::new(folio.order as u8).expect("the index has legal orders");
            dropped += order.bytes() as u64;
            is_shown |= core.frames.frame(folio.frame).is_hollow();
            drop_one(core, &mut changing, folio.page, folio.frame);
            gone.push(folio.frame);
        }
        let mut clears_now = false;
        if let Some(when_empty) = when_empty
            && from >= pages.end
        {
            let next = changing.writer(&core.nodes).next_present(pages.clone());
            clears_now = next.is_none()
                && (is_shown || core.is_unsettled(mapping, &pages))
                && clears < CLEARS_MAX
                && !mutant::on(Mutant::LengthBeforeMaps);
            match next {
                Some(folio) => from = folio.page.max(pages.start),
                None if clears_now => from = pages.start,
                None => when_empty(),
            }
        }
        drop(changing);
        if when_empty.is_some() {
            later.folios.append(&mut gone);
            if clears_now {
                let _ = std::mem::take(&mut later).let_go(core);
                core.settle(mapping, &pages);
                (is_shown, clears) = (false, clears + 1);
            }
        } else {
            users::let_go(core, &gone);
        }
    }
    if when_empty.is_none() {
        users::collect(core);
        core.pressure.progress();
    }
    later.bytes = dropped;
    later
}

/// Of a file that is cut; or of one that is outside, whose pages have left memory. The caller lets
/// go, without the mutex.
#[cfg(not(loom))]
pub(crate) fn drop_within(
    core: &Core,
    changing: &mut Changing<'_>,
    pages: Range<u64>,
) -> Vec<FrameNumber> {
    let mut gone = Vec::new();
    let mut from = pages.start;
    // Ends: each turn begins after the last folio of the one before.
    loop {
        let next = changing.writer(&core.nodes).next_present(from..pages.end);
        let Some(folio) = next else { break };
        drop_one(core, changing, folio.page, folio.frame);
        gone.push(folio.frame);
        from = folio.end();
    }
    gone
}

/// Step 5 for any number of folios.
pub(crate) fn let_go_of_all(core: &Core, gone: &[FrameNumber]) {
    for gone in gone.chunks(BATCH) {
        users::let_go(core, gone);
    }
}

/// Steps 1 to 4.
fn drop_one(core: &Core, changing: &mut Changing<'_>, page: u64, head: FrameNumber) {
    let frame = core.frames.frame(head);
    if !frame.is_changing() && !mutant::on(Mutant::FreezeStaysEven) {
        frame.change_begin();
    }
    if frame.is_hollow() {
        let pages = page..page + u64::from(frame.order().frames());
        core.left_in_use(changing.mapping(), head, pages);
    }
    core.residency.remove(&core.frames, head);
    core.remove(changing, page, head);
}
