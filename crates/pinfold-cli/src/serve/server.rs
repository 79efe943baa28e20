//! The server's loop: the listening socket, connections, and the library's `Clients`, in one thread
//! that waits for nothing but all of them.
//!
//! # States of a connection
//!
//! | state | the client | ends when |
//! |---|---|---|
//! | new | has to say what it wants | it is served; it closes; it was silent too long, or wrong |
//! | served | is silent, or asks for counters | it closes; it cannot be served; it was wrong |
//!
//! A connection that ends takes its client with it. What is installed in its memory stays.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pinfold::{Cache, ClientError, ClientEvent, ClientId, Clients};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::protocol::{self, MESSAGE_MAX_BYTES, Reply, Request, Stats};
use super::record::Recorder;
use super::socket::{self, Received};

/// The most connections. Beyond, the oldest that is not served gives way to a new one.
const CONNECTIONS_MAX: usize = 1024;

/// How long the loop leaves new connections alone when it can take none.
const REST: Duration = Duration::from_millis(100);

/// Lines about pages that could not be read, for one client.
const FAILURES_TOLD: u64 = 8;

/// Bytes that are read from a connection in one turn.
const TURN_BYTES: usize = 16 << 10;

const LISTENER: u64 = 0;
const CLIENTS: u64 = 1;
const FIRST_CONNECTION: u64 = 2;

/// What a server is made of.
#[derive(Debug)]
pub struct Server {
    cache: Cache,
    clients: Clients,
    listener: UnixListener,
    epoll: OwnedFd,
    connections: BTreeMap<u64, Connection>,
    /// The connection of a client.
    of_client: HashMap<ClientId, u64>,
    last: u64,
    /// New connections are not taken before this.
    rests_until: Option<Instant>,
    /// How long a client may be silent before it is served.
    silence: Duration,
    recorder: Option<Recorder>,
    touched: u64,
    replay: Option<Arc<[u64]>>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    pid: Option<i32>,
    since: Instant,
    received: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// It has said hello, and so reads what it is told.
    hears: bool,
    client: Option<ClientId>,
    failures: u64,
}

/// How a connection is told of.
fn name(number: u64, connection: &Connection) -> String {
    let number = number - FIRST_CONNECTION + 1;
    match connection.pid {
        Some(pid) => format!("client {number} (pid {pid})"),
        None => format!("client {number}"),
    }
}

/// A listening socket at `path`. A socket there that nobody listens to is replaced.
///
/// # Errors
/// The path is something else, or in use.
pub fn listen(path: &Path) -> Result<UnixListener> {
    let at = || path.display();
    match UnixListener::bind(path) {
        Ok(listener) => return Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
        Err(error) => return Err(error).with_context(|| format!("cannot listen at {}", at())),
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if !is_socket {
        bail!("cannot listen at {}: there is a file that is no socket", at());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
        _ => bail!("cannot listen at {}: another server does", at()),
    }
    std::fs::remove_file(path).with_context(|| format!("cannot replace {}", at()))?;
    UnixListener::bind(path).with_context(|| format!("cannot listen at {}", at()))
}

impl Server {
    /// A server that has no clients yet.
    ///
    /// # Errors
    /// The system gives no epoll.
    pub fn new(
        cache: Cache,
        clients: Clients,
        listener: UnixListener,
        silence: Duration,
    ) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        listener.set_nonblocking(true)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &clients, epoll::EventData::new_u64(CLIENTS), epoll::EventFlags::IN)?;
        Ok(Server {
            cache,
            clients,
            listener,
            epoll,
            connections: BTreeMap::new(),
            of_client: HashMap::new(),
            last: FIRST_CONNECTION - 1,
            rests_until: None,
            silence,
            recorder: None,
            touched: 0,
            replay: None,
        })
    }

    /// Writes the pages that clients touch to a file, which has the `known` ones.
    pub fn record(&mut self, recorder: Recorder, known: &[Range<u64>]) {
        self.clients.record(Some(known));
        self.touched = super::record::pages_in(known);
        self.recorder = Some(recorder);
    }

    /// Installs these pages in each new client's memory.
    pub fn replay(&mut self, pages: Vec<u64>) {
        self.replay = Some(pages.into());
    }

    /// Serves for ever.
    ///
    /// # Errors
    /// The working set cannot be written; the system's epoll fails.
    pub fn run(&mut self) -> Result<()> {
        loop {
            self.turn()?;
        }
    }

    fn turn(&mut self) -> Result<()> {
        let mut events = Vec::with_capacity(64);
        let wait = self.timeout().map(|wait| Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: wait.subsec_nanos().into(),
        });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("waiting for clients"),
        }
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                CLIENTS => {}
                connection => self.hear(connection),
            }
        }
        for event in self.clients.work() {
            self.tell(event);
        }
        if let Some(recorder) = &mut self.recorder {
            let touched = self.clients.take_touched();
            recorder.add(&touched)?;
            self.touched += touched.len() as u64;
        }
        self.end_the_silent();
        Ok(())
    }

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let silent = self.connections.values().filter(|it| it.client.is_none());
        let silent =
            silent.map(|it| (it.since + self.silence).saturating_duration_since(now)).min();
        let rests = self.rests_until.map(|until| until.saturating_duration_since(now));
        [self.clients.timeout(), silent, rests].into_iter().flatten().min()
    }

    fn accept(&mut self) {
        if self.rests_until.is_some() {
            return;
        }
        match self.listener.accept() {
            Ok((stream, _)) => self.connect(stream),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // Too many descriptors, for example: the connection waits.
                eprintln!("cannot take a connection: {error}");
                self.rest();
            }
        }
    }

    fn rest(&mut self) {
        let none = epoll::EventFlags::empty();
        let data = epoll::EventData::new_u64(LISTENER);
        if epoll::modify(&self.epoll, &self.listener, data, none).is_ok() {
            self.rests_until = Some(Instant::now() + REST);
        }
    }

    fn connect(&mut self, stream: UnixStream) {
        if self.connections.len() >= CONNECTIONS_MAX {
            let oldest = self.connections.iter().find(|(_, it)| it.client.is_none());
            let Some(oldest) = oldest.map(|(number, _)| *number) else {
                eprintln!("there are {CONNECTIONS_MAX} clients: a further one is refused");
                return;
            };
            self.end(oldest, Some("it is not served yet, and gives way to a new one".to_owned()));
        }
        self.last += 1;
        let credentials = rustix::net::sockopt::socket_peercred(&stream).ok();
        let connection = Connection {
            pid: credentials.map(|it| it.pid.as_raw_nonzero().get()),
            stream,
            since: Instant::now(),
            received: Vec::new(),
            descriptors: Vec::new(),
            hears: false,
            client: None,
            failures: 0,
        };
        let data = epoll::EventData::new_u64(self.last);
        let added = connection.stream.set_nonblocking(true).and_then(|()| {
            Ok(epoll::add(&self.epoll, &connection.stream, data, epoll::EventFlags::IN)?)
        });
        match added {
            Ok(()) => drop(self.connections.insert(self.last, connection)),
            Err(error) => eprintln!("{}: {error}", name(self.last, &connection)),
        }
    }

    /// A connection has said something, or is closed.
    fn hear(&mut self, number: u64) {
        match self.receive(number) {
            Ok(true) => {}
            Ok(false) => self.end(number, None),
            Err(why) => self.end(number, Some(why)),
        }
    }

    /// False: it was closed.
    fn receive(&mut self, number: u64) -> Result<bool, String> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(true) };
        let mut buf = [0; TURN_BYTES];
        let Received { bytes, descriptors, too_many } =
            match socket::receive(&connection.stream, &mut buf) {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error.to_string()),
            };
        if bytes == 0 {
            return Ok(false);
        }
        connection.descriptors.extend(descriptors);
        if too_many || connection.descriptors.len() > 1 {
            return Err("it has sent several descriptors, and one is wanted".to_owned());
        }
        connection.received.extend(&buf[..bytes]);
        // Ends: each turn takes a message.
        loop {
            let Some(connection) = self.connections.get_mut(&number) else { return Ok(true) };
            let Some((message, length)) = protocol::first(&connection.received)? else {
                return Ok(true);
            };
            connection.received.drain(..length);
            connection.hears |= protocol::is_from_a_listener(&message);
            let request = protocol::request(message)?;
            self.answer(number, request)?;
        }
    }

    fn answer(&mut self, number: u64, request: Request) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        let (reply, descriptor) = match request {
            Request::Memory => {
                let memory = self.clients.memory().map_err(|error| error.to_string())?;
                (Reply { bytes: Some(self.clients.bytes()), ..Reply::new() }, Some(memory))
            }
            Request::Stats => {
                let stats = Stats::new(&self.clients.stats(), &self.cache.sources(), self.touched);
                (Reply { stats: Some(stats), ..Reply::new() }, None)
            }
            Request::Serve(mappings) => {
                if connection.client.is_some() {
                    return Err("it is served already, and sends mappings again".to_owned());
                }
                let uffd = connection.descriptors.pop();
                let uffd = uffd.ok_or("its mappings came without a userfaultfd")?;
                let client = self
                    .clients
                    .add(uffd, &mappings, u64::from(connection.pid.unwrap_or(0).unsigned_abs()))
                    .map_err(|why: ClientError| why.to_string())?;
                connection.client = Some(client);
                self.of_client.insert(client, number);
                if let Some(pages) = &self.replay {
                    self.clients.install_ahead(client, pages);
                }
                if !connection.hears {
                    return Ok(()); // Firecracker expects no answer
                }
                (Reply { client: Some(number - FIRST_CONNECTION + 1), ..Reply::new() }, None)
            }
        };
        let message = reply.message();
        match socket::send(&connection.stream, &message, descriptor.as_ref()) {
            Ok(sent) if sent == message.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err("it does not read its answers".to_owned()),
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(()), // its end is seen next
            Err(error) => Err(error.to_string()),
        }
    }

    /// What the library has to tell.
    fn tell(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Ended { client, cause } => {
                if let Some(&number) = self.of_client.get(&client) {
                    self.end(number, Some(cause.to_string()));
                }
            }
            ClientEvent::PageFailed { client, offset, cause } => {
                let number = self.of_client.get(&client);
                let connection = number.and_then(|number| self.connections.get_mut(number));
                if let (Some(number), Some(connection)) = (number, connection) {
                    connection.failures += 1;
                    let name = name(*number, connection);
                    match connection.failures {
                        ..FAILURES_TOLD => eprintln!("{name}: the page at {offset}: {cause}"),
                        FAILURES_TOLD => eprintln!("{name}: further pages cannot be read"),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Ends a connection, with what is wrong, if something is.
    fn end(&mut self, number: u64, why: Option<String>) {
        let Some(connection) = self.connections.remove(&number) else { return };
        let name = name(number, &connection);
        if let Some(client) = connection.client {
            self.clients.remove(client);
            self.of_client.remove(&client);
        }
        let is_in_the_middle = !connection.received.iter().all(u8::is_ascii_whitespace)
            || !connection.descriptors.is_empty();
        match why {
            Some(why) => {
                eprintln!("{name} is not served any more: {why}");
                if connection.hears {
                    let reply = Reply { error: Some(why), ..Reply::new() };
                    // The connection ends in any case.
                    let _ = socket::send(&connection.stream, &reply.message(), None);
                }
            }
            None if is_in_the_middle => {
                eprintln!("{name} has left in the middle of a message");
            }
            None if connection.client.is_some() => eprintln!("{name} has left"),
            None => {}
        }
    }

    fn end_the_silent(&mut self) {
        let now = Instant::now();
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
            let data = epoll::EventData::new_u64(LISTENER);
            // It was there before.
            let _ = epoll::modify(&self.epoll, &self.listener, data, epoll::EventFlags::IN);
        }
        let is_silent = |it: &Connection| it.client.is_none() && it.since + self.silence <= now;
        let silent = self.connections.iter().filter(|(_, it)| is_silent(it));
        let silent: Vec<u64> = silent.map(|(number, _)| *number).collect();
        for number in silent {
            let seconds = self.silence.as_secs_f64();
            self.end(number, Some(format!("it has sent no mappings for {seconds} seconds")));
        }
    }
}

/// What a message may have, beside what a connection may keep of one that is not complete.
const _: () = assert!(MESSAGE_MAX_BYTES > TURN_BYTES);
