//! A file without handles loses its last page while a thread opens it again: that thread gets the
//! mapping that the table has, and a mapping without handles is removed in the end.

use std::path::PathBuf;
use std::sync::Arc;

use super::{Model, PAGE, holds_and_catches, race, word};
use crate::base::mutant::Mutant;
use crate::pages::freeze;
use crate::pages::handle::Handle;
use crate::source::{Backing, FileIdentity, FileKey};

fn open(model: &Model) -> Handle {
    let core = &model.core;
    let key = FileKey::Object("model".to_owned());
    let identity = FileIdentity { key, version: None, contents: None };
    let backing = Backing::new(model.sources[0].clone(), core.engine.clone());
    let path = PathBuf::from("again");
    let opened = core.mappings.open(&core.nodes, Some(identity), path, backing, 4 * PAGE);
    let (mapping, _) = opened.expect("no other version is open");
    Handle::new(core.clone(), mapping, 0)
}

/// Reads the first page, and closes the file.
fn read_and_close(handle: &Handle, wanted: u64) {
    let mut buf = [0; 8];
    assert_eq!(handle.read_at(&mut buf, 0).expect("the source does not fail"), 8);
    assert_eq!(word(&buf), wanted, "wrong bytes");
    let closed = handle.core.mappings.drop_handle(&handle.mapping, true).expect("it was tried");
    assert!(!closed.for_good, "it can be opened again");
    handle.core.mappings.retire(&handle.mapping);
}

fn reopen() {
    let model = Model::new(1, 0);
    read_and_close(&open(&model), model.sources[0].word(0));
    let open_again = |model: &Model| {
        let handle = open(model);
        let listed = model.core.mappings.get(handle.mapping.id).expect("an open file is listed");
        assert!(Arc::ptr_eq(&listed, &handle.mapping), "an open file was given up");
        read_and_close(&handle, model.sources[0].word(0));
        freeze::drop_clean(&model.core, &handle.mapping, 0..1);
        model.core.mappings.retire(&handle.mapping);
        assert_eq!(model.core.mappings.all().len(), 2, "a file was not given up");
    };
    race(&model, Model::evict, open_again);
}

#[test]
fn a_file_that_is_opened_again_is_not_given_up() {
    holds_and_catches(reopen, &[(Mutant::RetireUnchecked, "an open file")]);
}
