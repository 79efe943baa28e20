//! A file changes its length: bytes beyond its end are never returned.

use std::sync::atomic::Ordering;

use super::{Model, PAGE, holds_and_catches, race, word};
use crate::base::mutant::Mutant;
use crate::index::Mark;
use crate::pages::freeze;

/// Sets the state of the source, as another program would change it.
fn becomes(model: &Model, generation: u64, len_bytes: u64) {
    model.sources[0].generation.store(generation, Ordering::Relaxed);
    model.sources[0].len_bytes.store(len_bytes, Ordering::Relaxed);
}

/// The cache notices the change: `File::invalidate`.
fn invalidate(model: &Model, pages: std::ops::Range<u64>) {
    let mapping = &model.files[0].mapping;
    let resizing = mapping.resizing.lock();
    let len_bytes = model.sources[0].len_bytes.load(Ordering::Relaxed);
    let gone = freeze::resize(&model.core, mapping, len_bytes);
    drop(resizing);
    gone.let_go(&model.core);
    freeze::drop_clean(&model.core, mapping, pages);
}

/// The length of the file that the cache knows.
fn seen(model: &Model) -> u64 {
    model.files[0].mapping.len_bytes()
}

/// The file is cut to four bytes and read again. A short read of eight returns the old bytes, or
/// fails; it must fail if the new length was seen before.
fn cut() {
    let cut = |model: &Model| {
        becomes(model, 1, 4);
        invalidate(model, 0..1);
        model.files[0].read_at(&mut [0; 8], 0).expect("no failure");
    };
    let read = |model: &Model| {
        let (seen, mut buf) = (seen(model), [0; 8]);
        if model.short(0, &mut buf, 0) {
            assert_eq!(word(&buf) >> 32, 1000, "bytes past the end");
            assert_ne!(seen, 4, "more than there is");
        }
    };
    race(&Model::only(), cut, read);
}

#[test]
fn a_short_read_of_a_file_that_is_cut() {
    let mutants = [
        (Mutant::LandUnclipped, "bytes past the end"),
        (Mutant::LengthFirst, "more than there is"),
    ];
    holds_and_catches(cut, &mutants);
}

/// A file of a page and four bytes, whose last page is cached.
fn ending() -> std::sync::Arc<Model> {
    let model = Model::new(2, 0);
    becomes(&model, 0, PAGE + 4);
    model.files[0].mapping.set_len_bytes(PAGE + 4);
    model.files[0].read_at(&mut [0; 8], PAGE).expect("no failure");
    model
}

/// The file grows, and another page of it is invalidated.
fn grow(model: &Model) {
    becomes(model, 1, 2 * PAGE);
    invalidate(model, 0..1);
}

/// A short read returns the new bytes, or fails.
fn grown_short() {
    let read = |model: &Model| {
        let mut buf = [0; 8];
        if model.short(0, &mut buf, PAGE) {
            assert_eq!(word(&buf) >> 32, 1101, "bytes past the old end");
        }
    };
    race(&ending(), grow, read);
}

/// A read under a reference returns the new bytes, or those before the old end; the new ones if the
/// new length was seen before.
fn grown_counted() {
    let read = |model: &Model| {
        let (seen, mut buf) = (seen(model), [0; 8]);
        if model.files[0].long(&mut buf, PAGE, true).expect("no failure") == 8 {
            assert_eq!(word(&buf) >> 32, 1101, "bytes past the old end");
        } else {
            assert_eq!(seen, PAGE + 4, "less than there is");
        }
    };
    race(&ending(), grow, read);
}

#[test]
fn a_short_read_of_a_file_that_grows() {
    holds_and_catches(grown_short, &[(Mutant::LandUnclipped, "bytes past the old end")]);
}

#[test]
fn a_counted_read_of_a_file_that_grows() {
    let mutants = [
        (Mutant::LandUnclipped, "bytes past the old end"),
        (Mutant::LengthFirst, "less than there is"),
    ];
    holds_and_catches(grown_counted, &mutants);
}

/// The file is cut while its page becomes dirty. Once it is dirty, it stays, and so does the
/// length.
fn cut_and_written() {
    let cut = |model: &Model| {
        becomes(model, 1, 4);
        invalidate(model, 0..1);
    };
    let write = |model: &Model| {
        let mapping = &model.files[0].mapping;
        let marked = mapping.change().writer(&model.core.nodes).set_mark(0, Mark::Dirty);
        if marked.is_some() {
            let left = (mapping.change().head(0).is_some(), seen(model));
            assert_eq!(left, (true, 4 * PAGE), "a dirty page is lost");
        }
    };
    race(&Model::only(), cut, write);
}

#[test]
fn a_file_that_is_cut_while_it_is_written_to() {
    holds_and_catches(cut_and_written, &[(Mutant::LoseDirty, "a dirty page is lost")]);
}
