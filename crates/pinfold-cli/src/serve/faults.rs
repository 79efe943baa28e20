//! The thread that serves faults: the library's `Clients`, and what the threads of connections ask
//! of it. It reads no socket, parses nothing, writes no file and no line, and closes no descriptor
//! that could be the last of a client's.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pinfold::{ClientError, ClientEvent, ClientId, ClientMapping, Clients, ClientsStats};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::asked::Asked;
use super::log::Log;
use super::peer::Peer;
use super::record::Recording;

/// How long, in one turn of the loop, something is begun that was asked for.
const COMMANDS_TIME: Duration = Duration::from_micros(200);

/// Lines about pages that could not be read, for one client.
const FAILURES_TOLD: u64 = 8;

/// What a connection asks for.
#[derive(Debug)]
enum Command {
    Add(OwnedFd, Vec<ClientMapping>, Arc<Peer>, Sender<Result<ClientId, ClientError>>),
    Remove(ClientId, Sender<()>),
    Stats(Sender<ClientsStats>),
}

/// The connection of a client, and how many of its pages could not be read.
type Peers = HashMap<ClientId, (Arc<Peer>, u64)>;

impl Command {
    fn run(self, clients: &mut Clients, peers: &mut Peers, replay: Option<&Arc<[u64]>>) {
        // Who asks may have ended: nobody wants the answers.
        match self {
            Command::Add(uffd, mappings, peer, reply) => {
                let added = clients.add(uffd, &mappings, peer.owner());
                match added {
                    Ok(client) => {
                        peers.insert(client, (peer, 0));
                        if let Some(pages) = replay {
                            clients.install_ahead(client, pages);
                        }
                    }
                    // Before the answer: else this could be the last of the connection.
                    Err(_) => drop(peer),
                }
                let _ = reply.send(added);
            }
            Command::Remove(client, done) => {
                clients.remove(client);
                peers.remove(&client);
                let _ = done.send(());
            }
            Command::Stats(reply) => {
                let _ = reply.send(clients.stats());
            }
        }
    }
}

/// To ask the thread that serves faults.
#[derive(Debug, Clone)]
pub struct Asks {
    /// With the owner who asks.
    commands: Sender<(u64, Command)>,
    wakes: Arc<OwnedFd>,
}

impl Asks {
    fn ask<T>(&self, owner: u64, command: impl FnOnce(Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = channel();
        self.commands.send((owner, command(reply))).ok()?;
        // It cannot be full.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&self.wakes, &1_u64.to_ne_bytes()));
        answer.recv().ok()
    }

    /// Serves a client. The caller keeps a duplicate of the descriptor, as its last close may wait.
    ///
    /// # Errors
    /// As of [`Clients::add`].
    pub fn add(
        &self,
        uffd: OwnedFd,
        mappings: Vec<ClientMapping>,
        peer: Arc<Peer>,
    ) -> Result<ClientId, String> {
        let added = self.ask(peer.owner(), |reply| Command::Add(uffd, mappings, peer, reply));
        added.ok_or("the server ends")?.map_err(|why| why.to_string())
    }

    /// Serves a client of `owner` no longer. After this the thread has nothing of it.
    pub fn remove(&self, owner: u64, client: ClientId) {
        self.ask(owner, |done| Command::Remove(client, done));
    }

    /// Counters, for `owner`.
    pub fn stats(&self, owner: u64) -> Option<ClientsStats> {
        self.ask(owner, Command::Stats)
    }
}

/// What the thread has.
#[derive(Debug)]
pub struct Faults {
    clients: Clients,
    commands: Receiver<(u64, Command)>,
    asked: Asked<Command>,
    wakes: Arc<OwnedFd>,
    peers: Peers,
    recording: Option<Recording>,
    replay: Option<Arc<[u64]>>,
    log: Log,
}

impl Faults {
    /// No clients yet; and who asks for some.
    ///
    /// # Errors
    /// The system gives no eventfd.
    pub fn new(clients: Clients, log: Log) -> Result<(Self, Asks)> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wakes = Arc::new(eventfd(0, flags).context("no eventfd")?);
        let (ask, commands) = channel();
        let asks = Asks { commands: ask, wakes: wakes.clone() };
        let faults = Faults {
            clients,
            commands,
            asked: Asked::default(),
            wakes,
            peers: HashMap::new(),
            recording: None,
            replay: None,
            log,
        };
        Ok((faults, asks))
    }

    /// Records the pages that clients touch.
    pub fn record(&mut self, recording: Recording) {
        self.clients.record(Some(recording.known()));
        self.recording = Some(recording);
    }

    /// Installs these pages in each new client's memory.
    pub fn replay(&mut self, pages: Vec<u64>) {
        self.replay = Some(pages.into());
    }

    /// Serves for ever.
    ///
    /// # Errors
    /// The system's poll fails.
    pub fn run(&mut self) -> Result<()> {
        let mut is_asked = false;
        loop {
            let wait = if is_asked { Some(Duration::ZERO) } else { self.clients.timeout() };
            let wait = wait.map(|wait| Timespec {
                tv_sec: wait.as_secs().cast_signed(),
                tv_nsec: wait.subsec_nanos().into(),
            });
            let mut fds = [
                PollFd::new(&self.clients, PollFlags::IN),
                PollFd::new(&*self.wakes, PollFlags::IN),
            ];
            match poll(&mut fds, wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for clients"),
            }
            if fds[1].revents().contains(PollFlags::IN) {
                let _ = rustix::io::read(&*self.wakes, &mut [0_u8; 8]); // asked by nobody else
            }
            is_asked = self.hear();
            for event in self.clients.work() {
                self.tell(event);
            }
            self.write_down();
        }
    }

    /// Does what was asked for, a part of it: each owner in turn has one thing done, at its own
    /// cost. Whether more is asked for.
    fn hear(&mut self) -> bool {
        for (owner, command) in self.commands.try_iter() {
            self.asked.push(owner, command);
        }
        let began = Instant::now();
        for _ in 0..self.asked.owners() {
            let Some(owner) = self.asked.next_owner() else { break };
            let asked = &mut self.asked;
            let (peers, replay) = (&mut self.peers, self.replay.as_ref());
            self.clients.turn_of(owner, |clients| {
                if let Some(command) = asked.take(owner) {
                    command.run(clients, peers, replay);
                }
            });
            if began.elapsed() > COMMANDS_TIME {
                break;
            }
        }
        self.asked.owners() > 0
    }

    fn tell(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Ended { client, cause } => {
                if let Some((peer, _)) = self.peers.remove(&client) {
                    peer.end(cause.to_string());
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
            self.clients.record(None);
        }
    }
}
