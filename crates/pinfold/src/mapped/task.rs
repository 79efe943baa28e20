//! How a mapped access is waited for: by a thread, in place, or by a task of a handler thread,
//! which serves others meanwhile. Either runs an `async fn` that takes a [`Waiter`]. With
//! [`Waiter::Thread`] it never pends, so [`now`] runs it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiter<'r> {
    /// The calling thread, in the call.
    Thread,
    /// A task of the handler thread with these timers. It blocks the thread for locks and copies
    /// alone.
    Task(&'r Rests),
}

pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a thread waits in place"),
    }
}

/// Tasks of one thread that rest: until when, and what wakes them.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    /// By the time, and a number that tells apart those of the same time.
    ends: RefCell<BTreeMap<(Instant, u64), Waker>>,
    next: Cell<u64>,
    /// When [`once_in`](Self::once_in) was true.
    last: Cell<Option<Instant>>,
}

impl Rests {
    /// Pends for `time`, until [`wake`](Self::wake) is called after that.
    pub(crate) async fn rest(&self, time: Duration) {
        if cfg!(any(loom, shuttle)) {
            return crate::base::sync::thread::yield_now(); // a model has no time: others go on
        }
        let (end, number) = (Instant::now() + time, self.next.get());
        self.next.set(number + 1);
        std::future::poll_fn(|context| {
            let mut ends = self.ends.borrow_mut();
            if Instant::now() >= end {
                ends.remove(&(end, number));
                return Poll::Ready(());
            }
            ends.insert((end, number), context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The end of `future`, which is polled again after each `time`, whether it was woken or not.
    pub(crate) async fn poll_each<T>(&self, time: Duration, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        // Ends: with the future.
        loop {
            let mut rest = pin!(self.rest(time));
            let ended = std::future::poll_fn(|context| {
                if let Poll::Ready(end) = future.as_mut().poll(context) {
                    return Poll::Ready(Some(end));
                }
                rest.as_mut().poll(context).map(|()| None)
            });
            if let Some(end) = ended.await {
                return end;
            }
        }
    }

    /// Whether this was not true for `time`, in this thread.
    pub(crate) fn once_in(&self, time: Duration) -> bool {
        let now = Instant::now();
        let is_over = self.last.get().is_none_or(|last| now.duration_since(last) >= time);
        if is_over {
            self.last.set(Some(now));
        }
        is_over
    }

    /// How often tasks have rested.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn times(&self) -> u64 {
        self.next.get()
    }

    /// Wakes those whose time is over. Returns how long the next one rests, if there is one.
    pub(crate) fn wake(&self) -> Option<Duration> {
        let now = Instant::now();
        // Ends: each turn but the last takes one.
        loop {
            let mut ends = self.ends.borrow_mut();
            let first = ends.first_entry()?;
            let (end, _) = *first.key();
            if end > now {
                return Some(end - now);
            }
            let waker = first.remove();
            drop(ends);
            waker.wake();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use pinfold_testing::waker::Counted;

    #[test]
    fn what_does_not_pend_runs_now() {
        assert_eq!(now(async { 7 }), 7);
    }

    #[test]
    #[should_panic(expected = "a thread waits in place")]
    fn a_thread_does_not_pend() {
        now(std::future::pending::<()>());
    }

    #[test]
    fn what_nobody_wakes_is_polled_again() {
        let rests = Rests::default();
        let polls = Cell::new(0);
        let third = std::future::poll_fn(|_| {
            polls.set(polls.get() + 1);
            if polls.get() == 3 { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut task = pin!(rests.poll_each(Duration::from_millis(1), third));
        let (woken, waker) = Counted::waker();
        let mut seen = 0;
        // Ends: time passes.
        while task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            while woken.times() == seen {
                rests.wake();
                std::thread::yield_now();
            }
            seen = woken.times();
        }
        assert_eq!(polls.get(), 3);
    }

    #[test]
    fn something_happens_once_in_a_while() {
        let rests = Rests::default();
        let long = Duration::from_secs(1000);
        assert!(rests.once_in(long) && !rests.once_in(long) && rests.once_in(Duration::ZERO));
    }

    #[test]
    fn who_rests_is_woken_when_its_time_is_over_and_not_before() {
        let rests = Rests::default();
        let (woken, waker) = Counted::waker();
        let mut context = Context::from_waker(&waker);
        let mut long = pin!(rests.rest(Duration::from_secs(1000)));
        let mut short = pin!(rests.rest(Duration::from_millis(1)));
        assert!(long.as_mut().poll(&mut context).is_pending());
        assert!(short.as_mut().poll(&mut context).is_pending());
        // Ends: its time passes.
        while woken.times() == 0 {
            let left = rests.wake().expect("one rests for long");
            assert!(left > Duration::ZERO && left <= Duration::from_secs(1000));
            std::thread::yield_now();
        }
        assert!(short.as_mut().poll(&mut context).is_ready());
        assert!(long.as_mut().poll(&mut context).is_pending());
        rests.wake();
        assert_eq!(woken.times(), 1);
    }
}
