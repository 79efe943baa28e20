//! Streams of misses, where a test says what became of what was read ahead.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::*;

const FILE: u64 = 1 << 30;

/// A stream, the credit of its cache, and the pages that `miss` and `mark` have brought.
struct Subject(Stream, Credit, RefCell<BTreeSet<u64>>);

impl Subject {
    fn new(window_max_bytes: usize) -> Self {
        Subject(Stream::new(window_max_bytes), Credit::new(), RefCell::default())
    }

    /// A miss, where everything that was read ahead was used so far.
    fn miss(&self, page: u64, bytes: usize) -> Plan {
        let plan = self.0.on_miss(page, bytes, FILE, (&self.1, &self.all_used()));
        self.2.borrow_mut().extend(page..plan.ahead_end);
        plan
    }

    fn all_used(&self) -> impl Fn(Range<u64>, Asks) -> Unread {
        |pages: Range<u64>, _: Asks| {
            let there = self.2.borrow().range(pages.clone()).count() as u64;
            Unread { unused: 0, absent: pages.end - pages.start - there }
        }
    }

    /// A miss, where nothing was.
    fn miss_in_vain(&self, page: u64) -> Plan {
        let unused =
            |pages: Range<u64>, _: Asks| Unread { unused: pages.end - pages.start, absent: 0 };
        self.0.on_miss(page, 4096, FILE, (&self.1, &unused))
    }

    fn mark(&self, page: u64) -> Plan {
        let plan = self.0.on_mark(page..page + 1, FILE, (&self.1, &self.all_used()));
        self.2.borrow_mut().extend(page..plan.ahead_end);
        plan
    }

    /// A run of four pages at `page`, each of which is wanted alone; how many pages are read
    /// beside them.
    fn block(&self, page: u64) -> u64 {
        let mut at = page;
        // Ends: each turn advances `at`.
        while at < page + 4 {
            at = self.miss_in_vain_of(page, at).ahead_end;
        }
        at - (page + 4)
    }

    /// A miss at `at` of a reader that has used all from `page` on.
    fn miss_in_vain_of(&self, page: u64, at: u64) -> Plan {
        let unread = |pages: Range<u64>, _: Asks| {
            let is_unused = |it: &u64| !(page..at).contains(it);
            Unread { unused: pages.filter(is_unused).count() as u64, absent: 0 }
        };
        self.0.on_miss(at, 4096, FILE, (&self.1, &unread))
    }
}

#[test]
fn random_misses_bring_what_is_asked_for() {
    let stream = Subject::new(2 << 20);
    for page in [7, 100, 3, 50_000] {
        let plan = stream.miss(page, 64);
        assert_eq!((plan.now_end, plan.ahead_end), (page + 1, page + 1));
    }
    assert_eq!(stream.miss(9, 32768).now_end, 17);
}

#[test]
fn a_run_grows_its_windows_to_the_limit() {
    let stream = Subject::new(2 << 20);
    let mut page = 10;
    let mut windows = Vec::new();
    for _ in 0..9 {
        let plan = stream.miss(page, 4096);
        windows.push(if plan.mark { plan.window_pages } else { 0 });
        page = plan.ahead_end;
    }
    assert_eq!(windows, [0, 16, 32, 64, 128, 256, 512, 512, 512]);
}

#[test]
fn nothing_is_read_beyond_the_end() {
    let stream = Stream::new(2 << 20);
    stream.advise(Hint::Sequential);
    let (all, all_used) = (Credit::new(), |_, _| Unread::default());
    let plan = stream.on_miss(2, 4096, 5 * 4096 + 1, (&all, &all_used));
    assert_eq!((plan.now_end, plan.ahead_end), (6, 6));
    assert_eq!(stream.on_mark(5..6, 5 * 4096 + 1, (&all, &all_used)).ahead_end, 6);
}

/// A random reader that meets another handle's mark must not read ahead.
#[test]
fn a_mark_means_nothing_to_a_random_reader() {
    let stream = Subject::new(2 << 20);
    assert!(!stream.miss(7, 65536).mark, "what is asked for needs no mark");
    assert_eq!(stream.mark(7).ahead_end, 8);
    stream.miss(23, 4096);
    assert!(stream.mark(24).ahead_end > 25, "a run, by now");
    assert_eq!(stream.mark(5000).ahead_end, 5001, "not of this run");
    stream.0.advise(Hint::Random);
    assert_eq!(stream.mark(25).ahead_end, 26);
}

/// How many pages a thousand blocks of four make it read beside them.
fn vain_of_blocks() -> u64 {
    let stream = Subject::new(2 << 20);
    (0..1000).map(|n| stream.block(n * 250)).sum()
}

#[test]
fn what_is_read_in_vain_is_a_quarter_of_what_is_wanted() {
    let vain = vain_of_blocks();
    assert!((45..=1100).contains(&vain), "{vain}");
    let for_free = mutant::with(Some(Mutant::VainIsFree), vain_of_blocks);
    assert!(for_free > 10_000, "the mutant does nothing: {for_free}");
}

#[test]
fn a_run_without_credit_earns_windows() {
    let stream = Subject::new(2 << 20);
    stream.block(0);
    let (mut page, mut reads, mut windows) = (1000, 0, Vec::new());
    // Ends: each turn advances `page`.
    while page < 1000 + 4096 {
        let plan = stream.miss(page, 4096);
        windows.extend(plan.mark.then_some(plan.window_pages));
        (page, reads) = (plan.ahead_end, reads + 1);
    }
    assert!(reads < 40, "{reads}");
    assert_eq!((windows[0], windows[windows.len() - 1]), (16, 512), "{windows:?}");
}

/// The windows of somebody who meets each mark, and has used four pages of each 16.
fn windows_of_strides() -> u32 {
    let stream = Subject::new(2 << 20);
    stream.miss(0, 4096);
    let plan = stream.miss(1, 4096);
    assert!(plan.mark);
    let unread = |pages: Range<u64>, _: Asks| {
        let unused = pages.filter(|page| page % 16 >= 4).count() as u64;
        Unread { unused, absent: 0 }
    };
    stream.0.on_mark(17..18, FILE, (&stream.1, &unread)).window_pages
}

#[test]
fn what_is_skipped_before_a_mark_is_seen() {
    assert_eq!(windows_of_strides(), 1);
    let blind = mutant::with(Some(Mutant::SkippedIsUsed), windows_of_strides);
    assert_eq!(blind, 16, "the mutant does nothing");
}

/// The windows of somebody of whose windows each half is gone before it is used, if it has more
/// than 64 pages.
fn windows_in_little_memory() -> Vec<u32> {
    let stream = Subject::new(2 << 20);
    stream.miss(0, 4096);
    let mut page = 1;
    let mut windows = Vec::new();
    for _ in 0..60 {
        let gone =
            |pages: Range<u64>, _: Asks| Unread { unused: 0, absent: pages.end - pages.start };
        let plan = stream.0.on_miss(page, 4096, FILE, (&stream.1, &gone));
        windows.push(plan.window_pages);
        let all = plan.ahead_end - page;
        page += if plan.window_pages > 64 { all / 2 } else { all };
    }
    windows
}

#[test]
fn the_window_shrinks_where_pages_are_gone_before_they_are_used() {
    let shrinks = windows_in_little_memory();
    let large = shrinks.iter().filter(|&&window| window > 64).count();
    assert!((2..15).contains(&large), "{shrinks:?}");
    assert!(shrinks[3..].iter().all(|&window| window >= 32), "{shrinks:?}");
    let stays = mutant::with(Some(Mutant::LostKeepsWindow), windows_in_little_memory);
    assert!(stays[6..].iter().all(|&window| window == 512), "the mutant does nothing");
}

/// How many pages two handles read beside a block of four each, of which the first is `open`.
fn vain_of_two_handles(open: bool) -> (u64, u64) {
    let first = Subject::new(2 << 20);
    let vain = first.block(0);
    if !open {
        first.0.end(FILE, (&first.1, &|_, _| Unread { unused: vain, absent: 0 }));
    }
    let second = Subject(Stream::new(2 << 20), first.1, RefCell::default());
    (vain, second.block(0))
}

#[test]
fn handles_share_the_credit_of_the_cache() {
    for open in [false, true] {
        let (first, second) = vain_of_two_handles(open);
        assert!(first == 45 && second <= 1, "{first} {second}");
    }
    let alone = mutant::with(Some(Mutant::CreditUnshared), || vain_of_two_handles(false));
    assert_eq!(alone, (45, 45), "the mutant does nothing");
}

#[test]
fn a_run_of_faults_begins_with_what_was_read_around_the_first() {
    let stream = Subject::new(2 << 20);
    let absent = |pages: Range<u64>, _: Asks| Unread { unused: 0, absent: pages.end - pages.start };
    let fault = |stream: &Subject, page, end| stream.0.on_fault(page, end, (&stream.1, &absent));
    assert!(fault(&stream, 5, 32));
    assert!(!fault(&stream, 32, 64), "it goes on in order");
    assert_eq!(stream.miss(32, 4096).window_pages, 16);
    assert!(fault(&stream, 1000, 1024), "at random again");
    assert!(!fault(&Subject::new(0), 5, 32), "readahead is off");
    stream.0.advise(Hint::Random);
    assert!(!fault(&stream, 5, 32));
}

#[test]
fn hints_win() {
    let stream = Subject::new(2 << 20);
    stream.miss(0, 4096);
    stream.0.advise(Hint::Random);
    assert_eq!(stream.miss(1, 4096).ahead_end, 2);
    let never = Subject::new(0);
    never.0.advise(Hint::Sequential);
    assert_eq!(never.miss(0, 4096).ahead_end, 1);
    let always = Subject::new(2 << 20);
    always.0.advise(Hint::Sequential);
    for page in [0, 50_000, 7] {
        assert!(always.miss_in_vain(page).mark, "whatever was read in vain");
    }
}

/// Nothing says that a reader goes back, where all of it is cached.
#[test]
fn a_mark_behind_the_last_run_begins_another() {
    let stream = Subject::new(2 << 20);
    stream.0.advise(Hint::Sequential);
    let marked = stream.miss(0, 4096).now_end;
    let far = stream.miss(50_000, 4096);
    let plan = stream.mark(marked);
    assert!(plan.mark && plan.ahead_end <= marked + 1 + 3 * 512, "{plan:?}");
    assert_eq!(plan.vain, (50_001, far.ahead_end - 50_001));
    assert_eq!(stream.mark(marked + 32).vain, (0, 0), "the same run");
}

/// What is given up while a reader goes through `pages` pages from `from` on, none of which is
/// cached; and the last plan.
fn given_up(stream: &Subject, from: u64, pages: u64) -> (Vec<(u64, u64)>, Plan) {
    let (mut plan, mut vain) = (Plan::of(from), Vec::new());
    // Ends: each turn advances `plan.ahead_end`.
    while plan.ahead_end < from + pages {
        plan = stream.miss(plan.ahead_end, 4096);
        vain.extend((plan.vain.1 > 0).then_some(plan.vain));
    }
    (vain, plan)
}

#[test]
fn what_is_ahead_of_a_run_that_is_over_is_given_up() {
    let after_another = |pages| {
        let stream = Subject::new(2 << 20);
        let (none, last) = given_up(&stream, 0, 300);
        assert_eq!((none, last.window_pages), (vec![], 64));
        (given_up(&stream, 10_000, pages).0, last.ahead_end)
    };
    // Three windows, but for the page of the miss.
    let (vain, end) = after_another(900);
    assert_eq!(vain, [(end - 191, 191)]);
    assert_eq!(after_another(100).0, [], "it may go on");
    let stays = || after_another(900).0;
    assert_eq!(mutant::with(Some(Mutant::OverStays), stays), [], "the mutant does nothing");
}

/// Two scans share a handle, and go on by turns.
#[test]
fn a_scan_that_waits_for_its_turn_is_not_over() {
    let stream = Subject::new(2 << 20);
    let (vain, last) = given_up(&stream, 0, 3000);
    assert_eq!((vain, last.window_pages), (vec![], 512));
    let (mut mark, mut other) = (last.now_end, 1 << 30);
    for _ in 0..40 {
        let plan = stream.miss(other, 4096);
        assert_eq!(plan.vain, (0, 0));
        other = plan.ahead_end;
        let plan = stream.mark(mark);
        assert!(plan.mark && plan.vain == (0, 0), "it is over at {mark}");
        mark += u64::from(plan.window_pages);
    }
}

/// Into how many pieces several handles divide what they read. Each goes through the file in order,
/// by faults, and gets what is cached up to the next 512 KiB or mark.
fn pieces_of_all(handles: usize) -> usize {
    const END: u64 = 1 << 15;
    let (all, bytes) = (Credit::new(), END << PAGE_SHIFT);
    let streams: Vec<Stream> = (0..handles).map(|_| Stream::new(2 << 20)).collect();
    let (mut is_cached, mut is_used) = (vec![false; END as usize], vec![false; END as usize]);
    let (mut at, mut marks, mut pieces) = (vec![0; handles], BTreeMap::new(), 0);
    let mut random = 1_u64;
    // Ends: most turns bring a handle further.
    while at.iter().any(|&at| at < END) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let n = (random >> 33) as usize % handles;
        let page = at[n];
        if page == END {
            continue;
        }
        let unread = |pages: Range<u64>, _: Asks| {
            let count = |is: &[bool]| pages.clone().filter(|&page| !is[page as usize]).count();
            let (absent, unused) = (count(&is_cached) as u64, count(&is_used) as u64);
            Unread { absent, unused: unused - absent }
        };
        let around_end = (page / 32 + 1) * 32;
        let plan = if is_cached[page as usize] {
            let end = marks.remove(&page);
            end.map(|end| streams[n].on_mark(page..end, bytes, (&all, &unread)))
        } else if streams[n].on_fault(page, around_end, (&all, &unread)) {
            Some(Plan { window_pages: 32, ..Plan::of(around_end) })
        } else {
            Some(streams[n].on_miss(page, 4096, bytes, (&all, &unread)))
        };
        let plan = plan.unwrap_or(Plan::of(page + 1));
        pieces += usize::from(!is_cached[page as usize]);
        is_cached[page as usize..plan.now_end as usize].fill(true);
        let mut from = plan.now_end;
        let absent = |is_cached: &[bool], from: u64| {
            (from..plan.ahead_end).find(|&page| !is_cached[page as usize])
        };
        // Ends: each turn advances `from`.
        while let Some(start) = absent(&is_cached, from) {
            let window = u64::from(plan.window_pages);
            from = plan.ahead_end.min((start / window + 1) * window);
            is_cached[start as usize..from as usize].fill(true);
            pieces += 1;
            marks.extend(plan.mark.then_some((start, from)));
        }
        let end = (page / 128 + 1) * 128;
        let goes_on = |page: &u64| is_cached[*page as usize] && !marks.contains_key(page);
        at[n] = (page + 1..end).find(|page| !goes_on(page)).unwrap_or(end);
        is_used[page as usize..at[n] as usize].fill(true);
    }
    pieces
}

#[test]
fn handles_that_read_for_each_other_have_large_windows() {
    let pieces = [1, 2, 4, 8].map(pieces_of_all);
    let alone = mutant::with(Some(Mutant::OthersEndRun), || [1, 2, 4, 8].map(pieces_of_all));
    assert!(pieces[0] < 100, "parts of windows lead to more of them: {pieces:?}");
    let pairs = || pieces.into_iter().zip(alone).skip(1);
    assert!(pairs().all(|(all, alone)| 3 * all < alone), "{pieces:?} {alone:?}");
}

/// Somebody else uses parts of the file all the time. A page before each and one behind it are no
/// scan.
#[test]
fn what_others_use_proves_nothing() {
    for hot in [4, 24, 100, 500] {
        let stream = Subject::new(2 << 20);
        let unread = |pages: Range<u64>, _: Asks| {
            let is_unused = |page: &u64| !(1..=hot).contains(&(page % 5000));
            Unread { unused: pages.filter(is_unused).count() as u64, absent: 0 }
        };
        let mut ahead = 0;
        for n in 0..200 {
            for page in [n * 5000, n * 5000 + hot + 1] {
                let plan = stream.0.on_miss(page, 4096, 1 << 40, (&stream.1, &unread));
                ahead += plan.ahead_end - (page + 1);
            }
        }
        assert!(ahead <= 400 / 4 + 48, "{hot} pages are used: {ahead}");
    }
}
