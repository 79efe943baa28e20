//! Checks the bytes that came, and makes the report if they are wrong.
//!
//! Belongs here: whether bytes are those of their file, and all of them. Does not: which errors are
//! excused, as each way in has its own.

use std::ops::RangeInclusive;

use pinfold::{Error, ErrorKind};

use super::files::{Nature, Subject};
use super::options::Sabotage;
use super::report::Failure;
use super::shared::Shared;
use super::watch::Desk;

pub(super) type Checked = Result<(), Box<Failure>>;

/// The moment before a read: what it may see depends on that.
pub(super) struct Before<'a> {
    shared: &'a Shared,
    desk: &'a Desk,
    subject: &'a Subject,
    pub(super) phase: u64,
    oldest_epoch: u32,
}

impl<'a> Before<'a> {
    pub(super) fn now(shared: &'a Shared, desk: &'a Desk, subject: &'a Subject) -> Self {
        let phase = subject.phase.now();
        Before { shared, desk, subject, phase, oldest_epoch: subject.oldest_epoch() }
    }

    /// Checks the bytes that came of `asked` at `offset`, and tells whether they are all there
    /// should be. There may be fewer if the file is being cut.
    pub(super) fn check(
        &self,
        offset: u64,
        asked: usize,
        bytes: &[u8],
    ) -> Result<bool, Box<Failure>> {
        let subject = self.subject;
        let expected = subject.bytes.saturating_sub(offset).min(asked as u64) as usize;
        let may_be_short =
            matches!(subject.nature, Nature::Cut(_)) && subject.phase.troubled_since(self.phase);
        if bytes.len() > expected || (bytes.len() < expected && !may_be_short) {
            return Err(Box::new(Failure::Length {
                thread: self.desk.name.clone(),
                file: subject.name.clone(),
                offset,
                asked_bytes: asked,
                got_bytes: bytes.len(),
                expected_bytes: expected,
            }));
        }
        let epochs = self.oldest_epoch..=subject.newest_epoch();
        check(self.shared, self.desk, subject, offset, bytes, epochs)?;
        Ok(bytes.len() == expected)
    }
}

/// Whether these are the file's bytes at `offset`, of one of these epochs if it is written anew.
pub(super) fn check(
    shared: &Shared,
    desk: &Desk,
    subject: &Subject,
    offset: u64,
    bytes: &[u8],
    epochs: RangeInclusive<u32>,
) -> Checked {
    let checked = match subject.nature {
        Nature::Rewritten { .. } | Nature::Written(_) => {
            subject.pattern.check_epochs(offset, bytes, epochs)
        }
        _ => subject.pattern.check(offset, bytes),
    };
    checked.map_err(|wrong| {
        Box::new(Failure::Wrong {
            thread: desk.name.clone(),
            file: subject.name.clone(),
            wrong,
            names: shared.subjects.names(),
        })
    })
}

/// Excuses an error of a guard or a future: it may only come from a file that has any. That errors
/// do not last is the readers' to see.
pub(super) fn forgive(shared: &Shared, desk: &Desk, subject: &Subject, error: &Error) -> Checked {
    let may = match error.kind() {
        ErrorKind::Read | ErrorKind::Truncated => {
            matches!(subject.nature, Nature::Faulty(_) | Nature::Cut(_))
        }
        ErrorKind::BeyondEnd => matches!(subject.nature, Nature::Cut(_)),
        // What waits for the reads of a source that hangs is given up after half a minute.
        ErrorKind::NoMemory => shared.options.sabotage == Some(Sabotage::Hang),
        _ => false,
    };
    if !may {
        return Err(unexpected(shared, desk, error));
    }
    desk.excuse();
    Ok(())
}

/// The report of an error that nobody injected. The error, or the thread's work, names the file.
pub(super) fn unexpected(shared: &Shared, desk: &Desk, error: &Error) -> Box<Failure> {
    Box::new(Failure::Unexpected {
        thread: desk.name.clone(),
        doing: desk.describe(&shared.subjects),
        error: format!("{error} ({error:?})"),
    })
}
