//! Writes against a sync: the shipped states of folios (`pages/dirt.rs`), and the shipped change. And
//! syncs of several threads: their turns (`pages/written.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::writer::write_word;
use super::{Model, RACE, holds_and_catches, holds_and_catches_within, race_to};
use crate::base::mutant::Mutant;
use crate::frames::copy_still;
use crate::index::PAGES_END;
use crate::pages::dirt;
use crate::pages::written::WriteState;

/// Gives what is dirty to the source, which makes it durable.
fn sync(model: &Model) {
    let (core, mapping) = (&*model.core, &*model.files[0].mapping);
    let begun = dirt::begin(core, mapping, 0..PAGES_END, (1, 1)).expect("room for a reference");
    let mut word = [0; 8];
    for dirt::BegunWrite { held, .. } in &begun {
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

/// A file that threads write to and sync.
struct Turns {
    state: WriteState,
    written: AtomicU64,
    durable: AtomicU64,
}

impl Turns {
    fn write_and_sync(&self, succeeds: bool) {
        let own = self.written.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(mut turn) = self.state.turn_to_sync(true) {
            let mut given = self.written.load(Ordering::Relaxed);
            if turn.begins_again() {
                given = self.written.load(Ordering::Relaxed);
            }
            if succeeds {
                self.durable.store(given, Ordering::Relaxed);
            }
            turn.ends(true, succeeds, true);
            if !succeeds {
                return;
            }
        }
        assert!(self.durable.load(Ordering::Relaxed) >= own, "synced, and not durable");
    }
}

/// Three threads: the first has the file for itself, or syncs; the last one's sync may fail.
fn synced_by_three(alone: bool, last_succeeds: bool) {
    let (state, written, durable) = (WriteState::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let turns = Arc::new(Turns { state, written, durable });
    let (second, third) = (turns.clone(), turns.clone());
    let threads = [
        loom::thread::spawn(move || second.write_and_sync(true)),
        loom::thread::spawn(move || third.write_and_sync(last_succeeds)),
    ];
    if alone {
        drop(turns.state.turn());
    } else {
        turns.write_and_sync(true);
    }
    for thread in threads {
        thread.join().expect("the other thread");
    }
}

#[test]
fn whom_a_sync_will_do_goes_on_and_one_more() {
    let mutants = [
        (Mutant::NextTurnUnwoken, "deadlock"),
        (Mutant::OneSharesTurn, "deadlock"),
        (Mutant::SyncOfOthers, "synced, and not durable"),
    ];
    holds_and_catches_within(2, || synced_by_three(false, true), &mutants);
    holds_and_catches_within(2, || synced_by_three(false, false), &mutants[..1]);
    holds_and_catches_within(2, || synced_by_three(true, true), &mutants[..1]);
}
