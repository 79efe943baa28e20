//! Errors of failed fills, kept for the threads that waited for them. `fill` stores them, `core`
//! frees folios.

use std::collections::HashMap;

use crate::error::Error;
use crate::frame::{Flags, Frame, FrameNumber};
use crate::sync::Mutex;

/// The error of each failed folio, as long as a thread holds the folio.
#[derive(Debug)]
pub(crate) struct Failures(Mutex<HashMap<u32, Error>>);

impl Failures {
    pub(crate) fn new() -> Self {
        Failures(Mutex::new(HashMap::new()))
    }

    /// Stores `error` for the waiters. Call it before the folio's identity is forgotten.
    pub(crate) fn remember(&self, head: FrameNumber, frame: &Frame, error: Error) {
        self.0.lock().insert(head.0, error);
        frame.set_flags(Flags::FAILED);
    }

    /// The error of the folio's fill, if it failed.
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
