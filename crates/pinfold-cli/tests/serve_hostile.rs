//! What a client, a disk or a terminal can do to a server, and to its other clients: nothing. Each
//! test ends with a client that is served.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests")]

mod ground;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, Resource, Rlimit, Signal};

use ground::slow_file::SlowFile;
use ground::*;

/// A socket whose last close waits for 600 seconds.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = lingering_at(listener.local_addr().unwrap());
    (socket, listener.accept().unwrap().0)
}

/// As long as the other side is open.
fn lingering_at(listener: SocketAddr) -> OwnedFd {
    let mut stream = TcpStream::connect(listener).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 4096]).is_ok() {}
    let linger = Some(Duration::from_secs(600));
    stream.set_nonblocking(false).unwrap();
    rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
    stream.into()
}

#[test]
fn a_descriptor_whose_close_waits_makes_nobody_wait() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&[]);
    let pid = Pid::from_raw(server.child.id().cast_signed()).unwrap();
    // While it stands still, it has them all, and this process closes none as the last.
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let mut hostile = Vec::new();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    for n in 0..20 {
        let (socket, other) = lingering();
        let stream = UnixStream::connect(&server.socket).unwrap();
        let mappings = format!("[{}]", mapping(4096, P, 0, ""));
        if n % 4 == 0 {
            send(&stream, &mappings, &[&socket]);
        } else if n % 4 == 2 {
            // The system closes the third one, as the server takes two.
            send(&stream, &mappings, &[&null, &null, &socket]);
        } else {
            // More than it receives at once, and it ends the connection for that: the rest is
            // closed with the connection.
            send(&stream, &"?".repeat(20_000), &[]);
            send(&stream, &mappings, &[&socket]);
        }
        hostile.push((stream, other));
    }
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    result(ground.restore(&["--order", "random"]));
    // Nor another connection of this process.
    let mut stream = UnixStream::connect(&server.socket).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    send(&stream, r#"{"pinfold":1,"want":"stats"}"#, &[]);
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    // Those that were received are not closed yet: the close waits, in a thread of its own.
    for (stream, _) in hostile.iter_mut().step_by(2) {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
    result(ground.restore(&["--private"]));
}

#[test]
fn a_file_each_close_of_which_waits_makes_nobody_wait() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&[]);
    let Some(slow) = SlowFile::mount() else { return };
    let pid = Pid::from_raw(server.child.id().cast_signed()).unwrap();
    let mappings = format!("[{}]", mapping(4096, P, 0, ""));
    let streams = [(); 3].map(|()| UnixStream::connect(&server.socket).unwrap());
    // While it stands still, it has them, and this process has none.
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    let file: OwnedFd = slow.open().into();
    send(&streams[0], &mappings, &[&file]);
    send(&streams[1], &mappings, &[&file, &file]);
    send(&streams[2], "?", &[&file]);
    drop(file);
    slow.hold();
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    let told = [(); 3].map(|()| server.says("is not served any more")).concat();
    for why in ["is no userfaultfd, but /", "several descriptors", "what came is not JSON"] {
        assert!(told.contains(why), "{why}: {told}");
    }
    result(ground.restore(&["--order", "random"]));
    // They wait.
    for mut stream in &streams {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
    }
    slow.let_go();
    for stream in &streams {
        assert_eq!(closed(stream), "");
    }
}

#[test]
fn lines_that_nobody_reads_end_nothing_and_make_nobody_wait() {
    let ground = Ground::new(4 * MIB);
    for keep in [false, true] {
        let (reader, writer) = std::io::pipe().unwrap();
        // SAFETY: changes the pipe alone.
        assert!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) } > 0);
        let reader = keep.then_some(reader);
        let mut server = pinfold("serve");
        server.arg(ground.snapshot()).arg("--socket").arg(ground.socket());
        let mut child = server.stderr(Stdio::from(OwnedFd::from(writer))).spawn().unwrap();
        drop(server);
        while UnixStream::connect(ground.socket()).is_err() {
            std::thread::yield_now();
        }
        for _ in 0..2000 {
            let stream = UnixStream::connect(ground.socket()).unwrap();
            send(&stream, "GET", &[]);
            closed(&stream);
        }
        result(ground.restore(&[]));
        assert_eq!(child.try_wait().unwrap(), None, "it serves");
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(ground.socket()).unwrap();
        drop(reader);
    }
    // A full disk.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut server = pinfold("serve");
    server.arg(ground.snapshot()).arg("--socket").arg(ground.socket());
    let mut child = server.stdout(full.try_clone().unwrap()).stderr(full).spawn().unwrap();
    while UnixStream::connect(ground.socket()).is_err() {
        std::thread::yield_now();
    }
    result(ground.restore(&[]));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A line of `/proc/PID/status`, in KiB.
fn status_kib(pid: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_matches(':').trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

fn number_of_threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

#[test]
fn a_message_takes_no_more_memory_than_its_text() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&[]);
    result(ground.restore(&[]));
    let pid = server.child.id();
    let (before, threads) = (status_kib(pid, "VmHWM"), number_of_threads(pid));
    let many = |one: &str| vec![one; 250_000 / (one.len() + 1)].join(",");
    for (message, why) in [
        (format!("[{}]", many(r#"{"":0}"#)), " mappings: there must be 1 to 1024"),
        (format!("[{}]", many("[]")), " mappings: there must be 1 to 1024"),
        (format!("[[{}]]", many(r#"{"":0}"#)), "the mappings: invalid type: sequence"),
        (format!(r#"{{"pinfold":1,"":[{}]}}"#, many("[]")), "missing field `want`"),
        (format!(r#"{{"pinfold":1,{}}}"#, many(r#""":{}"#)), "missing field `want`"),
    ] {
        let stream = UnixStream::connect(&server.socket).unwrap();
        (&stream).write_all(message.as_bytes()).unwrap();
        let line = server.says("is not served any more");
        assert!(line.contains(why), "{line}");
        closed(&stream);
        // What it had goes with its thread.
        let deadline = Instant::now() + LIMIT;
        while number_of_threads(pid) > threads {
            assert!(Instant::now() < deadline, "the connection's thread does not end");
            std::thread::yield_now();
        }
    }
    let grown = status_kib(pid, "VmHWM") - before;
    assert!(grown < 4 << 10, "{grown} KiB");
    result(ground.restore(&[]));
}

#[test]
fn a_served_client_keeps_no_memory_for_a_message_that_does_not_end() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&[]);
    let (uffd, at) = two_pages();
    let stream = UnixStream::connect(&server.socket).unwrap();
    send(&stream, &format!("[{}]", mapping(at, 2 * P, 8 * P, "")), &[&uffd]);
    server.until("it is served", |stats| stats.clients == 1);
    (&stream).write_all(format!(r#"{{"pinfold":1,"{}"#, "x".repeat(5000)).as_bytes()).unwrap();
    let line = server.says("is not served any more");
    assert!(line.contains("it is served, and its message has more than 4096 bytes"), "{line}");
    closed(&stream);
    result(ground.restore(&[]));
}

fn limit(pid: u32, which: Resource, most: u64) -> Rlimit {
    let Rlimit { maximum, .. } = rustix::process::getrlimit(which);
    let limit = Rlimit { current: Some(most), maximum };
    rustix::process::prlimit(Pid::from_raw(pid.cast_signed()), which, limit).unwrap()
}

#[test]
fn a_working_set_that_cannot_be_written_ends_the_recording_alone() {
    let ground = Ground::new(4 * MIB);
    let set = ground.path("set");
    let server = ground.serve(&["--record", set.to_str().unwrap()]);
    let recorded = || std::fs::read_to_string(&set).unwrap();
    let before = recorded();
    limit(server.child.id(), Resource::Fsize, before.len() as u64 + 8);
    result(ground.restore(&["--order", "random"]));
    server.says("the working set is not recorded any more: cannot write");
    result(ground.restore(&[]));
    let after = recorded();
    assert!(after.starts_with(&before) && after.ends_with('\n'), "{after:?}");
    drop(server);
    // What could not be read again is refused at the start, without waiting for it.
    let fifo = ground.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for path in [fifo.to_str().unwrap(), "/dev/full"] {
        let mut serve = pinfold("serve");
        serve.arg(ground.snapshot()).arg("--socket").arg(ground.socket());
        let output = serve.args(["--record", path]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let why = format!("error: cannot write {path}: it is no regular file");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with(&why), "{output:?}");
    }
}

#[test]
fn silent_connections_give_way_and_a_lack_of_descriptors_is_the_servers() {
    let ground = Ground::new(4 * MIB);
    let mut few = pinfold("serve");
    let limit_self = || {
        let limit = Rlimit { current: Some(100), maximum: Some(100) };
        Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
    };
    // SAFETY: a system call, before the program begins.
    unsafe { few.pre_exec(limit_self) };
    let server = ground.serve_by(few, &["--silence", "3600"]);
    let silent = [(); 100].map(|()| UnixStream::connect(&server.socket).unwrap());
    result(ground.restore(&[]));
    server.says("it is not served yet, and gives way to a new one");
    drop((silent, server));

    let server = ground.serve(&[]);
    let pid = server.child.id();
    let (uffd, at) = two_pages();
    let ask = || {
        let stream = UnixStream::connect(&server.socket).unwrap();
        send(&stream, r#"{"pinfold":1,"want":"stats"}"#, &[]);
        assert!((&stream).read(&mut [0; 4096]).unwrap() > 0);
        stream
    };
    let stream = ask();
    let before = limit(pid, Resource::Nofile, 3);
    send(&stream, &format!("[{}]", mapping(at, P, 8 * P, "")), &[&uffd]);
    let told = closed(&stream);
    assert!(told.contains("the server has no descriptors left"), "{told:?}");
    limit(pid, Resource::Nofile, before.current.unwrap());
    let stream = ask();
    send(&stream, &format!("[{}]", mapping(at, P, 8 * P, "")), &[&uffd]);
    // SAFETY: a page of `two_pages`.
    assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() }, 9);
}

/// It sends spaces, which are no message, so that there is always something to receive. What it had
/// sent when its time was over is heard: no more than the socket keeps.
#[test]
fn who_talks_without_end_has_to_send_its_mappings_in_time() {
    const SOCKET_BYTES: usize = 64 << 10;
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&["--silence", "0.000001"]);
    let stream = UnixStream::connect(&server.socket).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, SOCKET_BYTES).unwrap();
    let heard = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let talk = || {
            // Ends: with the connection.
            while let Ok(bytes) = (&stream).write(&[b' '; 4096]) {
                heard.fetch_add(bytes, Ordering::Relaxed);
            }
        };
        (0..4).for_each(|_| drop(scope.spawn(talk)));
        let ends = || server.says("has sent no mappings for 0.000001 seconds");
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ends));
        let _ = stream.shutdown(std::net::Shutdown::Both); // or they talk for ever
        ended.expect("it was ended");
    });
    let heard = heard.into_inner();
    assert!(heard <= 8 * SOCKET_BYTES, "{heard} bytes");
    drop(server);
    let _server = ground.serve(&[]);
    result(ground.restore(&[]));
}

#[test]
fn who_does_not_receive_its_descriptors_is_named_as_the_cause() {
    let ground = Ground::new(4 * MIB);
    let mut few = pinfold("serve");
    let limit_self = || {
        // An error: it has not got what the system lets send any number (CAP_SYS_ADMIN,
        // CAP_SYS_RESOURCE) anyway.
        for capability in [21, 24] {
            // SAFETY: a system call.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        let limit = Rlimit { current: Some(100), maximum: Some(100) };
        Ok(rustix::process::setrlimit(Resource::Nofile, limit)?)
    };
    // SAFETY: system calls, before the program begins.
    unsafe { few.pre_exec(limit_self) };
    let server = ground.serve_by(few, &[]);
    let mut kept = Vec::new();
    let told = loop {
        let stream = UnixStream::connect(&server.socket).unwrap();
        send(&stream, r#"{"pinfold":1,"want":"memory"}"#, &[]);
        let mut said = vec![0; 4096];
        let (bytes, _) = recv(&stream, &mut said[..], RecvFlags::PEEK).unwrap();
        let said = String::from_utf8_lossy(&said[..bytes]).into_owned();
        if said.contains("error") {
            break said;
        }
        // The server ends it, and what it has sent stays.
        send(&stream, "]", &[]);
        server.says("is not served any more");
        kept.push(stream);
        assert!(kept.len() <= 110, "{said}");
    };
    assert!(told.contains("clients have not received too many of the descriptors"), "{told:?}");
    drop(kept);
    result(ground.restore(&[]));
}

#[test]
fn who_gets_no_thread_is_told_and_the_others_go_on() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&[]);
    let pid = server.child.id();
    let (uffd, at) = two_pages();
    let served = UnixStream::connect(&server.socket).unwrap();
    send(&served, &format!("[{}]", mapping(at, 2 * P, 8 * P, "")), &[&uffd]);
    // SAFETY: a page of `two_pages`. The next one is in the server's memory after that.
    assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() }, 9);
    server.until("it is served", |stats| stats.clients == 1);
    // A thread of the connections before may have left its stack to the next one.
    let kib = status_kib(pid, "VmSize");
    let before = limit(pid, Resource::As, (kib + 240) << 10);
    let mut kept = Vec::new();
    // Ends: a connection that stays has a stack.
    let told = loop {
        let mut stream = UnixStream::connect(&server.socket).unwrap();
        let mut said = vec![0; 4096];
        let sent = try_send(&stream, r#"{"pinfold":1,"want":"stats"}"#, &[]);
        let bytes = stream.read(&mut said).unwrap();
        let said = String::from_utf8(said[..bytes].to_vec()).unwrap();
        if sent.is_err() || !said.contains("\"stats\"") {
            break said;
        }
        kept.push(stream);
    };
    assert!(told.contains("the server has no thread for it"), "{told:?}");
    server.says("no thread for client");
    let next = std::ptr::with_exposed_provenance::<u8>(at + P as usize);
    // SAFETY: the other page of `two_pages`.
    assert_eq!(unsafe { next.read_volatile() }, 10);
    limit(pid, Resource::As, before.current.unwrap_or(u64::MAX));
    result(ground.restore(&[]));
}

#[test]
#[ignore = "the next test starts it"]
fn a_client_by_its_standard_input() {
    use std::os::fd::AsFd;
    let Ok(stream) = std::io::stdin().as_fd().try_clone_to_owned() else { return };
    let stream = UnixStream::from(stream);
    if stream.peer_addr().is_err() {
        return; // started by hand
    }
    let (uffd, at) = two_pages();
    send(&stream, &format!("[{}]", mapping(at, P, 8 * P, "")), &[&uffd]);
    // Ends: it is killed.
    loop {
        std::thread::park();
    }
}

#[test]
fn a_process_that_is_dead_is_not_served_whoever_has_its_connection() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&["--silence", "3600"]);
    let stream: OwnedFd = UnixStream::connect(&server.socket).unwrap().into();
    let mut client = std::process::Command::new(std::env::current_exe().unwrap());
    client.args(["--exact", "a_client_by_its_standard_input", "--ignored", "--nocapture"]);
    client.stdin(Stdio::from(stream.try_clone().unwrap())).stdout(Stdio::null());
    let mut client = client.spawn().unwrap();
    server.until("it is served", |stats| stats.clients == 1);
    // The server has the connection's other end open, too, by a connection that stays.
    let keeper = UnixStream::connect(&server.socket).unwrap();
    send(&keeper, r#"{"pinfold":1,"want":"stats"}"#, &[&stream]);
    assert!((&keeper).read(&mut [0; 4096]).unwrap() > 0);
    client.kill().unwrap();
    client.wait().unwrap();
    server.until("it has ended", |stats| stats.clients == 0);
    server.says("its memory is gone");
    result(ground.restore(&[]));
    drop((keeper, stream));
}

/// Has this process's memory served to somebody else, whose userfaultfd it gets, and has the
/// connection's thread wait for a close: the system closes the third descriptor of a message.
#[test]
#[ignore = "the next test starts it"]
fn a_client_whose_connection_waits_for_a_close() {
    use std::os::fd::AsFd;
    let said = |name: &str| std::env::var(format!("PINFOLD_TEST_{name}"));
    let Ok(socket) = said("SOCKET") else { return }; // started by hand
    let server = Pid::from_raw(said("SERVER").unwrap().parse().unwrap()).unwrap();
    let at = said("AT").unwrap().parse().unwrap();
    let uffd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let lingers = lingering_at(said("LISTENER").unwrap().parse().unwrap());
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let stream = UnixStream::connect(socket).unwrap();
    send(&stream, r#"{"pinfold":1,"want":"stats"}"#, &[]);
    assert!((&stream).read(&mut [0; 4096]).unwrap() > 0);
    send(&stream, &format!("[{}]", mapping(at, 4 * P, 8 * P, "")), &[&uffd]);
    assert!((&stream).read(&mut [0; 4096]).unwrap() > 0, "it is served");
    // The message has the last reference.
    rustix::process::kill_process(server, Signal::STOP).unwrap();
    send(&stream, " ", &[&null, &null, &lingers]);
    drop(lingers);
    rustix::process::kill_process(server, Signal::CONT).unwrap();
    if said("CLOSES").is_ok() {
        drop(stream);
    }
    println!("it is done");
    // Ends: it is killed.
    loop {
        std::thread::park();
    }
}

#[test]
fn who_has_left_is_not_served_whatever_its_connection_waits_for() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&[]);
    for closes in [false, true] {
        let (uffd, at) = private_memory(4 * P, 0);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::process::Command::new(std::env::current_exe().unwrap());
        client.args(["--exact", "a_client_whose_connection_waits_for_a_close", "--ignored"]);
        client.arg("--nocapture").env("PINFOLD_TEST_SOCKET", &server.socket);
        client.env("PINFOLD_TEST_SERVER", server.child.id().to_string());
        client.env("PINFOLD_TEST_AT", at.to_string());
        client.env("PINFOLD_TEST_LISTENER", listener.local_addr().unwrap().to_string());
        if closes {
            client.env("PINFOLD_TEST_CLOSES", "");
        }
        let mut client = client.stdin(uffd).stdout(Stdio::piped()).spawn().unwrap();
        let (_other, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("it is done")), "it has failed");
        if !closes {
            // SAFETY: a page of the memory, which is served.
            let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
            assert_eq!(byte, 9);
            client.kill().unwrap();
            client.wait().unwrap();
        }
        server.until(&format!("it has left; closes: {closes}"), |stats| stats.clients == 0);
        let _ = client.kill();
        client.wait().unwrap();
        result(ground.restore(&[]));
    }
}
