//! The thread that evicts ahead of need: from the low watermark to the high one.

use std::sync::{Arc, Weak};

use super::{EFFORT_MAX, evict};
use crate::core::Core;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};

/// Pages evicted between two looks at the watermark, at most.
const BATCH_PAGES: u32 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Sleep,
    Evict,
    End,
}

/// The daemon's bell, and its thread once it runs.
#[derive(Debug)]
pub(crate) struct Daemon {
    bell: Arc<(Mutex<Order>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Daemon {
    pub(crate) fn new() -> Self {
        let bell = Arc::new((Mutex::new(Order::Sleep), Condvar::new()));
        Daemon { bell, thread: Mutex::new(None) }
    }

    /// Starts the thread, which keeps nothing of `core` alive.
    pub(crate) fn start(&self, core: Weak<Core>) -> std::io::Result<()> {
        let bell = self.bell.clone();
        let thread = thread::Builder::new()
            .name("pinfold-reclaim".to_owned())
            .spawn(move || life(&bell, &core))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// There is less free than there should be.
    pub(crate) fn kick(&self) {
        let (order, wake) = &*self.bell;
        let mut order = order.lock();
        if *order == Order::Sleep {
            *order = Order::Evict;
            wake.notify_all();
        }
    }
}

impl Daemon {
    /// Ends the thread, and waits for that.
    pub(crate) fn end(&self) {
        let (order, wake) = &*self.bell;
        *order.lock() = Order::End;
        wake.notify_all();
        // The last to let go of a core may be the daemon itself.
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|t| t.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

fn life(bell: &(Mutex<Order>, Condvar), core: &Weak<Core>) {
    loop {
        {
            let mut order = bell.0.lock();
            while *order == Order::Sleep {
                order = bell.1.wait(order);
            }
            if *order == Order::End {
                return;
            }
            *order = Order::Sleep;
        }
        let Some(core) = core.upgrade() else { return };
        // Ends: each turn evicts something, or the sweep found nothing to evict.
        loop {
            let wanted = core.reclaim.high_frames.saturating_sub(core.frames.free_frames());
            if wanted == 0 || evict(&core, wanted.min(BATCH_PAGES), EFFORT_MAX).evicted == 0 {
                break;
            }
        }
    }
}
