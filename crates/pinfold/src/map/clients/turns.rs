//! Whose turn it is, for how long, and what all clients of a [`Clients`](super::Clients) have
//! together: one thread serves them, and none may make the others wait.
//!
//! A round begins with all clients that have something to do, which are served in turn. A turn ends
//! after [`SLICE`]; what is left waits for the next round. No step within a turn takes long by
//! itself: it installs a bounded number of pages, or changes a few intervals.
//!
//! Reads for a client that has left count until they end: nobody gets more by coming back.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::base::mutant::{self, Mutant};

/// A client's part of a round.
const SLICE: Duration = Duration::from_micros(200);

/// When the loop goes back to the caller, with the round where it is.
pub(super) const CALL_MAX: Duration = Duration::from_micros(500);

/// The most messages that are heard in one turn.
pub(super) const MESSAGES_MAX: usize = 16;

/// The most reads that faults wait for.
pub(super) const READS_MAX: usize = 64;

/// The most turns whose reads ahead are under way.
pub(super) const AHEAD_MAX: usize = 8;

/// The most reads that are under way when one is begun ahead.
const AHEAD_READS_MAX: usize = 32;

/// The clients that have something to do, and what all have together.
#[derive(Debug, Default)]
pub(super) struct ClientTurns {
    ready: VecDeque<u64>,
    /// Reads that faults wait for, also of clients that have left.
    pub(super) reads: usize,
    /// Reads that were begun: of these, and ahead.
    pub(super) begun: usize,
    /// Those of `reads` that were not: the client, and the page.
    unbegun: VecDeque<(u64, u64)>,
    /// What is to be read ahead, and is not begun: the job, and the pages.
    unbegun_ahead: VecDeque<(u64, Range<u64>)>,
    /// Turns whose reads ahead are under way.
    pub(super) ahead: usize,
    /// Pieces of what was installed, and of what clients have removed.
    pub(super) pieces: [usize; 2],
    /// Clients that go on when fewer reads are under way.
    pub(super) waiting: BTreeSet<u64>,
    released: BTreeSet<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ClientTurn {
    begin: Instant,
    messages: usize,
}

impl ClientTurn {
    pub(super) fn begin() -> Self {
        ClientTurn { begin: Instant::now(), messages: 0 }
    }

    pub(super) fn heard(&mut self, messages: usize) {
        self.messages += messages;
    }

    /// Whether no more messages are heard in it.
    pub(super) fn is_over(&self) -> bool {
        let is_over = self.messages >= MESSAGES_MAX || !self.has_time();
        is_over && !mutant::on(Mutant::TurnWithoutEnd)
    }

    /// Whether something can be begun in it.
    pub(super) fn has_time(&self) -> bool {
        self.begin.elapsed() < SLICE
    }
}

impl ClientTurns {
    /// Whether there is room for reads of those that have paused, and for reads ahead.
    fn has_room(&self) -> [bool; 2] {
        [self.reads < READS_MAX / 2, self.ahead < AHEAD_MAX]
    }

    /// Changes what all have together. If there is room for reads again, who waits goes on.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Self)) {
        let had_room = self.has_room();
        change(self);
        let gets_room = (0..2).any(|of| self.has_room()[of] && !had_room[of]);
        if gets_room && !mutant::on(Mutant::WaitingForgotten) {
            self.released.append(&mut self.waiting);
        }
    }

    pub(super) fn read(&mut self, client: u64, page: u64) {
        self.reads += 1;
        self.unbegun.push_back((client, page));
    }

    /// The next read to begin, if fewer than `most` are under way: the client, and the page.
    pub(super) fn begin_read(&mut self, most: usize) -> Option<(u64, u64)> {
        if self.begun >= most && !mutant::on(Mutant::AllReadsBegun) {
            return None;
        }
        let next = self.unbegun.pop_front()?;
        self.begun += 1;
        Some(next)
    }

    pub(super) fn end_read(&mut self) {
        self.change(|it| it.reads = it.reads.saturating_sub(1));
        self.begun = self.begun.saturating_sub(1);
    }

    pub(super) fn read_ahead(&mut self, job: u64, parts: impl IntoIterator<Item = Range<u64>>) {
        self.unbegun_ahead.extend(parts.into_iter().map(|part| (job, part)));
    }

    /// The next read ahead to begin: the job, and the pages. So that the faults of any page find
    /// room, no more are begun beside other reads than half as many as `most` of these.
    pub(super) fn begin_ahead(&mut self, most: usize) -> Option<(u64, Range<u64>)> {
        let most = (most / 2).clamp(1, AHEAD_READS_MAX);
        if self.begun >= most && !mutant::on(Mutant::AheadUncounted) {
            return None;
        }
        let next = self.unbegun_ahead.pop_front()?;
        self.begun += 1;
        Some(next)
    }

    /// The rest of what was begun.
    pub(super) fn goes_on_ahead(&mut self, job: u64, rest: Range<u64>) {
        self.unbegun_ahead.push_front((job, rest));
    }

    /// A read ahead has ended, and with it perhaps the last one of a turn.
    pub(super) fn end_ahead(&mut self, is_last: bool) {
        self.begun = self.begun.saturating_sub(1);
        self.change(|it| it.ahead -= usize::from(is_last));
    }

    /// Nothing more is begun for the job. Returns how many parts would have been.
    pub(super) fn give_up_ahead(&mut self, job: u64) -> usize {
        let before = self.unbegun_ahead.len();
        self.unbegun_ahead.retain(|&(of, _)| of != job);
        before - self.unbegun_ahead.len()
    }

    /// A client has left, with so many pieces: no read is begun any more for it.
    pub(super) fn leave(&mut self, client: u64, pieces: [usize; 2]) {
        self.change(|it| {
            it.waiting.remove(&client);
            for (all, of_this) in it.pieces.iter_mut().zip(pieces) {
                *all -= of_this;
            }
            let before = it.unbegun.len();
            it.unbegun.retain(|&(of, _)| of != client);
            it.reads = it.reads.saturating_sub(before - it.unbegun.len());
            if mutant::on(Mutant::ReadsForgotten) {
                (it.reads, it.begun) = (0, 0);
            }
        });
    }

    /// A client that waited, and can go on.
    pub(super) fn released(&mut self) -> Option<u64> {
        self.released.pop_first()
    }

    /// Whether something can be done at once.
    pub(super) fn has_something(&self) -> bool {
        self.is_in_round() || !self.released.is_empty()
    }

    pub(super) fn is_in_round(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A client has something to do.
    pub(super) fn add(&mut self, id: u64, is_ready: &mut bool) {
        if !std::mem::replace(is_ready, true) {
            self.ready.push_back(id);
        }
    }

    pub(super) fn next(&mut self) -> Option<u64> {
        self.ready.pop_front()
    }
}
