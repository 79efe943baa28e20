//! The short read: what it returns is bytes of the page that it was asked for, of one moment.

use super::{Model, PAGE, holds_and_catches, race, word};
use crate::flaw::Flaw;
use crate::freeze;

/// A short read, which may fail, of the page at the start of the first file.
fn read_shortly(model: &Model) {
    let mut buf = [0; 8];
    if model.files[0].short(&model.files[0].core, &mut buf, 0).is_ok() {
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

/// The file is cut to four bytes, which is noticed as `File::invalidate` does it, and read anew: what
/// lies behind its end is never given out as its bytes.
fn cut() {
    let model = Model::new(1, 0);
    model.check(0, 0, 1);
    let cut = |model: &Model| {
        model.sources[0].generation.store(1, std::sync::atomic::Ordering::Relaxed);
        model.sources[0].len_bytes.store(4, std::sync::atomic::Ordering::Relaxed);
        model.files[0].mapping.set_len_bytes(4);
        freeze::invalidate(&model.core, &model.files[0].mapping, 0..1);
        assert_eq!(model.files[0].read_at(&mut [0; 8], 0).expect("no failure"), 4);
    };
    let read = |model: &Model| {
        let mut buf = [0; 8];
        if model.files[0].short(&model.files[0].core, &mut buf, 0).is_ok() {
            assert_eq!(word(&buf), 1000, "bytes behind the end");
        }
    };
    race(&model, cut, read);
}

#[test]
fn a_short_read_gives_nothing_behind_the_end() {
    holds_and_catches(cut, &[(Flaw::LengthFirst, "bytes behind the end")]);
}
