//! Admission: which folio a counted guard is taken of. A guard keeps its whole folio. So one of a
//! large folio is only taken if the folio is granted (`grants`); otherwise the folio is split, and
//! the guard is of the page alone. A hit asks nothing: of a large folio that is not granted, the
//! entry says that no byte may be held (`Frame::holdable`), and the slow path calls this.
//!
//! 1. granted, or one page: it is taken;
//! 2. it fits the limit, or would without others that nobody uses: those are revoked, the oldest
//!    first, and it is granted. Not if its own grant was revoked before: folios that are wanted in
//!    turn would cost each other their grants for ever;
//! 3. otherwise give back the reference; under the `change` mutex, for whatever folio has the page
//!    by then: split it, move the page to memory for what stays, if any, and take a reference;
//! 4. if others use it for a moment: let them go on, and do 3 again, a few times;
//! 5. drop it, if it cannot be split ([`Flags::HUGE`]), to look the page up again;
//! 6. at last, or if pinned, borrowed, or without memory for the index: granted beyond the limit.

use crate::access::found::MayWait;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::thread;
use crate::base::wait::Woken;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::{Flags, FrameNumber, Order};
use crate::index::FolioAt;
use crate::pages::core::{Core, Held};
use crate::pages::freeze::{self, InUse};
use crate::pages::handle::Handle;
use crate::pages::mapping::Changing;
use crate::pages::reclaim;

/// Of step 3, and of grants that step 2 ends.
const TRIES_MAX: u32 = 16;

/// The folio of `held`, or the page's alone. `None`: look the page up again.
pub(crate) fn admit<'a>(
    handle: &'a Handle,
    held: Held<'a>,
    page: u64,
    wait: MayWait,
) -> Result<Option<Held<'a>>> {
    let core = &handle.core;
    if is_admitted(core, &held) {
        return Ok(Some(held));
    }
    drop(held);
    let mut place = reclaim::alloc_unmovable_now(core, Order::MIN);
    let admitted = split(handle, page, wait, &mut place);
    if let Some(place) = place {
        core.put(place);
    }
    admitted
}

/// Whether a guard that shows `pages` pages of the folio may keep all of it. Splits nothing.
pub(crate) fn may_keep(core: &Core, held: &Held<'_>, pages: u64) -> bool {
    2 * pages >= u64::from(held.frame().order().frames())
        || is_admitted(core, held)
        || mutant::on(Mutant::KeepBlindly)
}

/// The folio at `head` has a counted guard that was not admitted.
pub(super) fn upgraded(core: &Core, head: FrameNumber) {
    if !is_small_or_granted(core, head) && core.owner.is_here() {
        core.grants.give(&core.frames, head, true);
    }
}

fn is_small_or_granted(core: &Core, head: FrameNumber) -> bool {
    let frame = core.frames.frame(head);
    frame.order() == Order::MIN || frame.flags().contains(Flags::GRANTED)
}

/// Steps 1 and 2.
fn is_admitted(core: &Core, held: &Held<'_>) -> bool {
    // A forked child takes no locks, and evicts nothing.
    is_small_or_granted(core, held.head())
        || !core.owner.is_here()
        || mutant::on(Mutant::AdmitBlindly)
        || grant(core, held)
}

fn grant(core: &Core, held: &Held<'_>) -> bool {
    let give = || core.grants.give(&core.frames, held.head(), false);
    let again = held.frame().flags().contains(Flags::REVOKED);
    for _ in 0..TRIES_MAX {
        if give() {
            return true;
        }
        // This also takes folios off the list that are gone.
        let Some(idle) = core.grants.oldest_idle(&core.frames) else { break };
        core.grants.settle(idle, !again && freeze::revoke(core, &idle));
        if again {
            break;
        }
    }
    give()
}

fn split<'a>(
    handle: &'a Handle,
    page: u64,
    wait: MayWait,
    place: &mut Option<FrameNumber>,
) -> Result<Option<Held<'a>>> {
    let (core, mapping) = (&handle.core, &handle.mapping);
    let mut left = TRIES_MAX;
    loop {
        left -= 1;
        // Dropped after the mutex.
        let mut woken = Woken::default();
        let mut changing = mapping.change();
        let Some(folio) = changing.writer(&core.nodes).folio(page) else { return Ok(None) };
        if core.frames.frame(folio.frame).is_changing() {
            return Ok(None); // on its way: under the mutex none is frozen
        }
        let mut old = None;
        if folio.order > 0 {
            match freeze::split(core, &mut changing, folio, Order::MIN) {
                Ok(Ok(split)) => {
                    woken.add(split);
                    let moved = move_page(core, &mut changing, page, place);
                    old = moved.map(|(old, moved)| {
                        woken.add(moved);
                        old
                    });
                }
                // Nobody uses it: the page is read anew.
                Ok(Err(InUse::Huge)) => {
                    drop(changing);
                    freeze::drop_clean(core, mapping, page..page + 1);
                    return Ok(None);
                }
                Ok(Err(InUse::Busy)) if left > 0 && wait == MayWait::Yes => {
                    drop(changing);
                    thread::yield_now();
                    continue;
                }
                Err(short) if left > 0 => {
                    drop(changing);
                    // Others may wait for folios that this thread holds.
                    if !matches!(reclaim::refill_nodes(core, short.wanted, false), Ok(true)) {
                        left = 1;
                    }
                    continue;
                }
                _ => {}
            }
        }
        let head = changing.head(page).expect("split or not, it has the page");
        let held = core.hold_under_change(head);
        drop(changing);
        drop(woken);
        if let Some(old) = old {
            core.frames.free(old, Order::MIN);
        }
        let too_many = || Cause::TooManyReferences { path: mapping.path.clone(), page };
        let held = held.ok_or_else(too_many)?;
        upgraded(core, head);
        return Ok(Some(held));
    }
}

/// Moves the page, a folio of its own, to `place`, if there is one and nobody uses the page. The
/// caller frees the frame, and wakes the futures without the mutex.
fn move_page(
    core: &Core,
    changing: &mut Changing<'_>,
    page: u64,
    place: &mut Option<FrameNumber>,
) -> Option<(FrameNumber, Woken)> {
    let new = (*place)?;
    let frame = changing.head(page).expect("it was split");
    let woken = freeze::migrate(core, changing, FolioAt { page, order: 0, frame }, new).ok()?;
    *place = None;
    Some((frame, woken))
}
