//! Pins: against threads that freeze and free, unpinned by two threads, and of a folio that has to
//! move first.

use std::panic::Location;
use std::sync::Arc;

use super::{Model, PAGE, holds_and_catches, moved, race, word};
use crate::access::pin::{self, PinnedRange};
use crate::base::mutant::Mutant;
use crate::frames::{FrameNumber, PAGE_BYTES, copy_still};
use crate::index::PAGES_END;
use crate::pages::freeze;

/// Pins pages of the first file, by either path.
fn pin(model: &Model, page: u64, pages: u64) -> PinnedRange {
    let range = page * PAGE..(page + pages) * PAGE;
    pin::pin::<false>(&model.files[0], range, Location::caller()).expect("it can be pinned")
}

/// Pins a page of the first file, if the fast path succeeds.
fn try_pin(model: &Model, page: u64) -> Option<PinnedRange> {
    pin::try_pin(&model.files[0], page * PAGE..(page + 1) * PAGE)
}

/// Reads each pinned page as a device does, without a version.
fn check(model: &Model, pinned: &PinnedRange) {
    let mut offset = pinned.range().start;
    for extent in pinned.extents() {
        for at in (0..extent.len()).step_by(PAGE_BYTES) {
            let page = (offset + at as u64) / PAGE;
            let address = extent.cast::<u8>().wrapping_add(at);
            let mut bytes = [0; 8];
            let skip = address.addr() % PAGE_BYTES;
            // SAFETY: eight bytes of a pinned page.
            unsafe { copy_still(bytes.as_mut_ptr(), address.wrapping_sub(skip), 8) };
            assert_eq!(word(&bytes), model.sources[0].word(page), "wrong bytes");
        }
        offset += extent.len() as u64;
    }
}

/// Hands a range to one side of a race.
fn give(model: &Model, side: usize, pinned: PinnedRange) {
    *model.pins[side].lock().expect("a model") = Some(pinned);
}

/// Takes the range handed to this side, and checks it.
fn take(model: &Model, side: usize) -> PinnedRange {
    let pinned = model.pins[side].lock().expect("a model").take().expect("pinned");
    check(model, &pinned);
    pinned
}

/// Pins a page while it is evicted and its frame, the only one, is filled with a page of another
/// file.
fn reclaim() {
    let hold = |model: &Model| {
        if let Some(pinned) = try_pin(model, 0) {
            check(model, &pinned);
        }
    };
    race(&Model::only(), Model::evict_and_refill, hold);
}

#[test]
fn a_pin_is_of_its_page_and_keeps_it() {
    let mutants = [
        (Mutant::PinBlindly, "wrong bytes"),
        (Mutant::FreezePinned, "Concurrent atomic store and `unsync_load`"),
    ];
    holds_and_catches(reclaim, &mutants);
}

/// A pinned page is dropped from its file while it is unpinned: one of the two frees it.
fn dropped() {
    let model = Model::new(1, 0);
    give(&model, 0, pin(&model, 0, 1));
    let invalidate = |model: &Model| {
        freeze::drop_clean(&model.core, &model.files[0].mapping, 0..PAGES_END);
        model.refill();
    };
    race(&model, |model| drop(take(model, 0)), invalidate);
}

#[test]
fn a_pinned_page_that_is_dropped_from_its_file_is_freed_once_by_the_last() {
    let mutants = [(Mutant::DropPins, "Concurrent atomic store and `unsync_load`")];
    holds_and_catches(dropped, &mutants);
}

/// Two parts of a range, cut inside a page, of a dropped file: unpinned at the same time.
fn parts() {
    let model = Model::new(2, 0);
    let mut front = pin(&model, 0, 2);
    let back = front.split_off(PAGE + 100).expect("it is inside");
    give(&model, 0, front);
    give(&model, 1, back);
    freeze::drop_clean(&model.core, &model.files[0].mapping, 0..PAGES_END);
    race(&model, |model| unpin_part(model, 0), |model| unpin_part(model, 1));
}

fn unpin_part(model: &Model, part: usize) {
    let mut pinned = take(model, part);
    if part == 0 {
        pinned.unpin_front(PAGE).expect("it has as much");
        check(model, &pinned);
    }
}

#[test]
fn parts_of_a_range_are_given_back_by_two_threads() {
    holds_and_catches(parts, &[(Mutant::SplitSharesPin, "frames are lost")]);
}

/// The first file's second page, in a run where no pin may stay, and a free frame for it.
fn splinter() -> Arc<Model> {
    let model = moved::single();
    let head = model.files[0].mapping.index.lookup(1).expect("it was read");
    model.core.frames.set_splinter(head);
    model
}

/// Moves and pins the page; its old frame is filled with a page of the other file.
fn pin_and_refill(model: &Model) {
    let pinned = pin(model, 1, 1);
    check(model, &pinned);
    model.refill();
    check(model, &pinned);
}

fn moved_short() {
    race(&splinter(), pin_and_refill, |model| model.check_shortly(1));
}

fn moved_counted() {
    race(&splinter(), pin_and_refill, |model| model.check_counted(1));
}

/// Its run becomes unmovable; another thread pins it there, or finds it moving.
fn moved_pinned() {
    let hold = |model: &Model| {
        model.core.frames.set_splinter(FrameNumber(u32::MAX));
        if let Some(pinned) = try_pin(model, 1) {
            check(model, &pinned);
        }
    };
    race(&splinter(), pin_and_refill, hold);
}

/// The page is evicted at any moment.
fn moved_evicted() {
    let pin_it = |model: &Model| check(model, &pin(model, 1, 1));
    race(&splinter(), pin_it, Model::evict);
}

#[test]
fn a_short_read_of_a_folio_that_moves_to_be_pinned() {
    holds_and_catches(moved_short, moved::SHORT_MUTANTS);
}

#[test]
fn a_counted_read_of_a_folio_that_moves_to_be_pinned() {
    holds_and_catches(moved_counted, moved::COUNTED_MUTANTS);
}

#[test]
fn a_pin_of_a_folio_that_moves_to_be_pinned() {
    holds_and_catches(moved_pinned, &[(Mutant::PinBlindly, "wrong bytes")]);
}

#[test]
fn a_folio_that_moved_to_be_pinned_cannot_be_evicted_before_it_is() {
    holds_and_catches(moved_evicted, &[(Mutant::PinMovedLate, "a folio that lives")]);
}
