//! Who pins what, since when: a list that costs a lock for each pin, and so is kept only where
//! [`Options::track_pins`](crate::Options::track_pins) asks for it.
//!
//! Called by `pin`; shown by [`Cache::pins`](crate::Cache::pins), and by
//! [`Cache::close`](crate::Cache::close).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Instant;

// Not from `crate::sync`: no protocol hangs on it.
use parking_lot::Mutex;

use crate::fork::Birth;

/// One [`PinnedRange`](crate::PinnedRange) that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinHolder {
    /// Where in the program the pin was asked for, or the range cut off.
    pub call_site: &'static Location<'static>,
    /// When.
    pub since: Instant,
    /// Of which file.
    pub path: PathBuf,
    /// Which bytes of it are still pinned.
    pub range: Range<u64>,
}

impl PinHolder {
    /// How many bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl fmt::Display for PinHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {} of {}, pinned at {} {:.1} s ago",
            self.bytes(),
            self.range.start,
            self.path.display(),
            self.call_site,
            self.since.elapsed().as_secs_f64()
        )
    }
}

/// The list of a cache, if it has one.
#[derive(Debug)]
pub(crate) struct Holders {
    list: Option<Mutex<List>>,
    birth: Birth,
}

#[derive(Debug, Default)]
struct List {
    /// The number of the last one.
    last: u64,
    by_number: BTreeMap<u64, PinHolder>,
}

impl Holders {
    pub(crate) fn new(kept: bool) -> Self {
        Holders { list: kept.then(Mutex::default), birth: Birth::here() }
    }

    /// The list; `None` too in a forked child, where nobody may be there to unlock it.
    fn list(&self) -> Option<&Mutex<List>> {
        self.list.as_ref().filter(|_| self.birth.is_here())
    }

    /// Adds one; gives its number, 0 if there is no list.
    #[inline]
    pub(crate) fn add(
        &self,
        call_site: &'static Location<'static>,
        path: &Path,
        range: &Range<u64>,
    ) -> u64 {
        let Some(list) = self.list() else { return 0 };
        let (since, path) = (Instant::now(), path.to_owned());
        list.lock().insert(PinHolder { call_site, since, path, range: range.clone() })
    }

    /// What is behind `at` goes to a holder of its own, whose number is returned.
    #[track_caller]
    pub(crate) fn split(&self, number: u64, at: u64) -> u64 {
        let Some(list) = self.list() else { return 0 };
        let mut list = list.lock();
        let Some(holder) = list.by_number.get_mut(&number) else { return 0 };
        let end = std::mem::replace(&mut holder.range.end, at);
        let other = PinHolder { range: at..end, call_site: Location::caller(), ..holder.clone() };
        list.insert(other)
    }

    /// What is before `start` is given back.
    pub(crate) fn shrink(&self, number: u64, start: u64) {
        let Some(list) = self.list() else { return };
        if let Some(holder) = list.lock().by_number.get_mut(&number) {
            holder.range.start = start;
        }
    }

    #[cold]
    pub(crate) fn remove(&self, number: u64) {
        let Some(list) = self.list() else { return };
        list.lock().by_number.remove(&number);
    }

    /// All of them, the oldest first; `None` if there is no list.
    pub(crate) fn all(&self) -> Option<Vec<PinHolder>> {
        Some(self.list()?.lock().by_number.values().cloned().collect())
    }
}

impl List {
    fn insert(&mut self, holder: PinHolder) -> u64 {
        self.last += 1;
        self.by_number.insert(self.last, holder);
        self.last
    }
}
