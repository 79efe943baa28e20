//! Errors of failed fills, kept for the readers that waited.
//!
//! Here: the table of them. Not here: who fails (`fill`), who frees a folio (`core`).

use std::collections::HashMap;

use crate::error::Error;
use crate::frame::{Flags, Frame, FrameNumber};
use crate::sync::Mutex;

/// The error of each failed folio, for as long as somebody holds the folio.
#[derive(Debug)]
pub(crate) struct Failures(Mutex<HashMap<u32, Error>>);

impl Failures {
    pub(crate) fn new() -> Self {
        Failures(Mutex::new(HashMap::new()))
    }

    /// Leaves `error` for those who wait. Comes before the folio's identity is forgotten.
    pub(crate) fn remember(&self, head: FrameNumber, frame: &Frame, error: Error) {
        self.0.lock().insert(head.0, error);
        frame.set_flags(Flags::FAILED);
    }

    /// Why the folio's fill failed, if it did.
    pub(crate) fn of(&self, head: FrameNumber, frame: &Frame) -> Option<Error> {
        if !frame.flags().contains(Flags::FAILED) {
            return None;
        }
        Some(self.0.lock().get(&head.0).cloned().expect("a failed fill leaves its error"))
    }

    /// The folio is about to be freed.
    pub(crate) fn forget(&self, head: FrameNumber, frame: &Frame) {
        if frame.flags().contains(Flags::FAILED) {
            self.0.lock().remove(&head.0);
        }
    }
}
