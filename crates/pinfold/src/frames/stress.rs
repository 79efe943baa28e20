//! Frames under threads: owners fill the folios they get, and strays take references to folios they
//! do not own, as a look-up with a stale number does.

#![allow(clippy::cast_ptr_alignment, reason = "a frame starts at a multiple of a page")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use super::*;

/// A small generator (Marsaglia 2003, xorshift64), so that a run depends on its seed alone.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % end
    }
}

/// Gives up one reference; the last to do so frees the folio, by what the folio says.
fn put(frames: &Frames, head: FrameNumber) {
    let entry = frames.frame(head);
    if entry.count.put(1) {
        frames.free(head, entry.order());
    }
}

/// Marks each frame of a folio with a unique number.
fn mark(frames: &Frames, head: FrameNumber, order: Order, mark: u64) {
    for n in 0..order.frames() {
        let word = frames.address(head.after(n)).cast::<u64>();
        // SAFETY: the frame is the caller's alone, and an address in it is aligned to a page.
        unsafe { word.write(mark) };
    }
}

fn check(frames: &Frames, head: FrameNumber, order: Order, mark: u64) {
    for n in 0..order.frames() {
        let word = frames.address(head.after(n)).cast::<u64>();
        // SAFETY: as in `mark`.
        assert_eq!(unsafe { word.read() }, mark, "{head:?} has a second owner");
    }
}

/// Allocates and frees until `stop`; returns how often.
fn owner(frames: &Frames, seed: u64, stop: &AtomicBool) -> u64 {
    let mut random = Random(seed);
    let mut mine = Vec::new();
    let mut allocs = 0;
    while !stop.load(Ordering::Relaxed) {
        if random.below(100) < 55 {
            let order = Order::new(random.below(20).saturating_sub(10) as u8).expect("below 10");
            if let Some((head, order)) = frames.alloc_at_most(order) {
                allocs += 1;
                let number = allocs << 8 | seed;
                mark(frames, head, order, number);
                mine.push((head, order, number));
                continue;
            }
        }
        if !mine.is_empty() {
            let which = random.below(mine.len() as u32) as usize;
            let (head, order, number) = mine.swap_remove(which);
            check(frames, head, order, number);
            put(frames, head);
        }
    }
    for (head, order, number) in mine {
        check(frames, head, order, number);
        put(frames, head);
    }
    allocs
}

/// Counts whatever can be counted and lets go of it again; returns how often that worked.
fn stray(frames: &Frames, stop: &AtomicBool) -> u64 {
    let mut random = Random(77);
    let mut gets = 0;
    while !stop.load(Ordering::Relaxed) {
        let frame = FrameNumber(random.below(frames.frames()));
        if frames.frame(frame).count.try_get(1).is_ok() {
            assert_eq!(frames.frame(frame).identity().mapping, MAPPING_NONE);
            gets += 1;
            put(frames, frame);
        }
    }
    gets
}

/// Empties runs as far as they empty themselves.
fn holder(frames: &Frames, stop: &AtomicBool) -> u64 {
    let mut whole = 0;
    while !stop.load(Ordering::Relaxed) {
        for run in frames.whole_runs() {
            let held = frames.take_free_in(run).expect("there is one holder");
            std::thread::yield_now();
            whole += u64::from(held.held().is_full());
        }
    }
    whole
}

#[test]
fn two_owners_a_stray_and_a_holder() {
    let millis: u64 =
        std::env::var("PINFOLD_STRESS_MS").map_or(1000, |ms| ms.parse().expect("a number of ms"));
    let enough = [1, 8, 64].into_iter().any(|factor| owners_and_others(millis * factor));
    assert!(enough, "so few folios or stray references test nothing");
}

/// Lets them at it for so long; whether they did enough to be a test.
fn owners_and_others(millis: u64) -> bool {
    let frames = Frames::open((6 * 512 + 5) << PAGE_SHIFT).expect("memory for a test");
    let before = frames.stats();
    let stop = AtomicBool::new(false);
    let (allocs, gets, whole) = std::thread::scope(|threads| {
        let owners = [1, 2].map(|seed| {
            threads.spawn({
                let (frames, stop) = (&frames, &stop);
                move || owner(frames, seed, stop)
            })
        });
        let stray = threads.spawn(|| stray(&frames, &stop));
        let holder = threads.spawn(|| holder(&frames, &stop));
        let end = Instant::now() + Duration::from_millis(millis);
        while Instant::now() < end && !owners.iter().any(ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        let allocs: u64 = owners.map(|thread| thread.join().expect("an owner")).iter().sum();
        (allocs, stray.join().expect("the stray"), holder.join().expect("the holder"))
    });
    println!("{allocs} folios, {gets} stray references, {whole} runs taken whole");
    assert_eq!(frames.stats(), before, "all came together again");
    allocs > 1000 && gets > 0
}
