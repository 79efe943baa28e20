//! `pinfold serve SNAPSHOT --socket S`: a page server, from which any number of processes have
//! their memory; and `pinfold restore`, a plain client of it.
//!
//! | file | subject |
//! |---|---|
//! | `mod.rs` | the arguments of `serve` |
//! | `listen.rs` | the socket, which one server has |
//! | `server.rs` | the door: new connections |
//! | `connection.rs` | a connection, in its own thread |
//! | `peer.rs` | the other side of a connection, and its process |
//! | `processes.rs` | the processes that are served, each by a thread |
//! | `gate.rs` | which of a process's connections is heard |
//! | `faults.rs` | the thread that serves the faults of a process |
//! | `desk.rs` | where that thread is asked for something |
//! | `log.rs` | lines on standard error |
//! | `protocol.rs` | messages |
//! | `socket.rs` | bytes and descriptors over a socket |
//! | `record.rs` | working sets |
//! | `holes.rs` | which parts of a snapshot have no data |
//! | `guest.rs` | a client's memory and its connection |
//! | `restore.rs` | `pinfold restore`: what a client does with its memory, and what it tells |
//!
//! How faults are served is the library's: `crates/pinfold/src/map/clients/`.

pub mod connection;
pub mod desk;
pub mod faults;
pub mod gate;
pub mod guest;
mod holes;
mod listen;
pub mod log;
pub mod peer;
pub mod processes;
pub mod protocol;
pub mod record;
pub mod restore;
pub mod server;
pub mod socket;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use pinfold::{Cache, Clients, Options};

use self::connection::Shared;
use self::gate::Gates;
use self::log::Log;
use self::processes::Processes;
use self::record::{Recorder, Recording, Written};
use self::server::Door;
use crate::size::Size;

/// What happens, for people.
pub const HELP: &str = "\
A client connects to the socket, gets a descriptor of the server's memory file, maps it, registers
the mapping with a userfaultfd, and sends the userfaultfd with a list of its mappings. From then on
its absent pages come from SNAPSHOT, through a cache of --budget. Such clients share one physical
copy of each page, until they store to it. Clients that speak Firecracker's handshake (a memory
backend of type Uffd) get copies. docs/serve.md has the protocol, and what a hostile client can do.

  pinfold serve memory.snap --socket /run/pages &
  pinfold restore --socket /run/pages --verify memory.snap        # as often as you like

A working set, recorded once, is installed in the memory of later clients before they ask for it:

  pinfold serve memory.snap --socket /run/pages --record start.set
  pinfold serve memory.snap --socket /run/pages --replay start.set

The server runs until it is killed. A client that ends, or does something wrong, is told of on
standard error, and concerns nobody else. A server that is killed can be started again at the same
socket: clients that keep their userfaultfd connect again, and go on.

Whoever may connect to the socket may read all of SNAPSHOT. The socket gets mode 600; to let other
users connect, give it to a group: chgrp, chmod 660. See docs/serve.md, \"Trust\".

Exit codes: 0 never (it runs until it is killed); 1 an error, which is told in one line; 2 the
command line is wrong.";

/// The smallest budget: clients get memory 2 MiB at a time.
const BUDGET_MIN_BYTES: u64 = 8 << 20;

/// Memory beside the snapshot in the default budget: for its index, and to evict before it is full.
const SPARE_BYTES: u64 = 16 << 20;

/// Arguments of `pinfold serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The file or block device that clients have as their memory. It must not change meanwhile
    snapshot: PathBuf,

    /// The Unix socket at which clients connect. A stale one is replaced
    #[arg(long, value_name = "SOCKET")]
    socket: PathBuf,

    /// Memory for pages of the snapshot that clients share, such as 256M; at least 8M. Copies that
    /// clients ask for, or make by storing, are not in it [default: 7/6 of what the snapshot has
    /// beside holes + 16M]
    #[arg(long, value_name = "SIZE")]
    budget: Option<Size>,

    /// Append the pages that clients touch, in that order, to FILE, which is made if it is not
    /// there. Recording is slow: pages are installed one by one
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Install the pages of FILE, which was recorded, in the memory of each new client at once
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,

    /// How many seconds a client has to send its mappings, above 0 and at most 3600; then it is
    /// disconnected
    #[arg(long, value_name = "S", default_value_t = 10.0, allow_negative_numbers = true)]
    silence: f64,
}

/// Runs it.
pub fn run(args: &ServeArgs) -> Result<()> {
    ensure!(
        args.silence > 0.0 && args.silence <= 3600.0,
        "--silence {}: must be above 0 and at most 3600",
        args.silence
    );
    if let Some(Size(budget)) = args.budget {
        let (least, most) = (BUDGET_MIN_BYTES, *Options::BUDGET_BYTES.end());
        ensure!(
            (least..=most).contains(&budget),
            "--budget {}: must be {} to {}",
            Size(budget),
            Size(least),
            Size(most)
        );
    }
    let cache = |bytes: u64| Cache::new(Options::new(bytes));
    let bytes = cache(*Options::BUDGET_BYTES.start())?.open(&args.snapshot)?.len();
    let path = args.snapshot.display();
    ensure!(bytes > 0, "{path} is empty: there is nothing to serve");
    // First, as it makes the file: both may be one.
    let recorder = match &args.record {
        Some(path) => Some(Recorder::open(path, bytes)?),
        None => None,
    };
    let replay = match &args.replay {
        Some(path) => Some(record::read(path, bytes)?),
        None => None,
    };
    let zeros = holes::of(&args.snapshot, bytes)
        .with_context(|| format!("cannot find the holes of {path}"))?;
    let zero_bytes = zeros.iter().map(|hole| hole.end - hole.start).sum::<u64>();
    let by_data = || default_budget_bytes(bytes - zero_bytes);
    let budget_bytes = args.budget.map_or_else(by_data, |budget| budget.0);
    let cache = cache(budget_bytes)?;
    let file = cache.open(&args.snapshot)?;
    let mut clients = Clients::new(&file)?;
    for hole in zeros {
        clients.add_zeros(hole);
    }
    let (listener, _lock) = {
        // For the owner alone, from the first moment on.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let listener = listen::listen(&args.socket);
        rustix::process::umask(before);
        listener?
    };
    let mut line = format!(
        "serving {path} ({}, {} of it holes) at {}, with a budget of {}",
        Size(bytes),
        Size(zero_bytes),
        args.socket.display(),
        Size(budget_bytes)
    );
    let (log, written) = (Log::start()?, Written::default());
    let (memory, memory_bytes) = (clients.memory()?, clients.bytes());
    let (mut processes, starter) = Processes::new(clients, log.clone());
    if let Some(runs) = replay {
        let pages = record::pages_in(&runs);
        line = format!("{line}; {pages} pages are installed ahead");
        // More than half of the budget is not installed ahead.
        let most = budget_bytes / record::PAGE_BYTES / 2;
        processes.replay(runs.into_iter().flatten().take(most as usize).collect());
    }
    if let Some((recorder, known)) = recorder {
        let pages = record::pages_in(&known);
        line = format!("{line}; recording, beside {pages} pages that are");
        processes.record(Recording::start(recorder, known, &written, log.clone())?);
    }
    let silence = Duration::from_secs_f64(args.silence);
    let processes = Arc::new(processes);
    let shared = Shared {
        cache,
        memory,
        bytes: memory_bytes,
        processes: processes.clone(),
        gates: Gates::default(),
        log: log.clone(),
        silence,
        written,
    };
    ignore_limit_signal();
    let door = Door::new(listener, shared, server::allow_descriptors())?;
    let thread = std::thread::Builder::new().name("pinfold-door".to_owned());
    thread.spawn(move || door.run()).context("no thread for connections")?;
    log.tell(line);
    starter.run(&processes);
    Ok(())
}

/// A file that must not grow any more, such as a working set, is an error, and no end.
fn ignore_limit_signal() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Enough for all of a snapshot that has so many bytes of data, and so much more that an eighth is
/// unused to the end: then pages are read with those around them. Holes are never cached.
pub fn default_budget_bytes(data_bytes: u64) -> u64 {
    (data_bytes + data_bytes / 6 + SPARE_BYTES).min(*Options::BUDGET_BYTES.end())
}
