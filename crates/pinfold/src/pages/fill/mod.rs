//! A miss: who fills, who waits. `prepare.rs` has steps 1 and 2, `landing.rs` 3 to 5.
//!
//! 1. count the folio as on its way; a thread waits first, if its file has enough on its way. Then
//!    allocate it (count 1, version odd, no mapping): before any lock, as it may have to evict;
//! 2. set the identity; under the mapping's `change` mutex, unless the index has a folio there by
//!    now: insert it (the first reference is the index's), take a reference for the filler;
//! 3. without the mutex, read from the source;
//! 4. under the mutex, unless the folio was dropped meanwhile: make the version even, tell the
//!    policy. On an error instead: leave that for the waiters, remove it from the index, forget the
//!    identity;
//! 5. wake the waiters, give back the filler's reference.
//!
//! A thread that finds the folio between 2 and 4 takes a reference and sleeps. Only one finds the
//! index empty in step 2. The fills of the others end there: they forget the identity and wake the
//! waiters, since a thread with an old hint to this frame may have taken a reference meanwhile.
//! After an error the next reader fills again, and so does each waiter that wants less.

mod ahead;
mod alone;
#[cfg(all(test, not(any(loom, shuttle))))]
mod hung_tests;
mod landing;
mod prepare;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::time::Instant;

use crate::base::counters::Event;
use crate::error::{Cause, Result};
use crate::frames::{Frame, MAPPING_NONE};
use crate::pages::core::{Core, Held};
use crate::pages::handle::Handle;
use crate::pages::pressure::Refused;
use crate::pages::stream::Plan;
#[cfg(feature = "map")]
pub(crate) use ahead::start_around;
#[cfg(all(feature = "serve", not(loom)))]
pub(crate) use ahead::start_first;
pub(crate) use ahead::{end_ahead, give_up, plan, read_further, start_ahead};
pub(crate) use alone::WantedPages;
pub(crate) use landing::{FillBatch, Filling, For};
pub(crate) use prepare::{FOLIOS_MAX, allocate, insert_all, prepare};

/// The folio of `page`, up to date. The reader wants `bytes` bytes from the start of that page on.
#[cold]
#[inline(never)]
pub(crate) fn get(reader: &Handle, page: u64, bytes: usize) -> Result<Held<'_>> {
    let plan = || ahead::plan(reader, page, bytes, &[]);
    get_as(reader, page, &WantedPages::new(page, bytes), plan)
}

/// For a pin, which wants the pages up to `end` and nothing beyond.
#[cold]
#[inline(never)]
pub(crate) fn get_range(reader: &Handle, page: u64, end: u64) -> Result<Held<'_>> {
    get_as(reader, page, &WantedPages::since(page..end, Instant::now()), || Plan::of(end))
}

/// `plan` is called if something has to be read.
fn get_as<'a>(
    reader: &'a Handle,
    page: u64,
    wanted: &WantedPages,
    plan: impl Fn() -> Plan,
) -> Result<Held<'a>> {
    let core = &reader.core;
    core.check_owner()?;
    let (mut alone, mut exactly) = (None, false);
    // Ends: each further turn was undone by an invalidation, lost a race for the page and looks it
    // up under the mutex, or follows a failed read of more than is wanted: one of its own at most.
    loop {
        let got = match find(reader, page, exactly)? {
            Some(held) => arrive(core, held),
            None => demand(reader, page, alone.unwrap_or_else(&plan)),
        };
        match got {
            Ok(Some(held)) => return Ok(held),
            Ok(None) => exactly = true,
            Err(error) => alone = Some(wanted.alone(reader, &error).ok_or(error)?),
        }
    }
}

/// Unless `exactly`, a folio that is just coming may be missed: then step 2 of the fill meets it.
fn find(reader: &Handle, page: u64, exactly: bool) -> Result<Option<Held<'_>>> {
    let Handle { core, mapping, .. } = reader;
    let hint = mapping.index.lookup_hint(page);
    if core.frames.try_frame(hint).is_none() && !exactly {
        return Ok(None);
    }
    if let Some(held) = core.hold_at(mapping, page, hint) {
        return Ok(Some(held));
    }
    // Exact under the mutex, and no folio is frozen there.
    let changing = mapping.change();
    let Some(head) = changing.head(page) else { return Ok(None) };
    let held = core.hold_under_change(head);
    let too_many = || Cause::TooManyReferences { path: mapping.path.clone(), page }.into();
    held.map(Some).ok_or_else(too_many)
}

fn arrive<'a>(core: &Core, held: Held<'a>) -> Result<Option<Held<'a>>> {
    let frame = held.frame();
    if is_on_its_way(frame) {
        core.counters.count(Event::Wait);
        core.waiters.wait(held.head().0, || !is_on_its_way(frame));
    }
    arrived(core, held)
}

pub(crate) fn is_on_its_way(frame: &Frame) -> bool {
    frame.is_changing() && frame.identity().mapping != MAPPING_NONE
}

/// `None`: it was dropped meanwhile.
pub(crate) fn arrived<'a>(core: &Core, held: Held<'a>) -> Result<Option<Held<'a>>> {
    let frame = held.frame();
    if !frame.is_changing() {
        return Ok(Some(held));
    }
    match core.failures.of(held.head(), frame) {
        Some(error) => Err(error),
        None => Ok(None),
    }
}

/// `None`: another thread was faster.
fn demand(reader: &Handle, page: u64, plan: Plan) -> Result<Option<Held<'_>>> {
    let core = &reader.core;
    // Steps 1 and 2.
    let batch = prepare(reader, page, plan.now_end, For::Thread)?;
    let Some(head) = batch.first() else { return Ok(None) };
    core.counters.count(Event::Miss);
    let after = batch.end().unwrap_or(page);
    if plan.ahead_end > after {
        start_ahead(reader, after, plan);
    }
    // Steps 3 to 5, but for the reference, which this reader takes over.
    batch.read(true);
    // Its own error, even if no other thread waited.
    arrive(core, Held::adopt(core, head))
}

/// Reads what is absent from `page` on, up to `end` or the next cached page, if there is memory.
#[cfg(feature = "map")]
#[cold]
#[inline(never)]
pub(crate) fn range_now(reader: &Handle, page: u64, end: u64) {
    if let Ok(batch) = prepare(reader, page, end, For::Nobody)
        && batch.first().is_some()
    {
        reader.core.counters.count(Event::Miss);
        reader.core.counters.add(Event::Readahead, batch.folios() as u64 - 1);
        batch.read(false);
    }
}

pub(crate) enum Begun<'a> {
    /// The folio, up to date or on its way.
    Held(Held<'a>),
    /// There is no memory for it, or enough is on its way already.
    NoMemory,
    /// No worker takes the read at the moment.
    NoWorker,
}

/// [`get`] for a future. `plan` is made by the first call that has to read something.
#[cold]
#[inline(never)]
pub(crate) fn begin<'a>(
    reader: &'a Handle,
    page: u64,
    bytes: usize,
    plan: &mut Option<Plan>,
) -> Result<Begun<'a>> {
    let core = &reader.core;
    core.check_owner()?;
    let mut exactly = false;
    // Ends: as `get_as`.
    loop {
        if let Some(held) = find(reader, page, exactly)? {
            return Ok(Begun::Held(held));
        }
        let plan = *plan.get_or_insert_with(|| ahead::plan(reader, page, bytes, &[]));
        let batch = prepare(reader, page, plan.now_end, For::Future)?;
        let Some(head) = batch.first() else {
            if reader.mapping.index.lookup(page).is_some() {
                exactly = true;
                continue; // another thread was faster
            }
            return Ok(Begun::NoMemory);
        };
        let after = batch.end().unwrap_or(page);
        // The future's own reference, beside that of the filler, which the request gives back.
        core.frames.frame(head).count.get(1);
        let mut requests = vec![batch.request().awaited()];
        let submitted = reader.mapping.backing.try_submit(&mut requests);
        match (requests.pop(), submitted) {
            (None, _) => {}
            // The source panicked: all who wait are told.
            (Some(request), Err(cause)) => request.finish(Err(cause)),
            (Some(request), Ok(())) => {
                request.refuse();
                core.give_back(head);
                return Ok(Begun::NoWorker);
            }
        }
        core.counters.count(Event::Miss);
        let held = Held::adopt(core, head);
        if plan.ahead_end > after {
            start_ahead(reader, after, plan);
        }
        return Ok(Begun::Held(held));
    }
}

/// Why [`begin`] found no memory.
pub(crate) fn why_none(reader: &Handle) -> Refused {
    if reader.core.pressure.shares.is_enough(&reader.mapping.on_its_way) {
        Refused::OwnFile
    } else {
        Refused::NoMemory
    }
}
