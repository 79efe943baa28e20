//! A read that a task waits for: one request with memory of its own, and the future of its end.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::request::Request;
use super::{AlignedBuffer, Backing, Extent};
use crate::base::sync::locks::Mutex;
use crate::base::wait;

struct LaterShared {
    /// Meanwhile the request has its memory.
    buffer: Mutex<Option<AlignedBuffer>>,
    end: Mutex<ReadEnd>,
}

#[derive(Default)]
struct ReadEnd {
    result: Option<io::Result<usize>>,
    waker: Option<Waker>,
}

/// Reads the first `bytes` bytes of `buffer` from `offset` on, and gives it back with how many were
/// read. A future that is dropped lets the read go on, which keeps the buffer. Error: the source's,
/// or what [`is_refusal`](super::is_refusal) knows if all who read are busy: it can be tried again.
pub(crate) async fn read_later(
    backing: &Backing,
    offset: u64,
    buffer: AlignedBuffer,
    bytes: usize,
) -> (AlignedBuffer, io::Result<usize>) {
    assert!(bytes <= buffer.len(), "{bytes} bytes into {}", buffer.len());
    let shared = LaterShared { buffer: Mutex::new(Some(buffer)), end: Mutex::default() };
    let shared = Arc::new(shared);
    let memory =
        shared.buffer.lock().as_deref_mut().map(|buffer| NonNull::from(&mut buffer[..bytes]));
    // SAFETY: the completion keeps the buffer where it is; nobody looks into it before that.
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
    match (submitted, batch.pop()) {
        (_, None) => {}
        (Ok(()), Some(request)) => request.refuse(),
        (Err(cause), Some(request)) => request.finish(Err(cause)),
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::borrow::Cow;
    use std::pin::pin;
    use std::sync::mpsc::{Receiver, channel};
    use std::task::Context;

    use super::super::{Engine, EngineOptions, Memory, Source, is_refusal};
    use super::*;

    /// Its reads wait until they may go on.
    #[derive(Debug)]
    struct Hanging(Mutex<Receiver<()>>);

    impl Source for Hanging {
        fn len_bytes(&self) -> io::Result<u64> {
            Ok(100)
        }

        fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
            self.0.lock().recv().expect("the test goes on");
            buf.fill(9);
            Ok(buf.len())
        }

        fn kind(&self) -> Cow<'static, str> {
            "hanging".into()
        }
    }

    fn buffer() -> AlignedBuffer {
        AlignedBuffer::zeroed(16, 8)
    }

    #[test]
    fn who_finds_all_busy_is_refused_and_the_buffer_comes_back() {
        let options = EngineOptions { workers_max: 1, ..EngineOptions::default() };
        let engine = Arc::new(Engine::new(options));
        let (go_on, hanging) = channel();
        let hanging = Backing::new(Arc::new(Hanging(Mutex::new(hanging))), engine.clone());
        let other = Backing::new(Arc::new(Memory::new(vec![7; 100])), engine.clone());
        let mut context = Context::from_waker(Waker::noop());
        let mut hangs = pin!(read_later(&hanging, 0, buffer(), 8));
        assert!(hangs.as_mut().poll(&mut context).is_pending());
        let refused = pin!(read_later(&other, 0, buffer(), 8)).poll(&mut context);
        let Poll::Ready((back, Err(why))) = refused else { panic!("{:?}", refused.is_ready()) };
        assert!(is_refusal(&why), "{why}");
        assert_eq!(back[..], [0; 16]);
        go_on.send(()).unwrap();
        // Ends: it goes on.
        let (back, read) = loop {
            if let Poll::Ready(ended) = hangs.as_mut().poll(&mut context) {
                break ended;
            }
            std::thread::yield_now();
        };
        assert_eq!((read.unwrap(), &back[..8], &back[8..]), (8, &[9; 8][..], &[0; 8][..]));
    }
}
