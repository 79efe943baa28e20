//! Single cases: limits, errors, what the types promise.

use super::arena::Arena;
use super::audit::audit;
use crate::index::{FolioAt, FrameNumber, Index, InsertError, NoNodes, NodePool, PAGES_END};

const MIB: usize = 1 << 20;

fn arena() -> Arena<6> {
    let arena = Arena::new(MIB, 1 << 16);
    arena.refill(100).unwrap();
    arena
}

#[test]
fn sizes_are_as_documented() {
    assert_eq!(crate::index::memory::node_bytes(6), 288);
    assert_eq!(size_of::<Index<6>>(), 72);
}

#[test]
fn a_file_of_one_folio_needs_no_node() {
    let arena = arena();
    let (index, mut owner) = arena.pool.new_index(1 << 14);
    let mut writer = index.writer(&mut owner, &arena.pool);
    writer.insert(0, 9, FrameNumber(512)).unwrap();
    assert_eq!((writer.nodes(), index.lookup(511)), (0, Some(FrameNumber(512))));
    assert_eq!(index.lookup(512), None);
    assert_eq!(index.lookup(u64::MAX), None);
}

#[test]
fn the_last_page_of_the_largest_file_is_found() {
    let arena = arena();
    let (index, mut owner) = arena.pool.new_index(1 << 14);
    let mut writer = index.writer(&mut owner, &arena.pool);
    writer.insert(PAGES_END - 1, 0, FrameNumber(7)).unwrap();
    writer.insert(0, 0, FrameNumber(8)).unwrap();
    assert_eq!(index.lookup(PAGES_END - 1), Some(FrameNumber(7)));
    assert_eq!(index.lookup(0), Some(FrameNumber(8)));
    assert_eq!(index.lookup(PAGES_END), None);
    audit(&writer);
    writer.remove(PAGES_END - 1).unwrap();
    assert_eq!(writer.nodes(), 0, "the tree did not shrink back");
}

#[test]
fn a_change_that_lacks_nodes_changes_nothing() {
    let arena = Arena::<6>::new(8192, 4096);
    let (index, mut owner) = arena.pool.new_index(1 << 14);
    let mut writer = index.writer(&mut owner, &arena.pool);
    writer.insert(0, 9, FrameNumber(512)).unwrap();
    let none = NoNodes { wanted: 4, free: 0 };
    assert_eq!(writer.insert(1 << 12, 0, FrameNumber(1)), Err(none.into()));
    assert_eq!(none.to_string(), "the index needs 4 more nodes and the pool has 0");
    let none = NoNodes { wanted: 9, free: 0 };
    assert_eq!(writer.split(3, 0), Err(none));
    assert_eq!(index.lookup(3), Some(FrameNumber(512)));
    drop(writer);
    arena.refill(9).unwrap();
    let mut writer = index.writer(&mut owner, &arena.pool);
    writer.split(3, 0).unwrap();
    assert_eq!(index.lookup(3), Some(FrameNumber(515)));
    assert_eq!(writer.nodes(), 9);
    // Two slabs of 14 nodes are all there is.
    assert!(arena.refill(20).is_err() && arena.pool.stats().nodes == 28);
}

#[test]
fn a_reserved_insert_does_not_fail() {
    let arena = Arena::<6>::new(4096, 4096);
    arena.refill(14).unwrap();
    let (one, mut one_owner) = arena.pool.new_index(1 << 14);
    let (two, mut two_owner) = arena.pool.new_index(1 << 14);
    let mut first = one.writer(&mut one_owner, &arena.pool);
    first.reserve(PAGES_END - 1, 0).unwrap();
    let mut second = two.writer(&mut two_owner, &arena.pool);
    assert!(second.insert(PAGES_END - 1, 0, FrameNumber(1)).is_err());
    first.insert(PAGES_END - 1, 0, FrameNumber(2)).unwrap();
    assert_eq!(one.lookup(PAGES_END - 1), Some(FrameNumber(2)));
}

#[test]
fn what_is_in_the_way_is_named() {
    let arena = arena();
    let (index, mut owner) = arena.pool.new_index(1 << 14);
    let mut writer = index.writer(&mut owner, &arena.pool);
    writer.insert(64, 3, FrameNumber(9)).unwrap();
    let there = FolioAt { page: 64, order: 3, frame: FrameNumber(9) };
    let error = writer.insert(0, 7, FrameNumber(10)).unwrap_err();
    assert_eq!(error, InsertError::Occupied(there));
    assert_eq!(error.to_string(), "page 64 is in the index already (frame 9, order 3)");
}

#[test]
fn nodes_that_hold_nothing_are_freed() {
    let arena = arena();
    let (index, mut owner) = arena.pool.new_index(1 << 14);
    let mut writer = index.writer(&mut owner, &arena.pool);
    for page in 0..640 {
        writer.insert(page, 0, FrameNumber(page as u32 + 1)).unwrap();
    }
    assert_eq!(writer.nodes(), 11);
    for page in (0..640).filter(|page| page / 64 != 3) {
        writer.remove(page).unwrap();
    }
    assert_eq!(writer.nodes(), 2);
    audit(&writer);
}

#[test]
#[should_panic(expected = "this owner belongs to another index")]
fn the_owner_of_another_index_is_refused() {
    let arena = arena();
    let (index, _) = arena.pool.new_index(1 << 14);
    let (_, mut other) = arena.pool.new_index(1 << 14);
    let _ = index.writer(&mut other, &arena.pool);
}

#[test]
#[should_panic(expected = "this index takes its nodes from another pool")]
fn another_pool_is_refused() {
    let (one, two) = (arena(), arena());
    let (index, mut owner) = one.pool.new_index(1 << 14);
    let _ = index.writer(&mut owner, &two.pool);
}

#[test]
#[should_panic(expected = "a slab must be naturally aligned")]
fn a_slab_off_its_place_is_refused() {
    let bytes = Box::leak(vec![0_u64; MIB / 8].into_boxed_slice());
    let base = std::ptr::NonNull::from(&mut bytes[0]).cast::<u8>();
    let base = base.map_addr(|addr| addr.checked_add(addr.get().wrapping_neg() & 4095).unwrap());
    // SAFETY: leaked.
    let pool = unsafe { NodePool::<6>::new(base, MIB - 4096, 1 << 14) };
    // SAFETY: inside.
    let _ = pool.refill(1, || Some(unsafe { base.add(4096) }));
}

#[test]
#[should_panic(expected = "page 3 is not aligned to order 1")]
fn a_folio_off_its_place_is_refused() {
    let arena = arena();
    let (index, mut owner) = arena.pool.new_index(1 << 14);
    let _ = index.writer(&mut owner, &arena.pool).insert(3, 1, FrameNumber(1));
}
