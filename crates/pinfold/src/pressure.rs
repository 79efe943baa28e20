//! Memory pressure: how much is free, how much is being filled, and which threads wait for memory.
//!
//! Has the watermarks and limits that follow from a cache's size, the level of fills in flight, the
//! bell of the reclaiming thread, and the sleep of threads, and the queue of futures, that find
//! nothing free. `reclaim` acts on it. Called by `core` and everything above it.
//!
//! # Futures that wait for memory
//!
//! They queue. Each step of progress wakes the first: if it woke all, nearly all would try and find
//! nothing. A future that is woken tries, and then wakes the next if there is more memory, or
//! queues again at the end. A future that comes while others queue does not try before them. A
//! future that is dropped after it was woken wakes the next instead. The end of a guard is not
//! noted as progress, so the reclaiming thread wakes a future from time to time as long as any
//! queues (`reclaim/daemon.rs`).

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

// Not from `crate::sync`: levels and hints, on which no protocol depends.
use std::sync::atomic::AtomicU32;

use crate::frame::Order;
use crate::mutant::{self, Mutant};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, Ordering};
use crate::wait;

/// Pages that a thread without memory evicts at a time, at least and at most.
const DIRECT_PAGES: std::ops::RangeInclusive<u32> = 32..=256;

/// Frames of folios that are being filled.
#[derive(Debug, Default)]
pub(crate) struct OnItsWay(AtomicU32);

/// Who waits for memory, and for what.
#[derive(Debug, Default)]
struct Moved {
    /// How often memory was freed or a fill ended.
    times: u64,
    /// Futures, the one that has waited longest first: ordered by their turns.
    queue: VecDeque<(Turn, Waker)>,
    last: u64,
}

/// The place of a future that queues for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u64);

/// The state of a cache's memory use.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Below this many free frames the reclaiming thread is woken.
    pub(crate) low_frames: u32,
    /// It evicts until this many frames are free.
    pub(crate) high_frames: u32,
    /// The largest folio of a cache of this size.
    pub(crate) order_max: Order,
    /// Pages that a thread without memory evicts at a time.
    pub(crate) direct_pages: u32,
    pub(crate) bell: Bell,
    moved: Mutex<Moved>,
    moved_wake: Condvar,
    /// Of all files.
    on_its_way: OnItsWay,
    /// Half of the cache.
    on_its_way_max: u32,
    /// Pages that futures bring.
    claimed: AtomicU32,
    /// Where the next search for folios to move out of an unmovable run begins.
    pub(crate) unmovable_hand: AtomicU32,
    /// Held by the thread that makes a large block free. Taken under no other lock.
    pub(crate) making_block: Mutex<()>,
    /// The number of the run at which the next such thread begins.
    pub(crate) block_hand: AtomicU32,
}

impl Pressure {
    /// For a cache of `frames` frames with folios of at most that order.
    pub(crate) fn new(frames: u32, order_max: Order) -> Self {
        // Enough for a burst of readers, little enough to cost few hits.
        let low_frames = (frames / 128).max(8);
        // A folio is at most a 64th of the cache, so that one reader ahead of itself is not all.
        let order = (frames / 64).max(1).ilog2().min(u32::from(order_max.get()));
        Pressure {
            low_frames,
            high_frames: low_frames * 2,
            order_max: Order::new(order as u8).expect("at most the largest"),
            direct_pages: low_frames.clamp(*DIRECT_PAGES.start(), *DIRECT_PAGES.end()),
            bell: Bell::new(),
            moved: Mutex::new(Moved::default()),
            moved_wake: Condvar::new(),
            on_its_way: OnItsWay::default(),
            on_its_way_max: frames / 2,
            claimed: AtomicU32::new(0),
            unmovable_hand: AtomicU32::new(0),
            making_block: Mutex::new(()),
            block_hand: AtomicU32::new(0),
        }
    }

    /// For a model, with these watermarks (0: none) and this number of pages that a thread without
    /// memory evicts at a time.
    #[cfg(all(test, any(loom, shuttle)))]
    pub(crate) fn model(
        frames: u32,
        order_max: Order,
        (low_frames, high_frames): (u32, u32),
        direct_pages: u32,
    ) -> Self {
        let base = Pressure::new(frames, Order::MAX);
        Pressure { low_frames, high_frames, order_max, direct_pages, ..base }
    }

    /// Notes that a fill of a folio of `order` begins, in a file that has `of_file` on its way.
    pub(crate) fn fill_begins(&self, of_file: &OnItsWay, order: Order) {
        for level in [&self.on_its_way, of_file] {
            // Relaxed, here and below: a level, compared with a limit.
            level.0.fetch_add(order.frames(), Ordering::Relaxed);
        }
    }

    /// Notes that the fill has ended, successfully or not.
    pub(crate) fn fill_ends(&self, of_file: &OnItsWay, order: Order) {
        for level in [&self.on_its_way, of_file] {
            level.0.fetch_sub(order.frames(), Ordering::Relaxed);
        }
    }

    /// Whether a file has more on its way than half of the cache has left for that. Then it reads
    /// nothing ahead: a source that hangs must neither take the memory of all others nor keep them
    /// from reading ahead. So one file alone has at most a quarter of the cache on its way. If the
    /// sources of `n` files hang, each has an `n + 1`th of the half, and others have as much.
    /// `more` frames count as on their way already.
    pub(crate) fn enough_on_its_way(&self, of_file: &OnItsWay, more: u32) -> bool {
        let [all, own] =
            [&self.on_its_way, of_file].map(|level| level.0.load(Ordering::Relaxed) + more);
        own > self.on_its_way_max.saturating_sub(all)
    }

    /// Notes that something was freed or became evictable.
    pub(crate) fn progress(&self) {
        let mut moved = self.moved.lock();
        moved.times += 1;
        let first = moved.queue.pop_front();
        drop(moved);
        self.moved_wake.notify_all();
        wake(first);
    }

    /// The number of calls of `progress` so far.
    pub(crate) fn progress_seen(&self) -> u64 {
        self.moved.lock().times
    }

    /// Wakes the future that has waited longest; false if none waits.
    pub(crate) fn wake_first(&self) -> bool {
        let first = self.moved.lock().queue.pop_front();
        let woken = first.is_some();
        wake(first);
        woken
    }

    /// Counts a future that begins to bring `pages` pages, from here until it has handed them over
    /// or is dropped. False if futures have a quarter of the cache already: what they bring is held
    /// for them until they are polled, and more of them would only search for memory and find none.
    pub(crate) fn claim(&self, pages: u32) -> bool {
        // Relaxed, both: a level; a future that finds it too high queues, and sees the next release
        // by `moved`.
        let claimed = self.claimed.fetch_add(pages, Ordering::Relaxed);
        if claimed == 0 || claimed + pages <= self.on_its_way_max / 2 {
            return true;
        }
        self.claimed.fetch_sub(pages, Ordering::Relaxed);
        false
    }

    /// The end of a claim: another future may begin.
    pub(crate) fn release(&self, pages: u32) {
        self.claimed.fetch_sub(pages, Ordering::Relaxed);
        self.progress();
    }

    /// Whether a future waits for memory.
    pub(crate) fn is_queued_for(&self) -> bool {
        !self.moved.lock().queue.is_empty()
    }

    /// Queues a future at the end, unless there was progress beyond `seen`: then it has to try
    /// again, and gets no turn.
    pub(crate) fn queue(&self, seen: u64, waker: &Waker) -> Option<Turn> {
        let mut moved = self.moved.lock();
        if moved.times != seen {
            return None;
        }
        moved.last += 1;
        let turn = Turn(moved.last);
        moved.queue.push_back((turn, waker.clone()));
        drop(moved);
        // The reclaiming thread looks after those that queue.
        self.bell.ring();
        Some(turn)
    }

    /// Whether the future still queues. Then `waker` is the one to wake.
    pub(crate) fn is_queued(&self, turn: Turn, waker: &Waker) -> bool {
        let mut moved = self.moved.lock();
        let Ok(at) = moved.queue.binary_search_by_key(&turn, |&(turn, _)| turn) else {
            return false;
        };
        moved.queue[at].1.clone_from(waker);
        true
    }

    /// The future does not wait any more. If it was woken already, the next one is woken instead.
    pub(crate) fn leave(&self, turn: Turn) {
        let mut moved = self.moved.lock();
        let at = moved.queue.binary_search_by_key(&turn, |&(turn, _)| turn);
        let left = at.ok().and_then(|at| moved.queue.remove(at));
        drop(moved);
        if left.is_none() && !mutant::on(Mutant::DropKeepsTurn) {
            self.wake_first();
        }
    }

    /// Sleeps until there is progress beyond `seen`, at most for `nap`.
    pub(crate) fn wait_for_progress(&self, seen: u64, nap: Duration) {
        let moved = self.moved.lock();
        if moved.times == seen {
            drop(if mutant::on(Mutant::SleepUntilWoken) {
                self.moved_wake.wait(moved)
            } else {
                self.moved_wake.wait_timeout(&self.moved, moved, nap)
            });
        }
    }
}

fn wake(first: Option<(Turn, Waker)>) {
    if let Some((_, waker)) = first {
        wait::wake(waker);
    }
}

/// A request to the reclaiming thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ring {
    Sleep,
    Evict,
    End,
}

/// Wakes the reclaiming thread, and ends it.
#[derive(Debug)]
pub(crate) struct Bell {
    ring: std::sync::Arc<(Mutex<Ring>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The reclaiming thread's side of a [`Bell`].
#[derive(Debug)]
pub(crate) struct Listener(std::sync::Arc<(Mutex<Ring>, Condvar)>);

impl Bell {
    fn new() -> Self {
        let ring = std::sync::Arc::new((Mutex::new(Ring::Sleep), Condvar::new()));
        Bell { ring, thread: Mutex::new(None) }
    }

    /// The reclaiming thread's side.
    pub(crate) fn listener(&self) -> Listener {
        Listener(self.ring.clone())
    }

    /// Sets the reclaiming thread, which is joined when the bell is dropped.
    pub(crate) fn is_heard_by(&self, thread: JoinHandle<()>) {
        *self.thread.lock() = Some(thread);
    }

    /// Wakes the reclaiming thread: fewer frames are free than should be.
    pub(crate) fn ring(&self) {
        let (ring, wake) = &*self.ring;
        let mut ring = ring.lock();
        if *ring == Ring::Sleep {
            *ring = Ring::Evict;
            wake.notify_all();
        }
    }
}

impl Listener {
    /// Sleeps until the bell rings; false if the thread shall end.
    pub(crate) fn wait(&self) -> bool {
        let (ring, wake) = &*self.0;
        let mut ring = ring.lock();
        while *ring == Ring::Sleep {
            ring = wake.wait(ring);
        }
        heard(&mut ring)
    }

    /// Sleeps until the bell rings or for about `nap`; `None` if it did not ring, and
    /// `Some(false)` if the thread shall end.
    pub(crate) fn wait_at_most(&self, nap: Duration) -> Option<bool> {
        let (mutex, wake) = &*self.0;
        let mut ring = mutex.lock();
        if *ring == Ring::Sleep {
            ring = wake.wait_timeout(mutex, ring, nap);
        }
        (*ring != Ring::Sleep).then(|| heard(&mut ring))
    }
}

fn heard(ring: &mut Ring) -> bool {
    if *ring == Ring::End {
        return false;
    }
    *ring = Ring::Sleep;
    true
}

impl Bell {
    /// Ends the reclaiming thread and joins it.
    pub(crate) fn end(&self) {
        let (ring, wake) = &*self.ring;
        *ring.lock() = Ring::End;
        wake.notify_all();
        // The reclaiming thread itself may be the one that drops the cache.
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    use super::{Order, Pressure};
    use crate::mutant::{self, Mutant};

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A pressure with three futures that queue, and how often each was woken.
    fn three() -> (Pressure, [super::Turn; 3], impl Fn() -> [u32; 3]) {
        let pressure = Pressure::new(1 << 10, Order::MAX);
        let woken: [Arc<Woken>; 3] = Default::default();
        let wakers = woken.clone().map(Waker::from);
        let seen = pressure.progress_seen();
        let turns = [0, 1, 2].map(|n| pressure.queue(seen, &wakers[n]).expect("no progress"));
        (pressure, turns, move || [0, 1, 2].map(|n| woken[n].0.load(Ordering::SeqCst)))
    }

    #[test]
    fn each_step_of_progress_wakes_the_future_that_has_waited_longest() {
        let (pressure, turns, woken) = three();
        pressure.progress();
        assert_eq!(woken(), [1, 0, 0]);
        assert!(!pressure.is_queued(turns[0], Waker::noop()));
        assert!(pressure.is_queued(turns[2], Waker::noop()), "and its waker is another now");
        pressure.progress();
        pressure.progress();
        pressure.progress();
        assert_eq!(woken(), [1, 1, 0]);
        assert!(!pressure.is_queued_for());
    }

    #[test]
    fn a_future_that_is_dropped_after_it_was_woken_wakes_the_next() {
        let dropped = || {
            let (pressure, turns, woken) = three();
            pressure.leave(turns[1]);
            assert_eq!(woken(), [0, 0, 0], "it had not been woken");
            pressure.progress();
            pressure.leave(turns[0]);
            woken()
        };
        assert_eq!(dropped(), [1, 0, 1]);
        let caught = mutant::with(Some(Mutant::DropKeepsTurn), dropped);
        assert_eq!(caught, [1, 0, 0], "the mutant does nothing");
    }

    #[test]
    fn who_saw_less_than_there_is_tries_again() {
        let pressure = Pressure::new(1 << 10, Order::MAX);
        let seen = pressure.progress_seen();
        pressure.progress();
        assert!(pressure.queue(seen, Waker::noop()).is_none());
    }
}
