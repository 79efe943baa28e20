//! RocksDB's HyperClockCache, through the C functions of `hyperclock.cc`: a look-up returns a
//! handle, whose value is read in place, and which is then released.

use std::ffi::c_void;
use std::ptr::NonNull;

use crate::{Peer, roomy};

/// Opaque: the cache itself.
type Clock = NonNull<c_void>;
/// Opaque: one reference to an entry of it.
type Handle = NonNull<c_void>;

unsafe extern "C" {
    fn pinfold_hyperclock_new(capacity_bytes: usize, value_bytes: usize) -> Option<Clock>;
    fn pinfold_hyperclock_free(clock: Clock);
    fn pinfold_hyperclock_insert(clock: Clock, key: u64, value: *const u8, bytes: usize) -> bool;
    fn pinfold_hyperclock_lookup(clock: Clock, key: u64, value: *mut *const u8) -> Option<Handle>;
    fn pinfold_hyperclock_release(clock: Clock, handle: Handle);
}

/// HyperClockCache with its default number of shards, and the length of the values that it asks
/// for.
#[derive(Debug)]
pub struct HyperClock {
    clock: Clock,
    value_bytes: usize,
}

// SAFETY: RocksDB's caches may be used and destroyed by any thread.
unsafe impl Send for HyperClock {}
// SAFETY: "It has internal synchronization and may be safely accessed concurrently from multiple
// threads", says rocksdb/cache.h.
unsafe impl Sync for HyperClock {}

impl Peer for HyperClock {
    fn new(values: usize, value_bytes: usize) -> Self {
        let capacity_bytes = roomy(values) * value_bytes;
        // SAFETY: two numbers; no memory is passed.
        let clock = unsafe { pinfold_hyperclock_new(capacity_bytes, value_bytes) };
        HyperClock { clock: clock.expect("no memory for RocksDB's cache"), value_bytes }
    }

    fn insert(&self, key: u64, value: &[u8]) {
        assert_eq!(value.len(), self.value_bytes, "all values are of one length");
        // SAFETY: the clock lives as long as `self`; `value` is readable for its length, and
        // copied.
        let put =
            unsafe { pinfold_hyperclock_insert(self.clock, key, value.as_ptr(), value.len()) };
        assert!(put, "RocksDB's cache took no value for {key}");
    }

    #[inline]
    fn get<R>(&self, key: u64, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut value = std::ptr::null();
        // SAFETY: the clock lives as long as `self`; `value` has the size of one pointer.
        let handle = unsafe { pinfold_hyperclock_lookup(self.clock, key, &raw mut value) }?;
        let held = Held { clock: self.clock, handle };
        // SAFETY: all values are `value_bytes` long, set before they were put in, never changed,
        // and not freed while the handle is held.
        let bytes = unsafe { std::slice::from_raw_parts(value, self.value_bytes) };
        let result = read(bytes);
        drop(held);
        Some(result)
    }
}

impl Drop for HyperClock {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once; handles borrow `self`, so none is left.
        unsafe { pinfold_hyperclock_free(self.clock) };
    }
}

/// A reference, released on drop, so that it is also where `read` panics.
struct Held {
    clock: Clock,
    handle: Handle,
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the handle is of this clock, which outlives `get`; it is released once.
        unsafe { pinfold_hyperclock_release(self.clock, self.handle) };
    }
}
