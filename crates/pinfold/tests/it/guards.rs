//! How much memory guards keep, and what a cache full of guards can still do.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pinfold::source::Source;
use pinfold::{Cache, Error, ErrorKind, File, FolioRef, Options};
use pinfold_testing::told::number_before;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const BUDGET: usize = 64 * MIB;
/// Pages of the file: 1 GiB.
const PAGES: u64 = 1 << 18;

/// A file in which each page begins with its number, and has the number's last byte otherwise.
#[derive(Debug)]
struct Numbered;

impl Source for Numbered {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.len_bytes()?.saturating_sub(offset);
        let bytes = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        for (n, page) in buf[..bytes].chunks_mut(PAGE).enumerate() {
            let number = offset / PAGE as u64 + n as u64;
            page.fill(number as u8);
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        Ok(bytes)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(PAGES * PAGE as u64)
    }

    fn kind(&self) -> Cow<'static, str> {
        "numbered".into()
    }
}

fn file(budget: usize) -> (Cache, File) {
    let cache = Cache::new(Options::new(budget as u64)).unwrap();
    let file = cache.attach("numbered", Arc::new(Numbered)).unwrap();
    (cache, file)
}

fn assert_page(page: u64, bytes: &[u8]) {
    assert_eq!(bytes[..8], page.to_le_bytes(), "page {page}");
    assert_eq!(bytes[PAGE - 1], page as u8, "page {page}");
}

/// Reads `pages` in order, as one reader does.
fn scan(file: &File, pages: std::ops::Range<u64>) {
    let file = file.clone();
    let mut buf = vec![0; MIB];
    let step = buf.len() / PAGE;
    for page in pages.step_by(step) {
        assert_eq!(file.read_at(&mut buf, page * PAGE as u64).unwrap(), buf.len());
        assert_page(page, &buf[..PAGE]);
    }
}

/// Gets `pages` and keeps them; the number of guards had where it fails.
fn keep<'f>(
    file: &'f File,
    kept: &mut Vec<(u64, FolioRef<'f>)>,
    pages: impl Iterator<Item = u64>,
) -> Result<(), (usize, Error)> {
    for page in pages {
        let guard = file.get(page).map_err(|error| (kept.len(), error))?;
        kept.push((page, guard));
    }
    Ok(())
}

fn assert_all(kept: &[(u64, FolioRef<'_>)]) {
    for (page, guard) in kept {
        assert_page(*page, guard);
    }
}

/// The bytes that guards alone keep.
fn kept_bytes(cache: &Cache, file: &File) -> usize {
    // What is being read ahead is in the file when it has arrived.
    while cache.stats().fills_in_flight > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Whatever is in the file goes, guards or not; what stays is theirs, but for what the cache's
    // threads let go of in a moment.
    file.invalidate(0..u64::MAX >> 1).unwrap();
    let mut least = usize::MAX;
    for _ in 0..200 {
        least = least.min(cache.stats().resident_bytes as usize);
        if least <= BUDGET / 10 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    least
}

/// What guards of `pages` pages may keep: the bound that `get` documents.
fn may_keep(pages: usize) -> usize {
    (2 * pages * PAGE).max(BUDGET / 10)
}

/// Guards of pages that lie as far from each other as the cache allows keep little more than they
/// show.
#[test]
fn small_guards_do_not_keep_large_folios() {
    for guards in [1, 7, 62, 139, 1000] {
        let (cache, file) = file(BUDGET);
        let pages = (BUDGET / PAGE) as u64;
        scan(&file, 0..pages);
        let mut kept = Vec::new();
        let step = pages / guards as u64;
        keep(&file, &mut kept, (0..guards as u64).map(|n| n * step)).unwrap();
        assert_all(&kept);
        let (bytes, most) = (kept_bytes(&cache, &file), may_keep(guards));
        assert!(bytes <= most, "{guards} guards keep {bytes} bytes, at most {most} are theirs");
        assert_all(&kept);
    }
}

/// A reader that got every page of a file, and let go of it, may not be taken for one that will let
/// go of the next.
#[test]
fn guards_that_were_short_are_kept_for_long() {
    let (cache, file) = file(BUDGET);
    let pages = (BUDGET / PAGE) as u64;
    let reader = file.clone();
    for page in 0..pages {
        assert_page(page, &reader.get(page).unwrap());
    }
    let mut kept = Vec::new();
    keep(&file, &mut kept, (0..pages).step_by(100)).unwrap();
    assert_all(&kept);
    let (bytes, most) = (kept_bytes(&cache, &file), may_keep(kept.len()));
    assert!(bytes <= most, "{} guards keep {bytes} bytes", kept.len());
}

/// The seventeenth borrow of a reader is a counted guard.
#[test]
fn borrows_beyond_the_slots_do_not_keep_large_folios() {
    let (cache, file) = file(BUDGET);
    let pages = (BUDGET / PAGE) as u64;
    scan(&file, 0..pages);
    let reader = cache.reader().unwrap();
    let mut kept: Vec<_> =
        (0..200).map(|n| file.borrow(n * (pages / 200), &reader).unwrap()).collect();
    // Those with a slot keep one folio each.
    assert!(kept[..16].iter().all(|guard| !guard.is_counted()));
    kept.drain(..16);
    assert!(kept.iter().all(pinfold::Borrowed::is_counted));
    let (bytes, most) = (kept_bytes(&cache, &file), may_keep(kept.len()));
    assert!(bytes <= most, "{} guards keep {bytes} bytes", kept.len());
}

/// One page of each `step` of a file of 1 GiB that was read in order before.
fn one_of_each(step: u64) {
    let (_cache, file) = file(BUDGET);
    scan(&file, 0..PAGES);
    let mut kept = Vec::new();
    let pages = (0..4000).map(|n| n * step % PAGES);
    if let Err((had, error)) = keep(&file, &mut kept, pages) {
        panic!("after {had} guards: {error}");
    }
    assert_all(&kept);
}

#[test]
fn one_page_of_each_64_is_kept() {
    one_of_each(64);
}

#[test]
fn one_page_of_each_67_is_kept() {
    one_of_each(67);
}

#[test]
fn one_page_of_each_64_and_then_one_of_each_67_is_kept() {
    let (_cache, file) = file(BUDGET);
    scan(&file, 0..PAGES);
    let mut kept = Vec::new();
    for step in [64, 67] {
        if let Err((had, error)) = keep(&file, &mut kept, (0..PAGES).step_by(step)) {
            panic!("after {had} guards: {error}");
        }
    }
    assert!(kept.len() > 8000);
    assert_all(&kept);
}

#[test]
fn a_reader_reads_on_and_keeps_one_page_of_each_64() {
    let (_cache, file) = file(BUDGET);
    let mut kept = Vec::new();
    for page in 0..4000 * 64 {
        let guard = file.get(page);
        let guard = guard.unwrap_or_else(|e| panic!("after {} guards: {e}", kept.len()));
        assert_page(page, &guard);
        if page % 64 == 0 {
            kept.push((page, guard));
        }
    }
    assert_all(&kept);
}

/// Guards of single pages can have all of the memory but what the cache works with.
#[test]
fn guards_fail_only_when_they_have_it_all() {
    for step in [1, 65, 67] {
        let (_cache, file) = file(BUDGET);
        scan(&file, 0..PAGES);
        let mut kept = Vec::new();
        let pages = (0..PAGES).map(|n| n * step % PAGES);
        let (had, error) = keep(&file, &mut kept, pages).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoMemory, "after {had} guards: {error}");
        let left = number_before(&error, " reclaimable") + number_before(&error, " being read");
        assert!(left < BUDGET as u64 / 64, "of each {step}, after {had} guards: {error}");
        assert!(had * PAGE > BUDGET * 9 / 10, "of each {step}, after {had} guards: {error}");
        assert_all(&kept);
    }
}

/// Threads that want guards of the same folios at once neither fail nor keep them as a whole.
#[test]
fn threads_that_want_the_same_folios_split_them() {
    let (cache, file) = file(BUDGET);
    let pages = (BUDGET / PAGE) as u64 / 2;
    scan(&file, 0..pages);
    let mut kept = Vec::new();
    std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3].map(|n| {
            let file = &file;
            scope.spawn(move || {
                let mut kept = Vec::new();
                let keep = keep(file, &mut kept, (n..pages).step_by(64));
                keep.map_or_else(|(had, error)| panic!("{had}: {error}"), |()| kept)
            })
        });
        for thread in threads {
            kept.extend(thread.join().unwrap());
        }
    });
    assert_all(&kept);
    let (bytes, most) = (kept_bytes(&cache, &file), may_keep(kept.len()));
    assert!(bytes <= most, "{} guards keep {bytes} bytes, at most {most} are theirs", kept.len());
}

/// An upgraded borrow keeps its folio, and counts: what is granted later is less.
#[test]
fn upgraded_borrows_are_granted_and_later_guards_are_not() {
    let (cache, file) = file(BUDGET);
    let pages = (BUDGET / PAGE) as u64;
    scan(&file, 0..pages);
    let reader = cache.reader().unwrap();
    let mut kept = Vec::new();
    for page in (0..pages).step_by(1024) {
        kept.push((page, file.borrow(page, &reader).unwrap().upgrade().unwrap()));
    }
    let upgraded: usize = kept.iter().map(|(_, guard)| guard.folio().len()).sum();
    assert!(upgraded > BUDGET / 20, "{upgraded} bytes");
    let (_, later) = (0..pages).step_by(1000).fold((0, 0), |(n, larger), page| {
        let guard = file.get(page).unwrap();
        let others = kept.iter().all(|(at, other)| {
            let folio = other.folio_offset()..other.folio_offset() + other.folio().len() as u64;
            *at != page && !folio.contains(&(page * PAGE as u64))
        });
        let large = others && guard.folio().len() > PAGE;
        kept.push((page, guard));
        (n + 1, larger + usize::from(large))
    });
    assert_eq!(later, 0, "guards of large folios that were taken beyond the limit");
    assert_all(&kept);
}

/// Folios are as large as the option allows.
#[test]
fn the_largest_folio_is_an_option() {
    for bytes in [PAGE, 64 << 10, MIB] {
        let options = Options { folio_max_bytes: bytes, ..Options::new(BUDGET as u64) };
        let cache = Cache::new(options).unwrap();
        let file = cache.attach("numbered", Arc::new(Numbered)).unwrap();
        scan(&file, 0..4096);
        let reader = cache.reader().unwrap();
        let sizes = (0..4096).map(|page| file.borrow(page, &reader).unwrap().folio().len());
        assert_eq!(sizes.max(), Some(bytes));
    }
    for bytes in [0, 1, 4095, 5000, 12288, 4 << 20, usize::MAX] {
        let error = Cache::new(Options { folio_max_bytes: bytes, ..Options::new(BUDGET as u64) })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            error.to_string(),
            format!(
                "folios of at most {bytes} bytes: it must be a power of two from 4096 to 2097152"
            )
        );
    }
}
