//! Pins, through the public interface: what they pin, what they promise, what they refuse, and how
//! long pins affect other memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use pinfold::source::{Memory, Source};
use pinfold::{Cache, ErrorKind, File, Hint, Options, PinnedRange};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::told::{number_after, number_before};

use crate::patterned::{MIB, PAGE, cache_of, file};

/// All its bytes, by its extents.
fn bytes_of(pinned: &PinnedRange) -> Vec<u8> {
    let mut bytes = Vec::new();
    for extent in pinned.extents() {
        // SAFETY: nothing writes to the files of these tests through the cache.
        bytes.extend_from_slice(unsafe { &*extent });
    }
    bytes
}

fn len(pinned: &PinnedRange) -> u64 {
    pinned.range().end - pinned.range().start
}

fn check(pinned: &PinnedRange, pattern: Pattern, range: Range<u64>) {
    assert_eq!(pinned.range(), range);
    let bytes = bytes_of(pinned);
    assert_eq!(bytes.len() as u64, len(pinned));
    pattern.check(range.start, &bytes).unwrap();
    let mut copied = vec![0; bytes.len()];
    pinned.copy_to(&mut copied, range.start).unwrap();
    assert!(copied == bytes);
}

fn pinned_bytes(cache: &Cache) -> u64 {
    cache.stats().pinned_bytes
}

// ---- what is pinned ----

#[test]
fn a_pinned_range_has_just_its_bytes_wherever_it_begins_and_ends() {
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, 3 * MIB + 777);
    let len = file.len();
    for range in
        [0..1, 0..len, 4095..4097, 5000..6000, MIB - 1..2 * MIB + 1, len - 1..len, 8192..8193]
    {
        let pinned = file.pin(range.clone()).unwrap();
        check(&pinned, pattern, range.clone());
        let pages = range.end.div_ceil(PAGE) - range.start / PAGE;
        assert_eq!(pinned_bytes(&cache), pages * PAGE, "{range:?}");
        drop(pinned);
        assert_eq!(pinned_bytes(&cache), 0);
    }
}

#[test]
fn pages_side_by_side_are_one_extent_whatever_folios_they_are_of() {
    let cache = cache_of(256 * MIB);
    let (file, pattern) = file(&cache, 8 * MIB);
    let whole = file.pin(0..8 * MIB).unwrap();
    assert!(whole.extents().count() <= 4, "folios of 2 MiB: {whole:?}");
    check(&whole, pattern, 0..8 * MIB);
    assert_eq!(whole.extents().map(|extent| extent.len() as u64).sum::<u64>(), 8 * MIB);
    drop(whole);
    file.split(0..2 * MIB);
    let pages = file.pin(100..64 * PAGE).unwrap();
    check(&pages, pattern, 100..64 * PAGE);
    assert!(pages.extents().count() < 64, "small folios that were moved side by side: {pages:?}");
}

#[test]
fn what_is_pinned_stays_while_all_else_is_evicted() {
    let cache = cache_of(8 * MIB);
    let (file, pattern) = file(&cache, 64 * MIB);
    let pinned: Vec<_> =
        (0..40).map(|n| file.pin(n * MIB + 5..n * MIB + 3 * PAGE).unwrap()).collect();
    let mut buf = vec![0; 100_000];
    for offset in (0..64 * MIB).step_by(buf.len()) {
        let got = file.read_at(&mut buf, offset).unwrap();
        pattern.check(offset, &buf[..got]).unwrap();
    }
    assert!(cache.stats().evictions > 100);
    for (n, pinned) in pinned.iter().enumerate() {
        let start = n as u64 * MIB;
        check(pinned, pattern, start + 5..start + 3 * PAGE);
    }
}

#[test]
fn a_page_can_be_pinned_often_and_each_pin_counts() {
    let cache = cache_of(4 * MIB);
    let (file, pattern) = file(&cache, 10 * PAGE);
    let pins: Vec<_> = (0..1000).map(|_| file.pin(PAGE..2 * PAGE).unwrap()).collect();
    assert_eq!(pinned_bytes(&cache), 1000 * PAGE);
    check(&pins[999], pattern, PAGE..2 * PAGE);
    drop(pins);
    assert_eq!(pinned_bytes(&cache), 0);
}

#[test]
fn a_pin_keeps_the_cache_and_goes_to_another_thread() {
    let cache = cache_of(4 * MIB);
    let (file, pattern) = file(&cache, MIB);
    let pinned = file.pin(10_000..500_000).unwrap();
    drop((file, cache));
    thread::spawn(move || check(&pinned, pattern, 10_000..500_000)).join().unwrap();
}

// ---- giving back in parts ----

#[test]
fn a_range_is_given_back_from_the_front_as_it_is_sent() {
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, 4 * MIB);
    let (start, end) = (1_000, 3 * MIB + 5);
    let mut pinned = file.pin(start..end).unwrap();
    let mut at = start;
    for bytes in [0, 1, 3_095, 1, 4_096, 100_000, MIB, 4_096, 12_345] {
        pinned.unpin_front(bytes).unwrap();
        at += bytes;
        check(&pinned, pattern, at..end);
        assert_eq!(pinned_bytes(&cache), (end.div_ceil(PAGE) - at / PAGE) * PAGE);
    }
    pinned.unpin_front(end - at).unwrap();
    assert!(pinned.range().is_empty());
    assert_eq!((pinned_bytes(&cache), pinned.extents().count()), (0, 0));
}

#[test]
fn a_range_can_be_cut_anywhere_and_the_parts_dropped_in_any_order() {
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, 2 * MIB + 100);
    let (start, end) = (5_000, 2 * MIB + 1);
    for at in [start, start + 1, 8_191, 8_192, 8_193, MIB, MIB + 1, end - 2, end - 1, end] {
        for first_goes_first in [true, false] {
            let mut front = file.pin(start..end).unwrap();
            let back = front.split_off(at).unwrap();
            check(&front, pattern, start..at);
            check(&back, pattern, at..end);
            if first_goes_first {
                drop(front);
                check(&back, pattern, at..end);
            } else {
                drop(back);
                check(&front, pattern, start..at);
            }
        }
        assert_eq!(pinned_bytes(&cache), 0, "cut at {at}");
    }
    // Nothing is left of them: all can be dropped, and its memory is free.
    file.invalidate(0..end).unwrap();
    assert_eq!(cache.stats().resident_bytes, 0);
}

#[test]
fn parts_are_given_back_by_two_threads_at_once() {
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, MIB);
    let (send, receive) = mpsc::channel::<PinnedRange>();
    let other = thread::spawn(move || {
        for mut part in receive {
            while !part.range().is_empty() {
                let start = part.range().start;
                check(&part, pattern, part.range());
                part.unpin_front(len(&part).min(700)).unwrap();
                assert!(part.range().start > start);
            }
        }
    });
    for n in 0..300 {
        let mut front = file.pin(0..20_000).unwrap();
        send.send(front.split_off(9_000 + n).unwrap()).unwrap();
        if n % 3 == 0 {
            file.invalidate(0..MIB).unwrap();
        }
        while !front.range().is_empty() {
            check(&front, pattern, front.range());
            front.unpin_front(len(&front).min(900)).unwrap();
        }
    }
    drop(send);
    other.join().unwrap();
    file.invalidate(0..MIB).unwrap();
    assert_eq!((pinned_bytes(&cache), cache.stats().resident_bytes), (0, 0));
}

// ---- bad input ----

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "bad input is what this is about")]
fn ranges_that_cannot_be_pinned_are_named_with_the_cause() {
    let cache = cache_of(4 * MIB);
    let (file, pattern) = file(&cache, 10_000);
    for (range, kind, text) in [
        (5..5, ErrorKind::Invalid, "the range is empty"),
        (10_000..10_000, ErrorKind::Invalid, "the range is empty"),
        (6..5, ErrorKind::Invalid, "the range ends before it begins"),
        (u64::MAX..0, ErrorKind::Invalid, "the range ends before it begins"),
        (0..10_001, ErrorKind::BeyondEnd, "the file ends at 10000"),
        (0..u64::MAX, ErrorKind::BeyondEnd, "the file ends at 10000"),
        (20_000..20_001, ErrorKind::BeyondEnd, "the file ends at 10000"),
    ] {
        let error = file.pin(range.clone()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        let Range { start, end } = range;
        assert_eq!(error.to_string(), format!("cannot pin bytes {start}..{end} of file: {text}"));
    }
    assert_eq!(pinned_bytes(&cache), 0);
    check(&file.pin(0..10_000).unwrap(), pattern, 0..10_000);
    let empty = cache.attach("empty", Arc::new(Memory::new(Vec::new()))).unwrap();
    assert!(empty.pin(0..1).is_err() && empty.pin(0..0).is_err());
}

#[test]
fn more_than_can_be_pinned_is_refused_with_what_can_be_and_that_works() {
    for budget in [MIB, 16 * MIB, 200 * MIB] {
        let cache = cache_of(budget);
        let (file, pattern) = file(&cache, 2 * budget);
        let error = file.pin(1..budget).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error:?}");
        assert_eq!(number_after(&error, "their pages have "), budget);
        assert_eq!(number_after(&error, "in a budget of "), budget);
        let most_bytes = number_before(&error, " can be pinned");
        assert!(most_bytes > budget / 10 * 9, "{error}");
        assert!(
            error.to_string().ends_with(&format!("at most {most_bytes} can be pinned")),
            "{error}"
        );
        let begin = format!("cannot pin bytes 1..{budget} of file at once: their pages have");
        assert!(error.to_string().starts_with(&begin), "{error}");
        assert!(file.pin(0..most_bytes + 1).is_err());
        let pinned = file.pin(0..most_bytes).unwrap();
        check(&pinned, pattern, 0..most_bytes);
        drop(pinned);
        // Somewhere else, with the cache full of what is evictable.
        check(
            &file.pin(budget..budget + most_bytes).unwrap(),
            pattern,
            budget..budget + most_bytes,
        );
    }
}

#[test]
fn when_all_is_pinned_the_error_says_so_and_the_cache_lives_on() {
    let cache = cache_of(MIB);
    let (file, pattern) = file(&cache, 4 * MIB);
    let mut pins = Vec::new();
    let error = loop {
        let at = pins.len() as u64 * PAGE;
        match file.pin(at..at + PAGE) {
            Ok(pinned) => pins.push(pinned),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error:?}");
    let pinned_bytes = number_before(&error, " are pinned");
    let dirty_bytes = number_before(&error, " dirty");
    let reclaimable_bytes = number_before(&error, " reclaimable");
    assert_eq!((pinned_bytes, dirty_bytes), (pins.len() as u64 * PAGE, 0));
    assert!(reclaimable_bytes < 10 * PAGE && pinned_bytes > 9 * MIB / 10, "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("{pinned_bytes} are pinned")), "{text}");
    assert!(text.contains("reclaimable") && text.contains("dirty"), "{text}");
    let mut buf = [0; 64];
    assert!(file.read_at(&mut buf, 3 * MIB).is_err());
    drop(pins);
    assert_eq!(file.read_at(&mut buf, 3 * MIB).unwrap(), 64);
    pattern.check(3 * MIB, &buf).unwrap();
}

#[test]
fn parts_that_are_not_there_are_refused_and_nothing_changes() {
    let cache = cache_of(4 * MIB);
    let (file, pattern) = file(&cache, 100_000);
    let mut pinned = file.pin(10_000..20_000).unwrap();
    assert_eq!(
        pinned.split_off(9_999).unwrap_err().to_string(),
        "byte 9999 of file is outside the pinned range 10000..20000"
    );
    assert!(pinned.split_off(20_001).is_err());
    assert!(pinned.unpin_front(10_001).is_err() && pinned.unpin_front(u64::MAX).is_err());
    for (offset, bytes) in [(9_999, 1), (19_999, 2), (u64::MAX, 1), (0, 100_000)] {
        let error = pinned.copy_to(&mut vec![0; bytes], offset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    pinned.copy_to(&mut [], 20_000).unwrap();
    check(&pinned, pattern, 10_000..20_000);
    // The range does not keep its file's name: once the file has dropped the pages, nobody knows
    // it, though another file may have its number by now.
    file.invalidate(0..100_000).unwrap();
    drop(file);
    let _other = cache.attach("other", Arc::new(Memory::new(vec![7; 100_000]))).unwrap();
    let error = pinned.split_off(9_999).unwrap_err();
    assert!(error.to_string().contains("a file that is no longer known"), "{error}");
}

#[test]
fn a_folio_with_as_many_pins_as_can_be_counted_takes_no_more() {
    let cache = cache_of(256 * MIB);
    let (file, pattern) = file(&cache, 2 * MIB);
    let first = file.pin(0..2 * MIB).unwrap();
    assert_eq!(first.extents().count(), 1);
    let mut pins = vec![first];
    let error = loop {
        match file.pin(0..2 * MIB) {
            Ok(pinned) => pins.push(pinned),
            Err(error) => break error,
        }
    };
    // 2^22 - 1 pages.
    assert_eq!(pins.len(), 8191);
    assert_eq!(error.kind(), ErrorKind::TooMany, "{error:?}");
    let text = "cannot pin the page at 0 of file: 4194303 pages of its folio are pinned, the most \
                that can be counted";
    assert_eq!(error.to_string(), text);
    // The last few pages still fit, and a cut inside a page needs one more.
    let rest: Vec<_> = (0..511).map(|n| file.pin(n * PAGE..(n + 1) * PAGE).unwrap()).collect();
    let mut cut = pins.pop().unwrap();
    let error = cut.split_off(100).unwrap_err();
    assert!(error.to_string().starts_with("cannot pin the page at 100 of file: "), "{error}");
    assert!(error.kind() == ErrorKind::TooMany);
    check(&cut, pattern, 0..2 * MIB);
    drop(rest);
    let back = cut.split_off(100).unwrap();
    check(&back, pattern, 100..2 * MIB);
    drop((pins, cut, back));
    assert_eq!(pinned_bytes(&cache), 0);
    file.invalidate(0..2 * MIB).unwrap();
    assert_eq!(cache.stats().resident_bytes, 0);
}

// ---- what becomes of pinned bytes ----

#[test]
fn invalidation_leaves_a_pin_its_bytes_and_everybody_else_gets_the_new_ones() {
    let cache = cache_of(4 * MIB);
    let memory = Arc::new(Memory::new(vec![1; 100_000]));
    let file = cache.attach("file", memory.clone()).unwrap();
    let old = file.pin(0..100_000).unwrap();
    memory.write_at(0, &vec![2; 100_000]).unwrap();
    assert!(bytes_of(&old).iter().all(|&byte| byte == 1), "the source is not looked at");
    assert!(file.invalidate(0..1).unwrap() >= PAGE);
    file.invalidate(0..100_000).unwrap();
    assert!(bytes_of(&old).iter().all(|&byte| byte == 1), "its holder goes on");
    let mut byte = [0];
    file.read_at(&mut byte, 50_000).unwrap();
    assert_eq!(byte, [2]);
    let new = file.pin(0..100_000).unwrap();
    assert!(bytes_of(&new).iter().all(|&byte| byte == 2));
    drop(old);
    assert!(bytes_of(&new).iter().all(|&byte| byte == 2), "frames of the one, not of the other");
    drop(new);
    file.invalidate(0..100_000).unwrap();
    assert_eq!(cache.stats().resident_bytes, 0, "the last holder freed what had no file");
}

#[test]
fn what_is_pinned_is_neither_split_nor_moved() {
    let cache = cache_of(256 * MIB);
    let (file, pattern) = file(&cache, 4 * MIB);
    let pinned = file.pin(0..2 * MIB).unwrap();
    let before: Vec<_> = pinned.extents().collect();
    assert_eq!((file.split(0..2 * MIB), file.migrate(0..2 * MIB)), (0, 0));
    file.advise(0..2 * MIB, Hint::DontNeed).unwrap();
    let after: Vec<_> = pinned.extents().collect();
    assert!(after.iter().zip(&before).all(|(now, then)| std::ptr::eq(*now, *then)));
    assert_eq!(after.len(), before.len());
    check(&pinned, pattern, 0..2 * MIB);
}

// ---- what pins do to the memory of others ----

/// A cache full of single pages, of which some, all over it, are pinned: the cache, and its pins.
fn scattered(options: Options) -> (Cache, File, Vec<PinnedRange>) {
    let cache = Cache::new(options).unwrap();
    let (file, pattern) = file(&cache, 100 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    let mut buf = [0; 64];
    for page in 0..file.len() / PAGE {
        file.read_at(&mut buf, page * PAGE).unwrap();
    }
    let mut rng = fastrand::Rng::with_seed(7);
    let pins = (0..1000)
        .map(|_| {
            let at = rng.u64(0..file.len() - 100);
            let pinned = file.pin(at..at + 100).unwrap();
            check(&pinned, pattern, at..at + 100);
            pinned
        })
        .collect();
    (cache, file, pins)
}

/// Free runs of 2 MiB when all else is gone, and how many more can be made of what is left.
fn runs_left(options: Options) -> (u32, u32) {
    let (cache, file, pins) = scattered(options);
    // One page in 16 stays, in every run.
    let mut buf = [0; 64];
    for page in 0..file.len() / PAGE {
        if page % 16 != 0 {
            file.invalidate(page * PAGE..(page + 1) * PAGE).unwrap();
        }
    }
    let mut made = 0;
    let mut folios = Vec::new();
    let filler = cache.attach("filler", Arc::new(Memory::new(vec![9; 128 << 20]))).unwrap();
    while cache.compact() {
        made += 1;
        let at = u64::from(made - 1) * 2 * MIB;
        folios.push(filler.pin(at..at + 2 * MIB).unwrap());
        let last = folios.last().unwrap();
        assert_eq!(
            last.extents().count(),
            1,
            "{made} made, {:?} whole, {last:?}",
            cache.whole_runs()
        );
    }
    file.read_at(&mut buf, 0).unwrap();
    drop(folios);
    filler.invalidate(0..filler.len()).unwrap();
    file.invalidate(0..file.len()).unwrap();
    let (free, all) = cache.whole_runs();
    println!("{made} runs were made of {all}, {free} are whole with nothing but pins");
    drop(pins);
    assert!(cache.whole_runs().0 + 1 >= all, "without pins, all but the run of the index nodes");
    (made, free)
}

/// 128 MiB are 63 whole runs and some. 1000 pages fill two of them.
#[test]
fn pins_of_scattered_pages_leave_nearly_all_runs_whole() {
    let (made, free) = runs_left(Options::new(128 * MIB));
    assert!(free >= 59, "{free} of 63 runs");
    assert!(made >= 50, "{made} of 63 runs");
    let (made, free) = runs_left(Options { pin_in_place: true, ..Options::new(128 * MIB) });
    assert!(free <= 15, "in place, {free} of 63 runs: pages all over the cache were pinned");
    assert!(made <= 15, "{made} of 63 runs");
}

#[test]
fn a_folio_that_has_to_move_takes_its_readers_along() {
    let cache = cache_of(16 * MIB);
    let (file, pattern) = file(&cache, 8 * MIB);
    file.advise(0..1, Hint::Random).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buf = [0; 100];
            let mut rng = fastrand::Rng::with_seed(1);
            for _ in 0..200_000 {
                let at = rng.u64(0..file.len() - 100);
                assert_eq!(file.read_at(&mut buf, at).unwrap(), 100);
                pattern.check(at, &buf).unwrap();
            }
        });
        let mut rng = fastrand::Rng::with_seed(2);
        while !reader.is_finished() {
            let at = rng.u64(0..file.len() - 10_000);
            check(&file.pin(at..at + 10_000).unwrap(), pattern, at..at + 10_000);
            file.invalidate(at..at + 10_000).unwrap();
        }
    });
    assert!(cache.stats().pin_migrations > 10, "{:?}", cache.stats());
}

/// Threads hold a page in turn, so that it is never free.
#[test]
fn a_page_that_is_always_held_is_pinned_where_it_lies_if_the_cache_may() {
    for in_place in [false, true] {
        let cache =
            Cache::new(Options { pin_in_place: in_place, ..Options::new(16 * MIB) }).unwrap();
        let (file, pattern) = file(&cache, 8 * MIB);
        file.advise(0..1, Hint::Random).unwrap();
        let held = file.get(2).unwrap();
        let address = held.as_ptr();
        match file.pin(2 * PAGE..3 * PAGE) {
            Ok(pinned) => {
                assert!(in_place);
                assert_eq!(pinned.extents().next().unwrap().cast::<u8>(), address);
                check(&pinned, pattern, 2 * PAGE..3 * PAGE);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
                assert!(!in_place, "{error}");
            }
        }
        assert_eq!(cache.stats().pin_migrations, 0);
    }
}

// ---- the holders of pins ----

#[test]
fn holders_are_listed_with_place_and_range() {
    let cache = Cache::new(Options { track_pins: true, ..Options::new(4 * MIB) }).unwrap();
    let (file, _) = file(&cache, 100_000);
    assert_eq!(cache.pins().unwrap(), []);
    let line = line!() + 1;
    let mut pinned = file.pin(1_000..50_000).unwrap();
    let [holder] = &cache.pins().unwrap()[..] else { panic!("one holder") };
    assert_eq!((holder.call_site.file(), holder.call_site.line()), (file!(), line));
    assert_eq!(holder.range, 1_000..50_000);
    assert_eq!(holder.path.to_str(), Some("file"));
    let other = pinned.split_off(20_000).unwrap();
    pinned.unpin_front(5_000).unwrap();
    let ranges: Vec<_> = cache.pins().unwrap().into_iter().map(|holder| holder.range).collect();
    assert_eq!(ranges, [6_000..20_000, 20_000..50_000]);
    assert_eq!(cache.pins().unwrap()[1].call_site.line(), line + 5);
    let text = cache.pins().unwrap()[0].to_string();
    assert!(
        text.contains("tests/it/pin.rs:") && text.contains("14000 bytes at 6000 of file"),
        "{text}"
    );
    drop((pinned, other));
    assert_eq!(cache.pins().unwrap(), []);
}

#[test]
fn a_forgotten_pin_is_counted_even_without_a_list() {
    let cache = cache_of(4 * MIB);
    let (file, _) = file(&cache, 100_000);
    assert_eq!(cache.pins(), None);
    let forgotten = file.pin(0..5_000).unwrap();
    assert_eq!(pinned_bytes(&cache), 8192);
    drop(forgotten);
    assert_eq!(pinned_bytes(&cache), 0);
}
