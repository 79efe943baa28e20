//! Writes against readers in place: the shipped change of a folio (`pages/freeze/change.rs`), and
//! shipped readers. `docs/borrow.md` explains the rules.

use super::borrowed::reader;
use super::{Model, PAGE, RACE, holds_and_catches, holds_and_catches_within, race, word};
use crate::access::pin;
use crate::base::mutant::Mutant;
use crate::frames::{Order, PAGE_SHIFT, bytes};
use crate::pages::freeze::{self, Length, Obstacle};

/// The word of a page after it is written.
fn written(page: u64) -> u64 {
    9_000_000 + page
}

fn write(model: &Model, page: u64) {
    write_word(model, page, written(page));
}

/// Writes a page of the first file that is a cached folio of its own, and not pinned and held.
pub(super) fn write_word(model: &Model, page: u64, word: u64) {
    try_write(model, page, word).expect("nobody has pinned and held it");
}

fn try_write(model: &Model, page: u64, word: u64) -> Result<(), Obstacle> {
    let (core, mapping) = (&*model.core, &*model.files[0].mapping);
    let mut copy = Some(core.frames.alloc(Order::MIN).expect("room for a copy"));
    let mut changing = mapping.change();
    let folio = changing.writer(&core.nodes).folio(page).expect("nobody evicts it");
    let store = |to: *mut u8| {
        let address = std::ptr::NonNull::new(to).expect("not at 0");
        bytes::fill(address, word);
    };
    let length = Length::Reaches((page + 1) << PAGE_SHIFT);
    let bytes = 0..PAGE as usize;
    let changed = freeze::change(core, &mut changing, folio, &bytes, length, &mut copy, store);
    drop(changing);
    if let Some(copy) = copy {
        core.put(copy);
    }
    let freeze::AfterChange { old, woken } = changed?;
    drop(woken);
    if let Some(old) = old {
        freeze::let_go(core, &[old]);
    }
    Ok(())
}

/// Two pages of the first file, and two more frames.
fn two_pages() -> std::sync::Arc<Model> {
    let model = Model::new(4, 0);
    model.check(0, 0, 1);
    model.check(0, 1, 1);
    model
}

fn one_page() -> std::sync::Arc<Model> {
    one_page_and(1)
}

fn one_page_and(frames: u64) -> std::sync::Arc<Model> {
    let model = Model::new(1 + frames, 0);
    model.check(0, 0, 1);
    model
}

/// The page under a guard stays what it was when the guard was taken.
fn borrow_one(model: &Model) {
    let reader = reader(model);
    let Some(borrowed) = model.files[0].borrow_at_once(0, &reader) else { return };
    let first = borrowed.word();
    assert!(first == model.sources[0].word(0) || first == written(0), "half of it");
    assert_eq!(borrowed.word(), first, "changed under the guard");
}

fn hold_one(model: &Model) {
    let Ok(held) = model.files[0].get(0) else { return };
    let first = held.word();
    assert!(first == model.sources[0].word(0) || first == written(0), "half of it");
    assert_eq!(held.word(), first, "changed under the guard");
}

/// A thread that finds the new bytes finds the old ones not current.
fn hold_both(model: &Model) {
    let file = &model.files[0];
    let Ok(one) = file.get(0) else { return };
    let Ok(other) = file.get(0) else { return };
    if one.word() != other.word() {
        assert!(!one.is_current(), "two that are current");
    }
}

fn write_one(model: &Model) {
    write(model, 0);
}

/// The second write finds a folio whose guards are counted, and does not look at the slots.
fn write_again(model: &Model) {
    write(model, 0);
    write(model, 0);
}

fn write_both(model: &Model) {
    write(model, 0);
    write(model, 1);
}

/// Writes a page that is borrowed here.
fn write_borrowed(model: &Model) {
    let reader = reader(model);
    let borrowed = model.files[0].borrow_at_once(0, &reader);
    let _ = try_write(model, 0, written(0));
    drop(borrowed);
}

fn pin_and_hold(model: &Model) {
    let pinned = pin::try_pin(&model.files[0], 0..PAGE);
    hold_one(model);
    drop(pinned);
}

/// Writes a page that is pinned.
fn write_pinned(model: &Model) {
    let pinned = pin::try_pin(&model.files[0], 0..PAGE);
    let _ = try_write(model, 0, written(0));
    drop(pinned);
}

fn pinned_meanwhile() {
    race(&one_page(), write_borrowed, pin_and_hold);
}

fn pinned_and_held() {
    race(&one_page(), write_pinned, hold_one);
}

fn pinned_and_borrowed() {
    race(&one_page(), write_pinned, borrow_one);
}

/// A borrow that becomes a reference.
fn upgrade_one(model: &Model) {
    let reader = reader(model);
    let Some(borrowed) = model.files[0].borrow_at_once(0, &reader) else { return };
    let Ok(held) = borrowed.upgrade() else { return };
    drop(borrowed);
    let first = held.word();
    assert_eq!(held.word(), first, "changed under the guard");
}

fn pinned_and_upgraded() {
    race(&one_page(), write_pinned, upgrade_one);
}

fn borrowed() {
    race(&one_page(), write_one, borrow_one);
}

fn borrowed_again() {
    race(&one_page_and(2), write_again, borrow_one);
}

fn held() {
    race(&one_page(), write_one, hold_one);
}

fn replaced() {
    race(&one_page(), write_one, hold_both);
}

#[test]
fn one_version_of_a_page_is_current() {
    let mutants = [
        (Mutant::OldGoesLate, "two that are current"),
        (Mutant::CurrentBlindly, "two that are current"),
    ];
    holds_and_catches_within(3, replaced, &mutants);
}

#[test]
fn bytes_do_not_change_under_a_borrow() {
    let mutants = [
        (Mutant::WriteUnderBorrow, RACE),
        (Mutant::NoScan, RACE),
        (Mutant::AnnounceUnfenced, RACE),
    ];
    holds_and_catches(borrowed, &mutants);
    holds_and_catches(borrowed_again, &[(Mutant::BorrowByCount, RACE)]);
}

#[test]
fn who_meets_a_pinned_folio_that_a_writer_leaves_alone_goes_on() {
    holds_and_catches(pinned_meanwhile, &[(Mutant::PinnedWakesNobody, "deadlock")]);
}

#[test]
fn bytes_do_not_change_under_a_reference() {
    let mutants = [(Mutant::FreezeAnyCount, RACE)];
    holds_and_catches(held, &mutants);
}

#[test]
fn bytes_of_a_pinned_folio_change_under_pins_alone() {
    holds_and_catches(pinned_and_held, &[(Mutant::ChangePinnedAnyCount, RACE)]);
    holds_and_catches(pinned_and_borrowed, &[(Mutant::NoScan, RACE)]);
    holds_and_catches_within(3, pinned_and_upgraded, &[(Mutant::CountedBeforeSlots, RACE)]);
}

/// The first page is written before the second. If both guards are current, they do not show the
/// old first page with the new second one.
fn couple_guards(model: &Model) {
    let file = &model.files[0];
    let Ok(first) = file.get(0) else { return };
    let Ok(second) = file.get(1) else { return };
    let (one, two) = (first.word(), second.word());
    if first.is_current() && second.is_current() {
        assert!(one == written(0) || two != written(1), "not of one moment");
    }
}

fn couple_stamps(model: &Model) {
    let file = &model.files[0];
    let (Some(first), Some(second)) = (file.stamped(0), file.stamped(1)) else { return };
    let (mut one, mut two) = ([0; 8], [0; 8]);
    second.read(0, &mut two);
    first.read(0, &mut one);
    if [first, second].iter().all(crate::access::borrow::Optimistic::validate) {
        let (one, two) = (word(&one), word(&two));
        assert!(one == written(0) || one == model.sources[0].word(0), "half of it");
        assert!(one == written(0) || two != written(1), "not of one moment");
    }
}

fn coupled_guards() {
    race(&two_pages(), write_both, couple_guards);
}

fn coupled_stamps() {
    race(&two_pages(), write_both, couple_stamps);
}

#[test]
fn guards_that_are_current_are_of_one_moment() {
    holds_and_catches(coupled_guards, &[(Mutant::CurrentBlindly, "not of one moment")]);
}

#[test]
fn stamps_that_are_valid_are_of_one_moment() {
    holds_and_catches(coupled_stamps, &[(Mutant::NoLastLook, "not of one moment")]);
}
