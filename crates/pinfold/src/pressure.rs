//! Memory pressure: how much is free, how much is being filled, and which threads wait for memory.
//!
//! Has the watermarks and limits that follow from a cache's size, the level of fills in flight, the
//! bell of the reclaiming thread, and the sleep of threads that find nothing free. `reclaim` acts
//! on it. Called by `core` and everything above it.

use std::time::Duration;

// Not from `crate::sync`: levels and hints, on which no protocol depends.
use std::sync::atomic::AtomicU32;

use crate::frame::Order;
use crate::mutant::{self, Mutant};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, Ordering};

/// Pages that a thread without memory evicts at a time, at least and at most.
const DIRECT_PAGES: std::ops::RangeInclusive<u32> = 32..=256;

/// Frames of folios that are being filled.
#[derive(Debug, Default)]
pub(crate) struct OnItsWay(AtomicU32);

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
    /// Incremented when memory is freed or a fill ends.
    moved: Mutex<u64>,
    moved_wake: Condvar,
    /// Of all files.
    on_its_way: OnItsWay,
    /// Half of the cache.
    on_its_way_max: u32,
    /// Where the next search for folios to move out of an unmovable run begins.
    pub(crate) unmovable_hand: AtomicU32,
}

impl Pressure {
    /// For a cache of `frames` frames.
    pub(crate) fn new(frames: u32) -> Self {
        // Enough for a burst of readers, little enough to cost few hits.
        let low_frames = (frames / 128).max(8);
        // A folio is at most a 64th of the cache, so that one reader ahead of itself is not all.
        let order = (frames / 64).max(1).ilog2().min(u32::from(Order::MAX.get()));
        Pressure {
            low_frames,
            high_frames: low_frames * 2,
            order_max: Order::new(order as u8).expect("at most the largest"),
            direct_pages: low_frames.clamp(*DIRECT_PAGES.start(), *DIRECT_PAGES.end()),
            bell: Bell::new(),
            moved: Mutex::new(0),
            moved_wake: Condvar::new(),
            on_its_way: OnItsWay::default(),
            on_its_way_max: frames / 2,
            unmovable_hand: AtomicU32::new(0),
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
        Pressure { low_frames, high_frames, order_max, direct_pages, ..Pressure::new(frames) }
    }

    /// Notes that a fill of a folio of `order` begins, in a file that has so much on its way.
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
        *self.moved.lock() += 1;
        self.moved_wake.notify_all();
    }

    /// The number of calls of `progress` so far.
    pub(crate) fn progress_seen(&self) -> u64 {
        *self.moved.lock()
    }

    /// Sleeps until there is progress beyond `seen`, at most for `nap`.
    pub(crate) fn wait_for_progress(&self, seen: u64, nap: Duration) {
        let moved = self.moved.lock();
        if *moved == seen {
            drop(if mutant::on(Mutant::SleepUntilWoken) {
                self.moved_wake.wait(moved)
            } else {
                self.moved_wake.wait_timeout(&self.moved, moved, nap)
            });
        }
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
        if *ring == Ring::End {
            return false;
        }
        *ring = Ring::Sleep;
        true
    }
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
