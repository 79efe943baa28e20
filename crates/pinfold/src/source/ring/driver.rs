//! The driver of a ring: the thread that hands requests to the kernel, and finishes them. Futures
//! that waited are woken together, when nothing more has completed or `ABSORBED_MAX` requests have
//! ended, and after all that waited for a slot was handed to the kernel: a future's thread often
//! preempts the driver as it is woken.
//!
//! # When the kernel refuses the ring later
//! A process may forbid itself `io_uring_enter` at any time (seccomp). From then on `start` takes
//! nothing, and plain reads carry out the requests that were taken. The kernel may still write to
//! the memory of those that it has. So the driver closes the ring and waits until the kernel has
//! released it, which it does after the last request: the ring holds the write end of a pipe, whose
//! read end then meets its end. (A forked child that lives on prolongs this wait.)

use std::collections::{HashMap, VecDeque};
use std::io::{self, PipeReader};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode, squeue, types};

use super::queue::{RingShared, WaitingRequest, lane_of};
use crate::base::sync::locks::Mutex;
use crate::base::threads::start;
use crate::base::wait;
use crate::source::descriptor::{Descriptor, Iovecs, TransferProgress};
use crate::source::pool;
use crate::source::request::{self, Request};
use crate::source::uring::{self, AbortOnUnwind};

/// Of the eventfd and of cancellations; all others are slot numbers.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

#[derive(Debug)]
struct Flight {
    job: WaitingRequest,
    progress: TransferProgress,
    cancelling: bool,
    iovecs: Iovecs,
}

pub(super) struct Driver {
    shared: Arc<RingShared>,
    ring: IoUring,
    gone: PipeReader,
    /// Pushed requests that the kernel has not seen.
    unseen: VecDeque<u64>,
    // Boxed: the kernel may read an array of iovecs until its request completes.
    flights: Vec<Option<Box<Flight>>>,
    free: Vec<usize>,
    wake_count: Box<u64>,
    wake_armed: bool,
    absorbed_max: usize,
}

enum DriverStep {
    /// Go into the kernel until something completes.
    Wait,
    /// Something was finished without the kernel.
    LookAgain,
    End,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<RingShared>,
        (ring, gone): (IoUring, PipeReader),
        absorbed_max: usize,
    ) -> Self {
        let depth = shared.depth;
        Self {
            shared,
            ring,
            gone,
            unseen: VecDeque::with_capacity(depth + 1),
            flights: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            wake_count: Box::new(0),
            wake_armed: false,
            absorbed_max,
        }
    }

    /// Ends when `close` was called and no request is left, or when the kernel refuses the ring.
    pub(super) fn run(mut self) {
        let guard = AbortOnUnwind;
        if let Err(cause) = self.serve().and_then(|()| self.quench_wake()) {
            self.do_without(&cause);
        }
        drop(guard);
    }

    /// Error: the kernel refused the ring.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.arm_wake();
            match self.take_waiting() {
                DriverStep::Wait => self.enter(1)?,
                DriverStep::LookAgain => {}
                DriverStep::End => break,
            }
            let mut absorbed = Ok(());
            wait::together(|| absorbed = self.absorb());
            absorbed?;
        }
        assert!(self.flights.iter().all(Option::is_none));
        Ok(())
    }

    /// Finishes what has completed, and hands the kernel what takes its slots, until nothing more
    /// has completed or `absorbed_max` requests are finished. Error: as [`Self::enter`].
    fn absorb(&mut self) -> io::Result<()> {
        self.shared.state.lock().asleep = false;
        let mut finished = 0;
        // Ends: each turn finishes a request, or is the last.
        loop {
            let (again, now) = self.reap();
            for (slot, flight) in again {
                self.launch(slot, flight);
            }
            finished += now;
            if now == 0 || finished >= self.absorbed_max {
                return Ok(());
            }
            let mut ended = Vec::new();
            self.launch_begun(&mut ended);
            self.finish(ended);
            if !self.unseen.is_empty() || self.ring.submission().taskrun() {
                self.enter(0)?;
            }
        }
    }

    fn do_without(mut self, cause: &io::Error) {
        // Dropped before `self` is.
        let guard = AbortOnUnwind;
        let waiting = {
            let mut state = self.shared.state.lock();
            state.refused = Some(format!("refused since: {cause}"));
            state.lanes.take_all()
        };
        let mut free: Vec<_> = self.reap().0.into_iter().map(|(_, flight)| flight.job).collect();
        free.extend(waiting);
        for user_data in std::mem::take(&mut self.unseen) {
            if user_data == WAKE {
                self.wake_armed = false;
            } else if user_data != CANCEL {
                let slot = usize::try_from(user_data).expect("a slot number");
                free.push(self.flights[slot].take().expect("it was launched").job);
            }
        }
        let mut readers = read_plainly(free);
        let Self { ring, gone, flights, wake_armed, wake_count, .. } = self;
        drop(ring);
        let in_hand: Vec<_> = flights.into_iter().flatten().collect();
        // A panic during the drop of `in_hand` aborts, too.
        let guard_in_hand = AbortOnUnwind;
        if wake_armed || !in_hand.is_empty() {
            uring::wait_for_release(gone);
        }
        drop((guard_in_hand, guard));
        drop(wake_count);
        readers.extend(read_plainly(in_hand.into_iter().map(|flight| flight.job).collect()));
        readers.into_iter().for_each(pool::join_unless_self);
    }

    fn take_waiting(&mut self) -> DriverStep {
        let mut state = self.shared.state.lock();
        if state.closing && state.taken == 0 {
            return DriverStep::End;
        }
        let stops = std::mem::take(&mut state.stops);
        let stopped = if stops { state.lanes.take_stopped() } else { Vec::new() };
        state.asleep = true;
        drop(state);
        let mut ended: Vec<Ended> = stopped
            .into_iter()
            .map(|(_, request)| (None, request, Err(request::timed_out())))
            .collect();
        self.launch_begun(&mut ended);
        if stops {
            self.cancel_stopped();
        }
        if ended.is_empty() {
            return DriverStep::Wait;
        }
        self.finish(ended);
        // They may have been the last, and `close` may have sent its wake-up already.
        DriverStep::LookAgain
    }

    fn launch_begun(&mut self, ended: &mut Vec<Ended>) {
        let begun = std::mem::take(&mut self.shared.state.lock().lanes.begun);
        for (file, request) in begun {
            let (direction, offset) = (request.direction(), request.offset());
            // The errors that it would meet later.
            let check = || file.check(direction, offset, request.extents());
            if let Err(cause) = request.check_stopped().and_then(|()| check()) {
                ended.push((Some(file), request, Err(cause)));
                continue;
            }
            let (progress, iovecs) = (TransferProgress::default(), Iovecs::new());
            let flight = Flight { job: (file, request), progress, cancelling: false, iovecs };
            let slot = self.free.pop().expect("no more were taken");
            self.launch(slot, Box::new(flight));
        }
    }

    fn launch(&mut self, slot: usize, mut flight: Box<Flight>) {
        let Flight { job: (file, request), progress, iovecs, .. } = &mut *flight;
        iovecs.fill(request.extents(), progress.done);
        let (direction, end) = (request.direction(), request.offset() + request.bytes() as u64);
        let fd = progress.descriptor(file, direction, end);
        let offset = request.offset() + progress.done as u64;
        let entry = uring::transfer(file, fd, direction, offset, iovecs);
        self.push(&entry.user_data(slot as u64));
        assert!(self.flights[slot].replace(flight).is_none());
    }

    /// They complete as usual: soon if they wait in the kernel, else when the device is done.
    fn cancel_stopped(&mut self) {
        let mut slots = Vec::new();
        for (slot, flight) in self.flights.iter_mut().enumerate() {
            let Some(flight) = flight else { continue };
            if flight.job.1.is_stopped() && !std::mem::replace(&mut flight.cancelling, true) {
                slots.push(slot);
            }
        }
        for slot in slots {
            // The kernel sees this before the slot is used again.
            let cancel = opcode::AsyncCancel::new(slot as u64).build();
            self.push(&cancel.user_data(CANCEL));
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what the entry points to is owned by `self.flights` or `self.wake_count` until
        // its completion was seen.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the submission queue has room for all slots and the wake-up");
        self.unseen.push_back(entry.get_user_data());
    }

    fn arm_wake(&mut self) {
        if std::mem::replace(&mut self.wake_armed, true) {
            return;
        }
        let fd = types::Fd(self.shared.wake.as_raw_fd());
        let to = std::ptr::from_mut(&mut *self.wake_count).cast();
        let bytes = size_of::<u64>() as u32;
        self.push(&opcode::Read::new(fd, to, bytes).build().user_data(WAKE));
    }

    /// The kernel must be done with `wake_count` before it is freed.
    fn quench_wake(&mut self) -> io::Result<()> {
        self.shared.wake_driver();
        // Ends: the armed read of the eventfd completes.
        while self.wake_armed {
            self.enter(1)?;
            let (again, _) = self.reap();
            assert!(again.is_empty(), "nothing else is in flight");
        }
        Ok(())
    }

    fn enter(&mut self, completions: usize) -> io::Result<()> {
        let entered = uring::enter(&mut self.ring, completions);
        let left = self.ring.submission().len();
        self.unseen.drain(..self.unseen.len() - left);
        entered
    }

    /// Returns those that must go to the kernel once more, and how many it has finished.
    fn reap(&mut self) -> (Vec<(usize, Box<Flight>)>, usize) {
        // Entries that come meanwhile are seen next time.
        let seen: Vec<_> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        let (mut again, mut landed) = (Vec::new(), Vec::new());
        for (user_data, result) in seen {
            if user_data == WAKE {
                self.wake_armed = false;
            } else if user_data != CANCEL {
                let slot = usize::try_from(user_data).expect("a slot number");
                match self.landed(slot, result) {
                    Ok(ended) => landed.push(ended),
                    Err(flight) => again.push((slot, flight)),
                }
            }
        }
        let finished = landed.len();
        self.finish(landed);
        (again, finished)
    }

    /// The flight if it has to go on.
    fn landed(&mut self, slot: usize, result: i32) -> Result<Ended, Box<Flight>> {
        let mut flight = self.flights[slot].take().expect("a completion of a slot in flight");
        let Flight { job: (file, request), progress, .. } = &mut *flight;
        let (direction, asked) = (request.direction(), request.bytes());
        let ended = progress.landed(file, direction, asked, uring::told(result));
        // A partial transfer must not look like the end of the file.
        let stopped = || request.check_stopped().err().map(Err);
        let Some(result) = ended.or_else(stopped) else { return Err(flight) };
        self.free.push(slot);
        let (file, request) = flight.job;
        Ok((Some(file), request, result))
    }

    /// Gives back the slots before it calls the completions, which may start the next reads.
    fn finish(&self, ended: Vec<Ended>) {
        if ended.is_empty() {
            return;
        }
        let mut state = self.shared.state.lock();
        state.taken -= ended.len();
        for (file, request, _) in &ended {
            if let Some(file) = file {
                state.lanes.end(lane_of(file), request.is_awaited());
            }
        }
        drop(state);
        wait::together(|| {
            for (_file, request, result) in ended {
                request.finish(result);
            }
        });
    }
}

/// With the file of which it had a slot, if it had one.
type Ended = (Option<Arc<Descriptor>>, Request, io::Result<usize>);

/// Carries out the remaining requests, on a thread for each file, so that none waits for another's.
/// If a thread cannot be started, its requests end with that error.
fn read_plainly(left: Vec<WaitingRequest>) -> Vec<JoinHandle<()>> {
    let mut by_file: HashMap<*const Descriptor, Vec<WaitingRequest>> = HashMap::new();
    for (file, request) in left {
        by_file.entry(Arc::as_ptr(&file)).or_default().push((file, request));
    }
    let read = |requests: Vec<WaitingRequest>| {
        for (file, request) in requests {
            let (direction, offset) = (request.direction(), request.offset());
            let carry_out = || file.transfer(direction, offset, request.extents());
            let result = request.check_stopped().and_then(|()| carry_out());
            request.finish(result);
        }
    };
    let spawn = |requests| {
        let kept = Arc::new(Mutex::new(requests));
        let taken = kept.clone();
        let started = start("pinfold-read", move || read(std::mem::take(&mut *taken.lock())));
        if let Err(why) = &started {
            for (_file, request) in std::mem::take(&mut *kept.lock()) {
                request.finish(Err(why.clone().into()));
            }
        }
        started.ok()
    };
    by_file.into_values().filter_map(spawn).collect()
}
