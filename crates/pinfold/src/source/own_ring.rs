//! Reads that the calling thread waits for, all at once: by an `io_uring` of the thread's own.
//!
//! The cache's ring (`ring/`) has a thread of its own. It is woken for the submission and for
//! completions, and then wakes those that wait: several switches of threads for a batch. Here, one
//! system call submits all reads of a batch and waits for all of them; the thread sleeps once.
//!
//! # A thread's ring
//! It is made for the thread's first such batch, serves files of all caches, and ends with the
//! thread. It takes two descriptors. Where it cannot be made, or fails, the caller does without,
//! and it is not tried again in this thread. A forked child does not see the queues, and makes a
//! ring of its own.
//!
//! # Who owns the memory
//! The caller, who lends it for the time of the call: the call returns when the kernel is done with
//! all reads, and does not unwind before. If the kernel refuses to be entered any more (seccomp),
//! completions do not appear; then the ring is closed, and waited for until the kernel has released
//! it, as in `ring/driver.rs`. What has no result by then is read by `preadv`.
//!
//! Called by: `backing.rs`.

use std::cell::RefCell;
use std::io::{self, PipeReader};
use std::mem::ManuallyDrop;

use io_uring::IoUring;

use super::descriptor::{Descriptor, Iovecs};
use super::extent::{self, Extent};
use super::request::Direction;
use super::uring::{self, AbortOnUnwind};
use crate::fork::Birth;
use crate::mutant::{self, Mutant};

/// The most reads of one call.
pub(super) const READS_MAX: usize = 64;

/// The offset of a read, and the memory that it fills.
pub(crate) type Reading<'a> = (u64, Vec<Extent<'a>>);

/// The ring of one thread.
enum Own {
    NotYet,
    Has(Box<OfThread>),
    /// It is in use further out, or there is none to be had.
    Without,
}

/// A ring, and the pipe that ends when the kernel has released it.
struct OfThread {
    kernel: ManuallyDrop<(IoUring, PipeReader)>,
    birth: Birth,
}

impl OfThread {
    fn new() -> Option<Self> {
        let kernel = ManuallyDrop::new(uring::set_up(READS_MAX).ok()?);
        Some(OfThread { kernel, birth: Birth::here() })
    }
}

impl Drop for OfThread {
    fn drop(&mut self) {
        // In a forked child, something else may be where the queues were.
        if self.birth.is_here() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.kernel) };
        }
    }
}

std::thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own::NotYet) };
}

/// One of the reads.
pub(super) struct Flight {
    iovecs: Iovecs,
    done: usize,
    retries: u8,
    pub(super) result: Option<io::Result<usize>>,
}

/// What carries reads out: the kernel by a ring, or a test's device. It has room for
/// [`READS_MAX`] of them.
pub(super) trait Carrier {
    /// Takes the read number `n`, from `at` of `file` on.
    ///
    /// # Safety
    /// The iovecs stay where they are, and their memory is the carrier's, until the completion was
    /// seen or the carrier is gone.
    unsafe fn push(&mut self, file: &Descriptor, n: usize, at: u64, iovecs: &Iovecs);

    /// Waits for so many completions, and returns the number and the result of each that has come:
    /// fewer, perhaps none. Each read that was pushed completes once, in any order.
    ///
    /// # Errors
    /// It takes no more calls; it may still have some of the reads.
    fn enter(&mut self, completions: usize) -> io::Result<Vec<(usize, i32)>>;
}

impl Carrier for IoUring {
    unsafe fn push(&mut self, file: &Descriptor, n: usize, at: u64, iovecs: &Iovecs) {
        let entry = uring::transfer(file, Direction::Read, at, iovecs).user_data(n as u64);
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.submission().push(&entry) };
        assert!(pushed.is_ok(), "the submission queue has room for all reads");
    }

    fn enter(&mut self, completions: usize) -> io::Result<Vec<(usize, i32)>> {
        uring::enter(self, completions)?;
        // Bounded by the reads in flight.
        Ok(self.completion().map(|entry| (entry.user_data() as usize, entry.result())).collect())
    }
}

/// Carries out all `reads`, at most [`READS_MAX`]: the number of bytes or the error of each. `None`
/// if the thread has no ring: nothing was done.
pub(super) fn read_all(file: &Descriptor, reads: &[Reading<'_>]) -> Option<Vec<io::Result<usize>>> {
    assert!(reads.len() <= READS_MAX, "more reads than the queue has room for");
    // Fails while the thread ends. While it is in use here, there is none.
    let own = OWN.try_with(|own| own.replace(Own::Without)).ok()?;
    let mut own = match own {
        Own::Has(own) if own.birth.is_here() => own,
        Own::NotYet | Own::Has(_) => Box::new(OfThread::new()?),
        Own::Without => return None,
    };
    let mut flights = Vec::with_capacity(reads.len());
    let entered = read_through(&mut own.kernel.0, file, reads, &mut flights);
    match entered {
        Ok(()) => {
            // Else the thread ends, and the ring with it.
            let _ = OWN.try_with(|place| place.replace(Own::Has(own)));
        }
        Err(_) => do_without(*own),
    }
    let result = |(flight, (offset, extents)): (Flight, &Reading<'_>)| {
        flight.result.unwrap_or_else(|| file.read(*offset, extents))
    };
    Some(flights.into_iter().zip(reads).map(result).collect())
}

/// # Errors
/// As [`Carrier::enter`].
pub(super) fn read_through(
    carrier: &mut impl Carrier,
    file: &Descriptor,
    reads: &[Reading<'_>],
    flights: &mut Vec<Flight>,
) -> io::Result<()> {
    let guard = AbortOnUnwind;
    let mut waiting = 0;
    for (offset, extents) in reads {
        let result = file.check(*offset, extents).err().map(Err);
        flights.push(Flight { iovecs: Iovecs::new(), done: 0, retries: 0, result });
    }
    for (n, (flight, read)) in flights.iter_mut().zip(reads).enumerate() {
        if flight.result.is_none() {
            launch(carrier, file, read, n, flight);
            waiting += 1;
        }
    }
    // Ends: each turn sees a completion, or was interrupted; the kernel completes every read.
    while waiting > 0 {
        for (n, result) in carrier.enter(waiting)? {
            let first = || flights.iter().position(|it| it.result.is_none()).unwrap_or(n);
            let n = if mutant::on(Mutant::LandInTurn) { first() } else { n };
            let (flight, read) = (&mut flights[n], &reads[n]);
            if landed(file, read, flight, result) {
                waiting -= 1;
            } else {
                launch(carrier, file, read, n, flight);
            }
        }
    }
    drop(guard);
    Ok(())
}

fn launch(
    carrier: &mut impl Carrier,
    file: &Descriptor,
    (offset, extents): &Reading<'_>,
    n: usize,
    flight: &mut Flight,
) {
    flight.iovecs.fill(extents, flight.done);
    let at = offset + flight.done as u64;
    // SAFETY: the memory is lent to this call, and the iovecs are in an array that is neither moved
    // nor freed; both until the completion was seen or the kernel has released the ring.
    unsafe { carrier.push(file, n, at, &flight.iovecs) };
}

/// What came of the read; false if it has to go to the kernel once more.
fn landed(file: &Descriptor, (_, extents): &Reading<'_>, flight: &mut Flight, result: i32) -> bool {
    let result = if let Ok(got) = usize::try_from(result) {
        flight.done += got;
        let whole = flight.done >= extent::total_bytes(extents) || file.ended(flight.done, got);
        if !whole && !mutant::on(Mutant::ShortIsWhole) {
            return false;
        }
        Ok(flight.done)
    } else {
        if uring::is_given_back(result) && flight.retries < uring::RETRIES_MAX {
            flight.retries += 1;
            return false;
        }
        Err(io::Error::from_raw_os_error(-result))
    };
    flight.result = Some(result);
    true
}

/// Closes the ring, and waits until the kernel is done with what it has.
fn do_without(mut own: OfThread) {
    let guard = AbortOnUnwind;
    // SAFETY: it is not used again.
    let (ring, gone) = unsafe { ManuallyDrop::take(&mut own.kernel) };
    std::mem::forget(own);
    drop(ring);
    uring::wait_for_release(gone);
    drop(guard);
}
