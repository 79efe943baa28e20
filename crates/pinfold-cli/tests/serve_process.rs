//! Whom the server serves: the process that has connected, as long as it lives; and what such a
//! process can do to the thread that serves it.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests")]

mod ground;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use pinfold_cli::serve::socket::receive;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use ground::slow_file::SlowFile;
use ground::*;

const SOCKET: &str = "PINFOLD_TEST_SOCKET";
const SLOW: &str = "PINFOLD_TEST_SLOW_FILE";

/// This program once more, as a client; its standard input is the other end of what is returned.
fn child(what: &str, server: &Server, slow: Option<&Path>) -> (Child, UnixStream) {
    let (here, there) = UnixStream::pair().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", what, "--ignored", "--nocapture"]).env(SOCKET, &server.socket);
    slow.map(|slow| child.env(SLOW, slow));
    child.stdin(Stdio::from(OwnedFd::from(there))).stdout(Stdio::null());
    (child.spawn().unwrap(), here)
}

fn ends(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[ignore = "the next test starts it"]
fn who_hands_its_connection_on() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let stream = OwnedFd::from(UnixStream::connect(socket).unwrap());
    let parent = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    send(&parent, "x", &[&stream]);
    drop(stream);
    let _ = (&parent).read(&mut [0]); // until the test has ended its part
}

/// A client whose connection was made by another process, which is still there.
fn handed_on(server: &Server) -> (Child, UnixStream, UnixStream) {
    let (child, here) = child("who_hands_its_connection_on", server, None);
    let [descriptor, _] = receive(&here, &mut [0]).unwrap().descriptors;
    let stream = UnixStream::from(descriptor.unwrap());
    (child, here, stream)
}

/// A connection in non-blocking mode is read in the same way.
fn ask(stream: &UnixStream) -> String {
    stream.set_nonblocking(false).unwrap();
    let mut said = [0; 4096];
    send(stream, r#"{"pinfold":1,"want":"stats"}"#, &[]);
    let bytes = (&*stream).read(&mut said).unwrap();
    String::from_utf8_lossy(&said[..bytes]).into_owned()
}

#[test]
fn who_has_a_connection_of_a_dead_process_is_not_served() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&["--silence", "3600"]);
    let (uffd, at) = two_pages();
    let mappings = format!("[{}]", mapping(at, P, 8 * P, ""));
    // It ends before anything was said.
    let (child, here, stream) = handed_on(&server);
    ends(child);
    let told = closed(&stream);
    server.says("the process that has connected has ended");
    assert_eq!(told, "", "nobody has said hello");
    drop(here);
    // It ends when its memory, which is this process's, is served.
    let (child, here, stream) = handed_on(&server);
    assert!(ask(&stream).contains("stats"));
    send(&stream, &mappings, &[&uffd]);
    let mut said = [0; 4096];
    let bytes = (&stream).read(&mut said).unwrap();
    assert!(String::from_utf8_lossy(&said[..bytes]).contains("client"));
    // SAFETY: a page of `two_pages`.
    assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() }, 9);
    server.until("it is served", |stats| stats.clients == 1);
    ends(child);
    let told = closed(&stream);
    assert!(told.contains("the process that has connected has ended"), "{told}");
    server.until("it has left", |stats| stats.clients == 0);
    drop(here);
    // It asks without end: what it says is of no use any more.
    let (child, _here, stream) = handed_on(&server);
    let asks = r#"{"pinfold":1,"want":"stats"}"#;
    assert!(ask(&stream).contains("stats"));
    ends(child);
    let deadline = Instant::now() + LIMIT;
    while (&stream).write_all(asks.as_bytes()).is_ok() {
        assert!(Instant::now() < deadline, "it is answered for ever");
        let _ = (&stream).read(&mut [0; 4096]);
    }
    result(ground.restore(&[]));
}

#[test]
#[ignore = "the next test starts it"]
fn who_holds_the_lock_of_its_memory() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let slow = File::open(PathBuf::from(std::env::var_os(SLOW).unwrap())).unwrap();
    let (prot, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
    // SAFETY: a new mapping.
    let slow = unsafe { mmap(std::ptr::null_mut(), P as usize, prot, flags, &slow, 0) }.unwrap();
    let slow = slow.expose_provenance() as u64;
    let (uffd, at) = private_memory(2 * P, 0);
    let stream = UnixStream::connect(socket).unwrap();
    send(&stream, &format!("[{}]", mapping(at, 2 * P, 8 * P, "")), &[&uffd]);
    // SAFETY: a page of its memory.
    assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() }, 9);
    // From here on, no thread may allocate or start: that waits, too.
    let memory = File::open("/proc/self/mem").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Waits for the file, with the lock for reading.
            let _ = std::os::unix::fs::FileExt::read_at(&memory, &mut [0], slow);
        });
        scope.spawn(|| {
            // Waits for the lock for writing, so that others wait that want to read. Until then, it
            // maps and unmaps.
            loop {
                // SAFETY: a new mapping, which is not used.
                unsafe {
                    let anywhere = std::ptr::null_mut();
                    let prot = ProtFlags::empty();
                    let new = rustix::mm::mmap_anonymous(anywhere, P as usize, prot, flags);
                    let _ = rustix::mm::munmap(new.unwrap(), P as usize);
                }
            }
        });
    });
}

/// Whether a thread of this process waits in an ioctl, as far as the system says.
fn waits_in_ioctl(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map_while(Result::ok);
    let calls = tasks.map(|task| {
        let said = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let is_asleep = said("stat").rsplit_once(')').is_some_and(|(_, it)| it.starts_with(" D"));
        is_asleep && said("syscall").starts_with("16 ")
    });
    calls.fold(false, |any, it| any | it)
}

#[test]
#[cfg(target_arch = "x86_64")] // the number of ioctl
fn who_holds_the_lock_of_its_memory_makes_nobody_wait() {
    let ground = Ground::new(4 * MIB);
    let server = ground.serve(&[]);
    let Some(slow) = SlowFile::mount() else { return };
    let (bystander, at) = two_pages();
    let served = UnixStream::connect(&server.socket).unwrap();
    send(&served, &format!("[{}]", mapping(at, 2 * P, 8 * P, "")), &[&bystander]);
    server.until("it is served", |stats| stats.clients == 1);
    slow.hold();
    let stuck: Vec<_> = (0..3)
        .map(|_| child("who_holds_the_lock_of_its_memory", &server, Some(&slow.path())))
        .collect();
    let deadline = Instant::now() + LIMIT;
    let pid = server.child.id();
    // Its threads look whether these processes live.
    while !waits_in_ioctl(pid) {
        assert!(Instant::now() < deadline, "no thread of the server waits for a lock");
        std::thread::yield_now();
    }
    let (done, is_done) = std::sync::mpsc::channel();
    let (socket, snapshot) = (ground.socket(), ground.snapshot());
    std::thread::spawn(move || {
        let mut restore = pinfold("restore");
        restore.arg("--socket").arg(socket).arg("--verify").arg(snapshot);
        let restored = restore.output().unwrap();
        // SAFETY: a page of `two_pages`.
        let byte = unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
        let _ = done.send((restored, byte));
    });
    let others = is_done.recv_timeout(LIMIT / 4);
    let is_stuck = waits_in_ioctl(pid);
    slow.let_go();
    let (restored, byte) = others.expect("others wait for those that hold their locks");
    assert!(restored.status.success(), "{restored:?}");
    assert!(byte == 9 && is_stuck);
    for (child, _) in stuck {
        ends(child);
    }
    server.until("they have left", |stats| stats.clients == 1);
}
