//! The program's allocator, where it may have no memory: under a limit of the process (`RLIMIT_AS`,
//! `RLIMIT_DATA`), or of the allocator.
//!
//! The standard library's collections end the process then, which is no answer where nobody has
//! called: a fault, and the cache's threads. So what is large there is allocated by [`zeroed`], and
//! before small blocks they ask [`has_room`]. Where there is none, it frees a part of a reserve,
//! which the first space allocates. It is no promise.

#[cfg(all(feature = "map", not(loom)))]
use std::alloc::alloc_zeroed;
use std::alloc::{Layout, alloc, dealloc};
use std::hint::black_box;
use std::ptr;
// Not from `crate::base::sync`: no protocol depends on it.
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// What a fault, or a turn of eviction, may take in small blocks at a time, and some more.
const ROOM_BYTES: usize = 32 << 10;

/// A block of the reserve: below what allocators map by itself.
const BLOCK: Layout = match Layout::from_size_align(2 * ROOM_BYTES, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("the alignment is a power of two"),
};

const BLOCKS: usize = 8;

/// Each is null, or a block that nobody uses.
static RESERVE: [AtomicPtr<u8>; BLOCKS] = [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

/// About how many blocks are missing. None until there is a space.
static MISSING: AtomicUsize = AtomicUsize::new(0);

#[cfg(all(feature = "map", not(loom)))]
pub(crate) fn reserve() {
    static IS_KEPT: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    if !IS_KEPT.swap(true, Ordering::Relaxed) {
        MISSING.fetch_add(BLOCKS, Ordering::Relaxed);
    }
    let missing = MISSING.load(Ordering::Relaxed).min(BLOCKS);
    (0..missing).for_each(|_| fill_one());
}

fn fill_one() {
    // SAFETY: the size is not zero.
    let block = unsafe { alloc(BLOCK) };
    if block.is_null() {
        return;
    }
    // Release: pairs with the acquire in `free_one`.
    let (success, failure) = (Ordering::Release, Ordering::Relaxed);
    let take = |slot: &AtomicPtr<u8>| {
        slot.compare_exchange(ptr::null_mut(), block, success, failure).is_ok()
    };
    if RESERVE.iter().any(take) {
        MISSING.fetch_sub(1, Ordering::Relaxed); // a hint
    } else {
        // SAFETY: allocated above with this layout, and nobody has seen it.
        unsafe { dealloc(block, BLOCK) };
    }
}

fn free_one() -> bool {
    // Acquire: pairs with the release in `fill_one`.
    let blocks = RESERVE.iter().map(|slot| slot.swap(ptr::null_mut(), Ordering::Acquire));
    let Some(block) = blocks.into_iter().find(|block| !block.is_null()) else { return false };
    MISSING.fetch_add(1, Ordering::Relaxed); // a hint
    // SAFETY: allocated by `fill_one` with this layout, and this thread's alone now.
    unsafe { dealloc(block, BLOCK) };
    true
}

/// Types of which zeros are a value.
///
/// # Safety
/// All zeros are a value.
#[cfg(all(feature = "map", not(loom)))]
pub(crate) unsafe trait Zeroable {}
// SAFETY: zero.
#[cfg(all(feature = "map", not(loom)))]
unsafe impl Zeroable for u8 {}
// SAFETY: zero.
#[cfg(all(feature = "map", not(loom)))]
unsafe impl Zeroable for u32 {}

/// `n` zeros, by the reserve if need be. `None`: there is no memory for them.
#[cfg(all(feature = "map", not(loom)))]
pub(crate) fn zeroed<T: Zeroable>(n: usize) -> Option<Box<[T]>> {
    let layout = Layout::array::<T>(n).ok()?;
    if layout.size() == 0 {
        return Some(Box::default());
    }
    // SAFETY: the size is not zero.
    let allocate = || unsafe { alloc_zeroed(layout) }.cast::<T>();
    let mut at = allocate();
    // Ends: each turn frees a block. What is larger than one is not worth them all.
    while at.is_null() && layout.size() <= BLOCK.size() && free_one() {
        at = allocate();
    }
    let all = std::ptr::slice_from_raw_parts_mut(at, n);
    // SAFETY: allocated with the layout of such a slice, and zeros are values.
    (!at.is_null()).then(|| unsafe { Box::from_raw(all) })
}

/// Whether there is room for small blocks; by the reserve, if need be.
pub(crate) fn has_room() -> bool {
    #[cfg(test)]
    if HAS_NO_ROOM.get() {
        return false;
    }
    // Ends: each turn but the last frees a block.
    while !probe() {
        if !free_one() {
            return false;
        }
    }
    if MISSING.load(Ordering::Relaxed) > 0 {
        fill_one();
        return probe() || free_one();
    }
    true
}

#[cfg(test)]
std::thread_local! {
    /// Whether [`has_room`] is false for this thread, whatever room there is.
    pub(crate) static HAS_NO_ROOM: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn probe() -> bool {
    let mut probe = Vec::<u8>::new();
    // The compiler may leave out what nobody sees.
    let got = black_box(&mut probe).try_reserve_exact(ROOM_BYTES);
    got.is_ok() && black_box(&probe).capacity() > 0
}

#[cfg(all(test, feature = "map", not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_none() {
        assert_eq!(zeroed::<u32>(3).as_deref(), Some(&[0; 3][..]));
        assert_eq!(zeroed::<u8>(0).as_deref(), Some(&[][..]));
        assert!(zeroed::<u32>(usize::MAX).is_none() && zeroed::<u8>(isize::MAX as usize).is_none());
        assert!(has_room());
    }

    #[test]
    fn what_was_freed_of_the_reserve_is_allocated_again() {
        reserve();
        assert!(free_one() && free_one());
        // Each allocates one, whatever other tests do.
        assert!((0..BLOCKS).all(|_| has_room()));
        assert!(RESERVE.iter().all(|slot| !slot.load(Ordering::Relaxed).is_null()));
    }
}
