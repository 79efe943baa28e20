//! Reads or writes that the calling thread waits for, all at once: by an `io_uring` of its own. The
//! cache's ring (`ring/`) costs several switches of threads for a batch; here, one system call (of
//! reads up to three more where the device is idle) submits all, 64 at most, and waits for them.
//!
//! *Early submissions.* The kernel notifies a device when a call has submitted all of its reads. An
//! idle device would rather begin with the first: so that one is submitted before the others are
//! prepared, and then two at a time, up to [`EARLY`].
//!
//! *A thread's ring* is made for its first such batch, serves files of all caches, and ends with
//! the thread. Where it cannot be made, or fails, the caller does without from then on. A forked
//! child does not see the queues, and makes a ring of its own.
//!
//! *The memory* is the caller's: the call returns when the kernel is done with all of it, and does
//! not unwind before. If the kernel refuses to be entered any more (seccomp), the ring is closed,
//! and waited for as in `ring/driver.rs`. What has no result by then is done by `preadv` or `pwritev`.

use std::cell::RefCell;
use std::io::{self, PipeReader};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::IoUring;

use super::descriptor::{Descriptor, Iovecs, TransferProgress};
use super::extent::{self, Extent};
use super::meter::Meter;
use super::request::{self, Direction};
use super::under_way::UnderWay;
use super::uring::{self, AbortOnUnwind};
use crate::base::fork::Birth;
use crate::base::mutant::{self, Mutant};

pub(super) const TRANSFERS_MAX: usize = 64;

const EARLY: [usize; 3] = [1, 3, 5];

/// With at most so many requests and calls under way, the device is taken to have little to do.
const FEW: u64 = 1;

/// Bytes to read or to write: from this offset on, to or from this memory.
pub(crate) type Transfer<'a> = (u64, Vec<Extent<'a>>);

enum Own {
    NotYet,
    Has(Box<OfThread>),
    /// It is in use further out, or there is none to be had.
    Without,
}

/// With the pipe that ends when the kernel has released the ring, and what reads in flight need.
struct OfThread {
    kernel: ManuallyDrop<(IoUring, PipeReader)>,
    slots: IovecSlots,
    birth: Birth,
}

impl OfThread {
    fn new() -> Option<Self> {
        let kernel = ManuallyDrop::new(uring::set_up(TRANSFERS_MAX).ok()?);
        Some(OfThread { kernel, slots: IovecSlots::default(), birth: Birth::here() })
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

pub(super) struct IovecSlots {
    iovecs: Box<[Iovecs]>,
    free: Vec<usize>,
}

impl Default for IovecSlots {
    fn default() -> Self {
        let iovecs = (0..TRANSFERS_MAX).map(|_| Iovecs::new()).collect();
        IovecSlots { iovecs, free: (0..TRANSFERS_MAX).rev().collect() }
    }
}

pub(super) struct BatchFlight<'a> {
    transfer: Transfer<'a>,
    slot: usize,
    progress: TransferProgress,
    pub(super) result: Option<io::Result<usize>>,
}

/// A file, one of its descriptors, and which way.
pub(super) type By<'a> = (&'a Descriptor, RawFd, Direction);

/// The kernel by a ring, or a test's device, with room for [`TRANSFERS_MAX`] transfers.
pub(super) trait Carrier {
    /// Takes the transfer number `n`, from `at` of the file on, by `by`.
    ///
    /// # Safety
    /// The iovecs stay in place, and their memory is the carrier's, until completion or its end.
    unsafe fn push(&mut self, by: By<'_>, n: usize, at: u64, iovecs: &Iovecs);

    /// Submits what was pushed, waits for so many completions, and returns the number and the
    /// result of each that has come, in any order: fewer or more, perhaps none. Error: it takes no
    /// more calls; it may still have some of the reads.
    fn enter(&mut self, completions: usize) -> io::Result<Vec<(usize, i32)>>;
}

impl Carrier for IoUring {
    unsafe fn push(&mut self, (file, fd, way): By<'_>, n: usize, at: u64, iovecs: &Iovecs) {
        let entry = uring::transfer(file, fd, way, at, iovecs).user_data(n as u64);
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.submission().push(&entry) };
        assert!(pushed.is_ok(), "the submission queue has room for all");
    }

    fn enter(&mut self, completions: usize) -> io::Result<Vec<(usize, i32)>> {
        uring::enter(self, completions)?;
        Ok(self.completion().map(|entry| (entry.user_data() as usize, entry.result())).collect())
    }
}

pub(crate) struct OwnRing<'b> {
    own: Box<OfThread>,
    file: Arc<Descriptor>,
    under_way: &'b UnderWay,
    meter: &'b Meter,
}

/// `None` if the thread has no ring, or uses it further out.
pub(super) fn take<'b>(
    file: Arc<Descriptor>,
    under_way: &'b UnderWay,
    meter: &'b Meter,
) -> Option<OwnRing<'b>> {
    // Fails while the thread ends. While it is in use here, there is none.
    let own = OWN.try_with(|own| own.replace(Own::Without)).ok()?;
    let own = match own {
        Own::Has(own) if own.birth.is_here() => own,
        Own::NotYet | Own::Has(_) => Box::new(OfThread::new()?),
        Own::Without => return None,
    };
    Some(OwnRing { own, file, under_way, meter })
}

impl OwnRing<'_> {
    /// As [`Backing::read`](super::Backing::read) for `first` and `others` at the same time.
    /// `others` is called once, perhaps when the first read is under way: so it must wait for
    /// nothing but locks. If it panics, the process is aborted. Cost: one system call for each
    /// [`TRANSFERS_MAX`] reads, and up to three more where there is little else to do.
    pub(crate) fn read_all<'a>(
        self,
        first: Option<Transfer<'a>>,
        others: impl FnOnce() -> Vec<Transfer<'a>>,
    ) -> Vec<io::Result<usize>> {
        let meter = self.meter;
        let early = self.under_way.count() <= FEW;
        let (took, read) = self.carry_out(Direction::Read, first, others, early);
        let settle = |((_, extents), result): (Transfer<'a>, _)| {
            let result = request::settle(&extents, result);
            meter.read.count(took, extent::total_bytes(&extents), &result);
            result
        };
        read.into_iter().map(settle).collect()
    }

    /// Writes all of them, at the same time.
    pub(super) fn write_all(self, writes: Vec<Transfer<'_>>) -> Vec<io::Result<()>> {
        let meter = self.meter;
        let (took, written) = self.carry_out(Direction::Write, None, || writes, false);
        let settle = |((_, extents), result): (Transfer<'_>, io::Result<usize>)| {
            let bytes = extent::total_bytes(&extents);
            let all =
                |done| if done < bytes { Err(request::underlong(done, bytes)) } else { Ok(done) };
            let result = result.and_then(all);
            meter.write.count(took, bytes, &result);
            result.map(drop)
        };
        written.into_iter().map(settle).collect()
    }

    /// Returns how long all of it took, and what came of each.
    fn carry_out<'a>(
        self,
        way: Direction,
        first: Option<Transfer<'a>>,
        others: impl FnOnce() -> Vec<Transfer<'a>>,
        early: bool,
    ) -> (Duration, Vec<(Transfer<'a>, io::Result<usize>)>) {
        let OwnRing { mut own, file, under_way, .. } = self;
        let _moves = under_way.begin();
        let since = Instant::now();
        let OfThread { kernel, slots, .. } = &mut *own;
        let mut batch = RingBatch::of(&mut kernel.0, slots, &file, way);
        let ended = batch.carry_out(first, others, early);
        let flights = batch.flights;
        match ended {
            Ok(()) => {
                // Else the thread ends, and the ring with it.
                let _ = OWN.try_with(|place| place.replace(Own::Has(own)));
            }
            Err(_) => do_without(*own),
        }
        let took = since.elapsed();
        let end = |BatchFlight { transfer: (offset, extents), result, .. }: BatchFlight<'a>| {
            let result = result.unwrap_or_else(|| file.transfer(way, offset, &extents));
            ((offset, extents), result)
        };
        (took, flights.into_iter().map(end).collect())
    }
}

pub(super) struct RingBatch<'c, 'a, C> {
    carrier: &'c mut C,
    slots: &'c mut IovecSlots,
    file: &'c Descriptor,
    way: Direction,
    pub(super) flights: Vec<BatchFlight<'a>>,
    /// Those before this one are in flight, or have a result.
    launched: usize,
    in_flight: usize,
}

impl<'c, 'a, C: Carrier> RingBatch<'c, 'a, C> {
    /// All `slots` are free.
    pub(super) fn of(
        carrier: &'c mut C,
        slots: &'c mut IovecSlots,
        file: &'c Descriptor,
        way: Direction,
    ) -> Self {
        RingBatch { carrier, slots, file, way, flights: Vec::new(), launched: 0, in_flight: 0 }
    }

    /// If the carrier takes no more calls, some have no result, and it may still have them.
    pub(super) fn carry_out(
        &mut self,
        first: Option<Transfer<'a>>,
        others: impl FnOnce() -> Vec<Transfer<'a>>,
        early: bool,
    ) -> io::Result<()> {
        let _guard = AbortOnUnwind;
        let flight = |transfer| {
            let (slot, progress, result) = Default::default();
            BatchFlight { transfer, slot, progress, result }
        };
        self.flights.extend(first.map(flight));
        let mut entered = Ok(());
        if early && !self.flights.is_empty() {
            self.launch_up_to(self.flights.len());
            entered = self.enter(0);
        }
        self.flights.extend(others().into_iter().map(flight));
        entered?;
        for end in EARLY {
            if early && (self.launched + 1..self.flights.len()).contains(&end) {
                self.launch_up_to(end);
                self.enter(0)?;
            }
        }
        self.launch_up_to(self.flights.len());
        // Ends: each turn sees a completion, or was interrupted; the kernel completes each.
        while self.in_flight > 0 {
            self.enter(self.in_flight)?;
            self.launch_up_to(self.flights.len());
        }
        Ok(())
    }

    fn launch_up_to(&mut self, end: usize) {
        while self.launched < end && self.in_flight < TRANSFERS_MAX {
            let flight = &mut self.flights[self.launched];
            let (offset, extents) = &flight.transfer;
            match self.file.check(self.way, *offset, extents) {
                Ok(()) => {
                    flight.slot = self.slots.free.pop().expect("each in flight has one");
                    self.in_flight += 1;
                    self.launch(self.launched);
                }
                Err(cause) => flight.result = Some(Err(cause)),
            }
            self.launched += 1;
        }
    }

    fn launch(&mut self, n: usize) {
        let BatchFlight { transfer: (offset, extents), slot, progress, .. } = &mut self.flights[n];
        let end = *offset + extent::total_bytes(extents) as u64;
        let fd = progress.descriptor(self.file, self.way, end);
        let iovecs = &mut self.slots.iovecs[*slot];
        iovecs.fill(extents, progress.done);
        let by = (self.file, fd, self.way);
        // SAFETY: the memory is this call's, and the iovecs are in a box that is neither moved out
        // of nor freed, until the completion was seen or the kernel has released the ring.
        unsafe { self.carrier.push(by, n, *offset + progress.done as u64, iovecs) };
    }

    fn enter(&mut self, completions: usize) -> io::Result<()> {
        for (n, result) in self.carrier.enter(completions)? {
            let first = || self.flights.iter().position(|it| it.result.is_none()).unwrap_or(n);
            let n = if mutant::on(Mutant::LandInTurn) { first() } else { n };
            let flight = &mut self.flights[n];
            let (asked, got) = (extent::total_bytes(&flight.transfer.1), uring::told(result));
            let short = got.is_ok() && mutant::on(Mutant::ShortIsWhole);
            flight.result = flight.progress.landed(self.file, self.way, asked, got);
            if short {
                flight.result = Some(Ok(flight.progress.done));
            }
            if flight.result.is_some() {
                self.slots.free.push(flight.slot);
                self.in_flight -= 1;
            } else {
                self.launch(n);
            }
        }
        Ok(())
    }
}

fn do_without(mut own: OfThread) {
    let guard = AbortOnUnwind;
    // SAFETY: it is not used again.
    let (ring, gone) = unsafe { ManuallyDrop::take(&mut own.kernel) };
    let slots = std::mem::take(&mut own.slots);
    std::mem::forget(own);
    drop(ring);
    uring::wait_for_release(gone);
    drop(slots);
    drop(guard);
}
