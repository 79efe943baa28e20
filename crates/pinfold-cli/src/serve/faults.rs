//! The thread that serves the faults of one process: the library's `Clients`, and what the threads
//! of the process's connections ask of it. It reads no socket, parses nothing, and writes no file
//! and no line. It closes no descriptor that could be the last of a client's.
//!
//! Once a second it looks which of its clients have left: their connections' threads may be waiting
//! for a close.
//!
//! It waits for the process, whose memory the kernel locks for each installation; nobody else waits
//! for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pinfold::{ClientEvent, ClientId, Clients, ClientsStats};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::desk::{Command, Desk, Desks};
use super::log::Log;
use super::peer::Peer;
use super::protocol::FAILED;
use super::record::Recording;

/// Lines about pages that could not be read, for one client.
const FAILURES_TOLD: u64 = 8;

/// How often it looks which clients have left: as often as whether their memory is gone, for which
/// the library comes back.
const LOOK: Duration = Duration::from_secs(1);

/// What the thread has.
#[derive(Debug)]
pub struct Faults {
    clients: Clients,
    desk: Arc<Desk>,
    /// The connection of each client, and how many of its pages could not be read.
    peers: HashMap<ClientId, (Arc<Peer>, u64)>,
    recording: Option<Arc<Recording>>,
    replay: Option<Arc<[u64]>>,
    log: Log,
    looked_at: Instant,
}

impl Faults {
    /// Of a process that has no clients yet.
    pub fn new(clients: Clients, desk: Arc<Desk>, log: Log) -> Self {
        let (peers, recording, replay) = Default::default();
        Faults { clients, desk, peers, recording, replay, log, looked_at: Instant::now() }
    }

    /// Where it is asked.
    pub fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Records the pages that clients touch.
    pub fn record(&mut self, recording: Arc<Recording>) {
        self.clients.record(true);
        self.recording = Some(recording);
    }

    /// Installs these pages in each new client's memory.
    pub fn replay(&mut self, pages: Arc<[u64]>) {
        self.replay = Some(pages);
    }

    /// Serves until the process has no clients any more.
    pub fn run(self, owner: u64, desks: &Desks) {
        let mut running = Running { faults: self, owner, desks };
        // Ends: when it is not wanted any more, or the system fails.
        while !running.is_over() {
            if let Err(error) = running.faults.turn() {
                running.faults.log.tell(format_args!("faults are not served any more: {error:#}"));
                return;
            }
        }
    }

    /// Waits for something to do, and does a part of it.
    fn turn(&mut self) -> Result<()> {
        let wait = self.clients.timeout().map(|wait| Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let mut fds =
            [PollFd::new(&self.clients, PollFlags::IN), PollFd::new(&*self.desk, PollFlags::IN)];
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for clients"),
        }
        if fds[1].revents().contains(PollFlags::IN) {
            self.hear();
        }
        if self.looked_at.elapsed() >= LOOK {
            self.let_go_of_who_has_left();
            self.looked_at = Instant::now();
        }
        for event in self.clients.work() {
            self.tell(event);
        }
        self.write_down();
        self.count();
        Ok(())
    }

    /// Does what was asked for until now.
    fn hear(&mut self) {
        for command in self.desk.take() {
            // Who asks may have ended: nobody wants the answers.
            match command {
                Command::Add(uffd, mappings, peer, reply) => {
                    let added = self.clients.add(uffd, &mappings);
                    match added {
                        Ok(client) => {
                            self.peers.insert(client, (peer, 0));
                            if let Some(pages) = &self.replay {
                                self.clients.install_ahead(client, pages);
                            }
                        }
                        // Before the answer: else this could be the connection's last.
                        Err(_) => drop(peer),
                    }
                    self.count();
                    let _ = reply.send(added);
                }
                Command::Remove(client, done) => {
                    self.clients.remove(client);
                    self.peers.remove(&client);
                    self.count();
                    let _ = done.send(());
                }
            }
        }
    }

    /// Who has left is told of by its connection's thread, which has its descriptors.
    fn let_go_of_who_has_left(&mut self) {
        let clients = &mut self.clients;
        self.peers.retain(|&client, (peer, _)| {
            let has_left = peer.has_left();
            if has_left {
                clients.remove(client);
            }
            !has_left
        });
    }

    fn count(&self) {
        self.desk.count(&self.clients.stats());
    }

    fn tell(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Ended { client, cause } => {
                if let Some((peer, _)) = self.peers.remove(&client) {
                    peer.give_up(cause);
                }
            }
            ClientEvent::PageFailed { client, offset, cause } => {
                let Some((peer, failures)) = self.peers.get_mut(&client) else { return };
                *failures += 1;
                match *failures {
                    ..FAILURES_TOLD => {
                        self.log.tell(format_args!("{peer}: the page at {offset}: {cause}"));
                    }
                    FAILURES_TOLD => {
                        self.log.tell(format_args!("{peer}: further pages cannot be read"));
                    }
                    _ => {}
                }
            }
        }
    }

    fn write_down(&mut self) {
        let Some(recording) = &self.recording else { return };
        let touched = self.clients.take_touched();
        if !touched.is_empty() && !recording.add(touched) {
            // It has been told why. Pages are installed together again.
            self.recording = None;
            self.clients.record(false);
        }
    }
}

/// The thread, as long as it serves.
struct Running<'a> {
    faults: Faults,
    owner: u64,
    desks: &'a Desks,
}

impl Running<'_> {
    /// Whether it ends: the process has no clients, and nobody asks for one.
    fn is_over(&self) -> bool {
        let ClientsStats { clients, reading, .. } = self.faults.clients.stats();
        clients == 0 && self.desks.end(self.owner, &self.faults.desk, reading > 0)
    }
}

/// Whatever ends it: nobody waits for it any more.
impl Drop for Running<'_> {
    fn drop(&mut self) {
        for (peer, _) in self.faults.peers.values() {
            peer.end(FAILED.to_owned());
        }
        self.desks.ended(self.owner, &self.faults.desk);
    }
}
