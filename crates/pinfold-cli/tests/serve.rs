//! `pinfold serve` and its clients, as real processes.
//!
//! Nothing here depends on how long something takes: where a test wants faults in flight, it looks
//! at the server's counters; what it then checks holds whatever is in flight.

#![allow(
    clippy::cast_ptr_alignment,
    clippy::items_after_statements,
    clippy::match_wild_err_arm,
    clippy::multiple_unsafe_ops_per_block,
    clippy::needless_for_each,
    reason = "tests: an address and an access to it, at the start of a page"
)]

mod ground;

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::time::Instant;

use pinfold::ClientMemory;
use pinfold_cli::serve::guest::{Connection, Guest};
use rustix::fs::{Mode, OFlags};

use ground::*;

#[test]
fn clients_share_a_budget_of_an_eighth() {
    let ground = Ground::new(64 * MIB + 100);
    let server = ground.serve(&["--budget", "8M"]);
    let clients = [
        &["--order", "random", "--threads", "2", "--store", "3"][..],
        &["--order", "random", "--seed", "2", "--threads", "8"],
        &["--store", "1"],
        &["--private", "--order", "random", "--store", "7"],
    ];
    let clients = clients.map(|args| ground.restore(args));
    for client in clients {
        let result = result(client);
        assert_eq!((&result["pages"], &result["verified"]), (&16_385.into(), &true.into()));
    }
    let stats = server.until("all have left", |stats| stats.clients == 0);
    assert!(stats.added == 4 && stats.failed == 0, "{stats:?}");
    assert!(stats.shared_bytes <= 8 * MIB, "{stats:?}");
}

#[test]
fn what_fits_is_read_once_for_all() {
    let ground = Ground::new(32 * MIB);
    let server = ground.serve(&[]);
    let clients = [(); 4].map(|()| ground.restore(&[]));
    for client in clients {
        result(client);
    }
    let stats = server.stats();
    assert!(stats.read_bytes <= 32 * MIB * 105 / 100, "{stats:?}");
    assert!(stats.shared_bytes <= 32 * MIB, "{stats:?}");
}

/// The most memory that a process has had, without what it maps of files.
fn peak_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_sparse_snapshot_takes_memory_for_its_data() {
    // The last one is the longest file that some file systems allow.
    for bytes in [64 << 30, 250 << 30, (16 << 40) - P] {
        let ground = Ground::new(MIB);
        let file = std::fs::File::options().write(true).open(ground.snapshot()).unwrap();
        file.set_len(bytes).unwrap();
        file.write_all_at(b"the last page", bytes - P).unwrap();
        let began = Instant::now();
        let server = ground.serve(&[]);
        let (took, at_first) = (began.elapsed(), peak_bytes(server.child.id()));
        assert!(took < LIMIT / 4, "{took:?} until it listens, for {bytes} bytes");
        result(ground.restore(&["--pages", "300", "--order", "random", "--store", "2"]));
        let mut connection = Connection::open(&server.socket).unwrap();
        let guest = Guest::restore(&mut connection, ClientMemory::Shared).unwrap();
        let read = |at: u64| {
            let mut found = [0; 13];
            for (n, byte) in found.iter_mut().enumerate() {
                // SAFETY: in the guest's memory.
                *byte = unsafe { guest.as_ptr().add(at as usize + n).read() };
            }
            found
        };
        assert_eq!((read(bytes - P), read(10 * P)[0]), (*b"the last page", 11));
        let peak = peak_bytes(server.child.id());
        let [gib, at_first, peak] = [bytes >> 30, at_first >> 20, peak >> 20];
        println!("{gib} GiB: listens after {took:?} with {at_first} MiB; {peak} MiB at most");
        assert!(peak < 64, "{peak} MiB for a snapshot of {gib} GiB");
    }
}

#[test]
fn clients_that_are_killed_concern_nobody_else() {
    let ground = Ground::new(32 * MIB);
    let server = ground.serve(&["--budget", "8M"]);
    for round in 0..3 {
        let args = ["--order", "random", "--threads", "4", "--seed"];
        let before = server.stats().faults;
        let mut clients: Vec<Child> =
            (0..4).map(|n| ground.restore(&[&args[..], &[&n.to_string()]].concat())).collect();
        server.until("faults are served", |stats| stats.faults > before + 300 * (round + 1));
        for mut victim in clients.drain(..2) {
            victim.kill().unwrap();
            victim.wait().unwrap();
        }
        clients.into_iter().for_each(|client| drop(result(client)));
        let stats = server.until("all have left", |stats| stats.clients == 0);
        assert_eq!(stats.failed, 0);
    }
}

#[test]
fn a_server_that_is_killed_and_started_again_harms_no_client() {
    let ground = Ground::new(32 * MIB);
    let mut server = ground.serve(&["--budget", "8M"]);
    let args = ["--order", "random", "--threads", "3", "--store", "4", "--restarts", "3", "--seed"];
    let clients: Vec<Child> =
        (0..3).map(|n| ground.restore(&[&args[..], &[&n.to_string()]].concat())).collect();
    for _ in 0..3 {
        server.until("all have come", |stats| stats.clients == 3 && stats.faults > 500);
        server.kill();
        server = ground.serve(&["--budget", "8M"]);
    }
    for client in clients {
        assert_eq!(result(client)["reconnects"], 3);
    }
}

#[test]
fn a_client_without_a_server_ends_and_says_so() {
    let ground = Ground::new(MIB);
    let server = ground.serve(&[]);
    let client = ground.restore(&["--restarts", "1", "--patience", "0.1"]);
    server.until("it has come", |stats| stats.faults > 0);
    server.kill();
    let output = client.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: the server is gone, and no other came"), "{stderr}");
}

/// The pages of a working set.
fn pages_of(path: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    let runs = text.lines().skip(2).map(|line| line.split_once(' ').unwrap());
    let runs = runs.map(|(first, count)| (first.parse::<u64>().unwrap(), count.parse().unwrap()));
    runs.flat_map(|(first, count): (u64, u64)| first..first + count).collect()
}

#[test]
fn what_was_recorded_is_installed_ahead() {
    let ground = Ground::new(32 * MIB);
    let set = ground.path("set");
    let set_name = set.to_str().unwrap();
    let args = ["--pages", "300", "--order", "random", "--seed", "7"];
    let server = ground.serve(&["--record", set_name]);
    result(ground.restore(&args));
    result(ground.restore(&args));
    server.kill();
    let pages = pages_of(&set);
    let each: std::collections::HashSet<_> = pages.iter().collect();
    assert!(each.len() == pages.len() && (200..300).contains(&pages.len()), "{}", pages.len());
    assert!(pages.iter().all(|page| page % 64 >= 8), "a hole");
    // It goes on with what is there.
    let server = ground.serve(&["--record", set_name]);
    result(ground.restore(&["--pages", "20", "--order", "random", "--seed", "8"]));
    server.kill();
    let more = pages_of(&set);
    assert!(
        more.starts_with(&pages) && more.len() > pages.len() && more.len() <= pages.len() + 20,
        "{}",
        more.len()
    );

    let server = ground.serve(&["--replay", set_name]);
    for memory in [ClientMemory::Shared, ClientMemory::Private] {
        let mut connection = Connection::open(&server.socket).unwrap();
        let guest = Guest::restore(&mut connection, memory).unwrap();
        server.until("installed", |stats| stats.ahead == 0);
        for &page in &more {
            let right = if page % 64 < 8 || page % 64 == 20 { 0 } else { page + 1 };
            // SAFETY: in the guest's memory.
            let word = unsafe { guest.as_ptr().add((page * P) as usize).cast::<u64>().read() };
            assert_eq!(word, right, "page {page}");
        }
    }
    assert_eq!(server.stats().faults, 0, "all was there");
    drop(server);

    // A new one, which is both: nothing is installed ahead.
    let new = ground.path("new");
    let new_name = new.to_str().unwrap();
    let server = ground.serve(&["--record", new_name, "--replay", new_name]);
    result(ground.restore(&args));
    let mut other = pinfold("serve");
    other.arg(ground.snapshot()).arg("--socket").arg(ground.path("other"));
    let output = other.args(["--record", new_name]).output().unwrap();
    let why = format!("error: cannot write {new_name}: another server records into it\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), why);
    result(ground.restore(&args));
    server.kill();
    assert_eq!(pages_of(&new), pages);

    std::fs::write(&set, "pinfold-working-set 1\nbytes 4096\n0 1\n").unwrap();
    let mut wrong = pinfold("serve");
    wrong.arg(ground.snapshot()).arg("--socket").arg(ground.socket()).args(["--replay", set_name]);
    let output = wrong.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let why = "is of a snapshot of 4096 bytes, and this one has 33554432";
    assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
}

#[test]
fn a_page_that_cannot_be_read_ends_who_wants_it_alone() {
    use std::os::unix::process::ExitStatusExt;
    let ground = Ground::new(32 * MIB);
    let server = ground.serve(&[]);
    std::fs::File::options().write(true).open(ground.snapshot()).unwrap().set_len(MIB).unwrap();
    let output = ground.restore(&[]).wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    server.says("the page at ");
    // Another one, that wants a page which is there.
    let mut connection = Connection::open(&server.socket).unwrap();
    let guest = Guest::restore(&mut connection, ClientMemory::Shared).unwrap();
    // SAFETY: in the guest's memory.
    let word = unsafe { guest.as_ptr().add(10 * P as usize).cast::<u64>().read() };
    assert_eq!(word, 11);
}

#[test]
fn what_cannot_be_is_named() {
    let ground = Ground::new(4 * MIB);
    for (budget, why) in
        [("7M", "--budget 7 MiB: must be 8 MiB to "), ("300G", "must be 8 MiB to 256 GiB")]
    {
        let mut serve = pinfold("serve");
        serve.arg(ground.snapshot()).arg("--socket").arg(ground.socket());
        let output = serve.args(["--budget", budget]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    }
    let _server = ground.serve(&[]);
    let short = ground.path("short");
    std::fs::copy(ground.snapshot(), &short).unwrap();
    std::fs::File::options().write(true).open(&short).unwrap().set_len(MIB).unwrap();
    let refused = |args: &[&str], verify: &Path, why: &str| {
        let mut restore = pinfold("restore");
        restore.arg("--socket").arg(ground.socket()).arg("--verify").arg(verify);
        let output = restore.args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    };
    refused(&[], &short, "is not what the file has: that has 1048576 bytes");
    refused(&["--pages", "1025"], &ground.snapshot(), "--pages 1025: the memory has 1024");
}

#[test]
fn a_socket_that_is_in_use_is_not_taken_over() {
    let ground = Ground::new(MIB);
    let refused = |why: &str| {
        let mut serve = pinfold("serve");
        let output = serve.arg(ground.snapshot()).arg("--socket").arg(ground.socket()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    };
    std::fs::write(ground.socket(), "mine").unwrap();
    refused("there is a file that is no socket");
    assert_eq!(std::fs::read(ground.socket()).unwrap(), b"mine");
    std::fs::remove_file(ground.socket()).unwrap();
    let server = ground.serve(&[]);
    refused(&format!("another server (pid {}) has this socket", server.child.id()));
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(ground.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

// ---- clients that do something wrong ----

#[test]
fn a_client_that_is_wrong_is_told_of_and_nobody_else_is_concerned() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&["--silence", "0.5"]);
    let connect = || UnixStream::connect(&server.socket).unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let (uffd, at) = two_pages();
    let path = format!("/proc/self/fd/{}", uffd.as_raw_fd());
    let path = rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap();
    let one = mapping(at, P, 0, "");
    let cases: Vec<(String, Vec<&OwnedFd>, &str)> = vec![
        ("GET / HTTP/1.1\r\n".into(), vec![], "what came is not JSON"),
        ("17 18".into(), vec![], "a message is an object or an array"),
        (r#"{"pinfold":1,"want":"all"}"#.into(), vec![], "neither \"memory\" nor \"stats\""),
        (r#"{"pinfold":9,"want":"stats"}"#.into(), vec![], "version 9 of the protocol"),
        (r#"{"pinfold":1}"#.into(), vec![], "missing field `want`"),
        (r#"{"pinfold":"1","want":"stats"}"#.into(), vec![], "invalid type: string"),
        ("[1, 2]".into(), vec![&uffd], "the mappings: invalid type"),
        ("[]".into(), vec![&uffd], "0 mappings: there must be 1 to 1024"),
        (format!("[{one}]"), vec![], "came without a userfaultfd"),
        (format!("[{one}]"), vec![&null], "is no userfaultfd, but /dev/null"),
        (format!("[{one}]"), vec![&path], "is no userfaultfd, but the path of one (O_PATH)"),
        (format!("[[{at},4096,0]]"), vec![&uffd], "the mappings: invalid type: sequence"),
        (
            format!("[{}]", mapping(at, P, 0, r#","size":8192"#)),
            vec![&uffd],
            "duplicate field `size`",
        ),
        (
            format!("[{}]", vec![one.clone(); 1025].join(",")),
            vec![&uffd],
            "1025 mappings: there must",
        ),
        (format!("[{one}]"), vec![&uffd, &uffd], "several descriptors"),
        (format!("[{one}]"), vec![&uffd, &uffd, &uffd, &uffd, &uffd], "several descriptors"),
        (format!("[{one},{one}]"), vec![&uffd], "mapping 1 ("),
        (format!("[{}]", mapping(at, P, 4 * MIB, "")), vec![&uffd], "ends past the snapshot"),
        (format!("[{}]", mapping(at, P, !4095, "")), vec![&uffd], "ends past the snapshot"),
        (format!("[{}]", mapping(at + 1, P, 0, "")), vec![&uffd], "must be multiples of 4096"),
        (format!("[{}]", mapping(at, 100, 0, "")), vec![&uffd], "must be multiples of 4096"),
        (format!("[{}]", mapping(at, P, 8, "")), vec![&uffd], "must be multiples of 4096"),
        (format!("[{}]", mapping(at, 0, 0, "")), vec![&uffd], "is empty"),
        (
            format!("[{}]", mapping(at, P, 0, r#","page_size":2097152"#)),
            vec![&uffd],
            "pages of 2097152 bytes",
        ),
    ];
    for (message, descriptors, why) in cases {
        let stream = connect();
        send(&stream, &message, &descriptors);
        let line = server.says("is not served any more");
        assert!(line.contains(why) && line.contains("(pid "), "{message}: {line}");
        let told = closed(&stream);
        // Who has said hello is told, also if it is wrong. Firecracker reads no answers.
        if message.contains("pinfold") {
            let told: serde_json::Value = serde_json::from_str(&told).expect(&message);
            assert_eq!(told["pinfold"], 1, "{message}: {told}");
            assert!(told["error"].as_str().expect(&message).contains(why), "{message}: {told}");
        } else {
            assert_eq!(told, "", "{message}");
        }
    }
    // Before anything was said: silence, half a message, and none at all.
    let silent = connect();
    let mut half = connect();
    half.write_all(b"[{\"base_host").unwrap();
    drop(connect());
    for _ in 0..2 {
        server.says("has sent no mappings for 0.5 seconds");
    }
    closed(&silent);
    closed(&half);
    // A message without end.
    let mut endless = connect();
    endless.write_all(b"[").unwrap();
    let spaces = [b' '; 4096];
    let mut writer = &endless;
    while writer.write_all(&spaces).is_ok() {}
    server.says("a message has more than 262144 bytes");
    // The reason is told to who has said hello.
    let polite = connect();
    send(&polite, r#"{"pinfold":1,"want":"memory"}"#, &[]);
    send(&polite, &format!("[{one}]"), &[&null]);
    assert!(closed(&polite).contains("is no userfaultfd, but /dev/null"));
    server.says("is no userfaultfd");
    // Descriptors that nobody takes are limited for all together.
    let greedy = connect();
    send(&greedy, r#"{"pinfold":1,"want":"memory"}"#, &[]);
    send(&greedy, r#"{"pinfold":1,"want":"memory"}"#, &[]);
    server.says("was sent the memory already, and asks for it again");
    closed(&greedy);
    result(ground.restore(&[]));
}

/// Touches the memory at `at` until `uffd` is closed.
fn touching(at: usize) -> std::thread::JoinHandle<u8> {
    std::thread::spawn(move || {
        // SAFETY: a page of `two_pages`, which are never unmapped.
        unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() }
    })
}

#[test]
fn a_client_whose_memory_is_not_what_it_says_is_given_up() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&[]);
    let connect = || UnixStream::connect(&server.socket).unwrap();

    // No handshake with the kernel, so it cannot be read.
    let bare = connect();
    send(&bare, &format!("[{}]", mapping(1 << 30, P, 0, "")), &[&bare_uffd()]);
    server.says("is not in non-blocking mode, or broken");

    // A fault outside of the mappings.
    let (uffd, at) = two_pages();
    let stream = connect();
    send(&stream, &format!("[{}]", mapping(at, P, 8 * P, "")), &[&uffd]);
    assert_eq!(touching(at).join().unwrap(), 9, "what it has said right is served");
    let outside = touching(at + P as usize);
    let line = server.says("is not served any more");
    assert!(line.contains("which is in none of its mappings"), "{line}");
    closed(&stream);
    drop(uffd);
    assert_eq!(outside.join().unwrap(), 0, "nobody is asked any more");

    // Private memory that is said to be shared.
    let (uffd, at) = two_pages();
    let stream = connect();
    send(&stream, &format!("[{}]", mapping(at, P, 8 * P, r#","memory":"shared""#)), &[&uffd]);
    let lie = touching(at);
    let line = server.says("is not served any more");
    assert!(line.contains("not mapped and registered as its mappings say"), "{line}");
    drop(uffd);
    assert_eq!(lie.join().unwrap(), 0);

    // It comes twice.
    let (uffd, at) = two_pages();
    let stream = connect();
    send(&stream, &format!("[{}]", mapping(at, P, 0, "")), &[&uffd]);
    send(&stream, &format!("[{}]", mapping(at, P, 0, "")), &[&uffd]);
    server.says("sends mappings again");

    // Answers that nobody reads.
    let stream = connect();
    let question = r#"{"pinfold":1,"want":"stats"}"#.repeat(100);
    let mut writer = &stream;
    while writer.write_all(question.as_bytes()).is_ok() {}
    server.says("does not read its answers");

    result(ground.restore(&[]));
}

#[test]
fn firecrackers_way_gets_copies() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&[]);
    let (uffd, at) = two_pages();
    let stream = UnixStream::connect(&server.socket).unwrap();
    let words = r#","page_size":4096,"page_size_kib":4096"#;
    let regions = format!(
        "[{},{}]",
        mapping(at, P, 30 * P, words),
        mapping(at + P as usize, P, 10 * P, words)
    );
    send(&stream, &regions, &[&uffd]);
    assert_eq!(touching(at).join().unwrap(), 31);
    assert_eq!(touching(at + P as usize).join().unwrap(), 11);
    assert_eq!(server.stats().shared_bytes, 0);
}
