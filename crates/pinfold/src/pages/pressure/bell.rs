//! The bell of the daemon: wakes it, and ends it.

use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DaemonRequest {
    Sleep,
    Evict,
    End,
}

#[derive(Debug)]
pub(crate) struct Bell {
    listener: Arc<Listener>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
pub(crate) struct Listener {
    asked: Mutex<DaemonRequest>,
    wake: Condvar,
}

impl Bell {
    pub(super) fn new() -> Self {
        let listener = Listener { asked: Mutex::new(DaemonRequest::Sleep), wake: Condvar::new() };
        Bell { listener: Arc::new(listener), thread: Mutex::new(None) }
    }

    pub(crate) fn listener(&self) -> Arc<Listener> {
        self.listener.clone()
    }

    /// The daemon is joined when the bell is dropped.
    pub(crate) fn is_heard_by(&self, thread: JoinHandle<()>) {
        *self.thread.lock() = Some(thread);
    }

    pub(crate) fn ring(&self) {
        let mut asked = self.listener.asked.lock();
        if *asked == DaemonRequest::Sleep {
            *asked = DaemonRequest::Evict;
            self.listener.wake.notify_all();
        }
    }

    /// Unless it is the daemon that drops the cache.
    pub(crate) fn end(&self) {
        *self.listener.asked.lock() = DaemonRequest::End;
        self.listener.wake.notify_all();
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
    /// False if the thread shall end.
    pub(crate) fn wait(&self) -> bool {
        let mut asked = self.asked.lock();
        while *asked == DaemonRequest::Sleep {
            asked = self.wake.wait(asked);
        }
        heard(&mut asked)
    }

    /// For about `nap`. `None` if the bell did not ring.
    pub(crate) fn wait_at_most(&self, nap: Duration) -> Option<bool> {
        let mut asked = self.asked.lock();
        if *asked == DaemonRequest::Sleep {
            asked = self.wake.wait_timeout(asked, nap);
        }
        (*asked != DaemonRequest::Sleep).then(|| heard(&mut asked))
    }
}

fn heard(asked: &mut DaemonRequest) -> bool {
    let goes_on = *asked != DaemonRequest::End;
    if goes_on {
        *asked = DaemonRequest::Sleep;
    }
    goes_on
}
