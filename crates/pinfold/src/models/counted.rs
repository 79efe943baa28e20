//! The counted look-up: who gets a reference has the page that he asked for, and keeps it.

use super::{Model, holds_and_catches, race};
use crate::flaw::Flaw;

/// A page is read under a reference while it is evicted and its frame, the only one, filled with a
/// page of another file.
fn reclaim() {
    let model = Model::new(1, 0);
    model.check(0, 0, 1);
    let reuse = |model: &Model| {
        model.evict();
        if model.core.frames.free_frames() > 0 {
            model.check(1, 0, 1);
        }
    };
    let read = |model: &Model| {
        let file = &model.files[0];
        let Some(held) = model.core.hold(&file.mapping, 0) else { return };
        if held.frame().is_changing() {
            return;
        }
        let mut buf = [0; 8];
        let copied = file.copy_held(&held, &mut buf, 0);
        assert_eq!(copied, 8);
        assert_eq!(super::word(&buf), model.sources[0].word(0), "wrong bytes");
    };
    race(&model, reuse, read);
}

#[test]
fn a_counted_reference_is_to_its_page_and_keeps_it() {
    let flaws = [
        (Flaw::CountedBlindly, "wrong bytes"),
        (Flaw::FreezeAnyCount, "Concurrent atomic store and `unsync_load`"),
    ];
    holds_and_catches(reclaim, &flaws);
}
