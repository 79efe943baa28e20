//! Where a cache reads bytes from: files, block devices, memory, or a source of the program's own.
//! [`Cache::open`](crate::Cache::open) makes the source of a file or block device. For other bytes,
//! implement [`Source`], of which only `read_at`, `len_bytes` and `kind` have no default, and pass
//! it to [`Cache::attach`](crate::Cache::attach).
//!
//! | implement | so that |
//! |---|---|
//! | [`Source::read_extents_at`] | bytes go straight to the cache's memory, without a copy |
//! | [`Source::identity`] | attaches of one object share its pages, which outlive its handles |
//! | [`Source::deadline`] | a request that takes too long is asked to stop |
//! | [`Source::carry_out`] | it can stop in the middle of a transfer |
//! | [`Source::start`] | requests need no threads: for clients with a queue of their own |
//! | [`Source::advise`] | the source learns how the program will use a range |
//! | [`Source::alignment`] | offsets, lengths and addresses suit a device |
//!
//! A source that [is writable](Source::is_writable) implements `write_at`, `set_len` and `sync`,
//! too, and perhaps `punch_hole`.

// It stands on `base/`; a file uses only those below it.
//
// ```text
// later        a read that a task waits for
// backing      the source of one file, with its counters and the engine
// open         from a path to a source
// engine       carrying out requests: a ring, threads, a clock
// disk         files and devices, direct or buffered
// ring/        requests by io_uring: one ring for each cache
// own_ring     reads that the calling thread waits for, all at once
// uring        what both kinds of rings share
// descriptor   the system calls on an open file
// clock        deadlines
// pool         threads for sources without a queue of their own
// lanes        the requests of many files that share workers, or the ring
// beside       when a read is not direct, and how often a transfer is tried
// memory       a source in memory
// shared       a share in a source, whose drop may panic
// mod          the trait `Source`
// identity     when two sources are the same object
// contents     whether a file's contents have changed
// aligned      memory at a chosen alignment
// request      one transfer: its bytes, its deadline, its completion
// extent       a run of memory that other threads may read meanwhile
// meter        calls, bytes, latencies
// under_way    how many requests and calls have begun and ended
// ```

mod aligned;
mod backing;
mod beside;
mod clock;
mod contents;
mod descriptor;
mod disk;
mod engine;
mod extent;
mod identity;
mod lanes;
#[cfg(feature = "map")]
mod later;
mod memory;
mod meter;
mod open;
mod own_ring;
mod pool;
mod request;
mod ring;
mod shared;
mod under_way;
mod uring;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::borrow::Cow;
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::time::Duration;

pub(crate) use aligned::AlignedBuffer;
pub(crate) use backing::{Backing, LetGo, Truncated};
pub(crate) use contents::{Contents, Time, realtime, was_just_now};
pub(crate) use engine::{Engine, EngineOptions};
pub use extent::Extent;
pub use identity::SourceIdentity;
pub(crate) use identity::{FileId, FileIdentity, FileKey};
#[cfg(feature = "map")]
pub(crate) use later::read_later;
pub use memory::Memory;
pub use meter::{LaneStats, SourceStats};
#[cfg(any(feature = "map", test))]
pub(crate) use open::Opened;
pub(crate) use open::{Access, OpenError, find, look};
pub(crate) use own_ring::Transfer;
pub(crate) use request::Direction;
pub use request::Request;
use request::overlong;
pub(crate) use request::{is_refusal, refusal};
pub(crate) use shared::shared_bytes;
pub(crate) use under_way::in_a_source;

/// Bytes that the default vectored calls move at a time.
const BOUNCE_BYTES: usize = 256 * 1024;

/// How a program will use a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hint {
    /// It will be read from front to back.
    Sequential,
    /// It will be read in random order, so do not read ahead.
    Random,
    /// It will be read soon.
    WillNeed,
    /// It will not be read again soon.
    DontNeed,
}

/// The result of [`Source::start`] for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Every request was taken.
    Started,
    /// It cannot take the rest now: worker threads read what somebody waits for, and no more.
    Full,
    /// It has no queue that works: worker threads run the rest by [`Source::carry_out`].
    Unsupported,
}

/// Something that bytes are read from and written to: an object store, a block server, or a format
/// that is unpacked on the fly.
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
/// # Which calls it gets
///
/// - **A read that a thread waits for** is a call of [`read_extents_at`](Self::read_extents_at) on
///   that thread. It asks for what the thread wants, in whole pages, from the first page that is
///   not cached on; for a sequential reader for a window, if that is more: 64 KiB at first, and
///   twice as much each time, up to
///   [`Options::readahead_max_bytes`](crate::Options::readahead_max_bytes). It asks for less if a
///   later page is cached, or little memory is free. A thread that wants many pages at once
///   ([`File::read_many`](crate::File::read_many)) makes one such call, and requests for the rest.
/// - **A future** ([`File::get_async`](crate::File::get_async)) makes a request for what a thread
///   would have read. What [`start`](Self::start) does not take, the cache's worker threads [carry
///   out](Self::carry_out): at most 16 for each cache, and 8 at a time for each source. Requests
///   that a future or a batch waits for go before reads ahead, and any number of them may be
///   queued. If all workers are busy with other sources, a batch reads in its own thread, and a
///   future tries again whenever a read ends. It fails with
///   [`ErrorKind::Read`](crate::ErrorKind::Read) of kind [`io::ErrorKind::TimedOut`] after two
///   seconds in which none ended, or after thirty if reads are under way.
/// - **Reading ahead**, which includes prefetches, makes requests of at most a window. Workers
///   carry out what [`start`](Self::start) calls unsupported as long as the source has fewer than
///   128 requests there. What exceeds these limits is not read ahead
///   ([`Stats::readahead_dropped`](crate::Stats::readahead_dropped)).
/// - A call or request has at most 64 extents. Each is the memory of one folio: 4 KiB to 2 MiB.
/// - **A failure of a read ahead is only counted**
///   ([`Stats::fill_errors`](crate::Stats::fill_errors), [`SourceStats::read_ahead`]). A thread
///   that wants such a page reads it again.
/// - **After a read that several threads or futures want has failed**, each of those that waited
///   asks once more, for what it wants alone, and gets the error of that. Not if the read ended
///   with [`io::ErrorKind::TimedOut`], or took thirty seconds: what hangs is waited for once.
/// - **After the last handle of the file is dropped**, requests that wait for a worker are still
///   carried out. They keep the source until then, and the cache's memory.
///
/// # What the cache relies on
///
/// - Calls come from many threads at once, and may block: the cache holds no lock meanwhile that
///   another read needs. A source that hangs blocks its own readers, at most half of the worker
///   threads, and at most half of the ring's slots. If several hang and have all workers, a future
///   that needs one fails with [`io::ErrorKind::TimedOut`] when a thread would give up waiting for
///   memory. Where the system starts not even one worker, it fails at once.
/// - The cache's own threads block the signals that a program can be sent, and so do threads that a
///   source starts there.
/// - Requests of one source begin in the order in which they were made, but those that somebody
///   waits for first. One of eight is a read ahead nevertheless: by now somebody may wait for it.
/// - The cache never has a read and a write, or two writes, of the same bytes in flight at once.
/// - Offsets, lengths and memory addresses are multiples of [`alignment`](Self::alignment). The
///   cache reads the last page whole, so a read may reach beyond the end of the source.
/// - A read is short **only** at the end of the source: by that the cache tells the end of a file
///   from a file that was truncated. A read that fails returns the error, even if bytes before the
///   failure arrived. A count above the bytes asked for becomes [`io::ErrorKind::InvalidData`].
/// - The cache drops a source after the last handle of its file, and the requests under way then.
/// - A panic of a source becomes an error of the read or request that called it, after the panic
///   hook. A panic in the source's `Drop` is caught as well, where the cache drops it.
///
/// # What a source may call
///
/// [`start`](Self::start) may call nothing that waits. The calls that may block may call the cache,
/// too: a source may be layered over another file of the same cache, and may copy, borrow or pin
/// that file's pages **on the thread that called the source**. The handles that it keeps for that
/// do not keep the cache alive. Two things would never end: reading through the cache, even
/// indirectly, from the file that it is the source of; and keeping guards or pins of the cache's
/// pages from one call to the next.
///
/// Memory for the lower file's pages comes from the same budget. If pages of the layered file that
/// are being read take up all of it, the read of the lower file fails with
/// [`ErrorKind::NoMemory`](crate::ErrorKind::NoMemory), which the source returns as its own error.
pub trait Source: Send + Sync + Debug {
    /// Reads from `offset` into `buf`; returns how many bytes: fewer only at the end, 0 beyond it.
    ///
    /// # Errors
    /// If the read fails. The contents of `buf` are then unspecified.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Reads one contiguous range of the source into several runs of memory, in order: the cache's
    /// frames. The default reads through a temporary buffer with [`read_at`](Self::read_at), which
    /// in turn can be this call for `&[Extent::of(buf)]`.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        in_chunks(self.alignment(), offset, extents, |from, done, chunk| {
            let got = self.read_at(from, chunk)?;
            if got > chunk.len() {
                return Err(overlong(got, chunk.len()));
            }
            extent::scatter(extents, done, &chunk[..got]);
            Ok(got)
        })
    }

    /// Whether it can be written to: then files of it can be ([`File::write_at`](crate::File)).
    /// `false` by default. Constant for the life of the source.
    fn is_writable(&self) -> bool {
        false
    }

    /// Writes all of `buf` at `offset`. A write beyond the end makes the source longer. The
    /// default: the source is read-only.
    ///
    /// # Errors
    /// If the write fails. Any part of the range may have been written.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let _ = (offset, buf);
        Err(unsupported("written", &self.kind()))
    }

    /// Writes several runs of memory, in order, to one contiguous range of the source.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<()> {
        let moved = in_chunks(self.alignment(), offset, extents, |to, done, chunk| {
            extent::gather(extents, done, chunk);
            self.write_at(to, chunk).map(|()| chunk.len())
        });
        moved.map(drop)
    }

    /// Length of the source now, in bytes.
    ///
    /// # Errors
    /// If the length cannot be determined.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Truncates the source to `bytes`, or extends it with zeros. The default returns an error.
    ///
    /// # Errors
    /// If it fails, or if the length of this source is fixed.
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let _ = bytes;
        Err(unsupported("resized", &self.kind()))
    }

    /// Makes the bytes of `range` zeros and gives their space back, if the source can. Its length
    /// stays, also if the range ends beyond it. As a change of the length, this stays done when a
    /// later sync fails. The cache writes zeros where it fails; the default does.
    ///
    /// # Errors
    /// If the source cannot do so, or it fails. Any part of the range may be zeros then.
    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let _ = range;
        Err(unsupported("punched", &self.kind()))
    }

    /// Returns once everything written before the call is durable. With `data_only`, metadata that
    /// is not needed to read the data back may be left out. The default returns an error.
    ///
    /// # Errors
    /// If it fails. Writes since the last success may then be lost for good.
    fn sync(&self, data_only: bool) -> io::Result<()> {
        let _ = data_only;
        Err(unsupported("synced", &self.kind()))
    }

    /// Passes on how `range` (in bytes) will be used. The default ignores it.
    ///
    /// # Errors
    /// If the hint could not be passed on; nothing depends on it.
    fn advise(&self, range: Range<u64>, hint: Hint) -> io::Result<()> {
        let _ = (range, hint);
        Ok(())
    }

    /// Every offset, length and memory address given to this source is a multiple of this: a power
    /// of two, at most 4096, constant for the life of the source.
    fn alignment(&self) -> usize {
        1
    }

    /// The kind of source in a few words, for stats and messages: `"buffered"`, for example.
    fn kind(&self) -> Cow<'static, str>;

    /// The object that this source reads and its version, if they identify it among all that are
    /// attached to the same cache. Attaches of one object then share its pages, which stay cached
    /// after the last handle is dropped ([`Cache::attach`](crate::Cache::attach)). `None`, the
    /// default: each attach is a file of its own. Constant for the life of the source: if the
    /// object may change meanwhile, a read of another version must fail (an HTTP client uses
    /// `If-Match`), or the cache would mix the bytes of two versions.
    ///
    /// ```
    /// use pinfold::ErrorKind;
    /// use pinfold::source::{Source, SourceIdentity};
    /// # use std::{borrow::Cow, io, sync::Arc};
    ///
    /// /// An object of a store, as it was under one `ETag`.
    /// #[derive(Debug)]
    /// struct Object {
    ///     etag: &'static str,
    ///     bytes: &'static [u8],
    /// }
    ///
    /// impl Source for Object {
    ///     fn identity(&self) -> Option<SourceIdentity> {
    ///         Some(SourceIdentity { key: "store/table".into(), version: self.etag.into() })
    ///     }
    /// #   fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    /// #       let mut left = &self.bytes[self.bytes.len().min(offset as usize)..];
    /// #       io::Read::read(&mut left, buf)
    /// #   }
    /// #   fn len_bytes(&self) -> io::Result<u64> {
    /// #       Ok(self.bytes.len() as u64)
    /// #   }
    /// #   fn kind(&self) -> Cow<'static, str> {
    /// #       "object".into()
    /// #   }
    ///     // and `read_at`, `len_bytes` and `kind`
    /// }
    ///
    /// # let cache = pinfold::Cache::new(pinfold::Options::new(8 << 20))?;
    /// let one = || Arc::new(Object { etag: "1", bytes: b"old" });
    /// let two = || Arc::new(Object { etag: "2", bytes: b"new" });
    /// let first = cache.attach("table", one())?;
    /// let again = cache.attach("table", one())?; // has the same pages
    /// assert_eq!(cache.attach("table", two()).unwrap_err().kind(), ErrorKind::Changed);
    /// drop((first, again));
    /// let file = cache.attach("table", two())?; // drops the pages of version 1
    /// let mut buf = [0; 3];
    /// file.read_at(&mut buf, 0)?;
    /// assert_eq!(&buf, b"new");
    /// # Ok::<(), pinfold::Error>(())
    /// ```
    fn identity(&self) -> Option<SourceIdentity> {
        None
    }

    /// The time limit of a request that a worker thread, the cache's ring or [`start`](Self::start)
    /// carries out; `None`, the default, is no limit. When it has passed, the request is asked to
    /// stop ([`Request::is_stopped`]), and ends with [`io::ErrorKind::TimedOut`] once its bytes are
    /// no longer being moved. [`read_at`](Self::read_at) and
    /// [`read_extents_at`](Self::read_extents_at) cannot be ended from outside: there the source
    /// must keep the limit by itself, and return the same kind of error.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Carries out a request on a worker thread, which waits in the call. A source that is slow or
    /// may hang should check [`Request::is_stopped`] from time to time, and then return an error.
    /// No byte of the request may be moved after the return.
    ///
    /// # Errors
    /// As of reads and writes. A write returns the number of all its bytes.
    fn carry_out(&self, request: &Request) -> io::Result<usize> {
        let (offset, extents) = (request.offset(), request.extents());
        match request.direction() {
            Direction::Read => self.read_extents_at(offset, extents),
            Direction::Write => self.write_extents_at(offset, extents).map(|()| request.bytes()),
        }
    }

    /// Starts requests that complete later, taking them off the **front** of `batch`: for sources
    /// with a queue of their own, such as a network client. Some thread must
    /// [finish](Request::finish) each that is taken, early if it is [stopped](Request::on_stop).
    /// The call must not block for I/O, nor finish a request. The default takes nothing.
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        let _ = batch;
        Start::Unsupported
    }
}

/// Calls `move_chunk` with an offset in the source, the bytes before it, and a buffer, until one
/// moves less than the buffer holds, or all of `extents` were moved; returns how many bytes.
fn in_chunks(
    alignment: usize,
    offset: u64,
    extents: &[Extent<'_>],
    mut move_chunk: impl FnMut(u64, usize, &mut [u8]) -> io::Result<usize>,
) -> io::Result<usize> {
    let bytes = extent::total_bytes(extents);
    let Some(mut bounce) = AlignedBuffer::try_zeroed(BOUNCE_BYTES.min(bytes), alignment) else {
        return Err(io::ErrorKind::OutOfMemory.into());
    };
    let mut done = 0;
    // Ends: each turn moves a whole chunk forward or is the last.
    while done < bytes {
        let chunk = bounce.len().min(bytes - done);
        let at = offset.checked_add(done as u64).ok_or_else(beyond_offsets)?;
        let moved = move_chunk(at, done, &mut bounce[..chunk])?;
        done += moved;
        if moved < chunk {
            break;
        }
    }
    Ok(done)
}

fn unsupported(what: &str, kind: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("a source of kind {kind} cannot be {what}"))
}

fn beyond_offsets() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the range ends beyond the largest file offset")
}
