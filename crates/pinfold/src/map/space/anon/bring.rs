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
//!    protected against stores if they are elsewhere, too; make the versions even; tell the policy.
//!    The slots of those that were forgotten are free only now;
//! 7. wake those who wait.
//!
//! If a read fails, the folios leave the index, and whoever wants one of these pages reads it
//! alone.
//!
//! None of this takes memory of the heap, but for the buffer of steps 3 and 5, and what waiting and
//! eviction take: where there is no buffer for a run, the page comes alone; where there is none for
//! a page, the access fails. A task that finds no memory evicts what needs no write, rests, and
//! begins anew.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Area, Origin, STREAMS, calls};
use crate::base::counters::Event;
use crate::base::mutant::{self, Mutant};
use crate::base::{heap, wait};
use crate::error::{Cause, Result};
use crate::frames::{FrameNumber, Identity, Order, PAGE_BYTES, PAGE_SHIFT};
use crate::index::InsertError;
use crate::map::bring;
use crate::map::lent::{self, LentPatience};
use crate::map::space::vma::FaultAccess;
use crate::mapped::pagemap::PagemapEntry;
use crate::mapped::swap::pages::{IsWriting, PageState, Unused};
use crate::mapped::swap::slots::Slot;
use crate::mapped::task::{Waiter, now};
use crate::pages::core::{Core, Held};
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::pages::mapping::{Changing, Mapping};
use crate::pages::reclaim::{self, Patience};
use crate::pages::stream::Stream;
use crate::source::{AlignedBuffer, is_refusal};

/// The most pages that come together. Their folios are on the stack of who brings them: a fault takes
/// no memory of the heap for them.
const RUN_MAX: usize = 32;

/// Pages that come together.
#[derive(Clone, Debug)]
struct RunToBring {
    first: u64,
    /// What the first of them is.
    state: PageState,
    pages: usize,
}

impl RunToBring {
    /// What the `n`th page is: they lie together in the swap, or were never stored to.
    fn state(&self, n: usize) -> PageState {
        match self.state {
            PageState::Swapped(Slot(first)) => PageState::Swapped(Slot(first + n as u32)),
            state => state,
        }
    }

    fn page(&self, n: usize) -> u64 {
        self.first + n as u64
    }
}

/// The folios for them.
#[derive(Debug)]
struct RunFrames {
    heads: [FrameNumber; RUN_MAX],
    n: usize,
}

impl RunFrames {
    fn new() -> Self {
        RunFrames { heads: [FrameNumber(0); RUN_MAX], n: 0 }
    }

    fn push(&mut self, head: FrameNumber) {
        self.heads[self.n] = head;
        self.n += 1;
    }

    /// Gives back those that were allocated in vain: all but the first `n`.
    fn keep(&mut self, core: &Core, n: usize) {
        for &head in self.get(n..).unwrap_or_default() {
            core.give_back(head);
        }
        self.n = self.n.min(n);
    }
}

impl Deref for RunFrames {
    type Target = [FrameNumber];

    fn deref(&self) -> &[FrameNumber] {
        &self.heads[..self.n]
    }
}

/// What pages of zeros are copied from.
static ZEROS: Zeros = Zeros([0; RUN_MAX * PAGE_BYTES]);

#[repr(align(4096))]
struct Zeros([u8; RUN_MAX * PAGE_BYTES]);

/// How long a task rests if all who read for sources are busy.
const BUSY_NAP: Duration = Duration::from_millis(1);

enum OwnLook<'a> {
    There,
    OnItsWay(Held<'a>),
    Absent(RunToBring),
}

#[derive(Debug, PartialEq, Eq)]
enum Filled {
    Came,
    Faster,
    /// There is no memory at once, for the page or for the index.
    NoMemory,
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
    /// Error: it cannot be read, there is no memory for it, or the map is not there any more.
    pub(crate) async fn bring(
        &self,
        handle: &Handle,
        page: u64,
        access: FaultAccess,
        waiter: Waiter<'_>,
    ) -> Result<()> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let mut patience = None;
        // Ends: each turn waits for another thread, or for memory, which patience bounds, or
        // follows one in which another was faster.
        loop {
            match self.find(handle, page, access)? {
                OwnLook::There => return Ok(()),
                OwnLook::OnItsWay(held) => wait_for(core, &held, waiter).await,
                OwnLook::Absent(run) if run.state == PageState::Lost => {
                    return Err(Area::lost(mapping, page));
                }
                OwnLook::Absent(_) if !heap::has_room() => return Err(mapping.no_heap(page)),
                OwnLook::Absent(run) => {
                    let bringing = bring::bringing(core, run.pages as u32, waiter).await;
                    match self.fill(handle, page, run, access, Some(waiter)).await? {
                        Filled::Came => return Ok(()),
                        Filled::Faster => {}
                        Filled::NoMemory => {
                            drop(bringing);
                            let patience = patience.get_or_insert_with(|| LentPatience::new(core));
                            let waited = lent::wait_for_lent(core, Order::MIN, patience, waiter);
                            let short = |why| Area::no_memory(core, mapping, page, why);
                            waited.await.map_err(short)?;
                        }
                    }
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
        matches!(self.origin, Origin::Zeros) && run.state == PageState::Origin
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
                return Err(mapping.page_error("bring", page, why));
            }
            let Some(head) = changing.head(page) else {
                return Ok(OwnLook::Absent(self.run(&handle.stream, &mut changing, page)));
            };
            if core.frames.frame(head).is_changing() {
                return Area::held(core, mapping, page, head).map(OwnLook::OnItsWay);
            }
            let entry = self.entry(page);
            if !entry.is_some_and(PagemapEntry::is_absent) {
                if access == FaultAccess::Store {
                    self.store(core, &mut changing, page, entry);
                }
                return Ok(OwnLook::There);
            }
            let missed = Area::miss(core, &mut changing, page);
            drop(changing);
            let gone = missed.map_err(|IsWriting| Area::lost(mapping, page))?;
            freeze::let_go(core, &gone);
        }
    }

    /// A reference to a page that was found under the `change` mutex.
    pub(super) fn held<'a>(
        core: &'a Core,
        mapping: &Mapping,
        page: u64,
        head: FrameNumber,
    ) -> Result<Held<'a>> {
        let too_many = || Cause::TooManyReferences { path: mapping.path.clone(), page };
        core.hold_under_change(head).ok_or_else(|| too_many().into())
    }

    /// A store to a page that is there begins. If the page table was looked up, and has the page as
    /// protected, it is not any more, whatever its state: the kernel may have refused to end that.
    pub(super) fn store(
        &self,
        core: &Core,
        changing: &mut Changing<'_>,
        page: u64,
        entry: Option<PagemapEntry>,
    ) {
        let mut is_protected = entry.is_some_and(PagemapEntry::is_protected);
        let allow = || self.protect(page, false);
        let pages = changing.own().expect("own memory has states");
        let unused = pages.store(page, || {
            is_protected = false;
            allow();
        });
        core.give_slots([unused]);
        if is_protected && !mutant::on(Mutant::ProtectedForGood) {
            allow();
        }
    }

    /// Which absent pages can come together with `page`.
    fn run(&self, stream: &Stream, changing: &mut Changing<'_>, page: u64) -> RunToBring {
        let state = changing.own().expect("own memory has states").get(page);
        let mut run = RunToBring { first: page, state, pages: 1 };
        let is_expected = page == 0 || self.is_expected(page) || stream.is_sequential();
        let goes_on = is_expected && !stream.is_random();
        let end = if goes_on { self.pages().min(page + RUN_MAX as u64) } else { page + 1 };
        if !matches!(state, PageState::Origin | PageState::Swapped(_)) {
            return run;
        }
        for next in page + 1..end {
            let found = changing.own().map(|pages| pages.get(next));
            if found != Some(run.state(run.pages)) || changing.head(next).is_some() {
                break;
            }
            run.pages += 1;
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
            if frames.is_empty() {
                return Ok(Filled::NoMemory);
            }
            // In place of the memory of the folios, which have none yet. Zeros need no buffer.
            let zeros = self.is_zeros(&run);
            let Some(mut buffer) = Area::buffer(&mut frames, core, zeros) else {
                return Err(mapping.no_heap(page));
            };
            let is_alone = frames.len() == 1;
            if run.state == PageState::Origin && !zeros {
                match self.read_origin(page, &mut buffer, waiter).await {
                    Ok(pages) => frames.keep(core, pages),
                    Err(error) => {
                        frames.keep(core, 0);
                        if is_alone {
                            return Err(error);
                        }
                        run.pages = 1;
                        continue;
                    }
                }
            }
            if !self.insert(handle, &run, &mut frames, waits)? {
                return Ok(Filled::NoMemory);
            }
            if frames.is_empty() {
                return Ok(Filled::Faster);
            }
            self.expect(page, run.page(frames.len()));
            let bytes = frames.len() * PAGE_BYTES;
            let read;
            (buffer, read) = Area::read(core, run.state, buffer, bytes, waiter).await;
            let is_read = read.is_ok();
            let landing = if zeros { &ZEROS.0[..bytes] } else { &*buffer };
            match self.land(handle, &frames, &run, landing, read, access) {
                Ok(()) => return Ok(Filled::Came),
                Err(_) if frames.len() > 1 => run.pages = 1, // another page may be at fault
                Err(error) if is_read => return Err(mapping.page_error("bring", page, error)),
                Err(error) => {
                    let (name, offset) = (mapping.path.clone(), page << PAGE_SHIFT);
                    return Err(Cause::SwapRead { name, offset, cause: Arc::new(error) }.into());
                }
            }
        }
    }

    /// A buffer for these pages, or for the first alone if there is none for all; then the other
    /// folios are given back. `None`: there is none at all, and all are given back.
    fn buffer(frames: &mut RunFrames, core: &Core, zeros: bool) -> Option<AlignedBuffer> {
        if zeros {
            return AlignedBuffer::try_zeroed(0, 1);
        }
        for pages in [frames.len(), 1, 0] {
            frames.keep(core, pages);
            if pages > 0
                && let Some(buffer) = AlignedBuffer::try_zeroed(pages * PAGE_BYTES, PAGE_BYTES)
            {
                return Some(buffer);
            }
        }
        None
    }

    /// Step 2: a lent folio for the first page, and for as many others as there is memory for.
    fn allocate(
        handle: &Handle,
        run: &RunToBring,
        waiter: Option<Waiter<'_>>,
    ) -> Result<RunFrames> {
        let (core, mapping, page) = (&*handle.core, &*handle.mapping, run.first);
        let mut frames = RunFrames::new();
        while frames.len() < run.pages {
            let waiter = waiter.filter(|_| frames.is_empty());
            let got = match (lent::lent_at_once(core, Order::MIN), waiter) {
                (None, Some(Waiter::Thread)) => {
                    let short = |why| Area::no_memory(core, mapping, page, why);
                    Some(lent::allocate_lent(core, Order::MIN).map_err(short)?)
                }
                (None, Some(Waiter::Task(rests))) => lent::evict_for_task(core, Order::MIN, rests),
                (got, _) => got,
            };
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

    /// Step 4: as many as are still absent, and as they were, from the first on. The others are
    /// given back. Those that are left are on their way: in the index, with a reference of this
    /// thread's. False: the index has no memory at once, and it is not `needed`.
    fn insert(
        &self,
        handle: &Handle,
        run: &RunToBring,
        frames: &mut RunFrames,
        needed: bool,
    ) -> Result<bool> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let mut coming = 0;
        let mut done = Ok(true);
        let mut changing = mapping.change();
        // Ends: each turn inserts one, or makes nodes for it.
        while coming < frames.len() {
            let (page, head) = (run.page(coming), frames[coming]);
            let as_before = changing.own().is_some_and(|it| it.get(page) == run.state(coming));
            if self.is_closed() || !as_before || changing.head(page).is_some() {
                break;
            }
            if !changing.own().is_some_and(|it| it.make_room(page)) {
                done = Err(mapping.no_heap(page));
                break;
            }
            let frame = core.frames.frame(head);
            let order = Order::MIN;
            frame.set_identity(Identity { mapping: mapping.id, index: page, order });
            let inserted = changing.writer(&core.nodes).insert(page, u32::from(order.get()), head);
            match inserted {
                Ok(()) => {
                    changing.folios_added(1);
                    frame.count.get(1);
                    coming += 1;
                }
                Err(short) => {
                    frame.forget_identity();
                    // Others may wait for those before it.
                    let first = needed && coming == 0;
                    drop(changing);
                    core.waiters.wake(head.0);
                    let wanted = match short {
                        InsertError::NoNodes(short) => short.wanted,
                        InsertError::Occupied(_) => unreachable!("asked under the same mutex"),
                    };
                    let refilled = reclaim::refill_nodes(core, wanted, first);
                    changing = mapping.change();
                    if !matches!(refilled, Ok(true)) {
                        let short = |why| Area::no_memory(core, mapping, run.first, why);
                        done = refilled.map_err(short);
                        break;
                    }
                }
            }
        }
        drop(changing);
        frames.keep(core, coming);
        if coming > 0 { Ok(true) } else { done }
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
        coming: &[FrameNumber],
        run: &RunToBring,
        bytes: &[u8],
        mut read: std::io::Result<()>,
        access: FaultAccess,
    ) -> std::io::Result<()> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let zeros = self.is_zeros(run);
        let mut changing = mapping.change();
        let is_wanted = |n: usize| core.frames.frame(coming[n]).identity().mapping == mapping.id;
        let mut n = 0;
        let mut landed = [false; RUN_MAX];
        // Ends: each turn lands at least one, or passes it over.
        while n < coming.len() && read.is_ok() {
            if !is_wanted(n) {
                n += 1;
                continue;
            }
            let stores = access == FaultAccess::Store && (n == 0 || zeros);
            let same = |it: &usize| is_wanted(*it) && (zeros || !stores);
            let end = n + 1 + (n + 1..coming.len()).take_while(same).count();
            let at = self.addresses(&(run.page(n)..run.page(end)));
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
                    core.give_slots([states.store(run.page(it), || {})]); // it came unprotected
                }
                let frame = core.frames.frame(coming[it]);
                frame.change_end();
                if core.residency.insert(&core.frames, coming[it], mapping.ghosts_of) {
                    core.counters.count(Event::Refault);
                }
            }
            n = end;
        }
        // If the wanted page was forgotten meanwhile, a failed read of its old bytes is no error: the
        // access looks again.
        let is_forgotten = !is_wanted(0);
        for n in (0..coming.len()).filter(|&n| !is_wanted(n)) {
            if let PageState::Swapped(slot) = run.state(n)
                && !mutant::on(Mutant::SlotFreedEarly)
            {
                core.give_slots([Unused(Some(slot))]);
            }
        }
        let mut gone = RunFrames::new();
        for n in (0..coming.len()).filter(|&n| !landed[n] && is_wanted(n)) {
            core.remove(&mut changing, run.page(n), coming[n]);
            gone.push(coming[n]);
        }
        drop(changing);
        for (n, &head) in coming.iter().enumerate() {
            core.waiters.wake(head.0);
            if n == 0 && landed[0] {
                core.keep_recent(Held::adopt(core, head));
            } else {
                core.put(head);
            }
        }
        for &head in gone.iter() {
            core.put(head); // the index's
        }
        if self.is_closed() {
            core.mappings.retire(mapping);
        }
        core.pressure.progress();
        if is_forgotten { Ok(()) } else { read }
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
