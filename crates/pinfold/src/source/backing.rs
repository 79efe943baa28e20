//! The source of one file, as the rest of the cache sees it. Every call to a source is timed, its
//! result is checked, and a panic becomes an error.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use crate::base::sync::locks::RwLock;

use super::contents::Contents;
use super::descriptor::Descriptor;
use super::disk::{BUFFERED, Disk};
use super::engine::Engine;
use super::meter::Meter;
use super::open::{ALIGNMENT_MAX, Opened};
use super::own_ring::{self, OwnRing, Transfer};
use super::pool;
use super::request::{self, Request};
use super::shared::{SharedSource, shared_bytes};
use super::{AlignedBuffer, Extent, FileIdentity, Hint, Source, SourceStats, extent};
use crate::base::guarded::guarded;
use crate::base::mutant::{self, Mutant};
#[cfg(all(feature = "serve", not(loom)))]
use crate::base::threads::NotStarted;
use crate::frames::PAGE_BYTES;

const CLOSED: &str = "none: the file is closed";

#[derive(Debug)]
pub(crate) struct Backing {
    current: RwLock<Current>,
    engine: Arc<Engine>,
    meter: Arc<Meter>,
}

#[derive(Clone, Debug)]
struct Current {
    /// `None` once it was let go of.
    source: Option<SharedSource>,
    file: Option<Arc<Descriptor>>,
    /// Nothing waits for requests of the source before it.
    lane: Arc<pool::Lane>,
}

/// What a source was. Dropping it may take long, and may close other files.
#[derive(Debug, Default)]
pub(crate) struct LetGo {
    source: Option<SharedSource>,
    file: Option<Arc<Descriptor>>,
}

impl LetGo {
    pub(crate) fn is_some(&self) -> bool {
        self.source.is_some()
    }

    /// Whether it is a file to which no path leads any more.
    pub(crate) fn is_deleted(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_deleted())
    }
}

/// A file ended before the length that it had when the cache last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file was cut short while in use: it had {recorded_bytes} bytes, but a read of \
     {asked_bytes} at {offset} met its end {}",
    if end == offset { "there, or it ends before".to_owned() } else { format!("at {end}") }
)]
pub(crate) struct Truncated {
    pub(crate) offset: u64,
    pub(crate) asked_bytes: u64,
    /// Where the source ended when it was read: there, or, if the read began there, perhaps before.
    pub(crate) end: u64,
    pub(crate) recorded_bytes: u64,
}

impl Truncated {
    /// Checks what a read returned: whether it ended before the recorded length.
    pub(crate) fn check(
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
        let lane = Arc::new(pool::Lane::new());
        let current = Current { source: Some(source.into()), file: None, lane };
        Self { current: RwLock::new(current), engine, meter: Arc::default() }
    }

    pub(crate) fn of_file(opened: Opened, engine: Arc<Engine>) -> Self {
        let backing = Self::new(opened.source, engine);
        backing.current.write().file = Some(opened.file);
        backing
    }

    /// Beside itself. `of_system`: its source is a file's.
    pub(crate) fn heap_bytes(of_system: bool) -> usize {
        let file = if of_system { Disk::heap_bytes() } else { 0 };
        shared_bytes(size_of::<Meter>()) + shared_bytes(size_of::<pool::Lane>()) + file
    }

    pub(super) fn source(&self) -> SharedSource {
        self.current.read().source.clone().expect("a file with a handle has a source")
    }

    pub(crate) fn is_open(&self) -> bool {
        self.current.read().source.is_some()
    }

    /// For calls that may come when the last handle has gone.
    fn open_source(&self) -> io::Result<SharedSource> {
        let source = self.current.read().source.clone();
        source.ok_or_else(|| io::Error::other("the file is closed"))
    }

    fn file(&self) -> Option<Arc<Descriptor>> {
        self.current.read().file.clone()
    }

    pub(crate) fn identity(&self) -> io::Result<Option<FileIdentity>> {
        Ok(guarded("identity", || Ok(self.source().identity()))?.map(Into::into))
    }

    /// Checks a source that the program implements, before its first use.
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

    /// Takes over source and lane of `other`, of the same object. Returns the old source.
    pub(crate) fn adopt(&self, other: &Self) -> Option<SharedSource> {
        let new = other.current.read().clone();
        std::mem::replace(&mut *self.current.write(), new).source
    }

    /// Until it adopts another source, nothing is read.
    pub(crate) fn let_go(&self) -> LetGo {
        let mut current = self.current.write();
        LetGo { source: current.source.take(), file: current.file.take() }
    }

    /// A short count: the source ended there, and the rest is zeroed. See [`Truncated::check`].
    pub(crate) fn read(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        self.read_by(extents, || self.source().read_extents_at(offset, extents))
    }

    /// [`read`](Self::read) of what was read before: of a file that has grown lately, what the
    /// kernel's page cache has.
    pub(crate) fn read_again(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        match self.file() {
            Some(file) => self.read_by(extents, || file.read_again(offset, extents)),
            None => self.read(offset, extents),
        }
    }

    fn read_by(
        &self,
        extents: &[Extent<'_>],
        read: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let _call = self.engine.begin_call();
        let since = Instant::now();
        let read = guarded("a read", read);
        let result = request::settle(extents, read);
        self.meter.read.count(since.elapsed(), extent::total_bytes(extents), &result);
        result
    }

    pub(crate) fn is_writable(&self) -> bool {
        guarded("is_writable", || Ok(self.open_source()?.is_writable())).unwrap_or(false)
    }

    pub(crate) fn has_fixed_length(&self) -> bool {
        self.file().is_some_and(|file| file.block_device)
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.file().is_some_and(|file| file.is_deleted())
    }

    /// Carries out all writes at once, and waits for their ends: the result of each. One that is
    /// alone is made in this thread.
    pub(crate) fn write_all(&self, writes: Vec<Transfer<'_>>) -> Vec<io::Result<()>> {
        match &writes[..] {
            [] => return Vec::new(),
            [(offset, extents)] => return vec![self.write(*offset, extents)],
            _ => {}
        }
        if let Some(ring) = self.own_ring() {
            return ring.write_all(writes);
        }
        let (tell, told) = mpsc::channel();
        let request = |(n, (offset, extents)): (usize, &Transfer<'_>)| {
            let tell = tell.clone();
            let completion = move |result| drop(tell.send((n, result)));
            // SAFETY: of both: this call waits until all completions were called.
            let owned = |it: &Extent<'_>| unsafe { Extent::new(it.address(), it.bytes()) };
            let extents = extents.iter().map(owned).collect();
            // SAFETY: as above.
            unsafe { Request::write(*offset, extents, Box::new(completion)) }.awaited()
        };
        let mut requests: Vec<_> = writes.iter().enumerate().map(request).collect();
        drop(tell);
        let _ = self.try_submit(&mut requests);
        // What nobody takes, this thread does.
        for mut request in requests {
            request.start_clock(&self.meter, &self.engine.under_way);
            let done = guarded("a write", || self.open_source()?.carry_out(&request));
            request.finish(done);
        }
        let mut results: Vec<_> = writes.iter().map(|_| Ok(())).collect();
        // Ends: each request tells its end once.
        while let Ok((n, result)) = told.recv() {
            results[n] = result.map(drop);
        }
        results
    }

    fn write(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        let source = self.open_source()?;
        self.write_by(extent::total_bytes(extents), || source.write_extents_at(offset, extents))
    }

    /// A number that has changed when one has.
    pub(crate) fn writes_ended(&self) -> u64 {
        self.meter.write.calls()
    }

    fn write_by(&self, bytes: usize, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let _call = self.engine.begin_call();
        let since = Instant::now();
        let written = guarded("a write", write).map(|()| bytes);
        self.meter.write.count(since.elapsed(), bytes, &written);
        written.map(drop)
    }

    /// Writes the last bytes of the source, from the start of a page on.
    pub(crate) fn write_tail(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let source = self.open_source()?;
        self.write_by(bytes.len(), || match self.file() {
            Some(file) => file.write_tail(offset, bytes),
            None if source.alignment() == 1 => source.write_at(offset, bytes),
            None => {
                let mut block = AlignedBuffer::zeroed(PAGE_BYTES, PAGE_BYTES);
                block[..bytes.len()].copy_from_slice(bytes);
                let blocks = bytes.len().next_multiple_of(source.alignment());
                source.write_at(offset, &block[..blocks])?;
                if mutant::on(Mutant::TailUncut) {
                    return Ok(());
                }
                source.set_len(offset + bytes.len() as u64)
            }
        })
    }

    pub(crate) fn set_len(&self, bytes: u64) -> io::Result<()> {
        guarded("set_len", || self.open_source()?.set_len(bytes))
    }

    pub(crate) fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        guarded("punch_hole", || self.open_source()?.punch_hole(range))
    }

    /// Without a source, all is durable: the last handle has gone meanwhile, and has looked.
    pub(crate) fn sync(&self, data_only: bool) -> io::Result<()> {
        let source = self.current.read().source.clone();
        source.map_or(Ok(()), |source| guarded("sync", || source.sync(data_only)))
    }

    /// The calling thread's ring for a batch, if it may have one for this source.
    pub(crate) fn own_ring(&self) -> Option<OwnRing<'_>> {
        let file = self.file().filter(|file| file.by_own_rings)?;
        own_ring::take(file, &self.engine.under_way, &self.meter)
    }

    pub(crate) fn submit(&self, batch: &mut Vec<Request>) {
        let _ = self.try_submit(batch);
    }

    /// Starts requests in order, each with the source's deadline if it has one. What is not taken
    /// stays in `batch`; to drop it completes it with an error. Cost: one lock, and at most one
    /// system call. Error: the source panicked, or no thread can be started.
    pub(crate) fn try_submit(&self, batch: &mut Vec<Request>) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(()); // a program's source need not care
        }
        let source = self.open_source()?;
        // A source that panics here gets its requests without a deadline.
        let deadline = guarded("deadline", || Ok(source.deadline())).ok().flatten();
        let deadline = deadline.and_then(|limit| Instant::now().checked_add(limit));
        for request in &mut *batch {
            request.start_clock(&self.meter, &self.engine.under_way);
            if let Some(deadline) = deadline {
                request.end_by(deadline);
            }
        }
        // If the source panics, what it has not taken stays in the batch; dropping ends the others.
        let lane = self.current.read().lane.clone();
        let started = guarded("start", || self.engine.start(&lane, &source, batch));
        batch.iter_mut().for_each(Request::forget_clock);
        started.map(drop)
    }

    /// From now on it is read for readers that do not trust each other: reads ahead have few of the
    /// worker threads, and those that it may have are started. Error: the system refuses them.
    #[cfg(all(feature = "serve", not(loom)))]
    pub(crate) fn share_out(&self) -> Result<(), NotStarted> {
        self.engine.pool.share_out(&self.current.read().lane)
    }

    #[cfg(all(feature = "serve", not(loom)))]
    pub(crate) fn at_once(&self) -> usize {
        match &self.engine.ring {
            Ok(ring) if self.current.read().lane.has_queue() => ring.at_once(),
            _ => self.engine.pool.at_once(),
        }
    }

    pub(crate) fn len_bytes(&self) -> io::Result<u64> {
        guarded("len_bytes", || self.source().len_bytes())
    }

    pub(crate) fn contents(&self) -> io::Result<Option<Contents>> {
        self.file().map_or(Ok(None), |file| file.contents())
    }

    pub(crate) fn advise(&self, range: Range<u64>, hint: Hint) -> io::Result<()> {
        guarded("advise", || self.source().advise(range, hint))
    }

    /// Drops what the kernel's page cache has of the range of a file that is read through it.
    pub(crate) fn forget(&self, range: Range<u64>) {
        if let Some(file) = self.file() {
            file.forget(range);
        }
    }

    fn kind(&self) -> Cow<'static, str> {
        let source = self.current.read().source.clone();
        source.map_or(CLOSED.into(), |source| source.name())
    }

    pub(crate) fn is_buffered(&self) -> bool {
        self.kind().starts_with(BUFFERED)
    }

    pub(crate) fn stats(&self) -> SourceStats {
        self.meter.snapshot(self.kind().into_owned())
    }
}
