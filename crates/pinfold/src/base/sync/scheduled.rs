//! std's atomics, mutexes and condition variables as shuttle schedules them.
//!
//! Belongs here: a point before each access at which another thread may go on, and the store
//! buffers of x86. One thread of the system runs all of a model's.
//!
//! An atomic here is std's, in the place and of the size of the real one, so that the frame table,
//! the index nodes and the arena are the shipped ones. shuttle's own are objects on the heap.
//!
//! # Store buffers
//!
//! shuttle alone explores schedules of accesses that are all sequentially consistent. With
//! [`begin_run`] each thread has a queue of stores that nobody else sees yet, as on x86 (Owens,
//! Sarkar, Sewell, "A better x86 memory model: x86-TSO", TPHOLs 2009): it sees its own; they
//! reach memory in their order, at any point; a read-modify-write, a full fence and the end of a
//! critical section wait until the queue is empty; membarrier(2) empties the queues of all.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub(crate) use std::sync::atomic::Ordering;

use shuttle::rand::RngCore;

/// In each run, one store in so many is seen by all at each point: soon, late, or hardly ever.
const SEEN_ONE_IN: [u64; 3] = [4, 32, 512];

/// A store that only its thread sees.
#[derive(Clone, Copy, Debug)]
struct Pending {
    address: usize,
    value: u64,
    /// Stores a value of that width at that address.
    land: unsafe fn(usize, u64),
}

/// By the thread, its oldest store first.
type Buffers = BTreeMap<usize, VecDeque<Pending>>;

std::thread_local! {
    static BUFFERED: Cell<bool> = const { Cell::new(false) };
    static SEEN: Cell<u64> = const { Cell::new(SEEN_ONE_IN[0]) };
    static BUFFERS: RefCell<Buffers> = const { RefCell::new(BTreeMap::new()) };
}

/// From here on, for this run of a model, stores are buffered or not. Nothing is left of the run
/// before.
#[cfg(test)]
pub(crate) fn begin_run(buffered: bool) {
    BUFFERED.set(buffered);
    if buffered {
        let drawn = shuttle::rand::thread_rng().next_u64() as usize;
        SEEN.set(SEEN_ONE_IN[drawn % SEEN_ONE_IN.len()]);
    }
    BUFFERS.with_borrow_mut(BTreeMap::clear);
}

/// The thread of the model that runs, if one does.
fn me() -> Option<usize> {
    shuttle::current::try_get_current_task().map(usize::from)
}

/// Another thread may go on here. Nothing outside of a model.
pub(crate) fn point() {
    if me().is_none() {
        return;
    }
    // What it is for shuttle: a switch, and no hint that this thread waits for another.
    shuttle::thread::sleep(Duration::ZERO);
    if BUFFERED.get() {
        let waiting: Vec<usize> = BUFFERS.with_borrow(|all| all.keys().copied().collect());
        for thread in waiting {
            if shuttle::rand::thread_rng().next_u64().is_multiple_of(SEEN.get()) {
                land_oldest(thread);
            }
        }
    }
}

/// The oldest store of `thread` reaches memory; false if it had none.
fn land_oldest(thread: usize) -> bool {
    let oldest = BUFFERS.with_borrow_mut(|all| {
        let queue = all.get_mut(&thread)?;
        let oldest = queue.pop_front();
        if queue.is_empty() {
            all.remove(&thread);
        }
        oldest
    });
    let Some(Pending { address, value, land }) = oldest else { return false };
    // SAFETY: the address of an atomic that was stored to through a reference. It is there still:
    // its owner drops it after its threads have ended, or have taken a mutex, which empties their
    // queues.
    unsafe { land(address, value) };
    true
}

/// Waits until all have seen what this thread stored.
pub(crate) fn empty_own_buffer() {
    if let Some(me) = me().filter(|_| BUFFERED.get()) {
        while land_oldest(me) {}
    }
}

/// Empties the buffers of all threads, as membarrier(2) does.
pub(crate) fn empty_all_buffers() {
    point();
    while let Some(thread) = BUFFERS.with_borrow(|all| all.keys().next().copied()) {
        land_oldest(thread);
    }
}

/// What this thread stored there last, if nobody else sees it yet.
fn own_store(address: usize) -> Option<u64> {
    let me = me().filter(|_| BUFFERED.get())?;
    BUFFERS.with_borrow(|all| {
        let own = all.get(&me)?;
        own.iter().rev().find(|store| store.address == address).map(|store| store.value)
    })
}

/// An atomic fence. All but a full one order nothing that x86 does not order anyway.
pub(crate) fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        point();
        empty_own_buffer();
    }
}

macro_rules! atomics {
    ($($name:ident($int:ty);)*) => {$(
        /// As std's, with a point before each access.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(crate) struct $name(std::sync::atomic::$name);

        #[allow(dead_code, reason = "each of them has all")]
        impl $name {
            pub(crate) const fn new(value: $int) -> Self {
                Self(std::sync::atomic::$name::new(value))
            }

            fn address(&self) -> usize {
                std::ptr::from_ref(self).addr()
            }

            #[allow(clippy::cast_possible_truncation, clippy::cast_lossless)]
            pub(crate) fn load(&self, _: Ordering) -> $int {
                point();
                match own_store(self.address()) {
                    Some(own) => own as $int,
                    None => self.0.load(Ordering::SeqCst),
                }
            }

            #[allow(clippy::cast_possible_truncation, clippy::cast_lossless)]
            pub(crate) fn store(&self, value: $int, order: Ordering) {
                unsafe fn land(address: usize, value: u64) {
                    let word: *const std::sync::atomic::$name =
                        std::ptr::with_exposed_provenance(address);
                    // SAFETY: the caller says that such an atomic is there.
                    let word = unsafe { &*word };
                    word.store(value as $int, Ordering::SeqCst);
                }
                point();
                if let Some(me) = me().filter(|_| BUFFERED.get() && order != Ordering::SeqCst) {
                    let address = std::ptr::from_ref(&self.0).expose_provenance();
                    let store = Pending { address, value: value as u64, land };
                    BUFFERS.with_borrow_mut(|all| all.entry(me).or_default().push_back(store));
                } else {
                    empty_own_buffer();
                    self.0.store(value, Ordering::SeqCst);
                }
            }

            /// The word, for a read-modify-write.
            fn alone(&self) -> &std::sync::atomic::$name {
                point();
                empty_own_buffer();
                &self.0
            }

            pub(crate) fn swap(&self, value: $int, _: Ordering) -> $int {
                self.alone().swap(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_add(&self, value: $int, _: Ordering) -> $int {
                self.alone().fetch_add(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_sub(&self, value: $int, _: Ordering) -> $int {
                self.alone().fetch_sub(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_or(&self, value: $int, _: Ordering) -> $int {
                self.alone().fetch_or(value, Ordering::SeqCst)
            }

            pub(crate) fn fetch_and(&self, value: $int, _: Ordering) -> $int {
                self.alone().fetch_and(value, Ordering::SeqCst)
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                _: Ordering,
                _: Ordering,
            ) -> Result<$int, $int> {
                self.alone().compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
            }
        }
    )*};
}

atomics! {
    AtomicU8(u8);
    AtomicU32(u32);
    AtomicU64(u64);
}

/// The word under a count: the protocol of `pinfold-refcount` on a word of here.
impl pinfold_refcount::atomic::AtomicWord<u64> for AtomicU64 {
    fn new(value: u64) -> Self {
        AtomicU64::new(value)
    }
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
    fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_sub(value, order)
    }
    fn compare_exchange(&self, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, Ordering::Relaxed)
    }
}

type RawMutex<T> = shuttle::sync::Mutex<T>;

/// A locked mutex.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a RawMutex<T>,
    locked: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.locked.as_ref().expect("locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.locked.as_mut().expect("locked")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        // The word of a mutex is changed by read-modify-writes.
        empty_own_buffer();
    }
}

pub(super) fn lock<T>(mutex: &RawMutex<T>) -> MutexGuard<'_, T> {
    empty_own_buffer();
    // Not poisoned: as the shipped ones.
    let locked = mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    MutexGuard { mutex, locked: Some(locked) }
}

#[derive(Debug)]
pub(super) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(super) fn new() -> Self {
        Condvar(shuttle::sync::Condvar::new())
    }

    pub(super) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        empty_own_buffer();
        let locked = guard.locked.take().expect("locked");
        let locked = self.0.wait(locked).unwrap_or_else(std::sync::PoisonError::into_inner);
        MutexGuard { mutex: guard.mutex, locked: Some(locked) }
    }

    /// Ends after others had their turn, notified or not: time passes as it likes.
    #[allow(clippy::unused_self, reason = "as the real one")]
    pub(super) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _: Duration,
    ) -> MutexGuard<'a, T> {
        let mutex = guard.mutex;
        drop(guard);
        shuttle::thread::yield_now();
        lock(mutex)
    }

    pub(super) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(super) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Threads, whose stores all have seen when they end.
pub(crate) mod thread {
    pub(crate) use shuttle::thread::{JoinHandle, current, yield_now};

    /// As std's.
    #[derive(Debug)]
    pub(crate) struct Builder(shuttle::thread::Builder);

    impl Builder {
        pub(crate) fn new() -> Self {
            Builder(shuttle::thread::Builder::new())
        }

        pub(crate) fn name(self, name: String) -> Self {
            Builder(self.0.name(name))
        }

        pub(crate) fn spawn<T: Send + 'static>(
            self,
            body: impl FnOnce() -> T + Send + 'static,
        ) -> std::io::Result<JoinHandle<T>> {
            self.0.spawn(move || {
                let done = body();
                super::empty_own_buffer();
                done
            })
        }
    }
}
