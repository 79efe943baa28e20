//! The queue of futures that wait for memory, and what they claim. A state without a lock: it wakes
//! nobody, but says who is to be woken.
//!
//! They queue, in a line for each file: a file whose reads hang keeps its own futures waiting, and
//! no others. Each step of progress wakes the first of one line, and the lines take turns: waking
//! all would make each try in vain.
//!
//! | a future that | does |
//! |---|---|
//! | is new | tries, unless its file has a line, or some line waits for memory: then it queues |
//! | is woken and gets what it wants | leaves, and wakes the next: there may be more |
//! | is woken and is refused | keeps its place; if its file alone is why, the next line tries |
//! | is dropped after it was woken | leaves, and wakes the next |
//!
//! What futures bring is held for them until they are polled. So each claims its pages while its
//! read is under way, and a file's claims are bounded as what it has on its way is. One future of
//! a file may always begin, however much it wants.
//!
//! A batch that finds no memory drops its guards and leaves the queue, which wakes others; then it
//! queues again. After some such retreats it waits with its guards, but one batch of the cache at a
//! time, the *keeper*: two could wait for each other. The others queue without guards. A keeper
//! that was woken and is not polled is passed over, too: the next batch that asks is the keeper
//! from then on. The one before learns that when it is polled, and drops its guards.
//!
//! As a put of a guard is no progress that anybody notes, the reclaiming thread wakes one from time
//! to time as long as any queues (`reclaim/daemon.rs`). It also passes over those that were woken
//! and are not polled.
//!
//! Called by `mod.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::mutant::{self, Mutant};
use crate::sizes::UNPOLLED;

/// Who waits for memory, and for what.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// How often memory was freed or a fill ended.
    pub(super) times: u64,
    /// By the number of the file. A line without futures and claims is removed.
    pub(super) lines: BTreeMap<u32, Line>,
    /// Files with a future to wake, the one whose turn is next first.
    order: VecDeque<u32>,
    /// Lines that wait for memory.
    short: usize,
    /// Pages that futures bring.
    claimed: u32,
    last: u64,
    /// The batch that may wait for memory with its guards.
    keeper: Option<Keeper>,
    /// How often a keeper was passed over that was polled after all, up to [`SLOW_MAX`].
    slow: u32,
}

/// See the head.
#[derive(Debug)]
struct Keeper {
    keeps: Keeps,
    /// With which it queues for memory, and of which file. `None` until its first poll ends.
    turn: Option<(u32, Turn)>,
    /// When that turn came, if it was not polled since.
    woken: Option<Instant>,
}

/// The permission of a keeper. Another batch may have it by now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Keeps(u64);

/// The futures of one file.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The one that has waited longest first: ordered by their turns. One without a waker was woken
    /// and tries.
    queue: VecDeque<(Turn, Option<Waker>)>,
    /// How many were woken, and when the last one was.
    awake: usize,
    woken: Option<Instant>,
    /// It is in `Queue::order`.
    listed: bool,
    /// The last one that tried found no memory.
    short: bool,
    /// `Queue::times` when it did.
    tried: Option<u64>,
    /// Pages that futures bring.
    claimed: u32,
}

/// The place of a future that queues for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u64);

/// Why a future queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Others were there before it: it has not tried.
    Behind,
    /// For what its own file has on its way, or does not get; others may be luckier.
    OwnFile,
    /// There is no memory.
    NoMemory,
}

/// A keeper that is passed over loses what it has brought. If it is polled after all, the program
/// is slow to poll, and the next one is given twice the time; so often at most.
const SLOW_MAX: u32 = 4;

impl Queue {
    /// Makes a batch the keeper, if there is none, or that one is not polled.
    pub(super) fn may_keep_guards(&mut self) -> Option<Keeps> {
        let most = self.keeper_unpolled();
        let is_passed_over = |keeper: &Keeper| {
            keeper.woken.is_some_and(|since| since.elapsed() >= most)
                && !mutant::on(Mutant::UnpolledKeepsGuards)
        };
        let may = self.keeper.as_ref().is_none_or(is_passed_over);
        (may || mutant::on(Mutant::AllKeepGuards)).then(|| {
            self.last += 1;
            self.keeper = Some(Keeper { keeps: Keeps(self.last), turn: None, woken: None });
            Keeps(self.last)
        })
    }

    /// How long a keeper may take from being woken to being polled.
    pub(super) fn keeper_unpolled(&self) -> Duration {
        UNPOLLED * (1 << self.slow)
    }

    /// Whether a batch that was polled is the keeper still. If so, it queues with that turn.
    pub(super) fn keeps_guards(&mut self, keeps: &Keeps, (file, turn): (u32, Turn)) -> bool {
        let line = &self.lines[&file];
        let is_woken = line.queue[line.at(turn).expect("it has a turn")].1.is_none(); // once more
        let Some(keeper) = self.keeper.as_mut().filter(|keeper| keeper.keeps == *keeps) else {
            self.slow = SLOW_MAX.min(self.slow + 1);
            return mutant::on(Mutant::AllKeepGuards) || mutant::on(Mutant::PassedOverKeepsGuards);
        };
        keeper.turn = Some((file, turn));
        keeper.woken = is_woken.then(Instant::now);
        true
    }

    /// The batch is not the keeper any more. False if it was not.
    pub(super) fn keeps_no_guards(&mut self, keeps: &Keeps) -> bool {
        self.keeper.take_if(|keeper| keeper.keeps == *keeps).is_some()
    }

    /// Whether there is a keeper.
    #[cfg(all(test, shuttle))]
    pub(super) fn has_keeper(&self) -> bool {
        self.keeper.is_some()
    }

    /// Ends a claim.
    pub(super) fn give_up(&mut self, file: u32, pages: u32) {
        if pages > 0 {
            self.claimed -= pages;
            self.lines.get_mut(&file).expect("it has a claim").claimed -= pages;
            self.tidy(file);
        }
    }

    fn tidy(&mut self, file: u32) {
        if self.lines.get(&file).is_some_and(|line| line.queue.is_empty() && line.claimed == 0) {
            self.lines.remove(&file);
        }
    }

    fn set_short(&mut self, file: u32, short: bool) {
        let line = self.lines.get_mut(&file).expect("it has futures");
        let was = std::mem::replace(&mut line.short, short);
        self.short = self.short + usize::from(short) - usize::from(was);
    }

    /// Puts the file into the order, or takes it out, after its line has changed.
    fn list(&mut self, file: u32, pass_over: bool) {
        let line = self.lines.get_mut(&file).expect("it has futures");
        let waits = line.queue.len() > line.awake;
        if !line.listed && waits && (line.awake == 0 || pass_over) {
            line.listed = true;
            self.order.push_back(file);
        } else if line.listed && !waits {
            line.listed = false;
            self.order.retain(|&listed| listed != file);
        }
    }

    /// The future whose turn is next, to be woken without the mutex.
    fn next(&mut self) -> Option<Waker> {
        let file = self.order.pop_front()?;
        self.set_short(file, false);
        let line = self.lines.get_mut(&file).expect("it is listed");
        line.listed = false;
        line.awake += 1;
        let now = Instant::now();
        line.woken = Some(now);
        let (turn, waker) =
            line.queue.iter_mut().find_map(|(turn, waker)| Some((*turn, waker.take()?)))?;
        if let Some(keeper) = &mut self.keeper
            && keeper.turn == Some((file, turn))
        {
            keeper.woken = Some(now);
        }
        Some(waker)
    }

    /// The same, unless all have tried since the last step of progress.
    fn next_untried(&mut self) -> Option<Waker> {
        let untried = self.lines[self.order.front()?].tried != Some(self.times);
        if untried { self.next() } else { None }
    }

    /// The same, after the line whose last one was woken the longest ago, and is not polled, has
    /// its turn again: it must not keep the others of its line waiting.
    pub(super) fn next_or_pass_over(&mut self) -> Option<Waker> {
        let unpolled = |(&file, line): (&u32, &Line)| {
            let since = line.woken.filter(|since| since.elapsed() >= UNPOLLED)?;
            let waits = line.awake > 0 && line.queue.len() > line.awake && !line.listed;
            waits.then_some((since, file))
        };
        if let Some((_, file)) = self.lines.iter().filter_map(unpolled).min() {
            self.list(file, true);
        }
        self.next()
    }

    /// A step of progress, by which a claim of the file may end.
    pub(super) fn step(&mut self, file: u32, claimed: u32) -> Option<Waker> {
        self.give_up(file, claimed);
        self.times += 1;
        self.next()
    }

    /// Claims pages for a future, if it may begin; with the progress seen. See
    /// [`Pressure::claim`](super::Pressure::claim).
    pub(super) fn claim(
        &mut self,
        file: u32,
        pages: u32,
        queues: bool,
        pages_max: u32,
    ) -> (Result<(), Refused>, u64) {
        let (seen, all) = (self.times, self.claimed);
        let is_short = self.short > 0;
        let line = self.lines.entry(file).or_default();
        let behind = !queues && (is_short || line.has_futures());
        let left = pages_max.saturating_sub(all + pages);
        let claimed = if behind && !mutant::on(Mutant::NewcomerFirst) {
            Err(Refused::Behind)
        } else if line.claimed > 0 && line.claimed + pages > left {
            Err(Refused::OwnFile)
        } else {
            line.claimed += pages;
            self.claimed += pages;
            Ok(())
        };
        self.tidy(file);
        (claimed, seen)
    }

    /// Whether a future waits to be woken.
    pub(super) fn has_sleepers(&self) -> bool {
        self.lines.values().any(|line| line.queue.len() > line.awake)
    }

    /// Queues a future that was refused; with another that is to be woken. `Err`: it has to try
    /// again, and this is its waker. See [`Pressure::queue`](super::Pressure::queue).
    pub(super) fn add(
        &mut self,
        (file, turn): (u32, Option<Turn>),
        (why, seen): (Refused, u64),
        waker: Waker,
    ) -> Result<(Turn, Option<Waker>), Waker> {
        // Those before it may have left since, which is no progress.
        let behind = self.short > 0 || self.lines.get(&file).is_some_and(Line::has_futures);
        if self.times != seen || (why == Refused::Behind && !behind) {
            return Err(waker);
        }
        self.last += 1;
        let new = Turn(self.last);
        let line = self.lines.entry(file).or_default();
        let at = turn.and_then(|turn| line.at(turn)).filter(|_| !mutant::on(Mutant::RefusedLast));
        let turn = if let (Some(turn), Some(at)) = (turn, at) {
            // It was woken, so this replaces nothing.
            line.queue[at].1 = Some(waker);
            line.awake -= 1;
            turn
        } else {
            if let Some(at) = turn.and_then(|turn| line.at(turn)) {
                line.queue.remove(at);
                line.awake -= 1;
            }
            line.queue.push_back((new, Some(waker)));
            new
        };
        if why != Refused::Behind {
            line.tried = Some(seen);
            self.set_short(file, why == Refused::NoMemory);
        }
        self.list(file, false);
        let next = if why == Refused::OwnFile { self.next_untried() } else { None };
        Ok((turn, next))
    }

    /// Whether the future still queues. Then `waker` is exchanged for the one that it left.
    pub(super) fn is_queued(&mut self, file: u32, turn: Turn, waker: &mut Option<Waker>) -> bool {
        let line = self.lines.get_mut(&file).expect("it queues");
        let at = line.at(turn).expect("it has a turn");
        let queued = line.queue[at].1.is_some();
        if queued {
            std::mem::swap(&mut line.queue[at].1, waker);
        }
        queued
    }

    /// Takes a future out: its waker, unless it was woken, and the next that is to be woken, if it
    /// was and `gives_on`.
    pub(super) fn remove(
        &mut self,
        file: u32,
        turn: Turn,
        gives_on: bool,
    ) -> (Option<Waker>, Option<Waker>) {
        let line = self.lines.get_mut(&file).expect("it queues");
        let at = line.at(turn).expect("it has a turn");
        let (_, waker) = line.queue.remove(at).expect("it is there");
        let was_woken = waker.is_none();
        if was_woken {
            line.awake -= 1;
            line.tried = None;
        }
        self.list(file, false);
        if was_woken || !self.lines[&file].has_futures() {
            self.set_short(file, false);
        }
        self.tidy(file);
        let next = if was_woken && gives_on { self.next() } else { None };
        (waker, next)
    }
}

impl Line {
    fn has_futures(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Where in the queue the future with that turn is.
    fn at(&self, turn: Turn) -> Option<usize> {
        self.queue.binary_search_by_key(&turn, |&(turn, _)| turn).ok()
    }
}
