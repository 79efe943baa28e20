//! A request: one transfer between a source and memory, and the completion that reports its end.
//!
//! `given` (to `Backing::submit`) -> `started` (taken by a ring, a worker or a source) ->
//! `finished`. From `given` it may also go back to the caller, untouched. [`Request::finish`] or a
//! drop ends `given` or `started`. Both consume it and call its completion: exactly once.
//!
//! The request owns its memory until then. So only the thread that carries it out can end it; a
//! passed deadline only *asks* it to stop:
//!
//! | where the request is | what asking does |
//! |---|---|
//! | queued for the ring or a worker | it is taken off the queue and finished |
//! | in the kernel, through the ring | the ring asks the kernel to cancel it; the kernel's completion finishes it |
//! | in a call of the source | the source sees it in [`Request::is_stopped`], and returns when it can |
//! | in a source's own queue | the same, or [`Request::on_stop`] notifies the source |
//!
//! A transfer that was complete by then is reported as such; anything else becomes [`timed_out`].

use std::cmp::Ordering::{Equal, Greater, Less};
use std::fmt;
use std::io;
use std::sync::Arc;
// Not from `crate::base::sync`: no protocol depends on it.
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::base::sync::locks::Mutex;

use super::extent::{self, Extent};
use super::meter::Meter;
use super::under_way::{Move, UnderWay};
use crate::base::guarded::quietly;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Read,
    Write,
}

pub(crate) trait CompletionHandler: Send {
    /// Called exactly once per request, on the thread that ended it; from inside the call that
    /// submitted it only if it was asked to stop before. The memory is no longer in use. For a
    /// read, `Ok(n)` with `n` below the request's bytes means that the source ended there; the
    /// memory beyond is zeroed. A write moves all bytes or is an error.
    ///
    /// It must not wait for another request: others complete on the same thread. It may take locks
    /// that no thread holds while it submits, and may submit more requests. A panic is caught.
    fn complete(self: Box<Self>, result: io::Result<usize>);
}

impl<F: FnOnce(io::Result<usize>) + Send> CompletionHandler for F {
    fn complete(self: Box<Self>, result: io::Result<usize>) {
        (*self)(result);
    }
}

/// A transfer between a range of a source and runs of memory, which the request owns until it ends.
pub struct Request {
    direction: Direction,
    offset: u64,
    bytes: usize,
    extents: Vec<Extent<'static>>,
    completion: Option<Box<dyn CompletionHandler>>,
    awaited: bool,
    metered: Option<Metered>,
    deadline: Option<Instant>,
    control: Option<Arc<Control>>,
}

struct Metered {
    meter: Arc<Meter>,
    since: Instant,
    moves: Move,
}

/// What a request shares with the clock.
pub(super) struct Control {
    stopped: AtomicBool,
    hooks: Mutex<Hooks>,
}

type Callback = Box<dyn FnOnce() + Send>;

/// What to call when the request is asked to stop: of sources, and then the workers or the ring.
enum Hooks {
    /// Nobody has asked yet. In the order in which they were set.
    Set(Vec<Callback>),
    /// They were taken to be called, and a later one is called at once.
    Asked,
    Ended,
}

impl Control {
    fn new() -> Self {
        Control { stopped: AtomicBool::new(false), hooks: Mutex::new(Hooks::Set(Vec::new())) }
    }

    /// Asks the request to stop. It may end on this thread.
    pub(super) fn time_out(&self) {
        // Release: pairs with the acquire in `is_stopped`.
        if self.stopped.swap(true, Ordering::Release) {
            return;
        }
        let mut hooks = self.hooks.lock();
        if let Hooks::Set(set) = &mut *hooks {
            let set = std::mem::take(set);
            *hooks = Hooks::Asked;
            drop(hooks);
            for callback in set {
                quietly("on_stop", callback);
            }
        }
    }

    fn is_stopped(&self) -> bool {
        // Acquire: pairs with the release in `time_out`.
        self.stopped.load(Ordering::Acquire)
    }

    /// The caller must not hold a lock that `callback` takes.
    fn on_stop(&self, callback: Callback) {
        let mut hooks = self.hooks.lock();
        match &mut *hooks {
            Hooks::Set(set) => set.push(callback),
            // `time_out` looked for functions before this one was set.
            Hooks::Asked => {
                drop(hooks);
                quietly("on_stop", callback);
            }
            Hooks::Ended => {
                drop(hooks);
                quietly("a drop", || drop(callback));
            }
        }
    }

    fn end(&self) {
        let hooks = std::mem::replace(&mut *self.hooks.lock(), Hooks::Ended);
        if let Hooks::Set(set) = hooks {
            // One by one: two panics at once would end the process.
            for callback in set {
                quietly("a drop", || drop(callback));
            }
        }
    }
}

pub(super) fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the source did not answer in time")
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("direction", &self.direction)
            .field("offset", &self.offset)
            .field("extents", &self.extents)
            .field("awaited", &self.awaited)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Request {
    /// A read from `offset` of as many bytes as `extents` hold in all.
    ///
    /// # Safety
    /// The memory of every extent keeps [`Extent::new`]'s contract until `completion` is called,
    /// and for ever if it never is (a source may leak it). Only this gives memory beyond a call.
    pub(crate) unsafe fn read(
        offset: u64,
        extents: Vec<Extent<'static>>,
        completion: Box<dyn CompletionHandler>,
    ) -> Self {
        Self::of(Direction::Read, offset, extents, completion)
    }

    /// A write of them.
    ///
    /// # Safety
    /// As [`read`](Self::read); and their bytes do not change.
    pub(crate) unsafe fn write(
        offset: u64,
        extents: Vec<Extent<'static>>,
        completion: Box<dyn CompletionHandler>,
    ) -> Self {
        Self::of(Direction::Write, offset, extents, completion)
    }

    fn of(
        direction: Direction,
        offset: u64,
        extents: Vec<Extent<'static>>,
        completion: Box<dyn CompletionHandler>,
    ) -> Self {
        let bytes = extent::total_bytes(&extents);
        assert!(bytes > 0, "a request must move something");
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| i64::try_from(end).is_ok()), "ends beyond 2^63 - 1");
        let completion = Some(completion);
        let (awaited, metered, deadline, control) = Default::default();
        Self { direction, offset, bytes, extents, completion, awaited, metered, deadline, control }
    }

    /// Somebody waits for it: it goes before those that nobody waits for, without their limit.
    #[must_use]
    pub(crate) fn awaited(mut self) -> Self {
        self.awaited = true;
        self
    }

    /// Whether somebody waits for it. Otherwise it should not keep others waiting.
    pub fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// If it has a deadline already, the earlier one counts.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn with_deadline(mut self, deadline: Instant) -> Self {
        self.end_by(deadline);
        self
    }

    pub(super) fn end_by(&mut self, deadline: Instant) {
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        self.control();
    }

    pub(super) fn control(&mut self) -> Arc<Control> {
        self.control.get_or_insert_with(|| Arc::new(Control::new())).clone()
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether its bytes go from memory to the source.
    pub fn is_write(&self) -> bool {
        self.direction == Direction::Write
    }

    /// Where the range begins in the source, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory, in order; valid for as long as the request exists.
    // Not `Extent<'static>`: a source could keep copies and write after the end.
    pub fn extents(&self) -> &[Extent<'_>] {
        &self.extents
    }

    /// Whether the request is to stop, as its deadline has passed. A thread that carries it out
    /// asks this from time to time, and then finishes the request with any error. Cost: a load.
    pub fn is_stopped(&self) -> bool {
        self.control.as_ref().is_some_and(|control| control.is_stopped())
    }

    /// Error: [`timed_out`], if the request is to stop.
    pub(super) fn check_stopped(&self) -> io::Result<()> {
        if self.is_stopped() { Err(timed_out()) } else { Ok(()) }
    }

    /// Calls `callback` once when the request is asked to stop: on the thread that asks (the
    /// cache's clock, which serves all deadlines), or in this call if that was before. Not if the
    /// request ends first; if it ends at that moment, `callback` may run a little later. A request
    /// can have any number of these, which are called in order. `callback` must be short, and must
    /// not finish the request itself. A panic in it is caught. Nothing happens without a deadline.
    pub fn on_stop(&self, callback: impl FnOnce() + Send + 'static) {
        if let Some(control) = &self.control {
            control.on_stop(Box::new(callback));
        }
    }

    /// Ends the request and calls its completion. `Ok(n)`: the first `n` bytes were moved. For a
    /// read, `n` is short only if the source ends there; the rest is zeroed here.
    pub fn finish(mut self, result: io::Result<usize>) {
        self.end(result);
    }

    /// The completion gets an error that [`is_refusal`].
    pub(crate) fn refuse(mut self) {
        self.end(Err(refusal()));
    }

    pub(super) fn watched(&self) -> Option<(Instant, &Arc<Control>)> {
        Some((self.deadline?, self.control.as_ref()?))
    }

    /// From now on the request's time counts, for `meter`.
    pub(super) fn start_clock(&mut self, meter: &Arc<Meter>, under_way: &UnderWay) {
        let (since, moves) = (Instant::now(), under_way.begin());
        self.metered = Some(Metered { meter: Arc::clone(meter), since, moves });
    }

    /// It goes back to the caller, as if it had never been submitted.
    pub(super) fn forget_clock(&mut self) {
        if let Some(metered) = self.metered.take() {
            metered.moves.refuse();
        }
    }

    fn end(&mut self, result: io::Result<usize>) {
        let Some(completion) = self.completion.take() else { return };
        let mut result = match self.direction {
            Direction::Read => settle(&self.extents, result),
            Direction::Write => result.and_then(|done| match done.cmp(&self.bytes) {
                Equal => Ok(done),
                Less => Err(underlong(done, self.bytes)),
                Greater => Err(overlong(done, self.bytes)),
            }),
        };
        if let Some(control) = &self.control {
            control.end();
            if result.is_err() && control.is_stopped() {
                result = Err(timed_out());
            }
        }
        // Counted as under way until its completion has seen to its memory.
        let metered = self.metered.take();
        if let Some(Metered { meter, since, .. }) = &metered {
            let lane = match self.direction {
                Direction::Read if self.awaited => &meter.read,
                Direction::Read => &meter.read_ahead,
                Direction::Write => &meter.write,
            };
            lane.count(since.elapsed(), self.bytes, &result);
        }
        quietly("a completion", || completion.complete(result));
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.completion.is_some() {
            self.end(Err(io::Error::other("the request was dropped before it was carried out")));
        }
    }
}

/// Takes requests off the front of `batch`, until `take` gives one back. For [`on_stops`].
pub(super) fn take_front(
    batch: &mut Vec<Request>,
    mut take: impl FnMut(Request) -> Option<Request>,
) -> Vec<Arc<Control>> {
    let mut stoppable = Vec::new();
    let mut rest = std::mem::take(batch).into_iter();
    // Ends: each turn takes a request, or is the last.
    while let Some(request) = rest.next() {
        let control = request.control.clone();
        if let Some(request) = take(request) {
            batch.push(request);
            batch.extend(rest);
            break;
        }
        stoppable.extend(control);
    }
    stoppable
}

/// Calls `tell` when one of these, which are queued, is asked to stop. No lock is held.
pub(super) fn on_stops<S: Send + Sync + 'static>(
    stoppable: Vec<Arc<Control>>,
    shared: &Arc<S>,
    tell: fn(&S),
) {
    for control in stoppable {
        let shared = Arc::downgrade(shared);
        control.on_stop(Box::new(move || shared.upgrade().iter().for_each(|shared| tell(shared))));
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the request was not started")]
struct NotTaken;

/// What a read that was not started ends with.
pub(crate) fn refusal() -> io::Error {
    io::Error::other(NotTaken)
}

pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.get_ref(), Some(cause) if cause.is::<NotTaken>())
}

/// Checks what a source returned for a read: the memory beyond its end is zeroed.
pub(super) fn settle(extents: &[Extent<'_>], result: io::Result<usize>) -> io::Result<usize> {
    let (got, asked) = (result?, extent::total_bytes(extents));
    if got > asked {
        return Err(overlong(got, asked));
    }
    extent::zero_from(extents, got);
    Ok(got)
}

pub(super) fn underlong(done: usize, asked: usize) -> io::Error {
    let text = format!("the source took only {done} of {asked} bytes");
    io::Error::new(io::ErrorKind::WriteZero, text)
}

pub(super) fn overlong(got: usize, asked: usize) -> io::Error {
    let text = format!("the source said it moved {got} bytes where {asked} were asked for");
    io::Error::new(io::ErrorKind::InvalidData, text)
}
