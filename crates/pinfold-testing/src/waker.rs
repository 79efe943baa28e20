//! Wakers that tell whether they were woken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// How often a waker was woken.
#[derive(Debug, Default)]
pub struct Counted(AtomicUsize);

impl Counted {
    /// A waker, and its count.
    pub fn waker() -> (Arc<Self>, Waker) {
        let counted = Arc::new(Counted::default());
        (counted.clone(), counted.into())
    }

    /// How often it was woken so far.
    pub fn times(&self) -> usize {
        // Acquire: pairs with the release in `wake`. Who sees it woken sees why.
        self.0.load(Ordering::Acquire)
    }

    /// How often it was woken so far; it counts from 0 again.
    pub fn take(&self) -> usize {
        // Acquire: as in `times`.
        self.0.swap(0, Ordering::Acquire)
    }

    /// Waits until it was woken so often.
    pub fn wait_for(&self, times: usize) {
        // Ends: what the test waits for happens.
        while self.times() < times {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        // Release: pairs with the acquire in `times`, `take`.
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Whether a future is to be polled, by the thread that made this.
#[derive(Debug)]
pub struct Woken {
    yes: AtomicBool,
    thread: Thread,
}

impl Woken {
    /// For a future that was not polled yet, and so is to be.
    pub fn new() -> Arc<Self> {
        Arc::new(Woken { yes: AtomicBool::new(true), thread: std::thread::current() })
    }

    /// Whether it was woken since the last call. If not, the thread may park.
    pub fn take(&self) -> bool {
        // Acquire: pairs with the release in `wake`. The poll sees what it was woken for.
        self.yes.swap(false, Ordering::Acquire)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        // Release: pairs with the acquire in `take`.
        self.yes.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wake_up_counts() {
        let (woken, waker) = Counted::waker();
        assert_eq!(woken.times(), 0);
        waker.wake_by_ref();
        waker.wake();
        woken.wait_for(2);
        assert_eq!((woken.times(), woken.take(), woken.times()), (2, 2, 0));
    }

    #[test]
    fn a_parked_thread_goes_on() {
        let woken = Woken::new();
        assert!(woken.take() && !woken.take());
        let waker = Waker::from(woken.clone());
        let wakes = std::thread::spawn(move || waker.wake());
        // Ends: the other thread wakes this one.
        while !woken.take() {
            std::thread::park();
        }
        wakes.join().unwrap();
        assert!(!woken.take());
    }
}
