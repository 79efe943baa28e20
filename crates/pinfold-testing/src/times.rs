//! Times of files.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// Waits until the next change of a file that was last changed as `seen` says would show in its
/// times: so an open believes what was read under these.
pub fn settle(seen: &Metadata) {
    let (seconds, ns) = (seen.ctime().cast_unsigned(), seen.ctime_nsec());
    let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, u32::try_from(ns).unwrap());
    // Ends: time goes on.
    while changed.elapsed().is_ok_and(|since| since < Duration::from_millis(50)) {
        std::thread::sleep(Duration::from_millis(5));
    }
}
