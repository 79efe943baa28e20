//! A ring that the kernel refuses after it has worked: everything ends, nothing is lost.
//!
//! What forbids the call is for the whole process and for good, so the test is a process by itself.

use std::collections::HashSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use super::opening::forbid;
use super::*;
use crate::source::Start;
use crate::source::descriptor::Descriptor;

const PAGES: u64 = 200;
/// Only there to end a test that hangs.
const WAIT: Duration = Duration::from_secs(60);

#[test]
fn a_ring_that_is_refused_later_is_done_without() {
    in_a_process_of_its_own("a_ring_that_is_refused_later_is_done_without", || {
        refused_later(Vec::new);
    });
}

#[test]
fn a_signal_ends_no_wait_for_a_refused_ring() {
    in_a_process_of_its_own("a_signal_ends_no_wait_for_a_refused_ring", || {
        refused_later(|| vec![std::thread::spawn(interrupt_the_wait)]);
    });
}

/// Runs `body`, of the test `name` of this file, in a process that has no other test.
fn in_a_process_of_its_own(name: &str, body: impl FnOnce()) {
    const CHILD: &str = "PINFOLD_TEST_REFUSED_RING";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let name = format!("source::tests::refused::{name}");
    let mut child = Command::new(std::env::current_exe().unwrap());
    let ended = child.args(["--exact", &name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {said}", ended.status);
}

/// How often the signal came.
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

/// Sends the ring's thread a signal, one that it does not block, while it waits for the kernel to
/// release the ring. A forked child, which has the ring's descriptor too, makes that wait last
/// until the signal has come.
fn interrupt_the_wait() {
    extern "C" fn count(_: libc::c_int) {
        SIGNALS.fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: zeros are a value of it.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // Without SA_RESTART, so that a call that is interrupted says so.
    action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler only adds to an atomic.
    let set = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
    // SAFETY: the child makes system calls only, and ends with this process.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the same.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
        loop {
            // SAFETY: the same.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0, "{}", io::Error::last_os_error());
    FORKED.store(true, Ordering::SeqCst);
    let driver = thread_named("pinfold-ring");
    let reads = format!("{} ", libc::SYS_read);
    // Ends: the ring's thread reads from the pipe until the child has ended.
    while !std::fs::read_to_string(driver.join("syscall")).unwrap().starts_with(&reads) {
        std::thread::yield_now();
    }
    let tid: libc::pid_t = driver.file_name().unwrap().to_str().unwrap().parse().unwrap();
    // SAFETY: a thread of this process, which has a handler for the signal.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), tid, libc::SIGSYS) };
    assert_eq!(sent, 0, "{}", io::Error::last_os_error());
    // Ends: the signal interrupts the wait.
    while SIGNALS.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // SAFETY: this process's child, which was not waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: the same; its status is of no interest.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

/// Whether the child that keeps the ring is there.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The folder of this process's thread with that name.
fn thread_named(name: &str) -> PathBuf {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    threads.into_iter().find(named).expect("the thread is there")
}

/// A request that the kernel keeps until the ring is released: a read of a pipe without writes.
fn endless(ring: &Ring, to: &Sender<Ended>) -> std::io::PipeWriter {
    let (empty, writer) = std::io::pipe().unwrap();
    let file = Descriptor::of(empty.into(), 1);
    let mut batch = vec![request(1 << 40, PAGE, 1, to)];
    assert_eq!(ring.start(&Arc::new(file), &mut batch), Start::Started);
    writer
}

/// `beside` starts threads that are at work meanwhile, once the ring has something to do.
fn refused_later(beside: impl FnOnce() -> Vec<JoinHandle<()>>) {
    let directory = tempfile::tempdir().unwrap();
    let len = PAGES as usize * PAGE - 77;
    let path = file_of(directory.path(), len);
    let engine = ring_engine();
    let (Some(backing), Ok(ring)) = (direct(&path, &engine), engine.ring.clone()) else { return };
    let (tell, told) = channel();
    let _writer = endless(&ring, &tell);
    // When this has ended, the kernel has seen what was given to it before.
    backing.submit(&mut vec![request(0, PAGE, 1, &tell)]);
    assert_eq!(told.recv_timeout(WAIT).unwrap().0, 0);
    assert_eq!(backing.source().kind(), "direct (io_uring)");

    let beside = beside();
    // Ends: the thread forks.
    while !beside.is_empty() && !FORKED.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    forbid(libc::SYS_io_uring_enter, libc::EPERM, true);
    let mut batch: Vec<_> =
        (0..PAGES).map(|page| request(page * PAGE as u64, PAGE, 1, &tell)).collect();
    // Ends: requests are taken when earlier ones have ended.
    while !batch.is_empty() {
        backing.submit(&mut batch);
        std::thread::yield_now();
    }
    let mut left: HashSet<_> = (0..PAGES).map(|page| page * PAGE as u64).collect();
    left.insert(1 << 40);
    while !left.is_empty() {
        let (offset, result, lent) = told.recv_timeout(WAIT).expect("every request ends");
        assert!(left.remove(&offset), "{offset} ended twice");
        if offset == 1 << 40 {
            // Its read was given up, and a plain one of a pipe has no offset.
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ESPIPE));
        } else {
            check(offset, result.unwrap(), lent.bytes(), len as u64);
        }
    }
    let kind = backing.source().kind();
    assert!(kind.starts_with("direct (worker threads; no io_uring: refused since: "), "{kind}");
    assert!(kind.contains("Operation not permitted"), "{kind}");
    drop((backing, ring, engine));
    for thread in beside {
        thread.join().unwrap();
    }
}
