//! The module through `Frames`: allocation against a plain model, and under threads.

#[cfg(feature = "map")]
mod hollow;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::units::FRAMES_MIN;
use super::*;
#[cfg(feature = "map")]
use crate::base::mutant::{self, Mutant};

const TEST_FRAMES: u32 = 3 * 512 + 77;

impl FrameStats {
    /// Frames that are folios: neither free, nor held, nor the table's.
    fn used_frames(&self) -> u32 {
        let free = self.free_frames + self.free_hollow;
        self.total_frames - self.table_frames - free - self.held_frames
    }

    /// Frames in free blocks of exactly `order`.
    fn free_frames_of(&self, order: Order) -> u32 {
        self.free_blocks[usize::from(order.get())] << order.get()
    }
}

fn open(frames: u32) -> Frames {
    Frames::open(u64::from(frames) << PAGE_SHIFT).expect("memory for a test")
}

fn order(order: u8) -> Order {
    Order::new(order).expect("an order")
}

/// Puts the only reference to a folio that was never filled, and frees it.
fn put_and_free(frames: &Frames, head: FrameNumber, order: Order) {
    assert!(frames.frame(head).count.put(1), "nobody else knew it");
    frames.free(head, order);
}

/// Cuts a folio that only the caller knows into folios of `part`, as a split does.
fn split(frames: &Frames, head: FrameNumber, order: Order, part: Order) -> Vec<FrameNumber> {
    frames.frame(head).count.freeze(1).expect("nobody else knew it");
    let parts = (0..order.frames()).step_by(part.frames() as usize).map(|n| head.after(n));
    parts.inspect(|&head| frames.frame(head).hand_out(part)).collect()
}

/// What a set of free frames has to look like: its largest aligned blocks.
fn blocks_of(free: &BTreeSet<u32>) -> [u32; Order::COUNT] {
    fn cut(free: &BTreeSet<u32>, first: u32, order: u8, blocks: &mut [u32; Order::COUNT]) {
        let members = free.range(first..first + (1 << order)).count();
        if members == 1 << order {
            blocks[usize::from(order)] += 1;
        } else if members > 0 {
            cut(free, first, order - 1, blocks);
            cut(free, first + (1 << (order - 1)), order - 1, blocks);
        }
    }
    let mut blocks = [0; Order::COUNT];
    let runs: BTreeSet<u32> = free.iter().map(|frame| frame / 512 * 512).collect();
    for run in runs {
        cut(free, run, Order::MAX.get(), &mut blocks);
    }
    blocks
}

#[test]
fn a_fresh_arena_is_free_but_for_its_table() {
    for total in [FRAMES_MIN, 65, 511, 512, 513, TEST_FRAMES, 1 << 15] {
        let frames = open(total);
        let table = Table::frames_taken(total);
        let stats = frames.stats();
        assert_eq!(stats.total_frames, total);
        assert_eq!((stats.table_frames, stats.free_frames), (table, total - table));
        assert_eq!((stats.used_frames(), stats.held_frames), (0, 0));
        assert_eq!(stats.free_blocks, blocks_of(&(table..total).collect()));
        let by_order: u32 = Order::all().map(|order| stats.free_frames_of(order)).sum();
        assert_eq!(by_order, stats.free_frames);
    }
}

#[test]
fn no_entry_of_a_fresh_arena_can_be_counted_or_read() {
    let frames = open(TEST_FRAMES);
    for n in 0..TEST_FRAMES {
        let entry = frames.frame(FrameNumber(n));
        assert!(entry.count.try_get(1).is_err(), "frame {n}");
        assert_eq!(entry.read_begin(), None, "frame {n}");
    }
}

#[test]
fn every_frame_but_the_tables_can_be_had_once() {
    let frames = open(TEST_FRAMES);
    let table = frames.stats().table_frames;
    let mut had = BTreeSet::new();
    while let Some(frame) = frames.alloc(Order::MIN) {
        assert!(had.insert(frame.0), "{frame:?} twice");
    }
    assert_eq!(had, (table..TEST_FRAMES).collect());
    assert_eq!(frames.free_frames(), 0);
    assert_eq!(frames.alloc_at_most(Order::MAX), None);
}

#[test]
fn the_largest_folio_is_a_huge_page() {
    let frames = open(TEST_FRAMES);
    let head = frames.alloc(Order::MAX).expect("runs are free");
    assert!(frames.address(head).addr().is_multiple_of(2 << 20));
    assert_eq!(frames.frame(head).order(), Order::MAX);
    assert_eq!(Order::MAX.bytes(), 2 << 20);
}

#[test]
fn the_smallest_block_that_will_do_is_cut() {
    let frames = open(TEST_FRAMES);
    let first = frames.alloc(Order::MIN).expect("free");
    let whole = frames.stats().free_blocks[9];
    let one = frames.alloc(Order::MIN).expect("free");
    let two = frames.alloc(order(1)).expect("free");
    assert_eq!(frames.stats().free_blocks[9], whole, "one run is cut already");
    assert_eq!(first.align_down(Order::MAX), two.align_down(Order::MAX));
    put_and_free(&frames, two, order(1));
    put_and_free(&frames, one, Order::MIN);
    assert_eq!(frames.alloc(Order::MIN), Some(one), "the last freed is the first to go");
}

#[test]
fn what_stays_comes_from_other_runs_than_what_can_be_moved() {
    let frames = open(TEST_FRAMES);
    let stays = frames.alloc_of(order(3), Mobility::Unmovable).expect("free");
    assert!(frames.whole_runs().all(|run| run != stays.align_down(Order::MAX)), "{stays:?}");
    assert!(!frames.is_movable(stays));
    let moves = frames.alloc(Order::MIN).expect("free");
    assert!(frames.is_movable(moves));
    // When the runs of the table and of the end are full, another is given to what stays.
    while frames.alloc_of(order(3), Mobility::Unmovable).is_some() {}
    let run = frames.claim_run(order(3)).expect("a whole one is free");
    assert!(!frames.is_movable(run.after(100)) && frames.is_movable(moves));
    let last = frames.alloc_of(order(3), Mobility::Unmovable).expect("free");
    assert_eq!(last, run);
    // And it is given back when all of it is free.
    put_and_free(&frames, last, order(3));
    assert!(frames.is_movable(run));
}

#[test]
fn pins_leave_the_frames_behind_the_table_to_index_nodes() {
    let frames = open(TEST_FRAMES);
    let nodes = frames.for_nodes();
    assert_eq!(nodes.start, frames.stats().table_frames);
    assert!((3..=TEST_FRAMES / 64).contains(&(nodes.len() as u32)), "{nodes:?}");
    while let Some(head) = frames.alloc_of(Order::MIN, Mobility::Unmovable) {
        assert!(!nodes.contains(&head.0), "{head:?} of {nodes:?}");
    }
    for frame in nodes.clone() {
        assert_eq!(frames.alloc_lowest(nodes.clone()), Some(FrameNumber(frame)));
    }
    assert_eq!(frames.alloc_lowest(nodes), None);
    let run = frames.whole_runs().next().expect("there are whole ones");
    let of_run = run.0..run.0 + Order::MAX.frames();
    assert_eq!(frames.alloc_lowest(of_run.clone()), None, "it is movable");
    assert_eq!(frames.unmovable().filter(|other| *other == of_run).count(), 0);
    frames.claim_run_of(run);
    assert_eq!(frames.unmovable().last(), Some(of_run.clone()));
    assert_eq!(frames.alloc_lowest(of_run), Some(run));
}

#[test]
fn how_many_frames_pins_leave_to_index_nodes() {
    for (mib, least) in [(8, 27), (9, 6), (10, 18), (12, 9), (16, 55), (64, 223), (1024, 500)] {
        let frames = open(mib << 8);
        let nodes = frames.for_nodes().len() as u32;
        assert!((least..=frames.frames() / 64).contains(&nodes), "{mib} MiB: {nodes}");
    }
    assert!(open(256).for_nodes().is_empty(), "no run of it is whole");
}

#[test]
fn a_claimed_run_keeps_what_is_in_it_and_gives_the_rest_to_what_stays() {
    let frames = open(TEST_FRAMES);
    let runs: Vec<_> = frames.whole_runs().collect();
    let used: Vec<_> = runs.iter().map(|_| frames.alloc(Order::MAX).expect("whole")).collect();
    while frames.alloc_of(Order::MIN, Mobility::Unmovable).is_some() {}
    assert_eq!(frames.claim_run(Order::MIN), None, "nothing is free");
    let parts = split(&frames, used[0], Order::MAX, order(2));
    put_and_free(&frames, parts[5], order(2));
    assert_eq!(frames.claim_run(order(3)), None, "no block of that size is free");
    assert_eq!(frames.claim_run(order(2)), Some(used[0]));
    assert_eq!(frames.alloc_of(Order::MIN, Mobility::Movable), None);
    assert_eq!(frames.alloc_of(order(2), Mobility::Unmovable), Some(parts[5]));
}

#[test]
fn at_most_takes_less_only_when_it_must() {
    let frames = open(512);
    assert_eq!(frames.alloc(Order::MAX), None, "the table is in the only run");
    let (head, got) = frames.alloc_at_most(Order::MAX).expect("free");
    assert_eq!((head, got), (FrameNumber(256), order(8)));
    assert_eq!(frames.frame(head).order(), got);
    let (_, got) = frames.alloc_at_most(order(2)).expect("free");
    assert_eq!(got, order(2), "larger blocks are cut");
}

#[test]
fn a_folio_is_freed_in_whatever_parts_it_was_split_into() {
    let frames = open(TEST_FRAMES);
    let before = frames.stats();
    let head = frames.alloc(order(5)).expect("free");
    let mut parts = split(&frames, head, order(5), order(2));
    let small = split(&frames, parts.remove(3), order(2), Order::MIN);
    for part in parts {
        put_and_free(&frames, part, order(2));
    }
    assert_eq!(frames.stats().used_frames(), 4);
    for part in small {
        put_and_free(&frames, part, Order::MIN);
    }
    assert_eq!(frames.stats(), before);
}

#[test]
fn a_run_is_emptied_while_its_frames_are_out_of_reach() {
    let frames = open(TEST_FRAMES);
    let run = frames.whole_runs().next().expect("a run");
    let mut used = Vec::new();
    while let Some(frame) = frames.alloc(Order::MIN) {
        used.push(frame);
    }
    let (inside, outside): (Vec<_>, Vec<_>) =
        used.into_iter().partition(|frame| frame.align_down(Order::MAX) == run);
    put_and_free(&frames, inside[0], Order::MIN);
    assert_eq!(frames.free_in(run).len(), 1);
    assert!(frames.free_in(run).contains(inside[0].0 - run.0));

    let held = frames.take_free_in(run).expect("none is held");
    assert!(frames.take_free_in(run).is_none(), "one at a time");
    assert_eq!((held.run, held.held().len()), (run, 1));
    assert_eq!(frames.alloc(Order::MIN), None, "what is held is not free");
    for &frame in &inside[1..] {
        put_and_free(&frames, frame, Order::MIN);
        assert_eq!(frames.alloc(Order::MIN), None, "what is freed in the run stays in it");
    }
    put_and_free(&frames, outside[0], Order::MIN);
    assert_eq!(frames.alloc(Order::MIN), Some(outside[0]), "elsewhere all is as ever");
    assert_eq!((frames.stats().held_frames, frames.free_frames()), (512, 0));
    drop(held);
    let head = frames.alloc(Order::MAX).expect("all of it was held");
    assert_eq!((head, frames.frame(head).order()), (run, Order::MAX));
    assert_eq!(frames.frame(head).count.count(), 1);
    assert_eq!(frames.stats().held_frames, 0);
    put_and_free(&frames, head, Order::MAX);
    assert_eq!(frames.stats().free_blocks[9], 1);
}

#[test]
fn a_run_that_is_not_empty_is_given_back() {
    let frames = open(TEST_FRAMES);
    let run = frames.whole_runs().last().expect("a run");
    let folio = loop {
        let folio = frames.alloc(order(9)).expect("the run comes up");
        if folio == run {
            break folio;
        }
    };
    let parts = split(&frames, folio, Order::MAX, order(3));
    put_and_free(&frames, parts[7], order(3));
    let before = frames.stats();
    let held = frames.take_free_in(run).expect("none is held");
    assert_eq!(held.held().len(), 8);
    drop(held);
    assert_eq!(frames.stats(), before);
    assert!(frames.take_free_in(run).is_some(), "the hold is over");
}

/// Whether a run stays as it is that somebody has taken to make it hollow, and which is held since.
#[cfg(feature = "map")]
fn stays_what_it_is(mutant: Option<Mutant>) -> bool {
    let frames = open(TEST_FRAMES);
    let run = frames.change(|lists, on| lists.take(on, Order::MAX, Mobility::Movable));
    let run = run.expect("all runs are free");
    let held = frames.take_free_in(run).expect("none is held");
    assert_eq!(held.held().len(), 0);
    mutant::with(mutant, || frames.hollow_out(run));
    if frames.is_hollow(run) {
        return false;
    }
    assert!(held.held().is_full(), "it was given back");
    drop(held);
    assert_eq!((frames.stats().held_frames, frames.hollow_frames()), (0, 0));
    true
}

#[test]
#[cfg(feature = "map")]
fn a_run_that_is_held_does_not_become_hollow() {
    assert!(stays_what_it_is(None));
    assert!(!stays_what_it_is(Some(Mutant::HoldLeaks)));
}

#[test]
fn runs_with_table_frames_or_a_missing_end_are_not_whole() {
    let runs: Vec<_> = open(TEST_FRAMES).whole_runs().collect();
    assert_eq!(runs, [FrameNumber(512), FrameNumber(1024)]);
    assert_eq!(open(FRAMES_MIN).whole_runs().count(), 0);
}

#[test]
fn numbers_beyond_the_arena_lead_to_nothing() {
    let frames = open(FRAMES_MIN);
    for n in [FRAMES_MIN, 1 << 30, u32::MAX] {
        assert!(frames.try_frame(FrameNumber(n)).is_none());
        assert!(frames.arena.try_address(FrameNumber(n)).is_none());
    }
    let wrapped = FrameNumber(u32::MAX).after(511);
    assert!(frames.arena.try_address(wrapped).is_none(), "{wrapped:?}");
}

#[test]
fn only_ten_orders_exist() {
    assert_eq!(Order::new(9), Some(Order::MAX));
    assert_eq!(Order::new(10), None);
    assert_eq!(Order::all().map(Order::frames).sum::<u32>(), 1023);
}

// ---- each assertion, met ----

#[test]
#[should_panic(expected = "is outside of the arena's 64 frames")]
fn an_entry_beyond_the_arena_panics() {
    let _ = open(FRAMES_MIN).frame(FrameNumber(64));
}

#[test]
#[should_panic(expected = "is freed but not frozen")]
fn freeing_a_counted_folio_panics() {
    let frames = open(FRAMES_MIN);
    frames.free(frames.alloc(Order::MIN).expect("free"), Order::MIN);
}

#[test]
#[should_panic(expected = "folio freed while readers believe it")]
fn freeing_an_even_folio_panics() {
    let frames = open(FRAMES_MIN);
    let head = frames.alloc(Order::MIN).expect("free");
    frames.frame(head).change_end();
    put_and_free(&frames, head, Order::MIN);
}

#[test]
#[should_panic(expected = "is freed while on a list")]
fn freeing_a_queued_folio_panics() {
    let frames = open(FRAMES_MIN);
    let head = frames.alloc(Order::MIN).expect("free");
    frames.frame(head).set_next(Some(FrameNumber(9)));
    put_and_free(&frames, head, Order::MIN);
}

#[test]
#[should_panic(expected = "is freed twice")]
fn freeing_twice_panics() {
    let frames = open(FRAMES_MIN);
    // The last frame is the first to be freed, and its buddy stays: it cannot merge.
    let head = FrameNumber(FRAMES_MIN - 1);
    while frames.alloc(Order::MIN).expect("it comes up") != head {}
    while frames.alloc(Order::MIN).is_some() {}
    put_and_free(&frames, head, Order::MIN);
    frames.free(head, Order::MIN);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "is freed inside a free block")]
fn freeing_part_of_a_free_block_panics() {
    let frames = open(TEST_FRAMES);
    frames.free(FrameNumber(513), Order::MIN);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "is in use")]
fn freeing_a_block_with_a_counted_tail_panics() {
    let frames = open(TEST_FRAMES);
    let head = frames.alloc(order(1)).expect("free");
    frames.frame(head.after(1)).hand_out(Order::MIN);
    put_and_free(&frames, head, order(1));
}

#[test]
#[should_panic(expected = "frames of a held run are freed twice")]
fn freeing_a_held_frame_panics() {
    let frames = open(TEST_FRAMES);
    let run = frames.whole_runs().next().expect("a run");
    let held = frames.take_free_in(run).expect("none is held");
    frames.free(run.after(5), Order::MIN);
    drop(held);
}

#[test]
#[should_panic(expected = "is not aligned")]
fn freeing_an_unaligned_block_panics() {
    open(TEST_FRAMES).free(FrameNumber(101), order(1));
}

#[test]
#[should_panic(expected = "is not all of it the arena's")]
fn freeing_the_table_panics() {
    open(TEST_FRAMES).free(FrameNumber(0), Order::MIN);
}

#[test]
#[should_panic(expected = "is not all of it the arena's")]
fn freeing_beyond_the_arena_panics() {
    open(TEST_FRAMES).free(FrameNumber(3 * 512), Order::MAX);
}

#[test]
#[should_panic(expected = "does not start a 2 MiB run")]
fn holding_the_tables_run_panics() {
    let _ = open(TEST_FRAMES).take_free_in(FrameNumber(0));
}

// ---- against a model ----

#[derive(Clone, Debug)]
enum Step {
    Alloc(u8),
    AllocAtMost(u8),
    AllocUnmovable(u8),
    Claim(u8),
    Free(prop::sample::Index),
    Split(prop::sample::Index, u8),
    Hold(prop::sample::Index),
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..=9u8).prop_map(Step::Alloc),
        8 => (0..=3u8).prop_map(Step::Alloc),
        2 => (0..=9u8).prop_map(Step::AllocAtMost),
        2 => (0..=8u8).prop_map(Step::AllocUnmovable),
        1 => (0..=8u8).prop_map(Step::Claim),
        10 => any::<prop::sample::Index>().prop_map(Step::Free),
        4 => (any::<prop::sample::Index>(), 0..=8u8).prop_map(|(which, part)| Step::Split(which, part)),
        1 => any::<prop::sample::Index>().prop_map(Step::Hold),
        1 => Just(Step::Release),
    ]
}

fn largest(free: &BTreeSet<u32>) -> Option<u8> {
    blocks_of(free).iter().rposition(|&blocks| blocks > 0).map(|order| order as u8)
}

/// The allocator beside two sets: what is free, and what is held.
struct Checked<'a> {
    frames: &'a Frames,
    free: BTreeSet<u32>,
    held: BTreeSet<u32>,
    hold: Option<HeldRun<'a>>,
    owned: Vec<(FrameNumber, Order)>,
}

impl<'a> Checked<'a> {
    fn new(frames: &'a Frames) -> Self {
        let free = (frames.stats().table_frames..frames.frames()).collect();
        Checked { frames, free, held: BTreeSet::new(), hold: None, owned: Vec::new() }
    }

    /// The largest order of which there is a block.
    fn largest(&self) -> Option<u8> {
        largest(&self.free)
    }

    /// The same in runs of one kind.
    fn largest_of(&self, kind: Mobility) -> Option<u8> {
        let of_kind = |&frame: &u32| {
            self.frames.is_movable(FrameNumber(frame)) == (kind == Mobility::Movable)
        };
        largest(&self.free.iter().copied().filter(of_kind).collect())
    }

    /// The same in unmovable runs, without what pins leave to index nodes.
    fn largest_to_pin(&self) -> Option<u8> {
        let nodes = self.frames.for_nodes();
        let is_for_pins =
            |&frame: &u32| !nodes.contains(&frame) && !self.frames.is_movable(FrameNumber(frame));
        largest(&self.free.iter().copied().filter(is_for_pins).collect())
    }

    fn took(&mut self, head: FrameNumber, order: Order) {
        assert!(head.is_aligned(order));
        for frame in head.0..head.0 + order.frames() {
            assert!(self.free.remove(&frame), "{frame} was not free");
        }
        assert_eq!(self.frames.frame(head).count.count(), 1);
        self.owned.push((head, order));
    }

    fn free(&mut self, (head, order): (FrameNumber, Order)) {
        put_and_free(self.frames, head, order);
        let held = self.hold.as_ref().is_some_and(|hold| hold.run == head.align_down(Order::MAX));
        let to = if held { &mut self.held } else { &mut self.free };
        to.extend(head.0..head.0 + order.frames());
    }

    fn release(&mut self) {
        self.hold = None;
        self.free.append(&mut self.held);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Alloc(wanted) => {
                let got = self.frames.alloc(order(wanted));
                assert_eq!(got.is_some(), self.largest() >= Some(wanted), "{:?}", self.free);
                if let Some(head) = got {
                    self.took(head, order(wanted));
                }
            }
            Step::AllocAtMost(wanted) => {
                let got = self.frames.alloc_at_most(order(wanted));
                let movable = self.largest_of(Mobility::Movable);
                let expected = movable.or(self.largest()).map(|most| order(most.min(wanted)));
                assert_eq!(got.map(|(_, order)| order), expected);
                if let Some((head, order)) = got {
                    self.took(head, order);
                }
            }
            Step::AllocUnmovable(wanted) => {
                let there = self.largest_to_pin() >= Some(wanted);
                let got = self.frames.alloc_of(order(wanted), Mobility::Unmovable);
                assert_eq!(got.is_some(), there);
                if let Some(head) = got {
                    assert!(!self.frames.is_movable(head));
                    self.took(head, order(wanted));
                }
            }
            Step::Claim(wanted) => {
                let there = self.largest_of(Mobility::Movable) >= Some(wanted);
                let run = self.frames.claim_run(order(wanted));
                assert_eq!(run.is_some(), there);
                assert!(run.is_none_or(|run| !self.frames.is_movable(run)));
            }
            Step::Free(which) if !self.owned.is_empty() => {
                let folio = self.owned.swap_remove(which.index(self.owned.len()));
                self.free(folio);
            }
            Step::Split(which, part) if !self.owned.is_empty() => {
                let (head, whole) = self.owned.swap_remove(which.index(self.owned.len()));
                let part = whole.min(order(part));
                let parts = split(self.frames, head, whole, part);
                self.owned.extend(parts.into_iter().map(|head| (head, part)));
            }
            Step::Hold(which) if self.hold.is_none() => {
                let runs: Vec<_> = self.frames.whole_runs().collect();
                let run = *which.get(&runs);
                self.hold = self.frames.take_free_in(run);
                self.held = self.free.range(run.0..run.0 + 512).copied().collect();
                self.free.retain(|frame| !self.held.contains(frame));
            }
            Step::Release => self.release(),
            Step::Free(_) | Step::Split(..) | Step::Hold(_) => {}
        }
        self.check();
    }

    fn check(&self) {
        let stats = self.frames.stats();
        assert_eq!(stats.free_blocks, blocks_of(&self.free));
        assert_eq!(stats.free_frames as usize, self.free.len());
        assert_eq!(self.frames.free_frames(), stats.free_frames);
        assert_eq!(stats.held_frames as usize, self.held.len());
        let owned: u32 = self.owned.iter().map(|(_, order)| order.frames()).sum();
        assert_eq!(stats.used_frames(), owned);
        for run in self.frames.whole_runs() {
            let map = self.frames.free_in(run);
            let free: BTreeSet<u32> =
                (0..512).filter(|&at| map.contains(at)).map(|at| run.0 + at).collect();
            assert!(free.iter().eq(self.free.range(run.0..run.0 + 512)), "{run:?}");
        }
    }
}

proptest! {
    #[test]
    fn any_history_agrees_with_the_model(steps in prop::collection::vec(step(), 1..120)) {
        let frames = open(TEST_FRAMES);
        let before = frames.stats();
        let mut checked = Checked::new(&frames);
        for step in &steps {
            checked.step(step);
        }
        while let Some(folio) = checked.owned.pop() {
            checked.free(folio);
        }
        checked.release();
        prop_assert_eq!(frames.stats(), before, "all came together again");
    }
}

/// Two threads that are the first in a huge page would each be charged one: see
/// `arena::TouchedHugePages`.
#[test]
fn what_is_handed_out_of_any_run_is_touched() {
    let frames = open(TEST_FRAMES);
    let is_resident = |head: FrameNumber| {
        let mut page = 0u8;
        // SAFETY: the range is the arena's, and the call writes one byte for its one page.
        let told = unsafe { libc::mincore(frames.address(head).cast(), PAGE_BYTES, &raw mut page) };
        assert_eq!(told, 0);
        page & 1 == 1
    };
    let run = frames.claim_run(Order::MAX).expect("all runs are free");
    assert!(!is_resident(run));
    let unmovable = frames.alloc_of(Order::MAX, Mobility::Unmovable).expect("it is free");
    assert_eq!((unmovable, is_resident(unmovable)), (run, frames.huge_pages_advised()));
    let other = frames.whole_runs().find(|&other| other != run).expect("two whole runs");
    assert!(!is_resident(other));
    put_and_free(&frames, unmovable, Order::MAX);
}
