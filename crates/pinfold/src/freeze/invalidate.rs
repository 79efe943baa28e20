//! Invalidation: cached bytes are not to be believed any more. No user of freeze: a folio that others
//! hold is taken from the index all the same.
//!
//! For each folio of the range, under the `change` mutex:
//! 1. version odd (it is already, if the folio is on its way: its filler will find out in its step 4);
//! 2. tell the policy that it is gone;
//! 3. take it out of the index; forget its identity: nobody finds, holds or announces it anew.
//!
//! Then, without the mutex, for a whole batch:
//! 4. wake those who wait for it: they look again;
//! 5. look who has announced it. Nobody: give up the index's reference. Holders go on with the bytes
//!    they have, and the last of them frees it. Somebody: the list of deferred folios takes that
//!    reference over.
//!
//! So a folio's last reference is never given up while somebody borrows it: the index's goes last.

use std::ops::Range;

use crate::core::Core;
use crate::counters::Event;
use crate::flaw::{self, Flaw};
use crate::frame::{FrameNumber, Order, PAGE_SHIFT};
use crate::index::PAGES_END;
use crate::mapping::{Changing, Mapping};
use crate::readers::LOOK_MAX;
use crate::reclaim::Entries;

/// Folios dropped in one go with the mutex held, and looked for at once.
const BATCH: usize = LOOK_MAX;

/// Drops every folio that has a page of `pages`; gives the bytes dropped.
pub(crate) fn invalidate(core: &Core, mapping: &Mapping, pages: Range<u64>) -> u64 {
    if flaw::on(Flaw::InvalidateNothing) {
        return 0;
    }
    drop_range(core, mapping, pages, None)
}

/// Gives the mapping another length, with its `resizing` mutex held by the caller.
///
/// What has a page behind the shorter of both lengths goes first, also what is on its way; the length is
/// stored in the same critical section in which there is none left. So every folio says how many of
/// its bytes are the file's, from its landing (also under the mutex) till it goes; and whoever has
/// seen the new length finds no byte of the old one.
pub(crate) fn resize(core: &Core, mapping: &Mapping, len_bytes: u64) {
    let old_bytes = mapping.len_bytes();
    if flaw::on(Flaw::KeepOldEnd) {
        return mapping.set_len_bytes(len_bytes);
    }
    let pages = old_bytes.min(len_bytes) >> PAGE_SHIFT..PAGES_END;
    if flaw::on(Flaw::LengthFirst) {
        mapping.set_len_bytes(len_bytes);
        drop_range(core, mapping, pages, None);
    } else if len_bytes != old_bytes {
        drop_range(core, mapping, pages, Some(&|| mapping.set_len_bytes(len_bytes)));
    }
}

/// Drops what has a page of `pages`; gives the bytes dropped. With `when_empty`, what others put
/// there meanwhile goes, too, and it is called under the mutex under which there was nothing left.
fn drop_range(
    core: &Core,
    mapping: &Mapping,
    pages: Range<u64>,
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
            let next = changing.writer(&core.nodes).next_present(from..pages.end);
            let Some(folio) = next else {
                from = pages.end;
                break;
            };
            from = folio.end();
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
        let_go(core, &gone);
    }
    core.deferred.collect(core);
    core.reclaim.progress();
    dropped
}

/// Steps 1 to 3.
fn drop_one(core: &Core, changing: &mut Changing<'_>, page: u64, head: FrameNumber) {
    let frame = core.frames.frame(head);
    if !frame.is_changing() && !flaw::on(Flaw::FreezeStaysEven) {
        frame.change_begin();
    }
    core.reclaim.policy().remove(&mut Entries::of(core), head.0);
    let removed = changing.writer(&core.nodes).remove(page);
    assert_eq!(removed.map(|folio| folio.frame), Some(head), "dropped another folio");
    changing.folio_removed();
    frame.forget_identity();
}

/// Steps 4 and 5.
pub(crate) fn let_go(core: &Core, gone: &[FrameNumber]) {
    let announced = core.readers.announced(gone, &core.counters);
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
