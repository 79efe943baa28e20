//! Lending pages to a file's mirror, where they can be mapped.
//!
//! A folio is read into the arena like any other (`fill`), and moves to the mirror when a mapped
//! access wants one of its pages: [`look`]. From then on the kernel maps its pages by itself. The
//! steps, for the folio and for those that follow it in the file and are in the arena, too:
//! 1. allocate a hollow folio for each; claim its place;
//! 2. copy its bytes to the place, under a reference;
//! 3. under the mapping's `change` mutex put the new folios into the index (`lend/exchange.rs`);
//! 4. end the claims; let go of the old folios, which frees their memory once nobody uses them.
//!
//! A folio with a readahead mark is not lent with those before it: so the mapped access that first
//! wants it is seen, and reads further ahead.

mod exchange;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::base::mutant::{self, Mutant};
use crate::base::{heap, wait};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::{Flags, FrameNumber, Order, PAGE_BYTES};
use crate::index::FolioAt;
use crate::map::lent;
use crate::mapped::load::Bringing;
use crate::mapped::mirror::{Mirror, PlaceClaim, Shown, SystemRefused};
use crate::mapped::task::Waiter;
use crate::pages::core::{Core, Held};
use crate::pages::fill;
use crate::pages::freeze::{self, InUse};
use crate::pages::handle::Handle;
use crate::pages::reclaim;

/// The most pages that are lent for one access, beside those of the wanted folio.
const PAGES_MAX: u32 = 64;

/// How long a thread sleeps at a time while others own the place.
pub(crate) const NAP: Duration = Duration::from_millis(1);

/// What [`NAP`] is for threads, for a task, which has a thread wait so long once.
const COPY_NAP: Duration = Duration::from_micros(100);

/// What is [`SystemRefused`] where the bytes of a folio do not get into the mirror.
pub(super) const PUT: &str = "put pages there";

/// The smallest budget with maps: the arena has some left when three runs are hollow.
const BUDGET_MIN_BYTES: u64 = 8 << 20;

/// Somebody who maps pages of mirrors: as long as there is one, a run stays hollow.
#[derive(Debug)]
pub(crate) struct Mapper(Arc<Core>);

impl Mapper {
    /// # Errors
    /// [`ErrorKind::Invalid`]: the cache is too small for mirrors.
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self> {
        let budget_bytes = u64::from(core.frames.frames()) * PAGE_BYTES as u64;
        let least_bytes = BUDGET_MIN_BYTES;
        if budget_bytes < least_bytes {
            return Err(Cause::SpaceBudget { budget_bytes, least_bytes }.into());
        }
        core.frames.hollow_user_begins();
        lent::lend_first(core); // now, as guards may come to lie in all runs
        Ok(Mapper(core.clone()))
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // A forked child does not take the allocator's mutex.
        if self.0.owner.is_here() {
            self.0.frames.hollow_user_ends();
        }
    }
}

/// What became of a mapped access.
#[derive(Debug)]
pub(crate) enum Look<'a> {
    /// The page is in the mirror, as long as this reference is held.
    There(Held<'a>),
    /// A page of an older version is, as long as somebody uses that: maps show it.
    LeftOver,
    /// It is not cached, or on its way, or somebody else lends it.
    Absent,
}

/// A folio on its way to the mirror.
struct Lending<'a> {
    old: Held<'a>,
    new: FrameNumber,
    page: u64,
    order: Order,
    claim: PlaceClaim<'a>,
}

/// The mirror of the handle's file, as long as the file.
pub(crate) fn of(handle: &Handle) -> Result<&Mirror> {
    grown(handle, || handle.mapping.len_bytes())
}

/// The mirror, at least up to `end`: for a map whose range was within the file when that was
/// checked. For an access past the end of a mirror the kernel asks nobody.
pub(crate) fn reaching(handle: &Handle, end: u64) -> Result<&Mirror> {
    if mutant::on(Mutant::MapBeyondMirror) { of(handle) } else { grown(handle, || end) }
}

/// The mirror, with room for this folio. That the file has become too long for it (`ulimit -f`)
/// does not concern the pages that it has room for.
pub(super) fn with_room_for<'a>(handle: &'a Handle, held: &Held<'_>) -> Result<&'a Mirror> {
    let mirror = grown(handle, || held.offset() + held.frame().file_bytes() as u64)?;
    let page = held.frame().identity().index;
    mirror.reach(page).map_err(|why| handle.mapping.mirror_error(why))?;
    Ok(mirror)
}

/// The mirror, at least so many bytes long.
fn grown(handle: &Handle, bytes: impl FnOnce() -> u64) -> Result<&Mirror> {
    let mirror = handle.mapping.mirror(&handle.core)?;
    mirror.grow(bytes).map_err(|why| handle.mapping.mirror_error(why))?;
    Ok(mirror)
}

/// Whether `page` can be mapped. A page that is cached in the arena is lent now, if there is memory
/// for it at once, and with `shown` it is mapped there. At a readahead mark it begins to read
/// further. Waits for no read, and for nobody but, as a thread, for one that is just lending the
/// page. What was `brought` is kept from eviction for a while (`recent.rs`).
///
/// # Safety
/// `shown` is what it says, and stays so meanwhile.
pub(crate) unsafe fn look<'a>(
    handle: &'a Handle,
    page: u64,
    shown: Option<&Shown<'_>>,
    brought: Option<Brought<'a>>,
    waiter: Waiter<'_>,
) -> Result<Look<'a>> {
    handle.core.check_owner()?;
    // Until this returns, it counts as being brought.
    let (read, mut spare, _bringing) = match brought {
        Some(it) => (Some(it.read), it.spare, it.bringing),
        None => (None, None, None),
    };
    let mut waited = false;
    // Ends: each turn but the last lends the folio, or waits for another thread, a few times.
    for _ in 0..NAPS_MAX {
        // Frozen: as if it were absent, where it is waited for.
        let Some(held) = handle.core.hold(&handle.mapping, page) else { break };
        if held.frame().is_changing() || !reaches(&held, page) {
            break;
        }
        if held.frame().is_hollow() {
            if read.is_some() {
                held.another().into_iter().for_each(|other| handle.core.keep_recent(other));
            }
            return Ok(Look::There(held));
        }
        let mirror = with_room_for(handle, &held)?;
        if mirror.shows_left_over(page) {
            return Ok(Look::LeftOver);
        }
        let place = place_of(&held);
        // SAFETY: the caller's promise.
        let lent = unsafe { lend(handle, mirror, held, spare.take(), shown) }?;
        let has_waited = std::mem::replace(&mut waited, lent == Lent::PlaceTaken);
        match lent {
            Lent::Done => {}
            Lent::NoMemory => break,
            Lent::PlaceTaken => match waiter {
                Waiter::Thread => mirror.wait_for_place(&place, NAP),
                // To copy pages takes no longer, as a rule.
                Waiter::Task(_) if !has_waited => mirror.wait_for_place(&place, COPY_NAP),
                Waiter::Task(_) => break,
            },
        }
    }
    Ok(Look::Absent)
}

/// As [`look`], for a loop that serves other processes: it waits for nobody who lends the page, nor
/// for memory. It evicts if there is none at once, and makes a folio smaller that hollow frames
/// have no room for. The caller has no reference to the folio, or it would be dropped instead.
#[cfg(feature = "serve")]
pub(crate) fn look_now(handle: &Handle, page: u64) -> Result<Look<'_>> {
    handle.core.check_owner()?;
    let core = &*handle.core;
    // Ends: each turn but the last lends the folio, or makes it smaller.
    for _ in 0..NAPS_MAX {
        let Some(held) = core.hold(&handle.mapping, page) else { break };
        if held.frame().is_changing() || !reaches(&held, page) {
            break;
        }
        if held.frame().is_hollow() {
            return Ok(Look::There(held));
        }
        let mirror = with_room_for(handle, &held)?;
        let identity = held.frame().identity();
        let place = place_of(&held);
        if mirror.is_taken(&place) {
            break;
        }
        let mut got = lent::allocate_lent(core, identity.order, false)
            .map_err(|why| why.of(&handle.mapping, identity.index))?;
        if got.is_none() {
            got = lent::evict_for_lent(core, identity.order);
        }
        let Some((head, order)) = got else { break };
        let spare = Spare { core, head, order };
        if order != identity.order {
            drop(spare);
            make_smaller(handle, held, order, mutant::on(Mutant::LookWaits))?;
            continue;
        }
        // SAFETY: nothing is shown.
        match unsafe { lend(handle, mirror, held, Some(spare), None) }? {
            Lent::Done => {}
            Lent::NoMemory | Lent::PlaceTaken => break,
        }
    }
    Ok(Look::Absent)
}

/// As [`look_now`], for a page beside the one that is wanted: it is lent only if there is memory
/// for it at once. One with a readahead mark is not, as for who goes on in order.
#[cfg(feature = "serve")]
pub(crate) fn look_beside(handle: &Handle, page: u64) -> Option<Held<'_>> {
    let look = || {
        let held = handle.core.hold(&handle.mapping, page)?;
        (!held.frame().is_changing() && reaches(&held, page)).then_some(held)
    };
    let held = look()?;
    if held.frame().is_hollow() {
        return Some(held);
    }
    if held.frame().flags().contains(Flags::READAHEAD) {
        return None;
    }
    // SAFETY: nothing is shown.
    unsafe { lend(handle, with_room_for(handle, &held).ok()?, held, None, None) }.ok()?;
    look().filter(|held| held.frame().is_hollow())
}

/// How often [`look`] looks.
pub(super) const NAPS_MAX: u32 = 6;

/// Whether `page` is where it can be mapped, or on its way.
pub(crate) fn is_coming(handle: &Handle, page: u64) -> bool {
    let held = handle.core.hold(&handle.mapping, page);
    held.is_some_and(|held| held.frame().is_changing() || held.frame().is_hollow())
}

/// A page that was read, with memory of its mirror for it (`bring.rs`).
#[derive(Debug)]
pub(crate) struct Brought<'a> {
    pub(super) read: Held<'a>,
    pub(super) spare: Option<Spare<'a>>,
    /// It counts as being brought until this is dropped.
    pub(super) bringing: Option<Bringing<'a>>,
}

/// A lent folio that is not used yet, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Spare<'a> {
    pub(super) core: &'a Core,
    pub(super) head: FrameNumber,
    pub(super) order: Order,
}

/// Whether the file reached `page` when this folio, which has the page, was read. Of other pages
/// the mirror has nothing.
pub(crate) fn reaches(held: &Held<'_>, page: u64) -> bool {
    page < held.file_pages_end() || mutant::on(Mutant::LooksBeyondEnd)
}

/// The pages of a folio, and so its place in the mirror.
pub(super) fn place_of(held: &Held<'_>) -> Range<u64> {
    let identity = held.frame().identity();
    identity.pages()
}

/// What became of a folio that was to be lent.
#[derive(Debug, PartialEq, Eq)]
enum Lent {
    /// Look again.
    Done,
    /// There is none at once.
    NoMemory,
    /// Its place belongs to another folio, or to another lender; or it has left the index.
    PlaceTaken,
}

/// Steps 1 to 4. Wakers run when all claims have ended: they are the program's, and may wait for
/// these.
///
/// # Safety
/// As [`look`].
unsafe fn lend<'a>(
    handle: &'a Handle,
    mirror: &'a Mirror,
    wanted: Held<'a>,
    spare: Option<Spare<'a>>,
    shown: Option<&Shown<'_>>,
) -> Result<Lent> {
    // SAFETY: the caller's promise.
    let lend = || unsafe { lend_together(handle, mirror, wanted, spare, shown) };
    if mutant::on(Mutant::LendWakesEarly) { lend() } else { wait::together(lend) }
}

/// See [`lend`].
///
/// # Safety
/// As [`look`].
unsafe fn lend_together<'a>(
    handle: &'a Handle,
    mirror: &'a Mirror,
    wanted: Held<'a>,
    spare: Option<Spare<'a>>,
    shown: Option<&Shown<'_>>,
) -> Result<Lent> {
    let (core, mapping) = (&*handle.core, &*handle.mapping);
    // For more than the page that is wanted.
    let has_room = heap::has_room();
    if has_room && wanted.frame().flags().contains(Flags::READAHEAD) {
        fill::read_further(handle, &wanted);
    }
    let identity = wanted.frame().identity();
    let spare = spare.filter(|spare| spare.order == identity.order);
    let new = match spare {
        Some(spare) => spare.take(),
        None => match lent_now(core, identity.order) {
            Some(new) => new,
            None => return Ok(Lent::NoMemory),
        },
    };
    let Some(first) = Lending::of(core, mirror, wanted, new) else {
        return Ok(Lent::PlaceTaken);
    };
    let mut all = vec![first];
    let stream = &handle.stream;
    if has_room && !stream.is_random() && !stream.is_proving(identity.pages().end) {
        lengthen(handle, mirror, &mut all);
    }
    // Step 2. What follows a folio that cannot be copied is not lent.
    let mut copied = 0;
    let mut failed = None;
    for lending in &all {
        let from = core.frames.address(lending.old.head());
        let bytes = lending.old.frame().file_bytes();
        // SAFETY: the reference keeps the folio, and the bytes of a folio with holders never
        // change. Of `shown` the caller says it.
        if let Err(cause) = unsafe { lending.claim.copy(from, bytes, shown) } {
            failed = Some(cause);
            break;
        }
        copied += 1;
    }
    // Step 3.
    let mut woken = crate::base::wait::Woken::default();
    let mut gone = Vec::with_capacity(all.len());
    let mut changing = mapping.change();
    let mut lent = Vec::with_capacity(all.len());
    for (n, lending) in all.iter().enumerate() {
        let folio = FolioAt {
            page: lending.page,
            order: u32::from(lending.order.get()),
            frame: lending.old.head(),
        };
        let done =
            if n < copied { exchange::lend(core, &mut changing, folio, lending.new) } else { None };
        lent.push(done.is_some());
        if let Some(others) = done {
            woken.add(others);
            gone.push(folio.frame);
        }
    }
    drop(changing);
    drop(woken);
    // Step 4.
    for (lending, lent) in all.into_iter().zip(lent) {
        if !lent {
            if !mutant::on(Mutant::LenderKeepsPages) {
                lending.claim.punch();
            }
            core.give_back(lending.new);
        }
    }
    freeze::let_go(core, &gone);
    match failed {
        Some(cause) if copied == 0 => Err(mapping.mirror_error(SystemRefused::to(PUT)(cause))),
        _ => Ok(Lent::Done),
    }
}

impl Spare<'_> {
    /// The folio, whose reference is the caller's from here on.
    fn take(self) -> FrameNumber {
        let head = self.head;
        std::mem::forget(self);
        head
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        self.core.give_back(self.head);
    }
}

impl<'a> Lending<'a> {
    /// Claims the place of `old`. `None`: it is taken, or `old` has left the index; `new` is given
    /// back.
    ///
    /// Whether it has left is asked once the place is claimed. If it has not, no other folio owns
    /// the place, and none will before the claim ends. If it has, the place may be that of the
    /// folio to which it was lent.
    fn of(core: &Core, mirror: &'a Mirror, old: Held<'a>, new: FrameNumber) -> Option<Self> {
        let identity = old.frame().identity();
        let (page, order) = (identity.index, identity.order);
        let claim = mirror.claim(page..page + u64::from(order.frames()));
        match claim {
            Some(claim) if !old.frame().is_changing() || mutant::on(Mutant::LendBlindly) => {
                Some(Lending { old, new, page, order, claim })
            }
            _ => {
                core.give_back(new);
                None
            }
        }
    }
}

/// A lent folio of that order, if there is one at once.
fn lent_now(core: &Core, order: Order) -> Option<FrameNumber> {
    let (new, got) = lent::allocate_lent(core, order, false).ok()??;
    if got != order {
        core.give_back(new);
        return None;
    }
    Some(new)
}

/// Adds the folios that follow, as long as they are up to date in the arena, and there is memory at
/// once.
fn lengthen<'a>(handle: &'a Handle, mirror: &'a Mirror, all: &mut Vec<Lending<'a>>) {
    let core = &*handle.core;
    let mut left = PAGES_MAX;
    let mut page = all.last().map_or(0, |last| last.page + u64::from(last.order.frames()));
    // Ends: each turn advances `page`, or is the last.
    while left > 0 {
        let Some(held) = core.hold(&handle.mapping, page) else { break };
        let (frame, identity) = (held.frame(), held.frame().identity());
        let pages = identity.order.frames();
        let fits = !frame.is_changing()
            && !frame.is_hollow()
            && !frame.flags().contains(Flags::READAHEAD)
            && identity.index == page
            && pages <= left
            && with_room_for(handle, &held).is_ok();
        if !fits {
            break;
        }
        let Some(new) = lent_now(core, identity.order) else { break };
        let Some(next) = Lending::of(core, mirror, held, new) else { break };
        all.push(next);
        left -= pages;
        page += u64::from(pages);
    }
}

/// Makes a folio that no hollow frames fit as small as `order`; drops it if it is in use, so that
/// its page is read anew. If `needed` is false, it is also dropped if there is no memory at once
/// for what the index needs: otherwise that is waited for.
pub(super) fn make_smaller(
    handle: &Handle,
    held: Held<'_>,
    order: Order,
    needed: bool,
) -> Result<()> {
    let (core, mapping) = (&*handle.core, &*handle.mapping);
    let (head, identity, pages) = (held.head(), held.frame().identity(), place_of(&held));
    drop(held);
    // Ends: each turn but the last makes index nodes.
    loop {
        let mut changing = mapping.change();
        let folio = changing.writer(&core.nodes).folio(identity.index);
        let order_now = u32::from(identity.order.get());
        let Some(folio) = folio.filter(|it| it.frame == head && it.order == order_now) else {
            return Ok(());
        };
        if mutant::on(Mutant::BringLargeAgain) {
            drop(changing);
            freeze::drop_clean(core, mapping, pages);
            return Ok(());
        }
        let split = freeze::split(core, &mut changing, folio, order);
        drop(changing);
        match split {
            Ok(Ok(woken)) => drop(woken),
            Ok(Err(InUse::NotClean)) => {}
            Ok(Err(InUse::Busy | InUse::Pinned | InUse::Borrowed)) => {
                freeze::drop_clean(core, mapping, pages);
            }
            Err(short) => {
                let refilled = reclaim::refill_nodes(core, short.wanted, needed);
                if refilled.map_err(|why| why.of(mapping, identity.index))? {
                    continue;
                }
                freeze::drop_clean(core, mapping, pages);
            }
        }
        return Ok(());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
