//! The door: new connections, and the table of them. Each has a thread of its own
//! (`connection.rs`).
//!
//! There are as many connections as the process's descriptors are enough for. Where there is no
//! room for a new one, one that has sent no mappings gives way: of the process with the most of
//! them, the oldest. If all have sent theirs, new ones wait in the socket's queue. Where the system
//! gives no thread for a connection, a thread that was started with the door tells it so, and
//! closes it: also that close may wait. The next one is taken at once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::connection::{self, Shared};
use super::peer::Peer;
use super::protocol::Reply;
use super::socket;

/// The most connections.
const CONNECTIONS_MAX: usize = 1024;

/// Descriptors that a connection has at a time: itself; its process; its userfaultfd, twice; what
/// the thread of its process waits for, which are three.
const DESCRIPTORS_EACH: usize = 7;

/// Descriptors that are left for the cache.
const DESCRIPTORS_LEFT: usize = 32;

/// How long the door waits for who gives way, and how often somebody does where there is no thread.
const REST: Duration = Duration::from_millis(100);

/// The stack of a connection's thread.
const STACK_BYTES: usize = 256 << 10;

/// As many descriptors as the system lets the process have. Returns for how many connections they
/// are enough.
pub fn allow_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // With fewer it serves fewer.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let most = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most as usize);
    let open = std::fs::read_dir("/proc/self/fd").map_or(DESCRIPTORS_LEFT, Iterator::count);
    let left = most.saturating_sub(open + DESCRIPTORS_LEFT);
    (left / DESCRIPTORS_EACH).clamp(1, CONNECTIONS_MAX)
}

/// Takes connections.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    shared: Arc<Shared>,
    connections_max: usize,
    table: Arc<Table>,
    refuses: Sender<Refused>,
    /// Of a connection's thread.
    stack_bytes: usize,
    rest: Duration,
}

/// A connection for which there is no thread, its place, and why.
type Refused = (Arc<Peer>, Place, String);

/// The connections, by their numbers: the oldest first. `None`: one that is being closed.
type Peers = BTreeMap<u64, Option<Arc<Peer>>>;

#[derive(Debug, Default)]
struct Table {
    peers: Mutex<Peers>,
    one_less: Condvar,
}

impl Table {
    /// A thread that has panicked had no half-done change of it.
    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until there is one less, or the time is over.
    fn wait<'a>(&self, peers: MutexGuard<'a, Peers>, time: Duration) -> MutexGuard<'a, Peers> {
        let waited = self.one_less.wait_timeout(peers, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Door {
    /// Nobody is connected yet.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(listener: UnixListener, shared: Shared, connections_max: usize) -> Result<Self> {
        let (refuses, refused) = channel();
        let thread = std::thread::Builder::new().name("pinfold-refuse".to_owned());
        thread.spawn(move || refuse(&refused)).context("no thread for connections")?;
        let (shared, table) = (Arc::new(shared), Arc::default());
        let (stack_bytes, rest) = (STACK_BYTES, REST);
        Ok(Door { listener, shared, connections_max, table, refuses, stack_bytes, rest })
    }

    /// Takes connections for ever.
    pub fn run(&self) {
        let (mut last, mut gives_way_at) = (0, Instant::now());
        loop {
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
            // Interrupted: it is accepted in vain.
            let _ = poll(&mut fds, None);
            self.make_room();
            match self.listener.accept() {
                Ok((stream, _)) => {
                    last += 1;
                    let has_thread = self.connect(Peer::new(last, stream));
                    // Not at each: who connects in vain would make all others give way.
                    if !has_thread && Instant::now() >= gives_way_at {
                        gives_way_at = Instant::now() + self.rest;
                        Self::give_way(&self.table.lock());
                    }
                }
                Err(error) => {
                    self.shared.log.tell(format_args!("cannot take a connection: {error}"));
                    let peers = self.table.lock();
                    Self::give_way(&peers);
                    drop(self.table.wait(peers, self.rest));
                }
            }
        }
    }

    /// Waits until there is room for one more.
    fn make_room(&self) {
        let mut peers = self.table.lock();
        let mut is_told = false;
        while peers.len() >= self.connections_max {
            if !Self::give_way(&peers) && !is_told {
                is_told = true;
                let most = self.connections_max;
                self.shared.log.tell(format_args!("there are {most} clients: a new one waits"));
            }
            peers = self.table.wait(peers, self.rest);
        }
    }

    /// A connection that has sent no mappings ends soon. False: there is none.
    fn give_way(peers: &Peers) -> bool {
        let new = peers.values().flatten().filter(|peer| peer.is_new());
        let victim = victim(new.map(|peer| (peer.pid(), peer)));
        // It may have sent its mappings meanwhile: then another one is looked for after a rest.
        let end =
            |peer: &Arc<Peer>| peer.give_way("it is not served yet, and gives way to a new one");
        victim.map(end).is_some()
    }

    /// Whether there is a thread for it.
    fn connect(&self, peer: Peer) -> bool {
        let (number, peer) = (peer.number(), Arc::new(peer));
        self.table.lock().insert(number, Some(peer.clone()));
        let place = Place { number, table: self.table.clone() };
        // Not in the thread's closure, whose drop where there is no thread would be the last.
        let (to_thread, from_door) = channel::<(Arc<Peer>, Place)>();
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("pinfold-client".to_owned());
        let started = thread.stack_size(self.stack_bytes).spawn(move || {
            let Ok((peer, place)) = from_door.recv() else { return };
            connection::run(&shared, &peer);
            place.hides();
            // The last of the connection: this close may wait. Only then its place is free.
            drop(peer);
        });
        match started {
            // It waits for that.
            Ok(_) => to_thread.send((peer, place)).is_ok(),
            Err(error) => {
                self.shared.log.tell(format_args!("no thread for {peer}: {error}"));
                place.hides();
                let why = format!("the server has no thread for it ({error}): connect again later");
                // That thread never ends.
                let _ = self.refuses.send((peer, place, why));
                false
            }
        }
    }
}

/// Which of these gives way, the oldest first, each with its process: of the process that has the
/// most of them, so that one with many takes no other's place.
fn victim<T>(new: impl Iterator<Item = (Option<i32>, T)>) -> Option<T> {
    let mut oldest = HashMap::new();
    for (age, (pid, peer)) in new.enumerate() {
        oldest.entry(pid).or_insert((0, Reverse(age), peer)).0 += 1;
    }
    let all = oldest.into_values();
    all.max_by_key(|&(count, age, _)| (count, age)).map(|(_, _, peer)| peer)
}

/// Tells connections that they are refused, and closes them.
fn refuse(refused: &Receiver<Refused>) {
    for (peer, place, why) in refused {
        let reply = Reply { error: Some(why), ..Reply::new() };
        // The connection ends in any case.
        let _ = peer.begin().map(|()| socket::send(peer.stream(), &reply.message(), None));
        drop(peer);
        drop(place);
    }
}

/// A connection's place in the table.
struct Place {
    number: u64,
    table: Arc<Table>,
}

impl Place {
    /// Nobody finds the connection there any more. It still counts.
    fn hides(&self) {
        self.table.lock().insert(self.number, None);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.table.lock().remove(&self.number);
        self.table.one_less.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::super::processes::tests::shared;
    use super::*;

    /// What each of three is told for whom there is no thread, one after the other; and how many of
    /// three others give way for them, that have sent no mappings.
    fn told_without_threads(rest: Duration) -> (Option<Vec<String>>, usize) {
        let folder = tempfile::tempdir().unwrap();
        let [snapshot, socket] = ["snapshot", "socket"].map(|name| folder.path().join(name));
        let (shared, _starter) = shared(&snapshot);
        let listener = UnixListener::bind(&socket).unwrap();
        let mut door = Door::new(listener, shared, 8).unwrap();
        let others = (101..104).map(|number| {
            let (stream, _) = UnixStream::pair().unwrap();
            (number, Arc::new(Peer::new(number, stream)))
        });
        let others: Vec<_> = others.collect();
        for (number, other) in &others {
            door.table.lock().insert(*number, Some(other.clone()));
        }
        (door.stack_bytes, door.rest) = (1 << 60, rest); // more than there are addresses
        std::thread::spawn(move || door.run());
        let (told, is_told) = channel();
        std::thread::spawn(move || {
            for _ in 0..3 {
                let mut said = String::new();
                UnixStream::connect(&socket).unwrap().read_to_string(&mut said).unwrap();
                let _ = told.send(said);
            }
        });
        let wait = Duration::from_secs(60);
        let told = (0..3).map(|_| is_told.recv_timeout(wait).ok()).collect();
        (told, others.iter().filter(|(_, other)| other.why_ended().is_some()).count())
    }

    #[test]
    fn nobody_waits_because_another_one_got_no_thread() {
        let (told, give_way) = told_without_threads(Duration::from_secs(3600));
        let told = told.expect("it waits until it could have a thread");
        let no_thread = |said: &String| said.contains("the server has no thread for it");
        assert!(told.iter().all(no_thread), "{told:?}");
        assert_eq!(give_way, 1, "one in each period");
    }

    #[test]
    fn the_process_with_the_most_connections_gives_way() {
        let of = |all: &[(i32, u64)]| victim(all.iter().map(|&(pid, number)| (Some(pid), number)));
        assert_eq!(of(&[(7, 1), (8, 2), (9, 3), (8, 4)]), Some(2), "and of these the oldest");
        assert_eq!(of(&[(7, 1), (8, 2), (8, 3), (7, 4)]), Some(1), "as many: the oldest of all");
        assert_eq!(of(&[]), None);
    }
}
