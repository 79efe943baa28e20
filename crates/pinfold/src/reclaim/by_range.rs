//! Splitting and moving what is cached of a range, because somebody asks for it.
//!
//! Here: going through the range, and the memory that it takes. Not here: one folio's split or move
//! (`freeze`). Called by tests of what that does to readers.

use std::ops::Range;

use super::{allocate, refill_nodes};
use crate::core::Core;
use crate::frame::Order;
use crate::freeze::{migrate, split};
use crate::mapping::Mapping;

/// Splits every folio of `pages` that nobody holds into single pages; gives how many were split.
pub(crate) fn split_range(core: &Core, mapping: &Mapping, pages: Range<u64>) -> u64 {
    let mut count = 0;
    let mut from = pages.start;
    // Ends: each turn goes behind a folio, but for those that get nodes and try again.
    while from < pages.end {
        let mut changing = mapping.change();
        let Some(folio) = changing.writer(&core.nodes).next_present(from..pages.end) else { break };
        if folio.order > 0 {
            match split(core, &mut changing, folio, Order::MIN) {
                Ok(Ok(())) => count += 1,
                Ok(Err(_)) => {}
                Err(short) => {
                    drop(changing);
                    if refill_nodes(core, short.wanted).is_ok() {
                        continue;
                    }
                }
            }
        }
        from = folio.end();
    }
    count
}

/// Moves every folio of `pages` that nobody holds; gives how many were moved.
pub(crate) fn migrate_range(core: &Core, mapping: &Mapping, pages: Range<u64>) -> u64 {
    let mut count = 0;
    let mut from = pages.start;
    // Ends: each turn goes behind a folio.
    while from < pages.end {
        let next = mapping.change().writer(&core.nodes).next_present(from..pages.end);
        let Some(folio) = next else { break };
        from = folio.end();
        let order = Order::new(folio.order as u8).expect("the index has legal orders");
        let Ok(Some((new, got))) = allocate(core, order, false) else { continue };
        let mut changing = mapping.change();
        let there = changing.writer(&core.nodes).folio(folio.page) == Some(folio);
        if there && got == order && migrate(core, &mut changing, folio, new).is_ok() {
            drop(changing);
            core.frames.free(folio.frame, order);
            count += 1;
        } else {
            drop(changing);
            core.put(new);
        }
    }
    count
}
