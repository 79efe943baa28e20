//! Asynchronous reads by `io_uring`: one ring per cache, driven by one thread.
//!
//! # Who does what
//! A submitter puts requests in `State::waiting` under the mutex and, if the driver is asleep,
//! writes to an eventfd that the ring itself reads. The driver takes all that wait, hands them
//! to the kernel with one system call, and in the same call waits for the next completion.
//!
//! Why not submit from the reader's thread, under a lock: the kernel completes a request in the
//! task that submitted it (by interrupting it, or when its present system call ends), and
//! cancels what it has punted when that task exits. With a driver, only the driver is disturbed,
//! and the cheaper single-issuer mode of the ring can be used.
//!
//! # Bounds
//! `taken` counts requests between `start` and `finish`, at most `depth`. At `depth`, `start` gives
//! requests back (`Start::Full`). The submission queue has room for `depth` reads and the wake-up;
//! the completion queue, twice that: neither can be full.
//!
//! # States of the driver (under the mutex)
//! `awake` -> `asleep`: nothing waits; it goes into the kernel. `asleep` -> `awake`: a submitter
//! or `close` found it so and wrote to the eventfd, or a completion came. So a request put in
//! while `awake` is seen before the driver sleeps, and one put in while `asleep` wakes it.
//!
//! Called by: `disk.rs` (start) and `engine.rs` (life).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use super::descriptor::{Descriptor, Iovecs};
use super::request::ReadRequest;
use super::{Start, pool};

/// Marks the eventfd's completion; all others are slot numbers.
const WAKE: u64 = u64::MAX;
/// How often one request is tried again after the kernel gave it back undone.
const RETRIES_MAX: u8 = 8;
/// Pause after the kernel was too short of memory to take requests.
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
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<(Arc<Descriptor>, ReadRequest)>,
    taken: usize,
    asleep: bool,
    closing: bool,
}

impl Ring {
    /// Sets up a ring for at most `depth` requests at a time, and its thread.
    ///
    /// # Errors
    /// What the kernel said when it refused: the system call may be missing (`ENOSYS`),
    /// forbidden (`EPERM`), or over a limit (`ENOMEM`, `EMFILE`).
    pub(super) fn open(depth: usize) -> io::Result<Self> {
        assert!(depth > 0);
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let state = State { waiting: VecDeque::new(), taken: 0, asleep: false, closing: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake, depth });
        // A single-issuer ring belongs to the thread that makes it.
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let of_driver = Arc::clone(&shared);
        let driver =
            std::thread::Builder::new().name("pinfold-ring".into()).spawn(move || match set_up(
                depth,
            ) {
                Ok(ring) => {
                    tell.send(Ok(())).expect("`open` waits for this");
                    Driver::new(of_driver, ring).run();
                }
                Err(cause) => tell.send(Err(cause)).expect("`open` waits for this"),
            })?;
        told.recv().map_err(|_| io::Error::other("the ring's thread died at its start"))??;
        Ok(Self { shared, driver: Mutex::new(Some(driver)) })
    }

    /// Takes requests off the front of `batch`, as many as there is room for.
    pub(super) fn start(&self, file: &Arc<Descriptor>, batch: &mut Vec<ReadRequest>) -> Start {
        let mut state = self.shared.state.lock();
        let room = if state.closing { 0 } else { self.shared.depth - state.taken };
        let taken = room.min(batch.len());
        state.taken += taken;
        state.waiting.extend(batch.drain(..taken).map(|request| (Arc::clone(file), request)));
        let wake = taken > 0 && std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.shared.wake_driver();
        }
        if batch.is_empty() { Start::Started } else { Start::Full }
    }

    /// Takes no more requests, and waits until all that were taken are finished.
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
    fn wake_driver(&self) {
        let woken =
            rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1_u64.to_ne_bytes()));
        assert!(woken.is_ok(), "writing to the ring's eventfd failed: {woken:?}");
    }
}

/// A ring in the best mode that this kernel has.
fn set_up(depth: usize) -> io::Result<IoUring> {
    let entries = u32::try_from(depth + 1).map_err(io::Error::other)?.next_power_of_two();
    let ring = match IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries) {
        Ok(ring) => ring,
        // Before Linux 6.1 these flags are unknown.
        Err(cause) if cause.raw_os_error() == Some(libc::EINVAL) => IoUring::new(entries)?,
        Err(cause) => return Err(cause),
    };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if !probe.is_supported(opcode::Readv::CODE) || !probe.is_supported(opcode::Read::CODE) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's ring cannot read"));
    }
    Ok(ring)
}

/// A request in the kernel's hands.
#[derive(Debug)]
struct Flight {
    file: Arc<Descriptor>,
    request: ReadRequest,
    done: usize,
    retries: u8,
    iovecs: Iovecs,
}

/// The thread's side: owns the ring and everything in flight.
struct Driver {
    shared: Arc<Shared>,
    ring: IoUring,
    // Boxed: the kernel may read an array of iovecs until its request completes.
    flights: Vec<Option<Box<Flight>>>,
    free: Vec<usize>,
    wake_count: Box<u64>,
    wake_armed: bool,
}

/// What the driver does next.
enum Turn {
    /// Go into the kernel until something completes.
    Wait,
    /// Something was finished without the kernel.
    LookAgain,
    /// Closed, and nothing left.
    End,
}

/// The kernel may still write to memory that requests in flight own, so they must not be
/// dropped by unwinding: that would tell their completions that the memory is free.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Driver {
    fn new(shared: Arc<Shared>, ring: IoUring) -> Self {
        let depth = shared.depth;
        Self {
            shared,
            ring,
            flights: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            wake_count: Box::new(0),
            wake_armed: false,
        }
    }

    /// Ends when `close` was called and nothing is left.
    fn run(mut self) {
        let guard = AbortOnUnwind;
        loop {
            self.arm_wake();
            match self.take_waiting() {
                Turn::Wait => self.enter(),
                Turn::LookAgain => {}
                Turn::End => break,
            }
            self.shared.state.lock().asleep = false;
            self.reap();
        }
        assert!(self.flights.iter().all(Option::is_none));
        self.quench_wake();
        drop(guard);
    }

    /// Puts all that wait into the submission queue.
    fn take_waiting(&mut self) -> Turn {
        let mut state = self.shared.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        if waiting.is_empty() && state.closing && state.taken == 0 {
            return Turn::End;
        }
        state.asleep = true;
        drop(state);
        let mut next = Turn::Wait;
        for (file, request) in waiting {
            let checked = file.check(request.offset(), request.extents());
            if let Err(cause) = checked {
                self.finish(request, Err(cause));
                // It may have been the last, and `close` may have done all its waking.
                next = Turn::LookAgain;
                continue;
            }
            let flight = Flight { file, request, done: 0, retries: 0, iovecs: Iovecs::new() };
            let slot = self.free.pop().expect("`taken` never exceeds the depth");
            self.launch(slot, Box::new(flight));
        }
        next
    }

    fn launch(&mut self, slot: usize, mut flight: Box<Flight>) {
        flight.iovecs.fill(flight.request.extents(), flight.done);
        let iovecs = flight.iovecs.as_slice();
        let fd = types::Fd(flight.file.fd.as_raw_fd());
        let offset = flight.request.offset() + flight.done as u64;
        let entry = match iovecs {
            [one] => {
                // A longer one comes back short and is continued.
                let bytes = one.iov_len.min(1 << 30) as u32;
                opcode::Read::new(fd, one.iov_base.cast(), bytes).offset(offset).build()
            }
            several => {
                let count = u32::try_from(several.len()).expect("at most IOVECS_MAX");
                opcode::Readv::new(fd, several.as_ptr(), count).offset(offset).build()
            }
        };
        self.push(&entry.user_data(slot as u64));
        assert!(self.flights[slot].replace(flight).is_none());
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what the entry points to (a request's memory and iovecs, the wake-up's
        // counter) is owned by `self.flights` or `self.wake_count` until its completion was seen.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "the submission queue has room for all slots and the wake-up");
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

    /// At the end: the kernel must let go of `wake_count` before it is freed.
    fn quench_wake(&mut self) {
        self.shared.wake_driver();
        // Ends: the armed read of the eventfd completes.
        while self.wake_armed {
            self.enter();
            self.reap();
        }
    }

    /// Submits what was pushed and waits for at least one completion.
    fn enter(&mut self) {
        let Err(cause) = self.ring.submitter().submit_and_wait(1) else { return };
        match cause.raw_os_error() {
            Some(libc::EINTR | libc::EBUSY) => {}
            Some(libc::EAGAIN | libc::ENOMEM) => std::thread::sleep(SHORTAGE_PAUSE),
            // Only a broken ring has other reasons; see `AbortOnUnwind`.
            _ => panic!("io_uring_enter failed: {cause}"),
        }
    }

    fn reap(&mut self) {
        // Bounded by the completion queue's length: entries that come meanwhile are seen next time.
        let seen: Vec<_> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (user_data, result) in seen {
            if user_data == WAKE {
                self.wake_armed = false;
            } else {
                self.landed(usize::try_from(user_data).expect("a slot number"), result);
            }
        }
    }

    fn landed(&mut self, slot: usize, result: i32) {
        let mut flight = self.flights[slot].take().expect("a completion of a slot in flight");
        let (again, result) = if let Ok(got) = usize::try_from(result) {
            flight.done += got;
            let more = flight.done < flight.request.bytes();
            (more && !flight.file.ended(flight.done, got), Ok(flight.done))
        } else {
            let gave_back = matches!(-result, libc::EINTR | libc::EAGAIN | libc::ECANCELED);
            flight.retries += u8::from(gave_back);
            let again = gave_back && flight.retries <= RETRIES_MAX;
            (again, Err(io::Error::from_raw_os_error(-result)))
        };
        if again {
            return self.launch(slot, flight);
        }
        self.free.push(slot);
        self.finish(flight.request, result);
    }

    /// Makes room, then tells: a completion may start the next read in its place.
    fn finish(&mut self, request: ReadRequest, result: io::Result<usize>) {
        self.shared.state.lock().taken -= 1;
        request.finish(result);
    }
}
