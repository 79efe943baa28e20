//! What a mapping's pages are trusted for, and the numbers of files.

use std::sync::Arc;

use super::ReadUnder;
use crate::base::mutant::{self, Mutant};
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

/// Whether contents that were settled by fine times are settled before reads are direct no more,
/// and after; the file is closed then, or is not. `None`: it is not read directly here.
fn settled_by_fine_times(closed: bool) -> Option<[bool; 2]> {
    let on_disk = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(on_disk.path(), [7; 9000]).unwrap();
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.open(on_disk.path()).unwrap();
    if file.is_buffered() {
        return None;
    }
    check_first(&file);
    let mapping = file.handle().mapping.clone();
    let contents = mapping.backing.contents().unwrap().unwrap();
    let under = ReadUnder { contents, settled: true, by_fine_times: true, grown: false };
    mapping.set_read_under(under);
    let before = mapping.has_pages_of(Some(&contents));
    mapping.backing.refuse_direct();
    let kept = (!closed).then_some(file);
    let after = mapping.has_pages_of(Some(&contents));
    drop(kept);
    Some([before, after])
}

fn check_first(file: &File) {
    let mut buf = [0; 100];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 100);
    assert_eq!(buf, [7; 100]);
}

#[test]
fn fine_times_say_nothing_once_reads_are_not_direct() {
    for closed in [false, true] {
        let Some(settled) = settled_by_fine_times(closed) else {
            return println!("skipped: no direct reads here");
        };
        assert_eq!(settled, [true, false], "closed: {closed}");
        let stay = mutant::with(Some(Mutant::FineTimesStay), || settled_by_fine_times(closed));
        assert_eq!(stay, Some([true; 2]), "the mutant does nothing");
    }
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
