//! Memory pressure: how much is free, how much is being filled, and which threads wait for memory.
//!
//! Has the watermarks and limits that follow from a cache's size, the level of fills in flight, the
//! bell of the reclaiming thread, and the sleep of threads, and the queue of futures, that find
//! nothing free. `reclaim` acts on it. Called by `core` and everything above it.
//!
//! # Futures that wait for memory
//!
//! They queue, in a line for each file: a file whose reads hang keeps its own futures waiting, and
//! no others. Each step of progress wakes the first of one line, and the lines take turns: waking
//! all would make each try in vain.
//!
//! | a future that | does |
//! |---|---|
//! | is new | tries, unless its file has a line, or some line waits for memory: then it queues |
//! | is woken and gets what it wants | leaves, and wakes the next: there may be more |
//! | is woken and is refused | keeps its place; if its file alone is why, the next line tries |
//! | is dropped after it was woken | leaves, and wakes the next |
//!
//! What futures bring is held for them until they are polled. So each claims its pages while its
//! read is under way, and a file's claims are bounded as what it has on its way is. One future of
//! a file may always begin, however much it wants.
//!
//! A batch that finds no memory drops its guards and leaves the queue, which wakes others; then it
//! queues again. After some such retreats it waits with its guards, but one batch of the cache at a
//! time: two could wait for each other. The others queue without guards.
//!
//! As a put of a guard is no progress that anybody notes, the reclaiming thread wakes one from time
//! to time as long as any queues (`reclaim/daemon.rs`). It also passes over those that were woken
//! and are not polled.
//!
//! Wakers are the program's: they are cloned, woken and dropped while no lock is held.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

// Not from `crate::sync`: levels and hints, on which no protocol depends.
use std::sync::atomic::AtomicU32;

use crate::frame::Order;
use crate::mutant::{self, Mutant};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, MutexGuard, Ordering};
use crate::wait;

/// Pages that a thread without memory evicts at a time, at least and at most.
const DIRECT_PAGES: std::ops::RangeInclusive<u32> = 32..=256;

/// Frames of folios that are being filled.
#[derive(Debug, Default)]
pub(crate) struct OnItsWay(AtomicU32);

/// What moved, and who waits for that.
#[derive(Debug)]
struct Progress {
    moved: Mutex<Moved>,
    /// Of the threads.
    wake: Condvar,
}

/// Who waits for memory, and for what.
#[derive(Debug, Default)]
struct Moved {
    /// How often memory was freed or a fill ended.
    times: u64,
    /// By the number of the file. A line without futures and claims is removed.
    lines: BTreeMap<u32, Line>,
    /// Files with a future to wake, the one whose turn is next first.
    order: VecDeque<u32>,
    /// Lines that wait for memory.
    short: usize,
    /// Pages that futures bring.
    claimed: u32,
    last: u64,
    /// A batch may wait for memory with its guards.
    keeps_guards: bool,
}

/// The futures of one file.
#[derive(Debug, Default)]
struct Line {
    /// The one that has waited longest first: ordered by their turns. One without a waker was woken
    /// and tries.
    queue: VecDeque<(Turn, Option<Waker>)>,
    /// How many were woken, and when the last one was.
    awake: usize,
    woken: Option<Instant>,
    /// It is in `Moved::order`.
    listed: bool,
    /// The last one that tried found no memory.
    short: bool,
    /// `Moved::times` when it did.
    tried: Option<u64>,
    /// Pages that futures bring.
    claimed: u32,
}

/// The place of a future that queues for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u64);

/// Why a future queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Others were there before it: it has not tried.
    Behind,
    /// For what its own file has on its way, or does not get; others may be luckier.
    OwnFile,
    /// There is no memory.
    NoMemory,
}

/// How long a future may take from being woken to being polled until the reclaiming thread wakes
/// the next one of its line, too.
const UNPOLLED: Duration = Duration::from_millis(20);

impl Moved {
    /// Ends a claim.
    fn give_up(&mut self, file: u32, pages: u32) {
        if pages > 0 {
            self.claimed -= pages;
            self.lines.get_mut(&file).expect("it has a claim").claimed -= pages;
            self.tidy(file);
        }
    }

    fn tidy(&mut self, file: u32) {
        if self.lines.get(&file).is_some_and(|line| line.queue.is_empty() && line.claimed == 0) {
            self.lines.remove(&file);
        }
    }

    fn set_short(&mut self, file: u32, short: bool) {
        let line = self.lines.get_mut(&file).expect("it has futures");
        let was = std::mem::replace(&mut line.short, short);
        self.short = self.short + usize::from(short) - usize::from(was);
    }

    /// Puts the file into the order, or takes it out, after its line has changed.
    fn list(&mut self, file: u32, pass_over: bool) {
        let line = self.lines.get_mut(&file).expect("it has futures");
        let waits = line.queue.len() > line.awake;
        if !line.listed && waits && (line.awake == 0 || pass_over) {
            line.listed = true;
            self.order.push_back(file);
        } else if line.listed && !waits {
            line.listed = false;
            self.order.retain(|&listed| listed != file);
        }
    }

    /// The future whose turn is next, to be woken without the mutex.
    fn next(&mut self) -> Option<Waker> {
        let file = self.order.pop_front()?;
        self.set_short(file, false);
        let line = self.lines.get_mut(&file).expect("it is listed");
        line.listed = false;
        line.awake += 1;
        line.woken = Some(Instant::now());
        line.queue.iter_mut().find_map(|(_, waker)| waker.take())
    }

    /// The same, unless all have tried since the last step of progress.
    fn next_untried(&mut self) -> Option<Waker> {
        let untried = self.lines[self.order.front()?].tried != Some(self.times);
        if untried { self.next() } else { None }
    }

    /// The same, after the line whose last one was woken the longest ago, and is not polled, has
    /// its turn again: it must not keep the others of its line waiting.
    fn next_or_pass_over(&mut self) -> Option<Waker> {
        let unpolled = |(&file, line): (&u32, &Line)| {
            let since = line.woken.filter(|since| since.elapsed() >= UNPOLLED)?;
            let waits = line.awake > 0 && line.queue.len() > line.awake && !line.listed;
            waits.then_some((since, file))
        };
        if let Some((_, file)) = self.lines.iter().filter_map(unpolled).min() {
            self.list(file, true);
        }
        self.next()
    }
}

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
    moved: Arc<Progress>,
    /// Of all files.
    on_its_way: OnItsWay,
    /// Half of the cache.
    on_its_way_max: u32,
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
            moved: Arc::default(),
            on_its_way: OnItsWay::default(),
            on_its_way_max: frames / 2,
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
        self.moved.step(0, 0);
    }

    /// What notes that a worker is free.
    pub(crate) fn hook(&self) -> impl Fn() + Send + Sync + use<> {
        let moved = self.moved.clone();
        move || moved.step(0, 0)
    }

    /// The number of calls of `progress` so far.
    pub(crate) fn progress_seen(&self) -> u64 {
        self.moved.lock().times
    }

    /// Wakes the future whose turn is next, and passes over those that were woken and not polled.
    pub(crate) fn wake_first(&self) {
        let next = self.moved.lock().next_or_pass_over();
        wake(next);
    }

    /// Claims `pages` pages for a future of `file`, from here until it has handed them over, gives
    /// up, or is dropped. `Err`: it has to queue. Either way with the progress seen. `queues`: it
    /// has a turn already, which has come.
    pub(crate) fn claim(&self, file: u32, pages: u32, queues: bool) -> (Result<(), Refused>, u64) {
        let moved = &mut *self.moved.lock();
        let (seen, all) = (moved.times, moved.claimed);
        let is_short = moved.short > 0;
        let line = moved.lines.entry(file).or_default();
        let behind = !queues && (is_short || !line.queue.is_empty());
        let left = self.on_its_way_max.saturating_sub(all + pages);
        let claimed = if behind && !mutant::on(Mutant::NewcomerFirst) {
            Err(Refused::Behind)
        } else if line.claimed > 0 && line.claimed + pages > left {
            Err(Refused::OwnFile)
        } else {
            line.claimed += pages;
            moved.claimed += pages;
            Ok(())
        };
        moved.tidy(file);
        (claimed, seen)
    }

    /// Whether a claim of so many pages is one that is granted to one future of a file alone.
    pub(crate) fn is_large(&self, pages: u32) -> bool {
        pages > self.on_its_way_max / 2
    }

    /// Whether a batch may wait for memory with its guards: if so, it is the only one, until
    /// [`Self::keeps_no_guards`]. Two could wait for each other.
    pub(crate) fn may_keep_guards(&self) -> bool {
        let others = std::mem::replace(&mut self.moved.lock().keeps_guards, true);
        !others || mutant::on(Mutant::AllKeepGuards)
    }

    /// The end of such a batch: another one may.
    pub(crate) fn keeps_no_guards(&self) {
        self.moved.lock().keeps_guards = false;
        self.progress();
    }

    /// The end of a claim: another future may begin.
    pub(crate) fn release(&self, file: u32, pages: u32) {
        self.moved.step(file, pages);
    }

    /// The end of a claim with which nothing was begun. It is no progress: whoever was refused
    /// meanwhile is woken by the next step, or by the reclaiming thread.
    pub(crate) fn unclaim(&self, file: u32, pages: u32) {
        self.moved.lock().give_up(file, pages);
    }

    /// Whether a future waits to be woken.
    pub(crate) fn is_queued_for(&self) -> bool {
        let moved = self.moved.lock();
        moved.lines.values().any(|line| line.queue.len() > line.awake)
    }

    /// Queues a future that was refused: in its place if it had one, else at the end of its file's
    /// line. Its claim of `claimed` pages ends. `None` if there was progress beyond `seen`, or
    /// nobody is before it any more: then it has to try again, and keeps its turn if it has one.
    pub(crate) fn queue(
        &self,
        (file, turn): (u32, Option<Turn>),
        (why, seen): (Refused, u64),
        claimed: u32,
        waker: &Waker,
    ) -> Option<Turn> {
        let waker = waker.clone();
        let mut moved = self.moved.lock();
        moved.give_up(file, claimed);
        // Those before it may have left since, which is no progress.
        let behind = moved.short > 0 || moved.lines.get(&file).is_some_and(Line::has_futures);
        if moved.times != seen || (why == Refused::Behind && !behind) {
            drop(moved); // before the waker
            return None;
        }
        moved.last += 1;
        let new = Turn(moved.last);
        let line = moved.lines.entry(file).or_default();
        let at = turn.and_then(|turn| line.at(turn)).filter(|_| !mutant::on(Mutant::RefusedLast));
        let turn = if let (Some(turn), Some(at)) = (turn, at) {
            // It was woken, so this replaces nothing.
            line.queue[at].1 = Some(waker);
            line.awake -= 1;
            turn
        } else {
            if let Some(at) = turn.and_then(|turn| line.at(turn)) {
                line.queue.remove(at);
                line.awake -= 1;
            }
            line.queue.push_back((new, Some(waker)));
            new
        };
        if why != Refused::Behind {
            line.tried = Some(seen);
            moved.set_short(file, why == Refused::NoMemory);
        }
        moved.list(file, false);
        let next = if why == Refused::OwnFile { moved.next_untried() } else { None };
        drop(moved);
        wake(next);
        // The reclaiming thread looks after those that queue.
        self.bell.ring();
        Some(turn)
    }

    /// Whether the future still queues. Then `waker` is the one to wake.
    pub(crate) fn is_queued(&self, file: u32, turn: Turn, waker: &Waker) -> bool {
        let mut waker = Some(waker.clone());
        let mut moved = self.moved.lock();
        let line = moved.lines.get_mut(&file).expect("it queues");
        let at = line.at(turn).expect("it has a turn");
        let queued = line.queue[at].1.is_some();
        if queued {
            std::mem::swap(&mut line.queue[at].1, &mut waker);
        }
        drop(moved);
        drop(waker);
        queued
    }

    /// The future does not wait any more: it has what it wanted.
    pub(crate) fn served(&self, file: u32, turn: Turn) {
        self.remove(file, turn, true);
    }

    /// The future does not wait any more. If it was woken already, the next one is woken instead.
    pub(crate) fn leave(&self, file: u32, turn: Turn) {
        self.remove(file, turn, !mutant::on(Mutant::DropKeepsTurn));
    }

    fn remove(&self, file: u32, turn: Turn, gives_on: bool) {
        let mut moved = self.moved.lock();
        let line = moved.lines.get_mut(&file).expect("it queues");
        let at = line.at(turn).expect("it has a turn");
        let (_, waker) = line.queue.remove(at).expect("it is there");
        let was_woken = waker.is_none();
        if was_woken {
            line.awake -= 1;
            line.tried = None;
        }
        moved.list(file, false);
        if was_woken || moved.lines[&file].queue.is_empty() {
            moved.set_short(file, false);
        }
        moved.tidy(file);
        let next = if was_woken && gives_on { moved.next() } else { None };
        drop(moved);
        drop(waker);
        wake(next);
    }

    /// Sleeps until there is progress beyond `seen`, at most for `nap`.
    pub(crate) fn wait_for_progress(&self, seen: u64, nap: Duration) {
        let moved = self.moved.lock();
        if moved.times == seen {
            drop(if mutant::on(Mutant::SleepUntilWoken) {
                self.moved.wake.wait(moved)
            } else {
                self.moved.wake.wait_timeout(&self.moved.moved, moved, nap)
            });
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Progress { moved: Mutex::new(Moved::default()), wake: Condvar::new() }
    }
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Moved> {
        self.moved.lock()
    }

    /// A step, by which a claim of the file may end.
    fn step(&self, file: u32, claimed: u32) {
        let mut moved = self.lock();
        moved.give_up(file, claimed);
        moved.times += 1;
        let next = moved.next();
        drop(moved);
        self.wake.notify_all();
        wake(next);
    }
}

impl Line {
    fn has_futures(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Where in the queue the future with that turn is.
    fn at(&self, turn: Turn) -> Option<usize> {
        self.queue.binary_search_by_key(&turn, |&(turn, _)| turn).ok()
    }
}

fn wake(next: Option<Waker>) {
    if let Some(waker) = next {
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
    ring: Arc<(Mutex<Ring>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The reclaiming thread's side of a [`Bell`].
#[derive(Debug)]
pub(crate) struct Listener(Arc<(Mutex<Ring>, Condvar)>);

impl Bell {
    fn new() -> Self {
        let ring = Arc::new((Mutex::new(Ring::Sleep), Condvar::new()));
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

    use super::{Order, Pressure, Refused, Turn, UNPOLLED};
    use crate::mutant::{self, Mutant};

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whatever else: a future is dropped, and its waker with it.
    struct Enters(Arc<Pressure>);

    impl Wake for Enters {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Enters {
        fn drop(&mut self) {
            self.0.progress();
        }
    }

    fn queue(pressure: &Pressure, file: u32, why: Refused, waker: &Waker) -> Turn {
        let seen = pressure.progress_seen();
        pressure.queue((file, None), (why, seen), 0, waker).expect("no progress")
    }

    /// A pressure with futures of these files that queue, and how often each was woken.
    fn queued<const N: usize>(
        files: [u32; N],
        why: Refused,
    ) -> (Pressure, [Turn; N], impl Fn() -> [u32; N]) {
        let pressure = Pressure::new(1 << 10, Order::MAX);
        let woken: [Arc<Woken>; N] = std::array::from_fn(|_| Arc::default());
        let wakers = woken.clone().map(Waker::from);
        let turns = std::array::from_fn(|n| queue(&pressure, files[n], why, &wakers[n]));
        (pressure, turns, move || std::array::from_fn(|n| woken[n].0.load(Ordering::SeqCst)))
    }

    #[test]
    fn the_future_of_a_file_that_has_waited_longest_is_woken_and_gives_its_turn_on() {
        let (pressure, turns, woken) = queued([7; 3], Refused::NoMemory);
        pressure.progress();
        pressure.progress();
        assert_eq!(woken(), [1, 0, 0], "one at a time");
        assert!(!pressure.is_queued(7, turns[0], Waker::noop()));
        assert!(pressure.is_queued(7, turns[2], Waker::noop()), "and its waker is another now");
        pressure.served(7, turns[0]);
        assert_eq!(woken(), [1, 1, 0]);
        pressure.served(7, turns[1]);
        pressure.served(7, turns[2]);
        assert_eq!(woken(), [1, 1, 0]);
        assert!(!pressure.is_queued_for());
        assert!(pressure.moved.lock().lines.is_empty(), "nothing is left");
    }

    #[test]
    fn files_take_turns() {
        let (pressure, turns, woken) = queued([1, 1, 2, 3], Refused::NoMemory);
        (0..3).for_each(|_| pressure.progress());
        assert_eq!(woken(), [1, 0, 1, 1]);
        pressure.served(1, turns[0]);
        assert_eq!(woken(), [1, 1, 1, 1]);
    }

    #[test]
    fn who_is_refused_keeps_its_turn() {
        let refused = || {
            let (pressure, turns, woken) = queued([7; 3], Refused::NoMemory);
            pressure.progress();
            let seen = pressure.progress_seen();
            let again = (Refused::OwnFile, seen);
            let waker = Waker::noop();
            let turn = pressure.queue((7, Some(turns[0])), again, 0, waker).expect("no progress");
            pressure.progress();
            (turn == turns[0] && !pressure.is_queued(7, turn, waker), woken())
        };
        assert_eq!(refused(), (true, [1, 0, 0]));
        let caught = mutant::with(Some(Mutant::RefusedLast), refused);
        assert_eq!(caught, (false, [1, 1, 0]), "the mutant does nothing");
    }

    #[test]
    fn who_comes_later_does_not_try_before_those_that_queue() {
        let claims = || {
            let (pressure, turns, _) = queued([7], Refused::OwnFile);
            let of_new = [7, 8].map(|file| pressure.claim(file, 1, false).0);
            pressure.leave(7, turns[0]);
            let (pressure, _, _) = queued([7], Refused::NoMemory);
            let for_memory = [7, 8].map(|file| pressure.claim(file, 1, false).0);
            [of_new, for_memory]
        };
        let behind = Err(Refused::Behind);
        assert_eq!(claims(), [[behind, Ok(())], [behind, behind]]);
        let caught = mutant::with(Some(Mutant::NewcomerFirst), claims);
        assert_eq!(caught, [[Ok(()); 2]; 2], "the mutant does nothing");
    }

    #[test]
    fn a_file_has_claims_to_a_quarter_and_leaves_as_much_to_others() {
        let pressure = Pressure::new(1 << 10, Order::MAX);
        let claim = |file, pages| pressure.claim(file, pages, false).0;
        assert_eq!(claim(1, 256), Ok(()));
        assert_eq!(claim(1, 1), Err(Refused::OwnFile));
        assert_eq!(claim(2, 128), Ok(()));
        assert_eq!(claim(2, 1), Err(Refused::OwnFile));
        assert_eq!(claim(3, 1 << 10), Ok(()), "a file's first may be of any size");
        assert_eq!(claim(4, 1), Ok(()));
        pressure.release(1, 256);
        assert_eq!(claim(1, 1), Ok(()));
    }

    #[test]
    fn who_is_woken_and_not_polled_is_passed_over_after_a_while() {
        let (pressure, turns, woken) = queued([7; 3], Refused::NoMemory);
        pressure.wake_first();
        std::thread::sleep(UNPOLLED);
        pressure.wake_first();
        assert_eq!(woken(), [1, 1, 0]);
        // And has the better turn nevertheless.
        let seen = pressure.progress_seen();
        let again = (Refused::NoMemory, seen);
        pressure.queue((7, Some(turns[0])), again, 0, Waker::noop()).expect("no progress");
        pressure.served(7, turns[1]);
        assert!(!pressure.is_queued(7, turns[0], Waker::noop()), "it is woken first");
    }

    #[test]
    fn a_future_that_is_dropped_after_it_was_woken_wakes_the_next() {
        let dropped = || {
            let (pressure, turns, woken) = queued([7; 3], Refused::NoMemory);
            pressure.leave(7, turns[1]);
            assert_eq!(woken(), [0, 0, 0], "it had not been woken");
            pressure.progress();
            pressure.leave(7, turns[0]);
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
        let queued = pressure.queue((7, None), (Refused::NoMemory, seen), 0, Waker::noop());
        assert!(queued.is_none());
    }

    /// It would hang if a waker were dropped under the mutex.
    #[test]
    fn a_waker_that_is_dropped_may_enter() {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let pressure = Arc::new(Pressure::new(1 << 10, Order::MAX));
            let enters = || Waker::from(Arc::new(Enters(pressure.clone())));
            let turn = queue(&pressure, 7, Refused::NoMemory, &enters());
            let _ = pressure.is_queued(7, turn, &enters());
            pressure.leave(7, turn);
            tell.send(pressure.progress_seen()).unwrap();
        });
        let steps = told.recv_timeout(std::time::Duration::from_secs(60));
        assert!(steps.is_ok_and(|steps| steps >= 2), "it hung");
    }

    /// Those of another file are refused again and again.
    #[test]
    fn who_is_not_polled_is_passed_over_whatever_other_files_do() {
        let (pressure, turns, woken) = queued([7, 7, 8, 8], Refused::NoMemory);
        pressure.wake_first(); // the first of 7: never polled
        assert_eq!(woken(), [1, 0, 0, 0]);
        for _ in 0..10 {
            std::thread::sleep(UNPOLLED + UNPOLLED / 4);
            pressure.wake_first(); // as the reclaiming thread does, every 20 ms at most
            // The first of 8 is polled at once, and refused, as there is no memory.
            if !pressure.is_queued(8, turns[2], Waker::noop()) {
                let again = (Refused::NoMemory, pressure.progress_seen());
                pressure.queue((8, Some(turns[2])), again, 0, Waker::noop()).expect("no progress");
            }
        }
        assert!(woken()[1] > 0, "the second of 7 was not woken: {:?}", woken());
    }
}
