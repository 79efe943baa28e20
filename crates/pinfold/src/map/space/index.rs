//! From an address to the record of its map, for all spaces of the process, without a lock.
//!
//! A map begins at a multiple of 2 MiB, and no other map has a part of its last 2 MiB. So each
//! *granule* of 2 MiB belongs to one map at most. There is a table of two levels: the first has a
//! pointer for each 16 GiB of addresses, and is part of the program; a leaf has a number for each
//! granule, and is made when one of its granules is first mapped. Leaves are never freed.
//!
//! What is found may be out of date: whoever has it asks the record, under its lock. Whoever maps
//! fills the record, and then sets the granules; whoever unmaps clears the granules before it gives
//! the record back, and before the system may give the addresses to others. Both hold the record's
//! lock for writing meanwhile.

use std::ops::Range;

use crate::base::sizes::LEAF_GRANULES;
#[cfg(not(loom))]
use crate::base::sync::AtomicPtr;
use crate::base::sync::{AtomicU32, Ordering};

pub(crate) use crate::mapped::reserved::GRANULE_BYTES;

/// Bits of an address that a program can have: 47 on `x86_64`, 48 on `AArch64`.
#[cfg(not(loom))]
const ADDRESS_BITS: u32 = 48;

#[cfg(not(loom))]
const LEAVES: usize = (1 << ADDRESS_BITS) / GRANULE_BYTES / LEAF_GRANULES;

/// What is known of some granules: the number of a record plus one, or 0.
#[derive(Debug)]
pub(crate) struct Leaf([AtomicU32; LEAF_GRANULES]);

impl Leaf {
    pub(crate) fn new() -> Self {
        Leaf(std::array::from_fn(|_| AtomicU32::new(0)))
    }

    pub(crate) fn get(&self, granule: usize) -> Option<u32> {
        // Acquire: pairs with the release in `set`.
        self.0[granule % LEAF_GRANULES].load(Ordering::Acquire).checked_sub(1)
    }

    pub(crate) fn set(&self, granule: usize, number: Option<u32>) {
        // Release: pairs with the acquire in `get`. Whoever finds the number takes the record's
        // lock after the caller had taken it for writing, and so finds the record filled.
        let word = number.map_or(0, |number| number + 1);
        self.0[granule % LEAF_GRANULES].store(word, Ordering::Release);
    }
}

#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct MapIndex {
    leaves: [AtomicPtr<Leaf>; LEAVES],
}

#[cfg(not(loom))]
impl MapIndex {
    #[allow(clippy::large_stack_arrays, reason = "the process's, and tests' on the heap")]
    pub(crate) const fn new() -> Self {
        MapIndex { leaves: [const { AtomicPtr::new(std::ptr::null_mut()) }; LEAVES] }
    }

    /// The number of the record of the map at `address`, or of one that was there a moment ago.
    pub(crate) fn find(&self, address: usize) -> Option<u32> {
        let granule = address / GRANULE_BYTES;
        there(self.leaves.get(granule / LEAF_GRANULES)?)?.get(granule)
    }

    /// All granules that have an address of `addresses` are of the record `number` from now on, or
    /// of none. False if there are no such addresses.
    pub(crate) fn set(&self, addresses: &Range<usize>, number: Option<u32>) -> bool {
        let granules = addresses.start / GRANULE_BYTES..addresses.end.div_ceil(GRANULE_BYTES);
        if granules.end > LEAVES * LEAF_GRANULES {
            return false;
        }
        for granule in granules {
            made_once(&self.leaves[granule / LEAF_GRANULES], Leaf::new).set(granule, number);
        }
        true
    }
}

/// What `made_once` has made for this word, if it has.
#[cfg(not(loom))]
pub(super) fn there<T>(slot: &AtomicPtr<T>) -> Option<&T> {
    // Acquire: pairs with the release in `made_once`.
    let made = slot.load(Ordering::Acquire);
    // SAFETY: null, or what lives for ever: `made_once` has leaked it, or it is a static.
    unsafe { made.as_ref() }
}

/// What the word points to from the first call on, for ever. There is no lock, which a forked child
/// could find locked: threads that come at once all make it, and the first one's stays.
#[cfg(not(loom))]
pub(super) fn made_once<T>(slot: &AtomicPtr<T>, make: impl FnOnce() -> T) -> &T {
    if let Some(made) = there(slot) {
        return made;
    }
    let own = Box::into_raw(Box::new(make()));
    // Release: pairs with the acquire in `there`.
    let (success, failure) = (Ordering::Release, Ordering::Relaxed);
    if slot.compare_exchange(std::ptr::null_mut(), own, success, failure).is_err() {
        // SAFETY: nobody else has seen it.
        drop(unsafe { Box::from_raw(own) });
    }
    there(slot).expect("it was made")
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_granule_leads_to_its_map_and_no_other_does() {
        let index = Box::new(MapIndex::new());
        assert_eq!(index.find(usize::MAX), None);
        assert_eq!(index.find(0), None);
        // Across two leaves.
        let start = LEAF_GRANULES * GRANULE_BYTES * 3 - GRANULE_BYTES;
        let map = start..start + GRANULE_BYTES + 1;
        assert!(index.set(&map, Some(5)));
        for address in [start, start + GRANULE_BYTES, start + 2 * GRANULE_BYTES - 1] {
            assert_eq!(index.find(address), Some(5), "{address:#x}");
        }
        for address in [start - 1, start + 2 * GRANULE_BYTES] {
            assert_eq!(index.find(address), None, "{address:#x}");
        }
        assert!(index.set(&map, None));
        assert_eq!(index.find(start), None);
        assert!(!index.set(&(0..1 << (ADDRESS_BITS + 1)), Some(5)), "no such addresses");
    }
}
