//! A few threads that carry out reads for sources without a queue of their own.
//!
//! Belongs here: the queue, its bound, and the threads' life. They are started when first
//! needed, one for each read that finds no thread idle, up to a limit, and live as long as the
//! cache. Called by `engine.rs`.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::request::ReadRequest;
use super::{Source, Start};

/// Worker threads and the reads that wait for one.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers_max: usize,
    queue_max: usize,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Arc<dyn Source>, ReadRequest)>,
    workers: Vec<JoinHandle<()>>,
    /// Workers that wait on the condition, whether or not it was signalled since.
    idle: usize,
    closing: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("queued", &self.queue.len())
            .field("workers", &self.workers.len())
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// At most `workers_max` threads, and `queue_max` reads that wait for one.
    pub(super) fn new(workers_max: usize, queue_max: usize) -> Self {
        assert!(workers_max > 0 && queue_max > 0);
        let shared = Shared { state: Mutex::new(State::default()), work: Condvar::new() };
        Self { shared: Arc::new(shared), workers_max, queue_max }
    }

    /// Takes requests off the front of `batch`, as many as there is room for.
    pub(super) fn start(&self, source: &Arc<dyn Source>, batch: &mut Vec<ReadRequest>) -> Start {
        let mut state = self.shared.state.lock();
        if state.closing {
            return if batch.is_empty() { Start::Started } else { Start::Full };
        }
        let room = self.queue_max.saturating_sub(state.queue.len()).min(batch.len());
        let busy = state.workers.len() - state.idle;
        let wanted = self.workers_max.min(busy + state.queue.len() + room);
        // Ends: one thread more in each turn. Where none more can be had, those there are do it.
        while state.workers.len() < wanted {
            let Ok(worker) = self.spawn() else { break };
            state.workers.push(worker);
            state.idle += 1; // at once: it looks for work before it first waits
        }
        let taken = if state.workers.is_empty() { 0 } else { room };
        state.queue.extend(batch.drain(..taken).map(|request| (Arc::clone(source), request)));
        drop(state);
        for _ in 0..taken {
            self.shared.work.notify_one();
        }
        if batch.is_empty() { Start::Started } else { Start::Full }
    }

    fn spawn(&self) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new().name("pinfold-read".into()).spawn(move || shared.work())
    }

    /// Takes no more, and waits until all that was taken is finished.
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

impl Shared {
    /// A worker's life; it counts as idle when it begins. Ends when the pool is closed and empty.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((source, request)) = state.queue.pop_front() {
                state.idle -= 1;
                drop(state);
                carry_out(source, request);
                state = self.state.lock();
                state.idle += 1;
            } else if state.closing {
                return;
            } else {
                self.work.wait(&mut state);
            }
        }
    }
}

fn carry_out(source: Arc<dyn Source>, request: ReadRequest) {
    let read = || source.read_extents_at(request.offset(), request.extents());
    let result = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        let text = format!("the source of kind {} panicked in a read", source.kind());
        Err(io::Error::other(text))
    });
    drop(source); // before the completion, which may be what its owner waits for
    request.finish(result);
}

/// Waits for a thread to end; not for oneself, as when a completion drops the last handle.
pub(super) fn join_unless_self(thread: JoinHandle<()>) {
    if thread.thread().id() != std::thread::current().id() {
        // A worker does not panic: sources' and completions' panics are caught.
        let _ = thread.join();
    }
}
