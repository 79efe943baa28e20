use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::base::fork::Birth;
use crate::base::sync::locks::Mutex;

/// A live [`PinnedRange`](crate::PinnedRange).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinHolder {
    /// The call of `pin` or `split_off` in the program.
    pub call_site: &'static Location<'static>,
    /// When it was pinned.
    pub since: Instant,
    /// The file.
    pub path: PathBuf,
    /// The bytes of the file that are still pinned.
    pub range: Range<u64>,
}

impl fmt::Display for PinHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes at {} of {}, pinned at {} {:.1} s ago",
            self.range.end - self.range.start,
            self.range.start,
            self.path.display(),
            self.call_site,
            self.since.elapsed().as_secs_f64()
        )
    }
}

#[derive(Debug)]
pub(crate) struct Holders {
    list: Option<Mutex<PinList>>,
    birth: Birth,
}

#[derive(Debug, Default)]
struct PinList {
    last: u64,
    by_number: BTreeMap<u64, PinHolder>,
}

impl Holders {
    pub(crate) fn new(kept: bool) -> Self {
        Holders { list: kept.then(Mutex::default), birth: Birth::here() }
    }

    /// `None` also in a forked child, where its lock may be held for ever.
    fn list(&self) -> Option<&Mutex<PinList>> {
        self.list.as_ref().filter(|_| self.birth.is_here())
    }

    /// Returns the pin's number, 0 if there is no list.
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

    /// Moves the bytes from `at` on to a new pin, and returns its number.
    #[track_caller]
    pub(crate) fn split(&self, number: u64, at: u64) -> u64 {
        let Some(list) = self.list() else { return 0 };
        let mut list = list.lock();
        let Some(holder) = list.by_number.get_mut(&number) else { return 0 };
        let end = std::mem::replace(&mut holder.range.end, at);
        let other = PinHolder { range: at..end, call_site: Location::caller(), ..holder.clone() };
        list.insert(other)
    }

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

    pub(crate) fn all(&self) -> Option<Vec<PinHolder>> {
        Some(self.list()?.lock().by_number.values().cloned().collect())
    }
}

impl PinList {
    fn insert(&mut self, holder: PinHolder) -> u64 {
        self.last += 1;
        self.by_number.insert(self.last, holder);
        self.last
    }
}
