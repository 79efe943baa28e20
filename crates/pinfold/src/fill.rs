//! A miss: which thread fills, which threads wait.
//!
//! Gets a folio that is up to date, from the index or the source, and reads ahead. `stream` decides
//! how far to read ahead, `source` reads, `reclaim` evicts. Called by the ways in.
//!
//! # A fill, step by step
//!
//! 1. allocate a folio (count 1, version odd, no mapping): before any lock, as it may have to
//!    evict;
//! 2. under the mapping's `change` mutex, unless the index has a folio there by now: set the
//!    identity, insert the folio into the index (which has the first reference), take one more
//!    reference for the filler;
//! 3. without the mutex, read from the source;
//! 4. under the mutex, unless the folio was dropped meanwhile: make the version even, tell the
//!    policy. On an error instead: remove it from the index, leave the error for the waiters,
//!    forget the identity;
//! 5. wake the waiters, give back the filler's reference.
//!
//! A thread that finds the folio between 2 and 4 takes a reference and sleeps. A folio has one
//! filler, because only one thread finds the index empty in step 2. The fills of the others end
//! there: they forget the identity and wake the waiters, since a thread with an old hint to this
//! frame may have taken a reference meanwhile. Errors are not cached: after step 4 the next reader
//! finds nothing and fills again.

use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use pinfold_policy::Shadow;

use crate::core::{Core, Held};
use crate::counters::Event;
use crate::error::{Error, ErrorKind, Result};
use crate::failures::Failed;
use crate::frame::{Flags, Frame, FrameNumber, Identity, MAPPING_NONE, Order, PAGE_SHIFT};
use crate::handle::Handle;
use crate::index::InsertError;
use crate::mapping::{Changing, Mapping};
use crate::mutant::{self, Mutant};
use crate::pressure::Refused;
use crate::reclaim;
use crate::source::{self, Extent, Reading, Request};
use crate::stream::Plan;
use crate::sync::Ordering;
use crate::wait;

/// Who wants what is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// A thread that waits for the first folio, and for its memory.
    Thread,
    /// A future that waits for the first folio. It does not wait here for memory.
    Future,
    /// A batch of a thread or a future that waits for all folios, and for no memory here.
    Batch,
    /// Nobody: it is read ahead.
    Nobody,
}

/// The most folios of one request to the source.
pub(crate) const FOLIOS_MAX: usize = 64;

/// The most requests prepared before they are submitted: until then their memory is of no use to
/// anyone.
const REQUESTS_MAX: usize = 8;

/// A folio being filled: in the index, with a reference of the filler's.
#[derive(Debug)]
pub(crate) struct Filling {
    head: FrameNumber,
    page: u64,
    order: Order,
    shadow: Option<Shadow>,
}

impl Filling {
    fn end(&self) -> u64 {
        self.page + u64::from(self.order.frames())
    }
}

/// Folios being filled that are adjacent in the file and are read at once.
///
/// [`Batch::finish`] completes them. If an early return or a panic skips it, the drop completes
/// them with an error: otherwise their readers would wait for ever.
#[derive(Debug)]
pub(crate) struct Batch<C: Deref<Target = Core>, M: Deref<Target = Mapping>> {
    core: C,
    mapping: M,
    folios: VecDeque<Filling>,
    /// If somebody wants it, an error is left for all waiters. If it is read ahead, an error only
    /// removes the folios, and those that waited read for themselves.
    wanted: For,
    /// Who is told of errors, too.
    failed: Option<Arc<Failed>>,
}

impl<C: Deref<Target = Core>, M: Deref<Target = Mapping>> Batch<C, M> {
    /// The offset in the file at which it begins. The batch must not be empty.
    fn offset(&self) -> u64 {
        self.folios[0].page << PAGE_SHIFT
    }

    /// The memory of its folios, in order.
    fn extents(&self) -> Vec<Extent<'_>> {
        let extent = |filling: &Filling| {
            let address = NonNull::new(self.core.frames.address(filling.head));
            let address = address.expect("the arena is not at 0");
            // SAFETY: only its filler writes to the frames of a folio being filled; they stay
            // mapped as long as the core lives; other threads read them by racing loads
            // (`copy_racing`) only, or under a reference once the version says that the fill is
            // over.
            unsafe { Extent::new(address, filling.order.bytes()) }
        };
        self.folios.iter().map(extent).collect()
    }

    /// Steps 3 to 5, in the calling thread; as [`Self::finish`].
    pub(crate) fn read(self, keep_first: bool) {
        let read = self.mapping.backing.read(self.offset(), &self.extents());
        self.finish(read, keep_first);
    }

    /// The offset and the memory of the read.
    pub(crate) fn reading(&self) -> Reading<'_> {
        (self.offset(), self.extents())
    }

    /// From now on `failed` is told of errors.
    pub(crate) fn tell(&mut self, failed: &Arc<Failed>) {
        self.failed = Some(failed.clone());
    }

    /// How many folios it has.
    pub(crate) fn folios(&self) -> usize {
        self.folios.len()
    }

    /// The page after its last one, unless it is empty.
    pub(crate) fn end(&self) -> Option<u64> {
        self.folios.back().map(Filling::end)
    }

    /// Adds a folio that begins where the last one ends.
    pub(crate) fn push(&mut self, filling: Filling) {
        debug_assert_eq!(self.end(), Some(filling.page));
        self.folios.push_back(filling);
    }

    /// Steps 4 and 5, with the result of the read. With `keep_first`, the caller takes over the
    /// filler's reference of the first folio.
    pub(crate) fn finish(mut self, read: io::Result<usize>, keep_first: bool) {
        self.land_all(read, keep_first);
    }

    /// Futures are woken when all have landed: a waker may want one of the others.
    fn land_all(&mut self, read: io::Result<usize>, keep_first: bool) {
        wait::together(|| self.land_each(read, keep_first));
    }

    fn land_each(&mut self, read: io::Result<usize>, keep_first: bool) {
        let offset = self.offset();
        let asked_bytes: usize = self.folios.iter().map(|filling| filling.order.bytes()).sum();
        // One shared cause for all waiters: an `io::Error` cannot be cloned.
        let read = read.map_err(Arc::new);
        // One that was not even started is tried again by whoever waits.
        let refused = read.as_ref().is_err_and(|cause| source::is_refusal(cause));
        let failed = self.failed.take().filter(|_| !refused);
        let of_all = self.folios[0].page..self.end().expect("it has folios");
        let mut keep = keep_first;
        // Each folio leaves the batch before it lands: if landing panics, the drop lands the
        // others.
        while let Some(filling) = self.folios.pop_front() {
            let at = (filling.page << PAGE_SHIFT) - offset;
            let path = || self.mapping.path.clone();
            let checked = match &read {
                Ok(got) => {
                    let got = got.saturating_sub(at as usize).min(filling.order.bytes());
                    self.mapping
                        .check_read(offset + at, filling.order.bytes(), got)
                        .map_err(|cause| ErrorKind::Truncated { path: path(), cause }.into())
                }
                Err(cause) => Err(ErrorKind::Read {
                    path: path(),
                    offset,
                    asked_bytes: asked_bytes as u64,
                    cause: cause.clone(),
                }
                .into()),
            };
            if let (Err(error), Some(failed)) = (&checked, &failed) {
                let of_one = filling.page..filling.end();
                let pages = if read.is_err() { of_all.clone() } else { of_one };
                failed.remember(pages, Error::clone(error));
            }
            land(&self.core, &self.mapping, &filling, checked, (self.wanted, refused));
            if refused {
                self.core.give_back(filling.head);
            } else if !std::mem::take(&mut keep) {
                self.core.put(filling.head);
            }
        }
    }
}

impl<'a> Batch<&'a Core, &'a Mapping> {
    /// A batch of one folio so far.
    pub(crate) fn of(reader: &'a Handle, filling: Filling, wanted: For) -> Self {
        let (core, mapping) = (&*reader.core, &*reader.mapping);
        Batch { core, mapping, folios: VecDeque::from([filling]), wanted, failed: None }
    }

    /// The same batch with owned handles, which outlives the call.
    fn into_owned(mut self, reader: &Handle) -> Batch<Arc<Core>, Arc<Mapping>> {
        let (core, mapping) = (reader.core.clone(), reader.mapping.clone());
        let folios = std::mem::take(&mut self.folios);
        Batch { core, mapping, folios, wanted: self.wanted, failed: self.failed.take() }
    }
}

impl<C: Deref<Target = Core>, M: Deref<Target = Mapping>> Drop for Batch<C, M> {
    fn drop(&mut self) {
        // After a failure loom's atomics are gone.
        if self.folios.is_empty() || cfg!(loom) && std::thread::panicking() {
            return;
        }
        if !mutant::on(Mutant::BatchForgotten) {
            self.land_all(Err(io::Error::other("the read was given up")), false);
        }
    }
}

/// The folio of `page`, up to date, where it is absent or being filled. The reader wants `bytes`
/// bytes from the start of that page on.
#[cold]
#[inline(never)]
pub(crate) fn get(reader: &Handle, page: u64, bytes: usize) -> Result<Held<'_>> {
    get_as(reader, page, || reader.stream.on_miss(page, bytes, reader.mapping.len_bytes()))
}

/// The same for a pin, which wants the pages up to `end` and nothing beyond, whatever this handle
/// read before.
#[cold]
#[inline(never)]
pub(crate) fn get_range(reader: &Handle, page: u64, end: u64) -> Result<Held<'_>> {
    get_as(reader, page, || Plan::of(end))
}

/// See [`get`]; `plan` is called if something has to be read.
fn get_as(reader: &Handle, page: u64, plan: impl Fn() -> Plan) -> Result<Held<'_>> {
    reader.core.check_owner()?;
    // Ends: each turn that does not return was undone by an invalidation, or found the folio frozen
    // and then waited for the mapping's mutex.
    loop {
        if let Some(held) = find(reader, page)? {
            if let Some(held) = arrive(&reader.core, held)? {
                return Ok(held);
            }
            continue;
        }
        if let Some(held) = demand(reader, page, plan())? {
            return Ok(held);
        }
    }
}

/// The folio of `page`, up to date or not, if there is one.
fn find(reader: &Handle, page: u64) -> Result<Option<Held<'_>>> {
    if let Some(held) = reader.core.hold(&reader.mapping, page) {
        return Ok(Some(held));
    }
    // Exact now: a look-up through a recycled node only misses, and a freezer would hold this
    // mutex.
    let changing = reader.mapping.change();
    let Some(head) = changing.head(page) else { return Ok(None) };
    let held = reader.core.hold_under_change(head);
    let too_many =
        || ErrorKind::TooManyReferences { path: reader.mapping.path.clone(), page }.into();
    held.map(Some).ok_or_else(too_many)
}

/// Waits for a folio that is being filled. `None`: it was dropped meanwhile.
fn arrive<'a>(core: &Core, held: Held<'a>) -> Result<Option<Held<'a>>> {
    let frame = held.frame();
    if is_on_its_way(frame) {
        core.counters.count(Event::Wait);
        core.waiters.wait(held.head().0, || !is_on_its_way(frame));
    }
    arrived(core, held)
}

/// Whether a folio that the caller holds is being filled: what there is to wait for.
pub(crate) fn is_on_its_way(frame: &Frame) -> bool {
    frame.is_changing() && frame.identity().mapping != MAPPING_NONE
}

/// What came of a folio that is not on its way any more. `None`: it was dropped meanwhile.
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

/// Fills the folio of `page` and the rest of the plan; `None` if another thread was faster.
fn demand(reader: &Handle, page: u64, plan: Plan) -> Result<Option<Held<'_>>> {
    let core = &reader.core;
    let batch = prepare(reader, page, plan.now_end, For::Thread)?;
    let Some(head) = batch.folios.front().map(|first| first.head) else { return Ok(None) };
    core.counters.count(Event::Miss);
    let after = batch.folios.back().map_or(page, Filling::end);
    if plan.ahead_end > after {
        start_ahead(reader, after, plan);
    }
    batch.read(true);
    // This reader gets the error of its own fill, even if no other thread waited.
    arrive(core, Held::adopt(core, head))
}

/// What a future gets of a page: see [`begin`].
pub(crate) enum Begun<'a> {
    /// The folio, up to date or on its way.
    Held(Held<'a>),
    /// There is no memory for it, or enough is on its way already.
    NoMemory,
    /// No worker takes the read at the moment.
    NoWorker,
}

/// The same as [`get`] for a future, which waits for nothing here. `plan` stays with the future:
/// it is made by the first call that has to read something.
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
    // Ends: as `get_as`.
    loop {
        if let Some(held) = find(reader, page)? {
            return Ok(Begun::Held(held));
        }
        let plan = *plan
            .get_or_insert_with(|| reader.stream.on_miss(page, bytes, reader.mapping.len_bytes()));
        let batch = prepare(reader, page, plan.now_end, For::Future)?;
        let Some(head) = batch.folios.front().map(|first| first.head) else {
            if reader.mapping.index.lookup(page).is_some() {
                continue; // another thread was faster
            }
            return Ok(Begun::NoMemory);
        };
        let after = batch.folios.back().map_or(page, Filling::end);
        // The future's own reference, beside that of the filler, which the request gives back.
        core.frames.frame(head).count.get(1);
        let mut requests = vec![request(reader, batch).awaited()];
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

/// Why [`begin`] found no memory for a page of this file.
pub(crate) fn why_none(reader: &Handle) -> Refused {
    if reader.core.pressure.enough_on_its_way(&reader.mapping.on_its_way, 0) {
        Refused::OwnFile
    } else {
        Refused::NoMemory
    }
}

/// Called by a reader that meets a readahead mark.
#[cold]
#[inline(never)]
pub(crate) fn read_further(reader: &Handle, held: &Held<'_>) {
    // The thread that clears the mark does the work. A forked child clears the marks of its own
    // copy and reads nothing: a mark that stayed would keep the page from optimistic readers for
    // ever.
    let marked = held.frame().clear_flags(Flags::READAHEAD).contains(Flags::READAHEAD);
    if !marked || !reader.core.owner.is_here() {
        return;
    }
    let identity = held.frame().identity();
    let page = identity.index + u64::from(identity.order.frames());
    let plan = reader.stream.on_mark(page, reader.mapping.len_bytes());
    start_ahead(reader, page, plan);
}

/// Starts to read `from..plan.ahead_end`, window by window, skipping what is cached. Best effort:
/// no thread waits for it.
pub(crate) fn start_ahead(reader: &Handle, from: u64, plan: Plan) {
    let mut requests = Vec::new();
    let mut page = from;
    // Ends: each turn advances `page`.
    while page < plan.ahead_end {
        let absent = {
            let mut changing = reader.mapping.change();
            changing.writer(&reader.core.nodes).next_absent(page..plan.ahead_end)
        };
        let Some(start) = absent else { break };
        // Up to a multiple of the window, so that it is one folio and not parts of two.
        let window = u64::from(plan.window_pages);
        let end = ((start / window + 1) * window).min(plan.ahead_end);
        let Ok(batch) = prepare(reader, start, end, For::Nobody) else { break };
        let Some(last) = batch.folios.back() else {
            if reader.mapping.index.lookup(start).is_none() {
                break; // no memory is free
            }
            page = start + 1; // another thread was faster
            continue;
        };
        page = last.end();
        if plan.mark {
            reader.core.frames.frame(batch.folios[0].head).set_flags(Flags::READAHEAD);
        }
        reader.core.counters.add(Event::Readahead, batch.folios.len() as u64);
        requests.push(request(reader, batch));
        if requests.len() == REQUESTS_MAX {
            reader.mapping.backing.submit(&mut requests);
            if !requests.is_empty() {
                break; // the limit of fills in flight is reached
            }
        }
    }
    reader.mapping.backing.submit(&mut requests);
    give_up(requests);
}

/// Ends requests that the engine did not take, like failed fills.
pub(crate) fn give_up(requests: Vec<Request>) {
    if mutant::on(Mutant::ForgetUnsubmitted) {
        return std::mem::forget(requests);
    }
    for request in requests {
        request.refuse();
    }
}

/// Steps 1 and 2 for as many folios from `page` on as fit before `end` and before the next folio in
/// the index; the first has `page`. Empty if the index has `page` by now. For a thread, evicts for
/// the first folio, or returns the error why it cannot; otherwise it is also empty if no memory is
/// free.
pub(crate) fn prepare(
    reader: &Handle,
    page: u64,
    end: u64,
    wanted: For,
) -> Result<Batch<&Core, &Mapping>> {
    let (core, mapping) = (&*reader.core, &*reader.mapping);
    let mut batch = Batch { core, mapping, folios: VecDeque::new(), wanted, failed: None };
    let mut at = page;
    while at < end && batch.folios.len() < FOLIOS_MAX {
        let wish = Order::of_block_at(at, end).min(core.pressure.order_max);
        let needed = wanted == For::Thread && batch.folios.is_empty();
        if !needed && core.pressure.enough_on_its_way(&mapping.on_its_way, 0) {
            break;
        }
        let got = reclaim::allocate(core, wish, needed).map_err(|why| why.of(mapping, at))?;
        let Some((head, order)) = got else { break };
        match insert(reader, at, order, head, needed) {
            Ok(filling) => {
                at = filling.end();
                batch.folios.push_back(filling);
            }
            Err(NotInserted::Occupied) => {
                core.put(head);
                // A smaller folio may fit before the next one in the index.
                if order == Order::MIN || !batch.folios.is_empty() {
                    break;
                }
                return prepare(reader, page, page + 1, wanted);
            }
            Err(NotInserted::NoMemory(error)) => {
                core.give_back(head);
                match error {
                    Some(error) => return Err(error),
                    None => break,
                }
            }
        }
    }
    Ok(batch)
}

enum NotInserted {
    Occupied,
    /// The error says why, if the folio was needed.
    NoMemory(Option<Error>),
}

/// Step 2 for one folio.
fn insert(
    reader: &Handle,
    page: u64,
    order: Order,
    head: FrameNumber,
    needed: bool,
) -> std::result::Result<Filling, NotInserted> {
    let core = &reader.core;
    name(reader, page, order, head);
    // Ends: each turn refills the node pool, or returns an error.
    let outcome = loop {
        let mut changing = reader.mapping.change();
        match insert_under_change(reader, &mut changing, page, order, head) {
            Ok(filling) => break Ok(filling),
            Err(InsertError::Occupied(_)) => break Err(NotInserted::Occupied),
            Err(InsertError::NoNodes(short)) => {
                drop(changing);
                // Not waited for but for the first folio: others may wait for those before this
                // one.
                match reclaim::refill_nodes(core, short.wanted, needed) {
                    Ok(true) => {}
                    Ok(false) => break Err(NotInserted::NoMemory(None)),
                    Err(why) => {
                        break Err(NotInserted::NoMemory(Some(why.of(&reader.mapping, page))));
                    }
                }
            }
        }
    };
    match &outcome {
        Ok(filling) => inserted(reader, filling),
        Err(_) => not_inserted(core, head),
    }
    outcome
}

/// Step 2 for many folios under one hold of the mutex, as far as there is memory for the index:
/// those that are in the index now. The others are given back.
pub(crate) fn insert_all(
    reader: &Handle,
    folios: impl Iterator<Item = (u64, Order, FrameNumber)> + Clone,
) -> Vec<Option<Filling>> {
    let core = &reader.core;
    for (page, order, head) in folios.clone() {
        name(reader, page, order, head);
    }
    let mut nodes = true;
    let mut changing = Some(reader.mapping.change());
    let insert = |(page, order, head)| {
        // Ends: each turn but the last refills the node pool.
        while nodes {
            let mutex = changing.get_or_insert_with(|| reader.mapping.change());
            match insert_under_change(reader, mutex, page, order, head) {
                Ok(filling) => return Some(filling),
                Err(InsertError::Occupied(_)) => return None,
                Err(InsertError::NoNodes(short)) => {
                    changing = None;
                    nodes = matches!(reclaim::refill_nodes(core, short.wanted, false), Ok(true));
                }
            }
        }
        None
    };
    let all: Vec<_> = folios.clone().map(insert).collect();
    drop(changing);
    for ((_, _, head), filling) in folios.zip(&all) {
        if let Some(filling) = filling {
            inserted(reader, filling);
        } else {
            not_inserted(core, head);
            if nodes {
                core.put(head);
            } else {
                core.give_back(head);
            }
        }
    }
    all
}

/// Gives the folio at `head`, which is in no index yet, the identity that it will have there.
fn name(reader: &Handle, page: u64, order: Order, head: FrameNumber) {
    let frame = reader.core.frames.frame(head);
    frame.set_identity(Identity { mapping: reader.mapping.id, index: page, order });
}

/// Puts it there.
fn insert_under_change(
    reader: &Handle,
    changing: &mut Changing<'_>,
    page: u64,
    order: Order,
    head: FrameNumber,
) -> std::result::Result<Filling, InsertError> {
    let core = &reader.core;
    let inserted = {
        let mut writer = changing.writer(&core.nodes);
        writer.insert(page, u32::from(order.get()), head, page)?
    };
    changing.folios_added(1);
    core.frames.frame(head).count.get(1);
    Ok(Filling { head, page, order, shadow: inserted.refault.map(Shadow::from_payload) })
}

/// It is there.
fn inserted(reader: &Handle, filling: &Filling) {
    let core = &reader.core;
    if mutant::on(Mutant::EvenBeforeRead) {
        core.frames.frame(filling.head).change_end();
    }
    core.counters.count(Event::FillStarted);
    core.pressure.fill_begins(&reader.mapping.on_its_way, filling.order);
}

/// It is not: there is another folio, or there is no memory. The reference stays the caller's.
fn not_inserted(core: &Core, head: FrameNumber) {
    core.frames.frame(head).forget_identity();
    // A reader with an old head may have taken a reference while the folio had this identity.
    if !mutant::on(Mutant::OccupiedWakesNobody) {
        core.waiters.wake(head.0);
    }
}

/// The request that fills `batch` asynchronously.
pub(crate) fn request(reader: &Handle, batch: Batch<&Core, &Mapping>) -> Request {
    let batch = batch.into_owned(reader);
    let offset = batch.offset();
    let extents = batch.extents();
    let extents = extents
        .iter()
        // SAFETY: as in `extents`; the completion below keeps the core, and so the arena, alive.
        .map(|extent| unsafe { Extent::new(extent.address(), extent.bytes()) })
        .collect();
    let completion = move |read: io::Result<usize>| batch.finish(read, false);
    // SAFETY: as above, until the completion is called.
    unsafe { Request::read(offset, extents, Box::new(completion)) }
}

/// Step 4 for one folio, and the wake-up. A fill that was refused before it began brings nothing,
/// and frees nothing that was not free before it: that is no progress.
fn land(
    core: &Core,
    mapping: &Mapping,
    filling: &Filling,
    checked: Result<()>,
    (wanted_by, refused): (For, bool),
) {
    let frame = core.frames.frame(filling.head);
    if mutant::on(Mutant::WakeFirst) {
        core.waiters.wake(filling.head.0);
    }
    let mut changing = mapping.change();
    // Otherwise it was dropped meanwhile and cannot be found any more.
    let wanted = frame.identity().mapping == mapping.id || mutant::on(Mutant::LandBlindly);
    match checked {
        Ok(()) if wanted => {
            if !mutant::on(Mutant::EvenBeforeRead) {
                // Under the mutex, as the length changes under it too: see `freeze::resize`.
                let rest = mapping.len_bytes().saturating_sub(filling.page << PAGE_SHIFT);
                if !mutant::on(Mutant::LandUnclipped) {
                    frame.set_file_bytes(rest.min(filling.order.bytes() as u64) as usize);
                }
                frame.change_end();
            }
            if filling.shadow.is_some() {
                core.counters.count(Event::Refault);
            }
            core.residency.insert(&core.frames, filling.head, filling.shadow);
        }
        Err(error) if wanted => {
            match wanted_by {
                _ if !refused => core.counters.count(Event::FillError),
                For::Nobody => core.counters.count(Event::ReadaheadDropped),
                // It tries again, and has counted nothing yet.
                For::Thread | For::Future | For::Batch => {}
            }
            let unshared = wanted_by == For::Batch && mutant::on(Mutant::BatchErrorUnshared);
            if wanted_by != For::Nobody && !unshared && !refused {
                core.failures.remember(filling.head, frame, error);
            }
            let removed = changing.writer(&core.nodes).remove(filling.page);
            assert_eq!(removed.map(|folio| folio.frame), Some(filling.head), "filled, not found");
            changing.folio_removed();
            frame.forget_identity();
        }
        _ => {}
    }
    let failed = wanted && frame.is_changing();
    drop(changing);
    core.counters.count(Event::FillEnded);
    core.pressure.fill_ends(&mapping.on_its_way, filling.order);
    if !mutant::on(Mutant::WakeFirst) {
        core.waiters.wake(filling.head.0);
    }
    if failed {
        // The index's reference.
        if refused {
            core.give_back(filling.head);
        } else {
            core.put(filling.head);
        }
        // It may have been the last folio of a file that has no handle any more.
        core.retire(mapping);
    }
    if !refused {
        // Relaxed: a count.
        mapping.reads_ended.fetch_add(1, Ordering::Relaxed);
        core.pressure.progress();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::{For, prepare};
    use crate::mutant::{self, Mutant};
    use crate::source::Memory;
    use crate::{Cache, ErrorKind, File, Options};

    fn file() -> (Cache, File) {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 64 << 10]))).unwrap();
        (cache, file)
    }

    #[test]
    fn a_batch_that_is_dropped_lands_with_an_error_for_all_who_wait() {
        let (cache, file) = file();
        let batch = prepare(file.handle(), 1, 7, For::Thread).unwrap();
        let folios = batch.folios.len() as u64;
        assert!(folios > 1, "pages 1 to 6 are no folio");
        assert_eq!(cache.stats().fills_in_flight, folios);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| file.read_at(&mut [0; 8], 2 * 4096));
            // Ends: the other thread has nothing else to do.
            while cache.stats().waits == 0 {
                std::thread::yield_now();
            }
            drop(batch);
            let error = waits.join().unwrap().unwrap_err();
            let ErrorKind::Read { offset: 4096, asked_bytes: 24_576, cause, .. } = error.kind()
            else {
                panic!("{error:?}")
            };
            assert_eq!(cause.to_string(), "the read was given up");
        });
        assert_eq!((cache.stats().fills_in_flight, cache.stats().resident_bytes), (0, 0));
        let mut buf = vec![0; 64 << 10];
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), buf.len());
        assert!(buf.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn a_batch_that_is_forgotten_stays_on_its_way() {
        mutant::with(Some(Mutant::BatchForgotten), || {
            let (cache, file) = file();
            drop(prepare(file.handle(), 1, 7, For::Thread).unwrap());
            assert_ne!(cache.stats().fills_in_flight, 0, "the mutant does nothing");
        });
    }
}
