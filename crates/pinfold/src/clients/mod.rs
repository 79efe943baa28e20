//! Memory of other processes: any number of clients whose memory is a snapshot, one physical copy
//! of it, and one budget.
//!
//! [`Clients`] is given a client's userfaultfd and mappings, and serves the client's faults from a
//! [`File`] of the cache. How they got here is not its business: `pinfold serve` has the socket and
//! the protocol ([docs/serve.md](../../../../docs/serve.md)).
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | the loop: who is to be looked after, and reads that are under way |
//! | `client.rs` | one client: how a fault is served |
//! | `ahead.rs` | what is installed before it is asked for: the order, and what is read at once |
//! | `snapshot.rs` | which pages can be mapped now, and which are zeros |
//! | `regions.rs` | which addresses of a client are which pages; what is checked of them |
//! | `foreign.rs` | the userfaultfd of another process |
//! | `pages.rs` | sets of pages |
//! | `error.rs` | why a client is not served |
//!
//! # States of a fault
//!
//! | state | where | ends when |
//! |---|---|---|
//! | asked | the kernel's queue | its message is read |
//! | waiting | `Client::waiting`, and a job of `Completions` | the page was read, or cannot be |
//! | resting | `Client::again` | its time has come |
//! | served | nowhere | |
//!
//! A fault rests while its client is changing its memory, and while there is no room in the mirror.
//!
//! No state has a thread. A client whose faults wait for too many reads is not asked for more
//! (`READS_MAX`), so the others have their share of the source. Faults that rest do not count: what
//! they wait for may be that the client is heard.
//!
//! # What is read
//!
//! A fault's page is read by a future of the client's own handle, whose stream sees where the
//! client goes on in order, and then reads ahead in windows. Before any other read the pages around
//! are begun (`around.rs`), so that the future finds its page on the way. It copies a byte, and
//! takes no guard: for a guard a large folio would be split, and its pages lent one by one.
//!
//! # What is not trusted
//!
//! All that a client says, and what is in the mirror: a client has a read-only descriptor of it,
//! and can make pages of zeros there, by touching them through a mapping that it has not
//! registered. So a page is installed only while the index says that it is lent, and under a
//! reference, so that it stays lent meanwhile. A page that cannot be lent because of that is copied
//! to whoever wants it. And no file is both served and mapped by the program (`Mirror::give_out`).

mod ahead;
mod client;
mod error;
mod foreign;
mod pages;
mod regions;
mod snapshot;
#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "an address and an access to it")]
#[allow(clippy::single_range_in_vec_init, reason = "one run")]
mod tests;

use std::collections::{BTreeMap, HashMap, hash_map};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::around;
use crate::completions::{Completions, Outcome};
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::frame::{PAGE_BYTES, PAGE_SHIFT};
use crate::lend::{self, Mapper};
use crate::many;
use crate::mirror::Refused;
use crate::mutant::{self, Mutant};
use crate::reclaim;
use ahead::{Ahead, Plan};
use client::{Client, Served};
pub use error::ClientError;
use foreign::{Foreign, Message};
use pages::Pages;
pub use regions::{ClientMapping, ClientMemory};
use snapshot::Snapshot;

/// The most reads that are under way for the faults of one client.
const READS_MAX: usize = 64;

/// Clients that are heard, and faults that are tried again, in one turn.
const TURN_MAX: usize = 64;

/// Reads that are taken in one turn. Few: a client whose page was there first may have its next
/// fault by then, whose read is to begin before all others have the page.
const READS_TAKEN_MAX: usize = 4;

/// How long a fault waits for room in the mirror.
const PATIENCE: Duration = Duration::from_secs(30);

/// In the epoll: the completions. Clients count from 1 on.
const COMPLETIONS: u64 = 0;

/// The number of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// What [`Clients::work`] has to tell.
#[derive(Debug)]
pub enum ClientEvent {
    /// The client was given up. Its descriptor is closed.
    Ended {
        /// Which.
        client: ClientId,
        /// Why.
        cause: ClientError,
    },
    /// A page could not be read, and the thread that waits for it gets SIGBUS.
    PageFailed {
        /// Whose.
        client: ClientId,
        /// The page's offset in the snapshot.
        offset: u64,
        /// Why.
        cause: Error,
    },
}

/// Counters of [`Clients`]: of all clients that there were, unless they say something else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::struct_field_names, reason = "what is counted")]
pub struct ClientsStats {
    /// Clients that are served at the moment.
    pub clients: u64,
    /// Of these, the ones for which pages are still being installed ahead.
    pub ahead: u64,
    /// Clients that were added.
    pub added: u64,
    /// Faults that clients have reported.
    pub faults: u64,
    /// Reads for which faults have waited. Several faults of one client on one page wait for one.
    pub waited: u64,
    /// How often a fault was put off, because its client was changing its memory, or because there
    /// was no room in the mirror.
    pub again: u64,
    /// Pages that were installed for faults: those that were asked for, and their neighbours.
    pub installed: u64,
    /// Pages that were installed ahead of faults.
    pub installed_ahead: u64,
    /// Faults that ended with SIGBUS, as their page could not be read, or there was no memory for
    /// it.
    pub failed: u64,
    /// Bytes that the memory which clients share takes at the moment, as the system counts them.
    pub shared_bytes: u64,
}

/// Other processes whose memory is a snapshot.
///
/// A client maps [`memory`](Self::memory), registers the mapping with a userfaultfd, and hands the
/// userfaultfd over; from then on its pages come from the cache, within the budget, and each is in
/// memory once for all clients. A page that a client stores to becomes its own: the kernel copies
/// it. A client that has anonymous memory instead ([`ClientMemory::Private`]) gets a copy of each
/// page, which is in no budget.
///
/// **What is read.** Where a client touches pages in order, the cache reads ahead, as for
/// [`File`]s. Any other absent page is read with the absent pages of its aligned 128 KiB, as long
/// as an eighth of the budget is unused and the cache reads ahead at all
/// ([`Options::readahead_max_bytes`](crate::Options::readahead_max_bytes)). Each read serves all
/// clients.
///
/// **What is installed.** With a page, the client gets what is cached around it, by one system
/// call: of shared memory up to 512 KiB, of copies up to 128 KiB.
///
/// One thread uses it, as part of its event loop: it waits for the descriptor ([`AsFd`]) and for
/// [`timeout`](Self::timeout), and then calls [`work`](Self::work), which waits for no client and
/// no read.
///
/// `docs/serve.md` has what a client has to do, and what a client that is
/// not trusted can do.
#[derive(Debug)]
#[allow(clippy::struct_field_names, reason = "its clients are what it is about")]
pub struct Clients {
    snapshot: Snapshot,
    completions: Completions,
    epoll: OwnedFd,
    clients: BTreeMap<u64, Client>,
    last_client: u64,
    jobs: HashMap<u64, Job>,
    last_job: u64,
    /// Of [`Self::record`].
    touched: Option<Touched>,
    stats: ClientsStats,
    /// The last plan of [`Self::install_ahead`], and what it is for.
    plan: Option<(Arc<[u64]>, Arc<Plan>)>,
    _mapper: Mapper,
}

/// A read that is under way.
#[derive(Debug)]
struct Job {
    client: u64,
    what: Read,
}

#[derive(Debug)]
enum Read {
    /// Of a page.
    Fault(u64),
    /// Of pieces that are installed ahead: so many pages of them are waited for.
    Ahead(Arc<Plan>, Range<usize>, usize),
}

/// The pages that clients have asked for.
#[derive(Debug)]
struct Touched {
    seen: Pages,
    new: Vec<u64>,
}

impl Clients {
    /// No clients yet, of a snapshot which is `file`. Its length must not change.
    ///
    /// # Errors
    /// [`ErrorKind::SpaceBudget`] if the cache has less than 8 MiB; [`ErrorKind::MappedOrServed`]
    /// if the program maps the file, which it cannot do any more after this;
    /// [`ErrorKind::Eventfd`]; [`ErrorKind::Mirror`] if the system gives no memory file;
    /// [`ErrorKind::Forked`].
    pub fn new(file: &File) -> Result<Self> {
        let handle = file.handle();
        handle.core.check_owner()?;
        let mapper = Mapper::new(&handle.core)?;
        let mirror = lend::of(handle)?;
        let completions = Completions::new()?;
        let eventfd = |why: Errno| ErrorKind::Eventfd { cause: Arc::new(why.into()) };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(eventfd)?;
        let data = epoll::EventData::new_u64(COMPLETIONS);
        epoll::add(&epoll, &completions, data, epoll::EventFlags::IN).map_err(eventfd)?;
        // Last, as it cannot be taken back.
        if !mirror.give_out() && !mutant::on(Mutant::MappedAndServed) {
            let (path, what) = (handle.mapping.path.clone(), "serve");
            return Err(ErrorKind::MappedOrServed { path, what }.into());
        }
        Ok(Clients {
            snapshot: Snapshot::new(file),
            completions,
            epoll,
            clients: BTreeMap::new(),
            last_client: 0,
            jobs: HashMap::new(),
            last_job: 0,
            touched: None,
            stats: ClientsStats::default(),
            plan: None,
            _mapper: mapper,
        })
    }

    /// A read-only descriptor of the memory that all clients share, for a client to map with
    /// `MAP_PRIVATE`. Each page has its offset in the snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::Mirror`]: the system gives no descriptor.
    pub fn memory(&self) -> Result<OwnedFd> {
        use std::os::fd::AsRawFd;
        let handle = self.snapshot.file.handle();
        let path = format!("/proc/self/fd/{}", lend::of(handle)?.fd().as_raw_fd());
        let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|why| handle.mapping.mirror_error(Refused::to("open the memory file")(why)))
    }

    /// The length of [`memory`](Self::memory): whole pages.
    pub fn bytes(&self) -> u64 {
        self.snapshot.pages << PAGE_SHIFT
    }

    /// The bytes `range` of the snapshot are zeros, as the caller knows: whole pages in it are
    /// never read. Pages that turn out to be zeros when they are read are remembered anyway.
    pub fn add_zeros(&mut self, range: Range<u64>) {
        let pages = range.start.div_ceil(PAGE_BYTES as u64)..range.end >> PAGE_SHIFT;
        self.snapshot.add_zeros(pages);
    }

    /// From now on [`take_touched`](Self::take_touched) has the pages that clients ask for, but for
    /// those that are `known`. So that they ask for each, no page is installed with another. `None`
    /// ends that.
    pub fn record(&mut self, known: Option<&[Range<u64>]>) {
        self.touched = known.map(|known| {
            let mut seen = Pages::default();
            for pages in known {
                seen.add_all(pages.clone());
            }
            Touched { seen, new: Vec::new() }
        });
    }

    /// The numbers of the pages that clients have asked for since the last call, in that order,
    /// each page once in all.
    pub fn take_touched(&mut self) -> Vec<u64> {
        self.touched.as_mut().map(|touched| std::mem::take(&mut touched.new)).unwrap_or_default()
    }

    /// Serves another client from now on. `uffd` is its userfaultfd, which has to be in
    /// non-blocking mode and stays so. Threads of it that wait for pages are woken, and ask again:
    /// so a client that was served by somebody else before can be taken over.
    ///
    /// # Errors
    /// [`ClientError`]; nothing has changed then.
    pub fn add(
        &mut self,
        uffd: OwnedFd,
        mappings: &[ClientMapping],
    ) -> std::result::Result<ClientId, ClientError> {
        self.snapshot.file.handle().core.check_owner().map_err(ClientError::Cache)?;
        let client = Client::new(Foreign::new(uffd)?, mappings, &self.snapshot)?;
        let id = self.last_client + 1;
        let data = epoll::EventData::new_u64(id);
        epoll::add(&self.epoll, client.uffd(), data, epoll::EventFlags::IN)
            .map_err(|why| Error::from(ErrorKind::Eventfd { cause: Arc::new(why.into()) }))?;
        self.last_client = id;
        self.clients.insert(id, client);
        self.stats.added += 1;
        Ok(ClientId(id))
    }

    /// Installs `pages` of the snapshot in a client's memory before it asks for them: the first of
    /// them, as many as half of the budget has. That goes on while faults are served. Numbers past
    /// the end are left out.
    ///
    /// Pages of an aligned 1 MiB that lie near each other are installed together, at the turn of
    /// the first of them. As long as an eighth of the budget is unused, they come by one read, with
    /// up to 64 KiB between two of them.
    ///
    /// Cost: sorts the pages, unless the last call had the same ones (the same `Arc`).
    pub fn install_ahead(&mut self, client: ClientId, pages: &Arc<[u64]>) {
        let Some(client) = self.clients.get_mut(&client.0) else { return };
        let plan = match &self.plan {
            Some((of, plan)) if Arc::ptr_eq(of, pages) => plan.clone(),
            _ => {
                let most = self.snapshot.file.handle().core.frames.frames() as usize / 2;
                let first = &pages[..pages.len().min(most)];
                Arc::new(Plan::new(first, self.snapshot.pages))
            }
        };
        self.plan = Some((pages.clone(), plan.clone()));
        client.ahead = Some(Ahead::new(plan));
    }

    /// Serves a client no longer. What is installed in its memory stays.
    pub fn remove(&mut self, client: ClientId) {
        if (self.is_here() || mutant::on(Mutant::ForkedClientsRemove))
            && let Some(client) = self.clients.remove(&client.0)
        {
            // The client may have the descriptor open, too, so closing it does not suffice.
            let _ = epoll::delete(&self.epoll, client.uffd());
        }
    }

    /// Counters.
    pub fn stats(&self) -> ClientsStats {
        let mirror = lend::of(self.snapshot.file.handle()).ok();
        let stat = mirror.and_then(|mirror| rustix::fs::fstat(mirror.fd()).ok());
        let shared_bytes = stat.map_or(0, |stat| stat.st_blocks.cast_unsigned() * 512);
        let clients = self.clients.len() as u64;
        let ahead = self.clients.values().filter(|client| client.ahead.is_some()).count() as u64;
        ClientsStats { clients, ahead, shared_bytes, ..self.stats }
    }

    /// How long the loop may wait for the descriptor: `None` for as long as it takes.
    pub fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let of = |client: &Client| {
            if client.ahead.as_ref().is_some_and(Ahead::goes_on) {
                return Some(Duration::ZERO);
            }
            Some(client.due()?.saturating_duration_since(now))
        };
        self.clients.values().filter_map(of).min()
    }

    /// Does what there is to do, a bounded part of it for each client. It waits for no read, write
    /// or memory.
    pub fn work(&mut self) -> Vec<ClientEvent> {
        let mut told = Vec::new();
        if !self.is_here() {
            return told; // a forked child shares the descriptors, and must leave them alone
        }
        let mut events = Vec::with_capacity(TURN_MAX);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted: the loop comes back.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now));
        for event in events {
            let (id, flags) = (event.data.u64(), event.flags);
            if id == COMPLETIONS {
                self.take_completions(&mut told);
                continue;
            }
            let heard = if flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
                Err(ClientError::Blocking)
            } else {
                self.hear(id, &mut told)
            };
            self.end_if(id, heard, &mut told);
        }
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            let tried = self.try_again(id, &mut told).and_then(|()| self.go_ahead(id));
            self.end_if(id, tried, &mut told);
            self.set_pause(id);
        }
        told
    }

    /// Whether this process is the cache's.
    fn is_here(&self) -> bool {
        self.snapshot.file.handle().core.owner.is_here()
    }

    fn end_if(
        &mut self,
        id: u64,
        done: std::result::Result<(), ClientError>,
        told: &mut Vec<ClientEvent>,
    ) {
        if let Err(cause) = done {
            self.remove(ClientId(id));
            told.push(ClientEvent::Ended { client: ClientId(id), cause });
        }
    }

    /// Reads a client's messages.
    fn hear(
        &mut self,
        id: u64,
        told: &mut Vec<ClientEvent>,
    ) -> std::result::Result<(), ClientError> {
        let Some(client) = self.clients.get(&id) else { return Ok(()) };
        let mut messages = Vec::with_capacity(foreign::MESSAGES_MAX);
        client.uffd().read(&mut messages).map_err(|_| ClientError::Blocking)?;
        self.take(id, messages, told)
    }

    /// Does what a client's messages say.
    fn take(
        &mut self,
        id: u64,
        mut messages: Vec<Message>,
        told: &mut Vec<ClientEvent>,
    ) -> std::result::Result<(), ClientError> {
        // What the client did to its memory first: since these messages were read, the kernel lets
        // pages be installed again, and a fault must not install what was removed.
        if !mutant::on(Mutant::EventsAfterFaults) {
            messages.sort_by_key(|message| matches!(message, Message::Fault(_)));
        }
        let mut has_changed = false;
        for message in messages {
            let Some(client) = self.clients.get_mut(&id) else { break };
            let Message::Fault(address) = message else {
                client.hear(message)?;
                has_changed = true;
                continue;
            };
            self.stats.faults += 1;
            let address = address & !(PAGE_BYTES as u64 - 1);
            if has_changed && client.page_at(address).is_err() {
                client.wake(address); // it may be mapped elsewhere by now: it asks again
            } else {
                self.fault(id, address, None, told)?;
            }
        }
        Ok(())
    }

    /// A fault that is new, or is tried again.
    fn fault(
        &mut self,
        id: u64,
        address: u64,
        short_since: Option<Instant>,
        told: &mut Vec<ClientEvent>,
    ) -> std::result::Result<(), ClientError> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let page = client.page_at(address)?;
        if let (Some(touched), Some(page)) = (&mut self.touched, page)
            && touched.seen.add(page)
        {
            touched.new.push(page);
        }
        match client.serve(&mut self.snapshot, address, self.touched.is_some()) {
            Ok(Served::Done(pages)) => {
                client.gets_on();
                self.stats.installed += pages;
            }
            Ok(Served::Later) => {
                client.rest(address, short_since);
                self.stats.again += 1;
            }
            Ok(Served::Absent(page)) => match short_since {
                // It was read, and is not in the mirror.
                Some(since) if since.elapsed() > PATIENCE => {
                    let handle = self.snapshot.file.handle();
                    let short = reclaim::shortage(&handle.core, PAGE_BYTES as u64);
                    let cause = short.of(&handle.mapping, page);
                    self.fail(id, page, cause, told);
                }
                _ => self.read(id, page, short_since),
            },
            Err(ClientError::Cache(cause)) => {
                let page = page.unwrap_or_default();
                self.fail(id, page, cause, told);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn fail(&mut self, id: u64, page: u64, cause: Error, told: &mut Vec<ClientEvent>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.fail(page);
        self.stats.failed += 1;
        let (client, offset) = (ClientId(id), page << PAGE_SHIFT);
        told.push(ClientEvent::PageFailed { client, offset, cause });
    }

    /// Begins to read a page for a fault, and what is around it, unless that is under way. Memory
    /// for it may have been short before.
    fn read(&mut self, id: u64, page: u64, short_since: Option<Instant>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if let hash_map::Entry::Vacant(waiting) = client.waiting.entry(page) {
            waiting.insert(short_since);
            self.stats.waited += 1;
            self.last_job += 1;
            self.jobs.insert(self.last_job, Job { client: id, what: Read::Fault(page) });
            around::begin(client.file.handle(), page, self.snapshot.around(page));
            self.completions.read_at(&client.file, vec![0], page << PAGE_SHIFT, self.last_job);
        }
    }

    fn take_completions(&mut self, told: &mut Vec<ClientEvent>) {
        for _ in 0..READS_TAKEN_MAX {
            let Some(completion) = self.completions.next() else { return };
            let Outcome::Read { result, .. } = completion.outcome else {
                unreachable!("a byte is read of each page: {completion:?}")
            };
            let hash_map::Entry::Occupied(mut job) = self.jobs.entry(completion.user_data) else {
                continue;
            };
            if let Read::Ahead(_, _, left) = &mut job.get_mut().what
                && *left > 1
            {
                *left -= 1;
                continue;
            }
            let Job { client: id, what } = job.remove();
            let done = match what {
                Read::Fault(page) => {
                    let handle = self.snapshot.file.handle();
                    let came = result.and_then(|_| handle.check_page(page));
                    self.page_came(id, page, came, told)
                }
                // What cannot be read is read again when it is asked for.
                Read::Ahead(plan, pieces, _) => self.pieces_came(id, &plan, pieces),
            };
            self.end_if(id, done, told);
        }
    }

    /// The page for which a fault has waited was read.
    fn page_came(
        &mut self,
        id: u64,
        page: u64,
        result: Result<()>,
        told: &mut Vec<ClientEvent>,
    ) -> std::result::Result<(), ClientError> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        let short_since = client.waiting.remove(&page).flatten();
        if let Err(cause) = result {
            self.fail(id, page, cause, told);
            return Ok(());
        }
        // Unmapped meanwhile: nobody waits.
        let Some(address) = client.address_of(page) else { return Ok(()) };
        match client.serve(&mut self.snapshot, address, self.touched.is_some()) {
            Ok(Served::Done(pages)) => {
                client.gets_on();
                self.stats.installed += pages;
                self.keep(page);
            }
            Ok(Served::Absent(_) | Served::Later) => {
                let kept = short_since.filter(|_| !mutant::on(Mutant::ShortAnew));
                client.rest(address, Some(kept.unwrap_or_else(Instant::now)));
                self.stats.again += 1;
            }
            Err(ClientError::Cache(cause)) => self.fail(id, page, cause, told),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Keeps a page that was just installed from eviction for a while: the client has not run yet.
    fn keep(&self, page: u64) {
        let handle = self.snapshot.file.handle();
        if let Some(held) = handle.core.hold(&handle.mapping, page)
            && held.frame().is_mirrored()
        {
            handle.core.keep_recent(held);
        }
    }

    fn try_again(
        &mut self,
        id: u64,
        told: &mut Vec<ClientEvent>,
    ) -> std::result::Result<(), ClientError> {
        for _ in 0..TURN_MAX {
            let Some(client) = self.clients.get_mut(&id) else { break };
            let Some(again) = client.rested() else { break };
            // Not mapped there any more: who waits was woken.
            if client.page_at(again.address).is_ok() {
                self.fault(id, again.address, again.short_since, told)?;
            }
        }
        Ok(())
    }

    /// Installs the next pieces ahead, and begins to read what is absent of them.
    fn go_ahead(&mut self, id: u64) -> std::result::Result<(), ClientError> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        client.ahead = client.ahead.take().filter(|ahead| !ahead.is_over());
        let Some(ahead) = &mut client.ahead else { return Ok(()) };
        let Some(pieces) = ahead.next() else { return Ok(()) };
        let plan = ahead.plan.clone();
        let mut wanted = Vec::new();
        for piece in plan.pieces(pieces.clone()) {
            let absent = self.install_piece(id, piece)?;
            wanted.extend(self.begin_to_read(&absent));
        }
        if !wanted.is_empty() {
            if let Some(ahead) = self.clients.get_mut(&id).and_then(|it| it.ahead.as_mut()) {
                ahead.reads += 1;
            }
            self.last_job += 1;
            let what = Read::Ahead(plan, pieces, wanted.len());
            self.jobs.insert(self.last_job, Job { client: id, what });
            // By the file's common handle, so that the client's has the order of its faults alone.
            let file = &self.snapshot.file;
            let _ = many::prefetch(file.handle(), &wanted); // else each is read by itself
            for page in wanted {
                self.completions.read_at(file, vec![0], page << PAGE_SHIFT, self.last_job);
            }
        }
        Ok(())
    }

    /// Installs what is there of a piece; returns the pages that are not.
    fn install_piece(
        &mut self,
        id: u64,
        piece: &[u64],
    ) -> std::result::Result<Vec<u64>, ClientError> {
        let mut absent = Vec::new();
        let Some(client) = self.clients.get_mut(&id) else { return Ok(absent) };
        for run in piece.chunk_by(|one, next| one + 1 == *next) {
            let wanted = run[0]..run[run.len() - 1] + 1;
            for &page in run {
                match client.serve_ahead(&mut self.snapshot, page, &wanted) {
                    Ok(Served::Done(pages)) => self.stats.installed_ahead += pages,
                    Ok(Served::Absent(page)) => absent.push(page),
                    Ok(Served::Later) | Err(ClientError::Cache(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(absent)
    }

    /// Begins to read the absent pages of a piece, with what is between them, as long as memory is
    /// plenty. Returns those that are to be waited for: of each folio one, and all that could not
    /// be begun.
    fn begin_to_read(&self, absent: &[u64]) -> Vec<u64> {
        let handle = self.snapshot.file.handle();
        let [first, .., last] = *absent else { return absent.to_vec() };
        if !around::is_room(&handle.core) {
            return absent.to_vec();
        }
        for part in self.snapshot.data(first..last + 1) {
            many::will_need(handle, part);
        }
        let mut folio_end = 0;
        let mut wanted = absent.to_vec();
        wanted.retain(|&page| {
            let is_new = page >= folio_end;
            if is_new && let Some(held) = handle.core.hold(&handle.mapping, page) {
                let identity = held.frame().identity();
                folio_end = identity.pages().end;
            }
            is_new
        });
        wanted
    }

    fn pieces_came(
        &mut self,
        id: u64,
        plan: &Arc<Plan>,
        pieces: Range<usize>,
    ) -> std::result::Result<(), ClientError> {
        let ahead = self.clients.get_mut(&id).and_then(|client| client.ahead.as_mut());
        if let Some(ahead) = ahead.filter(|ahead| Arc::ptr_eq(&ahead.plan, plan)) {
            // The read may be of an earlier call with the same pages.
            ahead.reads = ahead.reads.saturating_sub(1);
        }
        for piece in plan.pieces(pieces) {
            self.install_piece(id, piece)?;
        }
        Ok(())
    }

    /// Waits for a client's faults, or does not while too many of them wait for reads.
    fn set_pause(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let most = if client.is_paused { READS_MAX / 2 } else { READS_MAX };
        let rest = if mutant::on(Mutant::RestsPause) { client.resting() } else { 0 };
        let pause = client.waiting.len() + rest >= most;
        if pause != client.is_paused {
            let flags = if pause { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
            let data = epoll::EventData::new_u64(id);
            if epoll::modify(&self.epoll, client.uffd(), data, flags).is_ok() {
                client.is_paused = pause;
            }
        }
    }
}

/// Readable while there is something to do; beside [`Clients::timeout`].
impl AsFd for Clients {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
