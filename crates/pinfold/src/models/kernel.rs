//! Own memory against those who change the page table and do not ask (`space/anon/trust.rs`): KSM,
//! which ends protections, and system calls of the program's own, which take pages away.
//!
//! They act between any two steps of a page-out, of an eviction, and of a store. The machine is that
//! of `swapped.rs`.

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
