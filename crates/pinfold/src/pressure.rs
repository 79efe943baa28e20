//! Memory pressure: how much is free, how much is on its way, and who waits for memory.
//!
//! Here: the watermarks and limits that follow from a cache's size, the level of what is being
//! filled, the bell of the reclaiming thread, and the sleep of those who find nothing free. Not
//! here: what is done about it (`reclaim`). Called by `core` and everything above it.

use std::time::Duration;

// Not from `crate::sync`: levels and hints, on which no protocol hangs.
use std::sync::atomic::AtomicU32;

use crate::flaw::{self, Flaw};
use crate::frame::Order;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex, Ordering};

/// Pages that a reader who finds nothing free evicts for itself at a time, at least and at most.
const DIRECT_PAGES: std::ops::RangeInclusive<u32> = 32..=256;

/// What a cache knows of its memory's use.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// Below this many free frames the reclaiming thread is rung.
    pub(crate) low_frames: u32,
    /// Up to this many free frames it evicts.
    pub(crate) high_frames: u32,
    /// The largest folio worth making in a cache of this size.
    pub(crate) order_max: Order,
    /// Pages that a reader evicts for itself at a time.
    pub(crate) direct_pages: u32,
    pub(crate) bell: Bell,
    /// Moves when something is freed or arrives.
    moved: Mutex<u64>,
    moved_wake: Condvar,
    /// Frames of folios on their way.
    filling_frames: AtomicU32,
    /// A quarter of the cache.
    filling_max: u32,
    /// Where the search for folios to move out of an unmovable run goes on.
    pub(crate) unmovable_hand: AtomicU32,
}

impl Pressure {
    /// For a cache of `frames` frames.
    pub(crate) fn new(frames: u32) -> Self {
        // Enough for a burst of readers, little enough to be no loss.
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
            filling_frames: AtomicU32::new(0),
            filling_max: frames / 4,
            unmovable_hand: AtomicU32::new(0),
        }
    }

    /// For a model: with these watermarks (none: 0), and so many pages at a time for a reader that
    /// evicts for itself.
    #[cfg(all(test, any(loom, shuttle)))]
    pub(crate) fn model(
        frames: u32,
        order_max: Order,
        (low_frames, high_frames): (u32, u32),
        direct_pages: u32,
    ) -> Self {
        Pressure { low_frames, high_frames, order_max, direct_pages, ..Pressure::new(frames) }
    }

    /// A folio of `order` is on its way.
    pub(crate) fn fill_begins(&self, order: Order) {
        // Relaxed, here and below: a level, to be compared with a limit.
        self.filling_frames.fetch_add(order.frames(), Ordering::Relaxed);
    }

    /// A folio of `order` has arrived, or will not.
    pub(crate) fn fill_ends(&self, order: Order) {
        self.filling_frames.fetch_sub(order.frames(), Ordering::Relaxed);
    }

    /// Whether a quarter of the cache is on its way. Then nothing more is read ahead: one source
    /// that hangs must not take the memory of all others.
    pub(crate) fn enough_on_its_way(&self) -> bool {
        self.filling_frames.load(Ordering::Relaxed) > self.filling_max
    }

    /// Something was freed, or can be evicted now.
    pub(crate) fn progress(&self) {
        *self.moved.lock() += 1;
        self.moved_wake.notify_all();
    }

    /// How often there was progress so far.
    pub(crate) fn progress_seen(&self) -> u64 {
        *self.moved.lock()
    }

    /// Sleeps until there is progress beyond `seen`, but no longer than `nap`.
    pub(crate) fn wait_for_progress(&self, seen: u64, nap: Duration) {
        let moved = self.moved.lock();
        if *moved == seen {
            drop(if flaw::on(Flaw::SleepUntilTold) {
                self.moved_wake.wait(moved)
            } else {
                self.moved_wake.wait_timeout(&self.moved, moved, nap)
            });
        }
    }
}

/// What the reclaiming thread is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ring {
    Sleep,
    Evict,
    End,
}

/// What wakes the reclaiming thread, and ends it.
#[derive(Debug)]
pub(crate) struct Bell {
    ring: std::sync::Arc<(Mutex<Ring>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The reclaiming thread's end of a [`Bell`].
#[derive(Debug)]
pub(crate) struct Listener(std::sync::Arc<(Mutex<Ring>, Condvar)>);

impl Bell {
    fn new() -> Self {
        let ring = std::sync::Arc::new((Mutex::new(Ring::Sleep), Condvar::new()));
        Bell { ring, thread: Mutex::new(None) }
    }

    /// What the reclaiming thread listens to.
    pub(crate) fn listener(&self) -> Listener {
        Listener(self.ring.clone())
    }

    /// The thread that listens: joined when the bell is dropped.
    pub(crate) fn is_heard_by(&self, thread: JoinHandle<()>) {
        *self.thread.lock() = Some(thread);
    }

    /// There is less free than there should be.
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
    /// Sleeps until the bell rings; false if it is for the end.
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
    /// Ends the thread that listens, and waits for that.
    pub(crate) fn end(&self) {
        let (ring, wake) = &*self.ring;
        *ring.lock() = Ring::End;
        wake.notify_all();
        // The last to let go of a cache may be the reclaiming thread itself.
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
