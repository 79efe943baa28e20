//! Splitting and moving the cached folios of a range on request.
//!
//! Walks the range and allocates what it takes. Splitting and moving one folio is in `freeze`.

use std::ops::Range;

use super::{allocate, refill_nodes};
use crate::frames::Order;
use crate::pages::core::Core;
use crate::pages::freeze::{migrate, split};
use crate::pages::mapping::Mapping;

/// Splits every folio of `pages` without holders into single pages; returns how many were split.
pub(crate) fn split_range(core: &Core, mapping: &Mapping, pages: Range<u64>) -> u64 {
    let mut count = 0;
    let mut from = pages.start;
    // Ends: each turn advances by a folio, except after refilling the node pool.
    while from < pages.end {
        let mut changing = mapping.change();
        let Some(folio) = changing.writer(&core.nodes).next_present(from..pages.end) else { break };
        if folio.order > 0 {
            match split(core, &mut changing, folio, Order::MIN) {
                Ok(Ok(woken)) => {
                    drop(changing);
                    drop(woken);
                    count += 1;
                }
                Ok(Err(_)) => {}
                Err(short) => {
                    drop(changing);
                    if refill_nodes(core, short.wanted, true).is_ok() {
                        continue;
                    }
                }
            }
        }
        from = folio.end();
    }
    count
}

/// Moves every folio of `pages` without holders; returns how many were moved.
pub(crate) fn migrate_range(core: &Core, mapping: &Mapping, pages: Range<u64>) -> u64 {
    let mut count = 0;
    let mut from = pages.start;
    // Ends: each turn advances by a folio.
    while from < pages.end {
        let next = mapping.change().writer(&core.nodes).next_present(from..pages.end);
        let Some(folio) = next else { break };
        from = folio.end();
        let order = Order::new(folio.order as u8).expect("the index has legal orders");
        let Ok(Some((new, got))) = allocate(core, order, false) else { continue };
        let mut changing = mapping.change();
        let there = changing.writer(&core.nodes).folio(folio.page) == Some(folio);
        let moves = there && got == order;
        let moved = moves.then(|| migrate(core, &mut changing, folio, new).ok()).flatten();
        drop(changing);
        if let Some(woken) = moved {
            drop(woken);
            core.frames.free(folio.frame, order);
            count += 1;
        } else {
            core.put(new);
        }
    }
    count
}
