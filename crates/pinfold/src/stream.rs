//! A handle's access pattern, as its misses show it, and how far to read ahead.
//!
//! Only misses and readahead marks are recorded: a hit writes nothing shared. A run of misses at
//! adjacent pages is sequential. Windows then double from 64 KiB to the limit, and two of them are
//! in flight before they are needed. Any other miss reads only what is asked for. Called by `fill`.

use crate::frame::{Order, PAGE_BYTES, PAGE_SHIFT};
use crate::source::Hint;
use crate::sync::Mutex;

/// The first window of a sequential run.
const WINDOW_MIN_BYTES: usize = 64 << 10;

/// Windows in flight beyond the one being read.
const WINDOWS_AHEAD: u64 = 2;

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

/// A handle's state; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Stream {
    state: Mutex<State>,
    window_max_pages: u32,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// The page of a sequential reader's next miss.
    next: u64,
    window_pages: u32,
    hint: Option<Hint>,
}

impl Stream {
    /// `window_max_bytes`: 0 turns readahead off.
    pub(crate) fn new(window_max_bytes: usize) -> Self {
        let window_max_pages = pages_of(window_max_bytes) as u32;
        let state = State { next: u64::MAX, window_pages: 0, hint: None };
        Stream { state: Mutex::new(state), window_max_pages }
    }

    /// Sets the mode from now on.
    pub(crate) fn advise(&self, hint: Hint) {
        self.state.lock().hint = Some(hint);
    }

    /// A miss at `page`, by a reader that wants `bytes` bytes from there on.
    pub(crate) fn on_miss(&self, page: u64, bytes: usize, file_bytes: u64) -> Plan {
        let mut state = self.state.lock();
        let file_end = file_pages(file_bytes).max(page + 1);
        let wanted_end = (page + pages_of(bytes)).min(file_end);
        let sequential = match state.hint {
            Some(Hint::Random) => false,
            Some(Hint::Sequential) => true,
            _ => page == state.next,
        };
        if !sequential || self.window_max_pages == 0 {
            state.window_pages = 0;
            state.next = wanted_end;
            return Plan::of(wanted_end);
        }
        state.window_pages = self.grown(state.window_pages);
        let window = u64::from(state.window_pages);
        let now_end = wanted_end.max(page + window).min(file_end);
        let ahead_end = (now_end + WINDOWS_AHEAD * window).min(file_end);
        state.next = ahead_end;
        Plan { now_end, ahead_end, window_pages: state.window_pages, mark: true }
    }

    /// A reader meets a mark; `page` is the first page after the folio that has it.
    pub(crate) fn on_mark(&self, page: u64, file_bytes: u64) -> Plan {
        let mut state = self.state.lock();
        // Another handle set the mark, if this one does not read sequentially.
        if state.hint == Some(Hint::Random) || state.window_pages == 0 {
            return Plan { now_end: page, ahead_end: page, window_pages: 1, mark: false };
        }
        state.window_pages = self.grown(state.window_pages);
        let window = u64::from(state.window_pages);
        let ahead_end = (page + (WINDOWS_AHEAD + 1) * window).min(file_pages(file_bytes));
        state.next = ahead_end;
        Plan { now_end: page, ahead_end, window_pages: state.window_pages, mark: true }
    }

    /// Whether pages around an absent one may be read with it: unless the program has said how it
    /// reads, or turned readahead off.
    pub(crate) fn reads_around(&self) -> bool {
        self.window_max_pages > 0 && self.state.lock().hint.is_none()
    }

    /// A miss at `page`: whether the pages around it are to be read with it, up to `end`, which is
    /// where a sequential reader misses next. Not if the miss continues a run: [`Self::on_miss`]
    /// says then what to read.
    pub(crate) fn on_fault(&self, page: u64, end: u64) -> bool {
        let mut state = self.state.lock();
        let around = self.window_max_pages > 0 && state.hint.is_none() && page != state.next;
        if around {
            state.window_pages = 0;
            state.next = end;
        }
        around
    }

    /// Whether the program has said that it reads at random.
    pub(crate) fn is_random(&self) -> bool {
        self.state.lock().hint == Some(Hint::Random)
    }

    /// The most pages of a read that the program asks for ahead: the largest window, or the first
    /// one if readahead is off.
    pub(crate) fn window_pages(&self) -> u64 {
        match self.window_max_pages {
            0 => pages_of(WINDOW_MIN_BYTES),
            most => most.into(),
        }
    }

    fn grown(&self, window_pages: u32) -> u32 {
        let least = (WINDOW_MIN_BYTES / PAGE_BYTES) as u32;
        (window_pages * 2).max(least).min(self.window_max_pages)
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

    #[test]
    fn random_misses_bring_what_is_asked_for() {
        let stream = Stream::new(2 << 20);
        for page in [7, 100, 3, 50_000] {
            let plan = stream.on_miss(page, 64, FILE);
            assert_eq!((plan.now_end, plan.ahead_end), (page + 1, page + 1));
        }
        assert_eq!(stream.on_miss(9, 32768, FILE).now_end, 17);
    }

    #[test]
    fn a_run_grows_its_windows_to_the_limit() {
        let stream = Stream::new(2 << 20);
        let mut page = 10;
        let mut windows = Vec::new();
        for _ in 0..9 {
            let plan = stream.on_miss(page, 4096, FILE);
            windows.push(if plan.mark { plan.window_pages } else { 0 });
            page = plan.ahead_end;
        }
        assert_eq!(windows, [0, 16, 32, 64, 128, 256, 512, 512, 512]);
    }

    #[test]
    fn nothing_is_read_beyond_the_end() {
        let stream = Stream::new(2 << 20);
        stream.advise(Hint::Sequential);
        let plan = stream.on_miss(2, 4096, 5 * 4096 + 1);
        assert_eq!((plan.now_end, plan.ahead_end), (6, 6));
        assert_eq!(stream.on_mark(6, 5 * 4096 + 1).ahead_end, 6);
    }

    /// A random reader that meets another handle's mark must not read ahead.
    #[test]
    fn a_mark_means_nothing_to_a_random_reader() {
        let stream = Stream::new(2 << 20);
        assert!(!stream.on_miss(7, 65536, FILE).mark, "what is asked for needs no mark");
        assert_eq!(stream.on_mark(8, FILE).ahead_end, 8);
        stream.on_miss(23, 4096, FILE);
        assert!(stream.on_mark(24, FILE).ahead_end > 24, "a run, by now");
        stream.advise(Hint::Random);
        assert_eq!(stream.on_mark(25, FILE).ahead_end, 25);
    }

    #[test]
    fn a_run_of_faults_begins_with_what_was_read_around_the_first() {
        let stream = Stream::new(2 << 20);
        assert!(stream.on_fault(5, 32));
        assert!(!stream.on_fault(32, 64), "it goes on in order");
        assert_eq!(stream.on_miss(32, 4096, FILE).window_pages, 16);
        assert!(stream.on_fault(1000, 1024), "at random again");
        assert!(!Stream::new(0).on_fault(5, 32), "readahead is off");
        stream.advise(Hint::Random);
        assert!(!stream.on_fault(5, 32));
    }

    #[test]
    fn hints_win() {
        let stream = Stream::new(2 << 20);
        stream.on_miss(0, 4096, FILE);
        stream.advise(Hint::Random);
        assert_eq!(stream.on_miss(1, 4096, FILE).ahead_end, 2);
        let never = Stream::new(0);
        never.advise(Hint::Sequential);
        assert_eq!(never.on_miss(0, 4096, FILE).ahead_end, 1);
    }
}
