//! The engine carries out a cache's requests: one ring, a few worker threads and a clock.

use std::io;
use std::sync::Arc;

use super::Start;
use super::clock::Clock;
use super::pool::{Lane, Pool};
use super::request::Request;
use super::ring::Ring;
use super::shared::SharedSource;
use super::under_way::{Call, Reads, UnderWay};

#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineOptions {
    /// Reads in the ring at a time; 0 for no ring.
    pub(crate) ring_depth: usize,
    /// Reads in the ring at which it takes no more for which nobody waits.
    pub(crate) ring_ahead: usize,
    /// Threads that read for sources without a queue of their own.
    pub(crate) workers_max: usize,
    /// Reads of one file that the workers may have at a time, running or queued.
    pub(crate) lane_max: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        // Devices gain up to 256 reads and more, half of the ring.
        Self { ring_depth: 512, ring_ahead: 128, workers_max: 16, lane_max: 128 }
    }
}

/// Dropping it waits for every read in flight; there are none, as each read keeps the cache.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) ring: Result<Arc<Ring>, String>,
    pub(super) pool: Pool,
    pub(super) clock: Clock,
    pub(super) under_way: UnderWay,
}

impl Engine {
    #[cfg(all(test, not(loom)))]
    pub(crate) fn new(options: EngineOptions) -> Self {
        Self::with_hook(options, || {})
    }

    /// Without a ring the workers carry out its requests, and `Source::kind` says why.
    /// `worker_is_free` is called, without a lock, when a worker has become free after a request
    /// that somebody waits for found none.
    pub(crate) fn with_hook(
        options: EngineOptions,
        worker_is_free: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let ring = match options.ring_depth {
            0 => Err("switched off".to_owned()),
            depth => Ring::open(depth, options.ring_ahead)
                .map(Arc::new)
                .map_err(|cause| cause.to_string()),
        };
        let pool = Pool::new(options.workers_max, options.lane_max, Box::new(worker_is_free));
        Self { ring, pool, clock: Clock::default(), under_way: UnderWay::default() }
    }

    pub(crate) fn reads(&self) -> Reads {
        self.under_way.reads()
    }

    /// The calling thread calls a source, until what this returns is dropped.
    pub(crate) fn begin_call(&self) -> Call {
        Call::begin(&self.under_way)
    }

    /// The error of who has waited for a worker for long.
    pub(crate) fn all_busy(&self) -> io::Error {
        self.pool.all_busy()
    }

    /// Starts requests of `batch` in order, as many as it can. One that is queued for the workers
    /// waits for other requests of `lane` only. Error: somebody waits for one that needs a worker,
    /// and the system starts none.
    pub(super) fn start(
        &self,
        lane: &Lane,
        source: &SharedSource,
        batch: &mut Vec<Request>,
    ) -> io::Result<Start> {
        self.clock.watch(batch.iter());
        let started = source.start(batch);
        lane.set_has_queue(started != Start::Unsupported);
        match started {
            Start::Unsupported => self.pool.start(lane, source, batch),
            // Its queue is full, or it says that it took what it did not; but somebody waits.
            Start::Full | Start::Started if batch.iter().any(Request::is_awaited) => {
                self.pool.start(lane, source, batch)
            }
            other => Ok(other),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Sources may hold the ring for longer.
        if let Ok(ring) = &self.ring {
            ring.close();
        }
        self.pool.close();
        // Last: what the others wait for may end by deadlines alone.
        self.clock.close();
    }
}
