//! Lending pages to a file's mirror, where they can be mapped.
//!
//! A folio is read into the arena like any other (`fill`), and moves to the mirror when a mapped
//! access wants one of its pages: [`look`]. From then on the kernel maps its pages by itself. The
//! steps, for the folio and for those that follow it in the file and are in the arena, too:
//! 1. allocate a lent folio for each; claim its place;
//! 2. copy its bytes to the place, under a reference;
//! 3. under the mapping's `change` mutex put the new folios into the index (`freeze/lend.rs`);
//! 4. end the claims; let go of the old folios, which frees their memory once nobody uses them.
//!
//! A folio with a readahead mark is not lent with those before it: so the mapped access that first
//! wants it is seen, and reads further ahead.
//!
//! Called by `space` and `clients`.

use std::sync::Arc;

use crate::around;
use crate::core::{Core, Held};
use crate::error::{ErrorKind, Result};
use crate::fill;
use crate::frame::{Flags, FrameNumber, Order, PAGE_BYTES};
use crate::freeze::{self, InUse};
use crate::handle::Handle;
use crate::index::FolioAt;
use crate::mirror::{Claim, Mirror, Shown};
use crate::mutant::{self, Mutant};
use crate::reclaim::{self, Patience};
use crate::wait;

/// The most pages that are lent for one access, beside those of the wanted folio.
const PAGES_MAX: u32 = 64;

/// How long a thread sleeps at a time while others own the place.
const NAP: std::time::Duration = std::time::Duration::from_millis(1);

/// The smallest budget with maps. Mirrors take memory from the arena by whole runs: with this, the
/// arena has some left when three are lent.
const BUDGET_MIN_BYTES: u64 = 8 << 20;

/// Somebody who maps pages of mirrors: as long as there is one, a run stays lent, once one is.
#[derive(Debug)]
pub(crate) struct Mapper(Arc<Core>);

impl Mapper {
    /// # Errors
    /// [`ErrorKind::SpaceBudget`]: the cache is too small for mirrors.
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self> {
        let budget_bytes = u64::from(core.frames.frames()) * PAGE_BYTES as u64;
        let least_bytes = BUDGET_MIN_BYTES;
        if budget_bytes < least_bytes {
            return Err(ErrorKind::SpaceBudget { budget_bytes, least_bytes }.into());
        }
        core.frames.lent_user_begins();
        Ok(Mapper(core.clone()))
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        // A forked child does not take the allocator's mutex.
        if self.0.owner.is_here() {
            self.0.frames.lent_user_ends();
        }
    }
}

/// What became of a mapped access.
#[derive(Debug)]
pub(crate) enum Look<'a> {
    /// The page is in the mirror, as long as this reference is held.
    There(Held<'a>),
    /// It is not cached, or on its way.
    Absent,
}

/// A folio on its way to the mirror.
struct Lending<'a> {
    old: Held<'a>,
    new: FrameNumber,
    page: u64,
    order: Order,
    claim: Claim<'a>,
}

/// The mirror of the handle's file, as long as the file.
///
/// # Errors
/// The system refuses it.
pub(crate) fn of(handle: &Handle) -> Result<&Mirror> {
    let mirror = handle.mapping.mirror(|| handle.core.uffd())?;
    let grown = mirror.grow(handle.mapping.len_bytes());
    grown.map_err(|cause| handle.mapping.mirror_error(cause))?;
    Ok(mirror)
}

/// Whether `page` can be mapped. A page that is cached in the arena is lent now, if there is memory
/// for it at once, and with `shown` it is mapped there. Reads nothing, evicts nothing, and waits for
/// nobody but a thread that is just lending the page. What was `brought` is kept from eviction for a
/// while (`recent.rs`).
///
/// # Errors
/// The system refuses memory.
///
/// # Safety
/// `shown` is what it says, and stays so meanwhile.
pub(crate) unsafe fn look<'a>(
    handle: &'a Handle,
    page: u64,
    shown: Option<&Shown<'_>>,
    brought: Option<Brought<'a>>,
) -> Result<Look<'a>> {
    handle.core.check_owner()?;
    let (read, mut spare) = brought.map(|it| (it.read, it.spare)).unzip();
    // Ends: each turn but the last lends the folio, or waits for another thread, a few times.
    for _ in 0..NAPS_MAX {
        // Frozen: as if it were absent, where it is waited for.
        let Some(held) = handle.core.hold(&handle.mapping, page) else { break };
        if held.frame().is_changing() {
            break;
        }
        if held.frame().is_mirrored() {
            if read.is_some() {
                held.another().into_iter().for_each(|other| handle.core.keep_recent(other));
            }
            return Ok(Look::There(held));
        }
        let mirror = of(handle)?;
        // SAFETY: the caller's promise.
        match unsafe { lend(handle, mirror, held, spare.take().flatten(), shown) }? {
            Lent::Done => {}
            Lent::NoMemory => break,
            Lent::PlaceTaken => mirror.wait_for_claims(NAP),
        }
    }
    Ok(Look::Absent)
}

/// As [`look`], for a loop that serves other processes: it waits for nobody who lends the page, nor
/// for memory. It evicts if there is none at once, and makes a folio smaller that lent memory has no
/// room for. The caller has no reference to the folio, or it would be dropped instead.
///
/// # Errors
/// The system refuses memory.
pub(crate) fn look_now(handle: &Handle, page: u64) -> Result<Look<'_>> {
    handle.core.check_owner()?;
    let core = &*handle.core;
    // Ends: each turn but the last lends the folio, or makes it smaller.
    for _ in 0..NAPS_MAX {
        let Some(held) = core.hold(&handle.mapping, page) else { break };
        if held.frame().is_changing() {
            break;
        }
        if held.frame().is_mirrored() {
            return Ok(Look::There(held));
        }
        let mirror = of(handle)?;
        let identity = held.frame().identity();
        let place = identity.index..identity.index + u64::from(identity.order.frames());
        if mirror.is_taken(&place) {
            break;
        }
        let mut got = reclaim::allocate_lent(core, identity.order, false)
            .map_err(|why| why.of(&handle.mapping, identity.index))?;
        if got.is_none() {
            got = reclaim::evict_for_lent(core, identity.order);
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

/// As [`look_now`], for a page beside the one that is wanted: it is lent only if there is memory for
/// it at once. One with a readahead mark is not, as for who goes on in order.
pub(crate) fn look_beside(handle: &Handle, page: u64) -> Option<Held<'_>> {
    let look = || {
        let held = handle.core.hold(&handle.mapping, page)?;
        (!held.frame().is_changing()).then_some(held)
    };
    let held = look()?;
    if held.frame().is_mirrored() {
        return Some(held);
    }
    if held.frame().flags().contains(Flags::READAHEAD) {
        return None;
    }
    // SAFETY: nothing is shown.
    unsafe { lend(handle, of(handle).ok()?, held, None, None) }.ok()?;
    look().filter(|held| held.frame().is_mirrored())
}

/// How often [`look`] looks.
const NAPS_MAX: u32 = 6;

/// A page that was read, with memory of its mirror for it.
#[derive(Debug)]
pub(crate) struct Brought<'a> {
    read: Held<'a>,
    spare: Option<Spare<'a>>,
}

/// A lent folio that is not used yet, given back when it is dropped.
#[derive(Debug)]
struct Spare<'a> {
    core: &'a Core,
    head: FrameNumber,
    order: Order,
}

/// Reads `page`, or waits for who reads it, and then for memory and for the page's place: what
/// [`look`] needs.
///
/// # Errors
/// As [`File::get`](crate::File::get); there is no memory for it, or another folio keeps its place
/// for too long.
pub(crate) fn bring(handle: &Handle, page: u64) -> Result<Brought<'_>> {
    let (mut again, mut patience) = (false, None);
    // Ends: each turn follows a drop of the folio that the one before has read, or made it smaller.
    // Its own drop is the first alone: no lent memory is too much in pieces for a folio of one page.
    loop {
        handle.check_page(page)?;
        if !again {
            around::read(handle, page);
        }
        let read = if again && !mutant::on(Mutant::BringLargeAgain) {
            fill::get_range(handle, page, page + 1)?
        } else {
            fill::get(handle, page, PAGE_BYTES)?
        };
        again = true;
        if let Some(brought) = ready(handle, read, &mut patience)? {
            return Ok(brought);
        }
    }
}

/// Finds memory for a folio that was read, and waits for its place. `None`: it has left the index,
/// or was made smaller.
fn ready<'a>(
    handle: &'a Handle,
    read: Held<'a>,
    patience: &mut Option<Patience>,
) -> Result<Option<Brought<'a>>> {
    let (core, mapping) = (&*handle.core, &*handle.mapping);
    let identity = read.frame().identity();
    let mut naps = 0;
    // Ends: patience bounds it.
    while !read.frame().is_changing() {
        if read.frame().is_mirrored() {
            return Ok(Some(Brought { read, spare: None }));
        }
        let mirror = of(handle)?;
        let place = identity.index..identity.index + u64::from(identity.order.frames());
        if !mirror.is_taken(&place) {
            let got = reclaim::allocate_lent(core, identity.order, true)
                .map_err(|why| why.of(mapping, identity.index))?;
            let Some((new, order)) = got else { return Ok(None) };
            let spare = Spare { core, head: new, order };
            if order == identity.order {
                return Ok(Some(Brought { read, spare: Some(spare) }));
            }
            drop(spare);
            make_smaller(handle, read, order, true)?;
            return Ok(None);
        }
        naps += 1;
        if naps > NAPS_MAX && identity.order > Order::MIN {
            // The place of another of its pages is taken, perhaps for long.
            make_smaller(handle, read, Order::MIN, true)?;
            return Ok(None);
        }
        if patience.get_or_insert_with(|| Patience::new(core)).is_over(core) {
            let why = "an older version of the page is still in use there";
            return Err(mapping.mirror_error(std::io::Error::other(why)));
        }
        mirror.wait_for_claims(NAP);
    }
    Ok(None)
}

/// Puts `page` into the mirror, for which it is read or waited for if it is not cached. It is there
/// as long as the reference that this returns.
///
/// # Errors
/// As [`bring`].
pub(crate) fn put(handle: &Handle, page: u64) -> Result<Held<'_>> {
    let mut brought = None;
    // Ends: as in [`bring`].
    loop {
        // SAFETY: nothing is shown.
        if let Look::There(held) = unsafe { look(handle, page, None, brought.take()) }? {
            return Ok(held);
        }
        brought = Some(bring(handle, page)?);
    }
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
    if wanted.frame().flags().contains(Flags::READAHEAD) {
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
    if !handle.stream.is_random() {
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
    let mut woken = crate::wait::Woken::default();
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
            if n < copied { freeze::lend(core, &mut changing, folio, lending.new) } else { None };
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
        Some(cause) if copied == 0 => Err(mapping.mirror_error(cause)),
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
    let (new, got) = reclaim::allocate_lent(core, order, false).ok()??;
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
            && !frame.is_mirrored()
            && !frame.flags().contains(Flags::READAHEAD)
            && identity.index == page
            && pages <= left;
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

/// Makes a folio that no lent frames fit as small as `order`; drops it if it is in use, so that its
/// page is read anew. If `needed` is false, it is also dropped if there is no memory at once for what
/// the index needs: otherwise that is waited for.
fn make_smaller(handle: &Handle, held: Held<'_>, order: Order, needed: bool) -> Result<()> {
    let (core, mapping) = (&*handle.core, &*handle.mapping);
    let (head, identity) = (held.head(), held.frame().identity());
    drop(held);
    let pages = identity.index..identity.index + u64::from(identity.order.frames());
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
            Ok(Err(InUse::Dirty)) => {}
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
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::source::Memory;
    use crate::{Cache, File, Hint, Options};

    const MIB: usize = 1 << 20;

    fn bytes_of(page: u64) -> u8 {
        (page * 7 + 1) as u8
    }

    fn file(budget: usize, bytes: usize) -> (Cache, File) {
        let cache = Cache::new(Options::new(budget as u64)).unwrap();
        let content = (0..bytes).map(|at| bytes_of((at / PAGE_BYTES) as u64)).collect();
        let file = cache.attach("file", Arc::new(Memory::new(content))).unwrap();
        (cache, file)
    }

    /// A mapped access to `page`, without the mapping.
    fn access(file: &File, page: u64) -> u8 {
        let handle = file.handle();
        let mut brought = None;
        loop {
            // SAFETY: nothing is shown.
            match unsafe { look(handle, page, None, brought.take()) }.unwrap() {
                Look::There(held) => {
                    let mirror = handle.mapping.mirror_of_folios();
                    // SAFETY: the reference keeps the page.
                    let byte = unsafe { mirror.address(page).read() };
                    drop(held);
                    return byte;
                }
                Look::Absent => brought = Some(bring(handle, page).unwrap()),
            }
        }
    }

    /// Bytes of the mirror's memory.
    fn mirrored_bytes(file: &File) -> u64 {
        let mirror = file.handle().mapping.mirror_of_folios();
        rustix::fs::fstat(mirror.fd()).unwrap().st_blocks.cast_unsigned() * 512
    }

    #[test]
    fn pages_have_their_bytes_and_the_budget_holds() {
        let (cache, file) = file(16 * MIB, 64 * MIB);
        for step in [1, 7, 61] {
            for page in (0..64 * MIB as u64 / 4096).step_by(step) {
                assert_eq!(access(&file, page), bytes_of(page), "page {page}, step {step}");
            }
            let stats = cache.stats();
            assert!(
                stats.resident_bytes + stats.metadata_bytes + stats.free_bytes <= 16 * MIB as u64
            );
            let mirrored = mirrored_bytes(&file);
            let lent = file.handle().core.frames.lent_runs().count() * 2 * MIB;
            assert!(mirrored <= lent as u64, "{mirrored} bytes in runs of {lent}");
            assert!(mirrored > 8 * MIB as u64, "it uses the cache: {mirrored}");
        }
    }

    #[test]
    fn every_way_in_reads_what_is_mirrored() {
        let (cache, file) = file(16 * MIB, 4 * MIB);
        file.advise(0..1, Hint::Random).unwrap();
        for page in 0..20 {
            assert_eq!(access(&file, page), bytes_of(page));
        }
        let reader = cache.reader().unwrap();
        let mut buf = [0; 100];
        for page in 0..20 {
            assert_eq!(file.read_at(&mut buf, page * 4096 + 50).unwrap(), 100);
            assert_eq!(buf, [bytes_of(page); 100]);
            assert_eq!(file.get(page).unwrap()[..], [bytes_of(page); 4096]);
            assert_eq!(file.borrow(page, &reader).unwrap()[..], [bytes_of(page); 4096]);
        }
        let handle = file.handle();
        let mirrored =
            |page| handle.core.hold(&handle.mapping, page).unwrap().frame().is_mirrored();
        assert!((0..20).all(mirrored));
        let pinned = file.pin(0..10 * 4096).unwrap();
        assert!(!(0..10).any(mirrored), "a pin has it moved to the arena");
        assert_eq!(mirrored_bytes(&file), 10 * 4096);
        let mut all = vec![0; 10 * 4096];
        pinned.copy_to(&mut all, 0).unwrap();
        assert!(all.chunks(4096).zip(0..).all(|(page, n)| page[9] == bytes_of(n)));
        // The map wants them again, while they are pinned.
        assert_eq!(access(&file, 3), bytes_of(3));
        assert!(mirrored(3));
        drop(pinned);
    }

    #[test]
    fn a_guard_keeps_the_bytes_of_a_page_that_is_dropped_and_read_anew() {
        let (_cache, file) = file(16 * MIB, 4 * MIB);
        file.advise(0..1, Hint::Random).unwrap();
        assert_eq!(access(&file, 5), bytes_of(5));
        let guard = file.get(5).unwrap();
        file.invalidate(0..4 * MIB as u64).unwrap();
        assert!(!guard.is_current());
        assert_eq!(mirrored_bytes(&file), 4096, "the guard's");
        assert_eq!(guard[7], bytes_of(5));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| access(&file, 5));
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert_eq!(guard[7], bytes_of(5));
            drop(guard);
            assert_eq!(waits.join().unwrap(), bytes_of(5));
        });
    }

    /// A guard of a mirrored page that has left its file: the page's bytes go with it, not before.
    fn leave_with_a_guard() -> (u64, u64) {
        let (_cache, file) = file(16 * MIB, 4 * MIB);
        file.advise(0..1, Hint::Random).unwrap();
        assert_eq!(access(&file, 5), bytes_of(5));
        let guard = file.get(5).unwrap();
        file.invalidate(0..4 * MIB as u64).unwrap();
        let while_held = mirrored_bytes(&file);
        drop(guard);
        (while_held, mirrored_bytes(&file))
    }

    #[test]
    fn a_page_that_left_its_file_goes_with_its_last_user() {
        assert_eq!(leave_with_a_guard(), (4096, 0));
        let caught = mutant::with(Some(Mutant::LeftoverForgotten), leave_with_a_guard);
        assert_ne!(caught.1, 0, "nobody owns the place");
    }

    /// Bytes that the mirror has of a file of which all was evicted.
    fn evict_all() -> u64 {
        let (_cache, file) = file(16 * MIB, 4 * MIB);
        for page in 0..100 {
            assert_eq!(access(&file, page), bytes_of(page));
        }
        assert!(mirrored_bytes(&file) >= 100 * 4096);
        // All, also what was brought last.
        file.handle().core.let_go_of_recent(|_| true);
        // Each sweep ends the uses of a folio by one.
        for _ in 0..8 {
            reclaim::evict(&file.handle().core, 4096, 100_000);
        }
        mirrored_bytes(&file)
    }

    #[test]
    fn what_is_evicted_leaves_the_mirror() {
        assert_eq!(evict_all(), 0);
        assert_ne!(mutant::with(Some(Mutant::EvictKeepsPages), evict_all), 0);
    }

    /// A thread that comes with a folio which another has lent meanwhile: whether it may write.
    fn come_late() -> bool {
        let (_cache, file) = file(16 * MIB, 4 * MIB);
        file.advise(0..1, Hint::Random).unwrap();
        file.read_at(&mut [0], 5 * 4096).unwrap();
        let handle = file.handle();
        let late = handle.core.hold(&handle.mapping, 5).expect("it was read");
        assert!(!late.frame().is_mirrored());
        assert_eq!(access(&file, 5), bytes_of(5));
        let (new, _) = reclaim::allocate_lent(&handle.core, Order::MIN, true).unwrap().unwrap();
        let mirror = of(handle).unwrap();
        match Lending::of(&handle.core, mirror, late, new) {
            Some(lending) => {
                handle.core.give_back(lending.new);
                true
            }
            None => false,
        }
    }

    #[test]
    fn who_comes_late_to_lend_a_folio_leaves_its_place_alone() {
        assert!(!come_late());
        assert!(mutant::with(Some(Mutant::LendBlindly), come_late));
    }

    #[test]
    fn a_cache_that_is_too_small_for_maps_is_told_the_least() {
        let (_cache, file) = file(4 * MIB, MIB);
        let error = Mapper::new(&file.handle().core).unwrap_err();
        let text = "cannot make a space for mapped files: the cache has a budget of 4194304 bytes, \
                    and needs 8388608";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_large_folio_waits_for_no_guard_of_another_of_its_pages() {
        let (_cache, file) = file(16 * MIB, 4 * MIB);
        file.advise(0..1, Hint::Random).unwrap();
        assert_eq!(access(&file, 5), bytes_of(5));
        let guard = file.get(5).unwrap();
        file.invalidate(0..4 * MIB as u64).unwrap();
        let mut all = vec![0; MIB];
        file.read_at(&mut all, 0).unwrap();
        let handle = file.handle();
        let around = handle.core.hold(&handle.mapping, 4).expect("it was read");
        assert!(around.frame().order() > Order::MIN);
        drop(around);
        assert_eq!(access(&file, 4), bytes_of(4));
        assert_eq!(access(&file, 6), bytes_of(6));
        assert_eq!(guard[0], bytes_of(5));
        drop(guard);
        assert_eq!(access(&file, 5), bytes_of(5));
    }

    #[test]
    fn the_arena_and_mirrors_take_memory_from_each_other() {
        let (cache, file) = file(16 * MIB, 64 * MIB);
        let mut buf = vec![0; MIB];
        for round in 0..3 {
            // More than once, as what is read once does not displace what was used before.
            for at in (0..12).cycle().take(100) {
                assert_eq!(file.read_at(&mut buf, at * MIB as u64).unwrap(), MIB);
            }
            let runs = file.handle().core.frames.lent_runs().count();
            assert!(runs <= 2, "round {round}: {runs} runs are still lent");
            for page in (16 * MIB..28 * MIB).step_by(4096).cycle().take(30_000) {
                let page = (page / 4096) as u64;
                assert_eq!(access(&file, page), bytes_of(page));
            }
            let runs = file.handle().core.frames.lent_runs().count();
            assert!(runs >= 5, "round {round}: {runs} runs are lent");
        }
        assert_eq!(cache.stats().dirty_bytes, 0);
    }

    #[test]
    fn many_threads_want_pages_by_all_ways() {
        let (_cache, file) = file(8 * MIB, 32 * MIB);
        let file = &file;
        std::thread::scope(|scope| {
            for seed in 0..6 {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    let mut buf = [0; 64];
                    for n in 0..4000 {
                        let page = random.u64(0..32 * MIB as u64 / 4096);
                        match random.u8(0..10) {
                            0 => {
                                file.read_at(&mut buf, page * 4096).unwrap();
                                assert_eq!(buf, [bytes_of(page); 64]);
                            }
                            1 => assert_eq!(file.get(page).unwrap()[99], bytes_of(page)),
                            2 if n % 64 == 0 => {
                                let _ = file.invalidate(page * 4096..page * 4096 + 65_536).unwrap();
                            }
                            _ => assert_eq!(access(file, page), bytes_of(page)),
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_place_that_is_kept_for_too_long_is_an_error_that_says_so() {
        let mut options = Options::new(16 * MIB as u64);
        options.patience = std::time::Duration::from_millis(20);
        let cache = Cache::new(options).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; MIB]))).unwrap();
        assert_eq!(access(&file, 5), 7);
        let guard = file.get(5).unwrap();
        file.invalidate(0..MIB as u64).unwrap();
        let error = bring(file.handle(), 5).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no memory for mapped pages of file: an older version of the page is still in use there"
        );
        drop(guard);
        assert_eq!(access(&file, 5), 7);
    }

    /// Whether a place is still claimed when a future is woken that waited for its folio.
    fn is_claimed_when_woken() -> bool {
        struct Look(File, std::sync::Mutex<Option<bool>>);
        impl std::task::Wake for Look {
            fn wake(self: Arc<Self>) {
                let is_taken = self.0.handle().mapping.mirror_of_folios().is_taken(&(5..6));
                *self.1.lock().unwrap() = Some(is_taken);
            }
        }
        let (_cache, file) = file(16 * MIB, 4 * MIB);
        file.advise(0..1, Hint::Random).unwrap();
        file.read_at(&mut [0], 5 * 4096).unwrap();
        let (handle, core) = (file.handle(), &*file.handle().core);
        let (head, order) = reclaim::allocate_lent(core, Order::MIN, true).unwrap().unwrap();
        let look = Arc::new(Look(file.clone(), None.into()));
        let waker = std::task::Waker::from(look.clone());
        assert!(!core.waiters.poll(head.0, wait::Ticket::new(), &waker, || false));
        let held = core.hold(&handle.mapping, 5).expect("it was read");
        let spare = Some(Spare { core, head, order });
        // SAFETY: nothing is shown.
        let lent = unsafe { lend(handle, of(handle).unwrap(), held, spare, None) };
        assert_eq!(lent.unwrap(), Lent::Done);
        let seen = look.1.lock().unwrap().take();
        seen.expect("it was woken")
    }

    #[test]
    fn futures_are_woken_when_no_place_is_claimed_any_more() {
        assert!(!is_claimed_when_woken());
        assert!(mutant::with(Some(Mutant::LendWakesEarly), is_claimed_when_woken));
    }

    /// Pages that are accessed in lent memory that is in pieces.
    const PIECES: u64 = 40;

    /// Sevens that can be read so many times: who reads without end gets an error.
    #[derive(Debug)]
    struct Bounded {
        left: AtomicU64,
        bytes: u64,
    }

    impl crate::source::Source for Bounded {
        fn read_at(&self, _: u64, buf: &mut [u8]) -> std::io::Result<usize> {
            let less = |left: u64| left.checked_sub(1);
            let order = std::sync::atomic::Ordering::Relaxed;
            let left = self.left.fetch_update(order, order, less);
            left.map_err(|_| std::io::Error::other("read too often"))?;
            buf.fill(7);
            Ok(buf.len())
        }
        fn len_bytes(&self) -> std::io::Result<u64> {
            Ok(self.bytes)
        }
        fn kind(&self) -> std::borrow::Cow<'static, str> {
            "bounded".into()
        }
    }

    /// Lent memory in pieces of one page, whose other pages stay in use, and large folios to lend:
    /// they are not read for ever.
    fn access_in_pieces() -> crate::Result<()> {
        let cache = Cache::new(Options::new(16 * MIB as u64)).unwrap();
        // Each page is read in vain once at most, and with those around it.
        let left = AtomicU64::new(20 * PIECES);
        let file = cache.attach("file", Arc::new(Bounded { left, bytes: 64 << 20 })).unwrap();
        file.advise(0..1, Hint::Sequential).unwrap();
        let core = &file.handle().core;
        // Ends: there is so much memory.
        while core.frames.lend_run() {}
        let mut used = Vec::new();
        while let Some((head, _)) = core.frames.alloc_lent(Order::MIN) {
            used.push(head);
        }
        for head in used.into_iter().filter(|head| head.0 % 2 == 0).take(200) {
            core.give_back(head);
        }
        assert_eq!(core.frames.free_lent(), 200);
        for page in 0..PIECES {
            drop(put(file.handle(), page)?);
        }
        Ok(())
    }

    /// Whether it becomes true while the reclaiming thread ends what it is at.
    fn soon(mut is_true: impl FnMut() -> bool) -> bool {
        let since = std::time::Instant::now();
        // Ends: after so long at most.
        loop {
            if is_true() {
                return true;
            }
            if since.elapsed() > std::time::Duration::from_secs(10) {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// A cache that was full of pages each of which had an index node of its own, and some of which
    /// were pinned, and has none of them any more.
    fn emptied(pinned: u64) -> (Cache, File) {
        const APART: u64 = 64;
        let mut options = Options::new(8 * MIB as u64);
        options.patience = std::time::Duration::from_millis(300);
        let cache = Cache::new(options).unwrap();
        let (left, bytes) = (AtomicU64::new(u64::MAX), 8 << 30);
        let file = cache.attach("file", Arc::new(Bounded { left, bytes })).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        let mut pins = Vec::new();
        for n in 0..6000 {
            let at = n * APART * PAGE_BYTES as u64;
            if n % 8 == 0 && (pins.len() as u64) < pinned {
                pins.push(file.pin(at..at + 1).unwrap());
            } else {
                assert_eq!(file.read_at(&mut [0], at).unwrap(), 1);
            }
        }
        drop(pins);
        file.invalidate(0..bytes).unwrap();
        (cache, file)
    }

    #[test]
    fn index_nodes_keep_no_run_from_being_lent() {
        for pinned in [0, 10, 300] {
            let (_cache, file) = emptied(pinned);
            let core = &file.handle().core;
            for page in 0..2000 {
                drop(put(file.handle(), page).unwrap());
            }
            file.invalidate(0..file.len()).unwrap();
            core.let_go_of_recent(|_| true);
            let all_are_lent = || {
                let _ = reclaim::compact(core) && core.frames.lend_run();
                core.frames.lent_runs().count() == core.frames.whole_runs().count()
            };
            assert!(soon(all_are_lent), "{pinned} pages were pinned");
        }
    }

    #[test]
    fn runs_whose_pins_have_ended_can_be_lent() {
        let (_cache, file) = file(8 * MIB, 8 * MIB);
        let (core, page) = (&file.handle().core, PAGE_BYTES as u64);
        file.advise(0..1, Hint::Random).unwrap();
        let pin = |n: u64| file.pin(n * page..(n + 1) * page).unwrap();
        let pinned: Vec<_> = (0..1000).map(pin).collect();
        let claimed = core.frames.whole_runs().filter(|&run| !core.frames.is_movable(run)).count();
        assert!(claimed > 0, "pins need no run");
        drop(pinned);
        for first in (0..2048).step_by(50) {
            file.invalidate((first + 1) * page..(first + 50) * page).unwrap();
        }
        let all_are_lent = || {
            let _ = reclaim::compact(core) && core.frames.lend_run();
            core.frames.lent_runs().count() == core.frames.whole_runs().count()
        };
        assert!(soon(all_are_lent));
        assert!(
            (0..1000).step_by(50).all(|page| core.hold(&file.handle().mapping, page).is_some())
        );
    }

    #[test]
    fn a_run_stays_lent_while_there_are_maps() {
        let mut options = Options::new(8 * MIB as u64);
        options.patience = std::time::Duration::from_millis(300);
        let cache = Cache::new(options).unwrap();
        let content: Vec<u8> = (0..16 * MIB).map(|at| bytes_of((at / PAGE_BYTES) as u64)).collect();
        let file = cache.attach("file", Arc::new(Memory::new(content))).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        let mapper = Mapper::new(cache.core()).unwrap();
        assert_eq!(access(&file, 0), bytes_of(0));
        cache.core().let_go_of_recent(|_| true);
        // Reads want all memory, and guards lie wherever the arena has any.
        for page in (0..16 * MIB as u64 / 4096).cycle().take(20_000) {
            file.read_at(&mut [0], page * 4096).unwrap();
        }
        let guards: Vec<_> = (0..1000).step_by(9).map(|page| file.get(page).unwrap()).collect();
        for page in 2000..3000 {
            assert_eq!(access(&file, page), bytes_of(page));
        }
        drop(guards);
        file.invalidate(0..file.len()).unwrap();
        let lent = || cache.core().frames.lent_runs().count();
        assert!(soon(|| lent() == 1));
        drop(mapper);
        assert!(soon(|| lent() == 0));
        assert_eq!(cache.core().frames.free_lent(), 0);
    }

    #[test]
    fn a_page_gets_into_lent_memory_that_has_no_large_block() {
        access_in_pieces().unwrap();
        let caught = mutant::with(Some(Mutant::BringLargeAgain), access_in_pieces);
        let error = caught.expect_err("the mutant does nothing");
        assert!(error.to_string().contains("read too often"), "{error}");
    }

    /// What a loop finds that looks for a page whose folio is too large for what is lent, where the
    /// index has no nodes for smaller ones, and no memory for nodes.
    fn look_without_nodes() -> Result<bool> {
        let mut options = Options::new(64 * MIB as u64);
        options.patience = std::time::Duration::from_millis(20);
        let cache = Cache::new(options).unwrap();
        let attach =
            |name, bytes: usize| cache.attach(name, Arc::new(Memory::new(vec![7; bytes]))).unwrap();
        let (file, other) = (attach("file", 2 * MIB), attach("other", 8 * MIB));
        let (handle, core) = (file.handle(), &*file.handle().core);
        file.read_at(&mut vec![0; MIB], 0).unwrap();
        let large = core.hold(&handle.mapping, 0).expect("it was read");
        assert_eq!(large.frame().order().bytes(), MIB);
        of(handle)?;
        // To be split, it needs a node for each 64 pages.
        let nodes = |core: &Core| core.nodes.stats().nodes - core.nodes.stats().nodes_in_use;
        let mut held = Vec::new();
        let mut page = 0;
        while nodes(core) >= 4 {
            other.read_at(&mut [0], page * 4096).unwrap();
            held.push(core.hold(&other.handle().mapping, page).expect("it was read"));
            page += 64;
        }
        // All memory is used but one lent frame.
        while core.frames.lend_run() {}
        let mut used = Vec::new();
        while let Some((head, _)) = core.frames.alloc_lent(Order::MIN) {
            used.push(head);
        }
        while let Some(head) = core.frames.alloc(Order::MIN) {
            used.push(head);
        }
        core.give_back(used[0]);
        let there = matches!(look_now(handle, 0)?, Look::There(_));
        for head in used.drain(1..) {
            core.give_back(head);
        }
        Ok(there)
    }

    #[test]
    fn a_loop_that_looks_for_a_page_does_not_wait_for_memory() {
        assert!(!look_without_nodes().unwrap());
        let caught = mutant::with(Some(Mutant::LookWaits), look_without_nodes);
        assert!(caught.is_err(), "the mutant does nothing");
    }
}
