//! The clock by which a thread hangs.
//!
//! Belongs here: how fast the machine lets this process run.
//!
//! Where others want the processors, too, all threads are slow, and those that wait for slow ones
//! look as if they hung. So time counts as far as the process got what it could have used of the
//! processors: with a tenth of that, the clock runs at a tenth of its speed.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Stands still unless [`tick`](Clock::tick) is called again and again.
#[derive(Debug)]
pub(super) struct Clock(Mutex<ClockState>);

#[derive(Debug)]
struct ClockState {
    now: Duration,
    last: Instant,
    used: Used,
    cores: u32,
}

/// What all threads have had of the processors, and how long they have waited for them.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    ran: Duration,
    waited: Duration,
}

impl Clock {
    pub(super) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        let (now, last, used) = (Duration::ZERO, Instant::now(), Used::now());
        Clock(Mutex::new(ClockState { now, last, used, cores }))
    }

    pub(super) fn now(&self) -> Duration {
        self.0.lock().unwrap().now
    }

    /// Moves on.
    pub(super) fn tick(&self) {
        let state = &mut *self.0.lock().unwrap();
        let (last, used) = (Instant::now(), Used::now());
        let elapsed = last - state.last;
        state.now += used.since(state.used).counts(elapsed, state.cores);
        (state.last, state.used) = (last, used);
    }
}

impl Used {
    /// Nothing where the kernel does not say it: then the clock is one as any other.
    fn now() -> Self {
        let mut used = Used::default();
        for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
            let mut times =
                text.split(' ').map(|ns| ns.parse().map_or(Duration::ZERO, Duration::from_nanos));
            used.ran += times.next().unwrap_or_default();
            used.waited += times.next().unwrap_or_default();
        }
        used
    }

    /// A thread that has ended is not seen any more, and its times are not either.
    fn since(self, before: Used) -> Used {
        Used {
            ran: self.ran.saturating_sub(before.ran),
            waited: self.waited.saturating_sub(before.waited),
        }
    }

    /// How much of the time counts in which it was used.
    fn counts(self, elapsed: Duration, cores: u32) -> Duration {
        let could = (self.ran + self.waited).min(elapsed * cores);
        if self.ran >= could {
            return elapsed;
        }
        elapsed.mul_f64(self.ran.div_duration_f64(could))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_by_the_share_that_the_process_got() {
        let ms = Duration::from_millis;
        let counts =
            |ran, waited| Used { ran: ms(ran), waited: ms(waited) }.counts(ms(100), 2).as_millis();
        assert_eq!(counts(0, 0), 100, "it wanted nothing");
        assert_eq!(counts(10, 0), 100, "it got what it wanted");
        assert_eq!(counts(10, 70), 12);
        assert_eq!(counts(50, 2000), 25, "more than there was it could not have");
        assert_eq!(counts(200, 2000), 100, "others took nothing");
        assert_eq!(counts(0, 50), 0);
    }

    #[test]
    fn what_threads_use_is_known() {
        let (made, clock, before) = (Instant::now(), Clock::new(), Used::now());
        // Ends: it runs, and at some time it will have for so long.
        while Used::now().since(before).ran < Duration::from_millis(20) {
            assert!(made.elapsed() < Duration::from_secs(600), "the kernel does not say it");
        }
        clock.tick();
        assert!(clock.now() > Duration::ZERO && clock.now() <= made.elapsed());
    }
}
