//! From a node's number to its words.
//!
//! # Layout
//!
//! A slab is a naturally aligned folio of the arena, with as many nodes as fit:
//!
//! ```text
//! slab: | slots 0 | slots 1 | ... | slots n-1 | header 0 | ... | header n-1 | spare |
//!         256 B     256 B           256 B       32 B             32 B         < 288 B
//! ```
//!
//! So 30 bits of a node's number reach 256 GiB, and no look-up reads the lines of marks and counts.
//!
//! Nodes are counted *down* from the anchor, the end of the arena's reachable part: node k lies k *
//! 256 bytes below it, and the slot word is -k as 32 bits. So the sign-extended word is the offset,
//! and `word >= first` (first: the word of the lowest node in reach) is the bounds check.
//!
//! # Why slabs are never given back
//!
//! A look-up holds nothing, and may load a word of a node that has been reused. As slabs stay
//! slabs, that is a valid entry of *some* file.

use super::entry::Entry;
use crate::base::sync::{AtomicU32, AtomicU64};

/// Words of a node's header: three marks, then the links.
pub(super) const HEADER_WORDS: usize = 4;

pub(super) const fn node_bytes(bits: u32) -> usize {
    (4 << bits) + HEADER_WORDS * 8
}

#[cfg(not(loom))]
pub(super) use real::NodeMemory;

#[cfg(loom)]
pub(super) use model::NodeMemory;

#[cfg(not(loom))]
mod real {
    use super::{AtomicU32, AtomicU64, Entry, HEADER_WORDS, node_bytes};
    use std::ptr::NonNull;

    /// Where the nodes of one pool are; copied into each index.
    #[derive(Clone, Debug)]
    pub(in super::super) struct NodeMemory<const BITS: u32> {
        /// Where the node of word 0 would be, far below the arena: from here a word leads to its
        /// node without a sign extension. Derived from the arena's address by wrapping steps.
        zero: *mut u8,
        /// Word of the lowest node in reach.
        first: u32,
        slab_bytes_log2: u32,
    }

    // SAFETY: only atomics are reached through the pointer, which stay mapped by the promise to
    // `new`.
    unsafe impl<const BITS: u32> Send for NodeMemory<BITS> {}
    // SAFETY: as above.
    unsafe impl<const BITS: u32> Sync for NodeMemory<BITS> {}

    impl<const BITS: u32> NodeMemory<BITS> {
        const SLOTS_BYTES: i64 = 4 << BITS;
        /// How far the nodes of word 0 and of word 2^32, the anchor, are apart.
        const WORDS_BYTES: usize = (4 << BITS) << 32;
        const HEADER_BYTES: i64 = 8 * HEADER_WORDS.cast_signed() as i64;

        /// # Safety
        /// `base..base + bytes` is one allocation, stays mapped for as long as this value or a copy
        /// of it is used, and what becomes slabs is the pool's alone, for ever.
        pub(in super::super) unsafe fn new(
            base: NonNull<u8>,
            bytes: usize,
            slab_bytes: usize,
        ) -> Self {
            assert!(slab_bytes.is_power_of_two(), "slab of {slab_bytes} bytes: no power of two");
            assert!(slab_bytes >= node_bytes(BITS), "slab of {slab_bytes} bytes holds no node");
            assert!(
                base.addr().get().is_multiple_of(4 << BITS),
                "the arena must start on a multiple of {} bytes",
                4 << BITS
            );
            let reach = bytes.min((4 << BITS) << 30) & !(slab_bytes - 1);
            assert!(reach > 0, "an arena of {bytes} bytes holds no slab of {slab_bytes}");
            let units = (reach as u64 >> (BITS + 2)) as u32; // at most 2^30
            NodeMemory {
                zero: base.as_ptr().wrapping_add(reach).wrapping_sub(Self::WORDS_BYTES),
                first: units.wrapping_neg(),
                slab_bytes_log2: slab_bytes.trailing_zeros(),
            }
        }

        /// One past the last reachable byte of the arena.
        fn anchor(&self) -> *mut u8 {
            self.zero.wrapping_add(Self::WORDS_BYTES)
        }

        pub(in super::super) fn same(&self, other: &Self) -> bool {
            self.zero == other.zero
        }

        pub(in super::super) fn slab_bytes(&self) -> usize {
            1 << self.slab_bytes_log2
        }

        pub(in super::super) fn nodes_per_slab(&self) -> u32 {
            (self.slab_bytes() / node_bytes(BITS)) as u32
        }

        /// Word of the first node. Panics if the slab is out of reach or not naturally aligned.
        pub(in super::super) fn slab_word(&self, slab: *mut u8) -> u32 {
            let below = self.anchor().addr().wrapping_sub(slab.addr());
            let reach = u64::from(self.first.wrapping_neg()) << (BITS + 2);
            assert!(
                below as u64 <= reach && below >= self.slab_bytes(),
                "a slab must lie in the arena's first {reach} bytes"
            );
            assert!(below.is_multiple_of(self.slab_bytes()), "a slab must be naturally aligned");
            ((below as u64 >> (BITS + 2)) as u32).wrapping_neg()
        }

        #[inline(always)]
        pub(in super::super) fn is_node(&self, entry: Entry) -> bool {
            entry.0 >= self.first
        }

        /// Slot `i` (taken modulo the fan-out). Panics if `entry` is no node.
        #[inline(always)]
        pub(in super::super) fn slot(&self, entry: Entry, i: u64) -> &AtomicU32 {
            assert!(self.is_node(entry), "{entry:?} is no node");
            let first = self.zero.wrapping_add((entry.0 as usize) << (BITS + 2));
            let i = (i & ((1 << BITS) - 1)) as usize;
            #[expect(clippy::cast_ptr_alignment, reason = "slabs and nodes are aligned to 8")]
            let slot = first.cast::<AtomicU32>().wrapping_add(i);
            // SAFETY: `entry.0` is at least `first`, so the slots are inside the arena. Node
            // entries are made only from slabs (`slab_word` and up to `nodes_per_slab` on), whose
            // slot words are aligned and written by atomic stores only, for ever.
            unsafe { &*slot }
        }

        /// Word `i` of the header. Panics if `entry` is no node, or `i` is out of range.
        pub(in super::super) fn header(&self, entry: Entry, i: usize) -> &AtomicU64 {
            assert!(self.is_node(entry), "{entry:?} is no node");
            assert!(i < HEADER_WORDS);
            let offset = i64::from(entry.0.cast_signed()) * Self::SLOTS_BYTES;
            let slab = offset & !((1 << self.slab_bytes_log2) - 1); // towards minus infinity
            let nth = (offset - slab) / Self::SLOTS_BYTES;
            let headers = slab + i64::from(self.nodes_per_slab()) * Self::SLOTS_BYTES;
            let header = headers + nth * Self::HEADER_BYTES;
            #[expect(clippy::cast_ptr_alignment, reason = "slabs and nodes are aligned to 8")]
            let first = self.anchor().wrapping_offset(header as isize).cast::<AtomicU64>();
            let word = first.wrapping_add(i);
            // SAFETY: the headers lie past the slots of all, inside the slab: nodes_per_slab *
            // node_bytes <= slab_bytes. Their words are aligned, and only stored atomically.
            unsafe { &*word }
        }
    }
}

/// For the model checker, whose atomics cannot live in raw bytes.
#[cfg(loom)]
mod model {
    use super::{AtomicU32, AtomicU64, Entry, HEADER_WORDS};
    use std::sync::Arc;

    #[derive(Debug)]
    struct Words {
        slots: Vec<AtomicU32>,
        header: [AtomicU64; HEADER_WORDS],
    }

    #[derive(Clone, Debug)]
    pub(in super::super) struct NodeMemory<const BITS: u32> {
        nodes: Arc<Vec<Words>>,
        first: u32,
    }

    impl<const BITS: u32> NodeMemory<BITS> {
        /// `count` nodes whose slots hold `garbage`, as a folio's old bytes would.
        pub(in super::super) fn model(count: u32, garbage: u32) -> Self {
            let words = |_| Words {
                slots: (0..1 << BITS).map(|_| AtomicU32::new(garbage)).collect(),
                header: std::array::from_fn(|_| AtomicU64::new(0)),
            };
            NodeMemory {
                nodes: Arc::new((0..count).map(words).collect()),
                first: count.wrapping_neg(),
            }
        }

        pub(in super::super) fn same(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.nodes, &other.nodes)
        }

        pub(in super::super) fn is_node(&self, entry: Entry) -> bool {
            entry.0 >= self.first
        }

        fn words(&self, entry: Entry) -> &Words {
            assert!(self.is_node(entry), "{entry:?} is no node");
            &self.nodes[(entry.0 - self.first) as usize]
        }

        pub(in super::super) fn slot(&self, entry: Entry, i: u64) -> &AtomicU32 {
            &self.words(entry).slots[(i & ((1 << BITS) - 1)) as usize]
        }

        pub(in super::super) fn header(&self, entry: Entry, i: usize) -> &AtomicU64 {
            &self.words(entry).header[i]
        }
    }
}
