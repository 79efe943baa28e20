//! A ring that the kernel refuses after it has worked: everything ends, nothing is lost.
//!
//! What forbids the call is for the whole process and for good, so the test is a process by itself.

use std::collections::HashSet;
use std::process::Command;
use std::sync::mpsc::channel;
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
    const NAME: &str = "source::tests::refused::a_ring_that_is_refused_later_is_done_without";
    const CHILD: &str = "PINFOLD_TEST_REFUSED_RING";
    if std::env::var_os(CHILD).is_some() {
        return refused_later();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let ended = child.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {said}", ended.status);
}

/// A request that the kernel keeps until the ring is released: a read of a pipe without writes.
fn endless(ring: &Ring, to: &Sender<Ended>) -> std::io::PipeWriter {
    let (empty, writer) = std::io::pipe().unwrap();
    let file = Descriptor { fd: empty.into(), block_device: false, writable: false, alignment: 1 };
    let mut batch = vec![request(1 << 40, PAGE, 1, to)];
    assert_eq!(ring.start(&Arc::new(file), &mut batch), Start::Started);
    writer
}

fn refused_later() {
    let directory = tempfile::tempdir().unwrap();
    let len = PAGES as usize * PAGE - 77;
    let path = file_of(directory.path(), len);
    let engine = ring_engine();
    let (Some(backing), Ok(ring)) = (direct(&path, &engine), engine.ring()) else { return };
    let (tell, told) = channel();
    let _writer = endless(&ring, &tell);
    // When this has ended, the kernel has seen what was given to it before.
    backing.submit(&mut vec![request(0, PAGE, 1, &tell)]);
    assert_eq!(told.recv_timeout(WAIT).unwrap().0, 0);
    assert_eq!(backing.source().kind(), "direct (io_uring)");

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
}
