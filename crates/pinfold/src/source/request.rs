//! An asynchronous read: the memory it goes to, and who is told when it ends.
//!
//! # States of a request
//! `given` (to `Backing::submit`) -> `started` (taken by a ring, a worker or a source) -> `finished`.
//! From `given` it may also go back to the caller, untouched. It leaves `given` or `started` by
//! [`ReadRequest::finish`] or, if somebody drops it, by its `Drop`: either tells the completion,
//! and consumes the request, so the completion is told exactly once.
//!
//! Belongs here: that promise, and the rules of the memory. Called by `fill.rs` (makes requests)
//! and by whoever carries them out.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::extent::{self, Extent};
use super::meter::Meter;

/// Who is told that an asynchronous read has ended. Implemented for closures.
pub trait Completion: Send {
    /// Called exactly once per request, on whichever thread ended it: the ring's, a worker's, a
    /// source's own, or the one that drops the request. Never from inside the call that
    /// submitted it. `Ok(n)` with `n` below the request's bytes means that the source ended
    /// there; the memory beyond is zeroed. After an error the memory's contents are unspecified.
    ///
    /// It must be short and must not wait for another read: others complete on the same
    /// thread. It may take locks that no thread holds while it submits, and may submit more. A
    /// panic is caught, after the panic hook has printed it.
    fn complete(self: Box<Self>, result: io::Result<usize>);
}

impl<F: FnOnce(io::Result<usize>) + Send> Completion for F {
    fn complete(self: Box<Self>, result: io::Result<usize>) {
        (*self)(result);
    }
}

/// A read of one contiguous range of a source into runs of memory that it has the use of until
/// it ends.
pub struct ReadRequest {
    offset: u64,
    bytes: usize,
    extents: Vec<Extent<'static>>,
    completion: Option<Box<dyn Completion>>,
    metered: Option<(Arc<Meter>, Instant)>,
}

impl fmt::Debug for ReadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadRequest")
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .field("extents", &self.extents)
            .finish_non_exhaustive()
    }
}

impl ReadRequest {
    /// A read from `offset` of as many bytes as `extents` hold together.
    ///
    /// # Safety
    /// The memory of every extent keeps [`Extent::new`]'s contract until `completion` is called,
    /// and for ever if it never is (a source may leak a request). This is the one place where
    /// memory is lent for longer than a call.
    ///
    /// # Panics
    /// When there is nothing to read, or the range ends beyond the largest file offset.
    pub unsafe fn new(
        offset: u64,
        extents: Vec<Extent<'static>>,
        completion: Box<dyn Completion>,
    ) -> Self {
        let bytes = extent::total_bytes(&extents);
        assert!(bytes > 0, "a request must read something");
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| i64::try_from(end).is_ok()), "ends beyond 2^63 - 1");
        Self { offset, bytes, extents, completion: Some(completion), metered: None }
    }

    /// Where in the source it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes are asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory to read into, in order; usable for as long as the request is.
    // Not `Extent<'static>`: a source could keep copies and write after the end.
    pub fn extents(&self) -> &[Extent<'_>] {
        &self.extents
    }

    /// Ends the request and tells its completion. `Ok(n)`: the first `n` bytes are in memory,
    /// fewer than asked only when the source ends there; the rest is zeroed here.
    pub fn finish(mut self, result: io::Result<usize>) {
        self.end(result);
    }

    /// From now on the request's time counts, for `meter`.
    pub(super) fn start_clock(&mut self, meter: &Arc<Meter>) {
        self.metered = Some((Arc::clone(meter), Instant::now()));
    }

    /// The request goes back to who gave it, as if it had never been submitted.
    pub(super) fn forget_clock(&mut self) {
        self.metered = None;
    }

    fn end(&mut self, result: io::Result<usize>) {
        let Some(completion) = self.completion.take() else { return };
        let result = settle(&self.extents, result);
        if let Some((meter, since)) = self.metered.take() {
            meter.read_ahead.count(since.elapsed(), self.bytes, &result);
        }
        // The hook has printed the panic; the thread that carries the requests of others goes on.
        let _ = catch_unwind(AssertUnwindSafe(|| completion.complete(result)));
    }
}

impl Drop for ReadRequest {
    fn drop(&mut self) {
        if self.completion.is_some() {
            self.end(Err(io::Error::other("the read was dropped before it was carried out")));
        }
    }
}

/// Judges what a source returned for `extents`: a count that is too large becomes an error, what
/// lies beyond the end of the source becomes zeros.
pub(super) fn settle(extents: &[Extent<'_>], result: io::Result<usize>) -> io::Result<usize> {
    let asked = extent::total_bytes(extents);
    match result {
        Ok(got) if got > asked => Err(overlong(got, asked)),
        Ok(got) => {
            extent::zero_from(extents, got);
            Ok(got)
        }
        Err(cause) => Err(cause),
    }
}

pub(super) fn overlong(got: usize, asked: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the source said it read {got} bytes where {asked} were asked for"),
    )
}
