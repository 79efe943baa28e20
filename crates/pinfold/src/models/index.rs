//! The look-up against each change of the index, in every interleaving that loom distinguishes.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p pinfold --release index`. The code is the shipped one with
//! small nodes: the fan-out is a parameter, and two or four slots make the same steps as 64. Each
//! model runs as shipped, and with each mutant that it must catch.

use crate::base::mutant::{self, Mutant};
use crate::base::sync::Mutex;
use crate::index::{FrameNumber, Index, IndexOwner, Lookup, NodePool};
use loom::sync::Arc;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What fresh nodes hold: a folio that no test ever stored, as if old file bytes looked like one.
const GARBAGE: u32 = 0x3FFF_FFFF;

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
        Self::of_pages(pool, 4)
    }

    fn of_pages(pool: &Arc<NodePool<BITS>>, pages: u64) -> Arc<Self> {
        let (index, owner) = pool.new_index(pages);
        Arc::new(File { pool: pool.clone(), index, owner: Mutex::new(owner) })
    }

    fn insert(&self, page: u64, order: u32, number: u32) {
        let mut owner = self.owner.lock();
        let mut writer = self.index.writer(&mut owner, &self.pool);
        writer.insert(page, order, FrameNumber(number)).unwrap();
    }

    fn remove(&self, page: u64) {
        let mut owner = self.owner.lock();
        self.index.writer(&mut owner, &self.pool).remove(page).unwrap();
    }
}

/// The model holds, and each mutant breaks it.
fn holds_and_catches(mutants: &[Mutant], model: fn()) {
    let explore = |mutant| {
        catch_unwind(AssertUnwindSafe(|| {
            loom::model(move || mutant::with(mutant, model));
        }))
    };
    assert!(explore(None).is_ok(), "the sound order fails");
    for &mutant in mutants {
        assert!(explore(Some(mutant)).is_err(), "{mutant:?} was not caught");
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
    holds_and_catches(&[Mutant::PublishRelaxed, Mutant::PublishBeforeFill], growth);
}

/// The last page of a file, except its first, is removed; another file reuses its node at once. A
/// reader of the first file may end in the other's node, and must notice by the frame's identity.
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
    one.remove(1); // frees the node; page 0 moves into the root
    two.insert(1, 0, 21); // reuses it
    let (of_one, of_two, stays) = reader.join().unwrap();
    let known = [None, frame(10), frame(11), frame(20), frame(21)];
    assert!(known.contains(&of_one), "{of_one:?} was never stored anywhere");
    assert!([None, frame(21)].contains(&of_two), "{of_two:?} was never in this file's page 1");
    assert_eq!(stays, frame(20), "a resident page was missed in a recycled node");
    assert_eq!(pool.stats().nodes_in_use, 1);
}

#[test]
fn a_recycled_node_gives_no_foreign_page_to_its_new_file() {
    holds_and_catches(&[Mutant::PublishRelaxed, Mutant::PublishBeforeFill], reuse);
}

/// A node is freed with a folio still in its first two slots (the tree shrank and the folio moved
/// into the root). Its next user fills the first slot and the last.
fn sparse_reuse() {
    // Fresh nodes are empty here: what is found must come from the node's previous use.
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
    holds_and_catches(&[Mutant::KeepOldSlots, Mutant::PublishRelaxed], sparse_reuse);
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
        writer.split(4, new_order).unwrap();
    }
    let (five, six) = reader.join().unwrap();
    let piece_of = |page: u32| frame(40 + (page >> new_order << new_order));
    assert!([frame(40), piece_of(1)].contains(&five), "{five:?} at page 5");
    assert!([frame(40), piece_of(2)].contains(&six), "{six:?} at page 6");
}

#[test]
fn a_split_hides_no_page() {
    let mutants = [Mutant::SplitClearsFirst, Mutant::PublishRelaxed, Mutant::PublishBeforeFill];
    holds_and_catches(&mutants, || split_to::<1>(0));
    holds_and_catches(&mutants, || split_to::<2>(0));
    holds_and_catches(&[Mutant::SplitClearsFirst], || split_to::<2>(1));
}

/// A folio of two pages, in the last slots of a node, gets another head.
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
    holds_and_catches(&[Mutant::ReplaceClearsFirst], migration);
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

/// A file has grown by all that it has. Two threads look its page up through one handle, which
/// knows nothing of the larger directory yet.
fn larger_directory() {
    let file = File::<1>::of_pages(&Arc::new(NodePool::model(2, GARBAGE)), 0);
    // SAFETY: both threads have the file.
    let lookup = Arc::new(unsafe { Lookup::of(&file.index) });
    file.insert(0, 0, 10);
    let look = |file: &File<1>, lookup: &Lookup<1>| {
        let known = lookup.hint(0, 0);
        known.unwrap_or_else(|| lookup.hint_behind(&file.index, 0))
    };
    let (other, shared) = (file.clone(), lookup.clone());
    let reader = loom::thread::spawn(move || look(&other, &shared));
    assert_eq!(look(&file, &lookup), FrameNumber(10));
    assert_eq!(lookup.hint(0, 0), Some(FrameNumber(10)), "it looked past the end twice");
    assert_eq!(reader.join().unwrap(), FrameNumber(10));
}

#[test]
fn a_handles_bound_goes_with_its_array() {
    holds_and_catches(&[Mutant::BoundRelaxed], larger_directory);
}
