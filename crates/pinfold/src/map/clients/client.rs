//! One client: its memory, the faults that wait in it, and what is put there, by the kind of
//! region:
//!
//! | the page | `Shared` | `Private` |
//! |---|---|---|
//! | removed by the client, or known to be zeros | `UFFDIO_ZEROPAGE` of the run | the same |
//! | in the cache | is lent; `UFFDIO_CONTINUE` of the adjacent lent pages | `UFFDIO_COPY` of the folio |
//! | neither | is read; the fault waits | the same |
//!
//! Of the folio, as much as is in the aligned 128 KiB. A page that cannot get into the mirror, or
//! for which too much is kept by calls that hang, is copied to whoever wants it. Which pages were
//! installed is a hint: the kernel takes them away again when the cache evicts them.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::ahead::{Ahead, ReadFor};
use super::error::{ClientError, ClientResult};
use super::foreign::{Foreign, Message};
use super::pages::{BLOCK_PAGES, PageSet, widest};
use super::regions::{ClientMapping, ClientMemory, Region, Regions};
use super::snapshot::{RUN_PAGES, Snapshot};
use crate::base::mutant::{self, Mutant};
use crate::error::{Cause, Error};
use crate::file::File;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::map::around;
use crate::pages::handle::Handle;

/// The most pages that one call installs for a fault, and the blocks within which it does: of
/// zeros, and of copies. Of shared memory it is [`RUN_PAGES`].
const ZERO_RUN_PAGES: u64 = 512;
const COPY_RUN_PAGES: u64 = around::PAGES;

/// Into so many pieces all clients together may cut what they have removed: 256 GiB of which single
/// pages were. And so many pieces are remembered of what was installed.
pub(super) const REMOVED_MAX: usize = 16 << 10;
const INSTALLED_MAX: usize = 4 << 10;

// What is looked at for one fault is in one block of a set.
const _: () = assert!(BLOCK_PAGES.is_multiple_of(ZERO_RUN_PAGES));
const _: () = assert!(BLOCK_PAGES.is_multiple_of(RUN_PAGES));

const AGAIN_MAX: usize = 256;

/// How often it is looked whether a client lives.
const LOOK: Duration = Duration::from_secs(1);

/// An address of no client's mapping, but of a user's.
const ADDRESS_OF_NONE: u64 = 1 << 20;

const ANY: Range<u64> = 0..u64::MAX;

/// How long a fault rests that has to be tried again: at first, and at most.
const REST_MIN: Duration = Duration::from_micros(200);
const REST_MAX: Duration = Duration::from_millis(50);

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each says one thing by itself")]
pub(super) struct Client {
    pub(super) uffd: Foreign,
    /// A handle of its own, which sees its own order of pages.
    pub(super) file: Arc<File>,
    regions: Regions,
    installed: PageSet,
    /// Pages that were installed, and that no counter of `Clients` has yet.
    pub(super) uncounted: u64,
    /// Those that it has removed: zeros, from then on.
    removed: PageSet,
    /// How many pieces these are, as those of all were counted: installed, and removed.
    pub(super) counted: [usize; 2],
    /// Pages that are read; each with what [`Again::short_for`] was of the fault that waits for it.
    pub(super) waiting: HashMap<u64, Duration>,
    pub(super) again: VecDeque<Again>,
    /// How long the next fault rests that has to be tried again.
    pub(super) rest: Duration,
    pub(super) ahead: Option<Ahead>,
    /// What was read for it.
    pub(super) came: VecDeque<(ReadFor, crate::error::Result<()>)>,
    /// It is in the round.
    pub(super) is_ready: bool,
    /// Its userfaultfd has messages.
    pub(super) has_said: bool,
    /// Its userfaultfd cannot be waited for.
    pub(super) is_broken: bool,
    /// Its userfaultfd is not waited for: too many of its pages are read already.
    pub(super) is_paused: bool,
    /// Its place in `Clients::due`. None while it has a turn.
    pub(super) due_at: Option<Instant>,
    /// When it is looked whether it lives.
    looked_at: Instant,
}

/// A fault that could not be served, and when it is tried again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Again {
    pub(super) address: u64,
    pub(super) at: Instant,
    /// How long it has rested in all because there was no memory for its page: neither the time of
    /// reads counts, nor time in which this thread did not run.
    pub(super) short_for: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultOutcome {
    Done,
    Absent(u64),
    Later,
}

impl Client {
    pub(super) fn new(
        uffd: Foreign,
        mappings: &[ClientMapping],
        snapshot: &Snapshot,
    ) -> ClientResult<Self> {
        let regions = Regions::new(mappings, snapshot.pages)?;
        // Faults that a server before this one has taken off the queue, and not served.
        for region in regions.all() {
            uffd.wake(region.start..region.start + (region.pages << PAGE_SHIFT));
        }
        let (installed, removed) = Default::default();
        Ok(Client {
            uffd,
            file: Arc::new(File::clone(&snapshot.file)),
            regions,
            installed,
            uncounted: 0,
            removed,
            counted: [0; 2],
            waiting: HashMap::new(),
            again: VecDeque::new(),
            rest: REST_MIN,
            ahead: None,
            came: VecDeque::new(),
            is_ready: false,
            has_said: false,
            is_broken: false,
            is_paused: false,
            due_at: None,
            looked_at: Instant::now(),
        })
    }

    /// The page of the snapshot that a fault at `address` is for, if it is for one.
    pub(super) fn page_at(&self, address: u64) -> ClientResult<Option<u64>> {
        let region = self.regions.at(address).ok_or_else(|| ClientError::outside(address))?;
        Ok((region.memory != ClientMemory::Zeros).then(|| region.page(address)))
    }

    /// Whether `page` is zeros in its memory, as far as is known: no read brings it.
    pub(super) fn is_zero(&self, snapshot: &Snapshot, page: u64) -> bool {
        self.removed.has(page) || snapshot.is_zero(page)
    }

    pub(super) fn address_of(&self, page: u64) -> Option<u64> {
        Some(self.regions.of_page(page)?.addresses(&(page..page + 1)).start)
    }

    pub(super) fn hear(&mut self, message: Message) -> ClientResult {
        match message {
            Message::Fault(_) => {}
            Message::WriteProtected(address) => {
                let text = "write protection is not served";
                let text = format!("a thread waits to write to address {address:#x}: {text}");
                return Err(ClientError::Wrong(text));
            }
            Message::Removed(range) => {
                for part in self.regions.parts(range) {
                    self.removed.add_all(part.snapshot());
                    self.installed.remove_all(part.snapshot());
                }
                if self.removed.pieces() > REMOVED_MAX {
                    return Err(ClientError::pieces(REMOVED_MAX));
                }
            }
            Message::Unmapped(range) => {
                self.regions.unmap(range.clone())?;
                self.uffd.wake(range);
            }
            Message::Moved { from, to, bytes } => {
                self.regions.moved(from, to, bytes)?;
                self.uffd.wake(from..from.saturating_add(bytes));
            }
            Message::Unknown(event) => {
                let text = "which is not served: leave that feature of the userfaultfd off";
                let text = format!("its userfaultfd reports event {event:#x}, {text}");
                return Err(ClientError::Wrong(text));
            }
        }
        Ok(())
    }

    /// Serves the fault at `address`, and with it what is at hand of its neighbours, unless the
    /// page is wanted `alone`. An error of the cache is of this page alone.
    pub(super) fn serve(
        &mut self,
        snapshot: &mut Snapshot,
        address: u64,
        alone: bool,
    ) -> ClientResult<FaultOutcome> {
        let region = self.regions.at(address).ok_or_else(|| ClientError::outside(address))?;
        let page = region.page(address);
        let within = if alone { page..page + 1 } else { ANY };
        let asked = PageAsked { region, page, within };
        // It asks for what was installed: so it was taken away again, with its neighbours probably.
        if region.memory != ClientMemory::Zeros && self.installed.has(page) {
            self.installed.remove_all(asked.bounds(RUN_PAGES));
        }
        let outcome = self.put(snapshot, &asked);
        if let Ok(FaultOutcome::Done) = outcome {
            self.rest = REST_MIN;
        }
        outcome
    }

    /// Installs a page that it may ask for soon. Its neighbours also, but of copies only those of
    /// `wanted`: they take memory of the client's own.
    pub(super) fn serve_ahead(
        &mut self,
        snapshot: &mut Snapshot,
        page: u64,
        wanted: &Range<u64>,
    ) -> ClientResult<FaultOutcome> {
        match self.regions.of_page(page) {
            Some(region) if !self.installed.has(page) => {
                let is_copied = region.memory == ClientMemory::Private;
                let within = if is_copied { wanted.clone() } else { ANY };
                self.put(snapshot, &PageAsked { region, page, within })
            }
            _ => Ok(FaultOutcome::Done),
        }
    }

    fn put(&mut self, snapshot: &mut Snapshot, asked: &PageAsked) -> ClientResult<FaultOutcome> {
        let PageAsked { region, page, .. } = *asked;
        if self.is_zero(snapshot, page) || region.memory == ClientMemory::Zeros {
            return self.put_zeros(snapshot, asked);
        }
        let file = self.file.clone();
        if region.memory == ClientMemory::Private {
            return self.put_copies(snapshot, file.handle(), asked);
        }
        let bounds = asked.bounds(RUN_PAGES);
        let alone = PageAsked { within: page..page + 1, ..*asked };
        let run = match snapshot.run(file.handle(), page, &bounds, &self.installed) {
            Ok(Some(run)) => run,
            Ok(None) => return Ok(FaultOutcome::Absent(page)),
            // The system has no memory for the mirror, or another client disturbs it: that is not
            // this client's error. The page is its own then.
            Err(cause) if is_of_mirror(&cause) => {
                return self.put_copies(snapshot, file.handle(), &alone);
            }
            Err(cause) => return Err(cause.into()),
        };
        if snapshot.is_zero(page) {
            drop(run);
            return self.put_zeros(snapshot, asked);
        }
        // Processes whose calls hang may keep so much that nothing is left for this one.
        let is_alone = bounds.end - bounds.start == 1;
        let Some(_kept) = file.handle().core.mapped.may_install(run.frames(), is_alone) else {
            drop(run);
            return if is_alone {
                self.put_copies(snapshot, file.handle(), &alone)
            } else {
                self.put(snapshot, &alone)
            };
        };
        // Removed pages have to be zeros.
        let removed = self.removed.block_of(page);
        let pages = widest(page, &run.pages, |page| removed.has(*page));
        self.install("map shared pages", asked, pages, Foreign::proceed)
    }

    fn put_zeros(&mut self, snapshot: &Snapshot, asked: &PageAsked) -> ClientResult<FaultOutcome> {
        let (page, bounds) = (asked.page, asked.bounds(ZERO_RUN_PAGES));
        let (removed, is_zero) = (self.removed.block_of(page), snapshot.zeros_near(page));
        let installed = self.installed.block_of(page);
        let is_other = |at: &u64| !(removed.has(*at) || is_zero(at)) || installed.has(*at);
        let all_are = asked.region.memory == ClientMemory::Zeros;
        let pages = if all_are { bounds } else { widest(page, &bounds, is_other) };
        self.install("map pages of zeros", asked, pages, Foreign::zero)
    }

    /// The pages of the folio that has `page`.
    fn put_copies(
        &mut self,
        snapshot: &Snapshot,
        handle: &Handle,
        asked: &PageAsked,
    ) -> ClientResult<FaultOutcome> {
        let PageAsked { region, page, .. } = *asked;
        let held = handle.core.hold(&handle.mapping, page);
        let Some(held) = held.filter(|it| !it.frame().is_changing()) else {
            return Ok(FaultOutcome::Absent(page));
        };
        let folio = held.frame().identity().pages();
        let mut bounds = asked.bounds(COPY_RUN_PAGES);
        bounds = bounds.start.max(folio.start)..bounds.end.min(folio.end);
        let (removed, is_zero) = (self.removed.block_of(page), snapshot.zeros_near(page));
        let installed = self.installed.block_of(page);
        let stops = |at: &u64| installed.has(*at) || removed.has(*at) || is_zero(at);
        let mut pages = widest(page, &bounds, stops);
        // The cache's memory past the end of the file has anything.
        if pages.end - 1 > page && snapshot.bytes_of(pages.end - 1) < PAGE_BYTES {
            pages.end -= 1;
        }
        let address = handle.core.address(&handle.mapping, held.head());
        let address_of = |page: u64| {
            let at = (page - folio.start) << PAGE_SHIFT;
            address.wrapping_add(at as usize)
        };
        let frames = held.frame().order().frames();
        let is_alone = pages.end - pages.start == 1;
        let kept = if is_alone { None } else { handle.core.mapped.may_install(frames, true) };
        if kept.is_none() {
            let mut copy = [0; PAGE_BYTES];
            let (from, bytes) = (address_of(page), snapshot.bytes_of(page));
            // SAFETY: the reference keeps the folio, and the bytes of a folio with holders never
            // change; the file has so many bytes of the page.
            unsafe { std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), bytes) };
            drop(held); // the call may hang
            return self.install("copy a page", asked, page..page + 1, |uffd, to| {
                // SAFETY: the bytes are this thread's.
                unsafe { uffd.copy(to, copy.as_ptr()) }
            });
        }
        let (start, from) = (region.addresses(&pages).start, address_of(pages.start));
        self.install("copy pages", asked, pages, |uffd, to| {
            let from = from.wrapping_add((to.start - start) as usize);
            // SAFETY: as above; the reference is kept meanwhile.
            unsafe { uffd.copy(to, from) }
        })
    }

    /// Makes `call` for the addresses of `pages`, as often as it takes. Threads that wait for what it
    /// installs, or for the page that is asked for, are woken.
    fn install(
        &mut self,
        what: &'static str,
        asked: &PageAsked,
        pages: Range<u64>,
        call: impl Fn(&Foreign, Range<u64>) -> Result<u64, Errno>,
    ) -> ClientResult<FaultOutcome> {
        let PageAsked { region, page: wanted, .. } = asked;
        let (mut at, mut end) = (pages.start, pages.end);
        // Ends: each turn installs pages, leaves some out, or makes the range smaller. At most three
        // meet a page that is there.
        while at < end {
            let range = region.addresses(&(at..end));
            match call(&self.uffd, range.clone()) {
                Ok(bytes) => {
                    let next = end.min(at + (bytes >> PAGE_SHIFT).max(1));
                    self.note_installed(region, at..next);
                    self.uncounted += next - at;
                    at = next;
                }
                Err(Errno::EXIST) => {
                    self.note_installed(region, at..at + 1);
                    // Who waits for another page of the run has sent a message of its own. To look
                    // where the next absent one is could take a call for each.
                    match at.cmp(wanted) {
                        Ordering::Less => at = *wanted,
                        Ordering::Greater => break,
                        // Another of its threads may wait for it still.
                        Ordering::Equal => {
                            self.uffd.wake(region.addresses(&(at..at + 1)));
                            at += 1;
                        }
                    }
                }
                // The rest of the run is asked for if it is wanted.
                Err(Errno::AGAIN | Errno::NOMEM) if at > *wanted => break,
                Err(Errno::AGAIN | Errno::NOMEM) => {
                    if mutant::on(Mutant::PartUncounted) {
                        self.uncounted = 0;
                    }
                    return Ok(FaultOutcome::Later);
                }
                // The range is in more than one piece by now, or is not mapped any more.
                Err(Errno::NOENT) if end - at > 1 => (at, end) = (*wanted, wanted + 1),
                Err(Errno::NOENT) => {
                    self.uffd.wake(range);
                    at += 1;
                }
                Err(Errno::SRCH) => return Err(ClientError::Gone),
                Err(cause) => {
                    let cause = std::io::Error::from(cause);
                    return Err(ClientError::Wrong(format!(
                        "cannot {what} at {:#x}..{:#x}: {cause}: the range is not mapped and \
                         registered as its mappings say",
                        range.start, range.end
                    )));
                }
            }
        }
        Ok(FaultOutcome::Done)
    }

    fn note_installed(&mut self, region: &Region, pages: Range<u64>) {
        if region.memory != ClientMemory::Zeros {
            self.installed.add_all(pages);
            // Only a hint, which need not take any amount of memory.
            if self.installed.pieces() > INSTALLED_MAX {
                self.installed = PageSet::default();
            }
        }
    }

    /// How many pieces there are of what was installed, and of what it has removed.
    pub(super) fn pieces(&self) -> [usize; 2] {
        [self.installed.pieces(), self.removed.pieces()]
    }

    pub(super) fn have(&mut self, [installed, removed]: [usize; 2]) -> ClientResult {
        if installed > INSTALLED_MAX {
            self.installed = PageSet::default(); // only a hint
        }
        if removed > REMOVED_MAX { Err(ClientError::pieces(REMOVED_MAX)) } else { Ok(()) }
    }

    /// Whoever waits for `page` gets SIGBUS. False: nobody does, as its memory has changed, or is
    /// about to; who waits asks again.
    pub(super) fn fail(&self, page: u64) -> bool {
        let Some(region) = self.regions.of_page(page) else { return false };
        let range = region.addresses(&(page..page + 1));
        let poisoned = self.uffd.poison(range.clone());
        if poisoned.is_err() {
            self.uffd.wake(range);
        }
        let none = [Errno::AGAIN, Errno::EXIST, Errno::NOENT, Errno::SRCH].map(Err);
        !none.contains(&poisoned) || mutant::on(Mutant::FailsUnasked)
    }

    /// Whoever waits for the page at `address` asks again.
    pub(super) fn wake(&self, address: u64) {
        self.uffd.wake(address..address + PAGE_BYTES as u64);
    }

    /// Tries the fault at `address` again after a rest. If too many rest, its thread asks again.
    pub(super) fn rest(&mut self, address: u64, short_for: Duration) {
        if mutant::on(Mutant::RestForgotten) {
            return;
        }
        if self.again.iter().all(|again| again.address != address) {
            if self.again.len() >= AGAIN_MAX && !mutant::on(Mutant::RestsWithoutEnd) {
                self.wake(address);
                return;
            }
            self.again.push_back(Again { address, at: Instant::now() + self.rest, short_for });
        }
        self.rest = (self.rest * 2).min(REST_MAX);
    }

    pub(super) fn rested(&mut self) -> Option<Again> {
        let first = self.again.front()?;
        if first.at > Instant::now() {
            return None;
        }
        self.again.pop_front()
    }

    #[cfg(all(test, not(shuttle)))]
    pub(super) fn look_at(&mut self, at: Instant) {
        self.looked_at = at;
    }

    #[cfg(all(test, not(shuttle)))]
    pub(super) fn is_late_by(&mut self, time: Duration) {
        self.again.iter_mut().for_each(|again| again.at -= time);
    }

    /// When it has to be looked after, if nothing happens before.
    pub(super) fn due(&self) -> Instant {
        let look = self.looked_at + LOOK;
        self.again.front().map_or(look, |again| again.at.min(look))
    }

    /// Looks from time to time whether its memory is still there, which its connection does not
    /// say.
    pub(super) fn look_whether_it_lives(&mut self) -> ClientResult {
        if self.looked_at.elapsed() < LOOK {
            return Ok(());
        }
        self.looked_at = Instant::now();
        let at = self.regions.all().next().map_or(ADDRESS_OF_NONE, |region| region.start);
        let is_gone = self.uffd.is_gone(at) && !mutant::on(Mutant::DeadIsServed);
        if is_gone { Err(ClientError::Gone) } else { Ok(()) }
    }
}

/// Whether the cause is that a page cannot get into the mirror.
fn is_of_mirror(cause: &Error) -> bool {
    matches!(cause.cause(), Cause::Mirror { .. }) && !mutant::on(Mutant::MirrorErrorPoisons)
}

/// A page of a region, and the pages that may come with it.
struct PageAsked {
    region: Region,
    page: u64,
    within: Range<u64>,
}

impl PageAsked {
    /// The part of the region that may be installed: of an aligned block of `most` pages, what is
    /// in `within`.
    fn bounds(&self, most: u64) -> Range<u64> {
        let (region, within, block) = (&self.region, &self.within, self.page / most * most);
        let (first, end) = (region.first, region.first + region.pages);
        within.start.max(first).max(block)..within.end.min(end).min(block + most)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::super::Clients;
    use super::super::tests::{Guest, MIB, bytes, snapshot};
    use super::*;

    /// What becomes of a fault on page 5 if `call` installs pages of 2 to 10, and how many pages are
    /// counted. `call` gets pages, and returns how many are installed.
    fn installed(
        call: impl Fn(Range<u64>) -> Result<u64, Errno>,
    ) -> (Result<FaultOutcome, ()>, u64) {
        let (_cache, file) = snapshot(16 * MIB, bytes(MIB));
        let clients = Clients::new(&file).unwrap();
        let guest = Guest::new(&clients, ClientMemory::Shared, 0);
        let uffd = Foreign::new(guest.uffd().try_clone().unwrap()).unwrap();
        let mut client = Client::new(uffd, &[guest.mapping()], &Snapshot::new(&file)).unwrap();
        let region = client.regions.of_page(5).unwrap();
        let asked = PageAsked { region, page: 5, within: ANY };
        let page = |at: u64| (at - region.addresses(&(0..1)).start) >> PAGE_SHIFT;
        let outcome = client.install("map shared pages", &asked, 2..11, |_, range| {
            call(page(range.start)..page(range.end)).map(|pages| pages << PAGE_SHIFT)
        });
        (outcome.map_err(drop), client.uncounted)
    }

    /// How many calls install page 5 of 2 to 10 if these are there already.
    fn calls_beside(there: &[u64]) -> usize {
        let (calls, got_it) = (Cell::new(0), Cell::new(there.contains(&5)));
        let (outcome, _) = installed(|pages| {
            calls.set(calls.get() + 1);
            let new = pages.clone().take_while(|page| !there.contains(page)).count() as u64;
            got_it.set(got_it.get() || (pages.start..pages.start + new).contains(&5));
            if new == 0 { Err(Errno::EXIST) } else { Ok(new) }
        });
        assert!(outcome == Ok(FaultOutcome::Done) && got_it.get(), "{there:?}");
        calls.get()
    }

    #[test]
    fn pages_that_are_there_cost_a_few_calls_whatever_their_number() {
        let all =
            |page: u64| [2, 3, 4, 5, 6, 7, 8, 9, 10].into_iter().filter(move |&at| at != page);
        assert_eq!(calls_beside(&[]), 1);
        assert_eq!(calls_beside(&all(5).collect::<Vec<_>>()), 3);
        assert_eq!(calls_beside(&all(0).collect::<Vec<_>>()), 3);
        assert_eq!(calls_beside(&[3, 7]), 4);
        assert_eq!(calls_beside(&[2, 4, 6, 8, 10]), 3);
    }

    /// [`installed`] if so many pages are installed before this ends it.
    fn ends_after(pages: u64, end: Errno) -> (Result<FaultOutcome, ()>, u64) {
        installed(|asked| if asked.start == 2 && pages > 0 { Ok(pages) } else { Err(end) })
    }

    #[test]
    fn what_was_installed_is_counted_whatever_becomes_of_the_rest() {
        let later = Ok(FaultOutcome::Later);
        for end in [Errno::AGAIN, Errno::NOMEM] {
            assert_eq!(ends_after(0, end), (later, 0));
            assert_eq!(ends_after(3, end), (later, 3), "not the page that is wanted");
            assert_eq!(ends_after(4, end), (Ok(FaultOutcome::Done), 4), "that page is the last");
        }
        for end in [Errno::SRCH, Errno::INVAL] {
            assert_eq!(ends_after(3, end), (Err(()), 3));
        }
        assert_eq!(ends_after(9, Errno::INVAL), (Ok(FaultOutcome::Done), 9));
        let caught = || ends_after(3, Errno::AGAIN);
        let caught = mutant::with(Some(Mutant::PartUncounted), caught);
        assert_eq!(caught, (later, 0), "the mutant does nothing");
    }

    /// Whether somebody gets SIGBUS for the first page: it is absent, is there, is not mapped.
    fn fails() -> [bool; 3] {
        let (_cache, file) = snapshot(16 * MIB, bytes(MIB));
        let clients = Clients::new(&file).unwrap();
        let guest = Guest::new(&clients, ClientMemory::Private, 0);
        let uffd = Foreign::new(guest.uffd().try_clone().unwrap()).unwrap();
        let mut client = Client::new(uffd, &[guest.mapping()], &Snapshot::new(&file)).unwrap();
        let at = client.regions.of_page(0).unwrap().addresses(&(7..8));
        client.uffd.zero(at).unwrap();
        let [absent, there] = [0, 7].map(|page| client.fail(page));
        client.regions.unmap(ANY).unwrap();
        [absent, there, client.fail(1)]
    }

    #[test]
    fn a_fault_whose_page_has_come_has_not_failed() {
        assert_eq!(fails(), [true, false, false]);
        let caught = mutant::with(Some(Mutant::FailsUnasked), fails);
        assert_eq!(caught, [true, true, false], "the mutant does nothing");
    }
}
