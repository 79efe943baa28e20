//! The reference policies against sequences computed by hand, all policies against the optimum and
//! naive versions, traces and generators, and the promise of the policy: not worse than LRU, near
//! W-TinyLFU.

use std::collections::VecDeque;
use std::io::Write as _;
use std::path::Path;

use pinfold_policy::S3FifoOptions;
use proptest::prelude::*;

use super::args::Capacity;
use super::trace::{Format, Trace, read};
use super::*;

fn trace_of(pages: &[u32]) -> Trace {
    Trace::new("test".into(), pages.iter().map(|&page| u64::from(page))).expect("not empty")
}

fn hits_of(name: &str, trace: &Trace, capacity: u32) -> u64 {
    if name == "optimum" {
        let next = optimum::next_uses(&trace.requests, trace.distinct);
        return optimum::hits(&trace.requests, &next, trace.distinct, capacity);
    }
    let mut engine = engine(name, trace.distinct, capacity, S3FifoOptions::default());
    trace.requests.iter().filter(|&&page| engine.access(page)).count() as u64
}

/// The textbooks' string for comparing replacement policies.
const TEXTBOOK: [u32; 13] = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2];
/// The string on which FIFO gets worse with more memory (Belady, Nelson, Shedler, 1969).
const ANOMALY: [u32; 12] = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5];
/// One page used thrice, then a scan, then the page again.
const SCANNED: [u32; 7] = [0, 0, 0, 1, 2, 3, 0];

#[test]
fn hits_are_those_computed_by_hand() {
    let cases: [(&str, &[u32], u32, u64); 16] = [
        ("optimum", &TEXTBOOK, 3, 6),
        ("optimum", &TEXTBOOK, 4, 7),
        ("lru", &TEXTBOOK, 3, 4),
        ("lru", &TEXTBOOK, 4, 7),
        ("fifo", &TEXTBOOK, 3, 3),
        ("fifo", &TEXTBOOK, 4, 6),
        ("clock", &TEXTBOOK, 3, 5),
        ("optimum", &ANOMALY, 3, 5),
        ("optimum", &ANOMALY, 4, 6),
        ("lru", &ANOMALY, 3, 2),
        ("lru", &ANOMALY, 4, 4),
        ("fifo", &ANOMALY, 3, 3),
        ("fifo", &ANOMALY, 4, 2),
        // Window of one, main of one: 1 and 2 are refused for the page in main that was used more.
        ("w-tinylfu", &SCANNED, 2, 3),
        ("lru", &SCANNED, 2, 2),
        // Equal counts: the one in main stays.
        ("w-tinylfu", &[0, 1, 2, 0], 2, 1),
    ];
    for (name, pages, capacity, expected) in cases {
        assert_eq!(hits_of(name, &trace_of(pages), capacity), expected, "{name}, {capacity} pages");
    }
}

#[test]
fn the_policy_keeps_what_a_scan_would_push_out() {
    // Ten pages; the small queue is one of them. 0 is used twice, moves to main when it is met, and
    // survives a scan longer than the cache.
    let mut pages = vec![0, 0, 0];
    pages.extend(1..30);
    pages.push(0);
    assert_eq!(hits_of("pinfold", &trace_of(&pages), 10), 3);
    assert_eq!(hits_of("lru", &trace_of(&pages), 10), 2);
}

/// LRU once more, naively.
fn naive_lru(pages: &[u32], capacity: usize) -> u64 {
    let (mut cache, mut hits) = (VecDeque::new(), 0);
    for &page in pages {
        if let Some(at) = cache.iter().position(|&other| other == page) {
            cache.remove(at);
            hits += 1;
        } else if cache.len() == capacity {
            cache.pop_front();
        }
        cache.push_back(page);
    }
    hits
}

/// The optimum by trying every victim; for traces of a dozen requests.
fn exhaustive(pages: &[u32], capacity: usize, cache: &mut Vec<u32>) -> u64 {
    let Some((&page, rest)) = pages.split_first() else { return 0 };
    if cache.contains(&page) {
        return 1 + exhaustive(rest, capacity, cache);
    }
    if cache.len() < capacity {
        cache.push(page);
        let hits = exhaustive(rest, capacity, cache);
        cache.pop();
        return hits;
    }
    let mut best = 0;
    for at in 0..cache.len() {
        let victim = std::mem::replace(&mut cache[at], page);
        best = best.max(exhaustive(rest, capacity, cache));
        cache[at] = victim;
    }
    best
}

proptest! {
    #[test]
    fn nobody_beats_the_optimum_and_all_hit_when_all_fits(
        pages in prop::collection::vec(prop_oneof![0..8_u32, 0..60_u32], 1..600),
        capacity in 1..70_u32,
    ) {
        let trace = trace_of(&pages);
        let possible = (trace.requests.len() as u64) - u64::from(trace.distinct);
        let best = hits_of("optimum", &trace, capacity);
        for name in ENGINES {
            let hits = hits_of(name, &trace, capacity);
            prop_assert!(hits <= best, "{name}: {hits} of at most {best}");
            let all_fits = capacity >= trace.distinct;
            prop_assert!(!all_fits || hits == possible, "{name}: {hits} of {possible}");
        }
    }

    #[test]
    fn optimum_is_what_trying_everything_finds(
        pages in prop::collection::vec(0..6_u32, 1..13), capacity in 1..4_u32,
    ) {
        let found = exhaustive(&pages, capacity as usize, &mut Vec::new());
        prop_assert_eq!(hits_of("optimum", &trace_of(&pages), capacity), found);
    }

    #[test]
    fn lru_is_its_naive_version(
        pages in prop::collection::vec(0..40_u32, 1..500), capacity in 1..30_u32,
    ) {
        let found = naive_lru(&pages, capacity as usize);
        prop_assert_eq!(hits_of("lru", &trace_of(&pages), capacity), found);
    }

    #[test]
    fn no_engine_holds_more_than_its_capacity(
        pages in prop::collection::vec(0..200_u32, 1..800), capacity in 1..150_u32,
    ) {
        let trace = trace_of(&pages);
        let policy = S3Fifo::new(u64::from(capacity));
        let mut driver = Driver::new(policy, trace.distinct, capacity);
        let mut tinylfu = WTinyLfu::new(trace.distinct, capacity);
        for &page in &trace.requests {
            driver.access(page);
            prop_assert!(driver.policy().usage().pages() <= u64::from(capacity));
            tinylfu.access(page);
            prop_assert!(tinylfu.resident() <= capacity);
        }
    }
}

#[test]
fn the_sketch_counts_to_fifteen_and_halves_after_ten_capacities() {
    let mut sketch = tinylfu::Sketch::new(100);
    for expected in 1..=20 {
        sketch.increment(7);
        assert_eq!(sketch.frequency(7), expected.min(15));
    }
    assert_eq!(sketch.frequency(8), 0, "a page never asked for, in an empty sketch");
    // 15 increments counted so far; another 984 of other pages, then the one that halves.
    (0..984).for_each(|n| sketch.increment(1000 + n % 100));
    assert!(sketch.frequency(7) >= 15);
    sketch.increment(5000);
    assert_eq!(sketch.frequency(7), 7);
}

fn generated(name: &str, seed: u64) -> Trace {
    generate::generate(name, 10_000, 200_000, 0.9, seed).expect("sizes are good")
}

#[test]
fn a_generator_repeats_itself_and_its_seed_matters() {
    for name in generate::NAMES {
        let trace = generated(name, 1);
        assert_eq!(trace.requests.len(), 200_000, "{name}");
        assert!(trace.distinct <= 10_000, "{name} uses {} pages", trace.distinct);
        assert_eq!(trace, generated(name, 1), "{name} does not repeat itself");
        assert_eq!(trace == generated(name, 2), name == "loop", "{name} and its seed");
    }
}

#[test]
fn a_trace_is_the_same_in_every_build() {
    // FNV-1a over the requests: changes if a dependency changes its stream of numbers, and then
    // figures in the documentation are to be measured anew.
    let fnv = |trace: &Trace| {
        let bytes = trace.requests.iter().flat_map(|page| page.to_le_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let sums = generate::NAMES.map(|name| format!("{name} {:x}", fnv(&generated(name, 1))));
    assert_eq!(
        sums,
        [
            "zipf 524a8902c744cb1b",
            "zipf-scan 9e3e4859083067a2",
            "loop 18081462478cc6a5",
            "oltp 87fa0bfd65b26f8a"
        ]
    );
}

#[test]
fn not_worse_than_lru_and_near_w_tinylfu() {
    for name in ["zipf", "zipf-scan", "oltp"] {
        let trace = generated(name, 1);
        for percent in [1.0, 5.0, 10.0, 25.0] {
            let capacity = Capacity::Percent(percent).pages(trace.distinct);
            let ratio = |engine| {
                hits_of(engine, &trace, capacity) as f64 * 100.0 / trace.requests.len() as f64
            };
            let (ours, lru, tinylfu) = (ratio("pinfold"), ratio("lru"), ratio("w-tinylfu"));
            assert!(ours >= lru, "{name} at {percent} %: {ours:.2}, LRU {lru:.2}");
            assert!(ours >= tinylfu - 2.0, "{name} at {percent} %: {ours:.2}, {tinylfu:.2}");
        }
    }
}

fn read_bytes(bytes: &[u8], format: Format) -> Result<Trace, String> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("written");
    let path = file.path().display().to_string();
    read(file.path(), format).map_err(|error| error.to_string().replace(&path, "FILE"))
}

#[test]
fn files_are_read_as_text_or_words() {
    let text = b"# a comment\n7\n\n 18446744073709551615 \r\n7\n3";
    let words: Vec<u8> = [7, u64::MAX, 7, 3].iter().flat_map(|p: &u64| p.to_le_bytes()).collect();
    for (bytes, format) in [
        (&text[..], Format::Auto),
        (&text[..], Format::Text),
        (&words[..], Format::Auto),
        (&words[..], Format::Binary),
    ] {
        let trace = read_bytes(bytes, format).expect("a good file");
        assert_eq!((&trace.requests[..], trace.distinct), (&[0, 1, 0, 2][..], 3));
    }
}

#[test]
fn bad_files_are_refused_by_name_and_line() {
    let refused = |bytes: &[u8], format| read_bytes(bytes, format).expect_err("a bad file");
    let line = refused(b"1\n2\nx9\n", Format::Auto);
    assert!(line.starts_with("FILE, line 3: \"x9\" is not a page number"), "{line}");
    assert!(refused(b"1\n-2\n", Format::Text).contains("line 2"));
    assert!(refused(b"18446744073709551616", Format::Text).contains("line 1"));
    assert!(refused(b"1\n\xff\xfe\n", Format::Text).contains("line 2"));
    assert!(refused(b"", Format::Auto).contains("is empty"));
    assert!(refused(b"# nothing\n", Format::Auto).contains("is empty"));
    assert!(refused(&[0; 12], Format::Auto).starts_with("FILE: 12 bytes"));
    let missing = read(Path::new("/nonexistent/trace"), Format::Auto).expect_err("missing");
    let missing = missing.to_string();
    assert!(missing.contains("/nonexistent/trace: No such file"), "{missing}");
}

#[test]
fn bad_sizes_are_refused() {
    let refused = |name, pages, requests, skew| {
        generate::generate(name, pages, requests, skew, 1).expect_err("bad sizes").to_string()
    };
    assert!(refused("zipf", 0, 10, 1.0).contains("--pages is 0"));
    assert!(refused("zipf", 10, 0, 1.0).contains("--requests is 0"));
    assert!(refused("zipf", 10, 10, -1.0).contains("--skew -1"));
    assert!(refused("zipf", 10, 10, f64::NAN).contains("--skew NaN"));
    assert!(refused("oltp", 10, 10, 1.0).contains("--pages 10 are too few"));
    assert!(refused("zipf-scan", 1, 10, 1.0).contains("too few"));
}

#[test]
fn capacities_are_pages_or_percentages_and_never_nothing() {
    let parse = |text: &str| text.parse::<Capacity>();
    assert_eq!(parse("12"), Ok(Capacity::Pages(12)));
    assert_eq!(parse("2.5%"), Ok(Capacity::Percent(2.5)));
    assert_eq!(Capacity::Percent(2.5).pages(1000), 25);
    assert_eq!(Capacity::Percent(1.0).pages(13), 1, "rounded to nothing");
    for zero in ["0", "0%"] {
        assert!(parse(zero).expect_err("zero").contains("is zero"));
    }
    for bad in ["", "x", "-1", "-1%", "nan%", "inf%", "1.5", "99999999999"] {
        assert!(parse(bad).is_err(), "{bad:?} was taken for a capacity");
    }
}

#[test]
fn the_smallest_oltp_and_scan_can_be_made() {
    for (name, pages) in [("oltp", 100), ("zipf-scan", 2), ("zipf", 1), ("loop", 1)] {
        for skew in [0.0, 1.0, 3.0] {
            let trace = generate::generate(name, pages, 5000, skew, 1).expect("just enough");
            assert!(trace.distinct <= pages, "{name} uses {} pages", trace.distinct);
        }
    }
}
