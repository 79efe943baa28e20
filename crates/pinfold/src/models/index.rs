//! The lookup against each change, in every interleaving that loom can tell apart.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p pinfold --release index`. The code is the shipped one; only
//! the nodes are small: the fan-out is a parameter, and two or four slots make the same steps as 64.
//! Each model runs with the sound order first, and then with each flaw it must catch.

use crate::flaw::{self, Flaw};
use crate::index::{FrameNumber, Index, IndexOwner, NodePool};
use crate::sync::Mutex;
use loom::sync::Arc;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What fresh nodes hold: a folio that no test ever stored, as if old file bytes looked like one.
const GARBAGE: u32 = 1 << 30 | 0x3FFF_FFFF;

type Frame = Option<FrameNumber>;

#[allow(clippy::unnecessary_wraps, reason = "compared with what a lookup returns")]
fn frame(number: u32) -> Frame {
    Some(FrameNumber(number))
}

struct File<const BITS: u32> {
    pool: Arc<NodePool<BITS>>,
    index: Index<BITS>,
    owner: Mutex<IndexOwner>,
}

impl<const BITS: u32> File<BITS> {
    fn new(pool: &Arc<NodePool<BITS>>) -> Arc<Self> {
        let (index, owner) = pool.new_index(4);
        Arc::new(File { pool: pool.clone(), index, owner: Mutex::new(owner) })
    }

    fn insert(&self, page: u64, order: u32, number: u32) {
        let mut owner = self.owner.lock();
        let mut writer = self.index.writer(&mut owner, &self.pool);
        writer.insert(page, order, FrameNumber(number), page).unwrap();
    }

    fn remove(&self, page: u64) {
        let mut owner = self.owner.lock();
        self.index.writer(&mut owner, &self.pool).remove(page).unwrap();
    }
}

/// The model holds, and each flaw breaks it.
fn holds_and_catches(flaws: &[Flaw], model: fn()) {
    let explore = |flaw| {
        catch_unwind(AssertUnwindSafe(|| {
            loom::model(move || flaw::with(flaw, model));
        }))
    };
    assert!(explore(None).is_ok(), "the sound order fails");
    for &flaw in flaws {
        assert!(explore(Some(flaw)).is_err(), "{flaw:?} was not caught");
    }
}

/// Page 0 stays resident while the tree grows over it, twice; page 2 appears.
fn growth() {
    let file = File::<1>::new(&Arc::new(NodePool::model(5, GARBAGE)));
    file.insert(0, 0, 10);
    let other = file.clone();
    let reader = loom::thread::spawn(move || (other.index.lookup(0), other.index.lookup(2)));
    file.insert(2, 0, 12);
    let (stays, appears) = reader.join().unwrap();
    assert_eq!(stays, frame(10), "a resident page was missed while the tree grew");
    assert!([None, frame(12)].contains(&appears), "{appears:?} was never stored at page 2");
}

#[test]
fn growth_hides_no_page() {
    holds_and_catches(&[Flaw::PublishRelaxed, Flaw::PublishBeforeFill], growth);
}

/// One file's last page behind the first goes; its node is used by another file at once. The reader
/// of the first file may end in the other's node, and then must know it by the frame's identity.
fn reuse() {
    let pool = Arc::new(NodePool::<1>::model(2, GARBAGE));
    let (one, two) = (File::new(&pool), File::new(&pool));
    one.insert(0, 0, 10);
    one.insert(1, 0, 11);
    two.insert(0, 0, 20);
    let reader = {
        let (one, two) = (one.clone(), two.clone());
        loom::thread::spawn(move || (one.index.lookup(1), two.index.lookup(1), two.index.lookup(0)))
    };
    one.remove(1); // the node is free; page 0 moves into the root
    two.insert(1, 0, 21); // and is used again
    let (of_one, of_two, stays) = reader.join().unwrap();
    let known = [None, frame(10), frame(11), frame(20), frame(21)];
    assert!(known.contains(&of_one), "{of_one:?} was never stored anywhere");
    assert!([None, frame(21)].contains(&of_two), "{of_two:?} was never in this file's page 1");
    assert_eq!(stays, frame(20), "a resident page was missed in a recycled node");
    assert_eq!(pool.stats().nodes_in_use, 1);
}

#[test]
fn a_recycled_node_gives_no_foreign_page_to_its_new_file() {
    holds_and_catches(&[Flaw::PublishRelaxed, Flaw::PublishBeforeFill], reuse);
}

/// A node that leaves with a folio still in its first two slots (the tree shrank and the folio moved
/// into the root), and whose next owner fills the first and the last.
fn sparse_reuse() {
    // Fresh nodes are empty here: what is found must come from the node's life before.
    let pool = Arc::new(NodePool::<2>::model(2, 0));
    let (one, two) = (File::new(&pool), File::new(&pool));
    one.insert(0, 1, 10);
    one.insert(3, 0, 13);
    two.insert(0, 0, 20);
    let reader = {
        let two = two.clone();
        loom::thread::spawn(move || two.index.lookup(1))
    };
    one.remove(3);
    two.insert(3, 0, 23);
    assert_eq!(reader.join().unwrap(), None, "a page that was never in the file was found");
}

#[test]
fn a_recycled_node_is_emptied_before_it_is_linked() {
    holds_and_catches(&[Flaw::KeepOldSlots, Flaw::PublishRelaxed], sparse_reuse);
}

/// An entry of four pages becomes four (nodes are built) or two (slots are rewritten).
fn split_to<const BITS: u32>(new_order: u32) {
    let file = File::<BITS>::new(&Arc::new(NodePool::model(6, GARBAGE)));
    file.insert(4, 2, 40);
    let other = file.clone();
    let reader = loom::thread::spawn(move || (other.index.lookup(5), other.index.lookup(6)));
    {
        let mut owner = file.owner.lock();
        let mut writer = file.index.writer(&mut owner, &file.pool);
        writer.split(4, 2, new_order, |i| FrameNumber(40 + (i << new_order))).unwrap();
    }
    let (five, six) = reader.join().unwrap();
    let piece_of = |page: u32| frame(40 + (page >> new_order << new_order));
    assert!([frame(40), piece_of(1)].contains(&five), "{five:?} at page 5");
    assert!([frame(40), piece_of(2)].contains(&six), "{six:?} at page 6");
}

#[test]
fn a_split_hides_no_page() {
    let flaws = [Flaw::SplitClearsFirst, Flaw::PublishRelaxed, Flaw::PublishBeforeFill];
    holds_and_catches(&flaws, || split_to::<1>(0));
    holds_and_catches(&flaws, || split_to::<2>(0));
    holds_and_catches(&[Flaw::SplitClearsFirst], || split_to::<2>(1));
}

/// A folio of two pages, at the end of a node's slots, gets another head.
fn migration() {
    let file = File::<2>::new(&Arc::new(NodePool::model(3, GARBAGE)));
    file.insert(2, 1, 30);
    let other = file.clone();
    let reader = loom::thread::spawn(move || (other.index.lookup(2), other.index.lookup(3)));
    {
        let mut owner = file.owner.lock();
        file.index.writer(&mut owner, &file.pool).replace(3, FrameNumber(50)).unwrap();
    }
    let (two, three) = reader.join().unwrap();
    for found in [two, three] {
        assert!(
            [frame(30), frame(50)].contains(&found),
            "{found:?} in place of a folio or its copy"
        );
    }
}

#[test]
fn migration_hides_no_page() {
    holds_and_catches(&[Flaw::ReplaceClearsFirst], migration);
}

/// Two readers while the tree shrinks to its root and grows again out of the same node.
fn shrink_and_grow() {
    let file = File::<1>::new(&Arc::new(NodePool::model(3, GARBAGE)));
    file.insert(0, 0, 10);
    file.insert(1, 0, 11);
    let other = file.clone();
    let reader = loom::thread::spawn(move || (other.index.lookup(0), other.index.lookup(1)));
    file.remove(1);
    file.insert(1, 0, 12);
    let (zero, one) = reader.join().unwrap();
    // Missing page 0 is allowed here: the reader may be in the recycled node.
    assert!([None, frame(10)].contains(&zero), "{zero:?} at page 0");
    assert!([None, frame(10), frame(11), frame(12)].contains(&one), "{one:?} at page 1");
    assert_eq!(file.index.lookup(0), frame(10));
    assert_eq!(file.index.lookup(1), frame(12));
}

#[test]
fn shrinking_and_growing_stays_inside_the_file() {
    holds_and_catches(&[], shrink_and_grow);
}
