use std::cell::RefCell;
use std::task::Waker;

use crate::base::guarded::quietly;
use crate::base::mutant::{self, Mutant};
use crate::base::sizes::WAIT_STRIPES as STRIPES;
use crate::base::sync::{self, Condvar, Mutex};

/// Wait queues, shared by all folios of a cache. A waiter checks its condition under the stripe's
/// mutex, and falls asleep or leaves its waker before it releases it. Who wakes makes the condition
/// true, then takes the mutex, so that no waiter is in between, and wakes all.
#[derive(Debug)]
pub(crate) struct Waiters {
    stripes: Box<[Stripe]>,
}

#[derive(Debug)]
struct Stripe {
    futures: Mutex<Vec<Left>>,
    wake: Condvar,
}

#[derive(Debug)]
struct Left {
    key: u32,
    ticket: Ticket,
    waker: Waker,
}

/// Tells one future from the others that wait, for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Ticket {
    pub(crate) fn new() -> Self {
        // Not from `crate::base::sync`: no protocol depends on it.
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: the numbers only have to differ.
        Ticket(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Waiters {
    pub(crate) fn new() -> Self {
        let stripe = || Stripe { futures: Mutex::new(Vec::new()), wake: Condvar::new() };
        Waiters { stripes: (0..STRIPES).map(|_| stripe()).collect() }
    }

    fn stripe(&self, key: u32) -> &Stripe {
        // Heads are aligned to their order: the low bits alone would put them all on a few stripes.
        &self.stripes[(key ^ (key >> 6) ^ (key >> 9)) as usize % STRIPES]
    }

    /// Sleeps until `done`, which must become true before [`Self::wake`] for the same key.
    pub(crate) fn wait(&self, key: u32, mut done: impl FnMut() -> bool) {
        let stripe = self.stripe(key);
        let mut guard = stripe.futures.lock();
        while !done() {
            mutant::pause();
            guard = stripe.wake.wait(guard);
        }
    }

    /// Whether `done` is true. If not, leaves `waker` for the next [`Self::wake`] of `key`.
    pub(crate) fn poll(
        &self,
        key: u32,
        ticket: Ticket,
        waker: &Waker,
        done: impl Fn() -> bool,
    ) -> bool {
        if mutant::on(Mutant::LeaveUnlocked) && done() {
            return true;
        }
        // A waker is the program's: cloned and dropped without the mutex.
        let mut waker = waker.clone();
        mutant::pause();
        let mut futures = self.stripe(key).futures.lock();
        if !mutant::on(Mutant::LeaveUnlocked) && done() {
            drop(futures);
            return true;
        }
        let Some(left) = futures.iter_mut().find(|left| left.ticket == ticket) else {
            futures.push(Left { key, ticket, waker });
            return false;
        };
        std::mem::swap(&mut left.waker, &mut waker);
        drop(futures);
        drop(waker);
        false
    }

    pub(crate) fn leave(&self, key: u32, ticket: Ticket) {
        if mutant::on(Mutant::DropKeepsWaker) {
            return;
        }
        let mut futures = self.stripe(key).futures.lock();
        let left = futures.iter().position(|left| left.ticket == ticket);
        let left = left.map(|at| futures.swap_remove(at));
        drop(futures);
        drop(left);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_empty(&self) -> bool {
        self.stripes.iter().all(|stripe| stripe.futures.lock().is_empty())
    }

    /// The caller holds no lock.
    pub(crate) fn wake(&self, key: u32) {
        drop(self.wake_later(key));
    }

    /// [`wake`](Self::wake) for a caller that holds a lock: wakes the threads, and hands over the
    /// futures, which the caller wakes when it has released the lock.
    pub(crate) fn wake_later(&self, key: u32) -> Woken {
        let stripe = self.stripe(key);
        if mutant::on(Mutant::WakeUnlocked) {
            stripe.wake.notify_all();
            return Woken(Vec::new());
        }
        let woken = stripe.futures.lock().extract_if(.., |left| left.key == key).collect();
        stripe.wake.notify_all();
        Woken(woken)
    }
}

#[cfg(feature = "map")]
pub(crate) async fn until(waiters: &Waiters, key: u32, done: impl Fn() -> bool) {
    struct Leaves<'w>(&'w Waiters, u32, Ticket);
    impl Drop for Leaves<'_> {
        fn drop(&mut self) {
            self.0.leave(self.1, self.2);
        }
    }
    let leaves = Leaves(waiters, key, Ticket::new());
    std::future::poll_fn(|context| {
        let is_done = waiters.poll(key, leaves.2, context.waker(), &done);
        if is_done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Futures that are woken when this is dropped, or at the end of [`together`]: with no lock held,
/// as wakers are the program's, and may enter the cache.
#[derive(Debug, Default)]
#[must_use = "dropped at once, it wakes under the caller's locks"]
pub(crate) struct Woken(Vec<Left>);

impl Woken {
    pub(crate) fn add(&mut self, mut more: Woken) {
        self.0.append(&mut more.0);
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        for left in self.0.drain(..) {
            wake(left.waker);
        }
    }
}

#[cfg(not(loom))]
sync::thread_local! {
    /// For the end of the call of [`together`] that this thread is in.
    static LATER: RefCell<Later> = const { RefCell::new(None) };
}
#[cfg(loom)]
sync::thread_local! {
    static LATER: RefCell<Later> = RefCell::new(None);
}

type Later = Option<Vec<Waker>>;

/// `None`: a thread that ends may have no list any more.
fn with_later<R>(body: impl FnOnce(&mut Later) -> R) -> Option<R> {
    if sync::model_failed() {
        return None;
    }
    LATER.try_with(|later| body(&mut later.borrow_mut())).ok()
}

/// At once or at the end of [`together`]. The caller holds no lock.
pub(crate) fn wake(waker: Waker) {
    let mut now = Some(waker);
    with_later(|later| {
        if let Some(later) = later {
            later.extend(now.take());
        }
    });
    if let Some(waker) = now {
        // The thread has more to wake.
        quietly("a waker", || waker.wake());
    }
}

/// Ends several reads by `land`, and only then wakes the futures that waited for them: one that is
/// woken by the first would contend for the locks that landing the others takes; and a waker that
/// runs here must not find that what it wants is on its way by this very thread. A fault also looks
/// for its page in here. The caller holds no lock.
pub(crate) fn together<R>(land: impl FnOnce() -> R) -> R {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            let woken = with_later(Option::take).flatten().unwrap_or_default();
            if !mutant::on(Mutant::LaterForgotten) {
                woken.into_iter().for_each(wake);
            }
        }
    }
    let begins = |later: &mut Later| later.is_none() && later.replace(Vec::new()).is_none();
    let _end = with_later(begins).unwrap_or(false).then(|| End);
    land()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    use pinfold_testing::waker::Counted;

    use super::{Ticket, Waiters, together};
    use crate::base::mutant::{self, Mutant};

    /// How many of two futures were woken before the end of what landed them, and after it.
    fn landed(panics: bool) -> (usize, usize) {
        let (waiters, (woken, waker)) = (Waiters::new(), Counted::waker());
        for key in [1, 2] {
            assert!(!waiters.poll(key, Ticket::new(), &waker, || false));
        }
        let before = AtomicUsize::new(0);
        let land = || {
            together(|| {
                together(|| waiters.wake(1)); // its end is not the end of all
                waiters.wake(2);
                before.store(woken.times(), Ordering::SeqCst);
                assert!(!panics, "as the test wants it");
            });
        };
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(land)).is_err();
        assert_eq!(unwound, panics);
        (before.into_inner(), woken.times())
    }

    /// How often a future's waker is kept once it has left, beside another's.
    fn kept_by_who_left() -> usize {
        let (waiters, (woken, of_first)) = (Waiters::new(), Counted::waker());
        let tickets = [Ticket::new(), Ticket::new()];
        let poll = |ticket, waker: &Waker| assert!(!waiters.poll(1, ticket, waker, || false));
        poll(tickets[0], &of_first);
        drop(of_first);
        poll(tickets[1], Waker::noop());
        waiters.leave(1, tickets[0]);
        std::sync::Arc::strong_count(&woken) - 1
    }

    #[test]
    fn who_leaves_takes_its_waker_back() {
        assert_eq!(kept_by_who_left(), 0);
        let caught = mutant::with(Some(Mutant::DropKeepsWaker), kept_by_who_left);
        assert_eq!(caught, 1, "the mutant does nothing");
    }

    #[test]
    fn those_who_wait_for_several_reads_are_woken_when_all_have_landed() {
        assert_eq!(landed(false), (0, 2));
        assert_eq!(landed(true), (0, 2), "a panic keeps nothing from them");
        let forgotten = mutant::with(Some(Mutant::LaterForgotten), || landed(false));
        assert_eq!(forgotten, (0, 0), "the mutant does nothing");
    }
}
