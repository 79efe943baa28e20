//! Where the thread that serves the faults of a process is asked, and the table of these.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pinfold::{ClientError, ClientId, ClientMapping, ClientsStats};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::peer::Peer;
use super::protocol::Stats;

/// The most threads that stay for the reads of processes without clients.
const WAITING_MAX: usize = 8;

/// What a connection asks for.
#[derive(Debug)]
pub enum Command {
    /// Serve this client.
    Add(OwnedFd, Vec<ClientMapping>, Arc<Peer>, Sender<Result<ClientId, ClientError>>),
    /// Serve it no longer.
    Remove(ClientId, Sender<()>),
}

/// What the thread shares with those that ask.
#[derive(Debug)]
pub struct Desk {
    commands: Mutex<VecDeque<Command>>,
    /// Counts what was asked since the thread looked.
    wakes: OwnedFd,
    /// What the thread has counted, a moment ago.
    counters: Counters,
}

/// Counters that are written and read without a lock: who reads them is less urgent.
#[derive(Debug, Default)]
struct Counters([AtomicU64; 10]);

impl Counters {
    // Relaxed: figures, each by itself.
    fn set(&self, it: &ClientsStats) {
        let ClientsStats { clients, ahead, added, faults, waited, .. } = *it;
        let ClientsStats { again, installed, installed_ahead, failed, reading, .. } = *it;
        let first = [clients, ahead, added, faults, waited];
        let rest = [again, installed, installed_ahead, failed, reading];
        for (counter, now) in self.0.iter().zip(first.into_iter().chain(rest)) {
            counter.store(now, Ordering::Relaxed);
        }
    }

    fn get(&self) -> ClientsStats {
        let now = self.0.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        let [clients, ahead, added, faults, waited, again, installed, rest @ ..] = now;
        let [installed_ahead, failed, reading] = rest;
        let mut it = ClientsStats::default();
        (it.clients, it.ahead, it.added, it.faults) = (clients, ahead, added, faults);
        (it.waited, it.again, it.installed) = (waited, again, installed);
        (it.installed_ahead, it.failed, it.reading) = (installed_ahead, failed, reading);
        it
    }
}

/// A thread that has panicked had no half-done change of it.
fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    /// # Errors
    /// The system gives no eventfd.
    pub fn new() -> Result<Self, Errno> {
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Desk { commands: Mutex::default(), wakes, counters: Counters::default() })
    }

    /// Asks for something.
    pub fn ask(&self, command: Command) {
        lock(&self.commands).push_back(command);
        // It cannot be full.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.wakes, &1_u64.to_ne_bytes()));
    }

    /// Nothing of what was asked for is done: who asks is told so, by the end of the channel.
    fn clear(&self) {
        drop(self.take());
    }

    /// What was asked for until now.
    pub fn take(&self) -> VecDeque<Command> {
        let _ = rustix::io::read(&self.wakes, &mut [0_u8; 8]); // asked by nobody else
        std::mem::take(&mut *lock(&self.commands))
    }

    /// What the thread has counted by now.
    pub fn count(&self, counters: &ClientsStats) {
        self.counters.set(counters);
    }

    /// Whether nobody asks for anything.
    pub fn is_empty(&self) -> bool {
        lock(&self.commands).is_empty()
    }

    /// What the thread has counted.
    pub fn counters(&self) -> ClientsStats {
        self.counters.get()
    }
}

/// Readable when something was asked for.
impl AsFd for Desk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}

/// The desks of all processes.
#[derive(Debug, Default)]
pub struct Desks(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    desks: HashMap<u64, Arc<Desk>>,
    /// What threads have counted that have ended.
    ended: Stats,
}

impl Table {
    fn forget(&mut self, owner: u64, desk: &Arc<Desk>) {
        if let Entry::Occupied(known) = self.desks.entry(owner)
            && Arc::ptr_eq(known.get(), desk)
        {
            known.remove();
            self.ended.add(&desk.counters());
            (self.ended.clients, self.ended.ahead, self.ended.reading) = (0, 0, 0);
        }
    }
}

impl Desks {
    /// Asks the thread of a process, which `start` starts if there is none. Returns where it was
    /// asked.
    ///
    /// # Errors
    /// Those of `start`.
    pub fn ask<E>(
        &self,
        owner: u64,
        command: Command,
        start: impl FnOnce() -> Result<Arc<Desk>, E>,
    ) -> Result<Arc<Desk>, E> {
        // Under the lock, as the thread may be about to end.
        let mut table = lock(&self.0);
        let desk = match table.desks.entry(owner) {
            Entry::Occupied(desk) => desk.into_mut(),
            Entry::Vacant(place) => place.insert(start()?),
        };
        desk.ask(command);
        Ok(desk.clone())
    }

    /// Asks the thread of a process, if this is its desk. False: that thread has ended.
    pub fn ask_at(&self, owner: u64, desk: *const Desk, command: Command) -> bool {
        let table = lock(&self.0);
        let known = table.desks.get(&owner).filter(|known| Arc::as_ptr(known) == desk);
        known.map(|known| known.ask(command)).is_some()
    }

    /// Whether no process has a thread.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        lock(&self.0).desks.is_empty()
    }

    /// What all threads have counted, a moment ago.
    pub fn stats(&self) -> Stats {
        let table = lock(&self.0);
        let mut all = table.ended;
        for desk in table.desks.values() {
            all.add(&desk.counters());
        }
        all
    }

    /// Whether the thread of a process without clients ends. Then it is forgotten.
    pub fn end(&self, owner: u64, desk: &Arc<Desk>, is_reading: bool) -> bool {
        let mut table = lock(&self.0);
        if !desk.is_empty() {
            return false;
        }
        let waits = |desk: &&Arc<Desk>| desk.counters().clients == 0;
        if is_reading && table.desks.values().filter(waits).count() <= WAITING_MAX {
            return false;
        }
        table.forget(owner, desk);
        true
    }

    /// A thread has ended. Whoever still asks for something is told so.
    pub fn ended(&self, owner: u64, desk: &Arc<Desk>) {
        let mut table = lock(&self.0);
        table.forget(owner, desk);
        desk.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_threads_stay_for_the_reads_of_who_has_left() {
        let desks = Desks::default();
        let owners = 0..20;
        for owner in owners.clone() {
            lock(&desks.0).desks.insert(owner, Arc::new(Desk::new().unwrap()));
        }
        let desk = |owner: u64| lock(&desks.0).desks.get(&owner).cloned();
        for owner in owners.clone() {
            desks.end(owner, &desk(owner).unwrap(), true);
        }
        assert_eq!(owners.clone().filter_map(desk).count(), WAITING_MAX);
        for owner in owners {
            if let Some(desk) = desk(owner) {
                assert!(desks.end(owner, &desk, false), "it has read all");
            }
        }
        assert!(lock(&desks.0).desks.is_empty());
    }
}
