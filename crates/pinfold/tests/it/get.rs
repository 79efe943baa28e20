//! Counted guards: what they show, for how long, and to which threads.

use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::subject::{PAGE, Subject};
use pinfold::source::{Memory, Source};
use pinfold::{Cache, ErrorKind, File, FolioOf, FolioRef, Hint, Options, SharedFile};
use pinfold_testing::pattern::Pattern;
use pinfold_testing::told::number_after;

const BUDGET_MIN_BYTES: u64 = *pinfold::Options::BUDGET_BYTES.start();

const BYTES: usize = 1_000_000;

fn subject(budget_bytes: u64) -> Subject {
    Subject::new(Options::new(budget_bytes), Pattern::new(61, 0), BYTES)
}

#[test]
fn every_page_is_itself_and_the_last_one_ends_with_the_file() {
    let subject = subject(8 << 20);
    let pages = BYTES.div_ceil(PAGE) as u64;
    for turn in 0..2 {
        for page in 0..pages {
            let got = subject.file.get(page).unwrap();
            let expected = if page + 1 == pages { BYTES % PAGE } else { PAGE };
            assert_eq!(got.len(), expected, "page {page}, turn {turn}");
            subject.check(page, &got);
        }
    }
}

#[test]
fn the_folio_around_a_page_is_told_with_its_place() {
    let subject = subject(32 << 20);
    subject.file.advise(0..0, Hint::Sequential).unwrap();
    let mut largest = 0;
    for page in 0..BYTES.div_ceil(PAGE) as u64 {
        let got = subject.file.get(page).unwrap();
        let (folio, offset) = (got.folio(), got.folio_offset());
        subject.pattern.check(offset, folio).unwrap_or_else(|wrong| panic!("{wrong}"));
        let at = (page * PAGE as u64 - offset) as usize;
        assert_eq!(&folio[at..at + got.len()], &*got, "page {page} is in its folio");
        assert!(offset as usize + folio.len() <= BYTES, "nothing past the end is shown");
        largest = largest.max(folio.len());
    }
    assert!(largest > PAGE, "some folio is large");
}

#[test]
fn no_page_behind_the_end() {
    let subject = subject(8 << 20);
    for page in [245, 1 << 40, 1 << 52, u64::MAX] {
        let error = subject.file.get(page).unwrap_err();
        assert!(error.kind() == ErrorKind::BeyondEnd);
        assert_eq!(error.to_string(), format!("no page {page} in file: it has 1000000 bytes"));
    }
    let empty = subject.cache.attach("empty", Arc::new(Memory::new(vec![]))).unwrap();
    assert_eq!(empty.get(0).unwrap_err().to_string(), "no page 0 in empty: it has 0 bytes");
}

#[test]
fn what_is_held_outlives_eviction() {
    let subject = subject(BUDGET_MIN_BYTES);
    let held: Vec<_> = (0..16).map(|page| (page, subject.file.get(page).unwrap())).collect();
    subject.crowd();
    assert!(subject.cache.stats().evictions > 100);
    for (page, got) in &held {
        assert!(got.is_current());
        subject.check(*page, got);
    }
    let resident = held.iter().all(|(page, got)| {
        let again = subject.file.get(*page).unwrap();
        std::ptr::eq(&raw const again[0], &raw const got[0])
    });
    assert!(resident, "it was never anywhere else");
    assert_eq!(subject.file.migrate(0..16 * PAGE as u64), 0, "what is held is not moved");
    drop(held);
    assert!(subject.file.migrate(0..16 * PAGE as u64) > 0, "dropped, it can be");
}

#[test]
fn what_was_invalidated_stays_as_it_was_and_says_so() {
    let subject = subject(8 << 20);
    let old = subject.file.get(2).unwrap();
    let before = old.to_vec();
    let fresh = Pattern::new(62, 1).to_vec(BYTES);
    subject.memory.write_at(0, &fresh).unwrap();
    assert!(old.is_current(), "nobody has told the cache");
    subject.file.invalidate(0..BYTES as u64).unwrap();
    assert!(!old.is_current());
    assert_eq!(*old, before);
    assert_eq!(old.folio_offset() % PAGE as u64, 0);
    let new = subject.file.get(2).unwrap();
    assert_eq!(&*new, &fresh[2 * PAGE..3 * PAGE]);
    assert!(new.is_current());
    subject.crowd();
    assert_eq!(*old, before, "not evicted either");
}

#[test]
fn a_truncated_file_has_shorter_pages_for_those_who_ask_again() {
    let subject = subject(8 << 20);
    let old = subject.file.get(1).unwrap();
    subject.memory.set_len(5000).unwrap();
    subject.file.invalidate(0..0).unwrap();
    assert!(!old.is_current());
    assert_eq!(old.len(), PAGE);
    subject.check(1, &old);
    let new = subject.file.get(1).unwrap();
    assert_eq!(new.len(), 5000 - PAGE);
    subject.check(1, &new);
    let error = subject.file.get(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BeyondEnd, "{error:?}");
    assert_eq!(number_after(&error, "it has "), 5000);
}

#[test]
fn it_can_be_sent_shared_and_cloned() {
    let subject = subject(BUDGET_MIN_BYTES);
    let (sender, receiver) = std::sync::mpsc::channel::<(u64, FolioRef<'_>)>();
    let first = subject.file.get(0).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for (page, got) in receiver {
                let copy = got.clone();
                drop(got);
                subject.check(page, &copy);
                subject.check(0, &first);
            }
        });
        for page in 0..BYTES.div_ceil(PAGE) as u64 {
            sender.send((page, subject.file.get(page).unwrap())).unwrap();
            if page % 10 == 0 {
                subject.crowd();
            }
        }
        drop(sender);
    });
}

#[test]
fn an_owned_one_keeps_what_it_needs_and_no_more() {
    let Subject { cache, file, pattern, memory } = subject(BUDGET_MIN_BYTES);
    drop(memory);
    let weak = Arc::new(Memory::new(pattern.to_vec(PAGE)));
    let other = cache.attach("other", weak.clone()).unwrap();
    let kept = other.get(0).unwrap().into_owned();
    let copy = kept.clone();
    drop((cache, file, other));
    let thread = thread::spawn(move || {
        pattern.check(0, &kept).unwrap();
        pattern.check(0, &kept.into_owned()).unwrap();
    });
    thread.join().unwrap();
    pattern.check(0, &copy).unwrap();
    drop(copy);
    assert_eq!(Arc::strong_count(&weak), 1, "the cache went with the last of them");
}

#[test]
fn too_many_references_are_an_error_and_not_a_panic() {
    let subject = subject(BUDGET_MIN_BYTES);
    let mut held = Vec::with_capacity(1 << 23);
    let error = loop {
        match subject.file.get(0) {
            Ok(one) => held.push(one),
            Err(error) => break error,
        }
    };
    assert!(held.len() >= 4_000_000, "{} were enough", held.len());
    assert_eq!(error.to_string(), "too many references to the folio of page 0 of file");
    held.truncate(1);
    subject.check(0, &subject.file.get(0).unwrap());
}

// ---- guards that own a share of their file ----

/// A file and pages of it in one struct, which can be moved.
struct Shelf<F: SharedFile> {
    _file: F,
    pages: Vec<(u64, FolioOf<F>)>,
}

impl<F: SharedFile> Shelf<F> {
    fn of(file: F, pages: impl IntoIterator<Item = u64>) -> Self {
        let get = |page| (page, FolioOf::new(file.get(page).unwrap(), file.clone()));
        let pages = pages.into_iter().map(get).collect();
        Shelf { _file: file, pages }
    }

    fn check(&self, subject: &Subject) {
        for (page, bytes) in &self.pages {
            subject.check(*page, bytes);
            let folio = bytes.page();
            subject.pattern.check(folio.folio_offset(), folio.folio()).unwrap();
        }
    }
}

#[test]
fn guards_and_their_file_are_kept_in_one_struct() {
    let subject = subject(1 << 20);
    let file = subject.file.clone();
    file.advise(0..0, Hint::Random).unwrap();
    let shelf = Shelf::of(Rc::new(file), (0..40).map(|n| n * 6));
    let moved = Box::new(shelf);
    subject.crowd();
    moved.check(&subject);
    assert!(moved.pages.iter().all(|(_, page)| page.page().is_current()));
    // They keep the bytes that they were made with.
    subject.memory.write_at(0, &[0; 64]).unwrap();
    subject.file.invalidate(0..1 << 30).unwrap();
    moved.check(&subject);
    assert!(moved.pages.iter().all(|(_, page)| !page.page().is_current()));
    let copies: Vec<_> = moved.pages.iter().map(|(_, page)| page.clone()).collect();
    drop(moved);
    subject.check(6, &copies[1]);
    drop(copies);
    // Nothing holds any of it any more, and the crowd has left with its handle. The reclaiming
    // thread may look at some of it yet.
    let resident = || subject.cache.stats().resident_bytes;
    let since = Instant::now();
    while resident() > 0 && since.elapsed() < Duration::from_secs(60) {
        thread::yield_now();
    }
    assert_eq!(resident(), 0);
}

#[test]
fn guards_that_share_an_arc_go_to_other_threads_with_their_file() {
    let subject = subject(8 << 20);
    let file = subject.file.clone();
    file.advise(0..0, Hint::Random).unwrap();
    let shelf = Shelf::of(Arc::new(file), 0..8);
    thread::scope(|scope| {
        let subject = &subject;
        scope.spawn(move || shelf.check(subject));
    });
    subject.file.invalidate(0..1 << 30).unwrap();
    assert_eq!(subject.cache.stats().resident_bytes, 0, "all references were given back");
}

/// The guard's share is a handle like any other: the pages of a file without a name go with it.
#[test]
fn a_guard_keeps_its_file_open_and_the_cache_alive() {
    let subject = subject(8 << 20);
    let Subject { cache, file, pattern, .. } = subject;
    file.advise(0..0, Hint::Random).unwrap();
    let file = Rc::new(file);
    let page = FolioOf::new(file.get(3).unwrap(), file.clone());
    drop(file);
    assert_eq!(cache.stats().files, 1);
    let other = page.clone();
    drop(page);
    assert_eq!(cache.stats().files, 1);
    drop(other);
    assert_eq!((cache.stats().files, cache.stats().resident_bytes), (0, 0));

    let file: File = cache.attach("again", Arc::new(Memory::new(pattern.to_vec(BYTES)))).unwrap();
    let file = Arc::new(file);
    let page = FolioOf::new(file.get(3).unwrap(), file.clone());
    drop(file);
    drop::<Cache>(cache);
    pattern.check(3 * PAGE as u64, &page).unwrap();
}

#[test]
#[should_panic = "the page is of another cache than the file"]
fn a_page_of_another_cache_is_not_kept_by_a_file() {
    let (one, other) = (subject(8 << 20), subject(8 << 20));
    let _kept = FolioOf::new(other.file.get(3).unwrap(), Rc::new(one.file));
}
