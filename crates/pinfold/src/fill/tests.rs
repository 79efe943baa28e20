//! Batches that are given up.

use std::sync::Arc;

use super::{For, prepare};
use crate::mutant::{self, Mutant};
use crate::source::Memory;
use crate::{Cache, ErrorKind, File, Options};

fn file() -> (Cache, File) {
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; 64 << 10]))).unwrap();
    (cache, file)
}

#[test]
fn a_batch_that_is_dropped_lands_with_an_error_for_all_who_wait() {
    let (cache, file) = file();
    let batch = prepare(file.handle(), 1, 7, For::Thread).unwrap();
    let folios = batch.folios() as u64;
    assert!(folios > 1, "pages 1 to 6 are no folio");
    assert_eq!(cache.stats().fills_in_flight, folios);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| file.read_at(&mut [0; 8], 2 * 4096));
        // Ends: the other thread has nothing else to do.
        while cache.stats().waits == 0 {
            std::thread::yield_now();
        }
        drop(batch);
        let error = waits.join().unwrap().unwrap_err();
        let ErrorKind::Read { offset: 4096, asked_bytes: 24_576, cause, .. } = error.kind() else {
            panic!("{error:?}")
        };
        assert_eq!(cause.to_string(), "the read was given up");
    });
    assert_eq!((cache.stats().fills_in_flight, cache.stats().resident_bytes), (0, 0));
    let mut buf = vec![0; 64 << 10];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), buf.len());
    assert!(buf.iter().all(|&byte| byte == 7));
}

#[test]
fn a_batch_that_is_forgotten_stays_on_its_way() {
    mutant::with(Some(Mutant::BatchForgotten), || {
        let (cache, file) = file();
        drop(prepare(file.handle(), 1, 7, For::Thread).unwrap());
        assert_ne!(cache.stats().fills_in_flight, 0, "the mutant does nothing");
    });
}
