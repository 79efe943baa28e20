//! Writes against a sync: the shipped states of folios (`pages/dirt.rs`), and the shipped change.

use std::sync::atomic::Ordering;

use super::writer::write_word;
use super::{Model, RACE, holds_and_catches, race_to};
use crate::base::mutant::Mutant;
use crate::frames::copy_still;
use crate::index::PAGES_END;
use crate::pages::dirt;

/// Gives what is dirty to the source, which makes it durable.
fn sync(model: &Model) {
    let (core, mapping) = (&*model.core, &*model.files[0].mapping);
    let begun = dirt::begin(core, mapping, 0..PAGES_END, (1, 1)).expect("room for a reference");
    let mut word = [0; 8];
    for dirt::Begun { held, .. } in &begun {
        // SAFETY: the page's first bytes, which do not change under the reference.
        unsafe { copy_still(word.as_mut_ptr(), held.address(mapping), 8) };
        model.sources[0].durable.store(super::word(&word), Ordering::Relaxed);
    }
    drop(begun);
    dirt::clean(core, mapping);
}

fn write(model: &Model) {
    write_word(model, 0, 2);
}

/// Afterwards the page is durable, or dirty.
fn written_and_synced() {
    let model = Model::new(3, 0);
    model.check(0, 0, 1);
    write_word(&model, 0, 1);
    race_to(&model, write, sync);
    let mapping = &model.files[0].mapping;
    let is_clean = mapping.change().writer(&model.core.nodes).is_clean(0);
    let durable = model.sources[0].durable.load(Ordering::Relaxed);
    assert!(durable == 2 || !is_clean, "clean, and not durable");
    let unsynced = mapping.written.unsynced_pages();
    assert_eq!(unsynced, u64::from(!is_clean), "pages are counted wrongly");
    model.ends();
    assert_eq!(mapping.written.unsynced_pages(), 0, "pages that are gone are counted");
}

#[test]
fn what_is_clean_is_durable() {
    let mutants = [
        (Mutant::FreezeAnyCount, RACE),
        (Mutant::DirtUnmarked, "clean, and not durable"),
        (Mutant::RedirtLost, "clean, and not durable"),
    ];
    holds_and_catches(written_and_synced, &mutants);
}
