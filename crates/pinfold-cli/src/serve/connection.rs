//! One connection, in a thread of its own. What a client does to it makes nobody else wait: a
//! message that does not end, one that takes long to be understood, a descriptor whose close waits.
//!
//! # States
//!
//! | state | the client | ends when |
//! |---|---|---|
//! | new | has to say what it wants | it is served; it closes; it was silent too long, or wrong; it gives way |
//! | served | is silent, or asks for counters | it closes; it cannot be served; it was wrong |
//!
//! A connection that ends takes its client with it. What is installed in its memory stays.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use pinfold::Cache;
use pinfold::source::SourceStats;
use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::gate::{Gate, Gates};
use super::log::{self, Log};
use super::peer::{ENDED, Peer, PeerProcess};
use super::processes::{Processes, ServedClient};
use super::protocol::{self, Messages, NO_DESCRIPTORS, NOT_RECEIVED, Reply, Request, Stats};
use super::record::Written;
use super::socket::{self, Received};

/// Bytes that are received at once.
const RECEIVE_BYTES: usize = 16 << 10;

/// How much less the system prefers the threads of connections to those that serve faults.
const NICE: i32 = 10;

/// What all connections have.
#[derive(Debug)]
pub struct Shared {
    /// The cache, for its counters.
    pub cache: Cache,
    /// The memory that clients share, and its length.
    pub memory: OwnedFd,
    /// As `Clients::bytes` says.
    pub bytes: u64,
    /// Those that are served.
    pub processes: Arc<Processes>,
    /// Which of a process's connections is heard.
    pub gates: Gates,
    /// Where lines go.
    pub log: Log,
    /// How long a client may be silent before it is served.
    pub silence: Duration,
    /// Of the working set that is recorded.
    pub written: Written,
}

/// A connection, in its thread.
struct Connection<'a> {
    shared: &'a Shared,
    peer: &'a Arc<Peer>,
    gate: &'a Gate,
    messages: Messages,
    /// It was sent a descriptor of the memory.
    has_memory: bool,
    /// What it has sent, until it is served: one is wanted. All are closed after the end was told.
    descriptors: Vec<OwnedFd>,
    /// It has said hello, and so reads what it is told.
    hears: bool,
    /// What is served, and this thread's duplicate of its userfaultfd: to close the last one waits
    /// for the client.
    client: Option<(ServedClient, OwnedFd)>,
    /// Once the time is over in which it has to send its mappings: how many bytes of what it had
    /// sent by then are left to be heard.
    sent_in_time: Option<u64>,
}

/// Has a conversation, until it ends.
///
/// What the connection has received is closed by this thread. The caller closes the connection,
/// once nobody else has it: what it has not received yet is closed with it.
pub fn run(shared: &Shared, peer: &Arc<Peer>) {
    // SAFETY: changes the priority of this thread alone. It may fail: then it is like the others.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    let process = peer.begin().and_then(|()| peer.process());
    let gate = shared.gates.of(process.as_ref().map_or(0, |process| process.owner()));
    let mut it = Connection {
        shared,
        peer,
        gate: &gate,
        messages: Messages::default(),
        has_memory: false,
        descriptors: Vec::new(),
        hears: false,
        client: None,
        sent_in_time: None,
    };
    it.hears = process.is_err(); // it is told so, whatever it has said
    let ended = process.as_ref().map_err(Clone::clone).and_then(|process| it.hear(process));
    let (lines, name) = (&shared.log, peer);
    if let Some((client, _)) = &it.client {
        shared.processes.remove(client);
    }
    let is_in_the_middle = it.messages.is_in_the_middle();
    let passing = gate.pass();
    it.messages = Messages::default(); // what is freed takes the allocator's locks
    drop(passing);
    match ended {
        Err(why) => {
            let why = log::one_line(why);
            lines.tell(format_args!("{name} is not served any more: {why}"));
            if it.hears {
                let reply = Reply { error: Some(why), ..Reply::new() };
                // The connection ends in any case.
                let _ = socket::send(it.peer.stream(), &reply.message(), None);
            }
        }
        Ok(()) if is_in_the_middle || !it.descriptors.is_empty() => {
            lines.tell(format_args!("{name} has left in the middle of a message"));
        }
        Ok(()) if it.client.is_some() => lines.tell(format_args!("{name} has left")),
        Ok(()) => {}
    }
}

impl<'a> Connection<'a> {
    /// Until the client closes the connection.
    ///
    /// # Errors
    /// Why it is ended before.
    fn hear(&mut self, process: &PeerProcess) -> Result<(), String> {
        let begin = Instant::now();
        let passing = self.gate.pass();
        let mut buf = vec![1; RECEIVE_BYTES]; // not 0: it is in memory from now on
        drop(passing);
        // Ends: with the connection, at the latest when the process ends that has connected.
        loop {
            let has_ended = self.wait(process, begin)?;
            // Before the gate: the system closes what does not fit, and that may wait.
            let received = socket::receive(self.peer.stream(), &mut buf);
            let mut passing = self.gate.pass();
            let received = match received {
                Ok(received) => received,
                Err(Errno::AGAIN) if has_ended => return Err(ENDED.to_owned()),
                Err(Errno::AGAIN) => continue,
                Err(Errno::CONNRESET) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            let Received { bytes, descriptors, left_out } = received;
            self.descriptors.extend(descriptors.into_iter().flatten());
            if let Some(why) = self.peer.why_ended() {
                return Err(why);
            }
            if bytes == 0 {
                return Ok(());
            }
            if has_ended {
                return Err(ENDED.to_owned()); // what it has said last is of no use
            }
            if self.descriptors.len() > 1 {
                return Err("it has sent several descriptors, and one is wanted".to_owned());
            }
            if left_out {
                return Err(NO_DESCRIPTORS.to_owned());
            }
            if let Some(left) = &mut self.sent_in_time {
                *left = left.saturating_sub(bytes as u64);
            }
            self.messages.push(&buf[..bytes]);
            // Ends: each turn takes a message.
            while let Some(message) = self.messages.take()? {
                self.hears |= protocol::is_from_a_listener(message);
                let request = protocol::request(message)?;
                passing = self.answer(process, request, passing)?;
            }
            let most = protocol::SERVED_MESSAGE_MAX_BYTES;
            if self.client.is_some() && self.messages.unfinished_bytes() > most {
                return Err(format!("it is served, and its message has more than {most} bytes"));
            }
            if self.client.is_some() && !self.descriptors.is_empty() {
                return Err("it is served already, and sends a descriptor again".to_owned());
            }
        }
    }

    /// Waits until there is something to receive, or the process has ended, which it tells.
    ///
    /// # Errors
    /// The system's; or it has sent no mappings in time. It is not judged by the clock alone: what
    /// it has sent in time may wait for this thread.
    fn wait(&mut self, process: &PeerProcess, begin: Instant) -> Result<bool, String> {
        let left = match &self.client {
            Some(_) => None,
            None => Some(self.shared.silence.saturating_sub(begin.elapsed())),
        };
        let wait = left.map(|left| Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        let stream = self.peer.stream();
        let waited = process.wait(stream, wait.as_ref()).map_err(|why| why.to_string())?;
        if left.is_some_and(|left| left.is_zero()) && self.sent_in_time.is_none() {
            let waits = rustix::io::ioctl_fionread(stream).map_err(|why| why.to_string())?;
            self.sent_in_time = Some(waits.max(1)); // its end is no byte
        }
        let is_over = left.is_some() && self.sent_in_time == Some(0);
        waited.filter(|_| !is_over).ok_or_else(|| {
            let seconds = self.shared.silence.as_secs_f64();
            format!("it has sent no mappings for {seconds} seconds")
        })
    }

    /// Returns what it has passed the gate with.
    fn answer(
        &mut self,
        process: &PeerProcess,
        request: Request,
        mut passing: MutexGuard<'a, ()>,
    ) -> Result<MutexGuard<'a, ()>, String> {
        let (reply, descriptor) = match request {
            Request::Memory => {
                // The system limits the descriptors that were sent and not received, of all
                // connections together.
                if std::mem::replace(&mut self.has_memory, true) {
                    return Err("it was sent the memory already, and asks for it again".to_owned());
                }
                let memory = self.memory()?;
                (Reply { bytes: Some(self.shared.bytes), ..Reply::new() }, Some(memory))
            }
            Request::Stats => (Reply { stats: Some(self.stats()), ..Reply::new() }, None),
            Request::Serve(mappings) => {
                if self.client.is_some() {
                    return Err("it is served already, and sends mappings again".to_owned());
                }
                let uffd = self.descriptors.last();
                let uffd = uffd.ok_or("its mappings came without a userfaultfd")?;
                check(uffd)?;
                let twin = uffd.try_clone().map_err(|_| NO_DESCRIPTORS)?;
                self.peer.begin_service()?;
                let (processes, peer) = (&self.shared.processes, self.peer.clone());
                let client = processes.add(process.owner(), twin, mappings, peer, passing)?;
                passing = self.gate.pass();
                self.client = self.descriptors.pop().map(|uffd| (client, uffd));
                if !self.hears {
                    return Ok(passing); // Firecracker expects no answer
                }
                (Reply { client: Some(self.peer.number()), ..Reply::new() }, None)
            }
        };
        let message = reply.message();
        match socket::send(self.peer.stream(), &message, descriptor.as_ref()) {
            Ok(sent) if sent == message.len() => Ok(passing),
            Ok(_) | Err(Errno::AGAIN) => Err("it does not read its answers".to_owned()),
            Err(Errno::TOOMANYREFS) => Err(NOT_RECEIVED.to_owned()),
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(passing), // its end is seen next
            Err(error) => Err(error.to_string()),
        }
    }

    /// The counters.
    fn stats(&self) -> Stats {
        let shared = self.shared;
        let mut stats = shared.processes.stats();
        let sources = shared.cache.sources();
        let read = |source: &SourceStats| source.read.bytes + source.read_ahead.bytes;
        stats.read_bytes = sources.iter().map(|(_, source)| read(source)).sum();
        let memory = rustix::fs::fstat(&shared.memory);
        stats.shared_bytes = memory.map_or(0, |memory| memory.st_blocks.cast_unsigned() * 512);
        stats.touched = shared.written.pages();
        stats
    }

    /// A descriptor of the shared memory, for this client alone.
    fn memory(&self) -> Result<OwnedFd, String> {
        let path = format!("/proc/self/fd/{}", self.shared.memory.as_raw_fd());
        let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        opened.map_err(|why| match why {
            Errno::MFILE | Errno::NFILE => NO_DESCRIPTORS.to_owned(),
            why => format!("the memory cannot be opened: {why}"),
        })
    }
}

/// Only a userfaultfd gets to a thread that serves faults. Each close of something else may wait,
/// and not only the last one: a file system of the client's own is asked at each.
///
/// # Errors
/// What it is instead.
fn check(uffd: &OwnedFd) -> Result<(), String> {
    let what = std::fs::read_link(format!("/proc/self/fd/{}", uffd.as_raw_fd()));
    let what = what.map_err(|why| format!("its descriptor cannot be looked at: {why}"))?;
    let is_path = rustix::fs::fcntl_getfl(uffd).is_ok_and(|flags| flags.contains(OFlags::PATH));
    if what.as_os_str() != "anon_inode:[userfaultfd]" {
        Err(format!("the descriptor is no userfaultfd, but {}", what.display()))
    } else if is_path {
        Err("the descriptor is no userfaultfd, but the path of one (O_PATH)".to_owned())
    } else {
        Ok(())
    }
}
