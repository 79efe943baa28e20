//! Where bytes come from: files, devices, memory, or a source that the program brings itself.
//!
//! Belongs here: the [`Source`] trait, its implementations, opening files, requests that complete
//! later (the `Engine`) and the counting of calls (the `Meter`). Does not: which pages are read
//! when, who waits for them, and what a page's state is (`fill`), nor any frame. Called by: `fill`
//! for reads, `Cache` for opening and stats.
//!
//! | file | what it holds |
//! |---|---|
//! | `extent.rs` | a run of memory that others may be looking at |
//! | `request.rs` | bytes to be moved, by when, and who is told when it is over |
//! | `clock.rs` | deadlines |
//! | `backing.rs` | what the rest of the cache holds: one source, metered, with the engine |
//! | `engine.rs`, `ring.rs`, `pool.rs` | who carries out requests |
//! | `descriptor.rs` | the system calls on an open file |
//! | `disk.rs`, `memory.rs` | the sources |
//! | `open.rs` | from a path to a source |
//! | `identity.rs` | what makes two sources the same |
//! | `meter.rs` | calls, bytes, latencies |
//! | `under_way.rs` | whether anything is |

mod aligned;
mod backing;
mod clock;
mod descriptor;
mod disk;
mod engine;
mod extent;
mod identity;
mod memory;
mod meter;
mod open;
mod pool;
mod request;
mod ring;
mod under_way;

#[cfg(all(test, not(loom)))]
mod tests;

use std::borrow::Cow;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::time::Duration;

use aligned::AlignedBuffer;
pub use backing::Truncated;
pub(crate) use backing::{Backing, guarded};
pub(crate) use engine::{Engine, EngineOptions};
pub use extent::Extent;
pub use identity::SourceIdentity;
pub(crate) use identity::{Identity, Key};
pub use memory::Memory;
pub use meter::{LATENCY_BUCKETS, LaneStats, SourceStats};
pub(crate) use open::open;
pub use open::{Access, OpenError, Preference, open_file};
use request::overlong;
pub use request::{Canceller, Completion, Direction, Request, Stop};
pub(crate) use under_way::in_a_source;

/// How much the default vectored forms move at a time through memory of their own.
const BOUNCE_BYTES: usize = 256 * 1024;

/// What a program knows about how it will use a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hint {
    /// It will be read from front to back.
    Sequential,
    /// It will be read in no order; reading ahead is waste.
    Random,
    /// It will be read soon.
    WillNeed,
    /// It will not be read again soon.
    DontNeed,
}

/// What became of a batch given to [`Source::start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The batch is empty: every request was taken.
    Started,
    /// What is left in the batch cannot be taken now; the cache decides whether to wait or to
    /// do without.
    Full,
    /// This source has no queue of its own (or none that works): the cache's worker threads run
    /// what is left through [`Source::carry_out`].
    Unsupported,
}

/// A place that bytes are read from and written to.
///
/// The cache comes with sources for files and memory. A program may bring its own, for an object
/// store, a block server or a format that unpacks on the fly:
///
/// ```
/// use pinfold::source::Source;
/// use std::{borrow::Cow, io};
///
/// /// A megabyte in which byte `n` is `n % 251`.
/// #[derive(Debug)]
/// struct Pattern;
///
/// impl Source for Pattern {
///     fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
///         let left = self.len_bytes()?.saturating_sub(offset);
///         let bytes = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
///         for (n, byte) in buf[..bytes].iter_mut().enumerate() {
///             *byte = ((offset + n as u64) % 251) as u8;
///         }
///         Ok(bytes)
///     }
///     fn len_bytes(&self) -> io::Result<u64> {
///         Ok(1 << 20)
///     }
///     fn kind(&self) -> Cow<'static, str> {
///         "pattern".into()
///     }
/// }
///
/// let mut buf = [0; 4];
/// assert_eq!(Pattern.read_at(250, &mut buf)?, 4);
/// assert_eq!(buf, [250, 0, 1, 2]);
/// # Ok::<(), io::Error>(())
/// ```
///
/// # What the cache relies on
///
/// - Calls come from many threads at once, and may block. The cache holds no lock during a call
///   that another of its reads needs, and no read waits behind another source's: one that hangs
///   keeps those who read from it, and at most half of the worker threads, but nobody else.
/// - Of the same bytes, the cache never has a read and a write, or two writes, in flight at once.
/// - Offsets, lengths and memory addresses are multiples of [`alignment`](Self::alignment). The
///   last page is asked for whole, so a read may reach beyond the end of the source.
/// - A read is short **only** at the end of the source. One that meets a fault returns the error
///   even when bytes before the fault arrived. So a count below what was asked says exactly where
///   the source ended at that moment, and the cache can tell "end of file" from "somebody cut the
///   file short".
/// - Wrong counts cannot harm memory: a count above what was asked is reported as
///   [`io::ErrorKind::InvalidData`].
/// - A panic in a read passes through to the reader who asked; on a worker thread it fails that
///   one request.
///
/// # What a source may call
///
/// Anything, from [`read_at`](Self::read_at) and the other calls that may block; from
/// [`start`](Self::start) nothing that waits. That includes the cache itself: a source
/// may be layered over another file of the same cache and read from it, with any of its doors,
/// **on the thread that it was called on**. Two things it may not do, as nothing could end them:
///
/// - read, through the cache and however indirectly, from a file of which it is the source: it
///   would wait for itself;
/// - keep pages of the cache (guards, pins) from one call to the next: they are memory that the
///   cache cannot have back for what the source reads into.
///
/// Memory for the lower file's pages comes from the same budget. Where all of that is on its way
/// to readers of the layered file, its read fails with
/// [`Error::NoMemory`](crate::Error::NoMemory), which it passes on as its own error.
pub trait Source: Send + Sync + Debug {
    /// Reads from `offset` into `buf`; returns the bytes read, fewer than asked only at the end
    /// of the source, 0 at or beyond it.
    ///
    /// # Errors
    /// Whatever went wrong; the contents of `buf` are then unspecified.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Reads one contiguous range of the source into several runs of memory, in order. This is
    /// what the cache calls: the extents are its frames.
    ///
    /// The default reads through a buffer of its own with [`read_at`](Self::read_at): one
    /// allocation and one copy more than a source that overrides it.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        let bytes = extent::total_bytes(extents);
        let mut bounce = bounce_for(self.alignment(), bytes);
        let mut done = 0;
        // Ends: each turn moves a whole chunk forward or is the last.
        while done < bytes {
            let chunk = bounce.len().min(bytes - done);
            let from = offset.checked_add(done as u64).ok_or_else(beyond_offsets)?;
            let got = self.read_at(from, &mut bounce[..chunk])?;
            if got > chunk {
                return Err(overlong(got, chunk));
            }
            extent::scatter(extents, done, &bounce[..got]);
            done += got;
            if got < chunk {
                break;
            }
        }
        Ok(done)
    }

    /// Writes all of `buf` at `offset`, making the source longer when it reaches beyond the end.
    ///
    /// The default refuses: the source is read-only.
    ///
    /// # Errors
    /// Whatever went wrong. Any part of the range may have been written by then.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let _ = (offset, buf);
        Err(unsupported("written", &self.kind()))
    }

    /// Writes several runs of memory, in order, to one contiguous range of the source.
    ///
    /// The default copies through a buffer of its own to [`write_at`](Self::write_at).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        let bytes = extent::total_bytes(extents);
        let mut bounce = bounce_for(self.alignment(), bytes);
        let mut done = 0;
        // Ends: each turn moves a whole chunk forward.
        while done < bytes {
            let chunk = bounce.len().min(bytes - done);
            let to = offset.checked_add(done as u64).ok_or_else(beyond_offsets)?;
            extent::gather(extents, done, &mut bounce[..chunk]);
            self.write_at(to, &bounce[..chunk])?;
            done += chunk;
        }
        Ok(())
    }

    /// Length of the source now, in bytes.
    ///
    /// # Errors
    /// When the length cannot be learned.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Cuts the source to `bytes`, or extends it with zeros. The default refuses.
    ///
    /// # Errors
    /// Whatever went wrong, or that this source has a fixed length.
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let _ = bytes;
        Err(unsupported("resized", &self.kind()))
    }

    /// Returns once everything written before the call is durable; with `data_only`, without
    /// what is not needed to read the data back (times, say). The default refuses, so that a
    /// source that learns to write cannot forget to make writes durable.
    ///
    /// # Errors
    /// Whatever went wrong. Writes since the last success may then be lost, and asking again
    /// does not bring them back.
    fn sync(&self, data_only: bool) -> io::Result<()> {
        let _ = data_only;
        Err(unsupported("synced", &self.kind()))
    }

    /// Passes on what is known about the use of `range` (bytes). The default ignores it.
    ///
    /// # Errors
    /// When the hint could not be passed on; nothing depends on it.
    fn advise(&self, range: Range<u64>, hint: Hint) -> io::Result<()> {
        let _ = (range, hint);
        Ok(())
    }

    /// Bytes of which every offset, length and memory address must be a multiple: a power of
    /// two, at most a page (4096), and the same for the source's whole life. 1 by default.
    fn alignment(&self) -> usize {
        1
    }

    /// What this source is, in a few words, for stats and messages: `"buffered"`, say.
    fn kind(&self) -> Cow<'static, str>;

    /// What object this is, and which version of it, if that can be told apart from all others that
    /// are attached to the same cache. Then it is attached as a file is opened: two attaches of one
    /// object share its pages, and these stay cached when the last handle goes, to be found by the next
    /// attach. See [`Cache::attach`](crate::Cache::attach) for what becomes of another version.
    ///
    /// The same for the source's whole life. If the object may be changed under it, the source sees to
    /// it that what it reads is of this version or an error (an HTTP client, by `If-Match`): the cache
    /// cannot tell, and would mix the bytes of two versions.
    ///
    /// `None`, the default: each attach is a file of its own.
    fn identity(&self) -> Option<SourceIdentity> {
        None
    }

    /// The longest that a request may take which is carried out later: by a worker thread, the
    /// cache's ring, or [`start`](Self::start). After that it is asked to end, as soon as nobody moves
    /// its bytes any more, and ends with [`io::ErrorKind::TimedOut`]; see [`Request::stop`]. `None`,
    /// the default, is as long as it takes.
    ///
    /// A call of [`read_at`](Self::read_at) or [`read_extents_at`](Self::read_extents_at), which its
    /// caller waits in, cannot be ended from outside, as the memory is in use until it returns. A source
    /// that has a deadline keeps to it there by itself, and returns such an error.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Carries out a request while a worker thread waits in the call. A source whose transfers take
    /// long, or may never end, looks at [`Request::stop`] from time to time and returns an error when
    /// there is one; nobody may be moving bytes for it then.
    ///
    /// The default is [`read_extents_at`](Self::read_extents_at) or
    /// [`write_extents_at`](Self::write_extents_at).
    ///
    /// # Errors
    /// As those. A write returns the number of all its bytes.
    fn carry_out(&self, request: &Request) -> io::Result<usize> {
        let (offset, extents) = (request.offset(), request.extents());
        match request.direction() {
            Direction::Read => self.read_extents_at(offset, extents),
            Direction::Write => self.write_extents_at(offset, extents).map(|()| request.bytes()),
        }
    }

    /// Starts requests that complete later, taking them off the **front** of `batch`. For sources
    /// with a queue of their own, a network client, say. What is taken must be
    /// [finished](Request::finish) by some thread at some time, early if it is
    /// [stopped](Request::on_stop); what is left is up to the cache, by the returned [`Start`]. Must
    /// not block for I/O, nor finish a request before it returns.
    ///
    /// The default takes nothing: the cache's workers call [`carry_out`](Self::carry_out).
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        let _ = batch;
        Start::Unsupported
    }
}

fn bounce_for(alignment: usize, bytes: usize) -> AlignedBuffer {
    AlignedBuffer::zeroed(BOUNCE_BYTES.max(alignment).min(bytes), alignment)
}

fn unsupported(what: &str, kind: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("a source of kind {kind} cannot be {what}"))
}

fn beyond_offsets() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the range ends beyond the largest file offset")
}
