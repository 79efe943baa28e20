//! The checker itself: which effects of store buffers it shows, and which it does not.

use std::sync::Arc;

use super::Stores::{AtOnce, Buffered};
use super::{explore, spawn};
use crate::base::sync::{AtomicU32, Mutex, Ordering, fence, scheduled};

type Words = Arc<(AtomicU32, AtomicU32)>;

/// Each thread stores to one word and loads the other; one of them sees the other's store, if
/// `apart` orders the two on both sides.
fn store_buffering(mine: fn(), theirs: fn()) {
    let words = Words::default();
    let other = words.clone();
    let seen = Arc::new(AtomicU32::new(0));
    let its = seen.clone();
    let thread = spawn(move || {
        other.0.store(1, Ordering::Release);
        theirs();
        its.store(other.1.load(Ordering::Acquire), Ordering::SeqCst);
    });
    words.1.store(1, Ordering::Release);
    mine();
    let first = words.0.load(Ordering::Acquire);
    thread.join().expect("the other thread");
    assert!(first == 1 || seen.load(Ordering::SeqCst) == 1, "neither saw the other");
}

fn none() {}

fn full() {
    fence(Ordering::SeqCst);
}

fn locked() {
    drop(Mutex::new(()).lock());
}

#[test]
fn stores_are_seen_late_unless_something_waits_for_them() {
    let holds = |stores, model: fn()| explore(stores, model, None, 0, 1000);
    assert!(holds(AtOnce, || store_buffering(none, none)).is_ok());
    let late = holds(Buffered, || store_buffering(none, none));
    assert!(late.is_err_and(|why| why.contains("neither saw the other")));
    let late = holds(Buffered, || store_buffering(full, none));
    assert!(late.is_err_and(|why| why.contains("neither saw the other")));
    assert!(holds(Buffered, || store_buffering(full, full)).is_ok());
    assert!(holds(Buffered, || store_buffering(locked, full)).is_ok());
    // One side's fence is for all threads: the other side needs none.
    assert!(holds(Buffered, || store_buffering(scheduled::empty_all_buffers, none)).is_ok());
}

/// Stores become visible in order.
fn message() {
    let words = Words::default();
    let other = words.clone();
    let thread = spawn(move || {
        other.0.store(1, Ordering::Relaxed);
        other.1.store(1, Ordering::Release);
        assert_eq!(other.0.load(Ordering::Relaxed), 1, "its own store");
    });
    if words.1.load(Ordering::Acquire) == 1 {
        assert_eq!(words.0.load(Ordering::Relaxed), 1, "out of order");
    }
    thread.join().expect("the other thread");
}

#[test]
fn stores_are_seen_in_order_and_at_once_by_their_thread() {
    assert_eq!(explore(Buffered, message, None, 0, 1000), Ok(()));
}
