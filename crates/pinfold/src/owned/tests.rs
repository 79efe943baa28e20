//! What owned bytes keep.

use std::sync::Arc;

use super::OwnedBytes;
use crate::mutant::{self, Mutant};
use crate::source::Memory;
use crate::{Cache, ErrorKind, Options};

const MIB: u64 = 1 << 20;

/// How many of 40 are in place that have a page each, of a file that was read in order.
fn in_place() -> usize {
    let cache = Cache::new(Options::new(16 * MIB)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 10 << 20]))).unwrap();
    let mut buf = vec![0; 64 << 10];
    for at in (0..10 * MIB).step_by(buf.len()) {
        file.read_at(&mut buf, at).unwrap();
    }
    let folios = file.handle().mapping.change().folios();
    assert!(folios < 100, "{folios}: they are too small for the test");
    let kept: Vec<OwnedBytes> =
        (0..40).map(|n| file.bytes(n * MIB / 4 + 10..n * MIB / 4 + 4000).unwrap()).collect();
    assert!(kept.iter().all(|bytes| bytes.iter().all(|&byte| byte == 7)));
    kept.iter().filter(|bytes| format!("{bytes:?}").contains("in place")).count()
}

#[test]
fn a_few_bytes_do_not_keep_a_large_folio() {
    // A 20th of the cache is three folios of 256 KiB.
    let kept = in_place();
    assert!((1..=10).contains(&kept), "{kept}");
    assert_eq!(mutant::with(Some(Mutant::KeepBlindly), in_place), 40, "the mutant does nothing");
}

/// What the error says is held, once copies have all memory; and what they have at least.
fn held() -> (u64, u64) {
    let mut options = Options::new(MIB);
    options.patience = std::time::Duration::from_millis(10);
    let cache = Cache::new(options).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 10 << 20]))).unwrap();
    let mut kept = Vec::new();
    // Ends: there is no memory at last.
    let error = loop {
        let at = kept.len() as u64 * 10_000 + 100;
        match file.bytes(at..at + 50_000) {
            Ok(bytes) => kept.push(bytes),
            Err(error) => break error,
        }
    };
    let ErrorKind::NoMemory { held_bytes, .. } = *error.kind() else { panic!("{error}") };
    (held_bytes, kept.len() as u64 * 50_000)
}

#[test]
fn copies_count_as_held() {
    let (said, least) = held();
    assert!(said >= least && least > 400_000, "{said}, {least}");
    let (said, least) = mutant::with(Some(Mutant::CopyUncounted), held);
    assert!(said < least, "the mutant does nothing: {said}, {least}");
}
