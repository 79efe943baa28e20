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
//! 3. otherwise: under the `change` mutex, give back the reference, split the folio, move the page
//!    to memory for what stays (if there is any: the guard would keep the 2 MiB around the page from
//!    becoming free as one piece), and take a reference to it;
//! 4. if it cannot be split because others use it for a moment: give back the reference, let them
//!    go on, look the page up again, and so on a few times;
//! 5. at last, or if it is pinned, borrowed, or the index has no memory for the pieces: it is
//!    granted beyond the limit.

use crate::core::{Core, Held};
use crate::error::{Error, Result};
use crate::frame::{Flags, FrameNumber, Order};
use crate::freeze::{self, InUse};
use crate::handle::Handle;
use crate::index::FolioAt;
use crate::mapping::Changing;
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
        if is_admitted(core, &held) {
            return Ok(Some(held));
        }
        self.tries += 1;
        if self.tries > TRIES_MAX {
            return at_once(handle, held, page).map(Some);
        }
        match split(handle, held, page, false)? {
            Split::Page(held) => Ok(Some(held)),
            Split::Whole(held) => Ok(Some(as_a_whole(core, held))),
            Split::NotNow => {
                thread::yield_now();
                Ok(None)
            }
        }
    }
}

/// The same for a caller that neither waits nor looks the page up again: without step 4.
///
/// # Errors
/// [`Error::TooManyReferences`].
pub(crate) fn at_once<'a>(handle: &'a Handle, held: Held<'a>, page: u64) -> Result<Held<'a>> {
    if is_admitted(&handle.core, &held) {
        return Ok(held);
    }
    match split(handle, held, page, true)? {
        Split::Page(held) => Ok(held),
        Split::Whole(held) => Ok(as_a_whole(&handle.core, held)),
        Split::NotNow => unreachable!("the reference was to be kept"),
    }
}

/// Steps 1 and 2.
fn is_admitted(core: &Core, held: &Held<'_>) -> bool {
    // A forked child takes no locks, and evicts nothing.
    let free = held.frame().order() == Order::MIN || !core.owner.is_here();
    free || mutant::on(Mutant::AdmitBlindly) || grant(core, held)
}

/// Step 5.
fn as_a_whole<'a>(core: &Core, held: Held<'a>) -> Held<'a> {
    core.grants.give(&core.frames, held.head(), true);
    held
}

/// Notes that the folio at `head` has a counted guard that nobody was asked for.
pub(super) fn upgraded(core: &Core, head: FrameNumber) {
    let frame = core.frames.frame(head);
    let known = frame.order() == Order::MIN || frame.flags().contains(Flags::GRANTED);
    if !known && core.owner.is_here() {
        core.grants.give(&core.frames, head, true);
    }
}

/// The same, for a large folio.
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

/// Step 3. With `keep` the reference is kept whatever comes of it.
fn split<'a>(
    handle: &'a Handle,
    held: Held<'a>,
    page: u64,
    keep: bool,
) -> Result<Split<'a>> {
    let (core, mapping) = (&handle.core, &handle.mapping);
    let order = u32::from(held.frame().order().get());
    let mut held = held;
    // Ends: each turn but the last refills the pool of nodes.
    loop {
        // Where the page would be in nobody's way; the mutex forbids to ask for it later.
        let mut place = reclaim::alloc_unmovable(core, Order::MIN);
        let mut changing = mapping.change();
        let folio = changing.writer(&core.nodes).folio(page);
        let same = folio.filter(|folio| folio.frame == held.head() && folio.order == order);
        let Some(folio) = same else {
            drop(changing);
            place.into_iter().for_each(|place| core.put(place));
            return Ok(if keep { Split::Whole(held) } else { Split::NotNow });
        };
        // Not the last reference: the index has one, and taking that one needs the mutex.
        drop(held);
        let split = freeze::split(core, &mut changing, folio, Order::MIN);
        let old = if split == Ok(Ok(())) { move_page(core, &mut changing, page, &mut place) } else { None };
        let there = changing.head(page).expect("split or not, it has the page");
        let busy = split == Ok(Err(InUse::Busy)) && !keep;
        let again = if busy { None } else { core.hold_under_change(there) };
        drop(changing);
        old.into_iter().for_each(|old| core.frames.free(old, Order::MIN));
        place.into_iter().for_each(|place| core.put(place));
        if busy {
            return Ok(Split::NotNow);
        }
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

/// Moves the page, which is a folio of its own, to `place`, if there is one and nobody uses the page
/// meanwhile; returns the frame that the caller has to free.
fn move_page(
    core: &Core,
    changing: &mut Changing<'_>,
    page: u64,
    place: &mut Option<FrameNumber>,
) -> Option<FrameNumber> {
    let new = (*place)?;
    let frame = changing.head(page).expect("it was split");
    let folio = FolioAt { page, order: 0, frame };
    freeze::migrate(core, changing, folio, new).ok()?;
    *place = None;
    Some(frame)
}
