//! A server on one thread, with an event loop of its own and no runtime: epoll(7) tells it which
//! sockets are ready, and that reads of the file have ended.
//!
//! ```sh
//! cargo run --release -p pinfold --example event_loop [REQUESTS]
//! ```
//!
//! makes a file of 64 MiB, serves it under a budget of 8 MiB, and is its own client: it sends
//! requests over 100 connections, and checks every byte. Each tenth connection is closed while its
//! last request is under way, and the server gives that read up.
//!
//! A request is two numbers of 8 bytes, little-endian: the offset and the length of a range. The
//! answer is the range. A connection's next request is read when the answer was sent.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pinfold::{Cache, Completion, Completions, File, Hint, Options};
use rustix::event::epoll::{self, EventData, EventFlags};

const FILE_BYTES: u64 = 64 << 20;
const BUDGET: u64 = FILE_BYTES / 8;
const CONNECTIONS: u64 = 100;
/// A client that asks for more is not answered.
const LENGTH_MAX: u64 = 256 << 10;

/// What an event is of: these two, or a connection by its number.
const OF_LISTENER: u64 = u64::MAX;
const OF_READS: u64 = u64::MAX - 1;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A client, and how far it is.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    /// Whether a read of the file is under way for it.
    reads: bool,
    answer: Vec<u8>,
    sent: usize,
}

impl Connection {
    /// Goes on until it would block, or waits for a read of the file. An error ends it.
    fn go_on(
        &mut self,
        number: u64,
        file: &Arc<File>,
        completions: &mut Completions,
    ) -> io::Result<()> {
        while !self.reads {
            if self.sent < self.answer.len() {
                match self.stream.write(&self.answer[self.sent..]) {
                    Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(()),
                    sent => self.sent += sent?,
                }
                continue;
            }
            let mut part = [0; 16];
            let missing = part.len() - self.request.len();
            match self.stream.read(&mut part[..missing]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(()),
                got => self.request.extend(&part[..got?]),
            }
            if let &[offset, length] = self.request.as_chunks().0 {
                let (offset, length) = (u64::from_le_bytes(offset), u64::from_le_bytes(length));
                if length > LENGTH_MAX {
                    return Err(ErrorKind::InvalidInput.into());
                }
                // The buffer of the last answer, as long as the connection lives.
                let mut buf = std::mem::take(&mut self.answer);
                buf.resize(length as usize, 0);
                completions.read_at(file, buf, offset, number);
                (self.reads, self.sent) = (true, 0);
                self.request.clear();
            }
        }
        Ok(())
    }
}

/// The event loop, until as many clients have come and gone as there are.
struct Server {
    epoll: OwnedFd,
    listener: TcpListener,
    file: Arc<File>,
    completions: Completions,
    connections: HashMap<u64, Connection>,
    /// Clients so far.
    clients: u64,
    /// Reads that were given up, as nobody was there to take them.
    given_up: usize,
}

impl Server {
    fn new(listener: TcpListener, file: Arc<File>) -> Result<Self, Failure> {
        let (epoll, completions) =
            (epoll::create(epoll::CreateFlags::CLOEXEC)?, Completions::new()?);
        listener.set_nonblocking(true)?;
        epoll::add(&epoll, &listener, EventData::new_u64(OF_LISTENER), EventFlags::IN)?;
        epoll::add(&epoll, &completions, EventData::new_u64(OF_READS), EventFlags::IN)?;
        let connections = HashMap::new();
        Ok(Server { epoll, listener, file, completions, connections, clients: 0, given_up: 0 })
    }

    fn serve(&mut self) -> Result<(), Failure> {
        let mut events = Vec::with_capacity(64);
        while self.clients < CONNECTIONS || !self.connections.is_empty() {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Err(rustix::io::Errno::INTR) => continue,
                waited => waited?,
            };
            for event in &events {
                // A copy: the system's events are packed.
                let flags = event.flags;
                match event.data.u64() {
                    OF_LISTENER => self.accept()?,
                    OF_READS => self.answer(),
                    number if flags.intersects(EventFlags::RDHUP | EventFlags::ERR) => {
                        self.close(number);
                    }
                    number => self.go_on(number),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), Failure> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(why) => return Err(why.into()),
        };
        stream.set_nonblocking(true)?;
        let number = self.clients;
        self.clients += 1;
        // Of edges: a connection goes on until it would block.
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, &stream, EventData::new_u64(number), flags)?;
        let (request, answer) = (Vec::new(), Vec::new());
        let connection = Connection { stream, request, reads: false, answer, sent: 0 };
        self.connections.insert(number, connection);
        self.go_on(number);
        Ok(())
    }

    /// Takes all reads that have ended.
    fn answer(&mut self) {
        // Collected first: going on begins further reads.
        let ended: Vec<_> = self.completions.by_ref().collect();
        for (number, completion) in ended {
            let Completion::Read { mut buf, result } = completion else {
                unreachable!("only ranges are asked for")
            };
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            match result {
                Ok(bytes) => {
                    buf.truncate(bytes);
                    (connection.answer, connection.reads) = (buf, false);
                    self.go_on(number);
                }
                Err(cause) => {
                    eprintln!("connection {number}: {cause}");
                    self.close(number);
                }
            }
        }
    }

    fn go_on(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.go_on(number, &self.file, &mut self.completions).is_err() {
            self.close(number);
        }
    }

    fn close(&mut self, number: u64) {
        self.given_up += self.completions.cancel(number);
        // Its descriptor leaves the epoll as it is closed.
        self.connections.remove(&number);
    }
}

/// What the file has at `offset`.
fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

/// Sends so many requests, one after the other, and checks the answers. Returns their bytes.
fn ask(address: SocketAddr, client: u64, requests: u64) -> Result<u64, Failure> {
    let mut stream = TcpStream::connect(address)?;
    let (mut buf, mut total) = (Vec::new(), 0);
    for number in 0..=requests {
        let random = (client * (requests + 1) + number).wrapping_mul(0xD134_2543_DE82_EF95);
        let offset = random % FILE_BYTES;
        let length = (random >> 40) % 20_000;
        let mut request = offset.to_le_bytes().to_vec();
        request.extend(length.to_le_bytes());
        if number == requests {
            if client.is_multiple_of(10) {
                stream.write_all(&request)?; // and does not wait for the answer
            }
            break;
        }
        stream.write_all(&request)?;
        buf.resize(length.min(FILE_BYTES - offset) as usize, 0);
        stream.read_exact(&mut buf)?;
        if !(offset..).zip(&buf).all(|(at, &byte)| byte == byte_at(at)) {
            return Err(format!("wrong bytes at {offset}").into());
        }
        total += buf.len() as u64;
    }
    Ok(total)
}

/// Serves `requests` requests of a new file in `dir`; returns how many bytes came.
pub(crate) fn run(dir: &std::path::Path, requests: u64) -> Result<u64, Failure> {
    let mut on_disk = tempfile::NamedTempFile::new_in(dir)?;
    on_disk.write_all(&(0..FILE_BYTES).map(byte_at).collect::<Vec<u8>>())?;
    let cache = Cache::new(Options::new(BUDGET))?;
    let file = Arc::new(cache.open(on_disk.path())?);
    file.advise(0..FILE_BYTES, Hint::Random)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let mut server = Server::new(listener, file)?;
    let share = |client: u64| client * requests / CONNECTIONS;
    let bytes = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|client| {
                let requests = share(client + 1) - share(client);
                scope.spawn(move || ask(address, client, requests))
            })
            .collect();
        server.serve()?;
        let mut bytes = 0;
        for client in clients {
            bytes += client.join().expect("a client panicked")?;
        }
        Ok::<_, Failure>(bytes)
    })?;
    let (stats, given_up) = (cache.stats(), server.given_up);
    println!(
        "{requests} ranges, {:.1} MiB, every byte right; {} misses, {given_up} reads were \
         given up",
        bytes as f64 / 1_048_576.0,
        stats.misses,
    );
    Ok(bytes)
}

fn main() -> Result<(), Failure> {
    let requests = std::env::args().nth(1).map_or(Ok(10_000), |number| number.parse::<u64>())?;
    run(std::path::Path::new("."), requests).map(drop)
}
