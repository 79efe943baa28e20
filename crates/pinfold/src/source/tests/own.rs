//! Reads by the calling thread's own ring: each is the whole of itself, whatever becomes of the
//! ring.

use std::cell::RefCell;
use std::rc::Rc;

use super::opening::forbid;
use super::*;
use crate::base::mutant::{self, Mutant};
use crate::source::Direction;
use crate::source::descriptor::{Descriptor, Iovecs};
use crate::source::own_ring::{By, Carrier, IovecSlots, RingBatch, TRANSFERS_MAX};

const READS: usize = 3 * TRANSFERS_MAX + 5;
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
    let mut readings = offsets.iter().zip(&memory).enumerate().map(to_read);
    let Some(ring) = backing.own_ring() else { return false };
    let read = ring.read_all(readings.next(), || readings.collect());
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
fn each_of_many_writes_at_once_is_itself() {
    with_a_file(|backing| {
        let pages: Vec<u64> = (0..READS as u64 - 1).rev().collect();
        let memory: Vec<_> = pages.iter().map(|&page| Lent::filled(PAGE, page as u8)).collect();
        let to_write = |(&page, lent): (&u64, &Lent)| (page * PAGE as u64, vec![lent.extent()]);
        let mut writes: Vec<_> = pages.iter().zip(&memory).map(to_write).collect();
        writes.push((77, vec![memory[0].extent()]));
        let mut written = backing.own_ring().unwrap().write_all(writes);
        let wrong = written.pop().unwrap().unwrap_err();
        assert!(wrong.to_string().contains("offset 0x4d is not a multiple of"), "{wrong}");
        assert!(written.iter().all(Result::is_ok) && written.len() == pages.len());
        assert_eq!(backing.stats().write.calls, READS as u64);
        for page in pages {
            let read = Lent::filled(PAGE, 0xaa);
            backing.read(page * PAGE as u64, &[read.extent()]).unwrap();
            assert!(read.bytes().iter().all(|&byte| byte == page as u8), "page {page}");
        }
    });
}

#[test]
fn an_error_of_one_of_many_reads_is_its_own() {
    with_a_file(|backing| {
        let memory = [0; 3].map(|_| Lent::filled(PAGE, 0xaa));
        let reading = |n: usize, offset| (offset, vec![memory[n].extent()]);
        let others = || vec![reading(1, 77), reading(2, PAGE as u64)];
        let read = backing.own_ring().unwrap().read_all(Some(reading(0, 0)), others);
        let [first, wrong, last] = <[_; 3]>::try_from(read).unwrap();
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

/// A device that completes reads in any order, some in several parts, gives some back undone, and
/// fails some after a part. It must not panic: the process would be aborted.
struct Device {
    numbers: Numbers,
    pushed: Vec<(usize, u64, Vec<libc::iovec>)>,
    given_back: [u8; DEVICE_READS],
}

const BLOCK: usize = 512;
const DEVICE_READS: usize = 2 * TRANSFERS_MAX + 5;
const DEVICE_LEN: usize = 1000 * BLOCK + 77;

impl Device {
    /// The error by which the read number `n` ends, if it fails: not that of its neighbours.
    fn error_of(n: usize) -> Option<i32> {
        n.is_multiple_of(5).then_some([libc::EIO, libc::ENXIO, libc::EREMOTEIO][n % 3])
    }

    /// Carries out the first part of a read, or all of it.
    fn complete(&mut self, n: usize, at: u64, iovecs: &[libc::iovec]) -> i32 {
        if self.given_back[n] < 3 && self.numbers.below(6) == 0 {
            self.given_back[n] += 1;
            return -[libc::EINTR, libc::EAGAIN][n % 2];
        }
        let asked: usize = iovecs.iter().map(|part| part.iov_len).sum();
        let blocks = asked as u64 / BLOCK as u64;
        let part = (1 + self.numbers.below(blocks)) as usize * BLOCK;
        if let Some(error) = Self::error_of(n).filter(|_| part == asked) {
            return -error;
        }
        let got = part.min(DEVICE_LEN.saturating_sub(at as usize));
        let memory = iovecs.iter().flat_map(|part| {
            (0..part.iov_len).map(|nth| part.iov_base.cast::<u8>().wrapping_add(nth))
        });
        for (byte, to) in (at..at + got as u64).zip(memory) {
            // SAFETY: the memory is lent to the device until it says that the read is over.
            unsafe { to.write(byte_at(byte)) };
        }
        i32::try_from(got).expect("a few KiB")
    }
}

impl Carrier for Device {
    unsafe fn push(&mut self, _: By<'_>, n: usize, at: u64, iovecs: &Iovecs) {
        self.pushed.push((n, at, iovecs.as_slice().to_vec()));
    }

    fn enter(&mut self, completions: usize) -> io::Result<Vec<(usize, i32)>> {
        let pushed = self.pushed.len();
        if pushed > TRANSFERS_MAX || completions != 0 && completions != pushed {
            return Err(io::Error::other("more reads, or others, than the device has"));
        }
        let mut ended = Vec::new();
        for _ in 0..self.numbers.below(pushed as u64 + 1) {
            let nth = self.numbers.below(self.pushed.len() as u64) as usize;
            let (n, at, iovecs) = self.pushed.swap_remove(nth);
            ended.push((n, self.complete(n, at, &iovecs)));
        }
        Ok(ended)
    }
}

/// Whether each of many reads by such a device gets its own bytes and its own error.
fn is_each_itself(seed: u64) -> Result<(), String> {
    let file = tempfile::tempfile().unwrap();
    let file = Descriptor::of(file.into(), BLOCK);
    let mut numbers = Numbers(seed);
    let offset = |_| numbers.below(1010) * BLOCK as u64;
    let offsets: Vec<_> = (0..DEVICE_READS).map(offset).collect();
    let lent = |n| Lent::filled((1 + n % 12) * BLOCK, 0xaa);
    let memory: Vec<_> = (0..DEVICE_READS).map(lent).collect();
    let to_read = |(&offset, lent): (&u64, &Lent)| {
        let whole = lent.extent();
        let blocks = whole.bytes() / BLOCK;
        (offset, (0..blocks).map(|nth| whole.part(nth * BLOCK, BLOCK)).collect())
    };
    let mut readings = offsets.iter().zip(&memory).map(to_read);
    let (early, has_first) = (numbers.below(2) == 0, numbers.below(2) == 0);
    let mut device = Device { numbers, pushed: Vec::new(), given_back: [0; DEVICE_READS] };
    let mut slots = IovecSlots::default();
    let first = if has_first { readings.next() } else { None };
    let mut reads = RingBatch::of(&mut device, &mut slots, &file, Direction::Read);
    let ended = reads.carry_out(first, || readings.collect(), early);
    let flights = reads.flights;
    ended.map_err(|cause| cause.to_string())?;
    for (n, ((flight, &offset), lent)) in flights.into_iter().zip(&offsets).zip(&memory).enumerate()
    {
        let result = flight.result.ok_or("a read has no result")?;
        let left = (DEVICE_LEN as u64).saturating_sub(offset);
        let whole = left.min(lent.bytes().len() as u64);
        let ended = whole < lent.bytes().len() as u64;
        match (result, Device::error_of(n)) {
            // At the end of the file a part may have been the whole.
            (Ok(got), error) if error.is_none() || ended => {
                let right = |(at, byte): (u64, &u8)| byte_at(offset + at) == *byte;
                let right = (0..got as u64).zip(lent.bytes()).all(right);
                if got as u64 != whole || !right {
                    return Err(format!("read {n}: {got} bytes of {whole}, right: {right}"));
                }
            }
            (Err(cause), Some(error)) if cause.raw_os_error() == Some(error) => {}
            (result, error) => return Err(format!("read {n}: {result:?} and not {error:?}")),
        }
    }
    Ok(())
}

#[test]
fn reads_that_end_in_any_order_and_in_parts_are_each_themselves() {
    (0..100).for_each(|seed| is_each_itself(seed).unwrap());
    for mutant in [Mutant::LandInTurn, Mutant::ShortIsWhole] {
        let caught =
            mutant::with(Some(mutant), || (0..10).find_map(|seed| is_each_itself(seed).err()));
        assert!(caught.is_some(), "{mutant:?} does nothing");
    }
}

/// A device that notes how many reads each call submits, and carries out all that is waited for.
struct Submissions {
    of_each_call: Rc<RefCell<Vec<usize>>>,
    new: usize,
    pushed: Vec<(usize, i32)>,
}

impl Carrier for Submissions {
    unsafe fn push(&mut self, _: By<'_>, n: usize, _: u64, iovecs: &Iovecs) {
        let asked: usize = iovecs.as_slice().iter().map(|part| part.iov_len).sum();
        self.pushed.push((n, i32::try_from(asked).expect("a few KiB")));
        self.new += 1;
    }

    fn enter(&mut self, completions: usize) -> io::Result<Vec<(usize, i32)>> {
        self.of_each_call.borrow_mut().push(std::mem::take(&mut self.new));
        Ok(if completions == 0 { Vec::new() } else { std::mem::take(&mut self.pushed) })
    }
}

/// How many reads each call submits of `reads` in all, and how many were submitted before the
/// others were prepared.
fn submissions(reads: usize, early: bool) -> (Vec<usize>, usize) {
    let of_each_call = Rc::new(RefCell::new(Vec::new()));
    let file = tempfile::tempfile().unwrap();
    let file = Descriptor::of(file.into(), BLOCK);
    let memory: Vec<_> = (0..reads).map(|_| Lent::filled(BLOCK, 0)).collect();
    let mut readings = memory.iter().map(|lent| (0, vec![lent.extent()]));
    let first = readings.next();
    let mut device = Submissions { of_each_call: of_each_call.clone(), new: 0, pushed: Vec::new() };
    let (mut slots, mut before) = (IovecSlots::default(), 0);
    let others = || {
        before = of_each_call.borrow().iter().sum();
        readings.collect()
    };
    let mut reads = RingBatch::of(&mut device, &mut slots, &file, Direction::Read);
    let ended = reads.carry_out(first, others, early);
    let flights = reads.flights;
    ended.unwrap();
    assert!(flights.iter().all(|it| matches!(it.result, Some(Ok(BLOCK)))));
    (of_each_call.take(), before)
}

#[test]
fn the_first_of_many_reads_are_submitted_early() {
    assert_eq!(submissions(7, false), (vec![7], 0));
    assert_eq!(submissions(7, true), (vec![1, 2, 2, 2], 1));
    assert_eq!(submissions(2, true), (vec![1, 1], 1));
}
