//! A file that gets another length: what lies behind its end is never given out as its bytes.

use std::sync::atomic::Ordering;

use super::{Model, PAGE, holds_and_catches, race, word};
use crate::flaw::Flaw;
use crate::freeze;

/// What the source is from now on, as somebody else makes it.
fn becomes(model: &Model, generation: u64, len_bytes: u64) {
    model.sources[0].generation.store(generation, Ordering::Relaxed);
    model.sources[0].len_bytes.store(len_bytes, Ordering::Relaxed);
}

/// What the source is now is noticed: `File::invalidate`.
fn invalidate(model: &Model, pages: std::ops::Range<u64>) {
    let mapping = &model.files[0].mapping;
    let resizing = mapping.resizing.lock();
    let len_bytes = model.sources[0].len_bytes.load(Ordering::Relaxed);
    freeze::resize(&model.core, mapping, len_bytes);
    drop(resizing);
    freeze::invalidate(&model.core, mapping, pages);
}

/// Cut to four bytes and read anew. A short read of eight gets the old ones, or none.
fn cut() {
    let model = Model::new(1, 0);
    model.check(0, 0, 1);
    let cut = |model: &Model| {
        becomes(model, 1, 4);
        invalidate(model, 0..1);
        assert_eq!(model.files[0].read_at(&mut [0; 8], 0).expect("no failure"), 4);
    };
    let read = |model: &Model| {
        let mut buf = [0; 8];
        if model.short(0, &mut buf, 0) {
            assert_eq!(word(&buf) >> 32, 1000, "bytes behind the end");
        }
    };
    race(&model, cut, read);
}

#[test]
fn a_short_read_of_a_file_that_is_cut() {
    holds_and_catches(cut, &[(Flaw::LengthFirst, "bytes behind the end")]);
}

/// A file of a page and four bytes, the last of which is cached.
fn ending() -> std::sync::Arc<Model> {
    let model = Model::new(2, 0);
    becomes(&model, 0, PAGE + 4);
    model.files[0].mapping.set_len_bytes(PAGE + 4);
    assert_eq!(model.files[0].read_at(&mut [0; 8], PAGE).expect("no failure"), 4);
    model
}

/// It grows, and another page of it is invalidated.
fn grow(model: &Model) {
    becomes(model, 1, 2 * PAGE);
    invalidate(model, 0..1);
}

/// A short read gets the new bytes or none.
fn grown_short() {
    let read = |model: &Model| {
        let mut buf = [0; 8];
        if model.short(0, &mut buf, PAGE) {
            assert_eq!(word(&buf) >> 32, 1101, "bytes behind the old end");
        }
    };
    race(&ending(), grow, read);
}

/// A read under a reference gets the new bytes, or those before the old end.
fn grown_counted() {
    let read = |model: &Model| {
        let mut buf = [0; 8];
        if model.files[0].long(&mut buf, PAGE).expect("no failure") == 8 {
            assert_eq!(word(&buf) >> 32, 1101, "bytes behind the old end");
        }
    };
    race(&ending(), grow, read);
}

#[test]
fn a_short_read_of_a_file_that_grows() {
    let reason = "bytes behind the old end";
    holds_and_catches(grown_short, &[(Flaw::GrowFirst, reason)]);
}

#[test]
fn a_counted_read_of_a_file_that_grows() {
    let reason = "bytes behind the old end";
    let flaws = [Flaw::GrowFirst, Flaw::HeldLengthBlindly];
    holds_and_catches(grown_counted, &flaws.map(|flaw| (flaw, reason)));
}
