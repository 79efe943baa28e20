//! Split and migration, against readers.

use std::sync::Arc;

use super::{Model, PAGE, holds_and_catches, race, word};
use crate::base::mutant::Mutant;
use crate::pages::freeze;
use crate::pages::reclaim;

/// The mutants that a short read of a folio catches while the folio moves or splits.
pub(super) const SHORT_MUTANTS: &[(Mutant, &str)] =
    &[(Mutant::NoLastLook, "wrong bytes"), (Mutant::FreezeStaysEven, "wrong bytes")];

/// The mutants that a look-up under a reference catches.
pub(super) const COUNTED_MUTANTS: &[(Mutant, &str)] = &[
    (Mutant::CountedBlindly, "the page is not in the folio"),
    (Mutant::FreezeAnyCount, "Concurrent atomic store and `unsync_load`"),
];

/// A read that succeeds in the end, whatever happens.
fn read_second(model: &Model) {
    let mut buf = [0; 8];
    let got = model.files[0].long(&mut buf, PAGE, true);
    assert_eq!(got.expect("the source does not fail"), 8);
    assert_eq!(word(&buf), model.sources[0].word(1), "wrong bytes");
}

/// A folio of two pages, as the only thing in a cache of two frames.
pub(super) fn pair() -> Arc<Model> {
    // The frame after the table is not aligned to two.
    let model = Model::new(3, 1);
    let alone = model.core.frames.alloc(crate::frames::Order::MIN).expect("a frame");
    model.check(0, 0, 2);
    assert_eq!(model.core.frames.free_frames(), 0, "the pair is one folio");
    model.core.put(alone);
    model
}

/// Splits the pair, drops its second page, and fills that page's frame with one of the other file.
pub(super) fn split_and_refill(model: &Model) {
    let file = &model.files[0];
    if reclaim::split_range(&model.core, &file.mapping, 0..2) == 0 {
        return;
    }
    freeze::drop_clean(&model.core, &file.mapping, 1..2);
    // Of the two free frames, the one freed last is allocated first.
    model.check(1, 0, 1);
}

fn split_short() {
    race(&pair(), split_and_refill, |model| model.check_shortly(1));
}

fn split_counted() {
    race(&pair(), split_and_refill, |model| model.check_counted(1));
}

fn split_waited() {
    let split = |model: &Model| {
        reclaim::split_range(&model.core, &model.files[0].mapping, 0..2);
    };
    race(&pair(), split, read_second);
}

#[test]
fn a_short_read_of_a_folio_that_is_split() {
    holds_and_catches(split_short, SHORT_MUTANTS);
}

#[test]
fn a_counted_read_of_a_folio_that_is_split() {
    holds_and_catches(split_counted, COUNTED_MUTANTS);
}

#[test]
fn a_reader_who_finds_a_folio_being_split_gets_it() {
    holds_and_catches(split_waited, &[(Mutant::MoveWakesNobody, "deadlock")]);
}

/// One page, and a free frame for it to move to.
pub(super) fn single() -> Arc<Model> {
    let model = Model::new(2, 0);
    model.check(0, 1, 1);
    model
}

pub(super) fn migrate_and_refill(model: &Model) {
    reclaim::migrate_range(&model.core, &model.files[0].mapping, 1..2);
    model.refill();
}

fn migrate_short() {
    race(&single(), migrate_and_refill, |model| model.check_shortly(1));
}

fn migrate_counted() {
    race(&single(), migrate_and_refill, |model| model.check_counted(1));
}

fn migrate_waited() {
    let migrate = |model: &Model| {
        reclaim::migrate_range(&model.core, &model.files[0].mapping, 1..2);
    };
    race(&single(), migrate, read_second);
}

#[test]
fn a_short_read_of_a_folio_that_moves() {
    holds_and_catches(migrate_short, SHORT_MUTANTS);
}

#[test]
fn a_counted_read_of_a_folio_that_moves() {
    holds_and_catches(migrate_counted, COUNTED_MUTANTS);
}

#[test]
fn a_reader_who_finds_a_folio_that_moves_gets_it() {
    holds_and_catches(migrate_waited, &[(Mutant::MoveWakesNobody, "deadlock")]);
}
