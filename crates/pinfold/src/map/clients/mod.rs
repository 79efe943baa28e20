//! Memory of other processes: any number of clients whose memory is a snapshot, one physical copy
//! of it, and one budget.
//!
//! [`Clients`] is given a client's userfaultfd and mappings, and serves the client's faults from a
//! [`File`] of the cache. The socket and the protocol are those of `pinfold serve`
//! (`docs/serve.md`). The loop is in `serving.rs`, how a fault is served in `client.rs`.
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
//! No state has a thread. While faults wait for too many reads (`READS_MAX`), no client is asked
//! for more. Faults that rest do not count: what they wait for may be that the client is heard.
//!
//! # No allocation
//!
//! Threads that are less urgent than the loop may hold a lock of the allocator while they are not
//! given a processor. So a round, and a fault on a page that is in the mirror, allocate nothing.
//!
//! # What is read
//!
//! A fault's page is read by a future of the client's own handle, whose stream sees where the
//! client goes on in order. The pages around are begun first (`around.rs`): so the future finds its
//! page on the way. It copies a byte; for a guard, a large folio would be split.
//!
//! # What is not trusted
//!
//! All that a client says, and what is in the mirror: a client can make pages of zeros there, by
//! touching them through a mapping that it has not registered. So a page is installed only while
//! the index says that it is lent, and under a reference; one that cannot be lent is copied. And no
//! file is both served and mapped by the program (`Mirror::give_out`).

mod ahead;
mod client;
mod error;
#[cfg(all(test, not(any(loom, shuttle))))]
mod fair_tests;
mod foreign;
#[cfg(all(test, not(any(loom, shuttle))))]
mod hear_tests;
mod pages;
#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::single_range_in_vec_init, reason = "one run")]
mod read_tests;
mod regions;
mod serving;
mod snapshot;
#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::multiple_unsafe_ops_per_block, reason = "an address and an access to it")]
#[allow(clippy::single_range_in_vec_init, reason = "one run")]
mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::base::mutant::{self, Mutant};
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Error, Result};
use crate::file::File;
use crate::file::completions::Completions;
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::map::lend::{self, Mapper};
use ahead::{Ahead, AheadPlan, ReadFor};
use client::Client;
pub use error::ClientError;
use foreign::{Foreign, Message};
pub use regions::{ClientMapping, ClientMemory};
use snapshot::Snapshot;
use turns::ClientTurns;

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

/// Counters of [`Clients`], of all clients that there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(clippy::struct_field_names, reason = "what is counted")]
pub struct ClientsStats {
    /// Clients that are served at the moment.
    pub clients: u64,
    /// Of these, those in whose memory pages are being installed ahead.
    pub ahead: u64,
    /// Clients that were added.
    pub added: u64,
    /// Faults that clients have reported.
    pub faults: u64,
    /// Reads for which faults have waited.
    pub waited: u64,
    /// How often a fault was put off, as its client changed its memory, or memory was short.
    pub again: u64,
    /// Pages that were installed for faults, with their neighbours.
    pub installed: u64,
    /// Pages that were installed ahead of faults.
    pub installed_ahead: u64,
    /// Faults that ended with SIGBUS: no read of their page, or no memory for it.
    pub failed: u64,
    /// Reads that are under way, also for clients that have left.
    pub reading: u64,
}

/// Other processes whose memory is a snapshot.
///
/// A client maps [`memory`](Self::memory), registers the mapping with a userfaultfd, and hands the
/// userfaultfd over; from then on its pages come from the cache, within the budget, and each is in
/// memory once for all clients. A page that a client stores to becomes its own: the kernel copies
/// it. A client that has anonymous memory instead ([`ClientMemory::Private`]) gets a copy of each
/// page, which is in no budget.
///
/// Where a client touches pages in order, the cache reads ahead, as for [`File`]s. Any other absent
/// page is read with the absent pages of its aligned 128 KiB, as long as an eighth of the budget is
/// unused and the cache reads ahead at all
/// ([`Options::readahead_max_bytes`](crate::Options::readahead_max_bytes)). With a page, the client
/// gets what is cached around it, by one system call: of shared memory up to 512 KiB, of copies up
/// to 128 KiB.
///
/// One thread uses it, as part of its event loop: it waits for the descriptor ([`AsFd`]) and for
/// [`timeout`](Self::timeout), and then calls [`work`](Self::work), which waits for no read.
///
/// To install a page, the kernel takes the lock of the client's memory, which a process can hold
/// for as long as it likes. So processes that do not trust each other are served by threads of
/// their own: [`another`](Self::another) makes what a further thread uses.
///
/// `docs/serve.md` has what a client has to do, and what one that is not trusted can do.
#[derive(Debug)]
#[allow(clippy::struct_field_names, reason = "its clients are what it is about")]
pub struct Clients {
    snapshot: Snapshot,
    completions: Completions,
    epoll: OwnedFd,
    clients: BTreeMap<u64, Client>,
    last_client: u64,
    /// When each client has to be looked after, unless it has a turn in this round.
    due: BTreeSet<(Instant, u64)>,
    turns: ClientTurns,
    jobs: HashMap<u64, ReadJob>,
    last_job: u64,
    /// The pages that clients have asked for, if that is recorded.
    touched: Option<Vec<u64>>,
    stats: ClientsStats,
    /// What `work` is about to tell.
    told: Vec<ClientEvent>,
    /// Kept, as a round allocates nothing.
    messages: Vec<Message>,
    /// The last plan of [`Self::install_ahead`], and what it is for.
    plan: Option<(Arc<[u64]>, Arc<AheadPlan>)>,
    /// How often it was looked when a client is due.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
    _mapper: Mapper,
}

#[derive(Debug)]
struct ReadJob {
    client: u64,
    what: ReadFor,
}

impl Clients {
    /// No clients yet, of a snapshot which is `file`. Its length must not change.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the cache has less than 8 MiB; [`ErrorKind::Busy`]
    /// if the program maps the file, which it cannot do any more after this;
    /// [`ErrorKind::System`] if the system gives no memory file, no descriptor, or no threads that
    /// read where the source has no queue of its own;
    /// [`ErrorKind::Forked`].
    pub fn new(file: &File) -> Result<Self> {
        Self::of(Snapshot::new(file), None)
    }

    /// The same snapshot, for another thread, and no clients yet. Both share the memory, what
    /// [`Self::add_zeros`] was told before, and the plan of the last [`Self::install_ahead`].
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn another(&self) -> Result<Self> {
        Self::of(self.snapshot.another(), self.plan.clone())
    }

    fn of(snapshot: Snapshot, plan: Option<(Arc<[u64]>, Arc<AheadPlan>)>) -> Result<Self> {
        let file = snapshot.file.clone();
        let handle = file.handle();
        handle.core.check_owner()?;
        let mapper = Mapper::new(&handle.core)?;
        let mirror = lend::of(handle)?;
        let completions = Completions::new()?;
        let eventfd = |why: Errno| Cause::eventfd(why.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(eventfd)?;
        let data = epoll::EventData::new_u64(COMPLETIONS);
        epoll::add(&epoll, &completions, data, epoll::EventFlags::IN).map_err(eventfd)?;
        handle.mapping.backing.share_out().map_err(Cause::Thread)?;
        // Last, as it cannot be taken back.
        if !mirror.give_out() && !mutant::on(Mutant::MappedAndServed) {
            let (path, what) = (handle.mapping.path.clone(), "serve");
            return Err(Cause::MappedOrServed { path, what }.into());
        }
        Ok(Clients {
            snapshot,
            completions,
            epoll,
            clients: BTreeMap::new(),
            last_client: 0,
            due: BTreeSet::new(),
            turns: ClientTurns::default(),
            jobs: HashMap::new(),
            last_job: 0,
            touched: None,
            stats: ClientsStats::default(),
            told: Vec::new(),
            messages: Vec::with_capacity(foreign::MESSAGES_MAX),
            plan,
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
            _mapper: mapper,
        })
    }

    /// A read-only descriptor of the memory that all clients share, for a client to map with
    /// `MAP_PRIVATE`. Each page has its offset in the snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::System`]: the system gives no descriptor.
    pub fn memory(&self) -> Result<OwnedFd> {
        let mirror = lend::of(self.snapshot.file.handle())?;
        let path = format!("/proc/self/fd/{}", mirror.fd().as_raw_fd());
        let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|why| mirror.refused("open the memory file", why))
    }

    /// The length of [`memory`](Self::memory): whole pages.
    pub fn bytes(&self) -> u64 {
        self.snapshot.pages << PAGE_SHIFT
    }

    /// The bytes `range` of the snapshot are zeros: whole pages in it are never read.
    pub fn add_zeros(&mut self, range: Range<u64>) {
        let pages = range.start.div_ceil(PAGE_BYTES as u64)..range.end >> PAGE_SHIFT;
        self.snapshot.add_zeros(pages);
    }

    /// Whether [`take_touched`](Self::take_touched) has the pages that clients ask for from now on,
    /// and no page is installed with another.
    pub fn record(&mut self, records: bool) {
        self.touched = records.then(Vec::new);
    }

    /// The numbers of the pages that clients have asked for since the last call, in that order, and
    /// as often: in memory until then. Those that are known to be zeros, or that the client has
    /// removed, are not among them.
    pub fn take_touched(&mut self) -> Vec<u64> {
        self.touched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Serves another client from now on. `uffd` is its userfaultfd, which has to be in
    /// non-blocking mode and stays so. Threads of it that wait for pages ask again: so a client
    /// that was served by somebody else can be taken over.
    ///
    /// All clients together have at most 64 reads for faults under way; those for a client that has
    /// left count until they end.
    ///
    /// The last close of a userfaultfd waits for the lock of its process's memory. A caller that
    /// must not wait keeps a duplicate, and closes it elsewhere.
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
        epoll::add(&self.epoll, &client.uffd, data, epoll::EventFlags::IN)
            .map_err(|why| Error::from(Cause::eventfd(why.into())))?;
        self.last_client = id;
        self.clients.insert(id, client);
        self.schedule(id);
        self.stats.added += 1;
        Ok(ClientId(id))
    }

    /// Installs `pages` of the snapshot in a client's memory before it asks for them: the first of
    /// them, as many as half of the budget has. That goes on while faults are served. Numbers past
    /// the end are left out.
    ///
    /// Pages of an aligned 1 MiB that lie near each other are installed together. As long as an
    /// eighth of the budget is unused, they come by one read, with up to 64 KiB between two of
    /// them.
    ///
    /// Cost: sorts the pages, unless the last call had the same ones (the same `Arc`). Without such
    /// a client, it does that alone.
    pub fn install_ahead(&mut self, client: ClientId, pages: &Arc<[u64]>) {
        let ClientId(id) = client;
        let plan = match &self.plan {
            Some((of, plan)) if Arc::ptr_eq(of, pages) => plan.clone(),
            _ => {
                let most = self.snapshot.file.handle().core.frames.frames() as usize / 2;
                let first = &pages[..pages.len().min(most)];
                Arc::new(AheadPlan::new(first, self.snapshot.pages))
            }
        };
        self.plan = Some((pages.clone(), plan.clone()));
        let Some(client) = self.clients.get_mut(&id) else { return };
        self.stats.ahead += u64::from(client.ahead.is_none());
        client.ahead = Some(Ahead::new(plan));
        self.schedule(id);
    }

    /// Serves a client no longer. What is installed in its memory stays.
    pub fn remove(&mut self, client: ClientId) {
        let ClientId(id) = client;
        if (self.is_here() || mutant::on(Mutant::ForkedClientsRemove))
            && let Some(client) = self.clients.remove(&id)
        {
            // The client may have the descriptor open, too, so closing it does not suffice.
            let _ = epoll::delete(&self.epoll, &client.uffd);
            client.due_at.map(|at| self.due.remove(&(at, id)));
            self.stats.ahead -= u64::from(client.ahead.is_some());
            self.turns.leave(id, client.counted);
            self.give_up_reads_ahead(id);
            self.begin_reads();
            if mutant::on(Mutant::LeftKeepsDescriptor) {
                std::mem::forget(client);
            }
        }
    }

    /// Reads ahead for a client that has left: those that were not begun never are. The others
    /// count until they end.
    fn give_up_reads_ahead(&mut self, id: u64) {
        if mutant::on(Mutant::AheadOfTheGone) {
            return;
        }
        let gone = self.jobs.extract_if(|&number, job| match &mut job.what {
            ReadFor::Ahead(_, _, left) if job.client == id => {
                *left -= self.turns.give_up_ahead(number);
                *left == 0
            }
            _ => false,
        });
        let gone = gone.count();
        self.turns.change(|it| it.ahead -= gone);
    }

    /// Counters. No system call.
    pub fn stats(&self) -> ClientsStats {
        let (clients, reading) = (self.clients.len() as u64, self.jobs.len() as u64);
        ClientsStats { clients, reading, ..self.stats }
    }

    fn is_here(&self) -> bool {
        self.snapshot.file.handle().core.owner.is_here()
    }
}

/// Readable while there is something to do; beside [`Clients::timeout`].
impl AsFd for Clients {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
