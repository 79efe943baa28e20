//! A request: bytes to be moved between a source and memory, and who is told when it is over.
//!
//! # States
//! `given` (to `Backing::submit`) -> `started` (taken by a ring, a worker or a source) -> `finished`.
//! From `given` it may also go back to the caller, untouched. It leaves `given` or `started` by
//! [`Request::finish`] or, if somebody drops it, by its `Drop`: either tells the completion,
//! and consumes the request, so the completion is told exactly once.
//!
//! # Whose the memory is
//! The request's, until its completion is told. So nothing but whoever carries it out can end it:
//! a deadline that has passed, or a [`Canceller`], only *ask* for that. The carrier then sees to it
//! that nobody moves bytes any more, and finishes the request:
//!
//! | where it is | what asking does |
//! |---|---|
//! | waiting, for the ring or a worker | it is taken out and finished |
//! | in the kernel, by the ring | the kernel is asked to cancel it; its completion finishes it |
//! | in a source's call | the source sees it in [`Request::stop`], and returns when it can |
//! | in a source's own queue | the same, or [`Request::on_stop`] tells the source |
//!
//! A device that has the request, and a source that does not look, finish it when they are done.
//! What then came in full is told as it is; all else becomes the error that says why it was stopped.
//!
//! Belongs here: these promises, and the rules of the memory. Called by `fill` (makes requests)
//! and by whoever carries them out.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
// Not from `crate::sync`: no protocol of the cache's hangs on it.
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::extent::{self, Extent};
use super::meter::Meter;
use super::under_way::{Move, UnderWay};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the source into memory.
    Read,
    /// From memory to the source.
    Write,
}

/// Why a request is to end before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// Nobody wants it any more.
    Cancelled,
    /// Its deadline has passed.
    TimedOut,
}

/// Who is told that a request is over. Implemented for closures.
pub trait Completion: Send {
    /// Called exactly once per request, on whichever thread ended it: the ring's, a worker's, the
    /// clock's, a source's own, one that cancels it, or the one that drops the request. Never from
    /// inside the call that submitted it. Nobody uses the memory any more.
    ///
    /// Of a read, `Ok(n)` with `n` below the request's bytes means that the source ended there; the
    /// memory beyond is zeroed. A write is all or an error. After an error of a read the memory's
    /// contents are unspecified, and after one of a write, the range's in the source. A request that
    /// was stopped ends with [`io::ErrorKind::TimedOut`], or with the system's `ECANCELED`.
    ///
    /// It must be short and must not wait for another request: others complete on the same
    /// thread. It may take locks that no thread holds while it submits, and may submit more. A
    /// panic is caught, after the panic hook has printed it.
    fn complete(self: Box<Self>, result: io::Result<usize>);
}

impl<F: FnOnce(io::Result<usize>) + Send> Completion for F {
    fn complete(self: Box<Self>, result: io::Result<usize>) {
        (*self)(result);
    }
}

/// Bytes to be moved between one contiguous range of a source and runs of memory that the request
/// has the use of until it ends.
pub struct Request {
    direction: Direction,
    offset: u64,
    bytes: usize,
    extents: Vec<Extent<'static>>,
    completion: Option<Box<dyn Completion>>,
    metered: Option<Metered>,
    deadline: Option<Instant>,
    /// If it can be stopped.
    control: Option<Arc<Control>>,
}

/// What counts a request, from being submitted to its end.
struct Metered {
    meter: Arc<Meter>,
    since: Instant,
    _moves: Move,
}

/// Asks a request to end before it is done. It may outlive the request: then it does nothing.
#[derive(Clone, Debug)]
pub struct Canceller(Arc<Control>);

/// What a request and those who may stop it share.
pub(super) struct Control {
    /// [`LIVE`], or why it is to end.
    stop: AtomicU8,
    /// Whom to tell; `None` inside once it was told, or the request has ended.
    hook: Mutex<Hook>,
}

const LIVE: u8 = 0;
const CANCELLED: u8 = 1;
const TIMED_OUT: u8 = 2;

type Tell = Box<dyn FnOnce() + Send>;

enum Hook {
    None,
    Tell(Tell),
    Told,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("stop", &self.stop()).finish_non_exhaustive()
    }
}

impl Canceller {
    /// Asks the request to end; see [`Completion::complete`] for how it then does, which may be on this
    /// thread, before the call returns. Does not wait for that: its memory stays lent until the
    /// completion is told.
    pub fn cancel(&self) {
        self.0.ask(CANCELLED);
    }
}

impl Control {
    fn new() -> Self {
        Control { stop: AtomicU8::new(LIVE), hook: Mutex::new(Hook::None) }
    }

    /// The deadline has passed.
    pub(super) fn time_out(&self) {
        self.ask(TIMED_OUT);
    }

    /// The first who asks is the reason.
    fn ask(&self, why: u8) {
        // Release: pairs with the acquire in `stop`.
        let first = self.stop.compare_exchange(LIVE, why, Ordering::Release, Ordering::Relaxed);
        if first.is_err() {
            return;
        }
        let hook = std::mem::replace(&mut *self.hook.lock(), Hook::Told);
        if let Hook::Tell(tell) = hook {
            tell();
        }
    }

    fn stop(&self) -> Option<Stop> {
        // Acquire: pairs with the release in `ask`.
        match self.stop.load(Ordering::Acquire) {
            LIVE => None,
            CANCELLED => Some(Stop::Cancelled),
            _ => Some(Stop::TimedOut),
        }
    }

    /// As [`Request::on_stop`]; but not for whoever holds a lock that `tell` takes.
    pub(super) fn on_stop(&self, tell: Tell) {
        let mut hook = self.hook.lock();
        match &*hook {
            // Set before the lock was taken by whoever asked: it is told here.
            Hook::Told => {
                drop(hook);
                tell();
            }
            _ => *hook = Hook::Tell(tell),
        }
    }
}

impl Stop {
    /// The error that a stopped request ends with.
    pub(super) fn error(self) -> io::Error {
        match self {
            Stop::Cancelled => io::Error::from_raw_os_error(libc::ECANCELED),
            Stop::TimedOut => {
                io::Error::new(io::ErrorKind::TimedOut, "the source did not answer in time")
            }
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("direction", &self.direction)
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .field("extents", &self.extents)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Request {
    /// A read from `offset` of as many bytes as `extents` hold together.
    ///
    /// # Safety
    /// The memory of every extent keeps [`Extent::new`]'s contract until `completion` is called,
    /// and for ever if it never is (a source may leak a request). This and [`write`](Self::write)
    /// are where memory is lent for longer than a call.
    ///
    /// # Panics
    /// When there is nothing to move, or the range ends beyond the largest file offset.
    pub unsafe fn read(
        offset: u64,
        extents: Vec<Extent<'static>>,
        completion: Box<dyn Completion>,
    ) -> Self {
        Self::new(Direction::Read, offset, extents, completion)
    }

    /// A write to `offset` of all that `extents` hold together, which does not change until
    /// `completion` is called.
    ///
    /// # Safety
    /// As [`read`](Self::read).
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub unsafe fn write(
        offset: u64,
        extents: Vec<Extent<'static>>,
        completion: Box<dyn Completion>,
    ) -> Self {
        Self::new(Direction::Write, offset, extents, completion)
    }

    fn new(
        direction: Direction,
        offset: u64,
        extents: Vec<Extent<'static>>,
        completion: Box<dyn Completion>,
    ) -> Self {
        let bytes = extent::total_bytes(&extents);
        assert!(bytes > 0, "a request must move something");
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| i64::try_from(end).is_ok()), "ends beyond 2^63 - 1");
        let completion = Some(completion);
        let (metered, deadline, control) = (None, None, None);
        Self { direction, offset, bytes, extents, completion, metered, deadline, control }
    }

    /// The same, to be ended if it is not over by then; the earlier one, if it has a deadline
    /// already.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.end_by(deadline);
        self
    }

    pub(super) fn end_by(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        self.control();
    }

    /// What asks it to end early. To be had before it is submitted.
    pub fn canceller(&mut self) -> Canceller {
        Canceller(self.control())
    }

    fn control(&mut self) -> Arc<Control> {
        self.control.get_or_insert_with(|| Arc::new(Control::new())).clone()
    }

    /// Which way the bytes go.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Where in the source it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes are asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory, in order; usable for as long as the request is.
    // Not `Extent<'static>`: a source could keep copies and write after the end.
    pub fn extents(&self) -> &[Extent<'_>] {
        &self.extents
    }

    /// When it is to be over.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Why it is to end now, if it is. For whoever carries it out to look at from time to time; it
    /// then sees to it that nobody moves bytes any more, and finishes the request with any error.
    /// Cost: a load.
    pub fn stop(&self) -> Option<Stop> {
        self.control.as_ref()?.stop()
    }

    /// Has `tell` called when the request is to end: once, on the thread that asks for it, or here and
    /// now if that was before. Not after the request has ended. Replaces what was given before. It must
    /// be short, and must not finish the request itself.
    pub fn on_stop(&self, tell: impl FnOnce() + Send + 'static) {
        if let Some(control) = &self.control {
            control.on_stop(Box::new(tell));
        }
    }

    /// Ends the request and tells its completion. `Ok(n)`: the first `n` bytes were moved; of a
    /// read, fewer than asked only when the source ends there; the rest is zeroed here.
    pub fn finish(mut self, result: io::Result<usize>) {
        self.end(result);
    }

    /// What it shares with those who may stop it, if it can be stopped.
    pub(super) fn stoppable(&self) -> Option<Arc<Control>> {
        self.control.clone()
    }

    /// When it is to be over, and who asks for that.
    pub(super) fn watched(&self) -> Option<(Instant, &Arc<Control>)> {
        Some((self.deadline?, self.control.as_ref()?))
    }

    /// From now on the request's time counts, for `meter`.
    pub(super) fn start_clock(&mut self, meter: &Arc<Meter>, under_way: &UnderWay) {
        let (since, moves) = (Instant::now(), under_way.begin());
        self.metered = Some(Metered { meter: Arc::clone(meter), since, _moves: moves });
    }

    /// The request goes back to who gave it, as if it had never been submitted.
    pub(super) fn forget_clock(&mut self) {
        self.metered = None;
    }

    fn end(&mut self, result: io::Result<usize>) {
        let Some(completion) = self.completion.take() else { return };
        let mut result = match self.direction {
            Direction::Read => settle(&self.extents, result),
            Direction::Write => settle_write(self.bytes, result),
        };
        if let Some(control) = &self.control {
            *control.hook.lock() = Hook::None;
            if let (Err(_), Some(why)) = (&result, control.stop()) {
                result = Err(why.error());
            }
        }
        // Counted as under way until its completion has seen to its memory.
        let metered = self.metered.take();
        if let Some(Metered { meter, since, .. }) = &metered {
            let lane = match self.direction {
                Direction::Read => &meter.read_ahead,
                Direction::Write => &meter.write,
            };
            lane.count(since.elapsed(), self.bytes, &result);
        }
        // The hook has printed the panic; the thread that carries the requests of others goes on.
        let _ = catch_unwind(AssertUnwindSafe(|| completion.complete(result)));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.completion.is_some() {
            self.end(Err(io::Error::other("the request was dropped before it was carried out")));
        }
    }
}

/// Judges what a source returned for a read into `extents`: a count that is too large becomes an
/// error, what lies beyond the end of the source becomes zeros.
pub(super) fn settle(extents: &[Extent<'_>], result: io::Result<usize>) -> io::Result<usize> {
    let asked = extent::total_bytes(extents);
    match result {
        Ok(got) if got > asked => Err(overlong(got, asked)),
        Ok(got) => {
            extent::zero_from(extents, got);
            Ok(got)
        }
        Err(cause) => Err(cause),
    }
}

/// The same for a write, which is all or an error.
fn settle_write(asked: usize, result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(done) if done > asked => Err(overlong(done, asked)),
        Ok(done) if done < asked => Err(underlong(done, asked)),
        other => other,
    }
}

pub(super) fn underlong(done: usize, asked: usize) -> io::Error {
    let text = format!("the source took only {done} of {asked} bytes");
    io::Error::new(io::ErrorKind::WriteZero, text)
}

pub(super) fn overlong(got: usize, asked: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the source said it moved {got} bytes where {asked} were asked for"),
    )
}
