//! A few threads that carry out requests for sources without a queue of their own. A worker is a
//! slot of `lanes.rs`. What is not taken goes back to the caller ([`Start::Full`]).
//!
//! A read of a layered source may read from other files of the same cache. It waits only for reads
//! that its worker carries out itself or that are queued in a lane of a lower layer. The lowest
//! layer waits for no other, so its reads complete, and then those above.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::base::sync::locks::{Condvar, Mutex};

use super::Start;
use super::lanes::Lanes;
use super::request::{self, Direction, Request};
use super::shared::SharedSource;
use super::under_way::Inside;
use crate::base::guarded::quietly;
use crate::base::mutant::{self, Mutant};
use crate::base::threads::{NotStarted, start};

#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<PoolShared>,
    workers_max: usize,
    lane_max: usize,
}

#[derive(Debug)]
pub(super) struct Lane {
    number: u64,
    /// The source has a queue of its own, as it has shown; if not, the workers read it.
    has_queue: AtomicBool,
    /// Its readers do not trust each other.
    is_shared_out: AtomicBool,
}

impl Lane {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Lane { number, has_queue: AtomicBool::new(false), is_shared_out: AtomicBool::new(false) }
    }

    pub(super) fn set_has_queue(&self, has_queue: bool) {
        // Relaxed: what is known of the source.
        if self.has_queue.load(Ordering::Relaxed) != has_queue {
            self.has_queue.store(has_queue, Ordering::Relaxed);
        }
    }

    #[cfg(all(feature = "serve", not(loom)))]
    pub(super) fn has_queue(&self) -> bool {
        self.has_queue.load(Ordering::Relaxed) // as above
    }
}

struct PoolShared {
    state: Mutex<PoolState>,
    work: Condvar,
    /// Called without the mutex.
    worker_is_free: Box<Hook>,
}

type Hook = dyn Fn() + Send + Sync;

#[derive(Debug)]
struct PoolState {
    lanes: Lanes<(u64, SharedSource)>,
    workers: Vec<JoinHandle<()>>,
    not_started: Option<NotStarted>,
    /// Workers that carry out nothing: at least as many as requests have begun.
    idle: usize,
    /// A request that somebody waits for found no worker.
    wanted: bool,
    closing: bool,
}

impl fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolShared").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Pool {
    /// `lane_max`: reads of one lane at a time that nobody waits for.
    pub(super) fn new(workers_max: usize, lane_max: usize, worker_is_free: Box<Hook>) -> Self {
        assert!(workers_max > 0 && lane_max > 0);
        let state = Mutex::new(PoolState {
            lanes: Lanes::new(workers_max),
            workers: Vec::new(),
            not_started: None,
            idle: 0,
            wanted: false,
            closing: false,
        });
        let shared = PoolShared { state, work: Condvar::new(), worker_is_free };
        Self { shared: Arc::new(shared), workers_max, lane_max }
    }

    /// Takes requests off the front of `batch`, as many as the limits allow. Error: somebody waits
    /// for one that it has not taken, and the system starts no thread.
    pub(super) fn start(
        &self,
        lane: &Lane,
        source: &SharedSource,
        batch: &mut Vec<Request>,
    ) -> io::Result<Start> {
        // Relaxed: a limit, which orders nothing.
        let is_shared_out = lane.is_shared_out.load(Ordering::Relaxed);
        let is_shared_out = is_shared_out && !mutant::on(Mutant::AheadTakesAll);
        // Nobody counts for whom the reads ahead of a lane that is shared out are: all together leave
        // most workers to what somebody waits for.
        let ahead_max = if is_shared_out { (self.at_once() / 4).max(1) } else { self.lane_max };
        let (mut state, mut begun) = (self.shared.state.lock(), 0);
        let stoppable = request::take_front(batch, |request| {
            let may = request.is_awaited() || state.lanes.ahead_load(lane.number) < ahead_max;
            let begins = may && !state.closing && self.may_begin(&mut state, lane.number);
            let load = state.lanes.load(lane.number);
            let waits = load > 0 && (request.is_awaited() || load < self.lane_max);
            if state.closing || !may || !(begins || waits) {
                state.wanted |= request.is_awaited();
                return Some(request);
            }
            state.lanes.take(lane.number, ((lane.number, source.clone()), request), begins);
            begun += usize::from(begins);
            None
        });
        let not_started = state.not_started.clone().filter(|_| state.workers.is_empty());
        drop(state);
        for _ in 0..begun {
            self.shared.work.notify_one();
        }
        request::on_stops(stoppable, &self.shared, PoolShared::end_stopped);
        match not_started {
            _ if batch.is_empty() => Ok(Start::Started),
            Some(why) if batch.iter().any(Request::is_awaited) => Err(why.into()),
            _ => Ok(Start::Full),
        }
    }

    pub(super) fn all_busy(&self) -> io::Error {
        let state = self.shared.state.lock();
        let further = state.not_started.as_ref();
        let further = further.map_or(String::new(), |why| format!("; there is no further: {why}"));
        let threads = state.workers.len();
        let text =
            format!("all {threads} threads that read are waiting for other sources{further}");
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    pub(super) fn at_once(&self) -> usize {
        (self.workers_max / 2).max(1)
    }

    /// Starts all workers that one lane may have. Readers of a lane that is shared out wait for the
    /// workers alone, so these have to be there whatever the system gives later.
    #[cfg(all(feature = "serve", not(loom)))]
    pub(super) fn share_out(&self, lane: &Lane) -> Result<(), NotStarted> {
        lane.is_shared_out.store(true, Ordering::Relaxed); // a limit, which orders nothing
        let mut state = self.shared.state.lock();
        // Ends: each turn starts one.
        while state.workers.len() < self.at_once() {
            self.start_worker(&mut state)?;
        }
        Ok(())
    }

    /// Whether the lane may have one more worker and one is free; starts a thread if none is.
    fn may_begin(&self, state: &mut PoolState, lane: u64) -> bool {
        if !state.lanes.may_begin(lane) {
            return false;
        }
        if state.idle > state.lanes.begun.len() {
            return true;
        }
        state.not_started = self.start_worker(state).err();
        state.not_started.is_none()
    }

    fn start_worker(&self, state: &mut PoolState) -> Result<(), NotStarted> {
        let shared = Arc::clone(&self.shared);
        state.workers.push(start("pinfold-read", move || shared.work())?);
        state.idle += 1; // at once: it looks for work before it first waits
        Ok(())
    }

    /// Waits until all accepted requests are finished.
    pub(super) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        let workers = std::mem::take(&mut state.workers);
        drop(state);
        self.shared.work.notify_all();
        workers.into_iter().for_each(join_unless_self);
    }
}

impl PoolShared {
    fn end_stopped(&self) {
        let stopped = self.state.lock().lanes.take_stopped();
        for (_, request) in stopped {
            request.finish(Err(request::timed_out()));
        }
    }

    /// Ends when the pool is closed and empty.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(((lane, source), request)) = state.lanes.begun.pop_front() else {
                if state.closing {
                    return;
                }
                state = self.work.wait(state);
                continue;
            };
            state.idle -= 1;
            drop(state);
            let awaited = request.is_awaited();
            // Whatever panics, the lane keeps its worker.
            quietly("a request", || carry_out(source, request));
            state = self.state.lock();
            state.idle += 1;
            state.lanes.end(lane, awaited);
            if state.lanes.begun.is_empty() && std::mem::take(&mut state.wanted) {
                drop(state);
                (self.worker_is_free)();
                state = self.state.lock();
            }
        }
    }
}

fn carry_out(source: SharedSource, request: Request) {
    let carry_out = || {
        let _inside = Inside::enter();
        source.carry_out(&request)
    };
    let result = if request.is_stopped() {
        Err(request::timed_out())
    } else {
        catch_unwind(AssertUnwindSafe(carry_out)).unwrap_or_else(|_| {
            let what = match request.direction() {
                Direction::Read => "read",
                Direction::Write => "write",
            };
            let text = format!("the source of kind {} panicked in a {what}", source.name());
            Err(io::Error::other(text))
        })
    };
    drop(source); // before the completion: its owner may be waiting for it
    request.finish(result);
}

/// A completion may drop the last handle.
pub(super) fn join_unless_self(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        // A worker does not panic: panics of sources and completions are caught.
        let _ = thread.join();
    }
}
