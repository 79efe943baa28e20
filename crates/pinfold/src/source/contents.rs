//! What identifies the contents of a file of the system: its length, the time of the last change of
//! the bytes (which a program can set back), and that of the last change of anything (which it
//! cannot). `refresh.rs` drops what has changed.
//!
//! A change stores the time at which it begins: on many file systems that of the last tick of the
//! kernel's clock, 1 to 10 ms ago. So it may leave the times equal to those of a change shortly
//! before; and bytes that are read while a write is under way may be older than the times of that
//! write. Therefore attributes are *settled* if the last change was [`GRAIN_NS`] ago when they were
//! asked for. What was read under others is not believed at the next open.

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};

/// Longer than a tick of any kernel's clock, and than most writes take.
const GRAIN_NS: i128 = 20_000_000;
/// The same where times are whole seconds, or two.
const COARSE_GRAIN_NS: i128 = 2_020_000_000;

/// Seconds and nanoseconds.
pub(crate) type Time = (i64, i64);

pub(crate) fn realtime() -> Time {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec, now.tv_nsec)
}

/// Less than half of [`GRAIN_NS`] ago.
pub(crate) fn was_just_now(time: Time) -> bool {
    let age = in_ns(realtime()) - in_ns(time);
    (0..GRAIN_NS / 2).contains(&age)
}

fn in_ns((seconds, ns): Time) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(ns)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) len_bytes: u64,
    modified: Time,
    changed: Time,
}

impl Contents {
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_possible_wrap,
        reason = "the types differ between architectures; nanoseconds are below 2^30"
    )]
    pub(super) fn of(stat: &Stat) -> Self {
        Contents {
            len_bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as i64),
        }
    }

    /// Whether they were changed for the last time at that time or before.
    pub(crate) fn were_there(&self, time: Time) -> bool {
        self.changed <= time
    }

    /// Whether each change from now on will make them differ. They were asked for just now.
    pub(crate) fn are_settled(&self) -> bool {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        self.are_settled_at((now.tv_sec, now.tv_nsec))
    }

    fn are_settled_at(&self, now: Time) -> bool {
        let grain = if self.changed.1 == 0 { COARSE_GRAIN_NS } else { GRAIN_NS };
        let age = in_ns(now) - in_ns(self.changed);
        // A time in the future is that of another clock, and says nothing.
        age > grain || age < -grain
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_settled_when_a_later_change_will_have_another_time() {
        let contents = |changed| Contents { len_bytes: 1, modified: (5, 7), changed };
        let at = |seconds, ms: i64| (seconds, ms * 1_000_000);
        let fine = contents(at(1000, 990));
        assert!(!fine.are_settled_at(at(1000, 990)));
        assert!(!fine.are_settled_at(at(1001, 9)), "a tick, or a write that is under way");
        assert!(fine.are_settled_at(at(1001, 11)));
        assert!(!fine.are_settled_at(at(1000, 980)), "the clock of ticks is behind");
        assert!(fine.are_settled_at(at(900, 0)), "another clock");
        let whole = Contents { len_bytes: 1, modified: (5, 0), changed: (1000, 0) };
        assert!(!whole.are_settled_at(at(1002, 0)));
        assert!(whole.are_settled_at(at(1002, 30)));
    }
}
