//! Futures that one thread waits for, by an eventfd that is readable while one may have ended.
//!
//! A future's waker puts its key into `WokenKeys`, and the thread polls the futures whose keys are
//! there. The eventfd is written and read under that mutex alone: raised by whoever adds the first
//! key, or has something else to be taken, and lowered when the thread has found nothing any more.
//! So the thread misses nothing. A key is never used again.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::EventfdFlags;

use crate::base::fork::OwnerProcess;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::locks::Mutex;
#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};

pub(crate) struct Set<T, F: ?Sized> {
    ready: Arc<Ready>,
    waiting: HashMap<u64, WaitingFuture<T, F>>,
    last_key: u64,
}

struct WaitingFuture<T, F: ?Sized> {
    tag: T,
    future: Pin<Box<F>>,
    waker: Waker,
}

impl<T, F: Future + ?Sized> Set<T, F> {
    pub(crate) fn of(ready: Ready) -> Self {
        Set { ready: Arc::new(ready), waiting: HashMap::new(), last_key: 0 }
    }

    /// Keeps it unless it ends at once: then this is its end.
    pub(crate) fn begin(&mut self, tag: T, future: Pin<Box<F>>) -> Option<(T, F::Output)> {
        self.last_key += 1;
        let key = self.last_key;
        let waker = Waker::from(Arc::new(FutureKey { key, ready: self.ready.clone() }));
        let mut waiting = WaitingFuture { tag, future, waker };
        match waiting.poll() {
            Poll::Ready(output) => Some((waiting.tag, output)),
            Poll::Pending => {
                self.waiting.insert(key, waiting);
                None
            }
        }
    }

    /// If none has ended, the descriptor is not readable any more.
    pub(crate) fn next(&mut self) -> Option<(T, F::Output)> {
        // Ends: each turn takes a key, and each key was added because something has happened.
        loop {
            let key = self.ready.take()?;
            // None if it was given up, or woken once more.
            let Some(waiting) = self.waiting.get_mut(&key) else { continue };
            if let Poll::Ready(output) = waiting.poll() {
                let ended = self.waiting.remove(&key)?;
                return Some((ended.tag, output));
            }
        }
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn wake_nobody(&self) {
        self.ready.raise(Some(0));
    }

    /// The descriptor is readable until [`next`](Self::next) finds nothing.
    pub(crate) fn raise(&self) {
        self.ready.raise(None);
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.waiting.retain(|_, waiting| keep(&waiting.tag));
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl<T, F: Future + ?Sized> WaitingFuture<T, F> {
    fn poll(&mut self) -> Poll<F::Output> {
        self.future.as_mut().poll(&mut Context::from_waker(&self.waker))
    }
}

impl<T, F: ?Sized> AsFd for Set<T, F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl AsFd for Ready {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Shared with those who wake; it can be made before the thread runs.
pub(crate) struct Ready {
    woken: Mutex<WokenKeys>,
    event: OwnedFd,
    owner: OwnerProcess,
}

struct WokenKeys {
    keys: VecDeque<u64>,
    raised: bool,
}

impl Ready {
    pub(crate) fn new() -> Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|why| Cause::eventfd(why.into()))?;
        let owner = OwnerProcess::here().map_err(Cause::fork_handler)?;
        let woken = Mutex::new(WokenKeys { keys: VecDeque::new(), raised: false });
        Ok(Ready { woken, event, owner })
    }

    /// Also adds the `key`, if there is one.
    fn raise(&self, key: Option<u64>) {
        // A child of a fork would raise its parent's eventfd.
        if !self.owner.is_here() {
            return;
        }
        let mut woken = self.woken.lock();
        woken.keys.extend(key);
        if !std::mem::replace(&mut woken.raised, true) && !mutant::on(Mutant::EventUnwritten) {
            let write = || rustix::io::write(&self.event, &1_u64.to_ne_bytes());
            let written = rustix::io::retry_on_intr(write);
            assert!(written.is_ok(), "writing to the eventfd failed: {written:?}");
        }
    }

    /// If there is none, the eventfd is not readable any more.
    fn take(&self) -> Option<u64> {
        if !self.owner.is_here() {
            return None;
        }
        let mut woken = self.woken.lock();
        let key = woken.keys.pop_front();
        if key.is_none() && std::mem::take(&mut woken.raised) {
            let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.event, &mut [0; 8]));
            // A program may have read it, which it should not.
            assert!(
                matches!(read, Ok(8) | Err(rustix::io::Errno::AGAIN)),
                "reading the eventfd failed: {read:?}"
            );
        }
        key
    }
}

struct FutureKey {
    key: u64,
    ready: Arc<Ready>,
}

impl Wake for FutureKey {
    fn wake(self: Arc<Self>) {
        self.ready.raise(Some(self.key));
    }
}
