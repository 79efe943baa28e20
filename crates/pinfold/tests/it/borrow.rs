//! Borrowed pages and optimistic ones: what they show, for how long, and what they prevent
//! meanwhile.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::subject::{PAGE, Subject};
use pinfold::source::{Memory, Source};
use pinfold::{ErrorKind, Hint, Optimistic, Options, Reader};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::told::{number_after, number_before};

const BUDGET_MIN_BYTES: u64 = *pinfold::Options::BUDGET_BYTES.start();

/// An even number of pages, so that the last two are one folio.
/// As many readers as a cache can have.
const READERS_MAX: usize = 4096;
const BYTES: usize = 1_004_000;
/// Borrows of one reader that need no count.
const SLOTS: u64 = 16;

fn subject_with(options: Options) -> Subject {
    Subject::new(options, Pattern::new(71, 0), BYTES)
}

fn subject() -> Subject {
    subject_with(Options::new(BUDGET_MIN_BYTES))
}

/// With the barrier of the system, and with the one that every system has.
fn with_each_barrier(test: impl Fn(Subject)) {
    for membarrier in [true, false] {
        test(subject_with(Options { membarrier, ..Options::new(BUDGET_MIN_BYTES) }));
    }
}

/// Whether the page, which is cached now, is held: then it cannot be moved.
fn is_held(subject: &Subject, page: u64) -> bool {
    drop(subject.file.get(page).unwrap());
    let start = page * PAGE as u64;
    subject.file.migrate(start..start + 1) == 0
}

#[test]
fn every_page_is_itself_and_the_last_one_ends_with_the_file() {
    with_each_barrier(|subject| {
        let reader = subject.cache.reader().unwrap();
        let pages = BYTES.div_ceil(PAGE) as u64;
        for page in (0..pages).chain(0..pages) {
            let got = subject.file.borrow(page, &reader).unwrap();
            assert_eq!(got.len(), if page + 1 == pages { BYTES % PAGE } else { PAGE });
            assert!(!got.is_counted(), "page {page}");
            subject.check(page, &got);
            let folio = got.folio();
            subject.pattern.check(got.folio_offset(), folio).unwrap();
        }
    });
}

#[test]
fn a_slot_that_showed_a_page_shows_the_same_page_of_another_file() {
    with_each_barrier(|subject| {
        let reader = subject.cache.reader().unwrap();
        let other = Pattern::new(73, 0);
        let source = Arc::new(Memory::new(other.to_vec(BYTES)));
        let second = subject.cache.attach("second", source).unwrap();
        for _ in 0..3 {
            subject.check(5, &subject.file.borrow(5, &reader).unwrap());
            subject.check(5, &subject.file.borrow(5, &reader).unwrap());
            let page = second.borrow(5, &reader).unwrap();
            other.check(5 * PAGE as u64, &page).unwrap();
        }
    });
}

/// The last folio knows where the file ends, and so do its pieces, and what it is moved to.
#[test]
fn the_file_ends_where_it_did_when_folios_are_moved_or_split() {
    const LAST: u64 = (BYTES / PAGE) as u64;
    let subject = subject_with(Options::new(8 << 20));
    let reader = subject.cache.reader().unwrap();
    let ends = |what: &str| {
        let page = subject.file.borrow(LAST, &reader).unwrap();
        subject.check(LAST, &page);
        let folio_end = page.folio_offset() + page.folio().len() as u64;
        assert_eq!((page.len(), folio_end), (BYTES % PAGE, BYTES as u64), "{what}");
        assert_eq!(subject.file.get(LAST).unwrap().len(), BYTES % PAGE, "{what}");
        assert_eq!(subject.file.optimistic(LAST).unwrap().len(), BYTES % PAGE, "{what}");
        assert_eq!(subject.file.borrow(LAST - 1, &reader).unwrap().len(), PAGE, "{what}");
        let mut buf = [0; PAGE];
        let got = subject.file.read_at(&mut buf, LAST * PAGE as u64).unwrap();
        assert_eq!(got, BYTES % PAGE, "{what}");
    };
    let all = 0..BYTES as u64;
    drop(subject.file.pin(all.clone()).unwrap());
    assert!(subject.file.borrow(LAST - 1, &reader).unwrap().folio().len() > PAGE, "a large folio");
    ends("read");
    assert!(subject.file.migrate(all.clone()) > 0);
    ends("moved");
    assert!(subject.file.split(all) > 0);
    ends("split");
    assert_eq!(subject.file.borrow(LAST, &reader).unwrap().folio().len(), BYTES % PAGE);
}

#[test]
fn what_is_borrowed_is_not_evicted_moved_or_split() {
    with_each_barrier(|subject| {
        let reader = subject.cache.reader().unwrap();
        drop(subject.file.get(3).unwrap());
        let got = subject.file.borrow(3, &reader).unwrap();
        let at = got.as_ptr();
        subject.crowd();
        subject.file.migrate(3 * 4096..4 * 4096);
        subject.file.split(0..BYTES as u64);
        subject.cache.compact();
        assert!(got.is_current());
        subject.check(3, &got);
        let again = subject.file.borrow(3, &reader).unwrap();
        assert_eq!(again.as_ptr(), at, "it was never anywhere else");
        let stats = subject.cache.stats();
        assert!(stats.put_back > 0, "{stats:?}");
        assert_eq!(stats.membarriers > 0, stats.membarrier, "{stats:?}");
        drop((got, again));
        assert!(!is_held(&subject, 3), "given back");
    });
}

#[test]
fn without_readers_there_are_no_membarriers() {
    let subject = subject();
    drop(subject.cache.reader().unwrap());
    subject.crowd();
    let stats = subject.cache.stats();
    assert!(stats.evictions > 100, "{stats:?}");
    assert_eq!((stats.membarriers, stats.readers), (0, 0));
}

#[test]
fn what_is_borrowed_and_invalidated_stays_until_it_is_given_back() {
    with_each_barrier(|subject| {
        let reader = subject.cache.reader().unwrap();
        let old = subject.file.borrow(2, &reader).unwrap();
        let before = old.to_vec();
        let folio_bytes = old.folio().len() as u64;
        let fresh = Pattern::new(72, 1).to_vec(BYTES);
        subject.memory.write_at(0, &fresh).unwrap();
        subject.file.invalidate(0..BYTES as u64).unwrap();
        assert!(!old.is_current());
        let new = subject.file.borrow(2, &reader).unwrap();
        assert_eq!(&*new, &fresh[2 * PAGE..3 * PAGE]);
        let stats = subject.cache.stats();
        assert_eq!((stats.deferred, stats.deferred_folios), (1, 1), "{stats:?}");
        assert_eq!(stats.deferred_bytes, folio_bytes, "{stats:?}");
        subject.crowd();
        assert_eq!(*old, before, "nobody has written over it");
        // A count can still be had, and outlives the borrow.
        let counted = old.upgrade().unwrap();
        drop((old, new));
        subject.crowd();
        assert_eq!(subject.cache.stats().deferred_folios, 0, "collected");
        assert_eq!(*counted, before);
        assert!(!counted.is_current());
    });
}

#[test]
fn more_borrows_than_slots_are_counted() {
    let subject = subject();
    let reader = subject.cache.reader().unwrap();
    let held: Vec<_> =
        (0..SLOTS + 3).map(|page| subject.file.borrow(page, &reader).unwrap()).collect();
    let counted = held.iter().filter(|one| one.is_counted()).count();
    assert_eq!((counted, subject.cache.stats().borrows_counted), (3, 3));
    subject.crowd();
    for (page, one) in held.iter().enumerate() {
        subject.check(page as u64, one);
    }
    drop(held);
    assert!(!subject.file.borrow(0, &reader).unwrap().is_counted());
    for page in 0..SLOTS + 3 {
        assert!(!is_held(&subject, page), "page {page} was let go of");
    }
}

/// A batch gets the slots that it needs, up to 64, and its reader keeps them.
#[test]
fn a_batch_of_borrows_has_64_slots_and_counts_what_is_beyond() {
    const BATCH_SLOTS: u64 = 4 * SLOTS;
    let subject = subject();
    let reader = subject.cache.reader().unwrap();
    let pages: Vec<u64> = (0..BATCH_SLOTS + 3).collect();
    let held = subject.file.borrow_many(&pages, &reader).unwrap();
    let counted = held.iter().filter(|one| one.is_counted()).count();
    assert_eq!((counted, subject.cache.stats().borrows_counted), (3, 3));
    assert_eq!(subject.cache.stats().readers, 1);
    assert!(format!("{reader:?}").contains("borrowed: 64"), "{reader:?}");
    subject.crowd();
    for (&page, one) in pages.iter().zip(&held) {
        subject.check(page, one);
        assert!(is_held(&subject, page), "page {page} was let go of");
    }
    drop(held);
    // Single borrows have them, too, from now on.
    let held: Vec<_> =
        (0..BATCH_SLOTS).map(|page| subject.file.borrow(page, &reader).unwrap()).collect();
    assert!(held.iter().all(|one| !one.is_counted()));
    drop(held);
    drop(reader);
    assert_eq!(subject.cache.stats().readers, 0);
    for &page in &pages {
        assert!(!is_held(&subject, page), "page {page} was let go of");
    }
}

#[test]
fn an_upgraded_borrow_outlives_the_reader_and_its_thread() {
    let subject = subject();
    let counted = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let reader = subject.cache.reader().unwrap();
            subject.file.borrow(5, &reader).unwrap().upgrade().unwrap()
        });
        thread.join().unwrap()
    });
    subject.crowd();
    subject.check(5, &counted);
}

#[test]
fn a_borrow_that_is_forgotten_lasts_as_long_as_its_reader() {
    let subject = subject();
    let reader = subject.cache.reader().unwrap();
    std::mem::forget(subject.file.borrow(4, &reader).unwrap());
    subject.crowd();
    assert!(is_held(&subject, 4), "it is still announced");
    drop(reader);
    assert!(!is_held(&subject, 4));
}

thread_local! {
    static OF_THREAD: std::cell::RefCell<Option<Reader>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn a_thread_that_ends_with_a_borrow_alive_leaves_nothing_behind() {
    let subject = subject();
    thread::scope(|scope| {
        scope.spawn(|| {
            OF_THREAD.with_borrow_mut(|of_thread| {
                let reader = of_thread.insert(subject.cache.reader().unwrap());
                std::mem::forget(subject.file.borrow(6, reader).unwrap());
            });
        });
    });
    // A scope ends before its threads' destructors have.
    let since = Instant::now();
    while subject.cache.stats().readers > 0 {
        assert!(since.elapsed() < Duration::from_secs(120), "the reader is still there");
        thread::yield_now();
    }
    assert!(!is_held(&subject, 6));
}

#[test]
fn a_thread_that_panics_with_a_borrow_alive_leaves_nothing_behind() {
    let subject = subject();
    let panicked = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let reader = subject.cache.reader().unwrap();
            let _borrowed = subject.file.borrow(6, &reader).unwrap();
            std::panic::resume_unwind(Box::new(()));
        });
        thread.join().is_err()
    });
    assert!(panicked);
    assert_eq!(subject.cache.stats().readers, 0);
    assert!(!is_held(&subject, 6));
}

#[test]
fn a_reader_of_another_cache_is_refused() {
    let (one, other) = (subject(), subject());
    let reader = other.cache.reader().unwrap();
    let error = one.file.borrow(0, &reader).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid);
    assert_eq!(error.to_string(), "cannot borrow from file: the reader belongs to another cache");
    drop(other.cache);
    assert!(one.file.borrow(0, &reader).is_err());
}

#[test]
fn pages_behind_the_end_are_errors() {
    let subject = subject();
    let reader = subject.cache.reader().unwrap();
    for page in [246, 1 << 52, u64::MAX] {
        let expected = format!("no page {page} in file: it has {BYTES} bytes");
        assert_eq!(subject.file.borrow(page, &reader).unwrap_err().to_string(), expected);
        assert_eq!(subject.file.optimistic(page).unwrap_err().to_string(), expected);
    }
}

#[test]
fn there_are_so_many_readers_and_no_more() {
    let subject = subject();
    let mut readers: Vec<_> = (0..READERS_MAX).map(|_| subject.cache.reader().unwrap()).collect();
    let error = subject.cache.reader().unwrap_err();
    assert_eq!(error.to_string(), "all 4096 records for readers of this cache are in use");
    let borrowed = subject.file.borrow(1, &readers[READERS_MAX - 1]).unwrap();
    subject.crowd();
    subject.check(1, &borrowed);
    drop(borrowed);
    readers.swap_remove(17);
    subject.cache.reader().unwrap();
    drop(readers);
    assert_eq!(subject.cache.stats().readers, 0);
}

/// All of the memory is borrowed: an error, after a while, and no hang.
#[test]
fn a_budget_full_of_borrows_is_an_error_and_no_hang() {
    let subject = subject();
    let large = Pattern::new(73, 2);
    let memory = Arc::new(Memory::new(large.to_vec(4 * BYTES)));
    let file = subject.cache.attach("large", memory).unwrap();
    let readers: Vec<_> = (0..64).map(|_| subject.cache.reader().unwrap()).collect();
    let mut held = Vec::new();
    let pages = 0..(4 * BYTES / PAGE) as u64;
    let since = Instant::now();
    let error = pages
        .zip(readers.iter().flat_map(|reader| std::iter::repeat_n(reader, SLOTS as usize)))
        .find_map(|(page, reader)| match file.borrow(page, reader) {
            Ok(one) => {
                held.push((page, one));
                None
            }
            Err(error) => Some(error),
        });
    assert!(since.elapsed() < Duration::from_secs(120));
    let error = error.expect("not all can be borrowed");
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error} with {} pages borrowed", held.len());
    let held_bytes = number_before(&error, " held by readers");
    let budget_bytes = number_after(&error, "in a budget of ");
    assert!(held_bytes > budget_bytes / 2, "{held_bytes} of {budget_bytes} are said to be held");
    for (page, one) in &held {
        assert!(!one.is_counted());
        large.check(*page * PAGE as u64, one).unwrap();
    }
    drop(held);
    subject.check(200, &subject.file.borrow(200, &readers[0]).unwrap());
}

/// A borrow in a slot is no reference, and yet it holds the folio: the error counts it as held. In
/// a budget of more folios than one sweep examines.
#[test]
fn what_slots_borrow_is_not_said_to_be_reclaimable() {
    const READERS: u64 = 16;
    let subject = subject_with(Options::new(24 << 20));
    let memory = Arc::new(Memory::new(Pattern::new(74, 1).to_vec(32 << 20)));
    let file = subject.cache.attach("large", memory).unwrap();
    file.advise(0..1, Hint::Random).unwrap();
    let readers: Vec<_> = (0..READERS).map(|_| subject.cache.reader().unwrap()).collect();
    let borrowed: Vec<_> =
        (0..READERS * SLOTS).map(|n| file.borrow(n, &readers[(n / SLOTS) as usize])).collect();
    assert!(borrowed.iter().flatten().all(|page| !page.is_counted()));
    let mut held = Vec::new();
    let error =
        (READERS * SLOTS..8192).find_map(|page| file.get(page).map(|one| held.push(one)).err());
    let error = error.expect("not all can be held");
    assert_eq!(error.kind(), ErrorKind::NoMemory, "{error} with {} pages held", held.len());
    let held_bytes = number_before(&error, " held by readers");
    let reclaimable_bytes = number_before(&error, " reclaimable");
    let kept = (borrowed.len() + held.len()) * PAGE;
    assert!(held_bytes >= kept as u64, "{held_bytes} are said to be held, of {kept}");
    assert!(reclaimable_bytes < SLOTS * PAGE as u64, "{reclaimable_bytes} reclaimable");
}

/// A failed `unwrap` of a test or a program prints it.
#[test]
fn a_reader_is_debugged_in_a_line() {
    let subject = subject();
    let reader = subject.cache.reader().unwrap();
    assert_eq!(format!("{reader:?}"), "Reader { borrowed: 0, .. }");
    let pages =
        [subject.file.borrow(0, &reader).unwrap(), subject.file.borrow(7, &reader).unwrap()];
    assert_eq!(format!("{reader:?}"), "Reader { borrowed: 2, .. }");
    drop(pages);
}

// ---- optimistic ----

#[test]
fn an_optimistic_page_is_copied_and_validated() {
    let subject = subject();
    let last = (BYTES / PAGE) as u64;
    for page in [0, 7, last] {
        let one = subject.file.optimistic(page).unwrap();
        assert_eq!(one.len(), if page == last { BYTES % PAGE } else { PAGE });
        let mut buf = vec![0; one.len()];
        one.read(0, &mut buf);
        assert!(one.validate());
        subject.check(page, &buf);
        one.read(64, &mut buf[..64]);
        subject.pattern.check(page * PAGE as u64 + 64, &buf[..64]).unwrap();
    }
}

#[test]
fn an_optimistic_page_that_left_is_not_valid_and_harmless_to_read() {
    let subject = subject();
    let (gone, stays) =
        (subject.file.optimistic(1).unwrap(), subject.file.optimistic(100).unwrap());
    assert!([gone, stays].iter().all(Optimistic::validate));
    subject.file.invalidate(0..PAGE as u64 * 2).unwrap();
    let mut buf = [0; PAGE];
    gone.read(0, &mut buf);
    assert!(!gone.validate());
    assert!(stays.validate());
    assert!(![stays, gone].iter().all(Optimistic::validate));
    subject.crowd();
    assert!(!stays.validate());
}

#[test]
#[should_panic(expected = "65 bytes at 4032 of a page of 4096")]
fn an_optimistic_read_beyond_the_page_panics() {
    let subject = subject();
    subject.file.optimistic(0).unwrap().read(4032, &mut [0; 65]);
}
