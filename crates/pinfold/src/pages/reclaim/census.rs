//! What fills the memory, by a walk over the whole frame table, for errors.

use crate::frames::{FrameNumber, MAPPING_NONE, PAGE_BYTES};
use crate::index::{Mark, PAGES_END};
use crate::pages::core::Core;
use crate::pages::mapping::Mapping;
use crate::pages::outside::Outside;

/// Each folio counts once, as a whole, for the first field that applies.
#[derive(Debug, Default)]
#[allow(clippy::struct_field_names, reason = "units are last in a name")]
pub(super) struct Census {
    pub(super) pinned_bytes: u64,
    pub(super) filling_bytes: u64,
    /// With a further reference, or announced by a reader.
    pub(super) held_bytes: u64,
    pub(super) dirty_bytes: u64,
    pub(super) reclaimable_bytes: u64,
}

impl Census {
    pub(super) fn take(core: &Core) -> Self {
        let mut census = Census::default();
        let mut borrowed: Vec<_> = core.readers.seen_announced().collect();
        borrowed.sort_unstable_by_key(|head| head.0);
        let mut at = core.frames.stats().table_frames;
        // Ends: each turn advances by at least a frame.
        while at < core.frames.frames() {
            at += census.add(core, FrameNumber(at), &borrowed);
        }
        let dirty_bytes: u64 = core.mappings.all().iter().map(|it| dirty_bytes(core, it)).sum();
        census.dirty_bytes = dirty_bytes.min(census.reclaimable_bytes);
        census.reclaimable_bytes -= census.dirty_bytes;
        census
    }

    /// Returns how many frames to advance by. `borrowed`: announced by readers, sorted.
    fn add(&mut self, core: &Core, head: FrameNumber, borrowed: &[FrameNumber]) -> u32 {
        let frame = core.frames.frame(head);
        let word = frame.count.word();
        if word.is_frozen() {
            return 1;
        }
        let identity = frame.identity();
        let nobodys = identity.mapping == MAPPING_NONE;
        let kind = if word.pins() > 0 {
            &mut self.pinned_bytes
        } else if nobodys {
            // Of index nodes, or, for a moment, a folio dropped while it is read.
            return identity.order.frames();
        } else if frame.is_changing() {
            &mut self.filling_bytes
        } else if word.refs() > 1 || borrowed.binary_search_by_key(&head.0, |it| it.0).is_ok() {
            &mut self.held_bytes
        } else {
            &mut self.reclaimable_bytes
        };
        *kind += u64::from(identity.order.frames()) * PAGE_BYTES as u64;
        identity.order.frames()
    }
}

/// That cannot leave as they are.
fn dirty_bytes(core: &Core, mapping: &Mapping) -> u64 {
    let mut changing = mapping.change();
    let is_outside = core.is_outside(mapping);
    let (mut bytes, mut from) = (0, 0);
    // Ends: each turn advances by a folio.
    loop {
        let writer = changing.writer(&core.nodes);
        // Of what is outside the index's marks say nothing.
        let next = if is_outside {
            writer.next_present(from..PAGES_END)
        } else {
            writer.next_marked(from..PAGES_END, Mark::Dirty)
        };
        let Some(folio) = next else { return bytes };
        drop(writer);
        if !is_outside || !core.may_leave(&mut changing, folio.page) {
            bytes += (folio.end() - folio.page) * PAGE_BYTES as u64;
        }
        from = folio.end();
    }
}
