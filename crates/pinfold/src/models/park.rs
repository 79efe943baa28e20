//! A thread that polls a future and sleeps in between, as a runtime's does.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::base::sync::{Condvar, Mutex};

struct Parked {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.woken.lock() = true;
        self.wake.notify_all();
    }
}

/// Calls `poll` until it has a result. Sleeps in between until the waker that it gave to `poll` is
/// woken; calls it at most `polls` times, if that is given.
pub(super) fn until<T>(polls: Option<u32>, mut poll: impl FnMut(&Waker) -> Option<T>) -> Option<T> {
    let parked = Arc::new(Parked { woken: Mutex::new(false), wake: Condvar::new() });
    let waker = Waker::from(parked.clone());
    let mut polled = 0;
    loop {
        if let Some(it) = poll(&waker) {
            return Some(it);
        }
        polled += 1;
        let mut woken = parked.woken.lock();
        while !*woken {
            woken = parked.wake.wait(woken);
        }
        *woken = false;
        drop(woken);
        if polls == Some(polled) {
            return None;
        }
    }
}
