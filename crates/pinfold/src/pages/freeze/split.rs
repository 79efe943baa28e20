//! Splitting: a large folio becomes small ones, in place. Under the `change` mutex:
//! 1. reserve the index nodes that the pieces need, so that no later step fails;
//! 2. freeze, version of the head odd; no reader has announced it;
//! 3. hand out each piece in its own frames (count 1, the index's), with its identity and the uses
//!    of its part. The tails' versions were odd before;
//! 4. tell the policy, under the same hold of its lock as step 3;
//! 5. store the pieces to the folio's index slots: a racing look-up finds the old head or the
//!    piece; the old head's identity refuses it if its page is no longer there;
//! 6. make the versions even: from here on the pieces can be read.
//!
//! The caller wakes the futures that met a piece meanwhile when it has released the mutex.

use super::users::{InUse, freeze_alone, thaw};
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::base::wait::Woken;
use crate::frames::{Flags, Identity, Order};
use crate::index::{FolioAt, NoNodes};
use crate::pages::core::Core;
use crate::pages::mapping::Changing;

/// Into pieces of `order`. `Ok(Err(..))`: it is in use. Error: the index needs nodes; nothing was
/// changed.
pub(crate) fn split(
    core: &Core,
    changing: &mut Changing<'_>,
    folio: FolioAt,
    order: Order,
) -> Result<Result<Woken, InUse>, NoNodes> {
    let head = core.frames.frame(folio.frame);
    let mapping = head.identity().mapping;
    let mut writer = changing.writer(&core.nodes);
    writer.reserve_split(folio.order, u32::from(order.get()))?;
    // Its filler has a reference, and its version is odd.
    if head.is_changing() {
        return Ok(Err(InUse::Busy));
    }
    if let Err(why) = freeze_alone(core, folio.frame) {
        return Ok(Err(why));
    }
    // Asked now that nobody has a reference, with which it becomes one.
    if head.flags().contains(Flags::HUGE) && !mutant::on(Mutant::SplitsHuge) {
        thaw(head);
        return Ok(Err(InUse::Huge));
    }
    let pieces = 1 << (folio.order - u32::from(order.get()));
    let piece = |n: u32| folio.frame.after(n * order.frames());

    // Steps 3 and 4.
    let (file_bytes, hollow) = (head.file_bytes(), head.flags() & Flags::HOLLOW);
    // `None`: nobody has read the piece.
    let uses = |n: u32| {
        let pages = n * order.frames()..(n + 1) * order.frames();
        let is_read = head.unread_pages(pages) < order.frames();
        is_read.then(|| if head.is_piece_used(n, order) { head.uses() } else { 0 })
    };
    let uses: Vec<Option<u8>> = (0..pieces).map(uses).collect();
    let rest: Vec<u32> = (1..pieces).map(|n| piece(n).0).collect();
    core.residency.split(&core.frames, folio.frame, 1 << folio.order, &rest, || {
        for (n, uses) in (0..).zip(uses) {
            let frame = core.frames.frame(piece(n));
            let index = folio.page + u64::from(n * order.frames());
            frame.hand_out(order);
            frame.set_flags(hollow);
            match uses {
                Some(uses) => frame.set_uses(uses),
                None => frame.set_fresh(),
            }
            frame.set_identity(Identity { mapping, index, order });
            let before = n as usize * order.bytes();
            frame.set_file_bytes(file_bytes.saturating_sub(before).min(order.bytes()));
        }
    });

    writer.split(folio.page, u32::from(order.get())).expect("the nodes were reserved");
    drop(writer);
    changing.folios_added(u64::from(pieces - 1));
    let mut woken = Woken::default();
    for n in 0..pieces {
        core.frames.frame(piece(n)).change_end();
        // A reader may have a reference since step 3, and wait for this.
        if !mutant::on(Mutant::MoveWakesNobody) {
            woken.add(core.waiters.wake_later(piece(n).0));
        }
    }
    core.counters.count(Event::Split);
    Ok(Ok(woken))
}
