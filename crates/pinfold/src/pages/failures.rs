use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use crate::base::sync::{self, Mutex};
use crate::error::Error;
use crate::frames::{Flags, Frame, FrameNumber};

/// As long as somebody holds the folio.
#[derive(Debug)]
pub(crate) struct Failures(Mutex<HashMap<u32, Error>>);

impl Failures {
    pub(crate) fn new() -> Self {
        Failures(Mutex::new(HashMap::new()))
    }

    /// Call it before the folio's identity is forgotten.
    pub(crate) fn remember(&self, head: FrameNumber, frame: &Frame, error: Error) {
        self.0.lock().insert(head.0, error);
        frame.set_flags(Flags::FAILED);
    }

    pub(crate) fn of(&self, head: FrameNumber, frame: &Frame) -> Option<Error> {
        if !frame.flags().contains(Flags::FAILED) {
            return None;
        }
        Some(self.0.lock().get(&head.0).cloned().expect("a failed fill leaves its error"))
    }

    /// Call it before the folio is freed.
    pub(crate) fn forget(&self, head: FrameNumber, frame: &Frame) {
        if frame.flags().contains(Flags::FAILED) {
            // Dropped without the lock: it may have an error of the program's own.
            let error = self.0.lock().remove(&head.0);
            drop(error);
        }
    }
}

/// The errors of a batch's reads, for the batch alone: a page whose read fails leaves the index.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) since: Instant,
    // Not `crate::base::sync::Mutex`: it is held for a moment, and nothing is waited for under it.
    errors: sync::locks::Mutex<Vec<(Range<u64>, Error)>>,
}

impl Failed {
    pub(crate) fn new() -> Self {
        Failed { since: Instant::now(), errors: sync::locks::Mutex::default() }
    }

    /// Call it before the pages leave the index.
    pub(crate) fn remember(&self, pages: Range<u64>, error: Error) {
        self.errors.lock().push((pages, error));
    }

    pub(crate) fn of(&self, pages: &Range<u64>, wanted: impl Fn(&Error) -> bool) -> Option<Error> {
        let errors = self.errors.lock();
        let meets = |of: &Range<u64>| of.start < pages.end && pages.start < of.end;
        let found = errors.iter().find(|(of, error)| meets(of) && wanted(error));
        found.map(|(_, error)| error.clone())
    }
}
