//! The program's allocator, where it may have no memory: under a limit of the process (`RLIMIT_AS`,
//! `RLIMIT_DATA`), or of the allocator.
//!
//! The standard library's collections end the process then, which is no answer for a fault and the
//! cache's threads. What is large there is allocated by [`zeroed`], and before small blocks they
//! ask [`has_room`], which is no promise.

use std::hint::black_box;

/// What a fault, or a turn of eviction, may take in small blocks at a time, and some more.
const ROOM_BYTES: usize = 32 << 10;

/// `n` zeros. `None`: there is no memory for them.
pub(crate) fn zeroed<T: Clone + Default>(n: usize) -> Option<Box<[T]>> {
    #[cfg(test)]
    if n > 0 && HAS_NO_ROOM.get() {
        return None;
    }
    let mut all = Vec::new();
    all.try_reserve_exact(n).ok()?;
    all.resize(n, T::default());
    Some(all.into_boxed_slice())
}

/// Whether there is room for small blocks.
pub(crate) fn has_room() -> bool {
    #[cfg(test)]
    if HAS_NO_ROOM.get() {
        return false;
    }
    let mut probe = Vec::<u8>::new();
    // The compiler may leave out what nobody sees.
    let got = black_box(&mut probe).try_reserve_exact(ROOM_BYTES);
    got.is_ok() && black_box(&probe).capacity() > 0
}

#[cfg(test)]
std::thread_local! {
    /// Whether this thread finds no room, whatever room there is.
    pub(crate) static HAS_NO_ROOM: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
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
}
