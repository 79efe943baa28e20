//! Whose turn it is, and for how long: one thread serves all clients, and none of them may make the
//! others wait.
//!
//! Clients belong to *owners*, by a number that the caller gives. An owner is what has a share: of
//! the thread's time, and of the reads that are under way. So nobody gets more by being many
//! clients, or by leaving and coming back.
//!
//! # A round
//!
//! [`gather`](Turns::gather) begins a round with all clients that have something to do. They are
//! served in turn. A turn ends after [`SLICE`]; what is left waits for the next round. In a round,
//! an owner has the turns that fit into its slice. No step within a turn takes long by itself: it
//! installs a bounded number of pages, or changes a few intervals. An owner that has used more than
//! its slice has no turn until as many rounds have gone by as the time was slices.
//!
//! # A call that blocks
//!
//! To install a page, the kernel takes the lock of the client's memory, which the client can hold
//! for as long as one of its own calls takes. Nothing says so before. So an owner with which the
//! thread has slept for longer than [`BLOCKED`] rests for [`REST_FACTOR`] times as long, if there
//! are others. Time for which the thread did not sleep, but was not given a processor, counts for
//! nobody.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::base::mutant::{self, Mutant};

/// An owner's part of a round.
pub(super) const SLICE: Duration = Duration::from_micros(200);

/// The most that is still owed when a round ends. More than this is likely to be time in which the
/// thread was not given a processor.
const DEBT_MAX: Duration = Duration::from_millis(4);

/// When the loop goes back to the caller, with the round where it is.
const TURN: Duration = Duration::from_micros(500);

/// A turn that was longer, and slept.
const BLOCKED: Duration = Duration::from_millis(1);
const REST_FACTOR: u32 = 20;
const REST_MAX: Duration = Duration::from_secs(5);

/// Messages that are heard in one turn, at most.
pub(super) const MESSAGES_MAX: usize = 16;

/// The most reads that the faults of one owner wait for, and of owners that are gone.
pub(super) const READS_MAX: usize = 64;

/// The most turns of one owner whose reads ahead are under way.
pub(super) const AHEAD_MAX: usize = 8;

/// What the clients of one owner have together.
#[derive(Debug, Default)]
pub(super) struct Owner {
    pub(super) clients: usize,
    /// Reads that faults wait for, also of clients that have left.
    pub(super) reads: usize,
    /// Of these, the ones that were begun.
    pub(super) begun: usize,
    /// The others: the client, and the page.
    unbegun: VecDeque<(u64, u64)>,
    /// Turns whose reads ahead are under way.
    pub(super) ahead: usize,
    /// Pieces of what was installed for its clients, and of what they have removed.
    pub(super) pieces: [usize; 2],
    /// Time of this round, and what was used too much of the rounds before.
    used: Duration,
    rests_until: Option<Instant>,
    /// It is among those that owe.
    owes: bool,
    /// Its clients that go on when fewer of its reads are under way.
    pub(super) waiting: BTreeSet<u64>,
}

impl Owner {
    /// Whether nothing is served for it.
    fn is_nobody(&self) -> bool {
        self.clients == 0 && self.reads == 0 && self.ahead == 0
    }

    /// Whether it has room for reads of those that have paused, and for reads ahead.
    fn has_room(&self) -> [bool; 2] {
        [self.reads < READS_MAX / 2, self.ahead < AHEAD_MAX]
    }
}

/// The clients that have something to do, and the owners of all.
#[derive(Debug, Default)]
pub(super) struct ClientTurns {
    ready: VecDeque<u64>,
    owners: HashMap<u64, Owner>,
    /// The owners that have used time of this round, or more than that, or rest: each once.
    owing: Vec<u64>,
    /// Clients whose owner has room for reads again.
    released: VecDeque<u64>,
}

/// A turn that is going on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientTurn {
    begin: Instant,
    messages: usize,
    /// How often the thread had slept before.
    slept: i64,
}

impl ClientTurn {
    pub(super) fn begin() -> Self {
        ClientTurn { begin: Instant::now(), messages: 0, slept: times_slept() }
    }

    /// Messages were heard.
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
    /// An owner has a client more.
    pub(super) fn come(&mut self, owner: u64) {
        self.owners.entry(owner).or_default().clients += 1;
    }

    /// An owner has a client less.
    pub(super) fn go(&mut self, owner: u64) {
        self.change(owner, |it| it.clients -= 1);
    }

    /// What an owner has changes.
    pub(super) fn change(&mut self, owner: u64, change: impl FnOnce(&mut Owner)) {
        let Some(it) = self.owners.get_mut(&owner) else { return };
        let had_room = it.has_room();
        change(it);
        let gets_room = (0..2).any(|of| it.has_room()[of] && !had_room[of]);
        if gets_room && !mutant::on(Mutant::WaitingForgotten) {
            self.released.extend(std::mem::take(&mut it.waiting));
        }
        // What it has used, and the time that it has to rest, are longer than coming back takes.
        if it.is_nobody() && !it.owes {
            self.owners.remove(&owner);
        }
    }

    pub(super) fn owner(&self, owner: u64) -> Option<&Owner> {
        self.owners.get(&owner)
    }

    /// Until when an owner rests.
    pub(super) fn rests_until(&self, owner: u64) -> Option<Instant> {
        self.owners.get(&owner)?.rests_until
    }

    /// An owner's fault waits for a read of `page`.
    pub(super) fn read(&mut self, owner: u64, client: u64, page: u64) {
        self.change(owner, |it| {
            it.reads += 1;
            it.unbegun.push_back((client, page));
        });
    }

    /// The next read that an owner may begin, if it has fewer than `most`: the client, and the
    /// page.
    pub(super) fn begin_read(&mut self, owner: u64, most: usize) -> Option<(u64, u64)> {
        let it = self.owners.get_mut(&owner)?;
        if it.begun >= most && !mutant::on(Mutant::AllReadsBegun) {
            return None;
        }
        let next = it.unbegun.pop_front()?;
        it.begun += 1;
        Some(next)
    }

    /// A read has ended, or is waited for no longer, that an owner has begun.
    pub(super) fn end_read(&mut self, owner: u64) {
        self.change(owner, |it| {
            it.reads = it.reads.saturating_sub(1);
            it.begun = it.begun.saturating_sub(1);
        });
    }

    /// No read is begun any more for a client; how many there were to begin.
    pub(super) fn forget_reads(&mut self, owner: u64, client: u64) -> usize {
        let mut forgotten = 0;
        self.change(owner, |it| {
            let before = it.unbegun.len();
            it.unbegun.retain(|&(of, _)| of != client);
            forgotten = before - it.unbegun.len();
            it.reads = it.reads.saturating_sub(forgotten);
        });
        forgotten
    }

    /// A client whose owner has room for its reads since the last call.
    pub(super) fn released(&mut self) -> Option<u64> {
        self.released.pop_front()
    }

    /// Whether something can be done at once.
    pub(super) fn has_something(&self) -> bool {
        self.is_in_round() || !self.released.is_empty()
    }

    /// Whether a round is going on.
    pub(super) fn is_in_round(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A new round begins.
    pub(super) fn begin_round(&mut self) {
        let now = Instant::now();
        let owners = &mut self.owners;
        self.owing.retain(|&id| {
            let Some(owner) = owners.get_mut(&id) else { return false };
            owner.used = owner.used.saturating_sub(SLICE).min(DEBT_MAX);
            owner.rests_until = owner.rests_until.filter(|&until| until > now);
            owner.owes = !owner.used.is_zero() || owner.rests_until.is_some();
            let owes = owner.owes;
            if owner.is_nobody() && !owes {
                owners.remove(&id);
            }
            owes
        });
    }

    /// A client, which is not among them, has something to do.
    pub(super) fn add(&mut self, client: u64) {
        self.ready.push_back(client);
    }

    /// The next client of this round.
    pub(super) fn next(&mut self) -> Option<u64> {
        self.ready.pop_front()
    }

    /// Whether a client of this owner has a turn in this round.
    pub(super) fn has_turn(&self, owner: u64) -> bool {
        self.owners.get(&owner).is_none_or(|it| it.used < SLICE && it.rests_until.is_none())
    }

    /// A turn has ended. Whether the loop goes on.
    pub(super) fn end(&mut self, owner: u64, turn: ClientTurn, loop_began: Instant) -> bool {
        let took = turn.begin.elapsed();
        let has_slept = took > BLOCKED && times_slept() > turn.slept;
        // All clients of the owner may have left in this turn.
        let it = self.owners.entry(owner).or_default();
        it.used += took;
        if !std::mem::replace(&mut it.owes, true) {
            self.owing.push(owner);
        }
        if has_slept && self.owners.len() > 1 && !mutant::on(Mutant::NobodyRests) {
            let until = Instant::now() + (took * REST_FACTOR).min(REST_MAX);
            self.change(owner, |it| it.rests_until = Some(until));
        }
        loop_began.elapsed() < TURN
    }
}

/// How often this thread has slept, as the system counts.
fn times_slept() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the call fills the struct, or fails.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: it was filled.
    if done == 0 { unsafe { usage.assume_init() }.ru_nvcsw } else { 0 }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn who_makes_the_thread_sleep_rests_and_who_is_slow_does_not() {
        let mut turns = ClientTurns::default();
        turns.come(1);
        turns.come(2);
        turns.begin_round();
        let turn = ClientTurn::begin();
        while turn.begin.elapsed() < 2 * BLOCKED {}
        // Not asleep; but another process may have made this thread wait for a lock of the system.
        turns.end(1, turn, Instant::now());
        assert!(!turns.has_turn(1), "its slice is used up");
        turns.begin_round();
        let turn = ClientTurn::begin();
        std::thread::sleep(2 * BLOCKED);
        turns.end(2, turn, Instant::now());
        assert!(!turns.has_turn(2) && turns.rests_until(2).is_some());
        // It leaves and comes back.
        turns.go(2);
        turns.come(2);
        assert!(turns.rests_until(2).is_some());
        turns.go(1);
        // Ends: nothing is kept of who has left, once it has paid.
        while turns.owner(1).is_some() {
            turns.begin_round();
        }
    }

    #[test]
    fn nobody_rests_with_the_mutant() {
        let mut turns = ClientTurns::default();
        turns.come(1);
        turns.come(2);
        let turn = ClientTurn::begin();
        std::thread::sleep(2 * BLOCKED);
        mutant::with(Some(Mutant::NobodyRests), || turns.end(2, turn, Instant::now()));
        assert!(turns.rests_until(2).is_none(), "the mutant does nothing");
    }

    #[test]
    fn who_is_slow_does_not_rest_for_who_slept_before() {
        // Ends: with a turn in which nothing makes this thread wait.
        let turns = loop {
            let mut turns = ClientTurns::default();
            turns.come(1);
            turns.come(2);
            turns.begin_round();
            let turn = ClientTurn::begin();
            std::thread::sleep(Duration::from_nanos(1));
            turns.end(1, turn, Instant::now());
            let turn = ClientTurn::begin();
            let slept = times_slept();
            while turn.begin.elapsed() < 2 * BLOCKED {}
            turns.end(2, turn, Instant::now());
            if times_slept() == slept && turns.rests_until(1).is_none() {
                break turns;
            }
        };
        assert!(turns.rests_until(2).is_none());
    }
}
