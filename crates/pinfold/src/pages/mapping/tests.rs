//! The numbers of files.

use std::sync::Arc;

use crate::error::Cause;
use crate::source::Memory;
use crate::{Cache, File, Options, Result};

fn attach(cache: &Cache, byte: u8) -> Result<File> {
    cache.attach("file", Arc::new(Memory::new(vec![byte; 64 << 10])))
}

fn check(file: &File, byte: u8) {
    let mut buf = vec![0; 64 << 10];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), buf.len());
    assert!(buf.iter().all(|&read| read == byte));
}

/// A cache may have any number of files in its life; free numbers are reused.
#[test]
fn a_cache_that_had_four_billion_files_opens_another() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let first = attach(&cache, 1).unwrap();
    first.handle().core.nodes.age(u64::from(u32::MAX) - 2);
    for byte in 2..6 {
        let file = attach(&cache, byte).unwrap();
        check(&file, byte);
        assert_eq!(file.handle().mapping.id, 1, "a number that is free is given again");
    }
    check(&first, 1);
}

#[test]
fn more_files_at_once_than_can_be_numbered_are_an_error() {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let first = attach(&cache, 1).unwrap();
    first.handle().core.mappings.table.lock().ids_end = 2;
    let second = attach(&cache, 2).unwrap();
    let error = attach(&cache, 3).unwrap_err();
    assert!(matches!(error.cause(), Cause::TooManyFiles { most: 2, .. }), "{error:?}");
    assert_eq!(error.to_string(), "cannot open file: 2 files are cached, and can be no more");
    drop(second);
    check(&attach(&cache, 3).unwrap(), 3);
    check(&first, 1);
}
