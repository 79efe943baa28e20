//! The processes that are served. Each has a thread of its own, which serves the faults of all its
//! clients (`faults.rs`): so a process for which this thread has to wait makes no other one wait,
//! and gets no more by being many clients.
//!
//! A thread starts with the first client of its process. It ends with the last one, and with the
//! reads that were begun for its faults: who leaves and comes back finds them counted.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pinfold::{ClientId, ClientMapping, Clients};
use rustix::io::Errno;

use super::desk::{Command, Desk, Desks};
use super::faults::Faults;
use super::log::Log;
use super::peer::Peer;
use super::protocol::{FAILED, NO_DESCRIPTORS, Stats};
use super::record::Recording;

/// The stack of a thread.
const STACK_BYTES: usize = 512 << 10;

/// A thread that is wanted, for this process, and who waits until it is there.
type Start = (u64, Faults, Sender<std::io::Result<()>>);

/// All processes that are served.
#[derive(Debug)]
pub struct Processes {
    desks: Arc<Desks>,
    /// Has no clients: for each process another one is made of it.
    clients: Mutex<Clients>,
    starts: Sender<Start>,
    recording: Option<Arc<Recording>>,
    replay: Option<Arc<[u64]>>,
    log: Log,
}

/// A client that is served.
#[derive(Debug)]
pub struct ServedClient {
    owner: u64,
    client: ClientId,
    /// Of the thread by which it is. The process may have another one by now.
    desk: Weak<Desk>,
}

/// Starts the threads. By a thread that is as urgent as they have to be: connections are not.
#[derive(Debug)]
pub struct Starter(Receiver<Start>);

impl Starter {
    /// As long as there are processes.
    pub fn run(self, processes: &Processes) {
        for (owner, faults, done) in self.0 {
            let desks = processes.desks.clone();
            let thread = std::thread::Builder::new().name("pinfold-faults".to_owned());
            let work = move || faults.run(owner, &desks);
            let _ = done.send(thread.stack_size(STACK_BYTES).spawn(work).map(drop));
        }
    }
}

/// Why the server has nothing that waits for a process.
fn lack(why: &std::io::Error) -> String {
    match Errno::from_io_error(why) {
        Some(Errno::MFILE | Errno::NFILE) => NO_DESCRIPTORS.to_owned(),
        _ => format!("the server has no descriptor for it ({why}): connect again later"),
    }
}

impl Processes {
    /// None yet; and who starts their threads.
    pub fn new(clients: Clients, log: Log) -> (Self, Starter) {
        let (starts, wanted) = channel();
        let (desks, recording, replay) = Default::default();
        let clients = Mutex::new(clients);
        (Processes { desks, clients, starts, recording, replay, log }, Starter(wanted))
    }

    /// Records the pages that clients touch.
    pub fn record(&mut self, recording: Recording) {
        self.recording = Some(Arc::new(recording));
    }

    /// Installs these pages in each new client's memory.
    pub fn replay(&mut self, pages: Vec<u64>) {
        let pages: Arc<[u64]> = pages.into();
        let clients = self.clients.get_mut().unwrap_or_else(PoisonError::into_inner);
        clients.install_ahead(ClientId(0), &pages); // of no client: all get this plan
        self.replay = Some(pages);
    }

    /// Serves a client of the process `owner`. The caller keeps a duplicate of the descriptor, as
    /// its last close may wait. What it has passed its gate with is let go before the wait.
    ///
    /// # Errors
    /// As of [`Clients::add`]; the system has no thread or no descriptor for it.
    pub fn add(
        &self,
        owner: u64,
        uffd: OwnedFd,
        mappings: Vec<ClientMapping>,
        peer: Arc<Peer>,
        passing: MutexGuard<'_, ()>,
    ) -> Result<ServedClient, String> {
        let (reply, answer) = channel();
        let command = Command::Add(uffd, mappings, peer, reply);
        let desk = Arc::downgrade(&self.desks.ask(owner, command, || self.start(owner))?);
        drop(passing); // that thread may wait for the process as long as this likes
        let added = answer.recv().map_err(|_| FAILED)?;
        let client = added.map_err(|why| why.to_string())?;
        Ok(ServedClient { owner, client, desk })
    }

    /// Serves a client no longer. After this its thread has nothing of it.
    pub fn remove(&self, served: &ServedClient) {
        let (done, is_done) = channel();
        let remove = Command::Remove(served.client, done);
        if self.desks.ask_at(served.owner, served.desk.as_ptr(), remove) {
            let _ = is_done.recv(); // an error: it has ended now
        }
    }

    /// What all threads have counted, a moment ago.
    pub fn stats(&self) -> Stats {
        self.desks.stats()
    }

    /// Starts the thread of a process.
    fn start(&self, owner: u64) -> Result<Arc<Desk>, String> {
        let desk = Arc::new(Desk::new().map_err(|why| lack(&why.into()))?);
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner).another();
        let clients = clients.map_err(|why| {
            let cause = why.source().and_then(|cause| cause.downcast_ref());
            cause.map_or_else(|| why.to_string(), lack)
        })?;
        let mut faults = Faults::new(clients, desk.clone(), self.log.clone());
        if let Some(recording) = &self.recording {
            faults.record(recording.clone());
        }
        if let Some(pages) = &self.replay {
            faults.replay(pages.clone());
        }
        let (done, is_done) = channel();
        self.starts.send((owner, faults, done)).map_err(|_| FAILED)?;
        let started = is_done.recv().map_err(|_| FAILED)?;
        started.map_err(|why| {
            format!("the server has no thread for it ({why}): connect again later")
        })?;
        Ok(desk)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::connection::{self, Shared};
    use super::super::gate::Gate;
    use super::super::guest::{Connection, Guest};
    use super::*;
    use pinfold::{Cache, Options};
    use std::os::unix::net::UnixStream;

    fn processes() -> (Arc<Processes>, Starter, Arc<Peer>) {
        let snapshot = tempfile::NamedTempFile::new().unwrap();
        snapshot.as_file().set_len(1 << 20).unwrap();
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let clients = Clients::new(&cache.open(snapshot.path()).unwrap()).unwrap();
        let (processes, starter) = Processes::new(clients, Log::start().unwrap());
        let (stream, _) = UnixStream::pair().unwrap();
        (Arc::new(processes), starter, Arc::new(Peer::new(1, stream)))
    }

    /// What all connections to a server of `snapshot` have, which is made. Nobody is silent too
    /// long.
    pub fn shared(snapshot: &std::path::Path) -> (Shared, Starter) {
        std::fs::write(snapshot, vec![7; 1 << 20]).unwrap();
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let clients = Clients::new(&cache.open(snapshot).unwrap()).unwrap();
        let (memory, bytes) = (clients.memory().unwrap(), clients.bytes());
        let log = Log::start().unwrap();
        let (processes, starter) = Processes::new(clients, log.clone());
        let processes = Arc::new(processes);
        let silence = std::time::Duration::from_secs(3600);
        let (gates, written) = Default::default();
        (Shared { cache, memory, bytes, processes, gates, log, silence, written }, starter)
    }

    #[test]
    fn who_asks_a_thread_that_fails_is_told_so() {
        let (processes, Starter(wanted), peer) = processes();
        let fails = {
            let processes = processes.clone();
            std::thread::spawn(move || {
                let (owner, faults, done) = wanted.recv().unwrap();
                done.send(Ok(())).unwrap();
                let desk = faults.desk().clone();
                drop(faults);
                while desk.is_empty() {
                    std::thread::yield_now();
                }
                processes.desks.ended(owner, &desk);
            })
        };
        let null = std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!(
            processes.add(7, null, Vec::new(), peer, Gate::default().pass()).unwrap_err(),
            FAILED
        );
        fails.join().unwrap();
        let null = std::fs::File::open("/dev/null").unwrap().into();
        let (stream, _) = UnixStream::pair().unwrap();
        let peer = Arc::new(Peer::new(2, stream));
        assert_eq!(
            processes.add(7, null, Vec::new(), peer, Gate::default().pass()).unwrap_err(),
            FAILED,
            "none starts"
        );
    }

    #[test]
    fn who_is_about_to_be_served_does_not_give_way_and_the_others_do() {
        let folder = tempfile::tempdir().unwrap();
        let [snapshot, socket] = ["snapshot", "socket"].map(|name| folder.path().join(name));
        let (shared, Starter(wanted)) = shared(&snapshot);
        let (processes, shared) = (shared.processes.clone(), Arc::new(shared));
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let guest = std::thread::spawn(move || {
            let mut connection = Connection::open(&socket).unwrap();
            let guest = Guest::restore(&mut connection, pinfold::ClientMemory::Shared).unwrap();
            connection.stats().unwrap(); // else nobody serves what is read next
            // SAFETY: the first byte of its memory.
            unsafe { guest.as_ptr().read_volatile() }
        });
        let peer = Arc::new(Peer::new(1, listener.accept().unwrap().0));
        let run = {
            let (peer, shared) = (peer.clone(), shared.clone());
            std::thread::spawn(move || connection::run(&shared, &peer))
        };
        let (owner, faults, done) = wanted.recv().unwrap();
        peer.give_way("somebody else has come");
        done.send(Ok(())).unwrap();
        while faults.desk().is_empty() {
            std::thread::yield_now();
        }
        // While its thread does not answer, another connection of the process gives way.
        let other = Arc::new(Peer::new(2, UnixStream::pair().unwrap().0));
        other.give_way("somebody else has come");
        let (ended, has_ended) = channel();
        std::thread::spawn(move || {
            connection::run(&shared, &other);
            let _ = ended.send(());
        });
        let waited = has_ended.recv_timeout(std::time::Duration::from_secs(60));
        assert_eq!(waited, Ok(()), "it waits for a thread that waits for its process");
        let desks = processes.desks.clone();
        std::thread::spawn(move || faults.run(owner, &desks));
        assert_eq!(guest.join().unwrap(), 7);
        run.join().unwrap();
        assert_eq!(peer.why_ended(), None);
    }

    #[test]
    fn a_client_is_removed_from_its_own_thread_alone() {
        let (processes, ..) = processes();
        let [old, new] = [(); 2].map(|()| Arc::new(Desk::new().unwrap()));
        let served = ServedClient { owner: 7, client: ClientId(1), desk: Arc::downgrade(&old) };
        processes.remove(&served); // does not wait
        drop(old);
        let command = |client| Command::Remove(ClientId(client), channel().0);
        let start = || Ok::<_, ()>(new.clone());
        processes.desks.ask(7, command(1), start).unwrap();
        new.take();
        processes.remove(&served);
        assert!(new.is_empty(), "the process has come again, and its first client is another one");
    }

    #[test]
    fn a_client_that_is_refused_leaves_no_thread() {
        let (processes, starter, peer) = processes();
        let starts = processes.clone();
        std::thread::spawn(move || starter.run(&starts));
        let null = std::fs::File::open("/dev/null").unwrap().into();
        let why = processes.add(7, null, Vec::new(), peer, Gate::default().pass()).unwrap_err();
        assert_eq!(why, "the descriptor is no userfaultfd, but /dev/null");
        while !processes.desks.is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(processes.stats(), Stats::default());
    }
}
