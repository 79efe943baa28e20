//! What the memory is full of: a walk over the whole frame table, for an error that has to say why
//! there is no memory. Called by `reclaim` alone, after its patience is at an end.

use crate::core::Core;
use crate::frame::{FrameNumber, MAPPING_NONE, PAGE_BYTES};
use crate::index::{Mark, PAGES_END};
use crate::mapping::Mapping;

/// Bytes of folios, by what keeps them. Each folio counts once and as a whole, for the first of these
/// that is true of it.
#[derive(Debug, Default)]
#[allow(clippy::struct_field_names, reason = "units are last in a name")]
pub(super) struct Census {
    /// Has a pinned page.
    pub(super) pinned_bytes: u64,
    /// On its way from the source.
    pub(super) filling_bytes: u64,
    /// Referenced by others than the index.
    pub(super) held_bytes: u64,
    /// Newer than the source's.
    pub(super) dirty_bytes: u64,
    /// None of these: can be evicted.
    pub(super) reclaimable_bytes: u64,
}

impl Census {
    /// Of about now: others go on meanwhile. Cost: a load or two for each frame of the cache.
    pub(super) fn take(core: &Core) -> Self {
        let mut census = Census::default();
        let mut at = core.frames.stats().table_frames;
        // Ends: each turn goes on by at least a frame.
        while at < core.frames.frames() {
            at += census.add(core, FrameNumber(at));
        }
        let dirty_bytes: u64 = core.mappings.all().iter().map(|it| dirty_bytes(core, it)).sum();
        census.dirty_bytes = dirty_bytes.min(census.reclaimable_bytes);
        census.reclaimable_bytes -= census.dirty_bytes;
        census
    }

    /// Adds the folio at `head`, if there is one; gives how many frames to go on by.
    fn add(&mut self, core: &Core, head: FrameNumber) -> u32 {
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
            // A slab of index nodes, or a folio dropped while somebody reads it, for a moment.
            return identity.order.frames();
        } else if frame.is_changing() {
            &mut self.filling_bytes
        } else if word.refs() > 1 {
            &mut self.held_bytes
        } else {
            &mut self.reclaimable_bytes
        };
        *kind += u64::from(identity.order.frames()) * PAGE_BYTES as u64;
        identity.order.frames()
    }
}

/// Bytes of the mapping's dirty folios.
fn dirty_bytes(core: &Core, mapping: &Mapping) -> u64 {
    let mut changing = mapping.change();
    let writer = changing.writer(&core.nodes);
    let (mut bytes, mut from) = (0, 0);
    // Ends: each turn goes behind a folio.
    while let Some(folio) = writer.next_marked(from..PAGES_END, Mark::Dirty) {
        bytes += (folio.end() - folio.page) * PAGE_BYTES as u64;
        from = folio.end();
    }
    bytes
}
