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

use std::sync::atomic::Ordering;

use pinfold_policy::Shadow;

use super::protect::Protection;
use super::{Area, Order, Origin, STREAMS, calls};
use crate::core::{Core, Held};
use crate::counters::Event;
use crate::error::{ErrorKind, Result};
use crate::frame::{self, FrameNumber, Identity, PAGE_BYTES, PAGE_SHIFT};
use crate::handle::Handle;
use crate::index::InsertError;
use crate::lend;
use crate::mapping::Changing;
use crate::reclaim;
use crate::source::AlignedBuffer;
use crate::space::vma::Access;
use crate::swap::pages::{State, Unused};
use crate::swap::slots::Slot;

/// The most pages that come at once.
const RUN_MAX: u64 = 32;

/// What a fault finds.
enum Look<'a> {
    There,
    OnItsWay(Held<'a>),
    Absent(Run),
}

/// Pages that can come at once.
#[derive(Clone, Debug)]
struct Run {
    first: u64,
    /// What each of them is.
    states: Vec<State>,
    /// It comes with what the program stores, and not with its bytes.
    is_replaced: bool,
}

impl Run {
    fn of(first: u64, state: State) -> Self {
        Run { first, states: vec![state], is_replaced: false }
    }
}

/// A page on its way: in the index, with a reference of this thread's.
struct Coming {
    page: u64,
    head: FrameNumber,
    shadow: Option<Shadow>,
}

impl Area {
    /// Whether the access to `page` can be repeated. Pages of zeros come at once if there is
    /// memory; nothing is read.
    pub(crate) fn look(&self, handle: &Handle, page: u64, access: Access) -> Result<bool> {
        match self.find(handle, page, access)? {
            Look::There => Ok(true),
            Look::Absent(run) if self.is_zeros(&run) => self.fill(handle, page, run, access, false),
            Look::OnItsWay(_) | Look::Absent(_) => Ok(false),
        }
    }

    /// Brings `page`, or waits for who does. It is kept from eviction for a while.
    ///
    /// # Errors
    /// It cannot be read, there is no memory for it, or the map is not there any more.
    pub(crate) fn bring(&self, handle: &Handle, page: u64, access: Access) -> Result<()> {
        self.bring_as(handle, page, access, None)
    }

    /// The same; or for a store of all of the page, the `whole` bytes: those that it had are not
    /// read from the swap.
    pub(super) fn bring_as(
        &self,
        handle: &Handle,
        page: u64,
        access: Access,
        whole: Option<&[u8]>,
    ) -> Result<()> {
        let core = &handle.core;
        // Ends: each turn waits for another thread, or follows one in which another was faster.
        loop {
            match self.find(handle, page, access)? {
                Look::There => return Ok(()),
                Look::OnItsWay(held) => {
                    core.counters.count(Event::Wait);
                    let is_on_its_way = || crate::fill::is_on_its_way(held.frame());
                    core.waiters.wait(held.head().0, || !is_on_its_way());
                }
                Look::Absent(mut run) => {
                    let whole = whole.filter(|_| matches!(run.states[0], State::Swapped(_)));
                    if whole.is_some() {
                        run.states.truncate(1);
                    }
                    let _bringing = lend::bringing(core, run.states.len() as u32);
                    let has_come = match whole {
                        Some(bytes) => self.replace(handle, run, bytes)?,
                        None => self.fill(handle, page, run, access, true)?,
                    };
                    if has_come {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Ends the poison of absent pages.
    pub(in crate::space) fn unpoison(&self, handle: &Handle, pages: std::ops::Range<u64>) {
        let mut changing = handle.mapping.change();
        let mut from = pages.start;
        // Ends: each turn begins after the last one's folio.
        while from < pages.end {
            let next = changing.writer(&handle.core.nodes).next_present(from..pages.end);
            let (absent_to, next) = next.map_or((pages.end, pages.end), |it| (it.page, it.end()));
            if from < absent_to {
                calls::take_out(&self.addresses(&(from..absent_to)));
            }
            from = next;
        }
    }

    fn is_zeros(&self, run: &Run) -> bool {
        matches!(self.origin, Origin::Zeros) && run.states[0] == State::Origin
    }

    /// Step 1.
    fn find<'a>(&self, handle: &'a Handle, page: u64, access: Access) -> Result<Look<'a>> {
        handle.core.check_owner()?;
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let mut changing = mapping.change();
        if self.is_closed() || page >= self.pages() {
            let why = std::io::Error::other("it is not there any more");
            return Err(Area::refused(mapping, "bring", &(page..page + 1), why));
        }
        let Some(head) = changing.head(page) else {
            return Ok(Look::Absent(self.run(&mut changing, page)));
        };
        if core.frames.frame(head).is_changing() {
            let held = core.hold_under_change(head);
            let path = || mapping.path.clone();
            return held
                .map(Look::OnItsWay)
                .ok_or_else(|| ErrorKind::TooManyReferences { path: path(), page }.into());
        }
        if access == Access::Store {
            self.store(core, &mut changing, page);
        }
        Ok(Look::There)
    }

    /// A store to a page that is there begins.
    pub(super) fn store(&self, core: &Core, changing: &mut Changing<'_>, page: u64) {
        let pages = changing.own().expect("own memory has states");
        let allow = || calls::protect(self.fd(), &self.addresses(&(page..page + 1)), false);
        give(core, pages.store(page, allow));
    }

    /// Which absent pages can come together with `page`.
    fn run(&self, changing: &mut Changing<'_>, page: u64) -> Run {
        let state = changing.own().expect("own memory has states").get(page);
        let mut run = Run::of(page, state);
        let goes_on = match self.order() {
            Order::Random => false,
            Order::Sequential => true,
            Order::Unknown => page == 0 || self.is_expected(page),
        };
        let end = if goes_on { self.pages().min(page + RUN_MAX) } else { page + 1 };
        for next in page + 1..end {
            let fits = match (state, changing.own().map(|pages| pages.get(next))) {
                (State::Swapped(Slot(first)), Some(State::Swapped(Slot(slot)))) => {
                    u64::from(slot) == u64::from(first) + (next - page)
                }
                (State::Origin, Some(State::Origin)) => true,
                _ => false,
            };
            if !fits || changing.head(next).is_some() {
                break;
            }
            run.states.push(State::Origin);
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

    /// Steps 2 to 7 for `page`, the first of a run. False: another thread was faster; or there is
    /// no memory at once, unless it is `needed`.
    fn fill(
        &self,
        handle: &Handle,
        page: u64,
        mut run: Run,
        access: Access,
        needed: bool,
    ) -> Result<bool> {
        let (core, mapping) = (&*handle.core, &*handle.mapping);
        let mut frames = Vec::with_capacity(run.states.len());
        for n in 0..run.states.len() {
            let got = reclaim::allocate_lent(core, frame::Order::MIN, needed && n == 0);
            let got =
                got.map_err(|why| Area::no_memory(core, mapping, page, why.of(mapping, page)));
            match got {
                Ok(Some((head, _))) => frames.push(head),
                Ok(None) => break,
                Err(error) => return Err(error),
            }
        }
        run.states.truncate(frames.len());
        if run.states.is_empty() {
            return Ok(false);
        }
        let mut buffer = AlignedBuffer::zeroed(run.states.len() * PAGE_BYTES, PAGE_BYTES);
        if let (State::Origin, Origin::File(file, from)) = (run.states[0], &self.origin) {
            let read = file.read_at(&mut buffer, from + (page << PAGE_SHIFT)).and_then(|bytes| {
                // The file may have become shorter.
                file.handle().check_page((from >> PAGE_SHIFT) + page)?;
                Ok(bytes.div_ceil(PAGE_BYTES).max(1))
            });
            match read {
                Ok(pages) => {
                    run.states.truncate(pages);
                    give_back(core, frames.drain(run.states.len()..));
                }
                Err(error) => {
                    give_back(core, frames);
                    if run.states.len() > 1 {
                        let alone = Run::of(page, run.states[0]);
                        return self.fill(handle, page, alone, access, needed);
                    }
                    return Err(error);
                }
            }
        }
        let coming = self.insert(handle, &run, frames, needed)?;
        if coming.is_empty() {
            return Ok(false);
        }
        self.expect(page, page + coming.len() as u64);
        let read = Area::read(core, run.states[0], &mut buffer[..coming.len() * PAGE_BYTES]);
        let alone = coming.len() == 1;
        match (self.land(handle, &coming, &run, &buffer, read, access), alone) {
            (Ok(()), _) => Ok(true),
            (Err(_), false) => {
                // Another page may be at fault.
                self.fill(handle, page, Run::of(page, run.states[0]), access, needed)
            }
            (Err(error), true) => {
                let why = Area::read_error(handle, page, run.states[0], error);
                Err(why)
            }
        }
    }

    /// Steps 2, 4, 6 and 7 for a run of one page, all of which is stored to. False: another thread
    /// was faster.
    fn replace(&self, handle: &Handle, run: Run, bytes: &[u8]) -> Result<bool> {
        let (core, mapping, page) = (&*handle.core, &*handle.mapping, run.first);
        let got = reclaim::allocate_lent(core, frame::Order::MIN, true);
        let got = got.map_err(|why| Area::no_memory(core, mapping, page, why.of(mapping, page)))?;
        let Some((head, _)) = got else { return Ok(false) };
        let run = Run { is_replaced: true, ..run };
        let coming = self.insert(handle, &run, vec![head], true)?;
        if coming.is_empty() {
            return Ok(false);
        }
        let landed = self.land(handle, &coming, &run, bytes, Ok(()), Access::Store);
        landed.map_err(|why| Area::refused(mapping, "bring", &(page..page + 1), why))?;
        Ok(true)
    }

    fn read_error(
        handle: &Handle,
        page: u64,
        state: State,
        error: std::io::Error,
    ) -> crate::error::Error {
        let mapping = &*handle.mapping;
        if let State::Swapped(_) = state {
            let (name, offset) = (mapping.path.clone(), page << PAGE_SHIFT);
            return ErrorKind::SwapRead { name, offset, cause: std::sync::Arc::new(error) }.into();
        }
        Area::refused(mapping, "bring", &(page..page + 1), error)
    }

    /// Step 4: as many as are still absent, and as they were, from the first on.
    fn insert(
        &self,
        handle: &Handle,
        run: &Run,
        frames: Vec<FrameNumber>,
        needed: bool,
    ) -> Result<Vec<Coming>> {
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
            let order = frame::Order::MIN;
            frame.set_identity(Identity { mapping: mapping.id, index: page, order });
            let inserted =
                changing.writer(&core.nodes).insert(page, u32::from(order.get()), head, page);
            match inserted {
                Ok(inserted) => {
                    changing.folios_added(1);
                    frame.count.get(1);
                    let shadow = inserted.refault.map(Shadow::from_payload);
                    coming.push(Coming { page, head, shadow });
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
                        Ok(false) if coming.is_empty() => {
                            give_back(core, frames);
                            return Ok(coming);
                        }
                        Ok(false) => {
                            give_back(core, frames[coming.len()..].to_vec());
                            return Ok(coming);
                        }
                        Err(why) => {
                            give_back(core, frames[coming.len()..].to_vec());
                            let error = why.of(mapping, run.first);
                            if coming.is_empty() {
                                return Err(Area::no_memory(core, mapping, run.first, error));
                            }
                            return Ok(coming);
                        }
                    }
                    changing = mapping.change();
                }
            }
        }
        drop(changing);
        give_back(core, frames[coming.len()..].to_vec());
        Ok(coming)
    }

    /// Step 5.
    fn read(core: &Core, first: State, to: &mut [u8]) -> std::io::Result<()> {
        match (first, &core.swap) {
            (State::Swapped(slot), Some(swap)) => {
                let call = core.engine.begin_call();
                let done = swap.read(slot, to);
                if done.is_err() {
                    call.fail();
                }
                done
            }
            (State::Swapped(_), None) => Err(std::io::Error::other("there is no swap")),
            _ => Ok(()),
        }
    }

    /// Steps 6 and 7. `page`s access is the first's.
    fn land(
        &self,
        handle: &Handle,
        coming: &[Coming],
        run: &Run,
        bytes: &[u8],
        mut read: std::io::Result<()>,
        access: Access,
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
            let stores = access == Access::Store && (n == 0 || zeros);
            let same = |it: &&Coming| is_wanted(it) && (zeros || !stores);
            let end = n + 1 + coming[n + 1..].iter().take_while(same).count();
            let pages = coming[n].page..coming[n].page + (end - n) as u64;
            let at = self.addresses(&pages);
            let put = if zeros && !stores {
                calls::zero(self.fd(), &at)
            } else {
                // Stored to at once: a page of its own now costs less than a further fault.
                let from = &bytes[n * PAGE_BYTES..end * PAGE_BYTES];
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
                if coming[it].shadow.is_some() {
                    core.counters.count(Event::Refault);
                }
                core.residency.insert(&core.frames, coming[it].head, coming[it].shadow);
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

/// Gives back a slot that is of no more use.
pub(super) fn give(core: &Core, unused: Unused) {
    if let Some(swap) = &core.swap {
        swap.give(unused);
    }
}

/// Gives back frames that were allocated in vain.
fn give_back(core: &Core, frames: impl IntoIterator<Item = FrameNumber>) {
    for head in frames {
        core.give_back(head);
    }
}
