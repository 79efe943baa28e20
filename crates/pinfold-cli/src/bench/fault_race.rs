//! Threads that run until a time is over, each as far as it gets.
//!
//! Unlike the crews of `workers.rs` these threads are not bound to processors, because they wait
//! for a disk and for locks; there may be hundreds of them; and one that gets nowhere is a result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How often the clock is looked at.
pub const LOOK: Duration = Duration::from_millis(5);

/// A thread that maps and unmaps rests so long after each.
const WRITER_RESTS: Duration = Duration::from_micros(100);

/// What is shared by the threads of a race.
#[derive(Debug)]
pub struct Race {
    over: AtomicBool,
}

impl Race {
    /// Whether to stop.
    #[inline(always)]
    pub fn over(&self) -> bool {
        // Relaxed: only to stop.
        self.over.load(Ordering::Relaxed)
    }

    /// Makes all stop.
    pub fn end(&self) {
        // Relaxed: as above.
        self.over.store(true, Ordering::Relaxed);
    }
}

/// What came of a race.
#[derive(Debug)]
pub struct Ran<T> {
    /// When it began.
    pub begun: Instant,
    /// How long it took until the threads were told to stop.
    pub took: Duration,
    /// What each thread returned.
    pub each: Vec<T>,
}

/// Has this many threads run, until they are done, or until the time is over and `runner` sees it.
pub fn race<T: Send>(
    threads: usize,
    length: Duration,
    runner: impl Fn(usize, &Race) -> Result<T> + Sync,
) -> Result<Ran<T>> {
    let race = Race { over: AtomicBool::new(false) };
    let (race, runner) = (&race, &runner);
    // Shut until all threads are there. Not a barrier: if one cannot be started the others go on,
    // and find that it is over.
    let gate = Mutex::new(());
    let shut = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let gate = &gate;
    std::thread::scope(|scope| {
        let mut handles = Vec::with_capacity(threads);
        let mut started = Ok(());
        for worker in 0..threads {
            let run = move || {
                drop(gate.lock().unwrap_or_else(PoisonError::into_inner));
                let ran = runner(worker, race);
                if ran.is_err() {
                    race.end();
                }
                ran
            };
            match Builder::new().spawn_scoped(scope, run) {
                Ok(handle) => handles.push(handle),
                Err(why) => {
                    race.end();
                    started = Err(why)
                        .with_context(|| format!("cannot start thread {worker} of {threads}"));
                    break;
                }
            }
        }
        let begun = Instant::now();
        drop(shut);
        while !race.over()
            && begun.elapsed() < length
            && !handles.iter().all(std::thread::ScopedJoinHandle::is_finished)
        {
            std::thread::sleep(LOOK.min(length.saturating_sub(begun.elapsed())));
        }
        let took = begun.elapsed();
        race.end();
        let each: Vec<Result<T>> = handles
            .into_iter()
            .map(|handle| handle.join().ok().context("a thread panicked")?)
            .collect();
        started?;
        Ok(Ran { begun, took, each: each.into_iter().collect::<Result<_>>()? })
    })
}

/// Maps and unmaps until the race is over, once at least; returns how long the longest took.
pub fn longest_write(race: &Race, map_and_unmap: impl Fn(usize) -> Result<()>) -> Result<Duration> {
    let (mut longest, mut turn) = (Duration::ZERO, 0);
    loop {
        let begun = Instant::now();
        map_and_unmap(turn)?;
        longest = longest.max(begun.elapsed());
        turn += 1;
        if race.over() {
            return Ok(longest);
        }
        std::thread::sleep(WRITER_RESTS);
    }
}

/// How far the slowest got, of what they got on average; 1 if nobody got anywhere.
pub fn slowest_over_mean(progress: &[u64]) -> f64 {
    let all: u64 = progress.iter().sum();
    let slowest = progress.iter().min().copied().unwrap_or(0);
    if all == 0 { 1.0 } else { slowest as f64 * progress.len() as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_run_until_the_time_is_over() {
        let length = Duration::from_millis(20);
        let ran = race(5, length, |worker, race| {
            while !race.over() {
                std::thread::yield_now();
            }
            Ok(worker)
        });
        let ran = ran.unwrap();
        assert_eq!(ran.each, [0, 1, 2, 3, 4]);
        assert!(ran.took >= length && ran.begun.elapsed() >= ran.took);
    }

    #[test]
    fn threads_that_are_done_are_not_waited_for() {
        let ran = race(2, Duration::MAX, |worker, _| Ok(worker));
        assert_eq!(ran.unwrap().each, [0, 1]);
    }

    #[test]
    fn one_that_fails_ends_it_for_all() {
        let ran = race(3, Duration::MAX, |worker, race| {
            anyhow::ensure!(worker != 1, "no such page");
            while !race.over() {
                std::thread::yield_now();
            }
            Ok(())
        });
        assert_eq!(ran.unwrap_err().to_string(), "no such page");
    }

    #[test]
    fn the_slowest_is_compared_with_all() {
        assert!((slowest_over_mean(&[5, 10, 15]) - 0.5).abs() < 1e-9);
        assert!(slowest_over_mean(&[0, 10]).abs() < 1e-9);
        assert!((slowest_over_mean(&[0, 0]) - 1.0).abs() < 1e-9);
        assert!((slowest_over_mean(&[7]) - 1.0).abs() < 1e-9);
    }
}
