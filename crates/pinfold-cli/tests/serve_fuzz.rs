//! Hostile clients, made from a seed, beside one that is honest: it has the right bytes, and goes
//! on. A run prints what its faults took.
//!
//! The hostile ones send messages in pieces of any length, with descriptors of all kinds, wait,
//! leave and come back, and discard memory of which the server hears. They are a process of their
//! own. `PINFOLD_FUZZ_SECONDS=1200 cargo test -p pinfold-cli --test serve_fuzz` is the long run;
//! `PINFOLD_FUZZ_SEED` begins with another seed. `-- --nocapture` shows the times.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests")]

mod ground;

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
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

/// `UFFD_FEATURE_EVENT_REMOVE`.
const EVENT_REMOVE: u64 = 1 << 3;

/// Faults of the honest client, beside each kind of load.
const FAULTS: usize = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// This program once more, as hostile clients.
fn hostile(server: &Server, what: &str, seed: u64) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "hostile_clients", "--ignored"]);
    child.env(SOCKET, &server.socket).env(WHAT, what).env(SEED, seed.to_string());
    child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
#[ignore = "the other tests start it"]
fn hostile_clients() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let (socket, what) = (Path::new(&socket), std::env::var(WHAT).unwrap());
    let seed = number(SEED).unwrap();
    std::thread::scope(|scope| match &*what {
        "discard" => {
            // Of each removed range the server hears.
            let bytes = 64 << 30;
            let (uffd, at) = private_memory(bytes, EVENT_REMOVE);
            let stream = UnixStream::connect(socket).unwrap();
            send(&stream, &format!("[{}]", mapping(at, bytes, 0, "")), &[&uffd]);
            for n in 0..16 {
                scope.spawn(move || {
                    let at = std::ptr::with_exposed_provenance_mut::<u8>(at);
                    loop {
                        // SAFETY: its memory, which nobody else uses.
                        let _ =
                            unsafe { madvise(at.cast(), bytes as usize, Advice::LinuxDontNeed) };
                        // SAFETY: in its memory.
                        unsafe { at.add((8 + n) * P as usize).read_volatile() };
                    }
                });
            }
            scope.spawn(move || {
                let _stream = stream;
                loop {
                    std::thread::park();
                }
            });
        }
        "pieces" => {
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
        "storm" => loop {
            drop(UnixStream::connect(socket));
        },
        _ => {
            for n in 0..8 {
                scope.spawn(move || fuzz(socket, Pcg64::seed_from_u64(seed * 8 + n)));
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

/// Ends the test where the honest client stands still.
static PROGRESS: AtomicU64 = AtomicU64::new(0);

fn watch() {
    std::thread::spawn(|| {
        let mut last = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let now = PROGRESS.load(Ordering::Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > LIMIT {
                eprintln!("the honest client stands still after {now} faults");
                std::process::abort();
            }
        }
    });
}

/// What so many faults of an honest client take, in order, each with the right byte.
fn faults(server: &Server, count: usize) -> Vec<Duration> {
    let mut connection = Connection::open(&server.socket).unwrap();
    let guest = Guest::restore(&mut connection, ClientMemory::Shared).unwrap();
    let mut random = Pcg64::seed_from_u64(7);
    let mut took: Vec<Duration> = (0..count)
        .map(|_| {
            let page = random.random_range(0..4 * MIB / P);
            let right = if page % 64 < 8 || page % 64 == 20 { 0 } else { page + 1 };
            let begin = Instant::now();
            // SAFETY: a page of the guest's memory, which begins with such a word.
            let word = unsafe {
                guest.as_ptr().add((page * P) as usize).cast::<[u8; 8]>().read_volatile()
            };
            let word = u64::from_ne_bytes(word);
            let took = begin.elapsed();
            assert_eq!(word, right, "page {page}");
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

#[test]
fn an_honest_client_goes_on_beside_any_other() {
    watch();
    let ground = Ground::new(4 * MIB);
    let file = std::fs::File::options().write(true).open(ground.snapshot()).unwrap();
    file.set_len(64 << 30).unwrap();
    let server = ground.serve(&["--silence", "1"]);
    let first = number(SEED).unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(number(SECONDS).unwrap_or(0));
    let mut seed = first;
    loop {
        for what in ["nothing", "discard", "pieces", "storm", "fuzz"] {
            let child = (what != "nothing").then(|| hostile(&server, what, seed));
            let took = faults(&server, FAULTS);
            let (median, slow) = (took[FAULTS / 2], took[FAULTS * 99 / 100]);
            println!("seed {seed}, beside {what}: median {median:?}, 99 of 100 {slow:?}");
            if let Some(mut child) = child {
                assert_eq!(child.try_wait().unwrap(), None, "seed {seed}: {what} has ended");
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
        let stats = server.until("all have left", |stats| stats.clients == 0);
        assert_eq!(stats.failed, 0, "seed {seed}: {stats:?}");
        // What the kernel counts of a server that has leaked nothing.
        let peak = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count();
        assert!(peak < 1024, "seed {seed}: {peak} descriptors");
        seed += 1;
        if Instant::now() >= until {
            return;
        }
    }
}
