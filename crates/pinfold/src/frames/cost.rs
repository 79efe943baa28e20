//! What the operations of this module cost. Prints a table; ignored by default, because a time is
//! not a pass or a failure.
//!
//! `cargo test --release -p pinfold --lib frames::cost -- --ignored --nocapture`
//!
//! All rows of a table are taken in turn, several times over, and each is printed as its median
//! and its range: read them against each other, not by themselves.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::*;

/// What is done, and the doing of it `OPS` times.
type Row<'a> = (&'a str, Box<dyn Fn() + Sync + 'a>);

const ROUNDS: usize = 7;
const OPS: u32 = 400_000;

/// 64 MiB.
const COST_FRAMES: u32 = 1 << 14;

fn put_and_free(frames: &Frames, head: FrameNumber, order: Order) {
    if frames.frame(head).count.put(1) {
        frames.free(head, order);
    }
}

/// An arena in which every other frame is in use: what is freed finds no buddy.
fn fragmented() -> Frames {
    let frames = Frames::open(u64::from(COST_FRAMES) << PAGE_SHIFT).expect("memory");
    while frames.alloc(Order::MIN).is_some() {}
    for n in (frames.stats().table_frames..COST_FRAMES).filter(|n| n % 2 == 1) {
        put_and_free(&frames, FrameNumber(n), Order::MIN);
    }
    frames
}

fn pairs(frames: &Frames, order: Order) {
    for _ in 0..OPS {
        let head = frames.alloc(black_box(order)).expect("free");
        put_and_free(frames, black_box(head), order);
    }
}

/// Takes 64 frames, then gives them back in the same order.
fn batches(frames: &Frames) {
    let mut taken = [FrameNumber(0); 64];
    for _ in 0..OPS / 64 {
        for head in &mut taken {
            *head = frames.alloc(Order::MIN).expect("free");
        }
        for &head in &taken {
            put_and_free(frames, black_box(head), Order::MIN);
        }
    }
}

/// What would remain of an allocation with per-thread caches of frames: the entry's own words.
fn entries_alone(frames: &Frames) {
    let head = frames.alloc(Order::MIN).expect("free");
    assert!(frames.frame(head).count.put(1));
    let mut cache = vec![head];
    for _ in 0..OPS {
        let head = black_box(cache.pop().expect("one"));
        let entry = frames.frame(head);
        entry.hand_out(Order::MIN);
        if entry.count.put(1) {
            entry.assert_freeable(head);
            cache.push(head);
        }
    }
    frames.free(head, Order::MIN);
}

fn mutex_alone(mutex: &crate::base::sync::Mutex<u32>) {
    for _ in 0..OPS * 2 {
        *mutex.lock() += 1;
    }
}

/// The time of one pair, in ns, with `threads` threads at it.
fn time(threads: usize, work: &(dyn Fn() + Sync)) -> f64 {
    let start = Barrier::new(threads);
    let longest = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let from = Instant::now();
                    work();
                    from.elapsed()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).max()
    });
    longest.unwrap_or(Duration::ZERO).as_nanos() as f64 / f64::from(OPS)
}

#[test]
#[ignore = "prints times; run it alone"]
fn of_a_pair_of_alloc_and_free() {
    let whole = Frames::open(u64::from(COST_FRAMES) << PAGE_SHIFT).expect("memory");
    let cut = fragmented();
    let mutex = crate::base::sync::Mutex::new(0);
    let rows: [Row<'_>; 7] = [
        ("two lock/unlock of the mutex (limit)", Box::new(|| mutex_alone(&mutex))),
        ("entry's words alone, no allocator", Box::new(|| entries_alone(&cut))),
        ("order 0, nothing to split or merge", Box::new(|| pairs(&cut, Order::MIN))),
        ("order 0, in batches of 64, likewise", Box::new(|| batches(&cut))),
        ("order 0, 9 splits and 9 merges", Box::new(|| pairs(&whole, Order::MIN))),
        ("order 0, in batches of 64, from whole", Box::new(|| batches(&whole))),
        ("order 9", Box::new(|| pairs(&whole, Order::MAX))),
    ];
    for threads in [1, 2] {
        let mut times = vec![Vec::new(); rows.len()];
        for _ in 0..ROUNDS {
            for ((_, work), times) in rows.iter().zip(&mut times) {
                times.push(time(threads, work.as_ref()));
            }
        }
        for ((name, _), times) in rows.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let (low, mid, high) = (times[0], times[ROUNDS / 2], times[ROUNDS - 1]);
            println!("{threads} threads: {name:40} {mid:7.1} ns a pair ({low:.1} to {high:.1})");
        }
    }
}

#[test]
#[ignore = "prints times; run it alone"]
fn of_open() {
    for mib in [64, 1024, 4096_u64] {
        let from = Instant::now();
        let frames = Frames::open(mib << 20).expect("memory");
        let took = from.elapsed();
        let huge = frames.huge_pages_advised();
        println!(
            "open {mib:5} MiB: {:8.2} ms, huge pages advised: {huge}",
            took.as_secs_f64() * 1e3
        );
    }
}

#[test]
#[ignore = "prints times; run it alone"]
fn of_looking_through_a_run() {
    let frames = fragmented();
    let runs: Vec<_> = frames.whole_runs().collect();
    let from = Instant::now();
    for &run in &runs {
        assert_eq!(black_box(frames.free_in(run)).len(), 256);
    }
    println!("free_in: {:.2} us a run", from.elapsed().as_secs_f64() * 1e6 / runs.len() as f64);
}
