//! Owned bytes, through the public interface: what they are, what they keep, and what is refused.

use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

#[cfg(feature = "map")]
use pinfold::Space;
use pinfold::source::Memory;
use pinfold::{Cache, ErrorKind, File, Hint, OwnedBytes};
use pinfold_testing::told::{number_after, number_before};
use pinfold_testing::waker::Counted;

use crate::alone::alone;
use crate::child::in_a_child;
use crate::patterned::{MIB, PAGE, cache_of, file};

fn is_copy(bytes: &OwnedBytes) -> bool {
    format!("{bytes:?}").contains("a copy")
}

/// Drops what is cached of the file: then what is not free are copies, and the cache's own tables.
fn kept_bytes(cache: &Cache, file: &File) -> u64 {
    file.invalidate(0..i64::MAX as u64).unwrap();
    cache.stats().resident_bytes
}

fn goes_anywhere<T: Send + Sync + Clone + std::panic::UnwindSafe + 'static>() {}

fn is_sent<T: Send>(future: T) -> T {
    future
}

#[test]
fn they_go_anywhere() {
    goes_anywhere::<OwnedBytes>();
    let cache = cache_of(8 * MIB);
    let (file, _) = file(&cache, 9);
    drop(is_sent(file.bytes_async(..)));
}

#[test]
fn any_range_of_a_file_has_its_bytes_while_everything_is_evicted() {
    const LENGTH: u64 = 24 * MIB + 777;
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, LENGTH);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut kept: Vec<(u64, OwnedBytes)> = Vec::new();
    let (mut copies, mut in_place, mut long) = (0, 0, 0);
    for turn in 0..600 {
        let most = [1, 100, PAGE, 20 * PAGE, 300 * PAGE, 5 * MIB][turn % 6];
        let len = rng.u64(0..=most).min(LENGTH);
        let start = match turn % 7 {
            0 => LENGTH - len,
            1 => rng.u64(0..(LENGTH - len) / PAGE) * PAGE,
            _ => rng.u64(0..=LENGTH - len),
        };
        let bytes = file.bytes(start..start + len).unwrap();
        assert_eq!(bytes.len() as u64, len);
        pattern.check(start, &bytes).unwrap();
        *(if is_copy(&bytes) { &mut copies } else { &mut in_place }) += 1;
        long += u64::from(len > 2 * MIB);
        kept.push((start, bytes));
        if turn % 5 == 0 {
            file.invalidate(start..start + len).unwrap();
        }
        // Those that stay have what they had.
        // Ends: one half at a time goes, and at last the longest one.
        while kept.iter().map(|(_, bytes)| bytes.len() as u64 + PAGE).sum::<u64>() > 4 * MIB {
            kept.retain(|_| rng.bool());
        }
        for (start, bytes) in &kept {
            pattern.check(*start, bytes).unwrap();
        }
    }
    assert!(copies > 50 && in_place > 50 && long > 10, "{copies}, {in_place}, {long}");
    drop(kept);
    assert_eq!(kept_bytes(&cache, &file), 0, "all is free again");
}

#[test]
fn where_they_begin_and_end() {
    let cache = cache_of(8 * MIB);
    let (file, pattern) = file(&cache, 10_000);
    assert!(file.bytes(5..5).unwrap().is_empty());
    assert!(file.bytes(10_000..10_000).unwrap().is_empty());
    assert_eq!(cache.stats().misses, 0, "nothing was read for nothing");
    assert_eq!(file.bytes(..).unwrap().len(), 10_000);
    pattern.check(9_000, &file.bytes(9_000..).unwrap()).unwrap();
    pattern.check(4_000, &file.bytes(4_000..=4_200).unwrap()).unwrap();
    assert_eq!(file.bytes(9_999..=9_999).unwrap().len(), 1);
    for range in [9_999..10_001, 10_001..10_001, 0..i64::MAX as u64] {
        let error = file.bytes(range.clone()).unwrap_err();
        let text =
            format!("cannot read bytes {}..{} of file: it has 10000 bytes", range.start, range.end);
        assert_eq!(error.to_string(), text);
        assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error:?}");
        assert_eq!(error.io_kind(), std::io::ErrorKind::UnexpectedEof);
    }
    #[expect(clippy::reversed_empty_ranges, reason = "bad input is what this is about")]
    let reversed = [9..3, u64::MAX..0];
    for range in reversed {
        let error = file.bytes(range).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    }
    for range in [0..u64::MAX, 0..1 << 63] {
        let error = file.bytes(range).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    }
    assert!(file.bytes(0..=u64::MAX).is_err());
}

#[test]
fn a_clone_keeps_them_when_all_else_is_gone() {
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, 8 * MIB);
    // A page, across two folios, and longer than a folio can be.
    let ranges = [0..PAGE, PAGE - 9..PAGE + 9, 100..3 * MIB + 100];
    let bytes = ranges.clone().map(|range| file.bytes(range).unwrap());
    assert!(is_copy(&bytes[2]));
    let clones = bytes.clone();
    drop((bytes, file, cache));
    std::thread::spawn(move || {
        for (range, bytes) in ranges.into_iter().zip(clones) {
            assert_eq!(bytes.len() as u64, range.end - range.start);
            pattern.check(range.start, &bytes).unwrap();
        }
    })
    .join()
    .unwrap();
}

#[test]
fn copies_are_of_the_budget_and_an_error_says_so() {
    let cache = cache_of(32 * MIB);
    let (file, pattern) = file(&cache, 40 * MIB);
    let error = file.bytes(..).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    let wanted_bytes = number_after(&error, "no memory for ");
    let held_bytes = number_before(&error, " held by readers");
    assert_eq!((wanted_bytes, held_bytes), (40 * MIB, 0), "at once");
    // Small ones, and long ones.
    for (len, takes) in [(100_000, 25 * PAGE), (3 * MIB, 3 * MIB)] {
        let mut kept = Vec::new();
        let error = loop {
            let at = 1 + kept.len() as u64 * 10_000;
            match file.bytes(at..at + len) {
                Ok(bytes) => kept.push((at, bytes)),
                Err(error) => break error,
            }
        };
        let copies = kept.iter().filter(|(_, bytes)| is_copy(bytes)).count() as u64;
        assert!(copies * takes > 20 * MIB, "{copies} of {len}");
        assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
        let held_bytes = number_before(&error, " held by readers");
        assert!(held_bytes >= copies * takes, "{held_bytes} of {copies}: {error}");
        assert_eq!(number_after(&error, "no memory for "), len, "{error}");
        assert!(kept_bytes(&cache, &file) >= copies * takes);
        // Reads of the file go on.
        file.read_at(&mut [0; 9000], 5 * MIB).unwrap();
        for (at, bytes) in &kept {
            pattern.check(*at, bytes).unwrap();
        }
        drop(kept);
        assert_eq!(kept_bytes(&cache, &file), 0);
        pattern.check(9, &file.bytes(9..9 + len).unwrap()).unwrap();
    }
}

/// Bytes of the process's memory.
fn memory_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * PAGE
}

#[test]
fn memory_for_copies_is_the_budgets() {
    let ended = alone(module_path!(), "memory_for_copies_is_the_budgets", || {
        let cache = cache_of(64 * MIB);
        let source = Arc::new(Memory::new(vec![7; 96 << 20]));
        let file = cache.attach("file", source).unwrap();
        let mut buf = vec![0; 1 << 20];
        for at in (0..96 * MIB).step_by(1 << 20) {
            file.read_at(&mut buf, at).unwrap();
        }
        let before = memory_bytes();
        let kept: Vec<_> = [5, 13, 20].map(|len| file.bytes(1..len * MIB).unwrap()).into();
        assert!(kept.iter().all(|bytes| bytes.iter().all(|&byte| byte == 7)));
        let with_copies = memory_bytes();
        assert!(with_copies < before + 8 * MIB, "{before} without, {with_copies} with 38 MiB");
        drop(kept);
        for at in (0..96 * MIB).step_by(1 << 20) {
            file.read_at(&mut buf, at).unwrap();
        }
        let after = memory_bytes();
        assert!(after < before + 8 * MIB, "{before} before, {after} after");
    });
    assert_eq!(ended, None);
}

/// One page of each 2 MiB is held, so no run can be whole: pages that are not adjacent do.
#[test]
fn a_long_copy_needs_no_adjacent_memory() {
    let cache = cache_of(32 * MIB);
    let (file, pattern) = file(&cache, 40 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    let mut buf = [0; 64];
    for page in 0..32 * MIB / PAGE {
        file.read_at(&mut buf, page * PAGE).unwrap();
    }
    let held: Vec<_> =
        (0..32 * MIB / PAGE).step_by(100).filter_map(|n| file.try_get(n).unwrap()).collect();
    assert!(held.len() > 64, "{}", held.len());
    for len in [700_000, 2 * MIB, 9 * MIB] {
        let kept = [77, 20 * MIB].map(|at| (at, file.bytes(at..at + len).unwrap()));
        for (at, bytes) in &kept {
            pattern.check(*at, bytes).unwrap();
        }
    }
    drop(held);
    assert_eq!(kept_bytes(&cache, &file), 0);
    // And what was given back to the system is memory as before.
    for at in (0..40 * MIB).step_by(MIB as usize) {
        pattern.check(at, &file.bytes(at..at + MIB).unwrap()).unwrap();
    }
}

#[test]
fn a_file_that_is_cut_short_gives_an_error_and_keeps_what_was_given() {
    let mut on_disk = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::io::Write::write_all(&mut on_disk, &vec![1; 100_000]).unwrap();
    let cache = cache_of(8 * MIB);
    let file = cache.open(on_disk.path()).unwrap();
    let kept = [file.bytes(0..4000).unwrap(), file.bytes(3000..60_000).unwrap()];
    file.invalidate(0..100_000).unwrap();
    on_disk.as_file().set_len(50_000).unwrap();
    on_disk.as_file().write_all_at(&vec![2; 50_000], 0).unwrap();
    let error = file.bytes(3000..60_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated, "{error:?}");
    file.invalidate(0..0).unwrap();
    let error = file.bytes(3000..60_000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error:?}");
    file.invalidate(0..100_000).unwrap();
    assert!(file.bytes(3000..50_000).unwrap().iter().all(|&byte| byte == 2));
    assert!(kept.iter().all(|bytes| bytes.iter().all(|&byte| byte == 1)));
}

#[cfg(feature = "map")]
#[test]
fn what_a_map_shows_is_copied() {
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, MIB);
    let space = match Space::new(&cache, 0) {
        Ok(space) => space,
        Err(why) => return println!("skipped: {why}"),
    };
    let map = space.map_file(&file, 0..MIB).unwrap();
    // SAFETY: nobody changes the file.
    pattern.check(0, unsafe { map.as_slice() }).unwrap();
    assert!(file.mirrored_bytes() > 0, "the test is of nothing");
    let bytes = file.bytes(10..100).unwrap();
    assert!(is_copy(&bytes), "a forked child has no mirror");
    drop((map, space, file, cache));
    pattern.check(10, &bytes).unwrap();
}

#[test]
fn a_forked_child_has_them_and_gives_them_back() {
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, 8 * MIB);
    let ranges = [0..PAGE, PAGE - 9..PAGE + 9, 100..3 * MIB + 100];
    let bytes = ranges.clone().map(|range| file.bytes(range).unwrap());
    in_a_child(|| {
        for (range, bytes) in ranges.iter().zip(&bytes) {
            pattern.check(range.start, bytes).map_err(|wrong| wrong.to_string()).unwrap();
            drop(bytes.clone());
        }
        // In place, of what was cached; a copy would take memory.
        assert_eq!(file.bytes(0..10).unwrap().len(), 10);
        assert!(file.bytes(5 * MIB..6 * MIB).unwrap_err().kind() == ErrorKind::Forked);
        drop(bytes.clone());
    });
    for (range, bytes) in ranges.into_iter().zip(&bytes) {
        pattern.check(range.start, bytes).unwrap();
    }
    drop(bytes);
    assert_eq!(kept_bytes(&cache, &file), 0);
}

#[tokio::test]
async fn futures_get_the_same() {
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, 24 * MIB);
    for range in [0..0, 5..PAGE, PAGE - 9..PAGE + 9, MIB..2 * MIB, 100..4 * MIB, 23 * MIB..24 * MIB]
    {
        let bytes = file.bytes_async(range.clone()).await.unwrap();
        assert_eq!(bytes.len() as u64, range.end - range.start);
        pattern.check(range.start, &bytes).unwrap();
    }
    let error = file.bytes_async(24 * MIB - 1..=24 * MIB).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error:?}");
    let error = file.bytes_async(..).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    assert_eq!(kept_bytes(&cache, &file), 0);
}

/// A future that finds no memory for its copy waits for it, and leaves the queue when it is
/// dropped.
#[test]
fn a_future_waits_for_memory_for_a_copy() {
    let cache = cache_of(MIB);
    let (file, pattern) = file(&cache, 4 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    let pinned = file.pin(0..900 << 10).unwrap();
    // Across two folios, so it is copied.
    let wanted = MIB + 10..MIB + 200_000;
    for dropped in [true, false] {
        let (woken, waker) = Counted::waker();
        let mut future = pin!(file.bytes_async(wanted.clone()));
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(&waker));
        // First for the first page; then for memory, again and again.
        for times in 1..5 {
            assert!(poll().is_pending());
            woken.wait_for(times);
        }
        if dropped {
            continue;
        }
        drop(pinned);
        // Ends: there is memory now.
        let bytes = loop {
            match poll() {
                Poll::Ready(bytes) => break bytes.unwrap(),
                Poll::Pending => std::thread::yield_now(),
            }
        };
        pattern.check(wanted.start, &bytes).unwrap();
        break;
    }
}

#[test]
fn threads_get_them_of_a_file_that_is_invalidated_all_the_time() {
    let cache = cache_of(8 * MIB);
    let (file, pattern) = file(&cache, 12 * MIB);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let file = file.clone();
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                for _ in 0..500 {
                    let len = rng.u64(1..300_000);
                    let start = rng.u64(0..12 * MIB - len);
                    if rng.u8(0..4) == 0 {
                        file.invalidate(start..start + len).unwrap();
                    }
                    let bytes = file.bytes(start..start + len).unwrap();
                    pattern.check(start, &bytes).unwrap();
                }
            });
        }
    });
    assert_eq!(kept_bytes(&cache, &file), 0);
}
