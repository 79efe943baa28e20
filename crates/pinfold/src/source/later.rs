//! A read that a task waits for.
//!
//! Here: one request with memory of its own, and the future of its end. Called by `swap`.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::request::Request;
use super::{AlignedBuffer, Backing, Extent};
use crate::sync::locks::Mutex;
use crate::wait;

/// What the request and the future share.
struct Shared {
    /// Locked when the read is begun, and when it has ended. Meanwhile the request has its memory.
    buffer: Mutex<Option<AlignedBuffer>>,
    end: Mutex<End>,
}

#[derive(Default)]
struct End {
    result: Option<io::Result<usize>>,
    waker: Option<Waker>,
}

/// Reads the first `bytes` bytes of `buffer` from `offset` on. The buffer comes back with how many
/// were read. A future that is dropped lets the read go on, which keeps the buffer.
///
/// # Errors
/// The source's; and what [`is_refusal`](super::is_refusal) knows, if all who read for sources are
/// busy: nothing was read, and it can be tried again.
pub(crate) async fn read_later(
    backing: &Backing,
    offset: u64,
    buffer: AlignedBuffer,
    bytes: usize,
) -> (AlignedBuffer, io::Result<usize>) {
    assert!(bytes <= buffer.len(), "{bytes} bytes into {}", buffer.len());
    let shared = Shared { buffer: Mutex::new(Some(buffer)), end: Mutex::default() };
    let shared = Arc::new(shared);
    let memory =
        shared.buffer.lock().as_deref_mut().map(|buffer| NonNull::from(&mut buffer[..bytes]));
    // SAFETY: the completion below keeps the buffer where it is; nobody looks into it, or moves it,
    // before that was called.
    let extent = unsafe { Extent::new(memory.expect("it was put there").cast(), bytes) };
    let ended = shared.clone();
    let completion = move |result| {
        let mut end = ended.end.lock();
        end.result = Some(result);
        let waker = end.waker.take();
        drop(end);
        waker.into_iter().for_each(wait::wake);
    };
    // SAFETY: as above.
    let request = unsafe { Request::read(offset, vec![extent], Box::new(completion)) };
    let mut batch = vec![request.awaited()];
    let submitted = backing.try_submit(&mut batch);
    for request in batch {
        match &submitted {
            Ok(()) => request.refuse(),
            Err(cause) => request.finish(Err(io::Error::new(cause.kind(), cause.to_string()))),
        }
    }
    let result = std::future::poll_fn(|context| {
        let waker = context.waker().clone();
        let mut end = shared.end.lock();
        if let Some(result) = end.result.take() {
            return Poll::Ready(result);
        }
        end.waker = Some(waker);
        Poll::Pending
    })
    .await;
    let buffer = shared.buffer.lock().take().expect("it was put there, and taken once");
    (buffer, result)
}
