//! What is known of the writing of a file: what the source has, and how its syncs stand. The states
//! of folios are in `dirt.rs`.
//!
//! One thread at a time has the file's *turn*: to give bytes to the source and sync it, or to cut
//! it. Turns are numbered as they begin. A thread that waits for the turn to sync leaves without it
//! when a sync has succeeded in a turn that began after it came. The end of a turn wakes all whom it
//! may do, who came before it began, and of the others one, to begin the next.

use std::time::Duration;

use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU8, AtomicU64, Condvar, Mutex, Ordering};

/// What the bytes of a file are for besides reading. The first claim stays as long as the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FileUse {
    None = 0,
    /// By maps of this process, or of others.
    Mapped = 1,
    Written = 2,
}

#[derive(Debug)]
pub(crate) struct WriteState {
    claim: AtomicU8,
    /// So many bytes the source has, at least. What is beyond is zeros, until it is written.
    source_bytes: AtomicU64,
    /// Of folios that are not clean. Changes under the `change` mutex.
    unsynced_pages: AtomicU64,
    turns: Mutex<SyncTurns>,
    /// Whom the end of an odd turn will do, or may; and whom that of an even one.
    ended: [Condvar; 2],
    /// Taken before the turn: one thread at a time appends.
    pub(crate) appending: Mutex<()>,
}

#[derive(Debug, Default)]
struct SyncTurns {
    taken: bool,
    /// Threads wait to sync that came since the last turn began.
    more: bool,
    /// The last one that has begun.
    begun: u64,
    /// The last in which a sync has succeeded, and the last in which one of metadata has.
    succeeded: [u64; 2],
    /// What the source had when a sync began that has succeeded.
    durable_bytes: u64,
    /// Whether the source's length was set, or a hole was punched there.
    length: SourceLength,
}

/// What was done to the source by other than writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SourceLength {
    #[default]
    Durable,
    /// Since the last sync that has succeeded.
    Set,
    /// The source has failed to set its length: it is to have so many bytes.
    Due(u64),
}

/// The turn, given up on drop.
#[derive(Debug)]
pub(crate) struct SyncTurn<'a> {
    state: &'a WriteState,
    again: bool,
}

impl WriteState {
    pub(crate) fn new(source_bytes: u64) -> Self {
        WriteState {
            claim: AtomicU8::new(FileUse::None as u8),
            source_bytes: AtomicU64::new(source_bytes),
            unsynced_pages: AtomicU64::new(0),
            turns: Mutex::new(SyncTurns { durable_bytes: source_bytes, ..SyncTurns::default() }),
            ended: [Condvar::new(), Condvar::new()],
            appending: Mutex::new(()),
        }
    }

    /// False: there is another claim.
    pub(crate) fn claim(&self, claim: FileUse) -> bool {
        if self.is_claimed(FileUse::None) {
            let (from, to) = (FileUse::None as u8, claim as u8);
            // Relaxed, both: nothing but the claim itself depends on it.
            let _ = self.claim.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.is_claimed(claim)
    }

    pub(crate) fn is_claimed(&self, claim: FileUse) -> bool {
        self.claim.load(Ordering::Relaxed) == claim as u8 // as above
    }

    pub(crate) fn source_bytes(&self) -> u64 {
        // Relaxed: the `change` mutex orders what depends on it.
        self.source_bytes.load(Ordering::Relaxed)
    }

    /// For who has the turn.
    pub(crate) fn source_reaches(&self, bytes: u64) {
        // Relaxed: as above.
        self.source_bytes.store(self.source_bytes().max(bytes), Ordering::Relaxed);
    }

    /// The source's length was asked for, of a file that has nothing to be synced.
    pub(crate) fn source_has(&self, bytes: u64) {
        self.turns.lock().durable_bytes = bytes;
        self.source_bytes.store(bytes, Ordering::Relaxed); // as above
    }

    /// For who has the turn: the length was set, or (`due`) the source has failed to do so.
    pub(crate) fn length_set(&self, bytes: u64, due: bool) {
        let mut turns = self.turns.lock();
        turns.durable_bytes = turns.durable_bytes.min(bytes);
        turns.length = if due { SourceLength::Due(bytes) } else { SourceLength::Set };
        let now = if due { self.source_bytes().min(bytes) } else { bytes };
        self.source_bytes.store(now, Ordering::Relaxed); // as above
    }

    /// For who has the turn.
    pub(crate) fn hole_punched(&self) {
        let mut turns = self.turns.lock();
        if turns.length == SourceLength::Durable {
            turns.length = SourceLength::Set;
        }
    }

    pub(crate) fn length_due(&self) -> Option<u64> {
        let turns = self.turns.lock();
        if let SourceLength::Due(bytes) = turns.length { Some(bytes) } else { None }
    }

    /// The source is let go of.
    pub(crate) fn forget_length(&self) {
        self.turns.lock().length = SourceLength::Durable;
    }

    /// Not counting what changes at this moment.
    pub(crate) fn needs_sync(&self) -> bool {
        let is_resized = || self.turns.lock().length != SourceLength::Durable;
        self.unsynced_pages() > 0 || is_resized() && !mutant::on(Mutant::ResizeIsDurable)
    }

    pub(crate) fn unsynced_pages(&self) -> u64 {
        self.unsynced_pages.load(Ordering::Relaxed) // a hint, but under the `change` mutex
    }

    pub(super) fn add_unsynced(&self, pages: i64) {
        // Relaxed: under the `change` mutex.
        self.unsynced_pages.fetch_add(pages.cast_unsigned(), Ordering::Relaxed);
    }

    /// Waits for the turn.
    pub(crate) fn turn(&self) -> SyncTurn<'_> {
        let mut turns = self.turns.lock();
        while turns.taken {
            let begun = turns.begun;
            turns = self.after(begun + 1).wait(turns);
        }
        self.begin(&mut turns)
    }

    /// Waits for the turn as long as `goes_on` says; it is asked about every `nap`, with the number
    /// of turns so far.
    pub(crate) fn turn_while(
        &self,
        nap: Duration,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> Option<SyncTurn<'_>> {
        let mut turns = self.turns.lock();
        while turns.taken {
            if !goes_on(turns.begun) {
                return None;
            }
            let begun = turns.begun;
            turns = self.after(begun + 1).wait_timeout(turns, nap);
        }
        Some(self.begin(&mut turns))
    }

    /// For who has been told by the thread that has [left](SyncTurn::leave) the turn to it.
    pub(crate) fn turn_left(&self) -> SyncTurn<'_> {
        SyncTurn { state: self, again: false }
    }

    /// Waits for the turn, or until another thread's sync will do (`None`).
    pub(crate) fn turn_to_sync(&self, data_only: bool) -> Option<SyncTurn<'_>> {
        let mut turns = self.turns.lock();
        let came = turns.begun.saturating_sub(mutant::on(Mutant::SyncOfOthers).into());
        // Ends: each turn of the loop follows the end of another thread's.
        loop {
            if turns.succeeded[usize::from(!data_only)] > came {
                return None;
            }
            if !turns.taken {
                return Some(self.begin(&mut turns));
            }
            turns.more |= came >= turns.begun;
            // The turn that has begun will do, or the next.
            let will_do = turns.begun.max(came + 1);
            turns = self.after(will_do).wait(turns);
        }
    }

    /// Where those wait whom this turn will do. One is woken before, to begin it.
    fn after(&self, turn: u64) -> &Condvar {
        &self.ended[(turn % 2) as usize]
    }

    fn begin(&self, turns: &mut SyncTurns) -> SyncTurn<'_> {
        turns.taken = true;
        turns.more = false;
        turns.begun += 1;
        SyncTurn { state: self, again: false }
    }
}

impl SyncTurn<'_> {
    /// To another thread.
    pub(crate) fn leave(self) {
        std::mem::forget(self);
    }

    /// If threads wait to sync that came since the turn began, it begins once more, for them, too.
    pub(crate) fn begins_again(&mut self) -> bool {
        let mut turns = self.state.turns.lock();
        self.again = std::mem::take(&mut turns.more);
        turns.begun += u64::from(self.again);
        self.again
    }

    /// Whether the source's sync has `succeeded`, and whether it had been given `all` before. After a
    /// sync that has failed nobody knows what the source has of what came since the last good one.
    pub(crate) fn ends(self, data_only: bool, succeeded: bool, all: bool) {
        let mut turns = self.state.turns.lock();
        if !succeeded {
            self.state.source_bytes.store(turns.durable_bytes, Ordering::Relaxed); // as above
            return;
        }
        turns.durable_bytes = self.state.source_bytes();
        if turns.length == SourceLength::Set {
            turns.length = SourceLength::Durable;
        }
        if all {
            turns.succeeded[0] = turns.begun;
            if !data_only {
                turns.succeeded[1] = turns.begun;
            }
        }
    }
}

impl Drop for SyncTurn<'_> {
    fn drop(&mut self) {
        let mut turns = self.state.turns.lock();
        turns.taken = false;
        let number = turns.begun;
        drop(turns);
        let next = self.state.after(number + 1);
        if self.again {
            next.notify_all(); // who came before it began first is among them
        } else if !mutant::on(Mutant::NextTurnUnwoken) {
            next.notify_one();
        }
        if mutant::on(Mutant::OneSharesTurn) {
            self.state.after(number).notify_one();
        } else {
            self.state.after(number).notify_all();
        }
    }
}
