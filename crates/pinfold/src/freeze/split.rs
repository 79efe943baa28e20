//! Splitting: a large folio becomes small ones, in place.
//!
//! Under the `change` mutex:
//! 1. make sure of the index nodes that the pieces need: nothing may fail half way;
//! 2. freeze, version of the head odd; nobody has announced it;
//! 3. hand out each piece in its own frames (count 1, the index's), with its identity. The tails'
//!    versions were odd all along; the head is a smaller folio of the same frame now;
//! 4. tell the policy, under one hold of its lock with step 3;
//! 5. put the pieces over the folio's slots: a racing look-up finds the old head or the piece,
//!    and the old head's identity sends it back if its page is no longer there;
//! 6. make the versions even: from here on the pieces are read.

use std::ops::Range;

use super::{Outcome, freeze_alone};
use crate::core::Core;
use crate::counters::Event;
use crate::flaw::{self, Flaw};
use crate::frame::{FrameNumber, Identity, Order};
use crate::index::{FolioAt, NoNodes};
use crate::mapping::{Changing, Mapping};
use crate::reclaim::{self, Entries};

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
                    if reclaim::refill_nodes(core, short.wanted).is_ok() {
                        continue;
                    }
                }
            }
        }
        from = folio.end();
    }
    count
}

/// Splits `folio`, which is in the index of the mapping that `changing` has locked, into pieces of
/// `order`. `Ok(Err(..))`: somebody holds it.
///
/// # Errors
/// The index needs more nodes first; nothing was changed.
pub(crate) fn split(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: FolioAt,
    order: Order,
) -> Result<Result<(), Outcome>, NoNodes> {
    let head = core.frames.frame(folio.frame);
    let mapping = head.identity().mapping;
    let mut writer = changing.writer(&core.nodes);
    writer.reserve_split(folio.order, u32::from(order.get()))?;
    // On its way: its filler has a reference, and its version is odd.
    if head.is_changing() {
        return Ok(Err(Outcome::Busy));
    }
    if let Err(why) = freeze_alone(core, folio.frame) {
        return Ok(Err(why));
    }
    let pieces = 1 << (folio.order - u32::from(order.get()));
    let piece = |n: u32| FrameNumber(folio.frame.0 + n * order.frames());
    hand_out_pieces(core, mapping, folio, order, pieces);
    let split = writer.split(folio.page, folio.order, u32::from(order.get()), piece);
    split.expect("the nodes were reserved, and the folio is there");
    drop(writer);
    changing.folios_added(u64::from(pieces - 1));
    for n in 0..pieces {
        core.frames.frame(piece(n)).change_end();
        // A reader may have got a reference to a piece since step 3, and wait for this.
        if !flaw::on(Flaw::MoveWakesNobody) {
            core.waiters.wake(piece(n).0);
        }
    }
    core.counters.count(Event::Split);
    Ok(Ok(()))
}

/// Steps 3 and 4, under the policy's lock: it must not see a folio that is lighter than it was told.
fn hand_out_pieces(core: &Core, mapping: u32, folio: FolioAt, order: Order, pieces: u32) {
    let (uses, file_bytes) = {
        let frame = core.frames.frame(folio.frame);
        (frame.uses(), frame.file_bytes())
    };
    let piece = |n: u32| FrameNumber(folio.frame.0 + n * order.frames());
    let mut policy = core.reclaim.policy();
    for n in 0..pieces {
        let frame = core.frames.frame(piece(n));
        let index = folio.page + u64::from(n * order.frames());
        frame.hand_out(order);
        frame.set_uses(uses);
        frame.set_identity(Identity { mapping, index, order });
        frame.set_file_bytes(
            file_bytes.saturating_sub(n as usize * order.bytes()).min(order.bytes()),
        );
    }
    let rest: Vec<u32> = (1..pieces).map(|n| piece(n).0).collect();
    policy.split(&mut Entries::of(core), folio.frame.0, 1 << folio.order, &rest);
}
