//! What the rest of the cache holds of a file's source: every call goes through here, is timed,
//! and its result judged.
//!
//! Belongs here: the metering, the zeroing beyond the end, the telling of a file cut short.
//! Called by `fill.rs`, `writeback.rs` and `stats.rs`.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::engine::Engine;
use super::meter::{self, Meter};
use super::pool;
use super::request::{self, ReadRequest};
use super::{Extent, Hint, Source, SourceStats, extent};

/// A source in use by a cache.
#[derive(Debug)]
pub(crate) struct Backing {
    source: Arc<dyn Source>,
    engine: Arc<Engine>,
    meter: Arc<Meter>,
    lane: pool::Lane,
}

/// A file ended before the length that it had when the cache last asked: somebody cut it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file was cut short while in use: it had {recorded_bytes} bytes, but a read of \
     {asked_bytes} at {offset} met its end at {end}"
)]
pub struct Truncated {
    /// Where the read began.
    pub offset: u64,
    /// How much was asked for.
    pub asked_bytes: u64,
    /// Where the source ended when it was read.
    pub end: u64,
    /// The length that the cache had for it.
    pub recorded_bytes: u64,
}

impl Truncated {
    /// Judges a read of `asked_bytes` at `offset` that brought `got_bytes`, of a source that was
    /// known to be `recorded_bytes` long.
    ///
    /// # Errors
    /// When the source ended before both the read and the recorded length did.
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

#[allow(dead_code, reason = "writing through the cache needs the rest")]
impl Backing {
    pub(crate) fn new(source: Arc<dyn Source>, engine: Arc<Engine>) -> Self {
        let alignment = source.alignment();
        assert!(
            alignment.is_power_of_two() && alignment <= super::open::ALIGNMENT_MAX,
            "the alignment of a source of kind {} is {alignment}",
            source.kind()
        );
        Self { source, engine, meter: Arc::default(), lane: pool::Lane::new() }
    }

    /// Reads into `extents` and returns how many bytes there were; fewer than asked only where
    /// the source ends, and the rest is then zeroed. See [`Truncated::check`] for what to make of
    /// the count.
    pub(crate) fn read(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        timed(&self.meter.read, extent::total_bytes(extents), || {
            request::settle(extents, self.source.read_extents_at(offset, extents))
        })
    }

    /// Starts asynchronous reads, in order. What could not be taken, because as much as
    /// allowed is in flight, is left in `batch`, untouched: wait, read it yourself, or do without
    /// (dropping a request tells its completion of an error).
    ///
    /// Cost: one lock, and at most one system call, for the whole batch.
    pub(crate) fn submit(&self, batch: &mut Vec<ReadRequest>) {
        for request in &mut *batch {
            request.start_clock(&self.meter);
        }
        self.engine.start(&self.lane, &self.source, batch);
        for request in batch {
            request.forget_clock();
        }
    }

    pub(crate) fn write(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        let bytes = extent::total_bytes(extents);
        timed(&self.meter.write, bytes, || {
            self.source.write_extents_at(offset, extents).map(|()| bytes)
        })
        .map(drop)
    }

    pub(crate) fn sync(&self, data_only: bool) -> io::Result<()> {
        timed(&self.meter.sync, 0, || self.source.sync(data_only).map(|()| 0)).map(drop)
    }

    pub(crate) fn len_bytes(&self) -> io::Result<u64> {
        self.source.len_bytes()
    }

    pub(crate) fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.source.set_len(bytes)
    }

    pub(crate) fn advise(&self, range: Range<u64>, hint: Hint) -> io::Result<()> {
        self.source.advise(range, hint)
    }

    pub(crate) fn alignment(&self) -> usize {
        self.source.alignment()
    }

    pub(crate) fn kind(&self) -> Cow<'static, str> {
        self.source.kind()
    }

    pub(crate) fn stats(&self) -> SourceStats {
        self.meter.snapshot(self.kind().into_owned())
    }
}

fn timed(
    lane: &meter::Lane,
    asked: usize,
    call: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let since = Instant::now();
    let result = call();
    lane.count(since.elapsed(), asked, &result);
    result
}
