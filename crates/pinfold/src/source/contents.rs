//! What identifies the contents of a file of the system: whether another program has changed them.
//! What is dropped then is in `refresh.rs`.
//!
//! # What is compared
//! The length, the time of the last change of the bytes (which a program can set back), and that of
//! the last change of anything (which it cannot). Device and inode are the key of the file.
//!
//! # When equal attributes mean equal contents
//! A change stores the time at which it begins: on many file systems that of the last tick of the
//! kernel's clock, 1 to 10 ms ago. So a change may leave the times equal to those of a change
//! shortly before; and bytes that are read while a write is under way may be older than the times
//! of that write. Therefore attributes are *settled* if the last change was [`GRAIN_NS`] ago when
//! they were asked for: whatever happens then gets another time. What was read under others is not
//! believed at the next open.
//!
//! Since Linux 6.13 ("multigrain timestamps"), ext4, XFS, btrfs and tmpfs give a change after a
//! question another time than before the question. A direct read of the first two waits for a
//! buffered write that is under way. So their attributes are settled at once where reads are
//! direct. But not where the file system keeps whole seconds, as ext4 does of inodes of 128 bytes;
//! and what is mounted as ext2 or ext3 has the magic number of ext4, but not these times: so the
//! mount is asked for its type.

use std::sync::OnceLock;

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};

use super::mounted;
use crate::base::mutant::{self, Mutant};

/// Longer than a tick of any kernel's clock, and than most writes take.
const GRAIN_NS: i128 = 20_000_000;
/// The same where times are whole seconds, or two.
const COARSE_GRAIN_NS: i128 = 2_020_000_000;

const EXT4_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;

type Time = (i64, i64);

/// The attributes of a file that change with its contents.
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

    /// Whether each change from now on will make them differ. They were asked for just now.
    /// `fine_times` as by [`has_fine_times`].
    pub(crate) fn are_settled(&self, fine_times: bool) -> bool {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let whole = self.is_whole() && !mutant::on(Mutant::WholeSecondsFine);
        (fine_times && !whole) || self.are_settled_at((now.tv_sec, now.tv_nsec))
    }

    /// Whether the last change has a time of whole seconds. Others may have the same then.
    fn is_whole(&self) -> bool {
        self.changed.1 == 0
    }

    fn are_settled_at(&self, now: Time) -> bool {
        let grain = if self.is_whole() { COARSE_GRAIN_NS } else { GRAIN_NS };
        let in_ns = |(seconds, ns): Time| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let age = in_ns(now) - in_ns(self.changed);
        // A time that lies in the future is that of another clock, and says nothing.
        age > grain || age < -grain
    }
}

/// Whether a change after a question for the attributes always makes them differ, of a file that is
/// read directly. See the head of the file.
/// Cost: for ext4 a system call, if the last file's mount was another.
pub(super) fn has_fine_times(mount: Option<u64>, magic: u64) -> bool {
    static KERNEL: OnceLock<bool> = OnceLock::new();
    let kernel = || is_multigrain(rustix::system::uname().release().to_bytes());
    [EXT4_MAGIC, XFS_MAGIC].contains(&magic)
        && *KERNEL.get_or_init(kernel)
        && (magic != EXT4_MAGIC
            || mount.is_some_and(mounted::is_ext4)
            || mutant::on(Mutant::AllExtFine))
}

/// Whether the kernel of this release is Linux 6.13 or later.
fn is_multigrain(release: &[u8]) -> bool {
    let mut numbers = release.split(|byte| !byte.is_ascii_digit()).map(|digits| {
        std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u32>().ok())
    });
    let mut next = || numbers.next().flatten();
    (next(), next()) >= (Some(6), Some(13))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// What other file systems do, nobody has looked up.
    #[test]
    fn times_are_fine_of_two_file_systems_alone() {
        let (btrfs, tmpfs) = (0x9123_683e, 0x0102_1994);
        assert!([btrfs, tmpfs, 0].iter().all(|&magic| !has_fine_times(None, magic)));
        assert!(!has_fine_times(None, EXT4_MAGIC), "ext2 and ext3 have the same number");
        let kernel = is_multigrain(rustix::system::uname().release().to_bytes());
        assert_eq!(has_fine_times(None, XFS_MAGIC), kernel);
    }

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

    #[test]
    fn releases_are_compared_as_numbers() {
        for (release, fine) in
            [("6.13.0", true), ("6.9.1-x", false), ("6.100-rc1", true), ("7.0", true)]
        {
            assert_eq!(is_multigrain(release.as_bytes()), fine, "{release}");
        }
        for (release, fine) in [("5.15.0", false), ("6", false), ("", false), ("6.18.44-fc", true)]
        {
            assert_eq!(is_multigrain(release.as_bytes()), fine, "{release}");
        }
    }
}
