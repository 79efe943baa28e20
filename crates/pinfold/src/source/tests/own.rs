//! Reads by the calling thread's own ring: each is the whole of itself, whatever becomes of the
//! ring.

use super::opening::forbid;
use super::*;
use crate::source::own_ring::READS_MAX;

const READS: usize = 3 * READS_MAX + 5;
const LEN: usize = READS * PAGE - 77;

/// Reads a page for each of the file, and one behind its end, in an order of no use to anyone.
/// False if this thread has no ring of its own.
fn read_all(backing: &Backing) -> bool {
    let mut numbers = Numbers(7);
    let mut offsets: Vec<_> = (0..=READS as u64).map(|page| page * PAGE as u64).collect();
    for n in 1..offsets.len() {
        offsets.swap(n, numbers.below(n as u64 + 1) as usize);
    }
    let memory: Vec<_> = offsets.iter().map(|_| Lent::filled(PAGE, 0xaa)).collect();
    let halves = |lent: &Lent| {
        let whole = lent.extent();
        vec![whole.part(0, PAGE / 2), whole.part(PAGE / 2, PAGE / 2)]
    };
    let to_read = |(n, (&offset, lent))| {
        (offset, if n % 3 == 0 { halves(lent) } else { vec![lent.extent()] })
    };
    let readings: Vec<_> = offsets.iter().zip(&memory).enumerate().map(to_read).collect();
    let Some(read) = backing.read_all(&readings) else { return false };
    assert_eq!(read.len(), offsets.len());
    for ((&offset, lent), got) in offsets.iter().zip(&memory).zip(read) {
        check(offset, got.unwrap(), lent.bytes(), LEN as u64);
    }
    true
}

/// In a thread of its own, with a file that is read directly: `body`, if there is direct I/O here.
fn with_a_file(body: impl FnOnce(Backing) + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let directory = tempfile::tempdir().unwrap();
        let Some(backing) = direct(&file_of(directory.path(), LEN), &ring_engine()) else { return };
        if backing.source().kind() == "direct (io_uring)" {
            body(backing);
        } else {
            eprintln!("not tested: the system has no ring");
        }
    });
    thread.join().unwrap();
}

#[test]
fn each_of_many_reads_at_once_is_itself() {
    with_a_file(|backing| {
        for _ in 0..3 {
            assert!(read_all(&backing));
        }
        let read = backing.stats().read;
        assert_eq!((read.calls, read.short), (3 * (READS as u64 + 1), 6));
    });
}

#[test]
fn an_error_of_one_of_many_reads_is_its_own() {
    with_a_file(|backing| {
        let memory = [0; 3].map(|_| Lent::filled(PAGE, 0xaa));
        let reading = |n: usize, offset| (offset, vec![memory[n].extent()]);
        let read = backing.read_all(&[reading(0, 0), reading(1, 77), reading(2, PAGE as u64)]);
        let [first, wrong, last] = <[_; 3]>::try_from(read.unwrap()).unwrap();
        assert!(wrong.unwrap_err().to_string().contains("offset 0x4d is not a multiple of"));
        check(0, first.unwrap(), memory[0].bytes(), LEN as u64);
        check(PAGE as u64, last.unwrap(), memory[2].bytes(), LEN as u64);
    });
}

#[test]
fn a_thread_that_may_have_no_ring_has_none() {
    with_a_file(|backing| {
        forbid(libc::SYS_io_uring_setup, libc::EPERM, false);
        assert!(!read_all(&backing));
    });
}

/// The ring was made, and then the kernel takes no more calls on it: the reads are carried out all
/// the same, and later ones have no ring.
#[test]
fn a_ring_of_ones_own_that_is_refused_later_is_done_without() {
    with_a_file(|backing| {
        assert!(read_all(&backing));
        forbid(libc::SYS_io_uring_enter, libc::EPERM, false);
        assert!(read_all(&backing));
        assert!(!read_all(&backing));
    });
}
