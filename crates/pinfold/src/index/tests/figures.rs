//! Figures: what a look-up costs, and what the nodes cost per resident page.
//!
//! `cargo test --release -p pinfold index::tests::figures -- --ignored --nocapture`

use super::arena::Arena;
use crate::index::{FrameNumber, Index, IndexOwner};
use std::hint::black_box;
use std::time::{Duration, Instant};

const NODES: u32 = 200_000;
const SAMPLE: Duration = Duration::from_millis(100);

fn arena() -> Arena<6> {
    let arena = Arena::new(64 << 20, 2 << 20);
    arena.refill(NODES).unwrap();
    arena
}

/// By itself, so that its instructions can be counted.
#[inline(never)]
fn lookup(index: &Index<6>, page: u64) -> Option<FrameNumber> {
    index.lookup(page)
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }
}

fn dense(arena: &Arena<6>, pages: u64) -> (Index<6>, IndexOwner) {
    let (index, mut owner) = arena.pool.new_index(1 << 14);
    let mut writer = index.writer(&mut owner, &arena.pool);
    for page in 0..pages {
        writer.insert(page, 0, FrameNumber(page as u32 + 1)).unwrap();
    }
    drop(writer);
    (index, owner)
}

/// Million calls of `each` per second.
fn rate(mut each: impl FnMut()) -> f64 {
    let (start, mut done) = (Instant::now(), 0_u64);
    while start.elapsed() < SAMPLE {
        for _ in 0..10_000 {
            each();
        }
        done += 10_000;
    }
    done as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn median(mut samples: Vec<f64>) -> String {
    samples.sort_by(f64::total_cmp);
    let (low, high) = (samples[0], samples[samples.len() - 1]);
    format!("{:7.1} M/s  [{low:.1} .. {high:.1}]", samples[samples.len() / 2])
}

#[test]
#[ignore = "a measurement"]
fn lookups() {
    let arena = arena();
    for pages in [1, 256, 1 << 18] {
        let (index, _owner) = dense(&arena, pages);
        let flat: Vec<u32> = (0..pages as u32).collect();
        let mut rates = [vec![], vec![], vec![], vec![]];
        let mut random = Random(7);
        for _ in 0..7 {
            rates[0].push(rate(|| _ = black_box(random.below(black_box(pages)))));
            rates[1].push(rate(|| {
                _ = black_box(flat[random.below(black_box(pages)) as usize]);
            }));
            rates[2].push(rate(|| {
                _ = black_box(black_box(&index).lookup(random.below(black_box(pages))));
            }));
            let mut chain = 0;
            rates[3].push(rate(|| {
                // The next page waits for this frame: the latency, not the throughput.
                let found = lookup(&index, random.below(black_box(pages)) ^ (chain >> 31));
                chain = u64::from(black_box(found.unwrap().0)); // below 2^30
            }));
        }
        println!("{pages} pages, random:");
        for (name, samples) in
            ["random number", "flat array", "lookup", "lookup chained"].iter().zip(rates)
        {
            println!("  {name:14} {}", median(samples));
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn writes() {
    let arena = arena();
    let pages: u32 = 1 << 16;
    for _ in 0..3 {
        let (index, mut owner) = arena.pool.new_index(1 << 14);
        let mut writer = index.writer(&mut owner, &arena.pool);
        let ns = |start: Instant| start.elapsed().as_secs_f64() * 1e9 / f64::from(pages);
        let start = Instant::now();
        for page in 0..u64::from(pages) {
            writer.insert(page, 0, FrameNumber(page as u32 + 1)).unwrap();
        }
        let insert = ns(start);
        let start = Instant::now();
        for page in 0..u64::from(pages) {
            writer.remove(page).unwrap();
        }
        println!("order 0, in order: insert {insert:.0} ns, remove {:.0}", ns(start));
    }
}

/// Random evictions and refaults until the residency is that of a uniform random load.
fn churn(times: u64, resident: u64) {
    let arena = arena();
    let (index, mut owner) = arena.pool.new_index(1 << 14);
    let mut random = Random(11);
    let mut held = Vec::new();
    let mut writer = index.writer(&mut owner, &arena.pool);
    let rounds = if times == 1 { resident } else { resident * 4 };
    for n in 0..rounds {
        let page = if times == 1 { n } else { random.below(resident * times) };
        if held.len() as u64 == resident {
            let out = held.swap_remove(random.below(resident) as usize);
            writer.remove(out).unwrap();
        }
        if writer.insert(page, 0, FrameNumber(1 + n as u32)).is_ok() {
            held.push(page);
        }
    }
    let held = held.len() as f64;
    let bytes = writer.nodes() as f64 * 288.0 / held;
    println!(
        "file {times:7} x resident: {:6} nodes, {bytes:6.1} bytes/page = {:.3} %",
        writer.nodes(),
        bytes / 40.96,
    );
}

#[test]
#[ignore = "a measurement"]
fn bytes_per_page() {
    for times in [1, 8, 100, 1 << 16, 1 << 20] {
        churn(times, 1 << 16);
    }
}

/// The nodes of files that have `pages` pages each, of which each is alone in `apart` pages at the
/// end of the longest file: how many a page, and at most how much of the budget.
fn sparse(pages: u64, apart: u64) {
    const FILES: u64 = 4;
    const FRAME: f64 = 4096.0;
    let arena = arena();
    let mut nodes = 0;
    for _ in 0..FILES {
        let (index, mut owner) = arena.pool.new_index(1 << 14);
        let mut writer = index.writer(&mut owner, &arena.pool);
        for n in 0..pages {
            let page = (1 << 51) - 2 - n * apart;
            writer.insert(page, 0, FrameNumber(n as u32 + 1)).unwrap();
        }
        nodes += writer.nodes();
    }
    let a_page = nodes as f64 / (FILES * pages) as f64;
    let bytes = a_page * FRAME / f64::from(4096 / 288);
    // The rest is the frame table and the ghosts.
    let most = (1.0 - 1.0 / 64.0 - 1.0 / 512.0) * bytes / (FRAME + bytes);
    println!(
        "{pages:5} pages a file, one in 2^{:2}: {a_page:.3} nodes a page, at most {:.1} % of the budget",
        apart.ilog2(),
        100.0 * most,
    );
}

#[test]
#[ignore = "a measurement"]
fn nodes_of_sparse_files() {
    for (pages, apart) in [(4096, 1 << 18), (8, 1 << 48), (1, 1 << 50)] {
        sparse(pages, apart);
    }
}
