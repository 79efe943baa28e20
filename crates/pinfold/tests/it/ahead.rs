//! How much is read from a source for what is wanted of it, by each way in, without a hint: little
//! more than is wanted where nobody reads in order, and few reads where somebody does.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use pinfold::source::{Extent, Source};
use pinfold::{Cache, File, Map, Options, ReadAt, Reader, Space, SpaceOptions};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

const BUDGET: u64 = 32 * MIB;

/// Eight times the budget.
const LEN: u64 = 8 * BUDGET;

/// Zeros.
#[derive(Debug)]
struct Zeros(u64);

impl Source for Zeros {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.saturating_sub(offset).min(buf.len() as u64) as usize;
        buf[..bytes].fill(0);
        Ok(bytes)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0)
    }
    fn kind(&self) -> Cow<'static, str> {
        "zeros".into()
    }
    fn read_extents_at(&self, offset: u64, extents: &[Extent<'_>]) -> io::Result<usize> {
        let asked: usize = extents.iter().map(Extent::bytes).sum();
        for extent in extents {
            // SAFETY: the extent's memory is writable for the duration of the call.
            unsafe { std::ptr::write_bytes(extent.address().as_ptr(), 0, extent.bytes()) };
        }
        Ok(self.0.saturating_sub(offset).min(asked as u64) as usize)
    }
}

/// Makes an enumeration, and an array of all that it has.
macro_rules! ways {
    ($($way:ident),*) => {
        /// The ways in.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Way { $($way),* }
        const WAYS: &[Way] = &[$(Way::$way),*];
    };
}

ways!(
    ReadAt,
    ReadAtByPage,
    ReadAtBy512,
    Get,
    GetThenReadAt,
    Borrow,
    BorrowThenReadAt,
    Optimistic,
    Pin,
    PinByPage,
    GetMany,
    GetManyByTwo,
    ReadMany,
    BorrowMany,
    ReadAtAsync,
    ReadAtAsyncByPage,
    GetAsync,
    GetManyAsync,
    Map,
    MapByHandlers
);

use Way::*;

/// A cache, a file, and a map of it for the ways that need one.
struct Subject {
    way: Way,
    cache: Cache,
    file: File,
    reader: Reader,
    map: Option<Map>,
    runtime: tokio::runtime::Runtime,
}

impl Subject {
    fn new(way: Way) -> Self {
        Subject::with(way, BUDGET, LEN)
    }

    fn with(way: Way, budget: u64, len: u64) -> Self {
        let cache = Cache::new(Options::new(budget)).unwrap();
        let file = cache.attach("zeros", Arc::new(Zeros(len))).unwrap();
        let space = |options: SpaceOptions| Space::with(&cache, options).unwrap();
        let map = match way {
            Map => Some(space(SpaceOptions::default())),
            MapByHandlers => Some(space(SpaceOptions { handlers: 1, ..SpaceOptions::default() })),
            _ => None,
        };
        let map = map.map(|space| space.map_file(&file, 0..len).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let reader = cache.reader().unwrap();
        Subject { way, cache, file, reader, map, runtime }
    }

    /// Reads a range of whole pages, in order.
    fn read(&self, offset: u64, bytes: u64) {
        self.read_by(&self.file, offset, bytes);
    }

    fn read_by(&self, file: &File, offset: u64, bytes: u64) {
        let mut buf = vec![1; bytes as usize];
        let pages: Vec<u64> = (offset / PAGE..(offset + bytes) / PAGE).collect();
        let block_on_read = |at: u64, buf: &mut [u8]| {
            self.runtime.block_on(file.read_at_async(buf, at)).unwrap();
        };
        match self.way {
            ReadAt => assert_eq!(file.read_at(&mut buf, offset).unwrap(), bytes as usize),
            ReadAtByPage | ReadAtBy512 => {
                let step = if self.way == ReadAtBy512 { 512 } else { PAGE };
                for at in (0..bytes).step_by(step as usize) {
                    file.read_at(&mut buf[..step as usize], offset + at).unwrap();
                }
            }
            Get => pages.iter().for_each(|&page| assert_eq!(file.get(page).unwrap()[0], 0)),
            GetThenReadAt => {
                file.get(pages[0]).unwrap();
                file.read_at(&mut buf, offset).unwrap();
            }
            Borrow => {
                for &page in &pages {
                    drop(file.borrow(page, &self.reader).unwrap());
                }
            }
            BorrowThenReadAt => {
                drop(file.borrow(pages[0], &self.reader).unwrap());
                file.read_at(&mut buf, offset).unwrap();
            }
            Optimistic => pages.iter().for_each(|&page| {
                file.optimistic(page).unwrap();
            }),
            Pin => drop(file.pin(offset..offset + bytes).unwrap()),
            PinByPage => pages.iter().for_each(|&page| {
                drop(file.pin(page * PAGE..(page + 1) * PAGE).unwrap());
            }),
            GetMany => drop(file.get_many(&pages).unwrap()),
            GetManyByTwo => pages.chunks(2).for_each(|two| drop(file.get_many(two).unwrap())),
            ReadMany => {
                let parts = buf.chunks_mut(PAGE as usize).zip(&pages);
                let mut reads: Vec<_> = parts
                    .map(|(buf, &page)| ReadAt { offset: page * PAGE, buf, result: Ok(0) })
                    .collect();
                file.read_many(&mut reads).unwrap();
            }
            BorrowMany => pages.chunks(8).for_each(|some| {
                drop(file.borrow_many(some, &self.reader).unwrap());
            }),
            ReadAtAsync => block_on_read(offset, &mut buf),
            ReadAtAsyncByPage => {
                for (buf, &page) in buf.chunks_mut(PAGE as usize).zip(&pages) {
                    block_on_read(page * PAGE, buf);
                }
            }
            GetAsync => {
                for &page in &pages {
                    self.runtime.block_on(file.get_async(page)).unwrap();
                }
            }
            GetManyAsync => drop(self.runtime.block_on(file.get_many_async(&pages)).unwrap()),
            Map | MapByHandlers => {
                let map = self.map.as_ref().unwrap().as_ptr();
                for &page in &pages {
                    // SAFETY: a byte of the map, which nobody changes.
                    let byte = unsafe { map.wrapping_add((page * PAGE) as usize).read_volatile() };
                    assert_eq!(byte, 0);
                }
            }
        }
    }

    /// How many reads of the source, and how many bytes of it, once nothing is on its way.
    fn read_from_source(&self) -> (u64, u64) {
        // Ends: what is on its way arrives.
        while self.cache.stats().fills_in_flight > 0 {
            std::thread::yield_now();
        }
        let sources = self.cache.sources();
        let lanes = sources.iter().flat_map(|(_, it)| [&it.read, &it.read_ahead]);
        lanes.fold((0, 0), |(calls, bytes), it| (calls + it.calls, bytes + it.bytes))
    }
}

/// What is read for a byte that is wanted, in ranges of pages that `next` gives.
fn amplification(subject: &Subject, times: u64, mut next: impl FnMut(u64) -> (u64, u64)) -> f64 {
    let (_, before) = subject.read_from_source();
    let mut wanted = 0;
    for n in 0..times {
        let (page, pages) = next(n);
        subject.read(page * PAGE, pages * PAGE);
        wanted += pages * PAGE;
    }
    let (_, after) = subject.read_from_source();
    (after - before) as f64 / wanted as f64
}

/// All ways, and how much more they read than is wanted.
fn at_most_half_more(what: &str, next: impl Fn(&mut fastrand::Rng, u64) -> (u64, u64)) {
    let mut wrong = Vec::new();
    for &way in WAYS {
        let mut random = fastrand::Rng::with_seed(7);
        let ratio = amplification(&Subject::new(way), 600, |n| next(&mut random, n));
        if ratio > 1.5 {
            wrong.push(format!("{way:?} {ratio:.2}"));
        }
    }
    assert!(wrong.is_empty(), "{what}: {}", wrong.join(", "));
}

const PAGES: u64 = LEN / PAGE;

#[test]
fn blocks_at_random_are_read_alone_by_each_way_in() {
    for pages in [1, 2, 4, 8, 16] {
        let block = |random: &mut fastrand::Rng, _| (random.u64(0..PAGES / pages) * pages, pages);
        at_most_half_more(&format!("blocks of {pages} pages"), block);
    }
}

#[test]
fn short_runs_at_random_are_read_alone() {
    at_most_half_more("runs of 2 to 6 pages", |random, _| {
        let pages = random.u64(2..=6);
        (random.u64(0..PAGES - pages), pages)
    });
    at_most_half_more("runs of 1 to 40 pages", |random, _| {
        let pages = random.u64(1..=40);
        (random.u64(0..PAGES - pages), pages)
    });
}

#[test]
fn strides_and_the_way_back_are_read_alone() {
    at_most_half_more("each second page", |_, n| (2 * n, 1));
    at_most_half_more("four pages of each 16", |_, n| (16 * n, 4));
    at_most_half_more("four pages of each 16, from the third on", |_, n| (16 * n + 3, 4));
    at_most_half_more("eight pages of each 64", |_, n| (64 * n, 8));
    at_most_half_more("pages backwards", |_, n| (PAGES - 1 - n, 1));
    at_most_half_more("blocks of four pages backwards", |_, n| (PAGES - 4 * (n + 1), 4));
}

/// What is read for a byte that is wanted, where a reader goes through a file and reads those pages
/// alone that `takes` says.
fn rising(way: Way, takes: impl Fn(&mut fastrand::Rng, u64) -> bool) -> f64 {
    let subject = Subject::new(way);
    let mut random = fastrand::Rng::with_seed(11);
    let mut wanted = 0;
    // Ends: each turn advances `page`.
    for page in (0..PAGES).filter(|&page| takes(&mut random, page)).take(1500) {
        subject.read(page * PAGE, PAGE);
        wanted += PAGE;
    }
    subject.read_from_source().1 as f64 / wanted as f64
}

#[test]
fn what_a_rising_reader_skips_is_not_read() {
    let mut wrong = Vec::new();
    for &way in WAYS {
        let mut check = |what: String, ratio: f64| {
            if ratio > 1.5 {
                wrong.push(format!("{way:?} {what} {ratio:.2}"));
            }
        };
        for (pages, of) in [
            (1, 2),
            (2, 6),
            (2, 4),
            (3, 6),
            (4, 8),
            (5, 8),
            (2, 3),
            (7, 10),
            (4, 16),
            (8, 24),
            (32, 64),
        ] {
            check(format!("{pages} of {of}"), rising(way, |_, page| page % of < pages));
        }
        for percent in [10, 20, 30, 40, 50, 60, 70] {
            check(format!("{percent} %"), rising(way, |random, _| random.u64(0..100) < percent));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}

/// Folios of a scan are too large to know each page of: a sample of them says what is skipped.
#[test]
fn what_is_skipped_after_a_scan_is_not_read() {
    let mut wrong = Vec::new();
    for &way in WAYS {
        for (pages, of) in [(1, 8), (1, 3), (4, 8), (8, 64)] {
            let subject = Subject::with(way, 256 * MIB, 4 * 256 * MIB);
            for at in (0..64 * MIB).step_by(64 << 10) {
                subject.read(at, 64 << 10);
            }
            let first = 64 * MIB / PAGE;
            let ratio = amplification(&subject, 1500, |n| (first + n / pages * of + n % pages, 1));
            if ratio > 1.5 {
                wrong.push(format!("{way:?} {pages} of {of} {ratio:.2}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}

/// Whether it reads the subject's map, and no other file.
fn is_map(way: Way) -> bool {
    matches!(way, Map | MapByHandlers)
}

/// The first pages of many files: of large and of small ones, which are closed or stay open.
#[test]
fn the_first_pages_of_many_files_are_read_alone() {
    let mut wrong = Vec::new();
    for &way in WAYS.iter().filter(|&&way| !is_map(way)) {
        for (len, pages, open) in
            [(MIB, 2, false), (MIB, 3, true), (30 * PAGE, 2, false), (30 * PAGE, 2, true)]
        {
            let subject = Subject::new(way);
            let mut files = Vec::new();
            let before = subject.read_from_source().1;
            for n in 0..200 {
                let file = subject.cache.attach(&format!("{n}"), Arc::new(Zeros(len))).unwrap();
                (0..pages).for_each(|page| subject.read_by(&file, page * PAGE, PAGE));
                if open {
                    files.push(file);
                }
            }
            let all = (subject.read_from_source().1 - before) as f64;
            let ratio = all / (200 * pages * PAGE) as f64;
            if ratio > 1.5 {
                wrong.push(format!("{way:?} {pages} pages of {len} bytes, {open}: {ratio:.2}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files of which each is read in order up to some page, and that stay open.
#[test]
fn files_that_are_read_in_part_and_stay_open_are_read_little_further() {
    let mut wrong = Vec::new();
    for &way in WAYS.iter().filter(|&&way| !is_map(way)) {
        for pages in [20, 60, 100, 200, 400] {
            let subject = Subject::new(way);
            let files: Vec<_> = (0..40)
                .map(|n| {
                    let source = Arc::new(Zeros(8 * MIB));
                    let file = subject.cache.attach(&format!("{n}"), source).unwrap();
                    (0..pages).for_each(|page| subject.read_by(&file, page * PAGE, PAGE));
                    file
                })
                .collect();
            let read = subject.read_from_source().1;
            let ratio = read as f64 / (files.len() as u64 * pages * PAGE) as f64;
            if ratio > 1.5 {
                wrong.push(format!("{way:?} {pages} pages: {ratio:.2}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Many files that are read whole, page by page, and stay open: the credit of each comes back.
#[test]
fn many_files_that_are_read_whole_need_few_reads() {
    for way in [ReadAtByPage, Get, Borrow] {
        let subject = Subject::new(way);
        let before = subject.read_from_source().0;
        let files: Vec<File> = (0..100)
            .map(|n| {
                let file =
                    subject.cache.attach(&format!("{n}"), Arc::new(Zeros(50 * PAGE))).unwrap();
                subject.read_by(&file, 0, 50 * PAGE);
                file
            })
            .collect();
        let reads = subject.read_from_source().0 - before;
        println!("{way:?}: {} files, {reads} reads", files.len());
        assert!(reads <= 8 * files.len() as u64, "{way:?}: {reads} reads");
    }
}

/// Also where each block is read by a handle of its own, as by a server that opens a file for each
/// request.
#[test]
fn a_new_handle_knows_what_those_before_it_have_seen() {
    let mut wrong = Vec::new();
    for &way in WAYS {
        let subject = Subject::new(way);
        let (mut random, mut wanted) = (fastrand::Rng::with_seed(3), 0);
        for _ in 0..300 {
            let page = random.u64(0..PAGES / 4) * 4;
            subject.read_by(&subject.file.clone(), page * PAGE, 4 * PAGE);
            wanted += 4 * PAGE;
        }
        let ratio = subject.read_from_source().1 as f64 / wanted as f64;
        if ratio > 1.5 {
            wrong.push(format!("{way:?} {ratio:.2}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}

/// A scan by one handle, beside blocks at random by another.
#[test]
fn a_scan_and_random_blocks_by_two_handles_do_not_learn_from_each_other() {
    let mut wrong = Vec::new();
    for &way in WAYS {
        let subject = Subject::new(way);
        let scan = subject.file.clone();
        let (mut random, mut buf) = (fastrand::Rng::with_seed(5), vec![0; 16 << 10]);
        let blocks = 1000;
        for n in 0..blocks {
            scan.read_at(&mut buf, n * (16 << 10)).unwrap();
            let page = PAGES / 2 + random.u64(0..PAGES / 8) * 4;
            subject.read(page * PAGE, 4 * PAGE);
        }
        let wanted = 2 * blocks * (16 << 10);
        let ratio = subject.read_from_source().1 as f64 / wanted as f64;
        if ratio > 1.5 {
            wrong.push(format!("{way:?} {ratio:.2}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}

/// A handle that has read all in order, and then reads at random.
#[test]
fn a_handle_that_has_scanned_reads_blocks_alone() {
    let mut wrong = Vec::new();
    for &way in WAYS {
        let subject = Subject::new(way);
        for at in (0..64 * MIB).step_by(16 << 10) {
            subject.read(at, 16 << 10);
        }
        let mut random = fastrand::Rng::with_seed(5);
        let block = |_| (PAGES / 2 + random.u64(0..PAGES / 4) * 2, 2);
        let ratio = amplification(&subject, 1000, block);
        if ratio > 1.5 {
            wrong.push(format!("{way:?} {ratio:.2}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}

/// A scan of 64 MiB, and one by four clones in turns: few reads, of little more than is wanted.
/// Clones that read ahead of each other evict what others have not come to yet, so they read more.
#[test]
fn scans_need_few_reads() {
    let mut wrong = Vec::new();
    let bytes = 64 * MIB;
    for &way in WAYS {
        for piece in [16 << 10, MIB] {
            let subject = Subject::new(way);
            for at in (0..bytes).step_by(piece as usize) {
                subject.read(at, piece);
            }
            let one = subject.read_from_source();
            let subject = Subject::new(way);
            let files = [(); 4].map(|()| subject.file.clone());
            for at in (0..bytes / 4).step_by(piece as usize) {
                for (n, file) in (0..).zip(&files) {
                    subject.read_by(file, n * (LEN / 4) + at, piece);
                }
            }
            let four = subject.read_from_source();
            let ratio = |(_, read): (u64, u64)| read as f64 / bytes as f64;
            let line = format!(
                "{way:?}, pieces of {piece}: one {} reads, {:.2} bytes for a byte; four {}, {:.2}",
                one.0,
                ratio(one),
                four.0,
                ratio(four)
            );
            println!("{line}");
            // Pins read what is pinned.
            let (one_most, four_most) = match way {
                Pin => (bytes / piece, bytes / piece),
                PinByPage => (bytes / PAGE, bytes / PAGE),
                _ => (800, 3000),
            };
            if one.0 > one_most || four.0 > four_most || ratio(one) > 1.2 || ratio(four) > 2.0 {
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Who takes the whole folio of a page has read all of it.
#[test]
fn a_scan_by_folios_needs_few_reads() {
    let bytes = 128 * MIB;
    for by_get in [true, false] {
        let subject = Subject::new(if by_get { Get } else { Borrow });
        let mut at = 0;
        while at < bytes {
            let page = at / PAGE;
            let folio = |folio: &[u8], offset: u64| offset + folio.len() as u64;
            at = if by_get {
                let guard = subject.file.get(page).unwrap();
                folio(guard.folio(), guard.folio_offset())
            } else {
                let guard = subject.file.borrow(page, &subject.reader).unwrap();
                folio(guard.folio(), guard.folio_offset())
            };
        }
        let (reads, read) = subject.read_from_source();
        println!("by get: {by_get}: {reads} reads of {read} bytes");
        assert!(
            reads <= 1600 && read as f64 <= bytes as f64 * 1.2,
            "{reads} reads of {read} bytes"
        );
    }
}
