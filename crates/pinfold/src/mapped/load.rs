//! Load control: how many pages threads bring at a time for their mapped accesses.
//!
//! Where many threads bring pages into little memory, each evicts what the others have just brought
//! and not yet used (Denning, "Thrashing: its causes and prevention", 1968). So what is being
//! brought is at most a 16th of the cache; further threads wait, and begin in the order in which
//! they came. Those that come may pass those that wait, as long as none has waited for [`PATIENT`]:
//! a thread that goes on where it was is about to use what it has brought.
//!
//! What takes longer than [`LONG`] is not counted any more: a source that hangs must not keep
//! others from theirs. `may_wait_with` has the bound on which progress rests.
//!
//! The tasks of handler threads wait in the same queue ([`Queued`]), and look again after
//! [`LOOK_AGAIN`], as nothing wakes them because others take long.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::base::mutant::{self, Mutant};
use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::base::wait;

/// At most one in this many of the cache's pages is being brought. Half as many make the slowest
/// threads slower, twice as many all.
const SHARE: u32 = 16;

/// A device that is not overloaded takes less for a read.
const LONG: Duration = Duration::from_millis(50);

/// How long a task that waits sleeps at most. Those behind it wait for its look.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long others may pass a thread that waits.
const PATIENT: Duration = Duration::from_millis(20);

/// Threads sleep on several condition variables: to wake one wakes few others.
const BEDS: usize = 64;

#[derive(Debug)]
pub(crate) struct Load {
    pages_max: u32,
    patient: Duration,
    long: Duration,
    /// No other lock is taken under it.
    state: Mutex<LoadState>,
    /// The thread with number n sleeps on the one with number n modulo their number.
    turn: [Condvar; BEDS],
}

#[derive(Debug, Default)]
struct LoadState {
    /// Of those in `under_way`.
    pages: u32,
    /// What was begun and has neither ended nor taken long, by number: the oldest first.
    under_way: BTreeMap<u64, BegunRead>,
    waiting: VecDeque<LoadWaiter>,
    next: u64,
}

#[derive(Debug)]
struct LoadWaiter {
    number: u64,
    since: Instant,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct BegunRead {
    pages: u32,
    since: Instant,
}

#[derive(Debug)]
#[must_use = "dropped at once, nothing is brought"]
pub(crate) struct Bringing<'a> {
    load: &'a Load,
    number: u64,
}

impl Load {
    pub(crate) fn new(frames: u32) -> Self {
        Load::with(frames / SHARE, PATIENT, LONG)
    }

    fn with(pages_max: u32, patient: Duration, long: Duration) -> Self {
        let turn = std::array::from_fn(|_| Condvar::new());
        Load { pages_max, patient, long, state: Mutex::new(LoadState::default()), turn }
    }

    /// Waits until so many pages may be brought, too; alone, any number may.
    pub(crate) fn begin(&self, pages: u32) -> Bringing<'_> {
        let mut state = self.state.lock();
        if self.may_pass(&state, pages) {
            return self.begun(&mut state, pages);
        }
        let waiter = state.queue(None);
        // Ends: each of those before this one begins, and each that is under way ends or takes
        // long.
        while !state.is_first(waiter) || !state.has_room(pages, self.pages_max) {
            let Some(left) = state.let_long_go(self.long) else { continue };
            let bed = &self.turn[waiter as usize % BEDS];
            state = bed.wait_timeout(state, left);
        }
        self.first_begins(state, pages)
    }

    /// [`begin`](Self::begin) for a task.
    pub(crate) fn queue(&self, pages: u32) -> Queued<'_> {
        Queued { load: self, pages, number: None }
    }

    fn may_pass(&self, state: &LoadState, pages: u32) -> bool {
        let is_patient = |first: &LoadWaiter| first.since.elapsed() < self.patient;
        state.has_room(pages, self.pages_max) && state.waiting.front().is_none_or(is_patient)
    }

    /// The first one begins; the next one looks.
    fn first_begins(&self, mut state: MutexGuard<'_, LoadState>, pages: u32) -> Bringing<'_> {
        state.waiting.pop_front();
        let bringing = self.begun(&mut state, pages);
        self.wake_first(state);
        bringing
    }

    fn begun(&self, state: &mut LoadState, pages: u32) -> Bringing<'_> {
        let number = state.next;
        state.next += 1;
        state.pages += pages;
        state.under_way.insert(number, BegunRead { pages, since: Instant::now() });
        Bringing { load: self, number }
    }

    fn wake_first(&self, mut state: MutexGuard<'_, LoadState>) {
        let Some(first) = state.waiting.front_mut() else { return };
        self.turn[first.number as usize % BEDS].notify_all();
        let waker = first.waker.take();
        drop(state);
        waker.into_iter().for_each(wait::wake);
    }
}

/// A task's turn to bring pages. Dropped before, it gives up its place.
#[derive(Debug)]
pub(crate) struct Queued<'a> {
    load: &'a Load,
    pages: u32,
    number: Option<u64>,
}

impl<'a> Future for Queued<'a> {
    type Output = Bringing<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Bringing<'a>> {
        let (load, pages, waker) = (self.load, self.pages, context.waker().clone());
        let mut state = load.state.lock();
        // Ends: each turn forgets one.
        while state.let_long_go(load.long).is_none() {}
        let Some(number) = self.number else {
            if load.may_pass(&state, pages) {
                return Poll::Ready(load.begun(&mut state, pages));
            }
            self.number = Some(state.queue(Some(waker)));
            return Poll::Pending;
        };
        if state.is_first(number) && state.has_room(pages, load.pages_max) {
            self.number = None;
            return Poll::Ready(load.first_begins(state, pages));
        }
        if let Some(waits) = state.waiting.iter_mut().find(|it| it.number == number) {
            waits.waker = Some(waker);
        }
        Poll::Pending
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number.filter(|_| !mutant::on(Mutant::PlaceInQueueStays)) else {
            return;
        };
        let mut state = self.load.state.lock();
        state.waiting.retain(|it| it.number != number);
        self.load.wake_first(state);
    }
}

impl LoadState {
    /// The number of one that waits from now on.
    fn queue(&mut self, waker: Option<Waker>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.push_back(LoadWaiter { number, since: Instant::now(), waker });
        number
    }

    fn is_first(&self, number: u64) -> bool {
        self.waiting.front().is_some_and(|first| first.number == number)
    }

    fn has_room(&self, pages: u32, pages_max: u32) -> bool {
        let fits = self.pages == 0 || self.pages + pages <= pages_max;
        fits || mutant::on(Mutant::AllBringAtOnce)
    }

    /// What has taken long is not counted any more. If nothing has, returns how long the oldest has
    /// left.
    fn let_long_go(&mut self, long: Duration) -> Option<Duration> {
        let Some(oldest) = self.under_way.first_entry() else { return Some(long) };
        let BegunRead { pages, since } = *oldest.get();
        let left = long.saturating_sub(since.elapsed());
        if left > Duration::ZERO {
            return Some(left);
        }
        oldest.remove();
        self.pages -= pages;
        None
    }
}

impl Drop for Bringing<'_> {
    fn drop(&mut self) {
        let mut state = self.load.state.lock();
        if let Some(begun) = state.under_way.remove(&self.number) {
            state.pages -= begun.pages;
            self.load.wake_first(state);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use pinfold_testing::waker::Counted;

    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(1 << 30);

    fn load(patient: Duration, long: Duration) -> Load {
        Load::with(10, patient, long)
    }

    /// Who begins, in which order: where 6 of 10 pages are being brought, threads with 5, 5 and 1
    /// come one after the other; then 4 of the 6 have ended. Those that may begin at once tell of
    /// it in any order, so what counts is the number that each was given.
    fn order(patient: Duration) -> Vec<usize> {
        let load = load(patient, FOR_EVER);
        let (first, other) = (load.begin(4), load.begin(2));
        let (sender, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for (n, pages) in [5, 5, 1].into_iter().enumerate() {
                let before = load.state.lock().next;
                let (sender, load) = (sender.clone(), &load);
                scope.spawn(move || {
                    let bringing = load.begin(pages);
                    sender.send((bringing.number, n)).unwrap();
                    drop(bringing);
                });
                while load.state.lock().next == before {
                    std::thread::yield_now();
                }
            }
            // One that passes the others has begun before anything has ended.
            let early: Vec<_> =
                (patient > Duration::ZERO).then(|| begun.recv().unwrap()).into_iter().collect();
            assert!(begun.try_recv().is_err(), "it waits");
            drop(first);
            let rest: Vec<_> = (early.len()..3).map(|_| begun.recv().unwrap()).collect();
            drop(other);
            let mut order = [early, rest].concat();
            order.sort_unstable();
            order.into_iter().map(|(_, n)| n).collect()
        })
    }

    #[test]
    fn what_is_too_much_waits_and_is_passed_for_a_while() {
        assert_eq!(order(Duration::ZERO), [0, 1, 2]);
        assert_eq!(order(FOR_EVER), [2, 0, 1]);
    }

    #[test]
    fn more_than_the_bound_is_brought_alone() {
        let load = load(FOR_EVER, FOR_EVER);
        drop(load.begin(100));
        let one = load.begin(1);
        assert_eq!(load.state.lock().pages, 1);
        assert!(!load.state.lock().has_room(10, 10) && load.state.lock().has_room(9, 10));
        let broken = || load.state.lock().has_room(10, 10);
        assert!(mutant::with(Some(Mutant::AllBringAtOnce), broken));
        drop(one);
        let _all = load.begin(11);
        assert_eq!(load.state.lock().pages, 11);
    }

    fn poll<'a>(queued: &mut Queued<'a>, waker: &Waker) -> Option<Bringing<'a>> {
        match Pin::new(queued).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(bringing) => Some(bringing),
            Poll::Pending => None,
        }
    }

    /// Two tasks wait, and the first gives up or begins: whether the second begins when it is
    /// woken.
    fn tasks_begin_in_turn(gives_up: bool) -> bool {
        let load = load(Duration::ZERO, FOR_EVER);
        let under_way = load.begin(9);
        let ([first_woken, second_woken], [of_first, of_second]) = {
            let (one, two) = (Counted::waker(), Counted::waker());
            ([one.0, two.0], [one.1, two.1])
        };
        let (mut first, mut second) = (load.queue(5), load.queue(1));
        assert!(poll(&mut first, &of_first).is_none() && poll(&mut second, &of_second).is_none());
        assert_eq!(load.state.lock().waiting.len(), 2, "nobody passes the first");
        assert!(poll(&mut second, &of_second).is_none(), "it is not the first");
        drop(under_way);
        assert_eq!((first_woken.times(), second_woken.times()), (1, 0));
        let begun = if gives_up { None } else { Some(poll(&mut first, &of_first).unwrap()) };
        drop(first);
        let third = (second_woken.times() == 1).then(|| poll(&mut second, &of_second)).flatten();
        let pages = load.state.lock().pages;
        assert!(third.is_none() || pages == if begun.is_some() { 6 } else { 1 });
        third.is_some()
    }

    #[test]
    fn a_task_that_was_woken_in_vain_is_woken_again() {
        let load = load(Duration::ZERO, FOR_EVER);
        let (one, two) = (load.begin(5), load.begin(5));
        let (woken, waker) = Counted::waker();
        let mut task = load.queue(10);
        assert!(poll(&mut task, &waker).is_none());
        drop(one);
        assert!(poll(&mut task, &waker).is_none(), "half of it is not enough");
        drop(two);
        assert_eq!(woken.times(), 2);
        assert!(poll(&mut task, &waker).is_some());
    }

    #[test]
    fn tasks_wait_in_the_order_in_which_they_came() {
        assert!(tasks_begin_in_turn(false) && tasks_begin_in_turn(true));
        let stays = mutant::with(Some(Mutant::PlaceInQueueStays), || tasks_begin_in_turn(true));
        assert!(!stays, "the mutant does nothing");
    }

    #[test]
    fn a_thread_begins_after_the_task_before_it() {
        let load = load(Duration::ZERO, FOR_EVER);
        let under_way = load.begin(10);
        let (woken, waker) = Counted::waker();
        let mut task = load.queue(10);
        assert!(poll(&mut task, &waker).is_none());
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| drop(load.begin(10)));
            while load.state.lock().waiting.len() < 2 {
                std::thread::yield_now();
            }
            drop(under_way);
            assert_eq!(woken.times(), 1);
            assert!(!thread.is_finished());
            drop(poll(&mut task, &waker).unwrap());
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_task_that_looks_again_does_not_wait_for_what_takes_long() {
        let load = load(Duration::ZERO, Duration::from_millis(1));
        let _hangs = load.begin(10);
        let mut task = load.queue(10);
        // Ends: the other one takes long.
        while poll(&mut task, Waker::noop()).is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_takes_long_is_not_counted() {
        let load = load(FOR_EVER, Duration::from_millis(1));
        let hangs = load.begin(10);
        let other = load.begin(7);
        assert_eq!(load.state.lock().pages, 7);
        drop(hangs);
        assert_eq!(load.state.lock().pages, 7);
        drop(other);
        assert_eq!(load.state.lock().pages, 0);
    }
}
