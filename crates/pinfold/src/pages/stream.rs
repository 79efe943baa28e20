//! A handle's access pattern, as its misses and readahead marks show it, and how far to read ahead.
//!
//! Misses at adjacent pages are a *run*. Windows then double from 64 KiB to the limit, and two of
//! them are in flight before they are needed. Any other miss reads only what is asked for. A handle
//! has a few runs at a time, for threads that share it, and maps.
//!
//! A handle has *credit*: the pages that may still be read in vain, at first what the first windows
//! read ahead. Each page that is wanted earns a quarter of one. What is read ahead is taken from
//! the credit at once, and given back as it is used. Without credit for the first windows, only a
//! quarter of what is known to be used of the run is read ahead. All handles of the cache also have
//! a [`Credit`] together, and a run begins windows only if both allow it. Of that, a run takes only
//! what is ahead of it beyond what it has earned: scans under way leave it to new ones.
//!
//! Where a run comes to a mark, the pages before it count as used, but for what is unread
//! (`frames/uses.rs`); the run ends if that is more than a quarter. If a page that was read ahead
//! is gone before it is used, the run goes on with half of the window. It also goes on at a page
//! behind its end if all pages between are cached and used: handles that read at about the same
//! place read for each other.
//!
//! If a run stands still while the handle's others use as many pages as it has ahead, three windows
//! at least, it counts as over: a reader that goes back to the start of a loop may find all of it
//! cached. What is ahead of it is evicted then, where memory is short ([`Plan::vain`]).

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

/// The credit of the first windows, and what a file begins with.
const CREDIT_FIRST: i64 =
    ((WINDOW_MIN_BYTES / PAGE_BYTES) as u64 * (WINDOWS_AHEAD + 1)).cast_signed() * PER_PAGE;

/// Who has read in order for long may read at random from now on.
const CREDIT_MAX: i64 = 2 * CREDIT_FIRST;

/// Without credit, a run reads ahead this part of the pages that it has used: what they earn.
const VAIN_SHARE: u64 = PER_PAGE.cast_unsigned();

/// A run ends where more than this part of what it has read ahead is not used.
const UNUSED_SHARE: u64 = 4;

/// Once it was made smaller, by this part of it with each window.
const LIMIT_GROWS: u32 = 16;

/// So many pages show what the use of a run is.
const PROVED_PAGES: u32 = 64;

/// That are looked at together, until one is absent.
const CLOSE_PAGES: u64 = 128;

/// A run goes on at most so many pages behind its end for each page that it has used, but for the
/// first: a miss alone goes on nowhere.
const NEAR_PER_PAGE: u64 = 32;

const RUNS: usize = 4;

/// A run that had windows stays at least for so many pages of others longer.
const SCAN_STAYS: i64 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The reader waits for these.
    pub(crate) now_end: u64,
    /// From `now_end` on.
    pub(crate) ahead_end: u64,
    pub(crate) window_pages: u32,
    /// Whether each piece gets a mark.
    pub(crate) mark: bool,
    /// Pages that were read ahead of a run that is over: from the first, so many.
    pub(crate) vain: (u64, u64),
}

impl Plan {
    pub(crate) fn of(end: u64) -> Self {
        // Pages in between may be cached already; those after them are wanted all the same.
        let window_pages = Order::MAX.frames();
        Plan { now_end: end, ahead_end: end, window_pages, mark: false, vain: (0, 0) }
    }
}

/// Who is asked about pages that were read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// The index and the entries: hollow folios count as used.
    Index,
    /// The page tables, too, which takes system calls.
    Maps,
}

/// What became of pages that were read ahead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) unused: u64,
    /// Evicted, or there was no memory for them.
    pub(crate) absent: u64,
}

/// The credit of all handles of a cache: one number, which orders nothing.
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

/// The credit of the cache, and what is known of pages that were read ahead.
pub(crate) type OfHandle<'a> = (&'a Credit, &'a dyn Fn(Range<u64>, Asks) -> Unread);

#[derive(Debug)]
pub(crate) struct Stream {
    /// Not in the handle: few use it.
    state: Mutex<Box<StreamState>>,
    window_max_pages: u32,
}

#[derive(Debug)]
struct StreamState {
    hint: Option<Hint>,
    /// Whether faults miss.
    is_map: bool,
    /// See [`PER_PAGE`]. Without what the runs have read ahead.
    credit: i64,
    runs: [ReadRun; RUNS],
    /// The run that went on or began last.
    last: usize,
    /// Counts misses and marks, and the pages that are used.
    now: u32,
}

const _: () = assert!(size_of::<StreamState>() == 152, "docs/design.md, Limits, says so");

#[derive(Debug, Clone, Copy)]
struct ReadRun {
    /// Pages before this one are known to be used.
    seen: u64,
    /// From `seen` on it was read ahead. A sequential reader's next miss.
    next: u64,
    /// Known to be used.
    used_pages: u32,
    /// The last window, or 0.
    window_pages: u32,
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

    /// What it takes of the cache's credit until it is known to be used.
    fn unproved(&self) -> i64 {
        (self.ahead() - i64::from(self.used_pages)).max(0)
    }

    /// For how many pages of others it stays though it does not go on.
    fn stays(&self) -> i64 {
        if self.window_pages == 0 {
            return 0;
        }
        SCAN_STAYS.max((self.next - self.seen).cast_signed())
    }

    /// As in [`Plan::vain`], if it had windows.
    fn vain(&self) -> (u64, u64) {
        if self.window_pages == 0 { (0, 0) } else { (self.seen, self.next - self.seen) }
    }

    fn uses(&mut self, pages: u64) {
        self.used_pages = self.used_pages.saturating_add(pages.min(u32::MAX.into()) as u32);
    }

    fn takes(&mut self, window_pages: u32, window_max_pages: u32) {
        self.window_pages = window_pages;
        let grown = self.limit_pages + (self.limit_pages / LIMIT_GROWS).max(1);
        self.limit_pages = grown.min(window_max_pages);
    }
}

impl Stream {
    /// `window_max_bytes`: 0 turns readahead off.
    pub(crate) fn new(window_max_bytes: usize) -> Self {
        let state = StreamState {
            hint: None,
            is_map: false,
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

    pub(crate) fn advise(&self, hint: Hint) {
        self.state.lock().hint = Some(hint);
    }

    /// A miss at `page`, by a reader that wants `bytes` bytes from there on.
    pub(crate) fn on_miss(
        &self,
        page: u64,
        bytes: usize,
        file_bytes: u64,
        of @ (all, unread): OfHandle<'_>,
    ) -> Plan {
        let mut state = self.state.lock();
        let file_end = file_pages(file_bytes).max(page + 1);
        let wanted = page..(page + pages_of(bytes)).min(file_end);
        let is_random = state.hint == Some(Hint::Random) || self.window_max_pages == 0;
        let found = state.run_at(|run| (run.seen..=run.next).contains(&page));
        let found = found.or_else(|| self.run_before(&state, page, unread));
        let (n, mut run) = state.take(found, all);
        let in_run = found.is_some() && {
            let unused = unread(run.seen..page.min(run.next), Asks::Maps).unused;
            state.sees(&mut run, page, unused, all)
        };
        let goes_on = !is_random && (in_run || state.hint == Some(Hint::Sequential));
        let mut vain = (0, 0);
        if !in_run || is_random {
            state.breaks_off(&run, file_end, of);
            vain = run.vain();
            let window_pages = if goes_on { run.window_pages } else { 0 };
            run = ReadRun { window_pages, limit_pages: self.window_max_pages, ..ReadRun::NONE };
        } else if page < run.next && run.window_pages > 0 && !mutant::on(Mutant::LostKeepsWindow) {
            // It was read ahead, and is gone before it was used: so much is too much.
            state.pays(unread(page..run.next, Asks::Index).absent, all);
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
            Plan { ahead_end, window_pages: window, mark: true, ..Plan::of(now_end) }
        } else if goes_on {
            let ahead = state.may_be_vain(&run, all).min(3 * u64::from(run.limit_pages));
            Plan::of((wanted.end + ahead).min(file_end))
        } else {
            Plan::of(wanted.end)
        };
        run.next = plan.ahead_end;
        state.put(n, run, all);
        if vain.1 == 0 {
            vain = state.ends_one(file_end, of);
        }
        Plan { vain, ..plan }
    }

    /// At the mark of the folio that has these pages.
    pub(crate) fn on_mark(
        &self,
        folio: Range<u64>,
        file_bytes: u64,
        of @ (all, unread): OfHandle<'_>,
    ) -> Plan {
        let mut state = self.state.lock();
        let none = Plan { window_pages: 1, ..Plan::of(folio.end) };
        let file_end = file_pages(file_bytes);
        let found = state.run_at(|run| (run.seen..run.next).contains(&folio.start));
        let found = found.or_else(|| self.run_before(&state, folio.start, unread));
        let is_sequential = state.hint == Some(Hint::Sequential);
        let last = Some(state.last).filter(|&n| is_sequential && state.runs[n].window_pages > 0);
        // Otherwise another handle has set the mark.
        let Some(n) = found.or(last).filter(|_| state.hint != Some(Hint::Random)) else {
            return none;
        };
        let (n, mut run) = state.take(Some(n), all);
        let goes_on = found.is_some() && {
            let unused = unread(run.seen..folio.start.min(run.next), Asks::Maps).unused;
            state.sees(&mut run, folio.start, unused, all)
        };
        let mut vain = (0, 0);
        if goes_on && run.window_pages == 0 && run.used_pages < PROVED_PAGES {
            state.put(n, run, all);
            return none;
        }
        if !goes_on {
            state.breaks_off(&run, file_end, of);
            vain = run.vain();
            if found.is_some() {
                state.put(n, ReadRun::NONE, all);
                return Plan { vain, ..none };
            }
            run = ReadRun {
                seen: folio.start,
                next: folio.end,
                window_pages: run.window_pages,
                limit_pages: self.window_max_pages,
                ..ReadRun::NONE
            };
        }
        let window = state.next_window(&run, all);
        if window == 0 {
            state.put(n, run, all);
            return Plan { vain, ..none };
        }
        run.takes(window, self.window_max_pages);
        let ahead_end = folio.end + (WINDOWS_AHEAD + 1) * u64::from(window);
        // A part of a window would have a mark, at which another part is read, and so on. But of
        // large folios little is known of what calls read (`frames/uses.rs`).
        let part = if state.is_map { ahead_end % u64::from(window) } else { 0 };
        let ahead_end = ahead_end - part;
        run.next = ahead_end.min(file_end).max(folio.end).max(run.next);
        // No mark comes after that of the file's last piece.
        let is_last = run.next == file_end && folio.start + u64::from(window) >= file_end;
        run.seen = if is_last { run.next } else { folio.start };
        let ahead_end = run.next;
        state.put(n, run, all);
        if vain.1 == 0 {
            vain = state.ends_one(file_end, of);
        }
        Plan { ahead_end, window_pages: window, mark: true, vain, ..none }
    }

    /// The handle goes; as in [`Plan::vain`] of each run.
    pub(crate) fn end(&self, file_bytes: u64, of: OfHandle<'_>) -> [(u64, u64); RUNS] {
        let mut state = self.state.lock();
        std::array::from_fn(|n| {
            let (_, run) = state.take(Some(n), of.0);
            state.breaks_off(&run, file_pages(file_bytes), of);
            state.put(n, ReadRun::NONE, of.0);
            run.vain()
        })
    }

    /// A miss at `page`: whether the pages around it may be read with it, up to `end`, where a
    /// sequential reader misses next. Not if it continues a run or has a hint.
    #[cfg(any(feature = "map", test))]
    pub(crate) fn on_fault(&self, page: u64, end: u64, (_, unread): OfHandle<'_>) -> bool {
        let mut state = self.state.lock();
        state.is_map = true;
        let goes_on = |state: &StreamState| {
            let found = state.run_at(|run| (run.seen..=run.next).contains(&page));
            found.or_else(|| self.run_before(state, page, unread)).is_some()
        };
        let around = self.window_max_pages > 0 && state.hint.is_none() && !goes_on(&state);
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

    /// The run that ends before `page`, if all between is cached and used: others have read it.
    fn run_before(
        &self,
        state: &StreamState,
        page: u64,
        unread: &dyn Fn(Range<u64>, Asks) -> Unread,
    ) -> Option<usize> {
        if state.hint == Some(Hint::Random) || mutant::on(Mutant::OthersEndRun) {
            return None;
        }
        let window_pages = self.window_max_pages.min(Order::MAX.frames());
        let most = (WINDOWS_AHEAD + 1) * u64::from(window_pages);
        state.run_at(|run| {
            let most = most.min(NEAR_PER_PAGE * u64::from(run.used_pages.saturating_sub(1)));
            let between = run.next..page;
            let is_near = between.start <= page && page - between.start <= most;
            let mut parts = between.step_by(CLOSE_PAGES as usize);
            is_near
                && parts.all(|first| {
                    let part = first..page.min(first + CLOSE_PAGES);
                    let Unread { unused, absent } = unread(part.clone(), Asks::Index);
                    absent == 0 && unused * UNUSED_SHARE <= part.end - part.start
                })
        })
    }

    #[cfg(feature = "map")]
    pub(crate) fn is_random(&self) -> bool {
        self.state.lock().hint == Some(Hint::Random)
    }

    #[cfg(feature = "map")]
    pub(crate) fn is_sequential(&self) -> bool {
        self.state.lock().hint == Some(Hint::Sequential)
    }

    /// Whether it finds out by itself how the file is read.
    #[cfg(feature = "map")]
    pub(crate) fn guesses(&self) -> bool {
        self.window_max_pages > 0 && self.state.lock().hint.is_none()
    }

    /// Whether `page` was read ahead of a run of which little is known yet.
    #[cfg(feature = "map")]
    pub(crate) fn is_proving(&self, page: u64) -> bool {
        let state = self.state.lock();
        let is_ahead = |run: &ReadRun| (run.seen..run.next).contains(&page);
        state.hint.is_none()
            && state.run_at(is_ahead).is_some_and(|n| state.runs[n].used_pages < PROVED_PAGES)
    }

    /// The most pages of a read that the program asks for ahead.
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

    /// The run that gives way to a new one.
    fn oldest(&self) -> usize {
        (0..RUNS).max_by_key(|&n| self.stands_still(&self.runs[n])).unwrap_or(0)
    }

    fn stands_still(&self, run: &ReadRun) -> i64 {
        // Wraps around after 2^32 pages: the wrong one gives way, once.
        i64::from(self.now.wrapping_sub(run.at)) - run.stays()
    }

    /// As in [`Plan::vain`].
    fn ends_one(&mut self, file_end: u64, of: OfHandle<'_>) -> (u64, u64) {
        let is_over = |run: &ReadRun| run.vain().1 > 0 && self.stands_still(run) > 0;
        let over = self.run_at(is_over).filter(|_| self.hint.is_none());
        let Some(n) = over.filter(|_| !mutant::on(Mutant::OverStays)) else { return (0, 0) };
        let last = self.last;
        let (n, run) = self.take(Some(n), of.0);
        self.breaks_off(&run, file_end, of);
        self.put(n, ReadRun::NONE, of.0);
        self.last = last;
        run.vain()
    }

    /// Run `n`, or the one that gives way. Its credit is there again, until it is put back.
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

    /// `unused` of the pages that were read ahead before `page` were not used. True if those are
    /// few enough for the window to stay.
    fn sees(&mut self, run: &mut ReadRun, page: u64, unused: u64, all: &Credit) -> bool {
        // What lies behind that was read for another handle: it shows and earns nothing here.
        let ahead = page.min(run.next) - run.seen;
        let unused = if mutant::on(Mutant::SkippedIsUsed) { 0 } else { unused.min(ahead) };
        self.pays(unused, all);
        self.earn(ahead - unused, all);
        run.uses(ahead - unused);
        run.seen = page;
        run.next = run.next.max(page);
        unused * UNUSED_SHARE <= ahead
    }

    fn earn(&mut self, pages: u64, all: &Credit) {
        self.now = self.now.wrapping_add(pages as u32);
        self.credit = self.credit.saturating_add_unsigned(pages).min(CREDIT_MAX);
        all.add(pages.cast_signed());
    }

    fn pays(&mut self, pages: u64, all: &Credit) {
        let credit = pages.cast_signed() * PER_PAGE;
        self.credit -= credit;
        // What a program says, other handles do not pay for.
        if self.hint != Some(Hint::Sequential) {
            all.add(-credit);
        }
    }

    /// The run ends. At the end of the file no mark says that pages were used: some may be gone.
    fn breaks_off(&mut self, run: &ReadRun, file_end: u64, (all, unread): OfHandle<'_>) {
        if run.seen < run.next && !mutant::on(Mutant::VainIsFree) {
            let Unread { unused, absent } = unread(run.seen..run.next, Asks::Maps);
            self.pays(unused + if run.next < file_end { absent } else { 0 }, all);
        }
    }

    /// Should the run end here.
    fn may_be_vain(&self, run: &ReadRun, all: &Credit) -> u64 {
        if self.hint == Some(Hint::Sequential) || self.credit >= CREDIT_FIRST && all.is_enough() {
            u64::MAX
        } else {
            u64::from(run.used_pages) / VAIN_SHARE
        }
    }

    /// Twice the last one if the limits allow it. 0: not even the first one.
    fn next_window(&self, run: &ReadRun, all: &Credit) -> u32 {
        let least = ((WINDOW_MIN_BYTES / PAGE_BYTES) as u32).min(run.limit_pages);
        let vain = self.may_be_vain(run, all) / (WINDOWS_AHEAD + 1);
        let most = vain.min(run.limit_pages.into()) as u32;
        let doubled = (run.window_pages * 2).max(least);
        let used = if self.hint.is_none() { run.used_pages.max(least) } else { u32::MAX };
        let window = doubled.min(1 << used.max(1).ilog2()).max(least);
        if window <= most {
            window
        } else if most >= least {
            1 << most.ilog2()
        } else {
            0
        }
    }
}

fn pages_of(bytes: usize) -> u64 {
    bytes.div_ceil(PAGE_BYTES) as u64
}

fn file_pages(bytes: u64) -> u64 {
    bytes.div_ceil(1 << PAGE_SHIFT)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
