//! The bytes of the frames, for the model checker: it sees its own atomics, not mapped memory.
//!
//! One word a frame stands for the frame's bytes; the first eight bytes of a frame are its value.
//! The copies in `copy` have their namesakes here, which copy those words and nothing else.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use super::units::PAGE_BYTES;
use crate::base::mutant::Mutant;
use crate::base::sync::{AtomicU64, Ordering, fence_before_racing_stores};

/// A word for each frame of an arena.
#[derive(Debug)]
pub(super) struct ArenaWords {
    base: usize,
    words: Vec<AtomicU64>,
}

std::thread_local! {
    /// The arena of the model that is running: all its threads run on one of the system's.
    static ARENA: RefCell<Weak<ArenaWords>> = const { RefCell::new(Weak::new()) };
}

impl ArenaWords {
    /// Those of the arena at `base`, zero like fresh memory.
    pub(super) fn of(base: NonNull<u8>, frames: u32) -> Arc<Self> {
        let words = (0..frames).map(|_| AtomicU64::new(0)).collect();
        let bytes = Arc::new(ArenaWords { base: base.addr().get(), words });
        ARENA.set(Arc::downgrade(&bytes));
        bytes
    }

    fn word(&self, address: usize) -> Option<&AtomicU64> {
        self.words.get(address.checked_sub(self.base)? / PAGE_BYTES)
    }
}

fn arena() -> Arc<ArenaWords> {
    ARENA.with_borrow(Weak::upgrade).expect("the model has an arena")
}

/// Fills the frame at `address`, as a source does.
pub(crate) fn fill(address: NonNull<u8>, value: u64) {
    let arena = arena();
    let word = arena.word(address.addr().get()).expect("an address in the arena");
    // As `Extent::store`, both.
    fence_before_racing_stores(Mutant::StoreUnfenced);
    word.store(value, Ordering::Relaxed);
}

/// Copies the words of the frames that begin in `from..from + bytes`, loaded by `load`.
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize, load: impl Fn(&AtomicU64) -> u64) {
    let arena = arena();
    let skip = from.addr() % PAGE_BYTES;
    assert!(skip == 0 || skip + bytes <= 8, "models read whole words, or a part of one");
    for at in (0..bytes).step_by(PAGE_BYTES) {
        // What a mutant's reader finds outside of the arena.
        let value = arena.word(from.addr() + at).map_or(u64::MAX, &load);
        if let Some(word) = arena.word(to.addr() + at) {
            // Relaxed: racing, as the bytes of `copy_racing` are.
            word.store(value, Ordering::Relaxed);
        } else {
            for (n, byte) in value.to_ne_bytes().into_iter().skip(skip).take(bytes - at).enumerate()
            {
                // SAFETY: the caller says that `to` can be written for `bytes`.
                unsafe { to.wrapping_add(at + n).write(byte) };
            }
        }
    }
}

/// As the real one; the loads are relaxed.
///
/// # Safety
/// `to` can be written for `bytes`, or is in the arena.
pub(crate) unsafe fn copy_racing(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise. Relaxed: racing.
    unsafe { copy(to, from, bytes, |word| word.load(Ordering::Relaxed)) };
}

/// As the real one; the checker fails if a store may race with its loads.
///
/// # Safety
/// As for [`copy_racing`].
pub(crate) unsafe fn copy_still(to: *mut u8, from: *const u8, bytes: usize) {
    // The load is a point at which the checker may switch threads, as between any two of the real
    // ones.
    let load = |word: &AtomicU64| {
        word.load(Ordering::Relaxed);
        // SAFETY: no memory is at stake: the checker panics on a race.
        unsafe { word.unsync_load() }
    };
    // SAFETY: the caller's promise.
    unsafe { copy(to, from, bytes, load) };
}
