//! What faults of maps are compared with: the lock of the whole space, as the kernel has, locks
//! that are kept while a page is read, and how long threads wait for locks. Feature `testing`;
//! without it, `not_compared.rs` stands in.
//!
//! Nothing is timed that does not wait: a lock that is free costs one addition here.

use std::time::{Duration, Instant};

use super::counter::Counter;
use crate::base::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Decades of [`LockWaits::by_decade`].
const WAIT_DECADES: usize = 8;

/// Which lock a fault takes again, once its page was read. Feature `testing`: for comparisons only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FaultLock {
    /// That of its own map.
    #[default]
    Vma,
    /// That of the whole space, as the kernel's faults take `mmap_lock`. To compare with.
    Space,
}

/// What a fault does with the lock of its map while its page is read. Feature `testing`: for
/// comparisons only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FaultIo {
    /// It lets go of the lock, and takes one again when the page was read.
    #[default]
    Drop,
    /// It keeps the lock. Whoever unmaps or changes the map waits for the read, and so does a
    /// handler thread, which serves nothing else meanwhile. Futures that wait for other pages of
    /// what it reads are woken when the fault has ended.
    Hold,
}

/// How often a lock was taken, and how long threads waited for it. Feature `testing`: for
/// comparisons only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockWaits {
    /// Times that it was taken.
    pub acquired: u64,
    /// Of these, times that it was not free at once.
    pub waited: u64,
    /// The sum of these waits, in nanoseconds.
    pub wait_ns: u64,
    /// These waits by length: below 1 us, below 10 us, and so on; the last are of 1 s and longer.
    pub by_decade: [u64; 8],
}

/// What is measured of a space's locks. Feature `testing`: for comparisons only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceLocks {
    /// Retries under the lock of the whole space: all of them with [`FaultLock::Space`], none
    /// otherwise.
    pub retries: u64,
    /// Faults that took the lock of their map.
    pub map_readers: LockWaits,
    /// Calls that changed a map: `map_file`, `protect`, `unmap`.
    pub map_writers: LockWaits,
    /// Faults that took the lock of the whole space.
    pub space_readers: LockWaits,
    /// Calls that changed which maps there are.
    pub space_writers: LockWaits,
}

/// How a space serves faults, and what is measured of its locks.
#[derive(Debug)]
pub(crate) struct Compared {
    lock: FaultLock,
    io: FaultIo,
    /// The lock of the whole space. Taken for writing to change which maps there are.
    layout: RwLock<()>,
    retries: Counter,
    map_readers: WaitCounts,
    map_writers: WaitCounts,
    space_readers: WaitCounts,
    space_writers: WaitCounts,
}

impl Default for Compared {
    fn default() -> Self {
        Compared::new(FaultLock::default(), FaultIo::default())
    }
}

impl Compared {
    pub(crate) fn new(lock: FaultLock, io: FaultIo) -> Self {
        let (layout, retries) = (RwLock::new(()), Counter::default());
        let [map_readers, map_writers, space_readers, space_writers] = Default::default();
        Compared {
            lock,
            io,
            layout,
            retries,
            map_readers,
            map_writers,
            space_readers,
            space_writers,
        }
    }

    /// Changes which maps there are.
    pub(crate) fn change_layout<R>(&self, change: impl FnOnce() -> R) -> R {
        let (_layout, waited) = write(&self.layout);
        self.space_writers.note(waited);
        change()
    }

    /// Does what must not happen while that changes.
    pub(crate) fn in_layout<R>(&self, body: impl FnOnce() -> R) -> R {
        let _layout = (self.lock == FaultLock::Space).then(|| {
            let (layout, waited) = read(&self.layout);
            self.space_readers.note(waited);
            layout
        });
        body()
    }

    /// [`in_layout`](Self::in_layout) for a fault that looks again.
    pub(crate) fn retry<R>(&self, look: impl FnOnce() -> R) -> R {
        self.retries.add(u64::from(self.lock == FaultLock::Space));
        self.in_layout(look)
    }

    /// Whether the page is brought under the lock that the fault has; `again`: that of a retry.
    pub(crate) fn holds(&self, again: bool) -> bool {
        self.io == FaultIo::Hold && (again || self.lock == FaultLock::Vma)
    }

    /// Whether a page is brought before a retry.
    pub(crate) fn drops(&self) -> bool {
        self.io == FaultIo::Drop
    }

    pub(crate) fn note_reader(&self, waited: Waited) {
        self.map_readers.note(waited);
    }

    pub(crate) fn note_writer(&self, waited: Waited) {
        self.map_writers.note(waited);
    }

    pub(crate) fn report(&self) -> SpaceLocks {
        SpaceLocks {
            retries: self.retries.get(),
            map_readers: self.map_readers.report(),
            map_writers: self.map_writers.report(),
            space_readers: self.space_readers.report(),
            space_writers: self.space_writers.report(),
        }
    }
}

/// One kind of lock, taken in one way.
#[derive(Debug, Default)]
#[repr(align(128))] // threads that take different kinds do not share a line
struct WaitCounts {
    acquired: Counter,
    wait_ns: Counter,
    by_decade: [Counter; WAIT_DECADES],
}

/// How long a thread waited for a lock. `None`: it was free.
#[must_use = "a wait is counted"]
pub(crate) struct Waited(Option<Duration>);

impl WaitCounts {
    fn note(&self, Waited(waited): Waited) {
        self.acquired.add(1);
        if let Some(waited) = waited {
            self.wait_ns.add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
            self.by_decade[decade(waited)].add(1);
        }
    }

    fn report(&self) -> LockWaits {
        let by_decade = std::array::from_fn(|at| self.by_decade[at].get());
        let (acquired, wait_ns) = (self.acquired.get(), self.wait_ns.get());
        LockWaits { acquired, waited: by_decade.iter().sum(), wait_ns, by_decade }
    }
}

/// The place of a wait in [`LockWaits::by_decade`].
fn decade(waited: Duration) -> usize {
    let micros = waited.as_micros();
    micros.checked_ilog10().map_or(0, |log| log as usize + 1).min(WAIT_DECADES - 1)
}

/// Takes a lock for reading, and says how long that took.
pub(crate) fn read<T>(lock: &RwLock<T>) -> (RwLockReadGuard<'_, T>, Waited) {
    timed(lock.try_read(), || lock.read())
}

/// As [`read`], for writing.
pub(crate) fn write<T>(lock: &RwLock<T>) -> (RwLockWriteGuard<'_, T>, Waited) {
    timed(lock.try_write(), || lock.write())
}

fn timed<G>(at_once: Option<G>, wait: impl FnOnce() -> G) -> (G, Waited) {
    if let Some(guard) = at_once {
        return (guard, Waited(None));
    }
    let since = Instant::now();
    let guard = wait();
    (guard, Waited(Some(since.elapsed())))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_by_their_decade() {
        let waits = WaitCounts::default();
        for micros in [0, 1, 9, 10, 99_999, 999_999, 1_000_000, 1 << 40] {
            waits.note(Waited(Some(Duration::from_micros(micros))));
        }
        waits.note(Waited(None));
        let report = waits.report();
        assert_eq!(report.by_decade, [1, 2, 1, 0, 0, 1, 1, 2]);
        assert_eq!((report.acquired, report.waited), (9, 8));
        assert!(report.wait_ns > 1 << 49);
    }

    #[test]
    fn a_lock_that_is_free_is_not_timed_and_one_that_is_held_is() {
        let lock = RwLock::new(());
        assert!(write(&lock).1.0.is_none());
        let (first, waited) = read(&lock);
        assert!(waited.0.is_none() && read(&lock).1.0.is_none());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&lock).1.0.is_some());
            // Ends: the writer comes. Then nobody else may begin to read.
            while lock.try_read().is_some() {
                std::thread::yield_now();
            }
            drop(first);
            assert!(writer.join().unwrap());
        });
    }
}
