//! Admission: which folio a counted guard is taken of.
//!
//! A guard keeps its whole folio. So one of a large folio is only taken if the folio is granted
//! (`grants`), or can be granted within the limit; otherwise the folio is split, and the guard is of
//! the page alone. A hit asks nothing: of a large folio that is not granted, the entry says that no
//! byte may be held (`Frame::holdable`), and so the hit takes the slow path, which calls this.
//!
//! 1. granted, or one page: it is taken;
//! 2. it fits the limit, or would without others that nobody uses: those are revoked, the oldest
//!    first, and it is granted. Not if its own grant was revoked before: many folios are wanted in
//!    turn, and each would cost the others theirs, for ever;
//! 3. otherwise: under the `change` mutex, give back the reference, split the folio, and take a
//!    reference to the page's;
//! 4. if it cannot be split because others use it for a moment: give back the reference, let them
//!    go on, look the page up again, and so on a few times;
//! 5. at last, or if it is pinned, borrowed, or the index has no memory for the pieces: it is
//!    granted beyond the limit.

use crate::core::{Core, Held};
use crate::error::{Error, Result};
use crate::frame::{Flags, FrameNumber, Order};
use crate::freeze::{self, InUse};
use crate::handle::Handle;
use crate::mutant::{self, Mutant};
use crate::reclaim;
use crate::sync::thread;

/// How often step 4 is tried.
const TRIES_MAX: u32 = 16;

/// One guard's attempts to be admitted.
#[derive(Debug)]
pub(super) struct Admission {
    tries: u32,
}

/// What came of step 3.
enum Split<'a> {
    /// The page, alone.
    Page(Held<'a>),
    /// The folio, which others use for long.
    Whole(Held<'a>),
    /// The folio is gone, or others use it for a moment.
    NotNow,
}

impl Admission {
    pub(super) fn new() -> Self {
        Admission { tries: 0 }
    }

    /// A folio of `page` that a guard may be taken of: that of `held`, or the page's alone. `None`:
    /// look it up again.
    ///
    /// # Errors
    /// [`Error::TooManyReferences`].
    pub(super) fn of<'a>(
        &mut self,
        handle: &'a Handle,
        held: Held<'a>,
        page: u64,
    ) -> Result<Option<Held<'a>>> {
        let core = &handle.core;
        if mutant::on(Mutant::AdmitBlindly) {
            return Ok(Some(held));
        }
        // A forked child takes no locks, and evicts nothing.
        if held.frame().order() == Order::MIN || !core.owner.is_here() || grant(core, &held) {
            return Ok(Some(held));
        }
        self.tries += 1;
        let whole = if self.tries > TRIES_MAX {
            held
        } else {
            match split(handle, held, page)? {
                Split::Page(held) => return Ok(Some(held)),
                Split::Whole(held) => held,
                Split::NotNow => {
                    thread::yield_now();
                    return Ok(None);
                }
            }
        };
        core.grants.give(&core.frames, whole.head(), true);
        Ok(Some(whole))
    }
}

/// Notes that the folio at `head` has a counted guard that nobody was asked for.
pub(super) fn upgraded(core: &Core, head: FrameNumber) {
    let frame = core.frames.frame(head);
    let known = frame.order() == Order::MIN || frame.flags().contains(Flags::GRANTED);
    if !known && core.owner.is_here() {
        core.grants.give(&core.frames, head, true);
    }
}

/// Steps 1 and 2.
fn grant(core: &Core, held: &Held<'_>) -> bool {
    let again = held.frame().flags().contains(Flags::REVOKED);
    // Ends: each turn but the last takes a folio off the list, or finds that it was taken again.
    for _ in 0..TRIES_MAX {
        if core.grants.give(&core.frames, held.head(), false) {
            return true;
        }
        let Some(idle) = core.grants.oldest_idle(&core.frames) else { break };
        core.grants.settle(idle, !again && freeze::revoke(core, &idle));
        if again {
            break;
        }
    }
    core.grants.give(&core.frames, held.head(), false)
}

/// Step 3.
fn split<'a>(handle: &'a Handle, held: Held<'a>, page: u64) -> Result<Split<'a>> {
    let (core, mapping) = (&handle.core, &handle.mapping);
    let order = u32::from(held.frame().order().get());
    let mut held = held;
    // Ends: each turn but the last refills the pool of nodes.
    loop {
        let mut changing = mapping.change();
        let folio = changing.writer(&core.nodes).folio(page);
        let same = folio.filter(|folio| folio.frame == held.head() && folio.order == order);
        let Some(folio) = same else {
            drop(changing);
            return Ok(Split::NotNow);
        };
        // Not the last reference: the index has one, and taking that one needs the mutex.
        drop(held);
        let split = freeze::split(core, &mut changing, folio, Order::MIN);
        let there = changing.head(page).expect("split or not, it has the page");
        if split == Ok(Err(InUse::Busy)) {
            return Ok(Split::NotNow);
        }
        let again = core.hold_under_change(there);
        drop(changing);
        let too_many = || Error::TooManyReferences { path: mapping.path.clone(), page };
        held = again.ok_or_else(too_many)?;
        match split {
            Ok(Ok(())) => return Ok(Split::Page(held)),
            Ok(Err(_)) => return Ok(Split::Whole(held)),
            // Not waited for: others may wait for this thread's reference.
            Err(short) => match reclaim::refill_nodes(core, short.wanted, false) {
                Ok(true) => {}
                _ => return Ok(Split::Whole(held)),
            },
        }
    }
}
