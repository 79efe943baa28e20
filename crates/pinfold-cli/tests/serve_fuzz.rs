//! Hostile clients, made from a seed, beside one that is honest: it has the right bytes, and goes
//! on. A run prints what its faults took.
//!
//! The hostile ones send messages in pieces of any length, with descriptors of all kinds, wait,
//! leave and come back, and discard memory of which the server hears. They are a process of their
//! own. The honest process has a second client, which moves and discards its memory.
//!
//! `PINFOLD_FUZZ_SECONDS=1200 cargo test --release -p pinfold-cli --test serve_fuzz --
//! --nocapture` is the long run; at its end it prints the honest client's median beside each kind.
//! `PINFOLD_FUZZ_KIND=worst` has that kind alone, in which 16 threads do all at once.
//! `PINFOLD_FUZZ_SEED` begins with another seed. With the feature `mutants`, a further test breaks
//! the server on purpose, and the short run has to see it.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests")]

mod ground;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pinfold::ClientMemory;
use pinfold_cli::serve::guest::{Connection, Guest};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use rustix::mm::{Advice, madvise};

use ground::*;

const SOCKET: &str = "PINFOLD_FUZZ_SOCKET";
const WHAT: &str = "PINFOLD_FUZZ_WHAT";
const SEED: &str = "PINFOLD_FUZZ_SEED";
const SECONDS: &str = "PINFOLD_FUZZ_SECONDS";
const KIND: &str = "PINFOLD_FUZZ_KIND";
/// A mutant of the server, and after how many seconds the honest client counts as one that stands
/// still: without a mutant, a machine that is busy must not look like one.
const MUTANT: &str = "PINFOLD_FUZZ_MUTANT";
const PATIENCE: &str = "PINFOLD_FUZZ_PATIENCE";

/// What hostile clients do, each by itself.
const KINDS: [&str; 9] =
    ["nothing", "neighbour", "discard", "pieces", "storm", "commands", "locks", "fuzz", "worst"];

/// The most memory of the server, as the system counts it at its peak: 1024 connections with a
/// message of the longest kind, and their threads' stacks.
const MEMORY_MAX: u64 = 512 * MIB;

/// `UFFD_FEATURE_EVENT_REMOVE`, and with those of moved and of unmapped memory.
const EVENT_REMOVE: u64 = 1 << 3;
const EVENTS: u64 = 1 << 2 | EVENT_REMOVE | 1 << 6;

/// What a hostile process says when it begins.
const BEGINS: &str = "the hostile clients begin";

/// Faults of the honest client beside each kind of load, at least, and how long it goes on.
const FAULTS: usize = 300;
const TIME: Duration = Duration::from_secs(1);

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// This program once more, as hostile clients.
fn hostile(server: &Server, what: &str, seed: u64) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "hostile_clients", "--ignored"]);
    child.env(SOCKET, &server.socket).env(WHAT, what).env(SEED, seed.to_string());
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains(BEGINS)), "{what}: it has not begun");
    child
}

#[test]
#[ignore = "the other tests start it"]
fn hostile_clients() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let (socket, what) = (Path::new(&socket), std::env::var(WHAT).unwrap());
    let seed = number(SEED).unwrap();
    // Not captured, as what `println!` prints is.
    writeln!(std::io::stdout(), "{BEGINS}").unwrap();
    let seeded = |n: u64| Pcg64::seed_from_u64(seed * 16 + n);
    match &*what {
        "discard" => discard(socket, 16),
        "pieces" => pieces(socket),
        "storm" => loop {
            drop(UnixStream::connect(socket));
        },
        "commands" => threads(16, |n| commands(socket, n)),
        "locks" => locks(socket),
        "fuzz" => threads(8, |n| fuzz(socket, seeded(n))),
        _ => threads(16, |n| match n {
            0..4 => commands(socket, n),
            4..12 => fuzz(socket, seeded(n)),
            12 => discard(socket, 3),
            13 => pieces(socket),
            14 => locks(socket),
            _ => loop {
                drop(UnixStream::connect(socket));
            },
        }),
    }
}

/// So many threads, which never end.
fn threads(count: u64, run: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        for n in 0..count {
            let run = &run;
            scope.spawn(move || run(n));
        }
    });
}

/// Removes 64 GiB again and again, of which the server hears.
fn discard(socket: &Path, count: u64) {
    let bytes = 64 << 30;
    let (uffd, at) = private_memory(bytes, EVENT_REMOVE);
    let stream = UnixStream::connect(socket).unwrap();
    send(&stream, &format!("[{}]", mapping(at, bytes, 0, "")), &[&uffd]);
    threads(count, |n| {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(at);
        loop {
            // SAFETY: its memory, which nobody else uses.
            let _ = unsafe { madvise(at.cast(), bytes as usize, Advice::LinuxDontNeed) };
            // SAFETY: in its memory.
            unsafe { at.add((8 + n as usize) * P as usize).read_volatile() };
        }
    });
}

/// Messages that do not end.
fn pieces(socket: &Path) {
    let mut streams: Vec<_> = (0..32).map(|_| UnixStream::connect(socket)).collect();
    loop {
        for stream in &mut streams {
            let written = stream.as_mut().map(|it| it.write_all(b"[ "));
            if !matches!(written, Ok(Ok(()))) {
                *stream = UnixStream::connect(socket);
            }
        }
    }
}

/// Nothing but what the thread that serves faults does for a connection beside faults: to add a
/// client of a thousand mappings, to remove it, and to answer with counters.
fn commands(socket: &Path, n: u64) {
    let (uffd, at) = private_memory(1024 * P, 0);
    let one = |n| mapping(at + (n * P) as usize, P, n * P, "");
    let mappings = format!("[{}]", (0..1024).map(one).collect::<Vec<_>>().join(","));
    loop {
        let Ok(mut stream) = UnixStream::connect(socket) else { continue };
        let asks = r#"{"pinfold":1,"want":"stats"}"#;
        let _ = try_send(&stream, asks, &[]);
        let _ = stream.read(&mut [0; 4096]);
        let (first, rest) = mappings.split_at(1);
        let _ = try_send(&stream, first, &[&uffd]);
        let _ = stream.write_all(rest.as_bytes());
        for _ in 0..n * 4 {
            let _ = try_send(&stream, asks, &[]);
            let _ = stream.read(&mut [0; 4096]);
        }
    }
}

/// Faults in memory whose lock is held most of the time: by forks of a process with many pages.
fn locks(socket: &Path) {
    let (uffd, at) = private_memory(4 * MIB, 0);
    let stream = UnixStream::connect(socket).unwrap();
    send(&stream, &format!("[{}]", mapping(at, 4 * MIB, 0, "")), &[&uffd]);
    let _many = vec![1_u8; 256 << 20];
    threads(2, |n| {
        loop {
            if n == 0 {
                // SAFETY: the child ends at once.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: ends the process.
                    unsafe { libc::_exit(0) };
                }
                // SAFETY: a child of this process.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            } else {
                let at = std::ptr::with_exposed_provenance_mut::<u8>(at);
                // SAFETY: its memory, which nobody else uses.
                let _ = unsafe { madvise(at.cast(), 4 * MIB as usize, Advice::LinuxDontNeed) };
                // SAFETY: in its memory.
                unsafe { at.add(9 * P as usize).read_volatile() };
            }
        }
    });
}

/// What a hostile client does, for ever. Whatever fails, fails.
fn fuzz(socket: &Path, mut random: Pcg64) {
    let (uffd, at) = two_pages();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    loop {
        let Ok(mut stream) = UnixStream::connect(socket) else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
        let _ = stream.set_write_timeout(Some(Duration::from_millis(50)));
        for _ in 0..random.random_range(1..6) {
            let size = [P, 2 * P, 1 << 20, 0, u64::MAX - 4095][random.random_range(0..5)];
            let offset = [0, P, 8 * P, 1 << 60][random.random_range(0..4)];
            let more = ["", r#","memory":"shared""#, r#","memory":"zeros""#];
            let one = mapping(at, size, offset, more[random.random_range(0..3)]);
            let text = match random.random_range(0..8) {
                0 => r#"{"pinfold":1,"want":"memory"}"#.to_owned(),
                1 => r#"{"pinfold":1,"want":"stats"}"#.repeat(random.random_range(1..50)),
                2 => "[".repeat(random.random_range(1..100)),
                3 => (0..100).map(|_| char::from(random.random_range(0..128_u8))).collect(),
                4 => format!("[{}]", vec![one; random.random_range(1..1100)].join(",")),
                _ => format!("[{one}]"),
            };
            let own: OwnedFd = stream.try_clone().unwrap().into();
            let other: Option<OwnedFd> = UnixStream::pair().ok().map(|(one, _)| one.into());
            let all = [&uffd, &null, &own, other.as_ref().unwrap_or(&null)];
            let count = [0, 1, 1, 1, 2, 5][random.random_range(0..6)];
            let from = random.random_range(0..4);
            let fds: Vec<&OwnedFd> = (0..count).map(|n| all[(from + n) % 4]).collect();
            let (first, rest) = text.split_at(random.random_range(0..=text.len()));
            let _ = try_send(&stream, if first.is_empty() { " " } else { first }, &fds);
            for piece in rest.as_bytes().chunks(random.random_range(1..5000)) {
                if stream.write_all(piece).is_err() {
                    break;
                }
            }
            let _ = stream.read(&mut [0; 4096]);
            if random.random_range(0..4) == 0 {
                // SAFETY: of the memory that `two_pages` has made; nobody uses it.
                let _ = unsafe {
                    let at = std::ptr::with_exposed_provenance_mut(at);
                    madvise(at, 2 * P as usize, Advice::LinuxDontNeed)
                };
            }
        }
        std::thread::sleep(Duration::from_micros(random.random_range(0..2000)));
        let _ = stream.as_fd();
    }
}

fn patience() -> Duration {
    number(PATIENCE).map_or(LIMIT, Duration::from_secs)
}

/// Ends the test where the honest client stands still.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

fn watch(server: &Server) {
    let server = rustix::process::Pid::from_child(&server.child);
    std::thread::spawn(move || {
        let mut last = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let now = PROGRESS.load(Ordering::Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > patience() {
                eprintln!("the honest client stands still after {now} faults");
                // It would stay, and have this process's output open.
                let _ = rustix::process::kill_process(server, rustix::process::Signal::KILL);
                std::process::abort();
            }
        }
    });
}

/// What the faults of an honest client take, in order, each with the right byte: at least so many,
/// and for so long.
fn faults(server: &Server, count: usize, time: Duration) -> Vec<Duration> {
    let mut connection = Connection::open(&server.socket).unwrap();
    let guest = Guest::restore(&mut connection, ClientMemory::Shared).unwrap();
    let mut random = Pcg64::seed_from_u64(7);
    let since = Instant::now();
    let mut took: Vec<Duration> = (0..usize::MAX)
        .take_while(|&n| n < count || since.elapsed() < time)
        .map(|_| {
            let page = random.random_range(0..4 * MIB / P);
            let begin = Instant::now();
            // SAFETY: a page of the guest's memory, which begins with such a word.
            let word = unsafe {
                guest.as_ptr().add((page * P) as usize).cast::<[u8; 8]>().read_volatile()
            };
            let word = u64::from_ne_bytes(word);
            let took = begin.elapsed();
            assert_eq!(word, right(page), "page {page}");
            // SAFETY: its memory. The server does not hear of it, so the bytes come again.
            unsafe { madvise(guest.as_ptr().cast(), 4 * MIB as usize, Advice::LinuxDontNeed) }
                .unwrap();
            PROGRESS.fetch_add(1, Ordering::Relaxed);
            took
        })
        .collect();
    took.sort_unstable();
    took
}

/// What `page` of the snapshot begins with.
fn right(page: u64) -> u64 {
    if page % 64 < 8 || page % 64 == 20 { 0 } else { page + 1 }
}

/// A client that moves parts of its memory about, while it discards another part: the server hears
/// of both, and each page is the right one.
fn moves(server: &Server, random: &mut Pcg64) {
    use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed};
    const BLOCK: u64 = 16 * P;
    const BLOCKS: u64 = 32;
    let (uffd, at) = private_memory((BLOCKS + 1) * BLOCK, EVENTS);
    let (no_access, flags) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping.
    let room = unsafe {
        let bytes = (BLOCKS * BLOCK) as usize;
        mmap_anonymous(std::ptr::null_mut(), bytes, no_access, flags)
    };
    let room = room.unwrap().expose_provenance();
    let address = |from: usize, block: u64| from + (block * BLOCK) as usize;
    let mut blocks: Vec<usize> = (0..BLOCKS).map(|block| address(at, block)).collect();
    let mut free: Vec<usize> = (0..BLOCKS).map(|block| address(room, block)).collect();
    let stream = UnixStream::connect(&server.socket).unwrap();
    send(&stream, &format!("[{}]", mapping(at, (BLOCKS + 1) * BLOCK, 0, "")), &[&uffd]);
    // While a discard is not told, no page can be installed: so there is a number of them in a
    // step.
    let (step, steps) = (AtomicU64::new(0), 40);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let last = std::ptr::with_exposed_provenance_mut(address(at, BLOCKS));
            for n in 0..steps {
                while step.load(Ordering::Relaxed) < n {
                    std::thread::yield_now();
                }
                for _ in 0..8 {
                    // SAFETY: the last block, which nobody reads or moves.
                    unsafe { madvise(last, BLOCK as usize, Advice::LinuxDontNeed) }.unwrap();
                }
            }
        });
        for n in 0..steps {
            step.store(n, Ordering::Relaxed);
            let block = random.random_range(0..BLOCKS as usize);
            let page = random.random_range(0..16);
            let at = std::ptr::with_exposed_provenance::<u64>(blocks[block] + (page * P) as usize);
            // SAFETY: a page of a block where it is now.
            let word = unsafe { at.read_volatile() };
            assert_eq!(word, right(block as u64 * 16 + page), "block {block}, page {page}");
            let block = random.random_range(0..BLOCKS as usize);
            let to = free.swap_remove(random.random_range(0..free.len()));
            let from = std::mem::replace(&mut blocks[block], to);
            let pointer = std::ptr::with_exposed_provenance_mut;
            // SAFETY: memory of this function's alone, to an address that it has kept free.
            unsafe {
                let (flags, bytes) = (MremapFlags::MAYMOVE, BLOCK as usize);
                mremap_fixed(pointer(from), bytes, bytes, flags, pointer(to)).unwrap();
            }
            let flags = flags | MapFlags::FIXED_NOREPLACE;
            // SAFETY: nothing is replaced: another thread may have got this address.
            if unsafe { mmap_anonymous(pointer(from), BLOCK as usize, no_access, flags) }.is_ok() {
                free.push(from);
            }
            PROGRESS.fetch_add(1, Ordering::Relaxed);
        }
    });
    drop((stream, uffd)); // first: else the kernel would wait until the rest was told
    for at in blocks.into_iter().chain(free).chain([address(at, BLOCKS)]) {
        let at = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: mappings of this function's alone.
        unsafe { rustix::mm::munmap(at, BLOCK as usize) }.unwrap();
    }
}

/// A second client of the honest process, with 16 threads that always want something.
struct Neighbour {
    is_over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Neighbour {
    fn start(server: &Server) -> Self {
        let mut connection = Connection::open(&server.socket).unwrap();
        let guest = Guest::restore(&mut connection, ClientMemory::Shared).unwrap();
        let all = Arc::new((guest, connection));
        let is_over = Arc::new(AtomicBool::new(false));
        let threads = (0..16_u64).map(|n| {
            let (all, is_over) = (all.clone(), is_over.clone());
            std::thread::spawn(move || {
                let mut random = Pcg64::seed_from_u64(n);
                while !is_over.load(Ordering::Relaxed) {
                    let page = random.random_range(0..4 * MIB / P);
                    let block = (page / 128 * 128 * P) as usize;
                    // SAFETY: of the guest's memory, of which the server does not hear.
                    unsafe {
                        all.0.as_ptr().add((page * P) as usize).read_volatile();
                        let at = all.0.as_ptr().add(block);
                        madvise(at.cast(), 128 * P as usize, Advice::LinuxDontNeed).unwrap();
                    }
                }
            })
        });
        Neighbour { threads: threads.collect(), is_over }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

#[test]
fn an_honest_client_goes_on_beside_any_other() {
    let ground = Ground::new(4 * MIB);
    let file = std::fs::File::options().write(true).open(ground.snapshot()).unwrap();
    file.set_len(64 << 30).unwrap();
    let mut command = pinfold("serve");
    if let Ok(mutant) = std::env::var(MUTANT) {
        command.env("PINFOLD_MUTANT", mutant);
    }
    let server = ground.serve_by(command, &["--silence", "1"]);
    watch(&server);
    let pid = server.child.id();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    drop(faults(&server, 1, Duration::ZERO));
    server.until("it has left", |stats| stats.clients == 0);
    let before = descriptors();
    let first = number(SEED).unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(number(SECONDS).unwrap_or(0));
    let only = std::env::var(KIND).ok();
    let mut all: Vec<(&str, Vec<Duration>)> = Vec::new();
    for what in KINDS {
        if only.as_ref().is_none_or(|only| only == what) {
            all.push((what, Vec::new()));
        }
    }
    assert!(!all.is_empty(), "{KIND}: one of {KINDS:?}");
    let mut seed = first;
    // Ends: with the time.
    loop {
        for (what, all) in &mut all {
            let is_alone = ["nothing", "neighbour"].contains(what);
            let child = (!is_alone).then(|| hostile(&server, what, seed));
            let neighbour = (*what == "neighbour").then(|| Neighbour::start(&server));
            if neighbour.is_none() {
                moves(&server, &mut Pcg64::seed_from_u64(seed));
            }
            let took = faults(&server, FAULTS, TIME);
            if let Some(neighbour) = neighbour {
                neighbour.end();
            }
            let (median, slow) = (took[took.len() / 2], took[took.len() * 99 / 100]);
            println!("seed {seed}, beside {what}: median {median:?}, 99 of 100 {slow:?}");
            all.extend(took);
            if let Some(mut child) = child {
                assert_eq!(child.try_wait().unwrap(), None, "seed {seed}: {what} has ended");
                child.kill().unwrap();
                child.wait().unwrap();
            }
            // What the kernel counts: nothing is left of who has left.
            let deadline = Instant::now() + patience();
            while descriptors() > before + 1 {
                let now = descriptors();
                assert!(Instant::now() < deadline, "{now} descriptors after {what}, not {before}");
                std::thread::sleep(Duration::from_millis(10));
            }
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            let peak: u64 = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
            println!("the server has had {} MiB", peak >> 10);
            assert!(peak << 10 <= MEMORY_MAX, "seed {seed}: {} MiB after {what}", peak >> 10);
        }
        let stats = server.until("all have left", |stats| stats.clients == 0);
        assert_eq!(stats.failed, 0, "seed {seed}: {stats:?}");
        seed += 1;
        if Instant::now() >= until {
            break;
        }
    }
    for (what, mut took) in all {
        took.sort_unstable();
        let (faults, median) = (took.len(), took[took.len() / 2]);
        println!("in all, beside {what}: median {median:?} of {faults} faults");
    }
}

/// Each mutant, beside which kind the short run sees it, and what it says then.
#[cfg(feature = "mutants")]
const CAUGHT: [(&str, &str, &str); 4] = [
    ("TurnWithoutEnd", "neighbour", "stands still"),
    ("RestForgotten", "nothing", "stands still"),
    ("UnmappedStays", "nothing", "stands still"),
    ("LeftKeepsDescriptor", "nothing", "stands still"),
];

#[test]
#[cfg(feature = "mutants")]
fn the_short_run_sees_each_mutant() {
    for (mutant, kind, why) in CAUGHT {
        let run = |mutant: Option<&str>| {
            let mut run = Command::new(std::env::current_exe().unwrap());
            run.args(["--exact", "an_honest_client_goes_on_beside_any_other", "--nocapture"]);
            run.env(KIND, kind).env("RUST_BACKTRACE", "0");
            if let Some(mutant) = mutant {
                run.env(MUTANT, mutant).env(PATIENCE, "10");
            }
            let output = run.output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&said).into_owned())
        };
        let (is_right, said) = run(None);
        assert!(is_right, "without a mutant: {said}");
        let (is_right, said) = run(Some(mutant));
        assert!(!is_right && said.contains(why), "{mutant} is not seen: {said}");
    }
}
