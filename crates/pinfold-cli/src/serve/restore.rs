//! `pinfold restore`: a plain client. It has a snapshot as memory, touches it, checks it, and says
//! how long that took.

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use pinfold::ClientMemory;
use rand::SeedableRng;
use serde::Serialize;

use super::guest::{Connection, Guest};
use crate::publish::{self, publish};
use crate::say;
use crate::size::Size;

/// What happens, for people.
pub const HELP: &str = "\
The program maps the memory that `pinfold serve` serves, hands its userfaultfd over, and touches
pages: it reads a byte of each, or with --verify the whole page, and compares it with FILE. With
--store it then stores to some of these pages, and checks that they keep what was stored; with
--verify also that FILE does not have it. It prints when the first page was there, and the last.

If the server is killed, the client's accesses wait for another server at the same socket, at most
--patience seconds.

Exit codes: 0 all is well; 1 an error, which is told in one line (a byte is wrong, the server
refuses or does not come back); 2 the command line is wrong.";

const PAGE_BYTES: u64 = 4096;

/// How long it waits between two attempts to connect again.
const REST: Duration = Duration::from_millis(5);

/// Arguments of `pinfold restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The server's socket
    #[arg(long, value_name = "SOCKET")]
    pub socket: PathBuf,

    /// The order in which pages are touched
    #[arg(long, value_enum, default_value = "sequential")]
    pub order: Order,

    /// How many pages are touched [default: all]
    #[arg(long, value_name = "N")]
    pub pages: Option<u64>,

    /// Which pages, if not all, and their order: the same number means the same pages
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Threads that share the pages
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,

    /// Compare each page with the same one of FILE
    #[arg(long, value_name = "FILE")]
    pub verify: Option<PathBuf>,

    /// Store to one in N of the pages after they were touched
    #[arg(long, value_name = "N")]
    pub store: Option<u64>,

    /// Have copies of the pages, in memory of its own, as under Firecracker
    #[arg(long)]
    pub private: bool,

    /// How many seconds it waits for a server that is gone
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    pub patience: f64,

    /// Write the result as one JSON object to FILE, or to standard output for -
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Leave the last page of each thread untouched until the server was started again so often
    #[arg(long, value_name = "N", default_value_t = 0, hide = true)]
    pub restarts: u64,

    /// Begin when there is a line on standard input, and end when it ends
    #[arg(long, hide = true)]
    pub hold: bool,

    /// Have the pages of FILE without a server
    #[arg(long, value_name = "FILE", hide = true)]
    pub of: Option<PathBuf>,

    /// How, without a server
    #[arg(long, value_enum, default_value = "mmap", hide = true)]
    pub by: By,
}

/// A way to have pages without a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// A private mapping of the file.
    Mmap,
    /// A userfaultfd and a thread that copies, page by page.
    Copy,
}

/// The order of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// As in the snapshot.
    Sequential,
    /// At random.
    Random,
}

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Restored {
    /// Bytes of memory.
    pub bytes: u64,
    /// Pages that were touched.
    pub pages: u64,
    /// Threads that did.
    pub threads: usize,
    /// From before the connection until the first byte was read.
    pub first_ms: f64,
    /// From before the connection until the last page was read.
    pub complete_ms: f64,
    /// Pages that were stored to.
    pub stored: u64,
    /// Whether pages were compared with a file.
    pub verified: bool,
    /// How often it had to connect again.
    pub reconnects: u64,
    /// What the process has had read from storage itself, where the system counts it.
    pub read_bytes: u64,
}

/// Runs it.
///
/// # Errors
/// A byte is wrong, the server refuses, or does not come back.
pub fn run(args: &RestoreArgs) -> Result<()> {
    publish::check(args.json.as_deref())?;
    if args.hold {
        return hold(args);
    }
    let restored = restore(args)?;
    let Restored { bytes, pages, threads, first_ms, complete_ms, stored, reconnects, .. } =
        restored;
    let rows = [
        ("memory", Size(bytes).to_string()),
        ("pages touched", format!("{pages}, by {threads} threads")),
        ("first page after", format!("{first_ms:.2} ms")),
        ("last page after", format!("{complete_ms:.2} ms")),
        ("compared with the file", if restored.verified { "all" } else { "none" }.to_owned()),
        ("stored to", format!("{stored} pages")),
        ("connected again", format!("{reconnects} times")),
    ];
    let lines: Vec<String> =
        rows.iter().map(|(name, value)| format!("{name:<24}{value}")).collect();
    publish(args.json.as_deref(), &lines.join("\n"), &restored)
}

/// For who starts several at once, and looks at them when all are done.
fn hold(args: &RestoreArgs) -> Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let (restored, guest) = restore_and_keep(args)?;
    say::print(serde_json::to_string(&restored)?)?;
    std::io::stdin().read_line(&mut line)?;
    drop(guest);
    Ok(())
}

/// A client's connection, which is opened again when it ends.
struct Link {
    reconnects: Mutex<u64>,
    again: Condvar,
    /// The connection, to be closed by who does not read it.
    closer: Mutex<Option<UnixStream>>,
    over: AtomicBool,
}

/// A thread that has panicked had no half-done change of these.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does all of it.
///
/// # Errors
/// As for [`run`].
pub fn restore(args: &RestoreArgs) -> Result<Restored> {
    restore_and_keep(args).map(|(restored, _)| restored)
}

fn restore_and_keep(args: &RestoreArgs) -> Result<(Restored, Guest)> {
    ensure!(
        args.threads > 0 && args.threads <= 1024,
        "--threads {}: must be 1 to 1024",
        args.threads
    );
    ensure!(args.store != Some(0), "--store 0: must be 1 or more");
    ensure!(
        args.patience >= 0.0 && args.patience <= 3600.0,
        "--patience {}: must be 0 to 3600",
        args.patience
    );
    let file = match &args.verify {
        Some(path) => {
            let file = std::fs::File::open(path);
            Some(file.with_context(|| format!("cannot read {}", path.display()))?)
        }
        None => None,
    };
    let begin = Instant::now();
    let (connection, guest) = match (&args.of, args.by) {
        (Some(path), By::Mmap) => (None, Guest::of_file(path)?),
        (Some(path), By::Copy) => (None, Guest::copied(path)?),
        (None, _) => {
            let mut connection = Connection::open(&args.socket)?;
            let memory = if args.private { ClientMemory::Private } else { ClientMemory::Shared };
            let guest = Guest::restore(&mut connection, memory)?;
            (Some(connection), guest)
        }
    };
    let closer = connection.as_ref().map(Connection::closer).transpose()?;
    let link = Link {
        reconnects: Mutex::new(0),
        again: Condvar::new(),
        closer: Mutex::new(closer),
        over: AtomicBool::new(false),
    };
    let all = guest.len() as u64 / PAGE_BYTES;
    if let Some(pages) = args.pages {
        ensure!(pages <= all, "--pages {pages}: the memory has {all}");
    }
    let pages = chosen(args, all);
    let stored = AtomicU64::new(0);
    let first_ns = AtomicU64::new(u64::MAX);
    let (complete, wrong) = std::thread::scope(|scope| {
        let watcher =
            connection.map(|connection| scope.spawn(|| watch(args, &link, connection, &guest)));
        let each = pages.len().div_ceil(args.threads).max(1);
        let threads = pages.chunks(each).map(|pages| {
            let (guest, file, link) = (&guest, file.as_ref(), &link);
            let (stored, first_ns) = (&stored, &first_ns);
            scope.spawn(move || {
                touch(args, guest, file, link, pages, || {
                    let ns = begin.elapsed().as_nanos() as u64;
                    first_ns.fetch_min(ns, Ordering::Relaxed); // a figure
                })?;
                let done = begin.elapsed();
                let count = store(args, guest, file, pages)?;
                stored.fetch_add(count, Ordering::Relaxed); // a figure
                Ok(done)
            })
        });
        let threads: Vec<_> = threads.collect();
        let mut complete = Duration::ZERO;
        let mut wrong = None;
        for thread in threads {
            match thread.join().unwrap_or_else(|_| Err(anyhow!("a thread has panicked"))) {
                Ok(done) => complete = complete.max(done),
                Err(error) => wrong = Some(error),
            }
        }
        // Before the mutex: a watcher that has connected again looks after it had the mutex.
        link.over.store(true, Ordering::Release);
        // It may be closed by now.
        if let Some(stream) = &*lock(&link.closer) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let _ = watcher.map(std::thread::ScopedJoinHandle::join); // a panic was told by the thread
        (complete, wrong)
    });
    if let Some(error) = wrong {
        return Err(error);
    }
    let reconnects = *lock(&link.reconnects);
    let first = first_ns.into_inner();
    let restored = Restored {
        bytes: guest.len() as u64,
        pages: pages.len() as u64,
        threads: args.threads,
        first_ms: if first == u64::MAX { 0.0 } else { first as f64 / 1e6 },
        complete_ms: complete.as_secs_f64() * 1e3,
        stored: stored.into_inner(),
        verified: file.is_some(),
        reconnects,
        read_bytes: read_bytes(),
    };
    Ok((restored, guest))
}

/// Of this process, from /proc/self/io.
fn read_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The pages to touch, in their order.
fn chosen(args: &RestoreArgs, all: u64) -> Vec<u64> {
    chosen_of(args.seed, args.pages, all, args.order)
}

/// So many of `all` pages, in this order.
pub fn chosen_of(seed: u64, pages: Option<u64>, all: u64, order: Order) -> Vec<u64> {
    let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
    let count = pages.unwrap_or(all).min(all);
    if count == all && order == Order::Sequential {
        return (0..all).collect();
    }
    // Memory is taken for those that are chosen, however many there are.
    let chosen = rand::seq::index::sample(&mut random, all as usize, count as usize);
    let mut pages: Vec<u64> = chosen.into_iter().map(|page| page as u64).collect();
    if order == Order::Sequential {
        pages.sort_unstable();
    }
    pages
}

/// Waits for the end of the connection, and connects again, until all is over.
fn watch(args: &RestoreArgs, link: &Link, mut connection: Connection, guest: &Guest) {
    // Ends: when it is over, or the process.
    loop {
        let why = connection.wait_for_end();
        // Acquire: pairs with the store in `restore`.
        if link.over.load(Ordering::Acquire) {
            return;
        }
        let again = match why {
            Some(why) => Err(anyhow!("the server serves this client no more: {why}")),
            None => connect_again(args, guest),
        };
        match again {
            Ok(new) => connection = new,
            Err(error) => {
                // The others wait in the kernel for pages that do not come.
                say::tell(format_args!("error: {}", say::chain(&error)));
                std::process::exit(1);
            }
        }
        match connection.closer() {
            Ok(closer) => *lock(&link.closer) = Some(closer),
            Err(error) => say::tell(format_args!("{error:#}")), // then the end of the process closes it
        }
        *lock(&link.reconnects) += 1;
        link.again.notify_all();
    }
}

fn connect_again(args: &RestoreArgs, guest: &Guest) -> Result<Connection> {
    let deadline = Instant::now() + Duration::from_secs_f64(args.patience);
    // Ends: at the deadline.
    loop {
        let again = Connection::open(&args.socket).and_then(|mut connection| {
            guest.hand_over_again(&mut connection)?;
            Ok(connection)
        });
        match again {
            Ok(connection) => return Ok(connection),
            Err(error) if Instant::now() >= deadline => {
                return Err(error.context("the server is gone, and no other came"));
            }
            Err(_) => std::thread::sleep(REST),
        }
    }
}

/// Reads `pages`, of which there is at least one.
fn touch(
    args: &RestoreArgs,
    guest: &Guest,
    file: Option<&std::fs::File>,
    link: &Link,
    pages: &[u64],
    first: impl Fn(),
) -> Result<()> {
    let (mut is, mut right) = ([0; PAGE_BYTES as usize], [0; PAGE_BYTES as usize]);
    for (n, &page) in pages.iter().enumerate() {
        if args.restarts > 0 && n + 1 == pages.len() {
            let reconnects = lock(&link.reconnects);
            let enough = |reconnects: &mut u64| *reconnects < args.restarts;
            drop(link.again.wait_while(reconnects, enough));
        }
        let at = (page * PAGE_BYTES) as usize;
        // SAFETY: a page of the guest's memory. Nobody stores to it.
        let from = unsafe { guest.as_ptr().add(at) };
        if let Some(file) = file {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(from, is.as_mut_ptr(), is.len()) };
            read_page(file, page, &mut right)?;
            ensure!(is == right, "page {page} is not what the file has{}", end_of(file, page));
        } else {
            // SAFETY: as above.
            std::hint::black_box(unsafe { from.read_volatile() });
        }
        if n == 0 {
            first();
        }
    }
    Ok(())
}

/// For the message that a page differs: whether the file has it at all.
fn end_of(file: &std::fs::File, page: u64) -> String {
    match file.metadata() {
        Ok(known) if known.is_file() && known.len() <= page * PAGE_BYTES => {
            format!(": that has {} bytes", known.len())
        }
        _ => String::new(),
    }
}

/// A page of the file; what it does not have is zeros.
fn read_page(file: &std::fs::File, page: u64, buf: &mut [u8; PAGE_BYTES as usize]) -> Result<()> {
    buf.fill(0);
    let mut done = 0;
    // Ends: each turn reads a byte, or is the last.
    while done < buf.len() {
        match file.read_at(&mut buf[done..], page * PAGE_BYTES + done as u64) {
            Ok(0) => break,
            Ok(bytes) => done += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("the file to compare with"),
        }
    }
    Ok(())
}

/// Stores to one in so many of the pages, and checks them. Returns to how many.
fn store(
    args: &RestoreArgs,
    guest: &Guest,
    file: Option<&std::fs::File>,
    pages: &[u64],
) -> Result<u64> {
    #[allow(clippy::cast_ptr_alignment, reason = "the start of a page")]
    let at = |page: u64| guest.as_ptr().wrapping_add((page * PAGE_BYTES) as usize).cast::<u64>();
    let Some(one_in) = args.store else { return Ok(0) };
    let chosen = || pages.iter().step_by(usize::try_from(one_in).unwrap_or(usize::MAX));
    for &page in chosen() {
        // SAFETY: the first bytes of a page of the guest's memory, which this thread alone uses.
        unsafe { at(page).write_volatile(!page) };
    }
    let (mut is, mut right) = ([0; PAGE_BYTES as usize], [0; PAGE_BYTES as usize]);
    for &page in chosen() {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(at(page).cast(), is.as_mut_ptr(), is.len()) };
        ensure!(is[..8] == (!page).to_ne_bytes(), "page {page} has lost what was stored to it");
        if let Some(file) = file {
            read_page(file, page, &mut right)?;
            ensure!(
                is[8..] == right[8..],
                "page {page} is not what the file has, behind the store"
            );
            ensure!(
                is[..8] != right[..8],
                "page {page}: the file has what was stored to the memory"
            );
        }
    }
    Ok(chosen().count() as u64)
}
