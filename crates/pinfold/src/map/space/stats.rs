//! What is counted about a space: its faults, and the waits for its locks.
//!
//! Nothing is timed that does not wait: a lock that is free costs one addition here.

// Not from `crate::base::sync`: no protocol depends on a counter.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::base::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Decades of [`LockWaits::by_decade`].
const WAIT_DECADES: usize = 8;

/// What has happened in a [`Space`](super::Space) since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceStats {
    /// Whether system calls that touch absent pages wait for them. False without handler threads;
    /// and with them, if the process has no privilege for it: root, `vm.unprivileged_userfaultfd`,
    /// or access to `/dev/userfaultfd`.
    pub serves_system_calls: bool,
    /// Faults that the space was asked to serve. An access to a page that is in the map's memory is
    /// none: the kernel serves it alone.
    pub faults: u64,
    /// Faults whose page was cached by the time they looked: nothing was read for them.
    pub there: u64,
    /// Faults whose page had to be read, or was being read by another thread.
    pub absent: u64,
    /// How often a fault dropped its lock for a read and took a lock again after it.
    pub retries: u64,
    /// Retries that found the page evicted again.
    pub retry_io_miss: u64,
    /// Retries under the lock of the whole space: all of them with
    /// [`FaultLock::Space`](super::FaultLock::Space), none otherwise. Feature `testing`, as all
    /// that is measured of locks.
    #[cfg(feature = "testing")]
    pub retry_space_lock: u64,
    /// Faults whose map was changed or unmapped while their page was read. The access is repeated.
    pub changed: u64,
    /// Faults whose page could not be read.
    pub failed: u64,
    /// Faults that took the lock of their map.
    #[cfg(feature = "testing")]
    pub map_readers: LockWaits,
    /// Calls that changed a map: `map_file`, `remap`, `protect`, `unmap`.
    #[cfg(feature = "testing")]
    pub map_writers: LockWaits,
    /// Faults that took the lock of the whole space.
    #[cfg(feature = "testing")]
    pub space_readers: LockWaits,
    /// Calls that changed which maps there are.
    #[cfg(feature = "testing")]
    pub space_writers: LockWaits,
}

/// How often a lock was taken, and how long threads waited for it. Feature `testing`: for
/// comparisons only.
#[cfg(feature = "testing")]
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

/// The counters of a space.
#[derive(Debug, Default)]
pub(crate) struct SpaceCounters {
    pub(crate) faults: Counter,
    pub(crate) there: Counter,
    pub(crate) absent: Counter,
    pub(crate) retries: Counter,
    pub(crate) retry_io_miss: Counter,
    pub(crate) retry_space_lock: Counter,
    pub(crate) changed: Counter,
    pub(crate) failed: Counter,
    pub(crate) map_readers: WaitCounts,
    pub(crate) map_writers: WaitCounts,
    pub(crate) space_readers: WaitCounts,
    pub(crate) space_writers: WaitCounts,
}

impl SpaceCounters {
    pub(crate) fn report(&self, serves_system_calls: bool) -> SpaceStats {
        SpaceStats {
            serves_system_calls,
            faults: self.faults.get(),
            there: self.there.get(),
            absent: self.absent.get(),
            retries: self.retries.get(),
            retry_io_miss: self.retry_io_miss.get(),
            #[cfg(feature = "testing")]
            retry_space_lock: self.retry_space_lock.get(),
            changed: self.changed.get(),
            failed: self.failed.get(),
            #[cfg(feature = "testing")]
            map_readers: self.map_readers.report(),
            #[cfg(feature = "testing")]
            map_writers: self.map_writers.report(),
            #[cfg(feature = "testing")]
            space_readers: self.space_readers.report(),
            #[cfg(feature = "testing")]
            space_writers: self.space_writers.report(),
        }
    }
}

/// One number.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed); // orders nothing, nor does `get`
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One kind of lock, taken in one way.
#[derive(Debug, Default)]
#[repr(align(128))] // threads that take different kinds do not share a line
pub(crate) struct WaitCounts {
    acquired: Counter,
    wait_ns: Counter,
    by_decade: [Counter; WAIT_DECADES],
}

/// How long a thread waited for a lock. `None`: it was free.
#[must_use = "a wait is counted"]
pub(crate) struct Waited(Option<Duration>);

impl WaitCounts {
    pub(crate) fn note(&self, Waited(waited): Waited) {
        self.acquired.add(1);
        if let Some(waited) = waited {
            self.wait_ns.add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
            self.by_decade[decade(waited)].add(1);
        }
    }

    #[cfg(feature = "testing")]
    fn report(&self) -> LockWaits {
        let by_decade = std::array::from_fn(|at| self.by_decade[at].get());
        LockWaits {
            acquired: self.acquired.get(),
            waited: by_decade.iter().sum(),
            wait_ns: self.wait_ns.get(),
            by_decade,
        }
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

/// Takes the lock for writing, and measures the wait.
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
