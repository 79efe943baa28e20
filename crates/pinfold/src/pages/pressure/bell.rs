//! The bell of the daemon: wakes it, and ends it.

use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex};

/// A request to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DaemonRequest {
    Sleep,
    Evict,
    End,
}

/// The bell itself.
#[derive(Debug)]
pub(crate) struct Bell {
    ring: Arc<(Mutex<DaemonRequest>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The daemon's side of a [`Bell`].
#[derive(Debug)]
pub(crate) struct Listener(Arc<(Mutex<DaemonRequest>, Condvar)>);

impl Bell {
    pub(super) fn new() -> Self {
        let ring = Arc::new((Mutex::new(DaemonRequest::Sleep), Condvar::new()));
        Bell { ring, thread: Mutex::new(None) }
    }

    pub(crate) fn listener(&self) -> Listener {
        Listener(self.ring.clone())
    }

    /// Sets the daemon, which is joined when the bell is dropped.
    pub(crate) fn is_heard_by(&self, thread: JoinHandle<()>) {
        *self.thread.lock() = Some(thread);
    }

    /// Wakes the daemon: fewer frames are free than should be.
    pub(crate) fn ring(&self) {
        let (ring, wake) = &*self.ring;
        let mut ring = ring.lock();
        if *ring == DaemonRequest::Sleep {
            *ring = DaemonRequest::Evict;
            wake.notify_all();
        }
    }

    /// Ends the daemon and joins it, unless it is the one that drops the cache.
    pub(crate) fn end(&self) {
        let (ring, wake) = &*self.ring;
        *ring.lock() = DaemonRequest::End;
        wake.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|t| t.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.end();
    }
}

impl Listener {
    /// Sleeps until the bell rings; false if the thread shall end.
    pub(crate) fn wait(&self) -> bool {
        let (ring, wake) = &*self.0;
        let mut ring = ring.lock();
        while *ring == DaemonRequest::Sleep {
            ring = wake.wait(ring);
        }
        heard(&mut ring)
    }

    /// Sleeps until the bell rings or for about `nap`; `None` if it did not ring, and
    /// `Some(false)` if the thread shall end.
    pub(crate) fn wait_at_most(&self, nap: Duration) -> Option<bool> {
        let (mutex, wake) = &*self.0;
        let mut ring = mutex.lock();
        if *ring == DaemonRequest::Sleep {
            ring = wake.wait_timeout(mutex, ring, nap);
        }
        (*ring != DaemonRequest::Sleep).then(|| heard(&mut ring))
    }
}

fn heard(ring: &mut DaemonRequest) -> bool {
    if *ring == DaemonRequest::End {
        return false;
    }
    *ring = DaemonRequest::Sleep;
    true
}
