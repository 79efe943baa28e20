//! Generated traces: the same name, sizes, skew and seed give the same trace.
//!
//! Here: the four generators. The random numbers are PCG's (`rand_pcg`, whose streams are part of
//! its interface), the Zipf distribution is `rand_distr`'s.

use rand::RngExt;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_distr::Zipf;
use rand_pcg::Pcg64;

use super::error::SimError;
use super::trace::Trace;

/// What [`generate`] knows.
pub(super) const NAMES: [&str; 4] = ["zipf", "zipf-scan", "loop", "oltp"];

/// The fewest pages of which `oltp` can make an index, rows and a history.
const OLTP_PAGES_MIN: u32 = 100;

/// Makes a trace of `requests` requests over `pages` pages.
pub(super) fn generate(
    name: &str,
    pages: u32,
    requests: u32,
    skew: f64,
    seed: u64,
) -> Result<Trace, SimError> {
    let bad = |why: String| Err(SimError::BadGenerator { name: name.to_owned(), why });
    if pages == 0 || requests == 0 {
        let why = if pages == 0 { "--pages is 0" } else { "--requests is 0" };
        return Err(SimError::Empty { name: name.to_owned(), why });
    }
    if !(skew.is_finite() && skew >= 0.0) {
        return bad(format!("--skew {skew} is not a number from 0 up"));
    }
    let least = match name {
        "oltp" => OLTP_PAGES_MIN,
        "zipf-scan" => 2,
        _ => 1,
    };
    if pages < least {
        return bad(format!("--pages {pages} are too few, it needs {least}"));
    }
    let mut random = Pcg64::seed_from_u64(seed);
    let requests = requests as usize;
    let trace = match name {
        "zipf" => zipf(&mut random, pages, requests, skew),
        "zipf-scan" => zipf_scan(&mut random, pages, requests, skew),
        "loop" => (0..pages).cycle().take(requests).collect(),
        "oltp" => Oltp::new(&mut random, pages, skew).run(&mut random, requests),
        _ => return bad(format!("not known; there are {}", NAMES.join(", "))),
    };
    Trace::new(name.to_owned(), trace.into_iter().map(u64::from))
}

/// Pages `first..first + count`, the popular ones scattered among the others.
#[derive(Debug)]
struct Popular {
    by_rank: Vec<u32>,
    ranks: Zipf<f64>,
}

impl Popular {
    fn new(random: &mut Pcg64, first: u32, count: u32, skew: f64) -> Self {
        let mut by_rank: Vec<u32> = (first..first + count).collect();
        by_rank.shuffle(random);
        let ranks = Zipf::new(f64::from(count), skew).expect("count and skew were checked");
        Self { by_rank, ranks }
    }

    fn draw(&self, random: &mut Pcg64) -> u32 {
        // Ranks are whole numbers from 1 to the count.
        #[expect(clippy::cast_sign_loss)]
        let rank = random.sample(self.ranks) as usize;
        self.by_rank[rank - 1]
    }
}

fn zipf(random: &mut Pcg64, pages: u32, requests: usize, skew: f64) -> Vec<u32> {
    let popular = Popular::new(random, 0, pages, skew);
    (0..requests).map(|_| popular.draw(random)).collect()
}

/// Zipf over the first half; after each `pages` requests of it the other half is read through, one
/// page of it beside each request of the first.
fn zipf_scan(random: &mut Pcg64, pages: u32, requests: usize, skew: f64) -> Vec<u32> {
    let hot = pages / 2;
    let popular = Popular::new(random, 0, hot, skew);
    let mut trace = Vec::with_capacity(requests + 1);
    // Ends: each turn makes requests.
    while trace.len() < requests {
        let quiet = (pages as usize).min(requests - trace.len());
        trace.extend((0..quiet).map(|_| popular.draw(random)));
        for page in hot..pages {
            if trace.len() >= requests {
                break;
            }
            trace.extend([page, popular.draw(random)]);
        }
    }
    trace.truncate(requests);
    trace
}

/// One history page takes this many appended records.
const HISTORY_RECORDS: u32 = 32;
/// One transaction in this many reads a range of rows.
const RANGE_SCAN_EVERY: u32 = 200;
/// The longest range, in pages.
const RANGE_PAGES_MAX: u32 = 256;

/// Pages of a database: an index (a root, inner pages, leaves), rows, a history that wraps.
#[derive(Debug)]
struct Oltp {
    inner_pages: u32,
    leaf_pages: u32,
    first_row: u32,
    rows: u32,
    first_history: u32,
    history_pages: u32,
    popular: Popular,
    appended: u32,
}

impl Oltp {
    /// 4 % of the pages are the index, 20 % the history, the others rows.
    fn new(random: &mut Pcg64, pages: u32, skew: f64) -> Self {
        assert!(pages >= OLTP_PAGES_MIN, "checked before");
        let inner_pages = (pages / 1000).max(1);
        let leaf_pages = pages / 25;
        let first_row = 1 + inner_pages + leaf_pages;
        let history_pages = pages / 5;
        let rows = pages - first_row - history_pages;
        let popular = Popular::new(random, first_row, rows, skew);
        let first_history = first_row + rows;
        Self {
            inner_pages,
            leaf_pages,
            first_row,
            rows,
            first_history,
            history_pages,
            popular,
            appended: 0,
        }
    }

    fn run(&mut self, random: &mut Pcg64, requests: usize) -> Vec<u32> {
        let longest = 8 + RANGE_PAGES_MAX as usize;
        let mut trace = Vec::with_capacity(requests + longest);
        // Ends: each transaction makes requests.
        while trace.len() < requests {
            self.transaction(random, &mut trace);
        }
        trace.truncate(requests);
        trace
    }

    /// Looks a row up and reads it; half of the time changes it and appends to the history; rarely
    /// reads a range of rows instead of one.
    fn transaction(&mut self, random: &mut Pcg64, trace: &mut Vec<u32>) {
        let is_scan = random.random_range(0..RANGE_SCAN_EVERY) == 0;
        let row = if is_scan {
            self.first_row + random.random_range(0..self.rows)
        } else {
            self.popular.draw(random)
        };
        let at = u64::from(row - self.first_row);
        let share = |pages: u32| (at * u64::from(pages) / u64::from(self.rows)) as u32;
        trace.push(0);
        trace.push(1 + share(self.inner_pages));
        trace.push(1 + self.inner_pages + share(self.leaf_pages));
        if is_scan {
            let length = random.random_range(1..=RANGE_PAGES_MAX);
            trace.extend(row..self.first_history.min(row + length));
            return;
        }
        trace.push(row);
        if random.random_bool(0.5) {
            trace.push(row);
            let page = self.appended / HISTORY_RECORDS % self.history_pages;
            trace.push(self.first_history + page);
            self.appended = self.appended.wrapping_add(1);
        }
    }
}
