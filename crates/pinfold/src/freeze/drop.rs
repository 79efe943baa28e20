//! Dropping: folios leave their file without another one coming in their place. No user of freeze: a
//! folio that others hold is taken from the index all the same.
//!
//! [`drop_clean`] leaves alone what the source does not have yet; [`discard`] drops that, too, and is
//! only for bytes that are the file's no more.
//!
//! For each folio of the range, under the `change` mutex:
//! 1. version odd (it is already, if the folio is on its way: its filler will find out when it lands);
//! 2. tell the policy that it is gone;
//! 3. take it out of the index; forget its identity: nobody finds, holds or announces it anew.
//!
//! Then, without the mutex, for a whole batch:
//! 4. let go of it (`users.rs`): those who wait for it are woken, those who use it keep it.

use std::ops::Range;

use super::users;
use crate::core::Core;
use crate::flaw::{self, Flaw};
use crate::frame::{FrameNumber, Order, PAGE_SHIFT};
use crate::index::PAGES_END;
use crate::mapping::{Changing, Mapping};
use crate::readers::LOOK_MAX;

/// Folios dropped in one go with the mutex held, and looked for at once.
const BATCH: usize = LOOK_MAX;

/// What becomes of folios that the source does not have yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unclean {
    Stay,
    Go,
}

/// Drops every folio that has a page of `pages` and whose bytes the source has; gives the bytes
/// dropped.
pub(crate) fn drop_clean(core: &Core, mapping: &Mapping, pages: Range<u64>) -> u64 {
    if flaw::on(Flaw::InvalidateNothing) {
        return 0;
    }
    let unclean = if flaw::on(Flaw::LoseDirty) { Unclean::Go } else { Unclean::Stay };
    drop_range(core, mapping, pages, unclean, None)
}

/// Drops every folio that has a page of `pages`, also what is to be written: its bytes are lost.
pub(crate) fn discard(core: &Core, mapping: &Mapping, pages: Range<u64>) -> u64 {
    drop_range(core, mapping, pages, Unclean::Go, None)
}

/// Gives the mapping the length that its source has now, with its `resizing` mutex held by the
/// caller. A file with bytes that the source does not have yet keeps its own.
///
/// What has a page behind the shorter of both lengths is discarded first, also what is on its way; the
/// length is stored in the same critical section in which there is none left. So every folio says how
/// many of its bytes are the file's, from its landing (also under the mutex) till it goes; and whoever
/// has seen the new length finds no byte of the old one.
pub(crate) fn resize(core: &Core, mapping: &Mapping, len_bytes: u64) {
    let old_bytes = mapping.len_bytes();
    if flaw::on(Flaw::KeepOldEnd) {
        return mapping.set_len_bytes(len_bytes);
    }
    if !mapping.change().writer(&core.nodes).is_all_clean() && !flaw::on(Flaw::LoseDirty) {
        return;
    }
    let pages = old_bytes.min(len_bytes) >> PAGE_SHIFT..PAGES_END;
    if flaw::on(Flaw::LengthFirst) {
        mapping.set_len_bytes(len_bytes);
        discard(core, mapping, pages);
    } else if len_bytes != old_bytes {
        let set_len = || mapping.set_len_bytes(len_bytes);
        drop_range(core, mapping, pages, Unclean::Go, Some(&set_len));
    }
}

/// Drops what has a page of `pages`; gives the bytes dropped. With `when_empty`, what others put
/// there meanwhile goes, too, and it is called under the mutex under which there was nothing left.
fn drop_range(
    core: &Core,
    mapping: &Mapping,
    pages: Range<u64>,
    unclean: Unclean,
    when_empty: Option<&dyn Fn()>,
) -> u64 {
    let mut dropped = 0;
    let mut from = pages.start;
    // Ends: each turn begins behind the last folio of the one before. With `when_empty`, it begins
    // again for what was put there meanwhile, which takes others a read of the source.
    while from < pages.end {
        let mut gone = Vec::with_capacity(BATCH);
        let mut changing = mapping.change();
        while gone.len() < BATCH {
            let writer = changing.writer(&core.nodes);
            let next = writer.next_present(from..pages.end);
            let Some(folio) = next else {
                from = pages.end;
                break;
            };
            from = folio.end();
            if unclean == Unclean::Stay && !writer.is_clean(folio.page) {
                continue;
            }
            drop(writer);
            let order = Order::new(folio.order as u8).expect("the index has legal orders");
            dropped += order.bytes() as u64;
            drop_one(core, &mut changing, folio.page, folio.frame);
            gone.push(folio.frame);
        }
        if let Some(when_empty) = when_empty
            && from >= pages.end
        {
            match changing.writer(&core.nodes).next_present(pages.clone()) {
                Some(folio) => from = folio.page.max(pages.start),
                None => when_empty(),
            }
        }
        drop(changing);
        users::let_go(core, &gone);
    }
    users::collect(core);
    core.pressure.progress();
    dropped
}

/// Steps 1 to 3.
fn drop_one(core: &Core, changing: &mut Changing<'_>, page: u64, head: FrameNumber) {
    let frame = core.frames.frame(head);
    if !frame.is_changing() && !flaw::on(Flaw::FreezeStaysEven) {
        frame.change_begin();
    }
    core.residency.remove(&core.frames, head);
    let removed = changing.writer(&core.nodes).remove(page);
    assert_eq!(removed.map(|folio| folio.frame), Some(head), "dropped another folio");
    changing.folio_removed();
    frame.forget_identity();
}
