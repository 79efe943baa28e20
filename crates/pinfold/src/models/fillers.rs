//! Two readers of an absent page: one fills, the other waits; both get its bytes, or both the
//! error.

use std::sync::atomic::Ordering;

use super::{Model, holds_and_catches, race, word};
use crate::base::mutant::Mutant;
use crate::pages::fill;
use crate::pages::freeze;

fn same_page() {
    let model = Model::new(2, 0);
    race(&model, |model| model.check(0, 0, 1), |model| model.check(0, 0, 1));
}

#[test]
fn two_fillers_of_a_page_agree() {
    let mutants = [
        (Mutant::InsertBlindly, "the range was checked"),
        (Mutant::WakeFirst, "deadlock"),
        (Mutant::WakeUnlocked, "deadlock"),
    ];
    holds_and_catches(same_page, &mutants);
}

/// The first read of the source fails. A reader that gets the error has it from that fill; a later
/// reader fills again.
fn failing() {
    let model = Model::new(2, 0);
    model.sources[0].failures.store(1, Ordering::Relaxed);
    let read = |model: &Model| match model.read(0, 0, 1) {
        Ok(words) => assert_eq!(words, [model.sources[0].word(0)], "wrong bytes"),
        Err(error) => assert!(error.to_string().contains("as the model wants it"), "{error}"),
    };
    race(&model, read, read);
}

#[test]
fn an_error_is_told_and_not_kept() {
    holds_and_catches(
        failing,
        &[(Mutant::WakeFirst, "deadlock"), (Mutant::WakeUnlocked, "deadlock")],
    );
}

/// The page is dropped while it is being filled: its reader gets it all the same, by a new fill.
fn dropped() {
    let model = Model::new(2, 0);
    let drop = |model: &Model| {
        freeze::drop_clean(&model.core, &model.files[0].mapping, 0..1);
    };
    race(&model, |model| model.check(0, 0, 1), drop);
}

#[test]
fn a_fill_that_is_dropped_on_its_way_is_done_again() {
    holds_and_catches(dropped, &[(Mutant::LandBlindly, "freed while readers believe it")]);
}

/// Page 0 is in the first half of a pair, page 1 elsewhere. Page 0 is dropped. A thread that then
/// fills both gives the whole pair to page 0, and finds page 1 in the way. A reader with an old
/// hint to page 0 may have taken a reference to the pair by then, and waits for it.
fn in_the_way() {
    let model = Model::new(5, 1);
    let frame_of = |file: usize, page| {
        let found = model.files[file].mapping.index.lookup(page);
        found.expect("it was read").0
    };
    model.check(0, 1, 1);
    model.check(0, 0, 1);
    // One of the two other frames takes what is filled in the pair's stead. It must be of the other
    // stripe, so that no thread is woken by chance.
    model.check(1, 0, 1);
    model.check(1, 1, 1);
    let frames = [(0, 0), (1, 0), (1, 1)].map(|(file, page)| frame_of(file, page));
    let pair = frames[0];
    assert!(pair % 2 == 0 && frames == [pair, pair + 1, frames[2]] && frames[2] % 2 == 0);
    freeze::drop_clean(&model.core, &model.files[1].mapping, 0..1);
    let fill_both = |model: &Model| {
        freeze::drop_clean(&model.core, &model.files[0].mapping, 0..1);
        model.check(0, 0, 2);
    };
    let read = |model: &Model| {
        let held = fill::get(&model.files[0], 0, 8).expect("the source does not fail");
        let mut buf = [0; 8];
        assert_eq!(model.files[0].copy_held(&held, &mut buf, 0), 8);
        assert_eq!(word(&buf), model.sources[0].word(0), "wrong bytes");
    };
    race(&model, fill_both, read);
}

#[test]
fn a_folio_that_finds_another_in_its_way_leaves_nobody_waiting() {
    holds_and_catches(in_the_way, &[(Mutant::OccupiedWakesNobody, "deadlock")]);
}
