//! Requests by `io_uring`: one ring per cache, driven by one thread.
//!
//! # Submitters and driver
//! A submitter puts requests in `State` under the mutex and, if the driver is asleep,
//! writes to an eventfd that the ring itself reads. The driver takes all that have a slot, hands
//! them to the kernel with one system call, and in the same call waits for the next completion.
//!
//! Why not submit from the reader's thread, under a lock: the kernel completes a request in the
//! task that submitted it (by interrupting it, or when its present system call ends), and
//! cancels what it has punted when that task exits. With a driver, only the driver is disturbed,
//! and the cheaper single-issuer mode of the ring can be used.
//!
//! # Bounds
//! The kernel has at most `depth` requests, each in a slot. A file may have one slot, and more as
//! long as it has fewer than are free. So one file alone has half of them, and a device that hangs
//! leaves others as much as it has. A request is accepted in two cases only:
//!
//! 1. its file may have one more slot: it gets that;
//! 2. its file has a slot already, so it waits only for reads of its own file. Those that somebody
//!    waits for go first, but for one in eight (`waiting.rs`), and `start` takes any number of
//!    them: their memory bounds them.
//!
//! Of others `start` takes some as long as `taken`, which counts requests between `start` and
//! `finish`, is below `ahead`. It gives the rest back (`Start::Full`): what somebody waits for
//! finds the device less busy.
//!
//! The submission queue holds `depth` requests, a cancellation of each, and the wake-up; the
//! completion queue twice as many. So neither can be full.
//!
//! # States of the driver (under the mutex)
//! `awake` -> `asleep`: nothing waits; it goes into the kernel. `asleep` -> `awake`: a submitter
//! or `close` found it so and wrote to the eventfd, or a completion came. So a request put in
//! while `awake` is seen before the driver sleeps, and one put in while `asleep` wakes it.
//!
//! # Wake-ups
//! The futures that waited for what has ended are woken together, when nothing more has completed
//! or [`ABSORBED_MAX`] requests have ended, and after all that waited for a slot was handed to the
//! kernel. A future's thread often preempts the driver as it is woken: the device then has its
//! work, and the thread finds many pages at once.
//!
//! # When the kernel refuses the ring later
//! A process may forbid itself `io_uring_enter` at any time (seccomp). From then on `start` takes
//! nothing ([`Start::Unsupported`]), and plain reads carry out the requests that were taken, on a
//! thread for each file. Requests that the kernel has not seen are carried out at once. The kernel
//! may still write to the memory of those that it has, and in this mode of the ring their
//! completions appear only in `io_uring_enter`. So the driver closes the ring and waits until the
//! kernel has released it, which it does after the last request: the ring holds the write end of a
//! pipe, and the read end then meets its end of file. (A forked child that lives on keeps the
//! ring's descriptor open, which prolongs this wait.)
//!
//! Called by: `disk.rs` (start) and `engine.rs` (life).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sync::locks::Mutex;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::EventfdFlags;

use super::descriptor::{Descriptor, Iovecs};
use super::request::{Direction, Request};
use super::waiting::Waiting;
use super::{Start, pool};
use crate::mutant::{self, Mutant};
use crate::wait;

/// Mark the completions of the eventfd and of cancellations; all others are slot numbers.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
/// How often one request is tried again after the kernel gave it back undone.
pub(super) const RETRIES_MAX: u8 = 8;
/// The driver wakes the futures that waited for what it has finished after so many requests at the
/// latest.
pub(super) const ABSORBED_MAX: usize = 64;
/// Pause after the kernel had no memory to take requests.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(1);

/// The submitters' side of a ring.
#[derive(Debug)]
pub(super) struct Ring {
    shared: Arc<Shared>,
    driver: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake: OwnedFd,
    depth: usize,
    ahead: usize,
}

#[derive(Debug)]
struct State {
    // Mostly of one or two.
    files: BTreeMap<Key, Served>,
    /// Requests with a slot that the driver has not seen.
    begun: VecDeque<Left>,
    /// Slots that no request has.
    free: usize,
    taken: usize,
    asleep: bool,
    closing: bool,
    /// A request in the kernel may have been asked to stop.
    stops: bool,
    /// The error by which the kernel refused the ring.
    refused: Option<String>,
}

/// Where a file's descriptor is. A file is listed only while it has a request, which has a share in
/// its descriptor.
type Key = usize;

fn key(file: &Arc<Descriptor>) -> Key {
    Arc::as_ptr(file).addr()
}

/// A file that has slots. Only such a file has requests that wait for one.
#[derive(Debug, Default)]
struct Served {
    slots: usize,
    waiting: Waiting<Left>,
}

impl State {
    /// Whether the file may have one more slot; see the head of the file.
    fn may_have(&self, file: Key) -> bool {
        let slots = self.files.get(&file).map_or(0, |served| served.slots);
        slots < self.free
    }

    fn begin(&mut self, left: Left) {
        self.free -= 1;
        self.files.entry(key(&left.0)).or_default().slots += 1;
        self.begun.push_back(left);
    }

    /// A slot of the file is free: requests that wait get it, of this file or of another one.
    fn give_back(&mut self, file: Key) {
        self.free += 1;
        self.files.get_mut(&file).expect("it had a slot").slots -= 1;
        // Ends: each turn takes a slot.
        while let Some(file) = self.in_want(file) {
            let served = self.files.get_mut(&file).expect("it was found there");
            let left = served.waiting.pop().expect("one waits");
            self.begin(left);
        }
        if self.files[&file].slots == 0 {
            self.files.remove(&file);
        }
    }

    /// A file with requests that wait which may have a slot: `first`, or any.
    fn in_want(&self, first: Key) -> Option<Key> {
        let waits = |file: &Key| !self.files[file].waiting.is_empty() && self.may_have(*file);
        Some(first).filter(waits).or_else(|| self.files.keys().copied().find(waits))
    }

    /// All requests that the driver has not seen, and that wait.
    fn take_all(&mut self) -> Vec<Left> {
        let mut all: Vec<_> = std::mem::take(&mut self.begun).into();
        for served in self.files.values_mut() {
            all.extend(std::mem::take(&mut served.waiting).into_all());
        }
        all
    }

    /// Those that wait and were asked to stop.
    fn take_stopped(&mut self) -> Vec<Left> {
        let mut stopped = Vec::new();
        for served in self.files.values_mut() {
            stopped.extend(served.waiting.take_if(|left| left.1.stop().is_some()));
        }
        stopped
    }
}

impl Ring {
    /// Sets up a ring for at most `depth` requests at a time, of which at most `ahead` are taken
    /// for nobody, and its thread.
    ///
    /// # Errors
    /// The kernel's error: the system call may be missing (`ENOSYS`), forbidden (`EPERM`), or over
    /// a limit (`ENOMEM`, `EMFILE`).
    pub(super) fn open(depth: usize, ahead: usize) -> io::Result<Self> {
        assert!(depth > 0);
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let state = State {
            files: BTreeMap::new(),
            begun: VecDeque::new(),
            free: depth,
            taken: 0,
            asleep: false,
            closing: false,
            stops: false,
            refused: None,
        };
        let ahead = ahead.min(depth);
        let shared = Arc::new(Shared { state: Mutex::new(state), wake, depth, ahead });
        // A single-issuer ring belongs to the thread that makes it.
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let of_driver = Arc::clone(&shared);
        let endless = mutant::on(Mutant::AbsorbsAll);
        let absorbed_max = if endless { usize::MAX } else { ABSORBED_MAX };
        // The submission queue's entries; see "Bounds".
        let entries = 2 * depth + 1;
        let driver =
            std::thread::Builder::new().name("pinfold-ring".into()).spawn(move || match set_up(
                entries,
            ) {
                Ok(kernel) => {
                    tell.send(Ok(())).expect("`open` waits for this");
                    Driver::new(of_driver, kernel, absorbed_max).run();
                }
                Err(cause) => tell.send(Err(cause)).expect("`open` waits for this"),
            })?;
        told.recv().map_err(|_| io::Error::other("the ring's thread died at its start"))??;
        Ok(Self { shared, driver: Mutex::new(Some(driver)) })
    }

    /// Why the kernel refused the ring, if it has.
    pub(super) fn refused(&self) -> Option<String> {
        self.shared.state.lock().refused.clone()
    }

    /// Takes requests off the front of `batch`, as many as the limits allow.
    pub(super) fn start(&self, file: &Arc<Descriptor>, batch: &mut Vec<Request>) -> Start {
        let mut state = self.shared.state.lock();
        if state.refused.is_some() {
            return Start::Unsupported;
        }
        let (mut taken, mut stoppable) = (0, Vec::new());
        let mut rest = std::mem::take(batch).into_iter();
        // Ends: each turn takes a request, or is the last.
        while let Some(request) = rest.next() {
            let begins = state.may_have(key(file));
            let waits = state.files.contains_key(&key(file));
            let fits = request.is_awaited() || state.taken < self.shared.ahead;
            if state.closing || !fits || !(begins || waits) {
                batch.push(request);
                batch.extend(rest);
                break;
            }
            stoppable.extend(request.stoppable());
            let left = (Arc::clone(file), request);
            if begins {
                state.begin(left);
            } else {
                let served = state.files.get_mut(&key(file)).expect("it has slots");
                served.waiting.push(left);
            }
            state.taken += 1;
            taken += 1;
        }
        let wake = taken > 0 && std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.shared.wake_driver();
        }
        // The requests are queued and the lock is free, so `tell` may run at once.
        for control in stoppable {
            let shared = Arc::downgrade(&self.shared);
            control.on_stop(Box::new(move || {
                if let Some(shared) = shared.upgrade() {
                    shared.stop_some();
                }
            }));
        }
        if batch.is_empty() { Start::Started } else { Start::Full }
    }

    /// Accepts no more requests, and waits until all accepted ones are finished.
    pub(super) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        state.asleep = false;
        drop(state);
        self.shared.wake_driver();
        let driver = self.driver.lock().take();
        if let Some(driver) = driver {
            pool::join_unless_self(driver);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Makes the driver look for requests that were asked to stop.
    fn stop_some(&self) {
        let mut state = self.state.lock();
        state.stops = true;
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.wake_driver();
        }
    }

    fn wake_driver(&self) {
        let woken =
            rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1_u64.to_ne_bytes()));
        assert!(woken.is_ok(), "writing to the ring's eventfd failed: {woken:?}");
    }
}

/// A ring in the best mode that this kernel has, for the calling thread, and a pipe that ends when
/// the kernel has released it. Its submission queue has at least so many entries, its completion
/// queue twice as many.
pub(super) fn set_up(entries: usize) -> io::Result<(IoUring, PipeReader)> {
    let entries = u32::try_from(entries).map_err(io::Error::other)?.next_power_of_two();
    // A forked child must not see the queues.
    let mut best = IoUring::builder();
    best.dontfork().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let ring = match best.build(entries) {
        Ok(ring) => ring,
        // Before Linux 6.1 these flags are unknown.
        Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().dontfork().build(entries)?
        }
        Err(cause) => return Err(cause),
    };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Readv::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::AsyncCancel::CODE,
    ];
    if !needed.iter().all(|&code| probe.is_supported(code)) {
        let text = "this kernel's ring cannot read, write and cancel";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let (gone, kept) = io::pipe()?;
    // From the end of this function on, the ring alone has the write end.
    ring.submitter().register_files(&[kept.as_raw_fd()])?;
    Ok((ring, gone))
}

/// A request that the kernel has.
#[derive(Debug)]
struct Flight {
    file: Arc<Descriptor>,
    request: Request,
    done: usize,
    retries: u8,
    /// The kernel was asked to cancel it.
    cancelling: bool,
    iovecs: Iovecs,
}

/// The thread's side: owns the ring and everything in flight.
struct Driver {
    shared: Arc<Shared>,
    ring: IoUring,
    /// Reaches its end when the kernel has released the ring.
    gone: PipeReader,
    /// Pushed requests that the kernel has not seen, oldest first.
    unseen: VecDeque<u64>,
    // Boxed: the kernel may read an array of iovecs until its request completes.
    flights: Vec<Option<Box<Flight>>>,
    free: Vec<usize>,
    wake_count: Box<u64>,
    wake_armed: bool,
    absorbed_max: usize,
}

/// What the driver does next.
enum Turn {
    /// Go into the kernel until something completes.
    Wait,
    /// Something was finished without the kernel.
    LookAgain,
    /// Closed, and no request left.
    End,
}

/// The kernel may still write to memory that requests in flight own, so they must not be dropped by
/// unwinding: their completions would then reuse the memory.
pub(super) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Driver {
    fn new(shared: Arc<Shared>, (ring, gone): (IoUring, PipeReader), absorbed_max: usize) -> Self {
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
    fn run(mut self) {
        let guard = AbortOnUnwind;
        if let Err(cause) = self.serve().and_then(|()| self.quench_wake()) {
            self.do_without(&cause);
        }
        drop(guard);
    }

    /// Runs until `close` was called and no request is left.
    ///
    /// # Errors
    /// The error by which the kernel refused the ring.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.arm_wake();
            match self.take_waiting() {
                Turn::Wait => self.enter()?,
                Turn::LookAgain => {}
                Turn::End => break,
            }
            let mut absorbed = Ok(());
            wait::together(|| absorbed = self.absorb());
            absorbed?;
        }
        assert!(self.flights.iter().all(Option::is_none));
        Ok(())
    }

    /// Finishes what has completed, and hands the kernel what takes its slots, until nothing more
    /// has completed or [`ABSORBED_MAX`] requests are finished. The futures that waited for them
    /// are woken when it returns: the driver then has nothing to do but to wait, so it loses
    /// nothing if one that is woken takes its processor.
    ///
    /// # Errors
    /// As [`Self::enter`].
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
            self.launch_begun();
            self.submit()?;
        }
    }

    /// Goes on without the ring; see the head of the file.
    fn do_without(mut self, cause: &io::Error) {
        // Dropped before `self` is, so that an unwinding ends before it drops the requests.
        let guard = AbortOnUnwind;
        let waiting = {
            let mut state = self.shared.state.lock();
            state.refused = Some(format!("refused since: {cause}"));
            state.take_all()
        };
        let mut free: Vec<_> = self.reap().0.into_iter().map(|(_, flight)| flight.into()).collect();
        free.extend(waiting);
        for user_data in std::mem::take(&mut self.unseen) {
            if user_data == WAKE {
                self.wake_armed = false;
            } else if user_data != CANCEL {
                let slot = usize::try_from(user_data).expect("a slot number");
                free.push(self.flights[slot].take().expect("it was launched").into());
            }
        }
        let mut readers = read_plainly(free);
        let Self { ring, gone, flights, wake_armed, wake_count, .. } = self;
        drop(ring);
        let in_hand: Vec<_> = flights.into_iter().flatten().collect();
        // The same for `in_hand`.
        let guard_in_hand = AbortOnUnwind;
        if wake_armed || !in_hand.is_empty() {
            wait_for_release(gone);
        }
        drop((guard_in_hand, guard));
        drop(wake_count);
        readers.extend(read_plainly(in_hand.into_iter().map(Into::into).collect()));
        readers.into_iter().for_each(pool::join_unless_self);
    }

    /// Puts the requests that have got a slot into the submission queue.
    fn take_waiting(&mut self) -> Turn {
        let mut state = self.shared.state.lock();
        if state.closing && state.taken == 0 {
            return Turn::End;
        }
        let stops = std::mem::take(&mut state.stops);
        let begun = std::mem::take(&mut state.begun);
        let stopped = if stops { state.take_stopped() } else { Vec::new() };
        state.asleep = true;
        drop(state);
        let mut ended = Vec::new();
        for (_, request) in stopped {
            let why = request.stop().expect("it was asked to stop");
            ended.push((None, request, Err(why.error())));
        }
        self.launch_all(begun, &mut ended);
        if stops {
            self.cancel_stopped();
        }
        if ended.is_empty() {
            return Turn::Wait;
        }
        self.finish(ended);
        // They may have been the last, and `close` may have sent its wake-up already.
        Turn::LookAgain
    }

    /// The same for those that have got one while the driver is awake.
    fn launch_begun(&mut self) {
        let begun = std::mem::take(&mut self.shared.state.lock().begun);
        let mut ended = Vec::new();
        self.launch_all(begun, &mut ended);
        self.finish(ended);
    }

    /// Adds what ended without the kernel to `ended`.
    fn launch_all(&mut self, begun: VecDeque<Left>, ended: &mut Vec<Ended>) {
        for (file, request) in begun {
            let stopped = request.stop().map_or(Ok(()), |why| Err(why.error()));
            if let Err(cause) = stopped.and_then(|()| file.check_request(&request)) {
                ended.push((Some(file), request, Err(cause)));
                continue;
            }
            let flight = Flight {
                file,
                request,
                done: 0,
                retries: 0,
                cancelling: false,
                iovecs: Iovecs::new(),
            };
            let slot = self.free.pop().expect("no more were taken");
            self.launch(slot, Box::new(flight));
        }
    }

    fn launch(&mut self, slot: usize, mut flight: Box<Flight>) {
        flight.iovecs.fill(flight.request.extents(), flight.done);
        let offset = flight.request.offset() + flight.done as u64;
        let entry = transfer(&flight.file, flight.request.direction(), offset, &flight.iovecs);
        self.push(&entry.user_data(slot as u64));
        assert!(self.flights[slot].replace(flight).is_none());
    }

    /// Asks the kernel to cancel the requests that were asked to stop. They complete as usual: soon
    /// if they wait in the kernel, and when the device is done if it has them.
    fn cancel_stopped(&mut self) {
        let mut slots = Vec::new();
        for (slot, flight) in self.flights.iter_mut().enumerate() {
            let Some(flight) = flight else { continue };
            if flight.request.stop().is_some() && !std::mem::replace(&mut flight.cancelling, true) {
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
        // SAFETY: what the entry points to (a request's memory and iovecs, the wake-up's
        // counter) is owned by `self.flights` or `self.wake_count` until its completion was seen.
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

    /// At the end: the kernel must be done with `wake_count` before it is freed.
    fn quench_wake(&mut self) -> io::Result<()> {
        self.shared.wake_driver();
        // Ends: the armed read of the eventfd completes.
        while self.wake_armed {
            self.enter()?;
            let (again, _) = self.reap();
            assert!(again.is_empty(), "nothing else is in flight");
        }
        Ok(())
    }

    /// Submits what was pushed and waits for at least one completion.
    ///
    /// # Errors
    /// The kernel takes no more calls on this ring.
    fn enter(&mut self) -> io::Result<()> {
        self.enter_for(1)
    }

    /// Submits what was pushed, and waits for nothing; sees what has completed.
    ///
    /// # Errors
    /// As [`Self::enter`].
    fn submit(&mut self) -> io::Result<()> {
        if self.unseen.is_empty() && !self.ring.submission().taskrun() {
            return Ok(());
        }
        self.enter_for(0)
    }

    fn enter_for(&mut self, completions: usize) -> io::Result<()> {
        let entered = enter(&mut self.ring, completions);
        let left = self.ring.submission().len();
        self.unseen.drain(..self.unseen.len() - left);
        entered
    }

    /// Finishes completed requests; returns those that must go to the kernel once more, and how
    /// many it has finished.
    fn reap(&mut self) -> (Vec<(usize, Box<Flight>)>, usize) {
        // Bounded by the completion queue's length: entries that come meanwhile are seen next time.
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

    /// Frees the flight's slot and returns what came of it, or the flight if it has to go on.
    fn landed(&mut self, slot: usize, result: i32) -> Result<Ended, Box<Flight>> {
        let mut flight = self.flights[slot].take().expect("a completion of a slot in flight");
        let stopped = flight.request.stop();
        let (again, result) = if let Ok(got) = usize::try_from(result) {
            flight.done += got;
            let ended = match flight.request.direction() {
                Direction::Read => flight.file.ended(flight.done, got),
                Direction::Write => got == 0,
            };
            match stopped {
                // A partial transfer must not look like the end of the file.
                Some(why) if flight.done < flight.request.bytes() && !ended => {
                    (false, Err(why.error()))
                }
                _ => (flight.done < flight.request.bytes() && !ended, Ok(flight.done)),
            }
        } else {
            let given_back = is_given_back(result);
            flight.retries += u8::from(given_back);
            let again = given_back && flight.retries <= RETRIES_MAX && stopped.is_none();
            (again, Err(io::Error::from_raw_os_error(-result)))
        };
        if again {
            return Err(flight);
        }
        self.free.push(slot);
        let Flight { file, request, .. } = *flight;
        Ok((Some(file), request, result))
    }

    /// Gives back the slots that they had before it calls the completions, which may start the next
    /// reads.
    fn finish(&self, ended: Vec<Ended>) {
        if ended.is_empty() {
            return;
        }
        let mut state = self.shared.state.lock();
        state.taken -= ended.len();
        for file in ended.iter().filter_map(|(file, ..)| file.as_ref()) {
            state.give_back(key(file));
        }
        drop(state);
        wait::together(|| {
            for (_file, request, result) in ended {
                request.finish(result);
            }
        });
    }
}

/// Submits what was pushed, and waits for so many completions. It may return with fewer.
///
/// # Errors
/// The kernel takes no more calls on this ring.
pub(super) fn enter(ring: &mut IoUring, completions: usize) -> io::Result<()> {
    let entered = ring.submitter().submit_and_wait(completions);
    match entered.map_err(|cause| (cause.raw_os_error(), cause)) {
        Ok(_) | Err((Some(libc::EINTR | libc::EBUSY), _)) => Ok(()),
        Err((Some(libc::EAGAIN | libc::ENOMEM), _)) => {
            std::thread::sleep(SHORTAGE_PAUSE);
            Ok(())
        }
        Err((_, cause)) => Err(cause),
    }
}

/// The entry of a transfer of `iovecs`, which stay where they are until it completes.
pub(super) fn transfer(
    file: &Descriptor,
    direction: Direction,
    offset: u64,
    iovecs: &Iovecs,
) -> squeue::Entry {
    let (fd, iovecs) = (types::Fd(file.fd.as_raw_fd()), iovecs.as_slice());
    let (array, count) = (iovecs.as_ptr(), u32::try_from(iovecs.len()).expect("at most 1024"));
    // A longer one comes back short and is continued.
    let one = (iovecs[0].iov_base.cast(), iovecs[0].iov_len.min(1 << 30) as u32);
    match (direction, count) {
        (Direction::Read, 1) => opcode::Read::new(fd, one.0, one.1).offset(offset).build(),
        (Direction::Read, _) => opcode::Readv::new(fd, array, count).offset(offset).build(),
        (Direction::Write, 1) => opcode::Write::new(fd, one.0, one.1).offset(offset).build(),
        (Direction::Write, _) => opcode::Writev::new(fd, array, count).offset(offset).build(),
    }
}

/// Whether a completion's result says that the kernel gave the request back undone.
pub(super) fn is_given_back(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN | libc::ECANCELED)
}

/// Waits until the kernel has released a ring that was dropped, by its pipe of [`set_up`].
pub(super) fn wait_for_release(mut gone: PipeReader) {
    // Ends: nothing is written to the pipe, so this returns when the kernel has released the ring.
    let end = loop {
        match gone.read(&mut [0]) {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {} // by a signal
            end => break end,
        }
    };
    assert!(matches!(end, Ok(0)), "the pipe did not end: {end:?}");
}

/// A request that is over, what came of it, and the file of which it had a slot, if it had one.
type Ended = (Option<Arc<Descriptor>>, Request, io::Result<usize>);

/// A request that the kernel does not have.
type Left = (Arc<Descriptor>, Request);

impl From<Box<Flight>> for Left {
    fn from(flight: Box<Flight>) -> Left {
        (flight.file, flight.request)
    }
}

/// Carries out the remaining requests from their first byte, on a thread for each file, so that
/// none waits for another file's. If a thread cannot be started, dropping the requests ends them
/// with an error.
fn read_plainly(left: Vec<Left>) -> Vec<JoinHandle<()>> {
    let mut by_file: HashMap<*const Descriptor, Vec<Left>> = HashMap::new();
    for (file, request) in left {
        by_file.entry(Arc::as_ptr(&file)).or_default().push((file, request));
    }
    let read = |requests: Vec<Left>| {
        for (file, request) in requests {
            let stopped = request.stop().map_or(Ok(()), |why| Err(why.error()));
            let result = stopped.and_then(|()| file.carry_out(&request));
            request.finish(result);
        }
    };
    let spawn = |requests| {
        let name = "pinfold-read".to_owned();
        std::thread::Builder::new().name(name).spawn(move || read(requests)).ok()
    };
    by_file.into_values().filter_map(spawn).collect()
}
