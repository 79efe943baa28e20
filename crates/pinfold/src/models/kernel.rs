//! Own memory against those who change the page table and do not ask (`space/anon/trust.rs`): KSM,
//! which ends protections; an entry that is written anew with a protection; and system calls of the
//! program's own, which take pages away, replace them, or keep them.
//!
//! They act between any two steps of a page-out, of an eviction, and of a store. The machine is
//! that of `swapped.rs`.

use super::holds_and_catches;
use super::swapped::{Machine, race};
use crate::base::mutant::Mutant;
use crate::mapped::swap::pages::Written::InSlot;

/// KSM comes to the page, and then the program stores to it.
fn merged_and_stored_to(machine: &Machine) {
    machine.merge(0);
    machine.store(0, 7);
}

fn the_store_is_there(machine: &Machine) {
    assert_eq!(machine.load(0), 7, "the store was lost");
    machine.forget_all();
}

/// While its page is paged out, and evicted as clean.
fn merged_while_paged_out() {
    race(
        Machine::new(1, 2).that_looks(),
        |machine| machine.page_out(0, InSlot),
        merged_and_stored_to,
        the_store_is_there,
    );
}

/// While its page, which came back from the swap, is evicted again.
fn merged_while_clean() {
    let evict = |machine: &Machine| {
        machine.page_out(0, InSlot);
        assert!(matches!(machine.load(0), 1 | 7));
        machine.evict(0);
    };
    race(Machine::new(1, 2).that_looks(), evict, merged_and_stored_to, the_store_is_there);
}

#[test]
fn a_store_to_a_page_that_ksm_has_replaced_is_not_lost() {
    let lost = "the store was lost";
    let mutants = [(Mutant::ProtectionTrusted, lost), (Mutant::MergedAgain, lost)];
    holds_and_catches(merged_while_paged_out, &mutants);
    holds_and_catches(merged_while_clean, &mutants);
}

/// The program stores to a page that is paged out, and takes it away.
fn taken_away() {
    let other = |machine: &Machine| {
        machine.store(0, 7);
        machine.take_away(0);
    };
    let at_the_end = |machine: &Machine| {
        let found = machine.try_load(0);
        assert!(matches!(found, None | Some(7)), "the load finds older bytes: {found:?}");
        assert_eq!(machine.try_load(0), found, "the next load finds something else");
        machine.forget_all();
    };
    race(Machine::new(1, 2).that_looks(), |machine| machine.page_out(0, InSlot), other, at_the_end);
}

#[test]
fn a_page_that_was_taken_away_is_an_error_or_has_its_bytes() {
    holds_and_catches(taken_away, &[(Mutant::LossForgotten, "the load finds older bytes")]);
}

/// KSM has merged a page, as the program has asked it to, and comes to another one that is evicted
/// with it.
fn merged_beside_another() {
    let machine = Machine::new(2, 4).that_looks().that_merges_an_area();
    machine.page_out(0, InSlot);
    machine.page_out(1, InSlot);
    assert_eq!([machine.load(0), machine.load(1)], [1, 2]);
    machine.merge(0);
    let other = |machine: &Machine| {
        machine.merge(1);
        machine.store(1, 7);
    };
    let at_the_end = |machine: &Machine| {
        assert_eq!(machine.load(1), 7, "the store was lost");
        machine.forget_all();
    };
    race(machine, |machine| machine.evict_all(&[0, 1]), other, at_the_end);
}

#[test]
fn ksm_that_was_seen_at_work_loses_no_store() {
    let lost = "the store was lost";
    let mutants = [(Mutant::ProtectionTrusted, lost), (Mutant::MergedAgain, lost)];
    holds_and_catches(merged_beside_another, &mutants);
}

/// The program seals a page that is paged out.
fn sealed() {
    let at_the_end = |machine: &Machine| assert_eq!(machine.load(0), 1, "the page has other bytes");
    let page_out = |machine: &Machine| {
        machine.page_out(0, InSlot);
        assert_eq!(machine.load(0), 1);
        machine.evict(0);
    };
    race(Machine::new(1, 2).that_looks(), page_out, |machine| machine.seal(0), at_the_end);
}

#[test]
fn a_page_that_the_kernel_keeps_stays_in_the_index() {
    let unknown = "is in memory, and the index does not have it";
    holds_and_catches(sealed, &[(Mutant::SealedLeaves, unknown)]);
}

/// The program replaces a page that is paged out.
fn replaced() {
    let at_the_end = |machine: &Machine| {
        machine.page_out(0, InSlot);
        assert!(machine.is_foreign(0, 9), "a page of another mapping was taken away");
    };
    let other = |machine: &Machine| machine.replace(0, 9);
    race(Machine::new(1, 2).that_looks(), |machine| machine.page_out(0, InSlot), other, at_the_end);
}

#[test]
fn a_page_that_cannot_be_protected_is_not_taken_away() {
    holds_and_catches(replaced, &[(Mutant::ProtectionTrusted, "was taken away")]);
}

/// A page that is stored to is protected between any two steps.
fn protected_again() {
    let other = |machine: &Machine| {
        machine.store(0, 7);
        machine.protect_again(0);
        machine.store(0, 8);
    };
    let at_the_end = |machine: &Machine| {
        assert_eq!(machine.load(0), 8, "the store was lost");
        machine.forget_all();
    };
    race(Machine::new(1, 2).that_looks(), |machine| machine.page_out(0, InSlot), other, at_the_end);
}

#[test]
fn a_page_that_is_protected_whatever_its_state_can_be_stored_to() {
    holds_and_catches(protected_again, &[(Mutant::ProtectedForGood, "page 0 stays protected")]);
}
