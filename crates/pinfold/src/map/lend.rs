//! Lending pages to a file's mirror, where they can be mapped.
//!
//! A folio is read into the arena like any other (`fill`), and moves to the mirror when a mapped
//! access wants one of its pages ([`look`]), whether it is used or not. From then on the kernel maps
//! its pages by itself. The steps, for the folio and for those that follow it in the file and are in
//! the arena, too:
//! 1. allocate a hollow folio for each (count 1, version odd, no mapping); claim its place;
//! 2. copy its bytes to the place, under a reference;
//! 3. under the mapping's `change` mutex put the new folios into the index ([`exchange`]). This is
//!    no user of freeze: guards, borrows and pins keep the old folio with its bytes, and all others
//!    find the new one;
//! 4. end the claims; let go of the old folios (`freeze/users.rs`), which frees their memory once
//!    nobody uses them.
//!
//! A folio with a readahead mark is not lent with those before it: so the mapped access that first
//! wants it is seen, and reads further ahead.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::base::heap;
use crate::base::mutant::{self, Mutant};
use crate::base::wait::{self, Woken};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::{Flags, FrameNumber, Order, PAGE_BYTES};
use crate::index::FolioAt;
use crate::map::{around, lent};
use crate::mapped::load::Bringing;
use crate::mapped::mirror::{Mirror, PlaceClaim, Shown};
use crate::mapped::pieces::Piece;
use crate::mapped::task::Waiter;
use crate::pages::core::{Core, Held};
use crate::pages::fill;
use crate::pages::freeze::{self, InUse};
use crate::pages::handle::Handle;
use crate::pages::mapping::Changing;
use crate::pages::reclaim;
use crate::pages::written::FileUse;

/// The most pages that are lent for one access, beside those of the wanted folio.
const PAGES_MAX: u32 = 64;

/// How long a thread sleeps at a time while others own the place.
pub(crate) const NAP: Duration = Duration::from_millis(1);

/// What [`NAP`] is for threads, for a task, which has a thread wait so long once.
const COPY_NAP: Duration = Duration::from_micros(100);

/// What the system refuses where the bytes of a folio do not get into the mirror.
pub(super) const PUT: &str = "put pages there";

/// The smallest budget with maps: the arena has some left when three runs are hollow.
const BUDGET_MIN_BYTES: u64 = 8 << 20;

/// Somebody who maps pages of mirrors: as long as there is one, a run stays hollow.
#[derive(Debug)]
pub(crate) struct Mapper(Arc<Core>);

impl Mapper {
    /// Error: [`ErrorKind::Invalid`]: the cache is too small for mirrors.
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
    new: Spare<'a>,
    page: u64,
    claim: PlaceClaim<'a>,
    /// The index has the new one.
    is_lent: bool,
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
    mirror.reach(held.frame().identity().index)?;
    Ok(mirror)
}

/// The mirror, at least so many bytes long.
fn grown(handle: &Handle, bytes: impl FnOnce() -> u64) -> Result<&Mirror> {
    let mapping = &handle.mapping;
    if !mapping.written.claim(FileUse::Mapped) {
        return Err(Cause::MappedOrWritten { path: mapping.path.clone(), what: "map" }.into());
    }
    let mirror = mapping.mirror(&handle.core)?;
    mirror.grow(bytes)?;
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
        let Some(held) = up_to_date(handle, page) else { break };
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
pub(crate) fn look_now(handle: &Handle, page: u64) -> Result<Option<Held<'_>>> {
    handle.core.check_owner()?;
    let core = &*handle.core;
    // Ends: each turn but the last lends the folio, or makes it smaller.
    for _ in 0..NAPS_MAX {
        let Some(held) = up_to_date(handle, page) else { break };
        if held.frame().is_hollow() {
            return Ok(Some(held));
        }
        let mirror = with_room_for(handle, &held)?;
        let wish = held.frame().order();
        if mirror.is_taken(&place_of(&held)) {
            break;
        }
        let got = lent::lent_at_once(core, wish).or_else(|| lent::evict_for_lent(core, wish));
        let Some((head, order)) = got else { break };
        let spare = Spare { core, head, order };
        if order != wish {
            drop(spare);
            make_smaller(handle, held, order, mutant::on(Mutant::LookWaits))?;
            continue;
        }
        // SAFETY: nothing is shown.
        if unsafe { lend(handle, mirror, held, Some(spare), None) }? != Lent::Done {
            break;
        }
    }
    Ok(None)
}

/// As [`look_now`], for a page beside the one that is wanted: it is lent only if there is memory
/// for it at once. One with a readahead mark is not, as for who goes on in order.
#[cfg(feature = "serve")]
pub(crate) fn look_beside(handle: &Handle, page: u64) -> Option<Held<'_>> {
    let held = up_to_date(handle, page)?;
    if held.frame().is_hollow() {
        return Some(held);
    }
    if held.frame().flags().contains(Flags::READAHEAD) {
        return None;
    }
    // SAFETY: nothing is shown.
    unsafe { lend(handle, with_room_for(handle, &held).ok()?, held, None, None) }.ok()?;
    in_mirror(handle, page)
}

/// The folio that has `page`, if it is in the mirror.
#[cfg(feature = "serve")]
pub(crate) fn in_mirror(handle: &Handle, page: u64) -> Option<Held<'_>> {
    up_to_date(handle, page).filter(|held| held.frame().is_hollow())
}

/// The folio that has `page`, if its bytes are there.
fn up_to_date(handle: &Handle, page: u64) -> Option<Held<'_>> {
    let held = handle.core.hold(&handle.mapping, page)?;
    (!held.frame().is_changing() && reaches(&held, page)).then_some(held)
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
    held.frame().identity().pages()
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
    let Some(new) = spare.or_else(|| Spare::at_once(core, identity.order)) else {
        return Ok(Lent::NoMemory);
    };
    let Some(first) = Lending::of(mirror, wanted, new) else { return Ok(Lent::PlaceTaken) };
    let mut all = vec![first];
    let stream = &handle.stream;
    if has_room && !stream.is_random() && !stream.is_proving(identity.pages().end) {
        lengthen(handle, mirror, &mut all);
    }
    // Step 2. What follows a folio that cannot be copied is not lent.
    let (mut copied, mut failed) = (0, None);
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
    let mut woken = Woken::default();
    let mut changing = mapping.change();
    for lending in &mut all[..copied] {
        if let Some(others) = exchange(core, &mut changing, lending) {
            lending.is_lent = true;
            woken.add(others);
        }
    }
    drop(changing);
    drop(woken);
    // Step 4.
    let mut gone = Vec::with_capacity(all.len());
    for lending in all {
        if lending.is_lent {
            gone.push(lending.old.head());
            std::mem::forget(lending.new); // the reference is the index's
        } else if !mutant::on(Mutant::LenderKeepsPages) {
            lending.claim.punch();
        }
    }
    freeze::let_go(core, &gone);
    if has_room && shown.is_some() && identity.order == Order::MAX {
        make_huge(handle, mirror, identity.index);
    }
    match failed {
        Some(cause) if copied == 0 => Err(mirror.refused(PUT, cause)),
        _ => Ok(Lent::Done),
    }
}

/// Makes the folio of 2 MiB before `page` a huge page of the mirror, where memory is plenty: that
/// one is copied to. Not before maps have used all of it, as far as samples tell; afterwards these
/// tell nothing. Nor while it is to be seen whether it is mapped again.
fn make_huge(handle: &Handle, mirror: &Mirror, page: u64) {
    let (core, id) = (&*handle.core, handle.mapping.id);
    let first = page.checked_sub(Order::MAX.frames().into());
    let Some(held) = first.and_then(|first| up_to_date(handle, first)) else { return };
    let (frame, pages) = (held.frame(), place_of(&held));
    let is_whole = frame.is_hollow() && frame.file_bytes() == Order::MAX.bytes();
    let is_used = || mirror.shown.unaccessed(&[(pages.clone(), pages.clone())]) == 0;
    let waits = || core.mapped.pieces.lock().has(&Piece::of(id, pages.start));
    if !is_whole || !around::is_room(core) || waits() || !is_used() {
        return;
    }
    let Some(_copy) = Spare::at_once(core, Order::MAX) else { return };
    // With the reference, so that it is split before or never.
    if !frame.set_flags(Flags::HUGE).contains(Flags::HUGE) {
        mirror.make_huge(pages.start);
    }
}

/// Step 3, for one of them. `None`: the folio has left the index, or changes.
fn exchange(core: &Core, changing: &mut Changing<'_>, lending: &Lending<'_>) -> Option<Woken> {
    let (old_head, new_head) = (lending.old.head(), lending.new.head);
    let (old, new) = (lending.old.frame(), core.frames.frame(new_head));
    let folio =
        FolioAt { page: lending.page, order: u32::from(lending.new.order.get()), frame: old_head };
    let there = changing.writer(&core.nodes).folio(folio.page);
    if (there != Some(folio) || old.is_changing()) && !mutant::on(Mutant::LendGone) {
        return None;
    }
    let identity = old.identity();
    assert_eq!(identity.order, new.order(), "lent to a folio of another size");
    old.change_begin(); // no thread reads, announces or holds it anew
    new.set_uses_of(old);
    new.set_identity(identity);
    new.set_file_bytes(old.file_bytes());
    let replaced = changing.writer(&core.nodes).replace(folio.page, new_head);
    assert_eq!(replaced, Some(folio), "lent another folio");
    core.residency.replace(&core.frames, old_head, new_head);
    new.change_end();
    // A reader may have taken a reference to it since the index has it, and wait for this.
    let woken = core.waiters.wake_later(new_head.0);
    old.forget_identity();
    Some(woken)
}

impl<'a> Spare<'a> {
    /// One of that order, if there is one at once.
    fn at_once(core: &'a Core, order: Order) -> Option<Self> {
        let (head, got) = lent::lent_at_once(core, order)?;
        Some(Spare { core, head, order: got }).filter(|_| got == order)
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        self.core.give_back(self.head);
    }
}

impl<'a> Lending<'a> {
    /// Claims the place of `old`. `None`: it is taken, or `old` has left the index.
    ///
    /// Whether it has left is asked once the place is claimed. If it has not, no other folio owns
    /// the place, and none will before the claim ends. If it has, the place may be that of the
    /// folio to which it was lent.
    fn of(mirror: &'a Mirror, old: Held<'a>, new: Spare<'a>) -> Option<Self> {
        let page = old.frame().identity().index;
        let claim = mirror.claim(page..page + u64::from(new.order.frames()))?;
        let is_there = !old.frame().is_changing() || mutant::on(Mutant::LendBlindly);
        is_there.then_some(Lending { old, new, page, claim, is_lent: false })
    }
}

/// Adds the folios that follow, as long as they are up to date in the arena, and there is memory at
/// once.
fn lengthen<'a>(handle: &'a Handle, mirror: &'a Mirror, all: &mut Vec<Lending<'a>>) {
    let core = &*handle.core;
    let mut left = PAGES_MAX;
    let mut page = all.last().map_or(0, |last| last.page + u64::from(last.new.order.frames()));
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
        let Some(new) = Spare::at_once(core, identity.order) else { break };
        let Some(next) = Lending::of(mirror, held, new) else { break };
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
            Ok(Err(InUse::NotClean | InUse::Huge)) => {}
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
mod huge_tests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
