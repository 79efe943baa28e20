//! Random operations on an index and on a map, compared after each step.

use super::arena::Arena;
use super::audit::audit;
use crate::base::mutant::{self, Mutant};
use crate::index::{FolioAt, FrameNumber, InsertError, Lookup, Mark, ORDER_MAX, PAGES_END};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Op {
    Insert { page: u64, order: u32 },
    Remove { page: u64 },
    Replace { page: u64 },
    Split { page: u64, down: u32 },
    Mark { page: u64, mark: Mark, set: bool },
    Walk { from: u64, len: u64 },
}

/// What the index should hold.
#[derive(Default)]
struct Model {
    folios: BTreeMap<u64, (FolioAt, [bool; 3])>,
    next_frame: u32,
}

impl Model {
    fn folio(&self, page: u64) -> Option<FolioAt> {
        let (_, (folio, _)) = self.folios.range(..=page).next_back()?;
        (page < folio.end()).then_some(*folio)
    }

    fn fresh(&mut self) -> FrameNumber {
        self.next_frame += 512;
        FrameNumber(self.next_frame)
    }

    fn overlaps(&self, from: u64, to: u64) -> Option<FolioAt> {
        self.folio(from).or_else(|| Some(self.folios.range(from..to).next()?.1.0))
    }
}

fn page(tiny: bool) -> impl Strategy<Value = u64> {
    let tiny = if tiny { 1000 } else { 0 };
    prop_oneof![
        1 + tiny => 0..20_u64,
        6 => 0..200_u64,
        4 => 0..6000_u64,
        1 => 0..1_u64 << 20,
        1 => 0..PAGES_END,
        2 => PAGES_END - 1500..PAGES_END,
        1 => (0..51_u32, 0..4_u64).prop_map(|(bit, add)| ((1 << bit) + add).min(PAGES_END - 1)),
    ]
}

fn mark() -> impl Strategy<Value = Mark> {
    prop_oneof![Just(Mark::Dirty), Just(Mark::Writeback), Just(Mark::ToWrite)]
}

fn op(tiny: bool) -> impl Strategy<Value = Op> {
    let page = || page(tiny);
    prop_oneof![
        8 => (page(), 0..=if tiny { 2 } else { ORDER_MAX })
            .prop_map(|(page, order)| Op::Insert { page: page >> order << order, order }),
        6 => page().prop_map(|page| Op::Remove { page }),
        2 => page().prop_map(|page| Op::Replace { page }),
        4 => (page(), 1..=ORDER_MAX).prop_map(|(page, down)| Op::Split { page, down }),
        6 => (page(), mark(), prop::bool::weighted(0.7))
            .prop_map(|(page, mark, set)| Op::Mark { page, mark, set }),
        3 => (page(), 0..2000_u64).prop_map(|(from, len)| Op::Walk { from, len }),
    ]
}

struct Pair<const BITS: u32> {
    arena: Arena<BITS>,
    model: Model,
}

/// Picks a page that has something, so that most operations hit: the folio at or after `page`.
fn aim(model: &Model, page: u64) -> u64 {
    let next = model.folios.range(page..).next().or_else(|| model.folios.iter().next());
    match next {
        Some((_, (folio, _))) if !page.is_multiple_of(5) => folio.page + page % (1 << folio.order),
        _ => page,
    }
}

fn run<const BITS: u32>(ops: &[Op]) {
    let mut pair = Pair { arena: Arena::<BITS>::new(2 << 20, 1 << 16), model: Model::default() };
    // Shorter than what is put there: its directory grows.
    let (index, mut owner) = pair.arena.pool.new_index(1 << 8);
    // SAFETY: the index lives longer.
    let early = unsafe { Lookup::of(&index) };
    for op in ops {
        pair.arena.refill(1200).unwrap();
        let mut writer = index.writer(&mut owner, &pair.arena.pool);
        step(&mut writer, &mut pair.model, op);
        audit(&writer);
        probe(&writer, &early, &pair.model, op);
    }
    let writer = index.writer(&mut owner, &pair.arena.pool);
    let in_use = pair.arena.pool.stats().nodes_in_use;
    assert_eq!(in_use, writer.nodes(), "nodes in use but in no tree");
    let mut all = Vec::new();
    writer.for_each_in(0..PAGES_END, |folio| all.push(folio));
    let expected: Vec<_> = pair.model.folios.values().map(|(folio, _)| *folio).collect();
    assert_eq!(all, expected, "all folios");
    for mark in Mark::ALL {
        let (mut from, mut marked) = (0, Vec::new());
        while let Some(folio) = writer.next_marked(from..PAGES_END, mark) {
            marked.push(folio);
            from = folio.end();
        }
        let of_model = pair.model.folios.values().filter(|(_, marks)| marks[mark as usize]);
        assert_eq!(marked, of_model.map(|(folio, _)| *folio).collect::<Vec<_>>(), "{mark:?}");
        assert_eq!(writer.any_marked(mark), !marked.is_empty());
    }
}

type Writer<'a, const BITS: u32> = crate::index::IndexWriter<'a, BITS>;

fn step<const BITS: u32>(writer: &mut Writer<'_, BITS>, model: &mut Model, op: &Op) {
    match *op {
        Op::Insert { page, order } => insert(writer, model, page, order),
        Op::Remove { page } => {
            let page = aim(model, page);
            let expected = model.folio(page);
            assert_eq!(writer.remove(page), expected);
            if let Some(folio) = expected {
                model.folios.remove(&folio.page);
            }
        }
        Op::Replace { page } => {
            let page = aim(model, page);
            let new = model.fresh();
            let expected = model.folio(page);
            assert_eq!(writer.replace(page, new), expected);
            if let Some(folio) = expected {
                model.folios.get_mut(&folio.page).unwrap().0.frame = new;
            }
        }
        Op::Split { page, down } => split(writer, model, aim(model, page), down),
        Op::Mark { page, mark, set } => {
            let page = aim(model, page);
            let folio = model.folio(page);
            let marks = folio.map(|folio| &mut model.folios.get_mut(&folio.page).unwrap().1);
            let expected =
                marks.map(|marks| std::mem::replace(&mut marks[mark as usize], set) != set);
            let changed =
                if set { writer.set_mark(page, mark) } else { writer.clear_mark(page, mark) };
            assert_eq!(changed, expected);
            assert_eq!(writer.is_marked(page, mark), expected.is_some() && set);
        }
        Op::Walk { from, len } => walk(writer, model, from, from.saturating_add(len)),
    }
}

fn insert<const BITS: u32>(
    writer: &mut Writer<'_, BITS>,
    model: &mut Model,
    page: u64,
    order: u32,
) {
    let frame = model.fresh();
    let end = page + (1 << order);
    let result = writer.insert(page, order, frame);
    if let Some(folio) = model.overlaps(page, end) {
        assert_eq!(result, Err(InsertError::Occupied(folio)));
        return;
    }
    result.unwrap();
    model.folios.insert(page, (FolioAt { page, order, frame }, [false; 3]));
}

fn split<const BITS: u32>(writer: &mut Writer<'_, BITS>, model: &mut Model, page: u64, down: u32) {
    let Some(folio) = model.folio(page).filter(|folio| folio.order > 0) else { return };
    let new_order = folio.order.saturating_sub(down);
    let (_, marks) = model.folios.remove(&folio.page).unwrap();
    writer.split(page, new_order).unwrap();
    for i in 0..1_u32 << (folio.order - new_order) {
        let page = folio.page + (u64::from(i) << new_order);
        let frame = folio.frame.after(i << new_order);
        let piece = FolioAt { page, order: new_order, frame };
        model.folios.insert(page, (piece, marks));
    }
}

fn walk<const BITS: u32>(writer: &Writer<'_, BITS>, model: &Model, from: u64, to: u64) {
    let to = to.min(PAGES_END);
    assert_eq!(writer.next_present(from..to), model.overlaps(from, to).filter(|_| from < to));
    let absent = (from..to).find(|&page| model.folio(page).is_none());
    assert_eq!(writer.next_absent(from..to), absent);
    for mark in Mark::ALL {
        let start = model.folio(from).map_or(from, |folio| folio.page);
        let marked = model.folios.range(start..to.max(start));
        let first = marked.map(|(_, entry)| entry).find(|(_, marks)| marks[mark as usize]);
        let expected = first.map(|(folio, _)| *folio).filter(|_| from < to);
        assert_eq!(writer.next_marked(from..to, mark), expected, "{mark:?}");
    }
}

/// Compares pages around the operation, and of all folios nearby.
fn probe<const BITS: u32>(writer: &Writer<'_, BITS>, early: &Lookup<BITS>, model: &Model, op: &Op) {
    let around = match *op {
        Op::Insert { page, .. }
        | Op::Remove { page }
        | Op::Replace { page }
        | Op::Split { page, .. }
        | Op::Mark { page, .. } => aim(model, page),
        Op::Walk { from, .. } => from,
    };
    for page in around.saturating_sub(70)..(around + 600).min(PAGES_END) {
        let there = model.folio(page).map(|folio| folio.frame);
        assert_eq!(writer.index.lookup(page), there, "page {page}");
        let next = writer.index.next_hint(page);
        let skipped = model.folios.range(page + 1..next.max(page + 1)).next();
        let is_exact = there.is_some() || (next > page && skipped.is_none());
        assert!(is_exact, "from {page} to {next}, past {skipped:?}");
        if let Some(frame) = there {
            // Nothing changes meanwhile, so the hint is exact.
            assert_eq!(writer.index.lookup_hint(page), frame, "hint for page {page}");
            let early = early.hint(page, 0).unwrap_or(frame);
            assert_eq!(early, frame, "hint for page {page} by the directory of the beginning");
        }
    }
    assert_eq!(writer.folio(around), model.folio(around));
    for (&page, (folio, marks)) in model.folios.range(around.saturating_sub(5000)..).take(20) {
        assert_eq!(writer.folio(page), Some(*folio));
        assert_eq!(Mark::ALL.map(|mark| writer.is_marked(page, mark)), *marks, "marks of {page}");
    }
}

fn check<const BITS: u32>(mutant: Option<Mutant>, cases: u32) -> Result<(), String> {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let ops = |tiny| prop::collection::vec(op(tiny), 1..120);
    let strategy = prop_oneof![2 => ops(false), 1 => ops(true)];
    let result = runner.run(&strategy, |ops| {
        mutant::with(mutant, || run::<BITS>(&ops));
        Ok(())
    });
    result.map_err(|error| error.to_string())
}

#[test]
fn index_agrees_with_a_map() {
    check::<6>(None, 400).unwrap();
}

#[test]
fn index_agrees_with_a_map_with_small_nodes() {
    check::<2>(None, 150).unwrap();
    check::<1>(None, 100).unwrap();
    check::<5>(None, 100).unwrap();
}

#[test]
fn the_map_catches_mutants() {
    let mutants = [
        Mutant::KeepOldSlots,
        Mutant::MarkStaysLow,
        Mutant::ShrinkDropsMarks,
        Mutant::LeakNodes,
        Mutant::DirectoryStays,
        Mutant::DirectoryGrowsEmpty,
        Mutant::OldDirectoryStays,
    ];
    for mutant in mutants {
        // Ends with the first that is caught; some take thousands.
        let caught = check::<6>(Some(mutant), 20_000);
        assert!(caught.is_err(), "{mutant:?} was not caught");
    }
}
