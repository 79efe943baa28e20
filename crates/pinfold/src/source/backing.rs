//! The source of one file, as the rest of the cache sees it. Every call to a source goes through
//! here: it is timed, its result is checked, and a panic becomes an error.
//!
//! Belongs here: the metering, the zeroing beyond the end, reporting a truncated file. Called by
//! `fill`, `file` and `cache`.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::sync::locks::RwLock;

use super::disk::{BUFFERED, Disk};
use super::engine::Engine;
use super::meter::Meter;
use super::open::ALIGNMENT_MAX;
use super::pool;
use super::request::{self, Request};
use super::shared::{SharedSource, shared_bytes};
use super::under_way::Inside;
use super::{Extent, Hint, Identity, Source, SourceStats, extent};
use crate::guarded::guarded;

/// The kind of a source that was let go of.
const CLOSED: &str = "none: the file is closed";

/// A source in use by a cache.
#[derive(Debug)]
pub(crate) struct Backing {
    current: RwLock<Current>,
    engine: Arc<Engine>,
    meter: Arc<Meter>,
}

/// What another source of the same object brings with it when it takes over.
#[derive(Debug)]
struct Current {
    /// `None` once it was let go of.
    source: Option<SharedSource>,
    /// The source's own: nothing waits for requests of the source before it.
    lane: Arc<pool::Lane>,
}

/// A file was truncated: it ended before the length that it had when the cache last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file was cut short while in use: it had {recorded_bytes} bytes, but a read of \
     {asked_bytes} at {offset} met its end at {end}"
)]
pub struct Truncated {
    /// Where the read began.
    pub offset: u64,
    /// How many bytes were asked for.
    pub asked_bytes: u64,
    /// Where the source ended when it was read.
    pub end: u64,
    /// The length that the cache had recorded.
    pub recorded_bytes: u64,
}

impl Truncated {
    /// Checks a read of `asked_bytes` at `offset` that returned `got_bytes`, from a source whose
    /// recorded length is `recorded_bytes`.
    ///
    /// # Errors
    /// If the source ended before both the end of the read and the recorded length.
    pub fn check(
        offset: u64,
        asked_bytes: u64,
        got_bytes: u64,
        recorded_bytes: u64,
    ) -> Result<(), Self> {
        let expected = recorded_bytes.saturating_sub(offset).min(asked_bytes);
        if got_bytes >= expected {
            return Ok(());
        }
        Err(Self { offset, asked_bytes, end: offset + got_bytes, recorded_bytes })
    }
}

impl Backing {
    pub(crate) fn new(source: Arc<dyn Source>, engine: Arc<Engine>) -> Self {
        let current = Current { source: Some(source.into()), lane: Arc::new(pool::Lane::new()) };
        Self { current: RwLock::new(current), engine, meter: Arc::default() }
    }

    /// Bytes that it has on the heap, beside itself. `of_system`: its source is a file's.
    pub(crate) fn heap_bytes(of_system: bool) -> usize {
        let file = if of_system { Disk::heap_bytes() } else { 0 };
        shared_bytes(size_of::<Meter>()) + shared_bytes(size_of::<pool::Lane>()) + file
    }

    /// The source, as it is now. Only for whoever has a handle of the file.
    pub(super) fn source(&self) -> SharedSource {
        self.current.read().source.clone().expect("a file with a handle has a source")
    }

    /// What the source says that it is.
    ///
    /// # Errors
    /// It panicked.
    pub(crate) fn identity(&self) -> io::Result<Option<Identity>> {
        Ok(guarded("identity", || Ok(self.source().identity()))?.map(Into::into))
    }

    /// Checks a source that the program implements, before its first use.
    ///
    /// # Errors
    /// If the cache cannot keep its alignment.
    pub(crate) fn check(&self) -> io::Result<()> {
        let alignment = guarded("alignment", || Ok(self.source().alignment()))?;
        if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX {
            return Ok(());
        }
        let kind = self.kind();
        let text = format!(
            "a source of kind {kind} has an alignment of {alignment} bytes, which must be a power \
             of two up to {ALIGNMENT_MAX}"
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }

    /// Takes over the source of `other`, which is of the same object, and its lane. Returns the old
    /// source, for the caller to drop where that may take long.
    pub(crate) fn adopt(&self, other: &Self) -> Option<SharedSource> {
        let (source, lane) = (Some(other.source()), other.current.read().lane.clone());
        std::mem::replace(&mut *self.current.write(), Current { source, lane }).source
    }

    /// Lets go of the source, for the caller to drop; until it adopts another, nothing is read.
    pub(crate) fn let_go(&self) -> Option<SharedSource> {
        self.current.write().source.take()
    }

    /// Reads into `extents` and returns the number of bytes read. A short count means that the
    /// source ended there; the rest is zeroed. [`Truncated::check`] checks the count.
    pub(crate) fn read(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        let (_moves, _inside) = (self.engine.under_way().begin(), Inside::enter());
        let since = Instant::now();
        let read = guarded("a read", || self.source().read_extents_at(offset, extents));
        let result = request::settle(extents, read);
        self.meter.read.count(since.elapsed(), extent::total_bytes(extents), &result);
        result
    }

    /// Starts requests in order, each with the source's deadline if it has one. Requests beyond the
    /// limit on those in flight stay in `batch`, untouched: the caller waits, reads them itself, or
    /// drops them, which completes them with an error.
    ///
    /// Cost: one lock, and at most one system call, for the whole batch.
    pub(crate) fn submit(&self, batch: &mut Vec<Request>) {
        let source = self.source();
        // A source that panics here gets its requests without a deadline.
        let deadline = guarded("deadline", || Ok(source.deadline())).ok().flatten();
        let deadline = deadline.and_then(|limit| Instant::now().checked_add(limit));
        for request in &mut *batch {
            request.start_clock(&self.meter, self.engine.under_way());
            if let Some(deadline) = deadline {
                request.end_by(deadline);
            }
        }
        // If the source panics, requests it has not taken stay in the batch; dropping ends the
        // others.
        let lane = self.current.read().lane.clone();
        let start = || Ok(self.engine.start(&lane, &source, batch));
        let _ = guarded("start", start);
        for request in batch {
            request.forget_clock();
        }
    }

    pub(crate) fn len_bytes(&self) -> io::Result<u64> {
        guarded("len_bytes", || self.source().len_bytes())
    }

    pub(crate) fn advise(&self, range: Range<u64>, hint: Hint) -> io::Result<()> {
        guarded("advise", || self.source().advise(range, hint))
    }

    fn kind(&self) -> Cow<'static, str> {
        let Some(source) = self.current.read().source.clone() else { return CLOSED.into() };
        let kind = guarded("kind", || Ok(source.kind()));
        kind.unwrap_or("unknown (it panicked when it was asked)".into())
    }

    /// Whether it is a file of the system that is read through the kernel's page cache.
    pub(crate) fn is_buffered(&self) -> bool {
        self.kind() == BUFFERED
    }

    pub(crate) fn stats(&self) -> SourceStats {
        self.meter.snapshot(self.kind().into_owned())
    }
}
