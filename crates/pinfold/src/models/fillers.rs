//! Two readers of a page that is not there: one fills, the other waits, both get its bytes or both
//! the error.

use std::sync::atomic::Ordering;

use super::{Model, holds_and_catches, race};
use crate::flaw::Flaw;
use crate::freeze;

fn same_page() {
    let model = Model::new(2, 0);
    race(&model, |model| model.check(0, 0, 1), |model| model.check(0, 0, 1));
}

#[test]
fn two_fillers_of_a_page_agree() {
    let flaws = [
        (Flaw::InsertBlindly, "the range was checked"),
        (Flaw::WakeFirst, "deadlock"),
        (Flaw::WakeUnlocked, "deadlock"),
    ];
    holds_and_catches(same_page, &flaws);
}

/// The first read of the source fails. Whoever gets the error has it from that fill; whoever comes
/// later fills again.
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
    holds_and_catches(failing, &[(Flaw::WakeFirst, "deadlock"), (Flaw::WakeUnlocked, "deadlock")]);
}

/// The page is dropped while it is on its way: its reader gets it all the same, from the source anew.
fn dropped() {
    let model = Model::new(2, 0);
    let drop = |model: &Model| {
        freeze::drop_clean(&model.core, &model.files[0].mapping, 0..1);
    };
    race(&model, |model| model.check(0, 0, 1), drop);
}

#[test]
fn a_fill_that_is_dropped_on_its_way_is_done_again() {
    holds_and_catches(dropped, &[(Flaw::LandBlindly, "freed while readers believe it")]);
}
