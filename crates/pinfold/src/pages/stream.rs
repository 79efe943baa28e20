//! A handle's access pattern, as its misses show it, and how far to read ahead.
//!
//! Only misses and readahead marks are recorded: a hit writes nothing shared. Misses at adjacent
//! pages are a *run*. Windows then double from 64 KiB to the limit, and two of them are in flight
//! before they are needed. Any other miss reads only what is asked for.
//!
//! # What was read in vain
//!
//! Four adjacent pages are no scan. So a handle has *credit*: the pages that may still be read in
//! vain. It begins with what the first windows read ahead. Each page that is wanted earns a quarter
//! of one. When a run ends, each page that was read ahead of it and that nobody has used costs one.
//! Without credit for the first windows, only a quarter of what is known to be used of the run is
//! read ahead. So what all runs of a handle read in vain is bounded by a quarter of what is wanted,
//! by the credit, and by the windows of the last run that had credit.
//!
//! Where a run comes to a mark, the pages before it count as used. But somebody who reads a part of
//! each window meets all marks: so the pages there are looked at, and the run ends if more than a
//! quarter is unused. Which pages of a folio were read, its entry says (`frames/uses.rs`). If a page
//! that was read ahead is gone before it is used, the run goes on with half of the window.
//!
//! A handle has a few runs at a time, for threads that share it, and maps. What they have read ahead
//! and not used yet is taken from the credit at once, and given back as it is used.
//!
//! Handles come and go, and each file has some. So the cache has a credit, too ([`Credit`]), which
//! all handles earn and use, and a run begins windows only if both allow it. A run that was used for
//! long takes nothing of the cache's in advance: so scans under way leave it to those that begin.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::base::mutant::{self, Mutant};
use crate::base::sync::Mutex;
use crate::frames::{Order, PAGE_BYTES, PAGE_SHIFT};
use crate::source::Hint;

/// The first window of a sequential run.
const WINDOW_MIN_BYTES: usize = 64 << 10;

/// Windows in flight beyond the one being read.
const WINDOWS_AHEAD: u64 = 2;

/// Credit for one page. A page that is wanted earns 1.
const PER_PAGE: i64 = 4;

/// The credit of the first windows of a run, and what a file begins with.
const CREDIT_FIRST: i64 =
    ((WINDOW_MIN_BYTES / PAGE_BYTES) as u64 * (WINDOWS_AHEAD + 1)).cast_signed() * PER_PAGE;

/// More is not kept: who has read in order for long may read at random from now on.
const CREDIT_MAX: i64 = 2 * CREDIT_FIRST;

/// Without credit, a run reads ahead at most this part of the pages that it has used. No more than
/// they earn.
const VAIN_SHARE: u64 = PER_PAGE.cast_unsigned();

/// A run ends where more than this part of what it has read ahead is not used.
const UNUSED_SHARE: u64 = 4;

/// The window's limit, once it was made smaller, grows by this part of it with each window.
const LIMIT_GROWS: u32 = 16;

/// So many pages show what the use of a run is.
const PROVED_PAGES: u32 = 64;

/// How many runs a handle may have at a time.
const RUNS: usize = 4;

/// A run that had windows stays for so many misses and marks of others longer.
const SCAN_STAYS: i64 = 64;

/// What to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The reader waits for the pages before this one.
    pub(crate) now_end: u64,
    /// The pages from there to this one are read ahead.
    pub(crate) ahead_end: u64,
    /// The size of a piece, in pages.
    pub(crate) window_pages: u32,
    /// Whether each piece gets a mark, at which more is read ahead.
    pub(crate) mark: bool,
}

impl Plan {
    /// The pages before `end`, and no more.
    pub(crate) fn of(end: u64) -> Self {
        // Pages in between may be cached already; those after them are wanted all the same.
        Plan { now_end: end, ahead_end: end, window_pages: Order::MAX.frames(), mark: false }
    }
}

/// What became of pages that were read ahead; see [`Handle::unread`](crate::pages::handle::Handle).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    /// Cached, and nobody has used them.
    pub(crate) unused: u64,
    /// Not cached: evicted, or there was no memory for them.
    pub(crate) absent: u64,
}

/// The credit of all handles of a cache. One number that orders nothing: hence not from
/// `crate::base::sync`.
#[derive(Debug)]
pub(crate) struct Credit(AtomicI64);

impl Credit {
    pub(crate) fn new() -> Self {
        Credit(AtomicI64::new(CREDIT_FIRST))
    }

    fn add(&self, credit: i64) {
        // Relaxed, all of this type: see above.
        if self.0.fetch_add(credit, Ordering::Relaxed) + credit > CREDIT_MAX {
            self.0.fetch_min(CREDIT_MAX, Ordering::Relaxed);
        }
    }

    fn is_enough(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= CREDIT_FIRST || mutant::on(Mutant::CreditUnshared)
    }
}

/// What [`Stream`] asks of a handle: the cache's credit, and what became of pages that were read
/// ahead.
type OfHandle<'a, F> = (&'a Credit, F);

/// A handle's state; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Not in the handle, most of whose users look at its first cache lines alone.
    state: Mutex<Box<StreamState>>,
    window_max_pages: u32,
}

#[derive(Debug)]
struct StreamState {
    hint: Option<Hint>,
    /// What may still be read in vain, in parts of a page: see [`PER_PAGE`]. What the runs have read
    /// ahead is not in it.
    credit: i64,
    runs: [ReadRun; RUNS],
    /// The run that went on or began last.
    last: usize,
    /// Counts misses and marks.
    now: u32,
}

const _: () = assert!(size_of::<StreamState>() == 152, "docs/design.md, Limits, says so");

#[derive(Debug, Clone, Copy)]
struct ReadRun {
    /// Its pages before this one are known to be used.
    seen: u64,
    /// From `seen` to this page it was read ahead. A sequential reader's next miss.
    next: u64,
    /// How many of its pages are known to be used.
    used_pages: u32,
    /// The last window, or 0.
    window_pages: u32,
    /// No window is larger.
    limit_pages: u32,
    /// When it went on last.
    at: u32,
}

impl ReadRun {
    const NONE: ReadRun = ReadRun {
        seen: u64::MAX,
        next: u64::MAX,
        used_pages: 0,
        window_pages: 0,
        limit_pages: 0,
        at: 0,
    };

    fn ahead(&self) -> i64 {
        (self.next - self.seen).cast_signed() * PER_PAGE
    }

    /// What it takes of the cache's credit until it is known to be used: nothing of a run that was
    /// used for long, which has earned more by then.
    fn unproved(&self) -> i64 {
        if self.used_pages < PROVED_PAGES { self.ahead().min(CREDIT_FIRST) } else { 0 }
    }

    fn uses(&mut self, pages: u64) {
        self.used_pages = self.used_pages.saturating_add(pages.min(u32::MAX.into()) as u32);
    }
}

impl Stream {
    /// `window_max_bytes`: 0 turns readahead off.
    pub(crate) fn new(window_max_bytes: usize) -> Self {
        let state = StreamState {
            hint: None,
            credit: CREDIT_FIRST,
            runs: [ReadRun::NONE; RUNS],
            last: 0,
            now: 0,
        };
        Stream {
            state: Mutex::new(Box::new(state)),
            window_max_pages: pages_of(window_max_bytes) as u32,
        }
    }

    /// Sets the mode from now on.
    pub(crate) fn advise(&self, hint: Hint) {
        self.state.lock().hint = Some(hint);
    }

    /// A miss at `page`, by a reader that wants `bytes` bytes from there on. `unread` looks at pages
    /// that were read ahead.
    pub(crate) fn on_miss(
        &self,
        page: u64,
        bytes: usize,
        file_bytes: u64,
        (all, unread): OfHandle<'_, impl Fn(Range<u64>) -> Unread>,
    ) -> Plan {
        let mut state = self.state.lock();
        let file_end = file_pages(file_bytes).max(page + 1);
        let wanted = page..(page + pages_of(bytes)).min(file_end);
        let is_random = state.hint == Some(Hint::Random) || self.window_max_pages == 0;
        let found = state.run_at(|run| (run.seen..=run.next).contains(&page));
        let (n, mut run) = state.take(found, all);
        let in_run = found.is_some() && {
            let (unused, ahead) = (unread(run.seen..page).unused, page - run.seen);
            // None of it was used: a batch looks for what is absent before it uses what is there.
            state.sees(&mut run, page, if unused == ahead { 0 } else { unused }, all)
        };
        let goes_on = !is_random && (in_run || state.hint == Some(Hint::Sequential));
        if !in_run || is_random {
            state.breaks_off(&run, file_end, all, &unread);
            let window_pages = if goes_on { run.window_pages } else { 0 };
            run = ReadRun { window_pages, limit_pages: self.window_max_pages, ..ReadRun::NONE };
        } else if page < run.next && run.window_pages > 0 && !mutant::on(Mutant::LostKeepsWindow) {
            // It was read ahead, and is gone before it was used: so much is too much.
            state.pays(unread(page..run.next).absent, all);
            run.window_pages /= 2;
            run.limit_pages = run.window_pages.max(1);
        }
        state.earn(wanted.end - page, all);
        run.uses(wanted.end - page);
        run.seen = wanted.end;
        let window = if goes_on { state.next_window(&run, all) } else { 0 };
        let plan = if window > 0 {
            run.takes(window, self.window_max_pages);
            let now_end = wanted.end.max(page + u64::from(window)).min(file_end);
            let ahead_end = (now_end + WINDOWS_AHEAD * u64::from(window)).min(file_end);
            Plan { now_end, ahead_end, window_pages: window, mark: true }
        } else if goes_on {
            // No more than a part of what was used.
            let ahead = state.may_be_vain(&run, all).min(3 * u64::from(run.limit_pages));
            Plan::of((wanted.end + ahead).min(file_end))
        } else {
            Plan::of(wanted.end)
        };
        run.next = plan.ahead_end;
        state.put(n, run, all);
        plan
    }

    /// A reader meets the mark of the folio that has these pages.
    pub(crate) fn on_mark(
        &self,
        folio: Range<u64>,
        file_bytes: u64,
        (all, unread): OfHandle<'_, impl Fn(Range<u64>) -> Unread>,
    ) -> Plan {
        let mut state = self.state.lock();
        let none = Plan { now_end: folio.end, ahead_end: folio.end, window_pages: 1, mark: false };
        let file_end = file_pages(file_bytes);
        let found = state.run_at(|run| (run.seen..run.next).contains(&folio.start));
        let n = match state.hint {
            Some(Hint::Random) => return none,
            Some(Hint::Sequential) => found.unwrap_or(state.last),
            // Otherwise another handle has set the mark.
            _ => match found {
                Some(n) => n,
                None => return none,
            },
        };
        if state.runs[n].window_pages == 0 {
            return none;
        }
        let (n, mut run) = state.take(Some(n), all);
        let unused = found.map_or(0, |_| unread(run.seen..folio.start).unused);
        if found.is_some() && !state.sees(&mut run, folio.start, unused, all) {
            state.breaks_off(&run, file_end, all, &unread);
            state.put(n, ReadRun { at: 0, ..ReadRun::NONE }, all);
            return none;
        }
        let window = state.next_window(&run, all);
        if window == 0 {
            state.put(n, run, all);
            return none;
        }
        run.takes(window, self.window_max_pages);
        let ahead_end = folio.end + (WINDOWS_AHEAD + 1) * u64::from(window);
        run.next = ahead_end.min(file_end).max(folio.end).max(run.next);
        // No mark comes after that of the file's last piece.
        let is_last = run.next == file_end && folio.start + u64::from(window) >= file_end;
        run.seen = if is_last { run.next } else { folio.start };
        let plan =
            Plan { now_end: folio.end, ahead_end: run.next, window_pages: window, mark: true };
        state.put(n, run, all);
        plan
    }

    /// The handle goes. What it has read in vain, the cache's credit pays for.
    pub(crate) fn end(
        &self,
        file_bytes: u64,
        (all, unread): OfHandle<'_, impl Fn(Range<u64>) -> Unread>,
    ) {
        let mut state = self.state.lock();
        for n in 0..RUNS {
            let (_, run) = state.take(Some(n), all);
            state.breaks_off(&run, file_pages(file_bytes), all, &unread);
            state.put(n, ReadRun::NONE, all);
        }
    }

    /// A miss at `page`: whether the pages around it may be read with it, up to `end`, which is
    /// where a sequential reader misses next. Not if the miss continues a run: [`Self::on_miss`]
    /// says then what to read; nor if the program has said how it reads, or turned readahead off.
    #[cfg(any(feature = "map", test))]
    pub(crate) fn on_fault(&self, page: u64, end: u64) -> bool {
        let mut state = self.state.lock();
        let found = state.run_at(|run| (run.seen..=run.next).contains(&page));
        let around = self.window_max_pages > 0 && state.hint.is_none() && found.is_none();
        if around {
            // It takes the place of no run that has read ahead.
            let n = state.oldest();
            if state.runs[n].seen == state.runs[n].next {
                let limit_pages = self.window_max_pages;
                let run =
                    ReadRun { seen: end, next: end, used_pages: 1, limit_pages, ..ReadRun::NONE };
                state.set(n, run);
            }
        }
        around
    }

    /// Whether the program has said that it reads at random.
    #[cfg(feature = "map")]
    pub(crate) fn is_random(&self) -> bool {
        self.state.lock().hint == Some(Hint::Random)
    }

    /// Whether `page` was read ahead of a run of which little is known yet: then its first use is to
    /// be seen.
    #[cfg(feature = "map")]
    pub(crate) fn is_proving(&self, page: u64) -> bool {
        let state = self.state.lock();
        let is_ahead = |run: &ReadRun| (run.seen..run.next).contains(&page);
        state.hint.is_none()
            && state.run_at(is_ahead).is_some_and(|n| state.runs[n].used_pages < PROVED_PAGES)
    }

    /// The most pages of a read that the program asks for ahead: the largest window, or the first
    /// one if readahead is off.
    pub(crate) fn window_pages(&self) -> u64 {
        match self.window_max_pages {
            0 => pages_of(WINDOW_MIN_BYTES),
            most => most.into(),
        }
    }
}

impl StreamState {
    fn run_at(&self, is_it: impl Fn(&ReadRun) -> bool) -> Option<usize> {
        self.runs.iter().position(is_it)
    }

    /// The run that gives way to a new one. Those that had windows stay for longer: a scan does not
    /// end because of some misses elsewhere.
    fn oldest(&self) -> usize {
        let stays = |run: &ReadRun| if run.window_pages > 0 { SCAN_STAYS } else { 0 };
        // Wraps around after 2^32 misses: then the wrong one gives way, once.
        let age = |n: &usize| {
            let run = &self.runs[*n];
            i64::from(self.now.wrapping_sub(run.at)) - stays(run)
        };
        (0..RUNS).max_by_key(age).unwrap_or(0)
    }

    /// Run `n`, or the one that gives way, to be changed. Its credit is there again, until it is put
    /// back.
    fn take(&mut self, n: Option<usize>, all: &Credit) -> (usize, ReadRun) {
        let n = match (n, self.hint) {
            (Some(n), _) => n,
            (None, Some(Hint::Sequential)) => self.last,
            (None, _) => self.oldest(),
        };
        self.credit += self.runs[n].ahead();
        all.add(self.runs[n].unproved());
        (n, std::mem::replace(&mut self.runs[n], ReadRun::NONE))
    }

    fn put(&mut self, n: usize, run: ReadRun, all: &Credit) {
        self.credit -= run.ahead();
        all.add(-run.unproved());
        self.set(n, run);
    }

    fn set(&mut self, n: usize, run: ReadRun) {
        self.now = self.now.wrapping_add(1);
        self.runs[n] = ReadRun { at: self.now, ..run };
        self.last = n;
    }

    /// The run has come to `page`, and `unused` of the pages that were read ahead before it were not
    /// used. True if those are few enough for the window to stay.
    fn sees(&mut self, run: &mut ReadRun, page: u64, unused: u64, all: &Credit) -> bool {
        let ahead = page - run.seen;
        let unused = if mutant::on(Mutant::SkippedIsUsed) { 0 } else { unused.min(ahead) };
        self.pays(unused, all);
        self.earn(ahead - unused, all);
        run.uses(ahead - unused);
        run.seen = page;
        unused * UNUSED_SHARE <= ahead
    }

    fn earn(&mut self, pages: u64, all: &Credit) {
        self.credit = self.credit.saturating_add_unsigned(pages).min(CREDIT_MAX);
        all.add(pages.cast_signed());
    }

    /// For pages that were read in vain.
    fn pays(&mut self, pages: u64, all: &Credit) {
        let credit = pages.cast_signed() * PER_PAGE;
        self.credit -= credit;
        // What a program says, other handles do not pay for.
        if self.hint != Some(Hint::Sequential) {
            all.add(-credit);
        }
    }

    /// The run ends. What was read ahead of it and not used was read in vain. At the end of the file
    /// no mark says that pages were used, so some of them may have been used and be gone.
    fn breaks_off(
        &mut self,
        run: &ReadRun,
        file_end: u64,
        all: &Credit,
        unread: impl Fn(Range<u64>) -> Unread,
    ) {
        if run.seen < run.next && !mutant::on(Mutant::VainIsFree) {
            let Unread { unused, absent } = unread(run.seen..run.next);
            self.pays(unused + if run.next < file_end { absent } else { 0 }, all);
        }
    }

    /// How many pages may be read in vain, should the run end here.
    fn may_be_vain(&self, run: &ReadRun, all: &Credit) -> u64 {
        if self.hint == Some(Hint::Sequential) || self.credit >= CREDIT_FIRST && all.is_enough() {
            u64::MAX
        } else {
            u64::from(run.used_pages) / VAIN_SHARE
        }
    }

    /// The next window: twice the last one if the limits allow it. 0: not even the first one.
    fn next_window(&self, run: &ReadRun, all: &Credit) -> u32 {
        let least = ((WINDOW_MIN_BYTES / PAGE_BYTES) as u32).min(run.limit_pages);
        let vain = self.may_be_vain(run, all) / (WINDOWS_AHEAD + 1);
        let most = vain.min(run.limit_pages.into()) as u32;
        let window = (run.window_pages * 2).max(least);
        if window <= most {
            window
        } else if most >= least {
            1 << most.ilog2()
        } else {
            0
        }
    }
}

impl ReadRun {
    fn takes(&mut self, window_pages: u32, window_max_pages: u32) {
        self.window_pages = window_pages;
        let grown = self.limit_pages + (self.limit_pages / LIMIT_GROWS).max(1);
        self.limit_pages = grown.min(window_max_pages);
    }
}

/// The pages that `bytes` bytes from the start of a page on take.
fn pages_of(bytes: usize) -> u64 {
    bytes.div_ceil(PAGE_BYTES) as u64
}

fn file_pages(bytes: u64) -> u64 {
    bytes.div_ceil(1 << PAGE_SHIFT)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const FILE: u64 = 1 << 30;

    /// A stream, and the credit of its cache.
    struct Subject(Stream, Credit);

    impl Subject {
        fn new(window_max_bytes: usize) -> Self {
            Subject(Stream::new(window_max_bytes), Credit::new())
        }

        /// A miss, where everything that was read ahead was used so far.
        fn miss(&self, page: u64, bytes: usize) -> Plan {
            self.0.on_miss(page, bytes, FILE, (&self.1, |_| Unread::default()))
        }

        /// A miss, where nothing was.
        fn miss_in_vain(&self, page: u64) -> Plan {
            let unused = |pages: Range<u64>| Unread { unused: pages.end - pages.start, absent: 0 };
            self.0.on_miss(page, 4096, FILE, (&self.1, unused))
        }

        fn mark(&self, page: u64) -> Plan {
            self.0.on_mark(page..page + 1, FILE, (&self.1, |_| Unread::default()))
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
            let unread = |pages: Range<u64>| {
                let is_unused = |it: &u64| !(page..at).contains(it);
                Unread { unused: pages.filter(is_unused).count() as u64, absent: 0 }
            };
            self.0.on_miss(at, 4096, FILE, (&self.1, unread))
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
        let (all, all_used) = (Credit::new(), |_| Unread::default());
        let plan = stream.on_miss(2, 4096, 5 * 4096 + 1, (&all, all_used));
        assert_eq!((plan.now_end, plan.ahead_end), (6, 6));
        assert_eq!(stream.on_mark(5..6, 5 * 4096 + 1, (&all, all_used)).ahead_end, 6);
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
        let unread = |pages: Range<u64>| {
            let unused = pages.filter(|page| page % 16 >= 4).count() as u64;
            Unread { unused, absent: 0 }
        };
        stream.0.on_mark(17..18, FILE, (&stream.1, unread)).window_pages
    }

    #[test]
    fn what_is_skipped_before_a_mark_is_seen() {
        assert_eq!(windows_of_strides(), 1);
        let blind = mutant::with(Some(Mutant::SkippedIsUsed), windows_of_strides);
        assert_eq!(blind, 32, "the mutant does nothing");
    }

    /// The windows of somebody of whose windows each half is gone before it is used, if it has more
    /// than 64 pages.
    fn windows_in_little_memory() -> Vec<u32> {
        let stream = Subject::new(2 << 20);
        stream.miss(0, 4096);
        let mut page = 1;
        let mut windows = Vec::new();
        for _ in 0..60 {
            let gone = |pages: Range<u64>| Unread { unused: 0, absent: pages.end - pages.start };
            let plan = stream.0.on_miss(page, 4096, FILE, (&stream.1, gone));
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
            first.0.end(FILE, (&first.1, |_| Unread { unused: vain, absent: 0 }));
        }
        let second = Subject(Stream::new(2 << 20), first.1);
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
        let fault = |stream: &Subject, page, end| stream.0.on_fault(page, end);
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
}
