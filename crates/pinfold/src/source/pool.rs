//! A few threads that carry out requests for sources without a queue of their own.
//!
//! Belongs here: the queues, their bounds, and the threads' life. The threads are started when
//! first needed and live as long as the cache.
//!
//! # No read waits for another source
//! Each file's source has a [`Lane`]: a queue of its own, and the workers that serve it at the
//! moment. A request is accepted in two cases only:
//!
//! 1. a worker is free and starts it at once;
//! 2. the lane has a worker already, so the request waits only for reads of its own source. Those
//!    that somebody waits for go first, but for one in eight (`waiting.rs`), and are accepted in
//!    any number: their memory bounds them.
//!
//! Other requests go back to the caller ([`Start::Full`]), which reads them itself or drops them.
//! So a source that hangs delays its own requests only. A worker stays with a lane until its queue
//! is empty.
//!
//! A lane has at most half of the workers, and gets its second and later ones only while a quarter
//! of all is free, so that workers are left for other sources.
//!
//! A read of a layered source may read from other files of the same cache. It runs on a worker of
//! its lane, and waits only for reads that this worker carries out itself or that are queued in a
//! lane of a lower layer. The lowest layer waits for no other, so its reads complete, and then
//! those above.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::base::sync::locks::{Condvar, Mutex};

use super::Start;
use super::request::{Direction, Request};
use super::shared::SharedSource;
use super::under_way::Inside;
use super::waiting::RequestQueues;
use crate::base::guarded::{guarded, quietly};
use crate::base::threads::{NotStarted, start};

/// Worker threads and the reads that wait for one.
pub(super) struct Pool {
    shared: Arc<PoolShared>,
    workers_max: usize,
    lane_max: usize,
}

/// The number of a queue; each file has one.
#[derive(Debug)]
pub(super) struct Lane(u64);

impl Lane {
    /// A queue of its own.
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to differ.
        Lane(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

struct PoolShared {
    state: Mutex<PoolState>,
    work: Condvar,
    /// Called without the mutex.
    worker_is_free: Box<Hook>,
}

type Hook = dyn Fn() + Send + Sync;

type Job = (SharedSource, Request);

#[derive(Default)]
struct PoolState {
    /// Lanes with a worker at work. A queue has requests only while it is here.
    lanes: HashMap<u64, ServedLane>,
    /// Requests assigned to a free worker, with their lanes. Each takes one of the `idle`.
    begun: VecDeque<(u64, Job)>,
    workers: Vec<JoinHandle<()>>,
    /// Why the last attempt to start a worker failed, if it did.
    not_started: Option<NotStarted>,
    /// Workers that serve no lane, woken or not.
    idle: usize,
    /// A request that somebody waits for found no worker, and its owner is to be told.
    wanted: bool,
    closing: bool,
}

/// A lane that has a worker.
#[derive(Default)]
struct ServedLane {
    queue: RequestQueues<Job>,
    /// Workers that serve it, or are about to.
    workers: usize,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("state", &self.shared.state).finish_non_exhaustive()
    }
}

impl fmt::Debug for PoolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolState")
            .field("lanes", &self.lanes.len())
            .field("queued", &self.lanes.values().map(|lane| lane.queue.len()).sum::<usize>())
            .field("workers", &self.workers.len())
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// At most `workers_max` threads, and `lane_max` reads of one lane at a time.
    pub(super) fn new(workers_max: usize, lane_max: usize, worker_is_free: Box<Hook>) -> Self {
        assert!(workers_max > 0 && lane_max > 0);
        let state = Mutex::new(PoolState::default());
        let shared = PoolShared { state, work: Condvar::new(), worker_is_free };
        Self { shared: Arc::new(shared), workers_max, lane_max }
    }

    /// Takes requests off the front of `batch`, as many as the limits allow.
    ///
    /// # Errors
    /// Somebody waits for one that it has not taken, and there is no thread that might take it ever:
    /// the system starts none.
    pub(super) fn start(
        &self,
        lane: &Lane,
        source: &SharedSource,
        batch: &mut Vec<Request>,
    ) -> io::Result<Start> {
        let mut state = self.shared.state.lock();
        let (mut begun, mut stoppable) = (0, Vec::new());
        let mut rest = std::mem::take(batch).into_iter();
        // Ends: each turn takes a request, or is the last.
        while let Some(request) = rest.next() {
            let begins = self.may_begin(&mut state, lane.0);
            let (served, queued) = state.lanes.get(&lane.0).map_or((0, 0), ServedLane::load);
            let waits = served > 0 && (request.is_awaited() || served + queued < self.lane_max);
            if state.closing || !(begins || waits) {
                state.wanted |= request.is_awaited();
                batch.push(request);
                batch.extend(rest);
                break;
            }
            stoppable.extend(request.stoppable());
            let served = state.lanes.entry(lane.0).or_default();
            served.queue.push((source.clone(), request));
            if begins {
                state.begin(lane.0);
                begun += 1;
            }
        }
        let not_started = state.not_started.clone().filter(|_| state.workers.is_empty());
        drop(state);
        for _ in 0..begun {
            self.shared.work.notify_one();
        }
        // The requests are queued and the lock is free, so `tell` may run at once.
        for control in stoppable {
            let shared = Arc::downgrade(&self.shared);
            control.on_stop(Box::new(move || {
                if let Some(shared) = shared.upgrade() {
                    shared.end_stopped();
                }
            }));
        }
        match not_started {
            _ if batch.is_empty() => Ok(Start::Started),
            Some(why) if batch.iter().any(Request::is_awaited) => Err(why.into()),
            _ => Ok(Start::Full),
        }
    }

    /// The error of who has waited for a worker for long.
    pub(super) fn all_busy(&self) -> io::Error {
        let state = self.shared.state.lock();
        let threads = state.workers.len();
        let further = state.not_started.as_ref();
        let further =
            further.map_or_else(String::new, |why| format!("; there is no further: {why}"));
        let text =
            format!("all {threads} threads that read are waiting for other sources{further}");
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    /// Whether the lane may have one more worker and one is free; starts a thread if none is.
    fn may_begin(&self, state: &mut PoolState, lane: u64) -> bool {
        if state.closing || !state.may_serve(lane, self.workers_max) {
            return false;
        }
        if state.idle > state.begun.len() {
            return true;
        }
        let (shared, workers_max) = (Arc::clone(&self.shared), self.workers_max);
        match start("pinfold-read", move || shared.work(workers_max)) {
            Ok(worker) => state.workers.push(worker),
            Err(why) => {
                state.not_started = Some(why);
                return false;
            }
        }
        state.not_started = None;
        state.idle += 1; // at once: it looks for work before it first waits
        true
    }

    /// Accepts no more requests, and waits until all accepted ones are finished.
    pub(super) fn close(&self) {
        let mut state = self.shared.state.lock();
        state.closing = true;
        let workers = std::mem::take(&mut state.workers);
        drop(state);
        self.shared.work.notify_all();
        workers.into_iter().for_each(join_unless_self);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

impl ServedLane {
    fn load(&self) -> (usize, usize) {
        (self.workers, self.queue.len())
    }
}

impl PoolState {
    /// Whether the lane may have one more worker; see the head of the file.
    fn may_serve(&self, lane: u64, workers_max: usize) -> bool {
        let served = self.lanes.get(&lane).map_or(0, |lane| lane.workers);
        let free = workers_max - self.workers.len() + self.idle - self.begun.len();
        let more = served < workers_max / 2 && free > workers_max / 4;
        free > 0 && (served == 0 || more)
    }

    /// Gives the next request of the lane to a free worker.
    fn begin(&mut self, lane: u64) {
        let served = self.lanes.get_mut(&lane).expect("a request was put there");
        served.workers += 1;
        let job = served.queue.pop().expect("the same");
        self.begun.push_back((lane, job));
    }

    /// A lane with a queue that may have one more worker.
    fn in_want(&self, workers_max: usize) -> Option<u64> {
        let mut queued = self.lanes.iter().filter(|(_, lane)| !lane.queue.is_empty());
        queued.find_map(|(&lane, _)| self.may_serve(lane, workers_max).then_some(lane))
    }
}

impl PoolShared {
    /// Ends queued requests that were asked to stop.
    fn end_stopped(&self) {
        let mut stopped = Vec::new();
        for lane in self.state.lock().lanes.values_mut() {
            stopped.extend(lane.queue.take_if(|job| job.1.stop().is_some()));
        }
        for (_, request) in stopped {
            let why = request.stop().expect("it was asked to stop");
            request.finish(Err(why.error()));
        }
    }

    /// A worker's life; it counts as idle when it begins. Ends when the pool is closed and empty.
    fn work(&self, workers_max: usize) {
        let mut state = self.state.lock();
        loop {
            if state.begun.is_empty()
                && let Some(lane) = state.in_want(workers_max)
            {
                state.begin(lane);
            }
            let Some((lane, mut job)) = state.begun.pop_front() else {
                if state.closing {
                    return;
                }
                state = self.work.wait(state);
                continue;
            };
            state.idle -= 1;
            // Ends: each turn takes a request off the lane's queue, which is bounded; more may
            // come for as long as it is served.
            loop {
                drop(state);
                let (source, request) = job;
                // Whatever panics, the lane keeps its worker: a file's queue must not be nobody's.
                quietly("a request", || carry_out(source, request));
                state = self.state.lock();
                let served = state.lanes.get_mut(&lane).expect("it has this worker");
                let Some(next) = served.queue.pop() else { break };
                job = next;
            }
            let served = state.lanes.get_mut(&lane).expect("it has this worker");
            served.workers -= 1;
            if served.workers == 0 {
                state.lanes.remove(&lane);
            }
            state.idle += 1;
            if std::mem::take(&mut state.wanted) {
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
    let result = match request.stop() {
        Some(why) => Err(why.error()),
        None => catch_unwind(AssertUnwindSafe(carry_out)).unwrap_or_else(|_| {
            let what = match request.direction() {
                Direction::Read => "read",
                Direction::Write => "write",
            };
            let kind = guarded("kind", || Ok(source.kind()));
            let kind = kind.unwrap_or("unknown (it panicked when it was asked)".into());
            let text = format!("the source of kind {kind} panicked in a {what}");
            Err(io::Error::other(text))
        }),
    };
    drop(source); // before the completion: the source's owner may be waiting for it
    request.finish(result);
}

/// Waits for a thread to end, unless it is this one: a completion may drop the last handle.
pub(super) fn join_unless_self(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        // A worker does not panic: panics of sources and completions are caught.
        let _ = thread.join();
    }
}
