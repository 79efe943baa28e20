//! The short read: what it returns is bytes of the page that it was asked for, of one moment.

use super::{Model, holds_and_catches, race, word};
use crate::flaw::Flaw;

/// A short read, which may fail, of the page at the start of the first file.
fn read_shortly(model: &Model) {
    let mut buf = [0; 8];
    if model.short(0, &mut buf, 0) {
        assert_eq!(word(&buf), model.sources[0].word(0), "wrong bytes");
    }
}

/// A page is read while it is evicted and its frame filled with a page of another file. There is
/// one frame, so that it must be the same.
fn reuse() {
    let model = Model::new(1, 0);
    model.check(0, 0, 1);
    let reuse = |model: &Model| {
        model.evict();
        if model.core.frames.free_frames() > 0 {
            model.check(1, 0, 1);
        }
    };
    race(&model, reuse, read_shortly);
}

#[test]
fn a_short_read_returns_bytes_of_its_page() {
    let flaws = [
        (Flaw::NoLastLook, "wrong bytes"),
        (Flaw::LastLookUnfenced, "wrong bytes"),
        (Flaw::AnyIdentity, "wrong bytes"),
        (Flaw::FreezeStaysEven, "wrong bytes"),
    ];
    holds_and_catches(reuse, &flaws);
}
