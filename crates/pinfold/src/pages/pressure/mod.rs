//! Memory pressure: watermarks and limits, what is being filled (`on_its_way.rs`), the futures that
//! wait for memory (`queue.rs`), the daemon's bell. `reclaim` acts on it. Wakers are the program's:
//! they are cloned, woken and dropped while no lock is held.

mod bell;
mod on_its_way;
mod queue;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

// Not from `crate::base::sync`: levels and hints, on which no protocol depends.
use std::sync::atomic::AtomicU32;

use crate::base::limits::Level;
use crate::base::mutant::{self, Mutant};
use crate::base::sync::{Condvar, Mutex, MutexGuard, Ordering};
use crate::base::wait;
use crate::frames::Order;
use bell::Bell;
pub(crate) use bell::Listener;
#[cfg(not(loom))]
pub(crate) use on_its_way::CopyCounts;
pub(crate) use on_its_way::{Need, OnItsWay, Shares};
use queue::Queue;
pub(crate) use queue::{Claim, Keeps, Refused, Share, Turn};

const DIRECT_PAGES: std::ops::RangeInclusive<u32> = 32..=256;

/// Threads sleep on `wake`.
#[derive(Debug)]
struct Progress {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug)]
pub(crate) struct Pressure {
    /// Below this many free frames the daemon evicts, until `high_frames` are free.
    pub(crate) low_frames: u32,
    pub(crate) high_frames: u32,
    pub(crate) order_max: Order,
    /// That a thread without memory evicts at a time.
    pub(crate) direct_pages: u32,
    pub(crate) bell: Bell,
    progress: Arc<Progress>,
    /// Of the futures' claims, as it was when it was last asked for.
    round: AtomicU32,
    pub(crate) shares: Shares,
    /// Where the next search in unmovable runs begins.
    pub(crate) unmovable_hand: AtomicU32,
    /// Held by the thread that makes a large block free. Taken under no other lock.
    pub(crate) making_block: Mutex<()>,
    /// Where the next such thread begins.
    pub(crate) block_hand: AtomicU32,
    /// Where the next look for a run to make hollow begins, and that for one to take back.
    #[cfg(all(feature = "map", not(loom)))]
    pub(crate) hollow_out_hand: AtomicU32,
    #[cfg(all(feature = "map", not(loom)))]
    pub(crate) take_back_hand: AtomicU32,
    pub(crate) evictors: Level,
    /// Pages that the program keeps.
    pub(crate) copied: Level,
}

impl Pressure {
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
            progress: Arc::new(Progress {
                queue: Mutex::new(Queue::default()),
                wake: Condvar::new(),
            }),
            round: AtomicU32::new(0),
            shares: Shares::new(frames),
            unmovable_hand: AtomicU32::new(0),
            making_block: Mutex::new(()),
            block_hand: AtomicU32::new(0),
            #[cfg(all(feature = "map", not(loom)))]
            hollow_out_hand: AtomicU32::new(0),
            #[cfg(all(feature = "map", not(loom)))]
            take_back_hand: AtomicU32::new(0),
            evictors: Level::default(),
            copied: Level::default(),
        }
    }

    /// With these watermarks (0: none).
    #[cfg(all(test, any(loom, shuttle)))]
    pub(crate) fn model(
        frames: u32,
        order_max: Order,
        (low_frames, high_frames): (u32, u32),
        direct_pages: u32,
    ) -> Self {
        let base = Pressure::new(frames, Order::MAX);
        let shares = Shares::model(frames);
        Pressure { low_frames, high_frames, order_max, direct_pages, shares, ..base }
    }

    /// Something was freed or became evictable.
    pub(crate) fn progress(&self) {
        self.progress.step(0, Claim::default());
    }

    pub(crate) fn hook(&self) -> impl Fn() + Send + Sync + use<> {
        let progress = self.progress.clone();
        move || progress.step(0, Claim::default())
    }

    pub(crate) fn progress_seen(&self) -> u64 {
        self.progress.lock().times
    }

    /// Passes over those that were woken and not polled.
    pub(crate) fn wake_first(&self) {
        let mut queue = self.progress.lock();
        // Relaxed: who sees it late is polled again.
        self.round.store(queue.next_round(), Ordering::Relaxed);
        let next = queue.next_or_pass_over();
        drop(queue);
        wake(next);
    }

    /// For a future of `file`, which has `of_file` on its way. `Err`: it has to queue. Either way
    /// with the progress seen. `queues`: it has a turn already, which has come.
    pub(crate) fn claim(
        &self,
        (file, of_file): (u32, &OnItsWay),
        pages: u32,
        queues: bool,
    ) -> (Result<Claim, Refused>, u64) {
        let on_their_way = self.shares.on_their_way(of_file);
        let mut queue = self.progress.lock();
        queue.claim((file, pages), queues, on_their_way, self.shares.each_max)
    }

    /// The future is polled. Cost: a load, unless a round has ended.
    pub(crate) fn renew(&self, file: u32, claim: &mut Claim) {
        // Relaxed: see `wake_first`.
        if claim.pages() > 0 && claim.round() != self.round.load(Ordering::Relaxed) {
            self.progress.lock().renew(file, claim);
        }
    }

    pub(crate) fn share(&self, file: u32, of_file: &OnItsWay) -> Share {
        let on_their_way = self.shares.on_their_way(of_file);
        self.progress.lock().share(file, on_their_way, self.shares.each_max)
    }

    /// Of all futures, and of the file's.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn claimed(&self, file: u32) -> [u32; 2] {
        self.progress.lock().claimed(file)
    }

    /// Whether no future queues or has a claim.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_idle(&self) -> bool {
        self.progress.lock().lines.is_empty()
    }

    /// Whether so large a claim is granted to one future of a file alone.
    pub(crate) fn is_large(&self, pages: u32) -> bool {
        pages > self.shares.each_max / 2
    }

    /// Then the batch is the only one, until [`Self::keeps_no_guards`], or until it is passed over.
    pub(crate) fn may_keep_guards(&self) -> Option<Keeps> {
        self.progress.lock().may_keep_guards()
    }

    /// The batch was polled and queues with a `turn` of `file`. False: it was passed over.
    pub(crate) fn keeps_guards(&self, keeps: &Keeps, file: u32, turn: Turn) -> bool {
        self.progress.lock().keeps_guards(keeps, (file, turn))
    }

    /// Nothing happens if the batch was passed over.
    pub(crate) fn keeps_no_guards(&self, keeps: &Keeps) {
        if self.progress.lock().keeps_no_guards(keeps) {
            self.progress();
        }
    }

    #[cfg(all(test, shuttle))]
    pub(crate) fn has_keeper(&self) -> bool {
        self.progress.lock().has_keeper()
    }

    /// Another future may begin.
    pub(crate) fn release(&self, file: u32, claim: Claim) {
        self.progress.step(file, claim);
    }

    /// Nothing was begun with the claim: that is no progress.
    pub(crate) fn unclaim(&self, file: u32, claim: Claim) {
        self.progress.lock().give_up(file, claim);
    }

    pub(crate) fn is_queued_for(&self) -> bool {
        self.progress.lock().has_sleepers()
    }

    /// Queues a future that was refused: in its place if it had one, else at the end of its file's
    /// line. Its claim ends. `None`: there was progress beyond `seen`, or it is behind nobody.
    pub(crate) fn queue(
        &self,
        (file, turn): (u32, Option<Turn>),
        (why, seen): (Refused, u64),
        claimed: Claim,
        waker: &Waker,
    ) -> Option<Turn> {
        let waker = waker.clone();
        let mut queue = self.progress.lock();
        queue.give_up(file, claimed);
        let added = queue.add((file, turn), (why, seen), waker);
        drop(queue); // before the waker, if it comes back
        let (turn, next) = added.ok()?;
        wake(next);
        // The daemon looks after those that queue.
        self.bell.ring();
        Some(turn)
    }

    /// Then `waker` is the one to wake.
    pub(crate) fn is_queued(&self, file: u32, turn: Turn, waker: &Waker) -> bool {
        let mut waker = waker.clone();
        let queued = self.progress.lock().is_queued(file, turn, &mut waker);
        drop(waker);
        queued
    }

    pub(crate) fn served(&self, file: u32, turn: Turn) {
        self.remove(file, turn, true);
    }

    /// If the future was woken already, the next one is woken instead.
    pub(crate) fn leave(&self, file: u32, turn: Turn) {
        self.remove(file, turn, !mutant::on(Mutant::DropKeepsTurn));
    }

    fn remove(&self, file: u32, turn: Turn, gives_on: bool) {
        let (waker, next) = self.progress.lock().remove(file, turn, gives_on);
        drop(waker);
        wake(next);
    }

    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn sleepers(&self) -> u32 {
        self.progress.wake.waiters()
    }

    pub(crate) fn wait_for_progress(&self, seen: u64, nap: Duration) {
        let queue = self.progress.lock();
        if queue.times == seen {
            drop(if mutant::on(Mutant::SleepUntilWoken) {
                self.progress.wake.wait(queue)
            } else {
                self.progress.wake.wait_timeout(queue, nap)
            });
        }
    }
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn step(&self, file: u32, claimed: Claim) {
        let next = self.lock().step(file, claimed);
        self.wake.notify_all();
        wake(next);
    }
}

fn wake(next: Vec<Waker>) {
    next.into_iter().for_each(wait::wake);
}
