//! Bringing a page that a mapped access wants: it is read, or waited for, and then memory of its
//! mirror is waited for, and its place there. All of this without a lock; the access then looks for
//! the page again ([`lend`](crate::map::lend)).

use std::time::Instant;

use crate::access::futures;
use crate::base::mutant::{self, Mutant};
use crate::error::{Error, Result};
use crate::frames::{Order, PAGE_BYTES};
use crate::map::around;
use crate::map::lend::{
    Brought, Look, NAP, NAPS_MAX, PUT, Spare, look, make_smaller, place_of, with_room_for,
};
use crate::map::lent::{self, LentPatience};
use crate::mapped::load::{Bringing, LOOK_AGAIN};
use crate::mapped::task::Waiter;
use crate::pages::core::{Core, Held};
use crate::pages::fill;
use crate::pages::handle::Handle;
use crate::pages::mapping::Mapping;
use crate::pages::reclaim::Shortage;
use crate::pages::stream::Plan;
use crate::source;

/// The pages that an access brings, if nothing says that they are used at random: about what is
/// read with the wanted one.
const WINDOW_PAGES: u32 = 32;

/// Reads `page`, or waits for who reads it, and then for memory and for the page's place, unless
/// maps show an older version there: what [`look`] needs.
/// Error: as [`File::get`](crate::File::get); there is no memory for it, or another folio, without
/// that page, keeps its place for too long.
pub(crate) async fn bring<'a>(
    handle: &'a Handle,
    page: u64,
    waiter: Waiter<'_>,
) -> Result<Brought<'a>> {
    let (mut again, mut waits) = (false, AccessWaits::default());
    let pages = if handle.stream.is_random() { 1 } else { WINDOW_PAGES };
    let bringing = bringing(&handle.core, pages, waiter).await;
    // Ends: each iteration but the first follows one whose folio was split or dropped. `ready`
    // splits it at most once: hollow frames are never too scattered for a folio of one page.
    // `ready` drops it only to wait for hollow frames, which patience bounds. Otherwise another
    // thread has dropped it.
    loop {
        handle.check_page(page)?;
        let alone = again && !mutant::on(Mutant::BringLargeAgain);
        let read = match waiter {
            Waiter::Thread if alone => fill::get_range(handle, page, page + 1)?,
            Waiter::Thread => {
                if !again {
                    around::read(handle, page);
                }
                fill::get(handle, page, PAGE_BYTES)?
            }
            Waiter::Task(_) => {
                if !again {
                    around::begin(handle, page, around::block_of(handle, page));
                }
                let plan = alone.then(|| Plan::of(page + 1));
                futures::bring(handle, page, PAGE_BYTES, plan).await?
            }
        };
        again = true;
        if let Some((read, spare)) = ready(handle, page, read, &mut waits, waiter).await? {
            return Ok(Brought { read, spare, bringing });
        }
    }
}

/// Waits until so many pages may be brought. A thread in a source's call does not: others may wait
/// for what it reads.
pub(crate) async fn bringing<'a>(
    core: &'a Core,
    pages: u32,
    waiter: Waiter<'_>,
) -> Option<Bringing<'a>> {
    match waiter {
        Waiter::Thread if source::in_a_source() => None,
        Waiter::Thread => Some(core.mapped.load.begin(pages)),
        Waiter::Task(rests) => {
            let turn = core.mapped.load.queue(pages);
            Some(rests.poll_each(LOOK_AGAIN, turn).await)
        }
    }
}

/// What an access waits for, beside the read.
#[derive(Default)]
pub(super) struct AccessWaits {
    /// For hollow frames.
    memory: Option<LentPatience>,
    /// Since when, for the place. No read makes it longer: a guard keeps the place, or a step that
    /// reads nothing.
    place: Option<Instant>,
}

/// Finds memory for a folio that was read, and waits for its place. `None`: it has left the index,
/// or was made smaller; or too many threads wait with folios, and this one has waited without.
pub(super) async fn ready<'a>(
    handle: &'a Handle,
    page: u64,
    read: Held<'a>,
    waits: &mut AccessWaits,
    waiter: Waiter<'_>,
) -> Result<Option<(Held<'a>, Option<Spare<'a>>)>> {
    let (core, mapping) = (&*handle.core, &*handle.mapping);
    let identity = read.frame().identity();
    let wish = identity.order;
    let shortage = |why: Shortage| why.of(mapping, identity.index);
    let blocks = matches!(waiter, Waiter::Thread);
    let mut naps = 0;
    // Ends: there is a bound for the place, and memory is found or waited for without the folio.
    while !read.frame().is_changing() {
        if read.frame().is_hollow() {
            return Ok(Some((read, None)));
        }
        let mirror = with_room_for(handle, &read)?;
        let place = place_of(&read);
        if !mirror.is_taken(&place) {
            waits.place = None;
            let got = match (lent::lent_at_once(core, wish), waiter) {
                (None, Waiter::Thread) => match core.mapped.may_wait_with(wish.frames()) {
                    Some(_waits) => Some(lent::allocate_lent(core, wish).map_err(shortage)?),
                    None => None,
                },
                (None, Waiter::Task(rests)) => lent::evict_for_task(core, wish, rests),
                (got, _) => got,
            };
            let Some((head, order)) = got else {
                drop(read);
                let patience = waits.memory.get_or_insert_with(|| LentPatience::new(core));
                let waited = lent::wait_for_lent(core, wish, patience, waiter);
                waited.await.map_err(shortage)?;
                return Ok(None);
            };
            let spare = Spare { core, head, order };
            if order == wish {
                return Ok(Some((read, Some(spare))));
            }
            drop(spare);
            make_smaller(handle, read, order, blocks)?;
            return Ok(None);
        }
        if mirror.shows_left_over(page) {
            return Ok(Some((read, None)));
        }
        naps += 1;
        if naps > NAPS_MAX && wish > Order::MIN {
            // The place of another of its pages is taken, perhaps for long.
            make_smaller(handle, read, Order::MIN, blocks)?;
            return Ok(None);
        }
        let since = waits.place.get_or_insert_with(Instant::now);
        if since.elapsed() > core.options.patience() {
            return Err(older_version(mapping));
        }
        match waiter {
            Waiter::Thread => mirror.wait_for_place(&place, NAP),
            Waiter::Task(rests) => rests.rest(NAP).await,
        }
    }
    Ok(None)
}

/// The error that somebody keeps an older version of a page for too long.
pub(crate) fn older_version(mapping: &Mapping) -> Error {
    let why = "an older version of the page is still in use there";
    let late = std::io::Error::new(std::io::ErrorKind::TimedOut, why);
    mapping.mirror_of_folios().refused(PUT, late)
}

/// Puts `page` into the mirror, for which it is read or waited for if it is not cached. It is there
/// as long as the reference that this returns. `None`: an older version is there, which somebody
/// uses.
/// Error: as [`bring`].
pub(crate) async fn put<'a>(
    handle: &'a Handle,
    page: u64,
    waiter: Waiter<'_>,
) -> Result<Option<Held<'a>>> {
    let mut brought = None;
    // Ends: as in [`bring`].
    loop {
        // SAFETY: nothing is shown.
        let looked = unsafe { look(handle, page, None, brought.take(), waiter) };
        match looked? {
            Look::There(held) => return Ok(Some(held)),
            Look::LeftOver => return Ok(None),
            Look::Absent => brought = Some(bring(handle, page, waiter).await?),
        }
    }
}
