//! Counted guards: what they show, for how long, and to which threads.

mod support;

use std::sync::Arc;
use std::thread;

use pinfold::source::{Memory, Source};
use pinfold::{BUDGET_MIN_BYTES, Error, FolioRef, Hint, Options};
use pinfold_testing::pattern::Pattern;
use support::{PAGE, Subject};

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
        assert!(offset as usize + folio.len() <= BYTES, "nothing behind the end is shown");
        largest = largest.max(folio.len());
    }
    assert!(largest > PAGE, "some folio is large");
}

#[test]
fn no_page_behind_the_end() {
    let subject = subject(8 << 20);
    for page in [245, 1 << 40, 1 << 52, u64::MAX] {
        let error = subject.file.get(page).unwrap_err();
        assert!(matches!(error, Error::BeyondEnd { .. }));
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
    assert!(matches!(subject.file.get(2), Err(Error::BeyondEnd { len_bytes: 5000, .. })));
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
