//! A fault on own memory: how a page gets in.
//!
//! # A page gets in, step by step
//!
//! 1. under the `change` mutex, look: if the page is there, the access can be repeated, once a
//!    store has ended the page's protection; if it is on its way, wait for that; if it is absent,
//!    see which of its neighbours are, too, and could come with it;
//! 2. allocate a lent folio for each: eviction helps for the wanted page alone;
//! 3. a private view reads the pages of the file that were never stored to;
//! 4. under the mutex again, put the folios into the index if the pages are still as in 1: their
//!    versions are odd, so others wait for them;
//! 5. read the swap, in one read;
//! 6. under the mutex, unless they were forgotten meanwhile: put the bytes to their addresses,
//!    protected against stores if they are elsewhere, too; make the versions even; tell the policy;
//! 7. wake those who wait.
//!
//! If a read fails, the folios leave the index, and whoever wants one of these pages reads it
//! alone.
//!
//! A task does the same. It waits for its turn, for other threads and for reads without blocking
//! its thread; if there is no memory, it evicts what needs no write, rests, and begins anew.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::protect::Protection;
use super::{AccessOrder, Area, Origin, STREAMS, calls};
use crate::base::counters::Event;
use crate::base::wait;
use crate::error::{Cause, Result};
use crate::frames::{self, FrameNumber, Identity, PAGE_BYTES, PAGE_SHIFT};
use crate::index::InsertError;
use crate::map::space::vma::FaultAccess;
use crate::map::{lend, lent};
use crate::mapped::swap::pages::{IsWriting, PageState, Unused};
use crate::mapped::swap::slots::Slot;
use crate::mapped::task::{Waiter, now};
use crate::pages::core::{Core, Held};
use crate::pages::handle::Handle;
use crate::pages::mapping::{Changing, Mapping};
use crate::pages::reclaim::{self, Patience};
use crate::source::{AlignedBuffer, is_refusal};

/// The most pages that come at once.
const RUN_MAX: u64 = 32;

/// What pages of zeros are copied from.
static ZEROS: Zeros = Zeros([0; RUN_MAX as usize * PAGE_BYTES]);

#[repr(align(4096))]
struct Zeros([u8; RUN_MAX as usize * PAGE_BYTES]);

/// How long a task rests if all who read for sources are busy.
const BUSY_NAP: Duration = Duration::from_millis(1);

/// What a fault finds.
enum OwnLook<'a> {
    There,
    OnItsWay(Held<'a>),
    Absent(RunToBring),
}

/// What became of a run.
#[derive(Debug, PartialEq, Eq)]
enum Filled {
    Came,
    /// Another thread was faster.
    Faster,
    /// There is no memory at once, for the page or for the index.
    NoMemory,
}

/// Pages that can come at once.
#[derive(Clone, Debug)]
struct RunToBring {
    first: u64,
    /// What each of them is.
    states: Vec<PageState>,
    /// It comes with what the program stores, and not with its bytes.
    is_replaced: bool,
}

impl RunToBring {
    fn of(first: u64, state: PageState) -> Self {
        RunToBring { first, states: vec![state], is_replaced: false }
    }
}

/// A page on its way: in the index, with a reference of this thread's.
struct Coming {
    page: u64,
    head: FrameNumber,
}

impl Area {
    /// Whether the access to `page` can be repeated. Pages of zeros come at once if there is
    /// memory; nothing is read.
    pub(crate) fn look(&self, handle: &Handle, page: u64, access: FaultAccess) -> Result<bool> {
        match self.find(handle, page, access)? {
            OwnLook::There => Ok(true),
            OwnLook::Absent(run) if self.is_zeros(&run) => {
                Ok(now(self.fill(handle, page, run, access, None))? == Filled::Came)
            }
            OwnLook::OnItsWay(_) | OwnLook::Absent(_) => Ok(false),
        }
    }

    /// Brings `page`, or waits for who does. It is kept from eviction for a while.
    ///
    /// # Errors
    /// It cannot be read, there is no memory for it, or the map is not there any more.
    pub(crate) async fn bring(
        &self,
        handle: &Handle,
        page: u64,
        access: FaultAccess,
        waiter: Waiter<'_>,
    ) -> Result<()> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let mut patience = None;
        // Ends: each turn waits for another thread, or for memory, which patience bounds, or follows
        // one in which another was faster.
        loop {
            match self.find(handle, page, access)? {
                OwnLook::There => return Ok(()),
                OwnLook::OnItsWay(held) => wait_for(core, &held, waiter).await,
                OwnLook::Absent(run) if run.states[0] == PageState::Lost => {
                    return Err(Area::lost(mapping, page));
                }
                OwnLook::Absent(run) => {
                    let bringing = lend::bringing(core, run.states.len() as u32, waiter).await;
                    match self.fill(handle, page, run, access, Some(waiter)).await? {
                        Filled::Came => return Ok(()),
                        Filled::Faster => {}
                        Filled::NoMemory => {
                            drop(bringing);
                            let patience = patience.get_or_insert_with(|| Patience::new(core));
                            if patience.is_over(core) {
                                let short = reclaim::shortage(core, PAGE_BYTES as u64);
                                let why = short.of(mapping, page);
                                return Err(Area::no_memory(core, mapping, page, why));
                            }
                            if let Waiter::Task(rests) = waiter {
                                rests.rest(lent::TASK_NAP).await;
                            }
                        }
                    }
                }
            }
        }
    }

    /// [`bring`](Self::bring) for a store of all of the page, by a thread, which gives the bytes: those that it had
    /// are not read from the swap.
    pub(super) fn bring_whole(&self, handle: &Handle, page: u64, bytes: &[u8]) -> Result<()> {
        let core = &*handle.core;
        // Ends: as in `bring`.
        loop {
            match self.find(handle, page, FaultAccess::Store)? {
                OwnLook::There => return Ok(()),
                OwnLook::OnItsWay(held) => now(wait_for(core, &held, Waiter::Thread)),
                OwnLook::Absent(run)
                    if matches!(run.states[0], PageState::Swapped(_) | PageState::Lost) =>
                {
                    let _bringing = now(lend::bringing(core, 1, Waiter::Thread));
                    if self.replace(handle, RunToBring::of(page, run.states[0]), bytes)? {
                        return Ok(());
                    }
                }
                OwnLook::Absent(_) => {
                    return now(self.bring(handle, page, FaultAccess::Store, Waiter::Thread));
                }
            }
        }
    }

    /// Ends the poison of absent pages.
    pub(in crate::map::space) fn unpoison(&self, handle: &Handle, pages: std::ops::Range<u64>) {
        let mut changing = handle.mapping.change();
        let mut from = pages.start;
        // Ends: each turn begins after the last one's folio.
        while from < pages.end {
            let next = changing.writer(&handle.core.nodes).next_present(from..pages.end);
            let (absent_to, next) = next.map_or((pages.end, pages.end), |it| (it.page, it.end()));
            if from < absent_to {
                let _ = calls::give_back_pages(&self.addresses(&(from..absent_to)));
            }
            from = next;
        }
    }

    fn is_zeros(&self, run: &RunToBring) -> bool {
        matches!(self.origin, Origin::Zeros) && run.states[0] == PageState::Origin
    }

    /// Step 1.
    fn find<'a>(&self, handle: &'a Handle, page: u64, access: FaultAccess) -> Result<OwnLook<'a>> {
        handle.core.check_owner()?;
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        // Ends: each turn but the last follows one in which a page left the index that was brought.
        loop {
            let mut changing = mapping.change();
            if self.is_closed() || page >= self.pages() {
                let why = std::io::Error::other("it is not there any more");
                return Err(Area::refused(mapping, "bring", &(page..page + 1), why));
            }
            let Some(head) = changing.head(page) else {
                return Ok(OwnLook::Absent(self.run(&mut changing, page)));
            };
            if core.frames.frame(head).is_changing() {
                let held = core.hold_under_change(head);
                let path = || mapping.path.clone();
                return held
                    .map(OwnLook::OnItsWay)
                    .ok_or_else(|| Cause::TooManyReferences { path: path(), page }.into());
            }
            if !self.is_absent(page) {
                if access == FaultAccess::Store {
                    self.store(core, &mut changing, page);
                }
                return Ok(OwnLook::There);
            }
            let missed = Area::miss(core, &mut changing, page);
            drop(changing);
            let gone = missed.map_err(|IsWriting| Area::lost(mapping, page))?;
            crate::pages::freeze::let_go(core, &gone);
        }
    }

    /// A store to a page that is there begins.
    pub(super) fn store(&self, core: &Core, changing: &mut Changing<'_>, page: u64) {
        let pages = changing.own().expect("own memory has states");
        let allow = || calls::protect(self.fd(), &self.addresses(&(page..page + 1)), false);
        give(core, pages.store(page, allow));
    }

    /// Which absent pages can come together with `page`.
    fn run(&self, changing: &mut Changing<'_>, page: u64) -> RunToBring {
        let state = changing.own().expect("own memory has states").get(page);
        let mut run = RunToBring::of(page, state);
        let goes_on = match self.order() {
            AccessOrder::Random => false,
            AccessOrder::Sequential => true,
            AccessOrder::Unknown => page == 0 || self.is_expected(page),
        };
        let end = if goes_on { self.pages().min(page + RUN_MAX) } else { page + 1 };
        for next in page + 1..end {
            let fits = match (state, changing.own().map(|pages| pages.get(next))) {
                (PageState::Swapped(Slot(first)), Some(PageState::Swapped(Slot(slot)))) => {
                    u64::from(slot) == u64::from(first) + (next - page)
                }
                (PageState::Origin, Some(PageState::Origin)) => true,
                _ => false,
            };
            if !fits || changing.head(next).is_some() {
                break;
            }
            run.states.push(PageState::Origin);
            *run.states.last_mut().expect("just pushed") =
                changing.own().expect("own memory has states").get(next);
        }
        run
    }

    /// Whether a thread that goes through the memory in order wants this page now.
    fn is_expected(&self, page: u64) -> bool {
        // Relaxed, all of these: hints.
        self.streams.iter().any(|stream| stream.load(Ordering::Relaxed) == page)
    }

    /// Pages came for one that was wanted: if a thread goes on, it wants the page at `end` next.
    fn expect(&self, page: u64, end: u64) {
        let known = self.streams.iter().find(|stream| stream.load(Ordering::Relaxed) == page);
        let stream = known.unwrap_or_else(|| {
            let nth = self.next_stream.fetch_add(1, Ordering::Relaxed);
            &self.streams[nth as usize % STREAMS]
        });
        stream.store(end, Ordering::Relaxed);
    }

    /// Steps 2 to 7 for `page`, the first of a run. A thread waits for memory. Without a waiter,
    /// the run is one of zeros.
    async fn fill(
        &self,
        handle: &Handle,
        page: u64,
        mut run: RunToBring,
        access: FaultAccess,
        waiter: Option<Waiter<'_>>,
    ) -> Result<Filled> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let waits = matches!(waiter, Some(Waiter::Thread));
        // Ends: the second turn is for the page alone.
        loop {
            let mut frames = Area::allocate(handle, &run, waiter)?;
            run.states.truncate(frames.len());
            if run.states.is_empty() {
                return Ok(Filled::NoMemory);
            }
            let is_alone = run.states.len() == 1;
            // In place of the memory of the folios, which have none yet. Zeros need no buffer.
            let zeros = self.is_zeros(&run);
            let mut buffer = if zeros {
                AlignedBuffer::zeroed(0, 1)
            } else {
                AlignedBuffer::zeroed(run.states.len() * PAGE_BYTES, PAGE_BYTES)
            };
            if run.states[0] == PageState::Origin && !zeros {
                match self.read_origin(page, &mut buffer, waiter).await {
                    Ok(pages) => {
                        run.states.truncate(pages);
                        give_back(core, frames.drain(run.states.len()..));
                    }
                    Err(error) => {
                        give_back(core, frames);
                        if is_alone {
                            return Err(error);
                        }
                        run.states.truncate(1);
                        continue;
                    }
                }
            }
            let Some(coming) = self.insert(handle, &run, &frames, waits)? else {
                return Ok(Filled::NoMemory);
            };
            if coming.is_empty() {
                return Ok(Filled::Faster);
            }
            self.expect(page, page + coming.len() as u64);
            let bytes = coming.len() * PAGE_BYTES;
            let read;
            (buffer, read) = Area::read(core, run.states[0], buffer, bytes, waiter).await;
            let is_read = read.is_ok();
            let landing = if zeros { &ZEROS.0[..bytes] } else { &*buffer };
            match self.land(handle, &coming, &run, landing, read, access) {
                Ok(()) => return Ok(Filled::Came),
                Err(error) if coming.len() == 1 && is_read => {
                    return Err(Area::refused(mapping, "bring", &(page..page + 1), error));
                }
                Err(error) if coming.len() == 1 => {
                    return Err(Area::read_error(mapping, page, run.states[0], error));
                }
                Err(_) => run.states.truncate(1), // another page may be at fault
            }
        }
    }

    /// Step 2: a lent folio for the first page, and for as many others as there is memory for.
    fn allocate(
        handle: &Handle,
        run: &RunToBring,
        waiter: Option<Waiter<'_>>,
    ) -> Result<Vec<FrameNumber>> {
        let (core, mapping, page) = (&*handle.core, &*handle.mapping, run.first);
        let mut frames = Vec::with_capacity(run.states.len());
        while frames.len() < run.states.len() {
            let is_first = frames.is_empty();
            let waits = is_first && matches!(waiter, Some(Waiter::Thread));
            let got = lent::allocate_lent(core, frames::Order::MIN, waits);
            let mut got =
                got.map_err(|why| Area::no_memory(core, mapping, page, why.of(mapping, page)))?;
            if let (None, true, Some(Waiter::Task(rests))) = (got, is_first, waiter) {
                got = lent::evict_for_task(core, frames::Order::MIN, rests);
            }
            let Some((head, _)) = got else { break };
            frames.push(head);
        }
        Ok(frames)
    }

    /// Step 3. Returns how many pages the file has of these.
    async fn read_origin(
        &self,
        page: u64,
        to: &mut [u8],
        waiter: Option<Waiter<'_>>,
    ) -> Result<usize> {
        let Origin::File(file, from) = &self.origin else { return Ok(to.len() / PAGE_BYTES) };
        let offset = from + (page << PAGE_SHIFT);
        let bytes = match waiter {
            Some(Waiter::Task(_)) => file.read_at_async(to, offset).await?,
            _ => file.read_at(to, offset)?,
        };
        // The file may have become shorter.
        file.handle().check_page((from >> PAGE_SHIFT) + page)?;
        Ok(bytes.div_ceil(PAGE_BYTES).max(1))
    }

    /// Steps 2, 4, 6 and 7 for a run of one page, all of which is stored to. False: another thread
    /// was faster.
    fn replace(&self, handle: &Handle, run: RunToBring, bytes: &[u8]) -> Result<bool> {
        let (core, mapping, page) = (&*handle.core, &*handle.mapping, run.first);
        let got = lent::allocate_lent(core, frames::Order::MIN, true);
        let got = got.map_err(|why| Area::no_memory(core, mapping, page, why.of(mapping, page)))?;
        let Some((head, _)) = got else { return Ok(false) };
        let run = RunToBring { is_replaced: true, ..run };
        let coming = self.insert(handle, &run, &[head], true)?.unwrap_or_default();
        if coming.is_empty() {
            return Ok(false);
        }
        let landed = self.land(handle, &coming, &run, bytes, Ok(()), FaultAccess::Store);
        landed.map_err(|why| Area::refused(mapping, "bring", &(page..page + 1), why))?;
        Ok(true)
    }

    fn read_error(
        mapping: &Mapping,
        page: u64,
        state: PageState,
        error: std::io::Error,
    ) -> crate::error::Error {
        if let PageState::Swapped(_) = state {
            let (name, offset) = (mapping.path.clone(), page << PAGE_SHIFT);
            return Cause::SwapRead { name, offset, cause: std::sync::Arc::new(error) }.into();
        }
        Area::refused(mapping, "bring", &(page..page + 1), error)
    }

    /// Step 4: as many as are still absent, and as they were, from the first on. `None`: the index
    /// has no memory at once, and it is not `needed`.
    fn insert(
        &self,
        handle: &Handle,
        run: &RunToBring,
        frames: &[FrameNumber],
        needed: bool,
    ) -> Result<Option<Vec<Coming>>> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let mut coming: Vec<Coming> = Vec::with_capacity(frames.len());
        let mut changing = mapping.change();
        // Ends: each turn inserts one, or makes nodes for it.
        while coming.len() < frames.len() {
            let (n, page) = (coming.len(), run.first + coming.len() as u64);
            let head = frames[n];
            let as_before = changing.own().is_some_and(|it| it.get(page) == run.states[n]);
            if self.is_closed() || !as_before || changing.head(page).is_some() {
                break;
            }
            let frame = core.frames.frame(head);
            let order = frames::Order::MIN;
            frame.set_identity(Identity { mapping: mapping.id, index: page, order });
            let inserted = changing.writer(&core.nodes).insert(page, u32::from(order.get()), head);
            match inserted {
                Ok(()) => {
                    changing.folios_added(1);
                    frame.count.get(1);
                    coming.push(Coming { page, head });
                }
                Err(short) => {
                    frame.forget_identity();
                    // Others may wait for those before it.
                    let first = needed && coming.is_empty();
                    drop(changing);
                    core.waiters.wake(head.0);
                    let wanted = match short {
                        InsertError::NoNodes(short) => short.wanted,
                        InsertError::Occupied(_) => unreachable!("asked under the same mutex"),
                    };
                    match reclaim::refill_nodes(core, wanted, first) {
                        Ok(true) => {}
                        Ok(false) => {
                            give_back(core, frames[coming.len()..].iter().copied());
                            return Ok((!coming.is_empty()).then_some(coming));
                        }
                        Err(why) => {
                            give_back(core, frames[coming.len()..].iter().copied());
                            let error = why.of(mapping, run.first);
                            if coming.is_empty() {
                                return Err(Area::no_memory(core, mapping, run.first, error));
                            }
                            return Ok(Some(coming));
                        }
                    }
                    changing = mapping.change();
                }
            }
        }
        drop(changing);
        give_back(core, frames[coming.len()..].iter().copied());
        Ok(Some(coming))
    }

    /// Step 5: the first `bytes` bytes of the buffer, which comes back.
    async fn read(
        core: &Core,
        first: PageState,
        mut to: AlignedBuffer,
        bytes: usize,
        waiter: Option<Waiter<'_>>,
    ) -> (AlignedBuffer, std::io::Result<()>) {
        let PageState::Swapped(slot) = first else { return (to, Ok(())) };
        let Some(swap) = core.own_swap() else {
            return (to, Err(std::io::Error::other("there is no swap")));
        };
        let Some(Waiter::Task(rests)) = waiter else {
            let call = core.engine.begin_call();
            let done = swap.read(slot, &mut to[..bytes]);
            if done.is_err() {
                call.fail();
            }
            return (to, done);
        };
        let mut patience = Patience::new(core);
        // Ends: patience does, which other reads that end renew.
        loop {
            let done;
            (to, done) = swap.read_later(slot, to, bytes).await;
            match done {
                Err(refused) if is_refusal(&refused) && patience.is_over(core) => {
                    return (to, Err(core.engine.all_busy()));
                }
                Err(refused) if is_refusal(&refused) => rests.rest(BUSY_NAP).await,
                done => return (to, done),
            }
        }
    }

    /// Steps 6 and 7. `page`s access is the first's.
    fn land(
        &self,
        handle: &Handle,
        coming: &[Coming],
        run: &RunToBring,
        bytes: &[u8],
        mut read: std::io::Result<()>,
        access: FaultAccess,
    ) -> std::io::Result<()> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let zeros = self.is_zeros(run);
        let mut changing = mapping.change();
        if run.is_replaced && !self.allows(Protection::ReadWrite) {
            read = Err(std::io::Error::from_raw_os_error(libc::EACCES)); // since it was asked
        }
        let is_wanted = |it: &Coming| core.frames.frame(it.head).identity().mapping == mapping.id;
        let mut n = 0;
        let mut landed = vec![false; coming.len()];
        // Ends: each turn lands at least one, or passes it over.
        while n < coming.len() && read.is_ok() {
            if !is_wanted(&coming[n]) {
                n += 1;
                continue;
            }
            let stores = access == FaultAccess::Store && (n == 0 || zeros);
            let same = |it: &&Coming| is_wanted(it) && (zeros || !stores);
            let end = n + 1 + coming[n + 1..].iter().take_while(same).count();
            let pages = coming[n].page..coming[n].page + (end - n) as u64;
            let at = self.addresses(&pages);
            let from = &bytes[n * PAGE_BYTES..end * PAGE_BYTES];
            let put = if zeros && !stores {
                calls::zero(self.fd(), &at, from)
            } else {
                // Stored to at once: a page of its own now costs less than a further fault.
                calls::copy(self.fd(), &at, from, !(stores || zeros))
            };
            let put_pages = match put {
                Ok(()) => end - n,
                Err((done, why)) => {
                    read = Err(why);
                    done / PAGE_BYTES
                }
            };
            for it in n..n + put_pages {
                landed[it] = true;
                if stores || zeros {
                    let states = changing.own().expect("own memory has states");
                    give(core, states.store(coming[it].page, || {})); // it came unprotected
                }
                let frame = core.frames.frame(coming[it].head);
                frame.change_end();
                if core.residency.insert(&core.frames, coming[it].head, mapping.ghosts_of) {
                    core.counters.count(Event::Refault);
                }
            }
            n = end;
        }
        let mut gone = Vec::new();
        for (it, _) in coming.iter().zip(&landed).filter(|(it, landed)| !**landed && is_wanted(it))
        {
            let removed = changing.writer(&core.nodes).remove(it.page);
            assert_eq!(removed.map(|folio| folio.frame), Some(it.head), "brought, not found");
            changing.folio_removed();
            core.frames.frame(it.head).forget_identity();
            gone.push(it.head);
        }
        drop(changing);
        for (n, it) in coming.iter().enumerate() {
            core.waiters.wake(it.head.0);
            if n == 0 && landed[0] {
                core.keep_recent(Held::adopt(core, it.head));
            } else {
                core.put(it.head);
            }
        }
        for head in gone {
            core.put(head); // the index's
        }
        if self.closed.load(Ordering::Relaxed) {
            core.retire(mapping);
        }
        core.pressure.progress();
        read
    }
}

/// Waits until a page that is on its way has come, or has not.
async fn wait_for(core: &Core, held: &Held<'_>, waiter: Waiter<'_>) {
    core.counters.count(Event::Wait);
    let has_come = || !crate::pages::fill::is_on_its_way(held.frame());
    match waiter {
        Waiter::Thread => core.waiters.wait(held.head().0, has_come),
        Waiter::Task(_) => wait::until(&core.waiters, held.head().0, has_come).await,
    }
}

/// Gives back a slot that is of no more use.
pub(super) fn give(core: &Core, unused: Unused) {
    if let Some(swap) = core.own_swap() {
        swap.give(unused);
    }
}

/// Gives back frames that were allocated in vain.
fn give_back(core: &Core, frames: impl IntoIterator<Item = FrameNumber>) {
    for head in frames {
        core.give_back(head);
    }
}
